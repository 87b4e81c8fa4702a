//! Appending to the ledger: one write per batch, rotation by size, and nothing half written left behind.
//!
//! The accountant hands over a batch of whole lines and decides when to [`sync`](Log::sync). A batch is either in
//! the file or not: on an error the file is cut back to its last good length, the batch stays with the caller, and
//! the same call may simply be made again.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::{Doing, FILE_MODE, LedgerError, LedgerFolder, Position, Segment, Torn, segment_path, segments, small};

/// How much of the end of a segment is read at once when looking for its last newline.
const TAIL_CHUNK_BYTES: u64 = 64 * 1024;

/// The writing end of a ledger. One per folder; the folder's lock stands for that.
pub struct Log {
    dir: PathBuf,
    segment_bytes: u64,
    open: Option<OpenSegment>,
    /// Closed, but the batch that closed it is not written yet; told with the next one that is.
    closed: Option<Segment>,
}

struct OpenSegment {
    file: File,
    path: PathBuf,
    first_seq: u64,
    /// Bytes of whole batches; what lies beyond is to be cut before anything else is written.
    bytes: u64,
    synced_bytes: u64,
    /// A failed write may have left bytes beyond `bytes`, and cutting them failed too.
    must_cut: bool,
}

/// Where a batch went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Appended {
    /// First byte of the batch.
    pub at: Position,
    /// First byte after it.
    pub next: Position,
    /// The segment this batch closed by opening the next one; its rollup is due.
    pub closed: Option<Segment>,
}

impl Log {
    /// Continues the last segment, after cutting a torn last line off; says what was cut. A segment is closed when
    /// a batch would take it past `segment_bytes`; a batch larger than that gets a segment of its own.
    pub fn open(folder: &LedgerFolder, segment_bytes: u64) -> Result<(Log, Option<Torn>), LedgerError> {
        let dir = folder.dir().to_owned();
        let Some(last) = segments(&dir)?.pop() else {
            return Ok((Log { dir, segment_bytes, open: None, closed: None }, None));
        };
        let mut open = OpenSegment::open(&dir, last.first_seq)?;
        let torn = open.cut_torn_line()?;
        Ok((Log { dir, segment_bytes, open: Some(open), closed: None }, torn))
    }

    /// Where the next batch will begin, if it closes no segment. `None` before the very first row.
    pub fn position(&self) -> Option<Position> {
        self.open.as_ref().map(OpenSegment::position)
    }

    /// Appends whole lines, the first of which has sequence number `first_seq`, with one write. May wait for the
    /// disk. After an error nothing of the batch is in the ledger.
    pub fn append(&mut self, batch: &[u8], first_seq: u64) -> Result<Appended, LedgerError> {
        self.make_room(batch.len() as u64, first_seq)?;
        let open = self.open.as_mut().expect("make_room left a segment open");
        let at = open.position();
        open.write(batch)?;
        Ok(Appended { at, next: open.position(), closed: self.closed.take() })
    }

    /// Puts everything appended so far on the disk. May wait. Free when nothing is unsynced.
    ///
    /// After an error the kernel may have dropped the unsynced bytes although later calls succeed, so the caller
    /// should report `unsynced_bytes` as at risk rather than trust the retry alone.
    pub fn sync(&mut self) -> Result<(), LedgerError> {
        self.open.as_mut().map_or(Ok(()), OpenSegment::sync)
    }

    /// Appended but not known to be on the disk.
    pub fn unsynced_bytes(&self) -> u64 {
        self.open.as_ref().map_or(0, |open| open.bytes - open.synced_bytes)
    }

    /// Leaves a segment open that has room for `bytes` more.
    fn make_room(&mut self, bytes: u64, first_seq: u64) -> Result<(), LedgerError> {
        let Some(open) = self.open.as_mut() else {
            self.open = Some(OpenSegment::create(&self.dir, first_seq)?);
            return Ok(());
        };
        if open.bytes == 0 && open.first_seq != first_seq {
            // Created for a row that never came; under its name nobody would look for this one.
            let empty = open.path.clone();
            self.open = Some(OpenSegment::create(&self.dir, first_seq)?);
            return std::fs::remove_file(&empty).doing("remove", &empty);
        }
        if open.bytes == 0 || open.bytes.saturating_add(bytes) <= self.segment_bytes {
            return Ok(());
        }
        // A closed segment is final: complete on disk before its successor exists.
        open.cut_if_due()?;
        open.sync()?;
        let closed = Segment { first_seq: open.first_seq, path: open.path.clone(), bytes: open.bytes };
        self.open = Some(OpenSegment::create(&self.dir, first_seq)?);
        self.closed = Some(closed);
        Ok(())
    }
}

impl OpenSegment {
    fn create(dir: &Path, first_seq: u64) -> Result<OpenSegment, LedgerError> {
        let open = OpenSegment::open(dir, first_seq)?;
        small::sync_dir(dir)?;
        Ok(open)
    }

    fn open(dir: &Path, first_seq: u64) -> Result<OpenSegment, LedgerError> {
        let path = segment_path(dir, first_seq);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(FILE_MODE)
            .open(&path)
            .doing("open", &path)?;
        let bytes = file.metadata().doing("look at", &path)?.len();
        Ok(OpenSegment { file, path, first_seq, bytes, synced_bytes: 0, must_cut: false })
    }

    fn position(&self) -> Position {
        Position { segment: self.first_seq, offset: self.bytes }
    }

    fn write(&mut self, batch: &[u8]) -> Result<(), LedgerError> {
        self.cut_if_due()?;
        if let Err(error) = self.write_at_end(batch) {
            self.must_cut = true;
            // If this fails as well, the next call cuts before it writes; the first error is the one to tell.
            let _ = self.cut_if_due();
            return Err(error).doing("append to", &self.path);
        }
        self.bytes += batch.len() as u64;
        Ok(())
    }

    /// One write in the ordinary case; a short one is continued, which is how the kernel says why it was short.
    fn write_at_end(&self, batch: &[u8]) -> io::Result<()> {
        let mut done = 0;
        while done < batch.len() {
            match self.file.write_at(&batch[done..], self.bytes + done as u64) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => done += written,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn cut_if_due(&mut self) -> Result<(), LedgerError> {
        if self.must_cut {
            self.file.set_len(self.bytes).doing("cut a half-written batch from", &self.path)?;
            self.must_cut = false;
        }
        Ok(())
    }

    fn sync(&mut self) -> Result<(), LedgerError> {
        if self.synced_bytes < self.bytes {
            self.file.sync_data().doing("sync", &self.path)?;
            self.synced_bytes = self.bytes;
        }
        Ok(())
    }

    fn cut_torn_line(&mut self) -> Result<Option<Torn>, LedgerError> {
        let whole = self.bytes_of_whole_lines().doing("read", &self.path)?;
        let torn = self.bytes - whole;
        self.bytes = whole;
        if torn == 0 {
            return Ok(None);
        }
        self.file.set_len(whole).doing("cut a torn line from", &self.path)?;
        Ok(Some(Torn { at: self.position(), bytes: torn }))
    }

    /// Length up to and including the last newline, found from the end backwards.
    fn bytes_of_whole_lines(&self) -> io::Result<u64> {
        let mut chunk = vec![0; TAIL_CHUNK_BYTES as usize];
        let mut end = self.bytes;
        while end > 0 {
            let start = end.saturating_sub(TAIL_CHUNK_BYTES);
            let chunk = &mut chunk[..(end - start) as usize];
            self.file.read_exact_at(chunk, start)?;
            if let Some(newline) = memchr::memrchr(b'\n', chunk) {
                return Ok(start + newline as u64 + 1);
            }
            end = start;
        }
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::TestDir;
    use super::*;
    use std::fs;

    fn open(dir: &TestDir, segment_bytes: u64) -> (LedgerFolder, Log, Option<Torn>) {
        let folder = LedgerFolder::open(dir.path()).unwrap();
        let (log, torn) = Log::open(&folder, segment_bytes).unwrap();
        (folder, log, torn)
    }

    fn segment(dir: &TestDir, first_seq: u64) -> Vec<u8> {
        fs::read(segment_path(dir.path(), first_seq)).unwrap()
    }

    #[test]
    fn batches_follow_each_other_and_say_where_they_went() {
        let dir = TestDir::new();
        let (_folder, mut log, torn) = open(&dir, 1000);
        assert_eq!((torn, log.position()), (None, None));
        let first = log.append(b"one\ntwo\n", 1).unwrap();
        assert_eq!(first.at, Position { segment: 1, offset: 0 });
        let second = log.append(b"three\n", 3).unwrap();
        assert_eq!((second.at, second.next), (first.next, Position { segment: 1, offset: 14 }));
        assert_eq!(log.unsynced_bytes(), 14);
        log.sync().unwrap();
        assert_eq!(log.unsynced_bytes(), 0);
        assert_eq!(segment(&dir, 1), b"one\ntwo\nthree\n");
    }

    #[test]
    fn full_segment_is_closed_and_the_next_is_named_by_its_first_row() {
        let dir = TestDir::new();
        let (_folder, mut log, _) = open(&dir, 10);
        log.append(b"12345678\n", 1).unwrap();
        let appended = log.append(b"x\ny\n", 2).unwrap(); // 9 + 4 > 10
        let closed = appended.closed.unwrap();
        assert_eq!((closed.first_seq, closed.bytes), (1, 9));
        assert_eq!(appended.at, Position { segment: 2, offset: 0 });
        // Larger than a whole segment: still one piece, in a segment of its own.
        let huge = log.append(b"0123456789abcdef\n", 4).unwrap();
        assert_eq!((huge.closed.unwrap().first_seq, huge.at.segment), (2, 4));
        assert_eq!(log.append(b"z\n", 5).unwrap().closed.unwrap().first_seq, 4);
    }

    #[test]
    fn restart_continues_the_last_segment() {
        let dir = TestDir::new();
        let (folder, mut log, _) = open(&dir, 1000);
        log.append(b"one\n", 1).unwrap();
        drop((folder, log));
        let (_folder, mut log, torn) = open(&dir, 1000);
        assert_eq!((torn, log.position()), (None, Some(Position { segment: 1, offset: 4 })));
        log.append(b"two\n", 2).unwrap();
        assert_eq!(segment(&dir, 1), b"one\ntwo\n");
    }

    #[test]
    fn torn_last_line_is_cut_off_and_reported() {
        let dir = TestDir::new();
        for (content, whole, torn_bytes) in [
            (b"one\ntwo\nthr".to_vec(), 8, 3),
            (b"thr".to_vec(), 0, 3),
            // Power loss can leave the length without the bytes.
            ([b"one\n".as_slice(), &[0; 200_000]].concat(), 4, 200_000),
        ] {
            fs::write(segment_path(dir.path(), 7), &content).unwrap();
            let (_folder, log, torn) = open(&dir, 1000);
            let at = Position { segment: 7, offset: whole };
            assert_eq!(torn, Some(Torn { at, bytes: torn_bytes }));
            assert_eq!(log.position(), Some(at));
            assert_eq!(segment(&dir, 7), &content[..whole as usize]);
        }
    }

    #[test]
    fn empty_segment_makes_way_for_one_with_the_right_name() {
        let dir = TestDir::new();
        fs::write(segment_path(dir.path(), 7), "torn").unwrap();
        let (folder, mut log, _) = open(&dir, 1000);
        log.append(b"nine\n", 9).unwrap();
        let seqs: Vec<u64> = folder.segments().unwrap().iter().map(|segment| segment.first_seq).collect();
        assert_eq!(seqs, [9]);
    }

    #[test]
    fn half_written_batch_is_cut_before_anything_else_is_written() {
        let dir = TestDir::new();
        let (_folder, mut log, _) = open(&dir, 1000);
        log.append(b"one\n", 1).unwrap();
        // What a failed write leaves when cutting fails too.
        let open = log.open.as_mut().unwrap();
        open.file.write_at(b"half a longer ba", 4).unwrap();
        open.must_cut = true;
        log.append(b"two\n", 2).unwrap();
        assert_eq!(segment(&dir, 1), b"one\ntwo\n");
    }
}

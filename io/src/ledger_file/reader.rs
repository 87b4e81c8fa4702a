//! Reading a ledger back, line by line, from any position, in bounded memory.
//!
//! Does not know what a line means: the caller says which ones it could not read, and the reader keeps count. Never
//! writes: a torn last line is reported here and cut only by [`Log::open`](super::Log::open).

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::{Doing, LedgerError, Position, Segment, Torn, segments};

/// Read at once; a few hundred rows of about 700 bytes.
const CHUNK_BYTES: usize = 256 * 1024;

/// A longer line is not a row of ours (the largest is a few kilobytes): it is skipped unread and counted as corrupt.
const LINE_BYTES_MAX: usize = 1024 * 1024;

/// Corrupt lines whose place is kept for the report; the rest is only counted.
const CORRUPT_PLACES_MAX: usize = 16;

/// One whole line, without its newline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line<'a> {
    pub bytes: &'a [u8],
    pub at: Position,
    /// Where the next line begins.
    pub next: Position,
}

/// What was found on the way.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReadReport {
    /// Lines handed out, corrupt ones included.
    pub lines: u64,
    pub corrupt: u64,
    /// Where the first few corrupt lines begin.
    pub corrupt_at: Vec<Position>,
    /// The last segment ends inside a line.
    pub torn: Option<Torn>,
}

/// Walks the lines of a ledger folder or of one file.
pub struct Reader {
    /// Still to be opened, newest first.
    ahead: Vec<Segment>,
    until: Option<Position>,
    current: Option<Current>,
    /// `buffer[start..end]` is read and not handed out.
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Place of the line handed out last, for [`Reader::mark_corrupt`].
    last_at: Position,
    report: ReadReport,
}

struct Current {
    file: File,
    path: PathBuf,
    /// Place of `buffer[start]`.
    at: Position,
    /// The rest of an overlong line is still to be skipped.
    skipping: bool,
}

/// What the buffered bytes amount to.
enum Step {
    Line { length: usize },
    Skipped,
    NeedMore,
}

impl Reader {
    /// From `from` to the end of the last segment, or to just before `until`. A position in a segment that is gone
    /// begins at the next one. Needs no lock; `until` keeps a live ledger's half-written end out of sight.
    pub fn folder(dir: &Path, from: Position, until: Option<Position>) -> Result<Reader, LedgerError> {
        let mut ahead = segments(dir)?;
        ahead.retain(|segment| segment.first_seq >= from.segment);
        ahead.reverse();
        let mut reader = Reader::over(ahead, until);
        if let Some(first) = reader.ahead.pop_if(|first| first.first_seq == from.segment) {
            reader.open_unless_gone(first, from.offset)?;
        }
        Ok(reader)
    }

    /// One file of rows, wherever it lies; positions count from segment 0.
    pub fn file(path: &Path) -> Result<Reader, LedgerError> {
        let mut reader = Reader::over(Vec::new(), None);
        // Opened here so that a wrong path is an error rather than an empty ledger.
        reader.open(path, Position::default())?;
        Ok(reader)
    }

    fn over(ahead: Vec<Segment>, until: Option<Position>) -> Reader {
        Reader {
            ahead,
            until,
            current: None,
            buffer: vec![0; CHUNK_BYTES],
            start: 0,
            end: 0,
            last_at: Position::default(),
            report: ReadReport::default(),
        }
    }

    /// The next line, or `None` at the end. Waits for the disk.
    pub fn next_line(&mut self) -> Result<Option<Line<'_>>, LedgerError> {
        let length = loop {
            if self.current.is_none() {
                let Some(segment) = self.ahead.pop() else { return Ok(None) };
                self.open_unless_gone(segment, 0)?;
                continue;
            }
            match self.step() {
                Step::Line { length } => break length,
                Step::Skipped => {}
                Step::NeedMore => {
                    if !self.fill()? {
                        self.end_segment();
                    }
                }
            }
        };
        let current = self.current.as_mut().expect("the step above found a line in an open segment");
        let at = current.at;
        if self.until.is_some_and(|until| at >= until) {
            self.current = None;
            self.ahead.clear();
            return Ok(None);
        }
        current.at.offset += length as u64 + 1;
        let bytes = &self.buffer[self.start..self.start + length];
        self.start += length + 1;
        self.last_at = at;
        self.report.lines += 1;
        Ok(Some(Line { bytes, at, next: current.at }))
    }

    /// The caller could not read the line handed out last: skip it, count it, remember where it was.
    pub fn mark_corrupt(&mut self) {
        self.note_corrupt(self.last_at);
    }

    pub fn report(&self) -> &ReadReport {
        &self.report
    }

    fn step(&mut self) -> Step {
        let current = self.current.as_mut().expect("called with an open segment");
        let unread = &self.buffer[self.start..self.end];
        let newline = memchr::memchr(b'\n', unread);
        if !current.skipping {
            return match newline {
                Some(length) => Step::Line { length },
                None if unread.len() < LINE_BYTES_MAX => Step::NeedMore,
                None => {
                    current.skipping = true;
                    let at = current.at;
                    self.note_corrupt(at);
                    self.report.lines += 1;
                    Step::Skipped
                }
            };
        }
        let skipped = newline.map_or(unread.len(), |length| length + 1);
        current.skipping = newline.is_none();
        current.at.offset += skipped as u64;
        self.start += skipped;
        if newline.is_some() { Step::Skipped } else { Step::NeedMore }
    }

    /// Reads more of the current segment; `false` at its end.
    fn fill(&mut self) -> Result<bool, LedgerError> {
        let current = self.current.as_mut().expect("called with an open segment");
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        if self.end == self.buffer.len() {
            self.buffer.resize(self.buffer.len() * 2, 0);
        }
        let read = loop {
            match current.file.read(&mut self.buffer[self.end..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => break other.doing("read", &current.path)?,
            }
        };
        self.end += read;
        Ok(read > 0)
    }

    /// What is left without a newline is torn at the very end, and a corrupt line in any earlier segment.
    fn end_segment(&mut self) {
        let current = self.current.take().expect("called with an open segment");
        let left = (self.end - self.start) as u64;
        self.start = 0;
        self.end = 0;
        if left == 0 || current.skipping || self.until.is_some_and(|until| current.at >= until) {
            return;
        }
        if self.ahead.is_empty() {
            self.report.torn = Some(Torn { at: current.at, bytes: left });
        } else {
            self.report.lines += 1;
            self.note_corrupt(current.at);
        }
    }

    fn open_unless_gone(&mut self, segment: Segment, offset: u64) -> Result<(), LedgerError> {
        match self.open(&segment.path, Position { segment: segment.first_seq, offset }) {
            // The writer's retention removed it since the listing.
            Err(LedgerError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    fn open(&mut self, path: &Path, at: Position) -> Result<(), LedgerError> {
        let mut file = File::open(path).doing("open", path)?;
        if at.offset > 0 {
            file.seek(SeekFrom::Start(at.offset)).doing("read", path)?;
        }
        self.current = Some(Current { file, path: path.to_owned(), at, skipping: false });
        Ok(())
    }

    fn note_corrupt(&mut self, at: Position) {
        self.report.corrupt += 1;
        if self.report.corrupt_at.len() < CORRUPT_PLACES_MAX {
            self.report.corrupt_at.push(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::TestDir;
    use super::super::{LedgerFolder, Log, segment_path};
    use super::*;
    use proptest::prelude::*;
    use std::fs;

    fn all(reader: &mut Reader) -> Vec<(Position, String)> {
        let mut lines = Vec::new();
        while let Some(line) = reader.next_line().unwrap() {
            lines.push((line.at, String::from_utf8_lossy(line.bytes).into_owned()));
        }
        lines
    }

    fn texts(reader: &mut Reader) -> Vec<String> {
        all(reader).into_iter().map(|(_, text)| text).collect()
    }

    fn at(segment: u64, offset: u64) -> Position {
        Position { segment, offset }
    }

    /// Two segments: rows 1 and 2, then rows 3 and 4.
    fn ledger() -> TestDir {
        let dir = TestDir::new();
        fs::write(segment_path(dir.path(), 1), "one\ntwo\n").unwrap();
        fs::write(segment_path(dir.path(), 3), "three\nfour\n").unwrap();
        dir
    }

    #[test]
    fn lines_come_in_order_across_segments_with_their_places() {
        let dir = ledger();
        let mut reader = Reader::folder(dir.path(), Position::default(), None).unwrap();
        let expected = [(at(1, 0), "one"), (at(1, 4), "two"), (at(3, 0), "three"), (at(3, 6), "four")];
        assert_eq!(all(&mut reader), expected.map(|(at, text)| (at, text.to_owned())));
        assert_eq!(reader.report(), &ReadReport { lines: 4, ..ReadReport::default() });
    }

    #[test]
    fn reading_begins_at_a_position_and_ends_before_another() {
        let dir = ledger();
        assert_eq!(texts(&mut Reader::folder(dir.path(), at(1, 4), Some(at(3, 6))).unwrap()), ["two", "three"]);
        assert_eq!(texts(&mut Reader::folder(dir.path(), at(3, 6), None).unwrap()), ["four"]);
        // Its segment is gone: whatever came later is still there.
        assert_eq!(texts(&mut Reader::folder(dir.path(), at(2, 99), None).unwrap()), ["three", "four"]);
        assert_eq!(texts(&mut Reader::folder(dir.path(), at(9, 0), None).unwrap()).len(), 0);
    }

    #[test]
    fn one_file_reads_alone_and_a_missing_one_is_an_error() {
        let dir = ledger();
        assert_eq!(texts(&mut Reader::file(&segment_path(dir.path(), 3)).unwrap()), ["three", "four"]);
        let error = Reader::file(&dir.path().join("nowhere.jsonl")).err().unwrap().to_string();
        assert!(error.starts_with("cannot open ") && error.contains("nowhere.jsonl"), "{error}");
    }

    #[test]
    fn corrupt_line_is_skipped_and_counted_and_the_rest_is_read() {
        let dir = ledger();
        let mut reader = Reader::folder(dir.path(), Position::default(), None).unwrap();
        let mut good = Vec::new();
        while let Some(line) = reader.next_line().unwrap() {
            if line.bytes == b"two" {
                reader.mark_corrupt();
            } else {
                good.push(line.bytes.to_vec());
            }
        }
        assert_eq!(good, [b"one".to_vec(), b"three".to_vec(), b"four".to_vec()]);
        let report = reader.report();
        assert_eq!((report.lines, report.corrupt, report.corrupt_at.as_slice()), (4, 1, [at(1, 4)].as_slice()));
    }

    #[test]
    fn torn_end_is_reported_in_the_last_segment_and_corrupt_in_an_earlier_one() {
        let dir = ledger();
        fs::write(segment_path(dir.path(), 1), "one\ntw").unwrap();
        fs::write(segment_path(dir.path(), 3), "three\nfo").unwrap();
        let mut reader = Reader::folder(dir.path(), Position::default(), None).unwrap();
        assert_eq!(texts(&mut reader), ["one", "three"]);
        assert_eq!(reader.report().torn, Some(Torn { at: at(3, 6), bytes: 2 }));
        assert_eq!(reader.report().corrupt_at, [at(1, 4)]);
    }

    #[test]
    fn line_beyond_any_row_is_skipped_in_bounded_memory() {
        let dir = TestDir::new();
        let long = "x".repeat(3 * LINE_BYTES_MAX);
        fs::write(segment_path(dir.path(), 1), format!("one\n{long}\ntwo\n")).unwrap();
        let mut reader = Reader::folder(dir.path(), Position::default(), None).unwrap();
        assert_eq!(texts(&mut reader), ["one", "two"]);
        assert_eq!((reader.report().corrupt, reader.report().lines), (1, 3));
        assert_eq!(reader.report().corrupt_at, [at(1, 4)]);
        assert!(reader.buffer.len() <= LINE_BYTES_MAX);
    }

    #[test]
    fn line_as_long_as_the_read_buffer_or_a_little_longer_comes_whole() {
        for length in [CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, LINE_BYTES_MAX - 1] {
            let dir = TestDir::new();
            fs::write(segment_path(dir.path(), 1), format!("{}\nend\n", "y".repeat(length))).unwrap();
            let lines = texts(&mut Reader::folder(dir.path(), Position::default(), None).unwrap());
            assert_eq!((lines[0].len(), lines[1].as_str()), (length, "end"));
        }
    }

    proptest! {
        // Each case syncs a dozen files: as many cases as a slow disk does in a second.
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn whatever_was_appended_is_read_back_from_any_line(
            batches in proptest::collection::vec(proptest::collection::vec("[a-z]{0,12}", 1..5), 1..12),
            segment_bytes in 1..60u64,
            pick: proptest::sample::Index,
        ) {
            let dir = TestDir::new();
            let folder = LedgerFolder::open(dir.path()).unwrap();
            let (mut log, _) = Log::open(&folder, segment_bytes).unwrap();
            let mut seq = 1;
            for batch in &batches {
                let bytes: String = batch.iter().map(|line| format!("{line}\n")).collect();
                log.append(bytes.as_bytes(), seq).unwrap();
                seq += batch.len() as u64;
            }
            let written: Vec<String> = batches.concat();
            let read = all(&mut Reader::folder(dir.path(), Position::default(), None).unwrap());
            prop_assert_eq!(read.iter().map(|(_, text)| text.clone()).collect::<Vec<_>>(), written.clone());
            let cut = pick.index(read.len());
            let rest = texts(&mut Reader::folder(dir.path(), read[cut].0, None).unwrap());
            prop_assert_eq!(rest.as_slice(), &written[cut..]);
        }
    }
}

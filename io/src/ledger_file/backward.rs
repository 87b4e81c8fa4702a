//! Reading one file of lines from its end to its beginning, in bounded memory: the newest first.
//!
//! For pages that show what happened last. Knows as little of a line's meaning as [`Reader`](super::Reader) does, and
//! never writes; what stands behind the last newline is a line somebody is still writing and is left out.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::{Doing, LedgerError};

/// Read at once; about a hundred rows.
const CHUNK_BYTES: usize = 64 * 1024;

/// A longer line is not one of ours: it is passed over.
const LINE_BYTES_MAX: usize = 1024 * 1024;

/// Walks the lines of one file, last first.
pub struct Backward {
    file: File,
    path: PathBuf,
    /// Bytes from here on are in `buffer` or were handed out.
    begin: u64,
    /// `buffer[..end]` is read and not handed out; with a line handed out, its newline is at `end`.
    buffer: Vec<u8>,
    end: usize,
    /// What comes next from behind is the rest of a line that is not handed out: torn, or too long.
    skipping: bool,
    read_bytes: u64,
}

impl Backward {
    /// From `end` (a place where a line begins), or from the end of the file.
    pub fn open(path: &Path, end: Option<u64>) -> Result<Backward, LedgerError> {
        let file = File::open(path).doing("open", path)?;
        let bytes = file.metadata().doing("look at", path)?.len();
        Ok(Backward {
            file,
            path: path.to_owned(),
            begin: end.map_or(bytes, |end| end.min(bytes)),
            buffer: Vec::new(),
            end: 0,
            skipping: true, // up to the last newline, which is the very last byte of a whole file
            read_bytes: 0,
        })
    }

    /// The line before the one handed out last, without its newline; `None` at the beginning. Waits for the disk.
    pub fn next_line(&mut self) -> Result<Option<&[u8]>, LedgerError> {
        let start = loop {
            if let Some(newline) = memchr::memrchr(b'\n', &self.buffer[..self.end]) {
                if std::mem::take(&mut self.skipping) {
                    self.end = newline;
                    continue;
                }
                break newline + 1;
            }
            if self.begin == 0 {
                if self.skipping {
                    return Ok(None);
                }
                break 0;
            }
            if self.skipping || self.end > LINE_BYTES_MAX {
                self.skipping = true;
                self.end = 0;
            }
            self.fill()?;
        };
        let line = start..self.end;
        self.end = start.saturating_sub(1); // onto the newline of the line before
        if start == 0 {
            self.skipping = true; // the first line is handed out: nothing is left
        }
        Ok(Some(&self.buffer[line]))
    }

    /// Bytes read so far: what a caller bounds its patience by.
    pub fn read_bytes(&self) -> u64 {
        self.read_bytes
    }

    /// Puts the chunk before `begin` in front of what is not handed out.
    fn fill(&mut self) -> Result<(), LedgerError> {
        let chunk = usize::try_from(self.begin).unwrap_or(usize::MAX).min(CHUNK_BYTES);
        self.buffer.truncate(self.end);
        self.buffer.splice(..0, std::iter::repeat_n(0, chunk));
        self.begin -= chunk as u64;
        self.end += chunk;
        self.read_bytes += chunk as u64;
        self.file.read_exact_at(&mut self.buffer[..chunk], self.begin).doing("read", &self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::TestDir;
    use super::*;
    use proptest::prelude::*;
    use std::fs;

    fn lines(text: &[u8], end: Option<u64>) -> Vec<String> {
        let dir = TestDir::new();
        let path = dir.path().join("lines");
        fs::write(&path, text).unwrap();
        let mut backward = Backward::open(&path, end).unwrap();
        let mut lines = Vec::new();
        while let Some(line) = backward.next_line().unwrap() {
            lines.push(String::from_utf8_lossy(line).into_owned());
        }
        assert_eq!(backward.next_line().unwrap(), None, "the beginning stays the beginning");
        lines
    }

    #[test]
    fn the_newest_line_comes_first_and_a_half_written_one_not_at_all() {
        assert_eq!(lines(b"one\ntwo\nthree\n", None), ["three", "two", "one"]);
        assert_eq!(lines(b"one\ntwo\nthr", None), ["two", "one"]);
        assert_eq!(lines(b"one\ntwo\nthree\n", Some(8)), ["two", "one"]);
        assert_eq!(lines(b"\n\n", None), ["", ""]);
        assert!(lines(b"", None).is_empty() && lines(b"torn", None).is_empty());
    }

    #[test]
    fn a_line_too_long_to_be_ours_is_passed_over() {
        let text = [b"one\n", "x".repeat(3 * LINE_BYTES_MAX).as_bytes(), b"\ntwo\n"].concat();
        assert_eq!(lines(&text, None), ["two", "one"]);
        let text = ["x".repeat(3 * LINE_BYTES_MAX).as_bytes(), b"\ntwo\n"].concat();
        assert_eq!(lines(&text, None), ["two"]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn backward_is_forward_reversed(
            lengths in proptest::collection::vec(prop_oneof![0..200usize, Just(CHUNK_BYTES), Just(CHUNK_BYTES - 1)], 0..12),
            torn in 0..5usize,
        ) {
            let mut written: Vec<String> =
                lengths.iter().enumerate().map(|(index, length)| format!("{index}:{}", "y".repeat(*length))).collect();
            let text: String = written.iter().map(|line| format!("{line}\n")).collect();
            written.reverse();
            prop_assert_eq!(lines(format!("{text}{}", "z".repeat(torn)).as_bytes(), None), written);
        }
    }
}

//! Splits a stream of events into lines, and lines into fields, whatever the pieces.
//!
//! The rules are those of the HTML standard: a line ends with LF, CR LF or CR; a byte order mark at the start is
//! skipped; a line that begins with a colon is a comment; one space behind the colon is not part of the value; an
//! empty line ends the event. Only the data is looked at.

/// Where in a line we are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// At the start of the stream, that many bytes of a byte order mark in.
    Mark(usize),
    Start,
    /// In the name of a field, which has matched that much of `data`.
    Name(usize),
    /// Right behind `data:`.
    DataColon,
    Data,
    /// In a line that is not data.
    Other,
    Comment,
}

#[derive(Clone, Debug)]
pub(super) struct Lines {
    place: Place,
    /// The last byte was a CR that ended a line; a LF now belongs to it.
    after_cr: bool,
}

impl Default for Lines {
    fn default() -> Lines {
        Lines { place: Place::Mark(0), after_cr: false }
    }
}

/// What a step met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Nothing,
    /// A line other than a comment has begun.
    FieldBegan,
    /// `text[from..to]` is data of the current line.
    Data {
        from: usize,
        to: usize,
    },
    LineEnded {
        data: bool,
    },
    /// The empty line behind an event.
    EventEnded,
}

const MARK: [u8; 3] = [0xef, 0xbb, 0xbf];
const DATA: &[u8] = b"data";

impl Lines {
    /// Takes some of `text`, which is not empty, and says how much and what it was.
    pub(super) fn step(&mut self, text: &[u8]) -> (usize, Step) {
        let Some(&byte) = text.first() else { return (0, Step::Nothing) };
        if std::mem::take(&mut self.after_cr) && byte == b'\n' {
            return (1, Step::Nothing);
        }
        match self.place {
            Place::Data => return self.read_to_line_end(text, 0),
            Place::Other | Place::Comment => return self.skip_to_line_end(text),
            Place::Start if text.starts_with(b"data:") => {
                self.place = Place::DataColon;
                return (5, Step::FieldBegan);
            }
            Place::DataColon if byte == b' ' => return self.read_to_line_end(text, 1),
            Place::DataColon => return self.read_to_line_end(text, 0),
            Place::Mark(matched) if MARK.get(matched) == Some(&byte) => {
                self.place = if matched + 1 == MARK.len() { Place::Start } else { Place::Mark(matched + 1) };
                return (1, Step::Nothing);
            }
            Place::Mark(0) => {
                self.place = Place::Start;
                return (0, Step::Nothing);
            }
            // Part of a mark is the start of a field nobody knows.
            Place::Mark(_) => self.place = Place::Other,
            Place::Start | Place::Name(_) => {}
        }
        match (self.place, byte) {
            (_, b'\n' | b'\r') => (1, self.end_line(byte)),
            (Place::Start, b':') => {
                self.place = Place::Comment;
                (1, Step::Nothing)
            }
            (Place::Start, _) => {
                self.place = if byte == DATA[0] { Place::Name(1) } else { Place::Other };
                (1, Step::FieldBegan)
            }
            (Place::Name(matched), b':') if matched == DATA.len() => {
                self.place = Place::DataColon;
                (1, Step::Nothing)
            }
            (Place::Name(matched), _) if DATA.get(matched) == Some(&byte) => {
                self.place = Place::Name(matched + 1);
                (1, Step::Nothing)
            }
            _ => {
                self.place = Place::Other;
                (1, Step::FieldBegan)
            }
        }
    }

    pub(super) fn is_mid_line(&self) -> bool {
        !matches!(self.place, Place::Start | Place::Mark(0))
    }

    pub(super) fn is_after_cr(&self) -> bool {
        self.after_cr
    }

    fn read_to_line_end(&mut self, text: &[u8], from: usize) -> (usize, Step) {
        self.place = Place::Data;
        let to = line_end(text).unwrap_or(text.len());
        if to > from {
            return (to, Step::Data { from, to });
        }
        if from > 0 {
            return (from, Step::Nothing);
        }
        (1, self.end_line(text[0]))
    }

    fn skip_to_line_end(&mut self, text: &[u8]) -> (usize, Step) {
        match line_end(text) {
            Some(end) => (end + 1, self.end_line(text[end])),
            None => (text.len(), Step::Nothing),
        }
    }

    fn end_line(&mut self, ended_by: u8) -> Step {
        let place = std::mem::replace(&mut self.place, Place::Start);
        self.after_cr = ended_by == b'\r';
        match place {
            Place::Start | Place::Mark(_) => Step::EventEnded,
            _ => Step::LineEnded { data: matches!(place, Place::Data | Place::DataColon) },
        }
    }
}

fn line_end(text: &[u8]) -> Option<usize> {
    memchr::memchr2(b'\n', b'\r', text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The data lines of each event, in pieces of `size`.
    fn events(stream: &[u8], size: usize) -> Vec<Vec<String>> {
        let (mut lines, mut all, mut event, mut line) = (Lines::default(), Vec::new(), Vec::new(), Vec::new());
        for piece in stream.chunks(size) {
            let mut at = 0;
            while at < piece.len() {
                let (taken, step) = lines.step(&piece[at..]);
                match step {
                    Step::Data { from, to } => line.extend_from_slice(&piece[at + from..at + to]),
                    Step::LineEnded { data: true } => {
                        event.push(String::from_utf8(std::mem::take(&mut line)).unwrap());
                    }
                    Step::EventEnded => all.push(std::mem::take(&mut event)),
                    Step::LineEnded { data: false } | Step::FieldBegan | Step::Nothing => {}
                }
                at += taken;
            }
        }
        all
    }

    #[test]
    fn every_spelling_gives_the_same_data() {
        for (stream, expected) in [
            ("data: a\n\n", &[&["a"][..]][..]),
            ("data:a\n\n", &[&["a"]]),
            ("data:  a\n\n", &[&[" a"]]),
            ("data: a b: c\n\n", &[&["a b: c"]]),
            ("data:\n\n", &[&[""]]),
            ("data: \n\n", &[&[""]]),
            ("data: a\ndata: b\n\n", &[&["a", "b"]]),
            (": comment\nid: 7\nevent: x\ndata: a\nretry: 1\n\n", &[&["a"]]),
            ("\u{feff}data: a\n\ndata: b\n\n", &[&["a"], &["b"]]),
            ("date: x\ndat: x\ndatax: x\n data: x\ndata\nd\ndata: a\n\n", &[&["a"]]),
            (":\n:data: x\n\ndata: a\n\n", &[&[], &["a"]]),
            ("data: é北\n\n", &[&["é北"]]),
        ] {
            for ends in ["\n", "\r\n", "\r"] {
                let stream = stream.replace('\n', ends);
                for size in 1..=stream.len() {
                    assert_eq!(events(stream.as_bytes(), size), expected, "{stream:?} in {size}");
                }
            }
        }
    }
}

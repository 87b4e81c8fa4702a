//! HTTP/1.1 as the load generator and the mock provider speak it: requests and answers are taken apart by hand.
//!
//! Deliberately not the gateway's own parser: a harness that shared it would share its faults. It checks what a client
//! would trip over (status, framing, every byte of the body accounted for, nothing after it) and no more.

use memchr::{memchr, memmem};

/// A head longer than this is a fault of whoever sent it.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// What is wrong with a message. The words end up in the report, so that a failed window says why.
pub type Fault = &'static str;

/// Where a body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    None,
    Length(u64),
    Chunked,
    /// An answer that ends with its connection.
    Close,
}

/// What of a head matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// 0 for a request.
    pub status: u16,
    pub framing: Framing,
    pub keep_alive: bool,
    pub expects_continue: bool,
}

/// Finds the end of a head: how many bytes it has, with the empty line.
pub fn head_end(bytes: &[u8]) -> Option<usize> {
    memmem::find(bytes, b"\r\n\r\n").map(|at| at + 4)
}

/// Reads a complete head.
pub fn read_head(head: &[u8], is_answer: bool) -> Result<Head, Fault> {
    let mut lines = head.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let first = lines.next().ok_or("an empty head")?;
    let status = if is_answer { status_of(first)? } else { 0 };
    let mut framing = if is_answer { Framing::Close } else { Framing::None };
    let mut keep_alive = true;
    let mut expects_continue = false;
    for line in lines.filter(|line| !line.is_empty()) {
        let colon = memchr(b':', line).ok_or("a header without a colon")?;
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if name.eq_ignore_ascii_case(b"content-length") {
            let length = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
            framing = Framing::Length(length.ok_or("a content-length that is no number")?);
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            if !value.eq_ignore_ascii_case(b"chunked") {
                return Err("a transfer-encoding other than chunked");
            }
            framing = Framing::Chunked;
        } else if name.eq_ignore_ascii_case(b"connection") {
            keep_alive = !value.eq_ignore_ascii_case(b"close");
        } else if name.eq_ignore_ascii_case(b"expect") {
            expects_continue = value.eq_ignore_ascii_case(b"100-continue");
        }
    }
    if is_answer && (status == 204 || status == 304 || status < 200) {
        framing = Framing::None;
    }
    Ok(Head { status, framing, keep_alive: keep_alive && framing != Framing::Close, expects_continue })
}

fn status_of(line: &[u8]) -> Result<u16, Fault> {
    let digits = line.strip_prefix(b"HTTP/1.1 ").or_else(|| line.strip_prefix(b"HTTP/1.0 "));
    let digits = digits.and_then(|rest| rest.get(..3)).ok_or("an answer that is not HTTP/1")?;
    std::str::from_utf8(digits).ok().and_then(|text| text.parse().ok()).ok_or("a status that is no number")
}

/// Takes the framing off a body that comes in pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    Length(u64),
    Close,
    Size {
        size: u64,
        digits: u8,
        in_extension: bool,
    },
    Data(u64),
    DataEnd(u8),
    /// After the last chunk: how many bytes of the current line were seen.
    Trailer(u32),
    Done,
}

impl Body {
    pub fn of(framing: Framing) -> Self {
        match framing {
            Framing::None | Framing::Length(0) => Body::Done,
            Framing::Length(length) => Body::Length(length),
            Framing::Chunked => Body::Size { size: 0, digits: 0, in_extension: false },
            Framing::Close => Body::Close,
        }
    }

    pub fn is_done(self) -> bool {
        self == Body::Done
    }

    /// Takes what belongs to the body from the front of `bytes`, gives its payload to `sink`, and says how many bytes
    /// it took.
    pub fn take(&mut self, bytes: &[u8], mut sink: impl FnMut(&[u8])) -> Result<usize, Fault> {
        let mut at = 0;
        while at < bytes.len() && *self != Body::Done {
            let rest = &bytes[at..];
            match self {
                Body::Length(left) => {
                    let count = rest.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                    sink(&rest[..count]);
                    at += count;
                    *left -= count as u64;
                    if *left == 0 {
                        *self = Body::Done;
                    }
                }
                Body::Close => {
                    sink(rest);
                    at = bytes.len();
                }
                Body::Size { size, digits, in_extension } => {
                    at += 1;
                    match rest[0] {
                        b'\n' if *digits == 0 => return Err("a chunk without a size"),
                        b'\n' if *size == 0 => *self = Body::Trailer(0),
                        b'\n' => *self = Body::Data(*size),
                        b'\r' => {}
                        b';' | b' ' => *in_extension = true,
                        _ if *in_extension => {}
                        digit => {
                            let value = (digit as char).to_digit(16).ok_or("a chunk size that is no number")?;
                            *size = size.checked_mul(16).ok_or("a chunk size that overflows")? + u64::from(value);
                            *digits = digits.saturating_add(1);
                        }
                    }
                }
                Body::Data(left) => {
                    let count = rest.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                    sink(&rest[..count]);
                    at += count;
                    *left -= count as u64;
                    if *left == 0 {
                        *self = Body::DataEnd(0);
                    }
                }
                Body::DataEnd(seen) => {
                    at += 1;
                    match (*seen, rest[0]) {
                        (0, b'\r') => *seen = 1,
                        (1, b'\n') => *self = Body::Size { size: 0, digits: 0, in_extension: false },
                        _ => return Err("a chunk longer than its size"),
                    }
                }
                Body::Trailer(seen) => {
                    at += 1;
                    match rest[0] {
                        b'\n' if *seen == 0 => *self = Body::Done,
                        b'\n' => *seen = 0,
                        b'\r' => {}
                        _ => *seen += 1,
                    }
                }
                Body::Done => break,
            }
        }
        Ok(at)
    }
}

/// Reads one message at a time from a connection.
#[derive(Debug)]
pub struct Reader {
    is_answer: bool,
    head: Option<Head>,
    /// A head that has not come whole.
    partial: Vec<u8>,
    body: Body,
}

/// How far a message has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    More,
    /// Complete; so many bytes of what was fed belong to it.
    Complete {
        used: usize,
    },
}

impl Reader {
    pub fn answers() -> Self {
        Self { is_answer: true, head: None, partial: Vec::new(), body: Body::Done }
    }

    pub fn requests() -> Self {
        Self { is_answer: false, ..Self::answers() }
    }

    pub fn head(&self) -> Option<Head> {
        self.head
    }

    pub fn reset(&mut self) {
        self.head = None;
        self.partial.clear();
        self.body = Body::Done;
    }

    /// Takes bytes as they come. Payload goes to `sink`. Interim answers (1xx) are passed over.
    pub fn feed(&mut self, bytes: &[u8], mut sink: impl FnMut(&[u8])) -> Result<Progress, Fault> {
        let mut used = 0;
        while self.head.is_none() {
            let fed = &bytes[used..];
            let (head, taken) = if self.partial.is_empty() {
                let Some(end) = head_end(fed) else {
                    self.partial.extend_from_slice(fed);
                    return if self.partial.len() > HEAD_BYTES_MAX {
                        Err("an endless head")
                    } else {
                        Ok(Progress::More)
                    };
                };
                (read_head(&fed[..end], self.is_answer)?, end)
            } else {
                let before = self.partial.len();
                self.partial.extend_from_slice(fed);
                let Some(end) = head_end(&self.partial) else {
                    return if self.partial.len() > HEAD_BYTES_MAX {
                        Err("an endless head")
                    } else {
                        Ok(Progress::More)
                    };
                };
                let head = read_head(&self.partial[..end], self.is_answer)?;
                self.partial.clear();
                (head, end - before)
            };
            used += taken;
            if self.is_answer && head.status < 200 {
                continue;
            }
            self.body = Body::of(head.framing);
            self.head = Some(head);
        }
        used += self.body.take(&bytes[used..], &mut sink)?;
        Ok(if self.body.is_done() { Progress::Complete { used } } else { Progress::More })
    }

    /// The connection ended. Whether that is a legal end of the message.
    pub fn end(&self) -> Result<(), Fault> {
        match (self.head, self.body) {
            (Some(_), Body::Close | Body::Done) => Ok(()),
            (Some(_), _) => Err("an answer that was cut"),
            (None, _) => Err("a connection closed without an answer"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds a message byte by byte and as a whole; both must give the same payload.
    fn payload(message: &[u8], is_answer: bool) -> Result<Vec<u8>, Fault> {
        let new = || if is_answer { Reader::answers() } else { Reader::requests() };
        let (mut whole, mut reader) = (Vec::new(), new());
        let progress = reader.feed(message, |piece| whole.extend_from_slice(piece))?;
        assert!(matches!(progress, Progress::Complete { used } if used == message.len()), "{progress:?}");
        let (mut pieces, mut reader) = (Vec::new(), new());
        for (index, byte) in message.iter().enumerate() {
            let progress = reader.feed(&[*byte], |piece| pieces.extend_from_slice(piece))?;
            assert_eq!(progress != Progress::More, index + 1 == message.len(), "at byte {index}");
        }
        assert_eq!(whole, pieces);
        Ok(whole)
    }

    #[test]
    fn an_answer_is_the_same_in_one_piece_and_byte_by_byte() {
        assert_eq!(payload(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", true).unwrap(), b"hello");
        let chunked =
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3;x=1\r\nabc\r\n2\r\nde\r\n0\r\nX: y\r\n\r\n";
        assert_eq!(payload(chunked, true).unwrap(), b"abcde");
        assert_eq!(payload(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No\r\n\r\n", true).unwrap(), b"");
        assert_eq!(payload(b"POST / HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}", false).unwrap(), b"{}");
    }

    #[test]
    fn bytes_after_an_answer_are_not_taken_for_a_part_of_it() {
        let mut reader = Reader::answers();
        let fed = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nabc";
        assert_eq!(reader.feed(fed, |_| {}), Ok(Progress::Complete { used: fed.len() - 2 }));
    }

    #[test]
    fn a_cut_answer_is_told_from_a_whole_one() {
        let mut reader = Reader::answers();
        reader.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel", |_| {}).unwrap();
        assert_eq!(reader.end(), Err("an answer that was cut"));
        let mut reader = Reader::answers();
        reader.feed(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n", |_| {}).unwrap();
        assert_eq!(reader.end(), Err("an answer that was cut"));
        let mut reader = Reader::answers();
        reader.feed(b"HTTP/1.1 200 OK\r\n\r\nhel", |_| {}).unwrap();
        assert_eq!(reader.end(), Ok(()));
    }

    #[test]
    fn broken_chunks_are_faults() {
        for bad in ["x\r\n", "\r\n", "1\r\nabc", "fffffffffffffffff\r\n"] {
            let message = format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{bad}");
            assert!(Reader::answers().feed(message.as_bytes(), |_| {}).is_err(), "{bad:?}");
        }
    }
}

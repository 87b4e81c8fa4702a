//! Request and reply heads: complete or not yet, clear or refused.
//!
//! A request head that two parsers could read differently is refused, because the second reading is where smuggled
//! requests hide: every rule here has its line in the test table at the end. Replies come from a provider the
//! operator chose; they may be sloppy where that is harmless, but never ambiguous about where the body ends. Heads
//! hold ranges, not borrows, so the caller may move the buffer; limits on sizes are told by the caller.

mod reply;
mod request;

use super::byte_set::ByteSet;
use super::fields::{FieldsError, LineEnds};
use crate::stops::{self, LineFeed};
pub use reply::ResponseHead;
pub use request::RequestHead;

/// The methods this gateway answers; every other well-formed one is a 501.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Method {
    #[default]
    Get,
    Head,
    Post,
    Put,
    Patch,
    Delete,
    Options,
}

impl Method {
    pub fn as_str(self) -> &'static str {
        match self {
            Method::Get => "GET",
            Method::Head => "HEAD",
            Method::Post => "POST",
            Method::Put => "PUT",
            Method::Patch => "PATCH",
            Method::Delete => "DELETE",
            Method::Options => "OPTIONS",
        }
    }

    fn of(name: &[u8]) -> Option<Method> {
        Some(match name {
            b"GET" => Method::Get,
            b"HEAD" => Method::Head,
            b"POST" => Method::Post,
            b"PUT" => Method::Put,
            b"PATCH" => Method::Patch,
            b"DELETE" => Method::Delete,
            b"OPTIONS" => Method::Options,
            _ => return None,
        })
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Version {
    Http10,
    #[default]
    Http11,
}

/// How large a head may be, from the start of the buffer (stray empty lines and interim replies included) to the end
/// of its empty line.
#[derive(Clone, Copy, Debug)]
pub struct HeadLimits {
    pub head_bytes_max: u32,
}

/// A head that cannot be used. For a request: answer `status` and close, the connection's framing is lost. For a
/// reply: the upstream connection is of no further use, `status` is 502.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct HeadError {
    pub status: u16,
    pub reason: &'static str,
}

/// How far a growing buffer has been searched for the lines of a head.
#[derive(Clone, Debug, Default)]
struct HeadScan {
    /// First byte of the head, behind empty lines and interim replies.
    start: usize,
    /// First byte of the line that is not ended yet.
    line: usize,
    /// First byte not looked at.
    next: usize,
    /// The first line without its line end, and where the second begins.
    first: Option<Lines>,
    empty_lines: u8,
}

#[derive(Clone, Debug)]
struct Lines {
    first: std::ops::Range<usize>,
    fields_start: usize,
}

/// Empty lines tolerated before a request line: old clients end a body with a stray CR LF.
const EMPTY_LINES_MAX: u8 = 2;
const TOO_LARGE: &str = "the head is larger than allowed";

impl HeadScan {
    /// The lines of the head once it is worth reading them: at the first call that has the first line, then again
    /// only when the empty line has come.
    fn find(&mut self, buf: &[u8], limits: &HeadLimits, ends: LineEnds) -> Result<Option<Lines>, HeadError> {
        let mut from = self.next;
        loop {
            let lf = stops::next::<LineFeed>(buf, from);
            if lf >= buf.len() {
                break;
            }
            from = lf + 1;
            let cr = lf > self.line && buf.get(lf - 1) == Some(&b'\r');
            if !cr && ends == LineEnds::CrLfOnly {
                return Err(refused(ends, 400, FieldsError::LineEnd.reason()));
            }
            let (line_start, line_end) = (self.line, if cr { lf - 1 } else { lf });
            self.line = lf + 1;
            match &self.first {
                None if line_end == line_start => {
                    self.start = lf + 1;
                    self.empty_lines += 1;
                    if self.empty_lines > EMPTY_LINES_MAX {
                        return Err(refused(ends, 400, "empty lines instead of a head"));
                    }
                }
                None => {
                    let first = Lines { first: line_start..line_end, fields_start: lf + 1 };
                    self.first = Some(first.clone());
                    self.next = lf + 1;
                    return Ok(Some(first));
                }
                Some(first) if line_end == line_start => return Ok(Some(first.clone())),
                Some(_) => {}
            }
        }
        self.wait(buf, limits, ends).map(|()| None)
    }

    /// The fields were read and are not complete: looks at the rest of `buf` line by line.
    fn scan_on<T>(&mut self, buf: &[u8], limits: &HeadLimits, ends: LineEnds) -> Result<Option<T>, HeadError> {
        match self.find(buf, limits, ends)? {
            None => Ok(None),
            // An empty line that the field parser did not take for the end.
            Some(_) => Err(refused(ends, 400, FieldsError::LineEnd.reason())),
        }
    }

    /// Notes that all of `buf` was looked at, and refuses what can no longer become a head.
    fn wait(&mut self, buf: &[u8], limits: &HeadLimits, ends: LineEnds) -> Result<(), HeadError> {
        self.next = buf.len();
        if buf.len() >= limits.head_bytes_max as usize {
            return Err(refused(ends, 431, TOO_LARGE));
        }
        // A TLS hello, say, is told at once, not when its time is up.
        match buf.get(self.start) {
            Some(&first) if first != b'\r' && !TOKEN_BYTES.has(first) => Err(refused(ends, 400, "this is not HTTP")),
            _ => Ok(()),
        }
    }

    /// Begins anew behind an interim reply. Its bytes still count towards the limit, so there is no endless run of them.
    fn restart(&mut self, at: usize) {
        *self = HeadScan { start: at, line: at, next: at, empty_lines: self.empty_lines, ..HeadScan::default() };
    }
}

/// The client's fault in a request, the upstream's in a reply.
fn refused(ends: LineEnds, request_status: u16, reason: &'static str) -> HeadError {
    HeadError { status: if ends == LineEnds::CrLfOnly { request_status } else { 502 }, reason }
}

/// Digits and nothing else; `None` also on overflow.
fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0u64, |sum, &b| {
        let digit = b.is_ascii_digit().then(|| u64::from(b - b'0'))?;
        sum.checked_mul(10)?.checked_add(digit)
    })
}

/// What names of fields and methods are made of (RFC 9110, `tchar`).
pub(super) static TOKEN_BYTES: ByteSet = ByteSet::letters_digits_and(b"!#$%&'*+-.^_`|~");

#[cfg(test)]
mod tests;

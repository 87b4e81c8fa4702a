//! A request head: what it asks for, or which ambiguity refuses it. Called by the listener's loop.

use super::super::body::Framing;
use super::super::byte_set::ByteSet;
use super::super::fields::{FieldKind, Fields, FieldsError, LineEnds, Span, is_same};
use super::{HeadError, HeadLimits, HeadScan, Method, TOKEN_BYTES, TOO_LARGE, Version, decimal};
use crate::stops::{self, NotOfPath, NotOfUsualHost};
use std::ops::Range;

/// One request head. Reuse it for the next request of the connection: it keeps its capacity.
#[derive(Clone, Debug, Default)]
pub struct RequestHead {
    pub method: Method,
    pub version: Version,
    pub fields: Fields,
    /// `None`, `Length` or `Chunked`; a request is never close-delimited.
    pub framing: Framing,
    /// Whether the client expects another answer on this connection.
    pub keep_alive: bool,
    /// Whether the client waits for `100 Continue` before it sends its body.
    pub expect_continue: bool,
    path: Span,
    query: Option<Span>,
    pub(super) scan: HeadScan,
}

impl RequestHead {
    /// Reads a head from the front of a growing buffer. `Ok(Some(len))`: complete, `len` bytes long, and `self` says
    /// what it says. `Ok(None)`: call again with the same bytes and more behind them; nothing is scanned twice, so
    /// a head that trickles in byte by byte costs no more than one that comes at once.
    pub fn parse(&mut self, buf: &[u8], limits: &HeadLimits) -> Result<Option<usize>, HeadError> {
        let Some(lines) = self.scan.find(buf, limits, LineEnds::CrLfOnly)? else { return Ok(None) };
        self.read_request_line(buf, lines.first)?;
        let read = self.fields.read(buf, lines.fields_start, LineEnds::CrLfOnly);
        let end = match read {
            Ok(Some(end)) if end <= limits.head_bytes_max as usize => end,
            Ok(None) => return self.scan.scan_on(buf, limits, LineEnds::CrLfOnly),
            Ok(Some(_)) => return Err(HeadError { status: 431, reason: TOO_LARGE }),
            Err(FieldsError::TooMany) => return Err(HeadError { status: 431, reason: FieldsError::TooMany.reason() }),
            Err(error) => return Err(bad(error.reason())),
        };
        self.scan = HeadScan::default();
        self.read_framing(buf)?;
        Ok(Some(end))
    }

    /// Forgets a head that was begun, for a buffer that starts anew.
    pub fn clear(&mut self) {
        self.scan = HeadScan::default();
        self.fields.clear();
    }

    /// The path as sent (see [`crate::http1::target::normalise`]); `/` for an absolute target without one, `*` for
    /// `OPTIONS *`.
    pub fn path<'b>(&self, buf: &'b [u8]) -> &'b [u8] {
        if self.path.is_empty() { b"/" } else { self.path.of(buf) }
    }

    /// What follows the `?`, if there is one.
    pub fn query<'b>(&self, buf: &'b [u8]) -> Option<&'b [u8]> {
        self.query.map(|query| query.of(buf))
    }

    /// `method SP target SP version`, each strictly.
    fn read_request_line(&mut self, buf: &[u8], line: Range<usize>) -> Result<(), HeadError> {
        let malformed = bad("malformed request line");
        let text = buf.get(line.clone()).unwrap_or_default();
        // Nearly all are so; a space between the two is for the target to refuse.
        let (method_end, version_start) = if text.starts_with(b"POST ") && text.ends_with(b" HTTP/1.1") {
            (4, text.len() - 9)
        } else {
            let method_end = memchr::memchr(b' ', text).ok_or(malformed)?;
            (method_end, memchr::memrchr(b' ', text).filter(|&at| at > method_end).ok_or(malformed)?)
        };
        if version_start <= method_end {
            return Err(malformed);
        }
        let (method, version) = (&text[..method_end], &text[version_start + 1..]);
        let known = Method::of(method);
        if known.is_none() && (method.is_empty() || !method.iter().all(|&b| TOKEN_BYTES.has(b))) {
            return Err(bad("malformed method"));
        }
        self.version = match version {
            b"HTTP/1.1" => Version::Http11,
            b"HTTP/1.0" => Version::Http10,
            [b'H', b'T', b'T', b'P', b'/', major, b'.', minor] if major.is_ascii_digit() && minor.is_ascii_digit() => {
                return Err(HeadError { status: 505, reason: "only HTTP/1.1 and HTTP/1.0 are spoken here" });
            }
            _ => return Err(bad("malformed HTTP version")),
        };
        self.method = known.ok_or(HeadError { status: 501, reason: "unknown method" })?;
        self.read_target(buf, line.start + method_end + 1..line.start + version_start)
    }

    fn read_target(&mut self, buf: &[u8], target: Range<usize>) -> Result<(), HeadError> {
        let malformed = bad("malformed request target");
        let range = target.clone();
        let target = buf.get(target).unwrap_or_default();
        // A plain path. The search has no end of its own: the space behind the target ends it at the latest.
        if target.first() == Some(&b'/') && stops::next::<NotOfPath>(buf, range.start) >= range.end {
            (self.path, self.query) = (Span::new(range).ok_or(malformed)?, None);
            return Ok(());
        }
        if target.is_empty() || !target.iter().all(|b| matches!(b, 0x21..=0x7e) && *b != b'#') {
            return Err(malformed);
        }
        let origin = match target.first() {
            Some(b'/') => target,
            Some(b'*') if target == b"*" && self.method == Method::Options => target,
            _ => origin_of_absolute(target).ok_or(malformed)?,
        };
        let path_end = memchr::memchr(b'?', origin).unwrap_or(origin.len());
        self.path = Span::within(buf, &origin[..path_end]).ok_or(malformed)?;
        self.query = match origin.get(path_end + 1..) {
            Some(query) => Some(Span::within(buf, query).ok_or(malformed)?),
            None => None,
        };
        Ok(())
    }

    /// One pass over the fields decides where the body ends and how the connection goes on.
    fn read_framing(&mut self, buf: &[u8]) -> Result<(), HeadError> {
        let (mut length, mut chunked, mut host) = (None, false, false);
        self.keep_alive = self.version == Version::Http11;
        self.expect_continue = false;
        for field in self.fields.notable() {
            let value = field.value.of(buf);
            match field.kind {
                FieldKind::ContentLength => {
                    let parsed = decimal(value).ok_or(bad("Content-Length is not a plain decimal number"))?;
                    if length.replace(parsed).is_some() {
                        return Err(bad("more than one Content-Length"));
                    }
                }
                FieldKind::TransferEncoding => {
                    if std::mem::replace(&mut chunked, true) {
                        return Err(bad("more than one Transfer-Encoding"));
                    }
                    if !value.eq_ignore_ascii_case(b"chunked") {
                        return Err(bad("Transfer-Encoding other than chunked"));
                    }
                }
                FieldKind::Host => {
                    if std::mem::replace(&mut host, true) {
                        return Err(bad("more than one Host"));
                    }
                    // Searched beyond its end, where the line end is.
                    let is_usual =
                        stops::next::<NotOfUsualHost>(buf, field.value.range().start) >= field.value.range().end;
                    if !is_usual && !value.iter().all(|&b| HOST_BYTES.has(b)) {
                        return Err(bad("malformed Host"));
                    }
                }
                FieldKind::Expect => {
                    if !value.eq_ignore_ascii_case(b"100-continue") {
                        return Err(HeadError { status: 417, reason: "unknown expectation" });
                    }
                    self.expect_continue = self.version == Version::Http11;
                }
                FieldKind::Connection if is_same(value, "keep-alive") => {}
                FieldKind::Connection => {
                    for option in value.split(|&b| b == b',') {
                        if option.trim_ascii().eq_ignore_ascii_case(b"close") {
                            self.keep_alive = false;
                        }
                    }
                }
                _ => {}
            }
        }
        if !host && self.version == Version::Http11 {
            return Err(bad("no Host"));
        }
        self.framing = match (length, chunked) {
            (Some(_), true) => return Err(bad("Content-Length together with Transfer-Encoding")),
            (None, true) if self.version == Version::Http10 => return Err(bad("Transfer-Encoding in HTTP/1.0")),
            (None, true) => Framing::Chunked,
            (Some(0), false) | (None, false) => Framing::None,
            (Some(length), false) => Framing::Length(length),
        };
        self.expect_continue &= self.framing != Framing::None;
        Ok(())
    }
}

fn bad(reason: &'static str) -> HeadError {
    HeadError { status: 400, reason }
}

/// The path and query of `http://authority/path?query`; empty when there is neither. `None`: not such a target.
fn origin_of_absolute(target: &[u8]) -> Option<&[u8]> {
    let scheme_end = memchr::memmem::find(target, b"://")?;
    let scheme = &target[..scheme_end];
    if !scheme.eq_ignore_ascii_case(b"http") && !scheme.eq_ignore_ascii_case(b"https") {
        return None;
    }
    let rest = &target[scheme_end + 3..];
    let authority_end = rest.iter().position(|&b| b == b'/' || b == b'?').unwrap_or(rest.len());
    let (authority, origin) = rest.split_at(authority_end);
    (!authority.is_empty() && authority.iter().all(|&b| HOST_BYTES.has(b))).then_some(origin)
}

/// Names, addresses in brackets, ports. No user part, no path, no list.
static HOST_BYTES: ByteSet = ByteSet::letters_digits_and(b".-_:[]%~");

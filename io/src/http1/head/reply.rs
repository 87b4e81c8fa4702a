//! A reply head: its status, and where its body ends. Called by the upstream side.

use super::super::body::Framing;
use super::super::fields::{FieldKind, Fields, LineEnds, Span};
use super::{HeadError, HeadLimits, HeadScan, Method, TOO_LARGE, Version, decimal};

/// One reply head. Interim replies (1xx) before it are skipped.
#[derive(Clone, Debug, Default)]
pub struct ResponseHead {
    pub status: u16,
    pub version: Version,
    pub fields: Fields,
    /// Where the body ends, the method asked with taken into account.
    pub framing: Framing,
    /// Whether the connection can be used again once the body is read.
    pub keep_alive: bool,
    reason: Span,
    scan: HeadScan,
}

impl ResponseHead {
    /// As [`super::RequestHead::parse`]; `asked` is the method of the request this answers, since a reply to HEAD has no
    /// body. The length returned includes the interim replies.
    pub fn parse(&mut self, buf: &[u8], limits: &HeadLimits, asked: Method) -> Result<Option<usize>, HeadError> {
        loop {
            let Some(lines) = self.scan.find(buf, limits, LineEnds::LfToo)? else { return Ok(None) };
            self.read_status_line(buf, buf.get(lines.first).unwrap_or_default())?;
            let end = match self.fields.read(buf, lines.fields_start, LineEnds::LfToo) {
                Ok(Some(end)) if end <= limits.head_bytes_max as usize => end,
                Ok(None) => return self.scan.scan_on(buf, limits, LineEnds::LfToo),
                Ok(Some(_)) => return Err(bad_reply(TOO_LARGE)),
                Err(error) => return Err(bad_reply(error.reason())),
            };
            if (102..200).contains(&self.status) || self.status == 100 {
                self.scan.restart(end);
                continue;
            }
            self.scan = HeadScan::default();
            if self.status < 200 {
                return Err(bad_reply("the upstream switched protocols unasked"));
            }
            self.read_framing(buf, asked)?;
            return Ok(Some(end));
        }
    }

    pub fn clear(&mut self) {
        self.scan = HeadScan::default();
        self.fields.clear();
    }

    /// The reason phrase as sent; may be empty.
    pub fn reason<'b>(&self, buf: &'b [u8]) -> &'b [u8] {
        self.reason.of(buf)
    }

    fn read_status_line(&mut self, buf: &[u8], line: &[u8]) -> Result<(), HeadError> {
        let (version, rest) = line.split_first_chunk::<9>().ok_or(bad_reply("malformed status line"))?;
        self.version = match version {
            b"HTTP/1.1 " => Version::Http11,
            b"HTTP/1.0 " => Version::Http10,
            _ => return Err(bad_reply("the upstream does not speak HTTP/1")),
        };
        let (digits, rest) = rest.split_first_chunk::<3>().ok_or(bad_reply("malformed status line"))?;
        let status = decimal(digits).filter(|status| (100..1000).contains(status));
        let reason = match rest {
            [] => rest,
            [b' ', reason @ ..] => reason,
            _ => return Err(bad_reply("malformed status line")),
        };
        if !reason.iter().all(|&b| b == b'\t' || (b >= b' ' && b != 0x7f)) {
            return Err(bad_reply("malformed status line"));
        }
        self.status = status.and_then(|status| u16::try_from(status).ok()).ok_or(bad_reply("malformed status line"))?;
        self.reason = Span::within(buf, reason).unwrap_or_default();
        Ok(())
    }

    fn read_framing(&mut self, buf: &[u8], asked: Method) -> Result<(), HeadError> {
        let (mut length, mut coding) = (None, None);
        let (mut close, mut stay) = (false, false);
        for field in self.fields.notable() {
            let value = field.value.of(buf);
            match field.kind {
                // Servers behind several proxies are seen to repeat the same length, also as a list.
                FieldKind::ContentLength => {
                    for part in value.split(|&b| b == b',').map(<[u8]>::trim_ascii) {
                        let parsed = decimal(part).ok_or(bad_reply("Content-Length is not a plain decimal number"))?;
                        if length.replace(parsed).is_some_and(|before| before != parsed) {
                            return Err(bad_reply("two different Content-Length"));
                        }
                    }
                }
                FieldKind::TransferEncoding if value.eq_ignore_ascii_case(b"identity") => {}
                FieldKind::TransferEncoding => {
                    let repeated = coding.replace(()).is_some();
                    if repeated || !value.eq_ignore_ascii_case(b"chunked") {
                        return Err(bad_reply("Transfer-Encoding other than one chunked"));
                    }
                }
                FieldKind::Connection => {
                    for option in value.split(|&b| b == b',').map(<[u8]>::trim_ascii) {
                        close |= option.eq_ignore_ascii_case(b"close");
                        stay |= option.eq_ignore_ascii_case(b"keep-alive");
                    }
                }
                _ => {}
            }
        }
        self.framing = match (coding, length) {
            _ if asked == Method::Head || self.status == 204 || self.status == 304 => Framing::None,
            (Some(()), _) => Framing::Chunked,
            (None, Some(0)) => Framing::None,
            (None, Some(length)) => Framing::Length(length),
            (None, None) => Framing::UntilClose,
        };
        let sure_of_end = match self.framing {
            Framing::UntilClose => false,
            // With both, chunked is what counts, but a server that sends both is not trusted with a second request.
            Framing::Chunked => length.is_none() && self.version == Version::Http11,
            Framing::None | Framing::Length(_) => coding.is_none() || length.is_none(),
        };
        self.keep_alive = sure_of_end && !close && (stay || self.version == Version::Http11);
        Ok(())
    }
}

fn bad_reply(reason: &'static str) -> HeadError {
    HeadError { status: 502, reason }
}

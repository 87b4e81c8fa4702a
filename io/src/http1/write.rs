//! Heads and chunks out: appends to a `Vec<u8>` the caller reuses, or frames a read buffer where it lies.
//!
//! Nothing here allocates once the vector has grown, and nothing from outside can break out of its line: a value
//! with a line end in it is written with spaces instead.

/// Ends a chunked body.
pub const LAST_CHUNK: &[u8] = b"0\r\n\r\n";
/// Answers `Expect: 100-continue`.
pub const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// `HTTP/1.1 200 OK` with its line end.
pub fn status_line(out: &mut Vec<u8>, status: u16) {
    match status {
        200 => return out.extend_from_slice(b"HTTP/1.1 200 OK\r\n"),
        429 => return out.extend_from_slice(b"HTTP/1.1 429 Too Many Requests\r\n"),
        _ => {}
    }
    out.extend_from_slice(b"HTTP/1.1 ");
    number(out, u64::from(status));
    out.push(b' ');
    out.extend_from_slice(reason_phrase(status).as_bytes());
    line_end(out);
}

/// `POST /v1/x HTTP/1.1` with its line end. `target` must come from [`super::target`] or configuration.
pub fn request_line(out: &mut Vec<u8>, method: super::Method, target: &str) {
    out.extend_from_slice(method.as_str().as_bytes());
    out.push(b' ');
    out.extend_from_slice(target.as_bytes());
    out.extend_from_slice(b" HTTP/1.1\r\n");
}

/// `name: value`.
pub fn field(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    raw_field(out, name.as_bytes(), value);
}

/// `name: value` for a name that came from a parsed head.
pub fn raw_field(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.reserve(name.len() + value.len() + 4);
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    if has_no_control(value) {
        out.extend_from_slice(value);
    } else {
        out.extend(value.iter().map(|&b| if matches!(b, b'\r' | b'\n' | 0) { b' ' } else { b }));
    }
    line_end(out);
}

/// Whether every byte is a space or above, so that nothing in it ends a line. Nearly all values are a few words long,
/// where calling a vector search costs more than the copy.
fn has_no_control(value: &[u8]) -> bool {
    const EACH: u64 = 0x0101_0101_0101_0101;
    let below_space = |word: &[u8; 8]| {
        let word = u64::from_le_bytes(*word);
        word.wrapping_sub(EACH * 0x20) & !word & EACH << 7
    };
    let (words, _) = value.as_chunks::<8>();
    match value.last_chunk::<8>() {
        Some(last) => words.iter().fold(below_space(last), |found, word| found | below_space(word)) == 0,
        None => value.iter().all(|&b| b >= b' '),
    }
}

/// `name: 42`.
pub fn number_field(out: &mut Vec<u8>, name: &str, value: u64) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    number(out, value);
    line_end(out);
}

/// Decimal digits.
pub fn number(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

pub fn line_end(out: &mut Vec<u8>) {
    out.extend_from_slice(b"\r\n");
}

/// A reply we make up ourselves, as far as every such reply is the same: status line, date, type, length, and
/// whether the connection stays. The caller appends its own fields, [`line_end`] and the body.
pub fn own_reply(out: &mut Vec<u8>, status: u16, date: &str, content_type: &str, length: usize, keep_alive: bool) {
    status_line(out, status);
    field(out, "date", date.as_bytes());
    if status != 204 && status != 304 {
        field(out, "content-type", content_type.as_bytes());
        number_field(out, "content-length", length as u64);
    }
    if !keep_alive {
        out.extend_from_slice(b"connection: close\r\n");
    }
}

/// One whole chunk, copied. Nothing for an empty payload, which would end the body.
pub fn chunk(out: &mut Vec<u8>, payload: &[u8]) {
    if payload.is_empty() {
        return;
    }
    let mut prefix = [0; CHUNK_PREFIX];
    let start = fill_prefix(&mut prefix, payload.len());
    out.extend_from_slice(&prefix[start..]);
    out.extend_from_slice(payload);
    line_end(out);
}

/// Bytes to leave free before a payload that is framed in place: eight hex digits (4 GiB) and CR LF.
pub const CHUNK_PREFIX: usize = 10;
/// Bytes to leave free behind it.
pub const CHUNK_SUFFIX: usize = 2;

/// Frames `buf[payload]` as one chunk without moving it: writes the size right before it and CR LF right behind it,
/// and returns the range to send. `None`, and nothing written, when the payload is empty or the room is not there.
pub fn frame_in_place(buf: &mut [u8], payload: std::ops::Range<usize>) -> Option<std::ops::Range<usize>> {
    let length = payload.len();
    let start = payload.start.checked_sub(CHUNK_PREFIX)?;
    let end = payload.end.checked_add(CHUNK_SUFFIX)?;
    let room = buf.get_mut(start..end)?;
    if length == 0 || u32::try_from(length).is_err() {
        return None;
    }
    let (prefix, rest) = room.split_first_chunk_mut::<CHUNK_PREFIX>()?;
    let used_from = fill_prefix(prefix, length);
    rest[length..].copy_from_slice(b"\r\n");
    Some(start + used_from..end)
}

/// Writes `size CR LF` right-aligned and returns where it begins. Sizes beyond 4 GiB do not reach this.
fn fill_prefix(prefix: &mut [u8; CHUNK_PREFIX], size: usize) -> usize {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    prefix[CHUNK_PREFIX - 2..].copy_from_slice(b"\r\n");
    let (mut at, mut left) = (CHUNK_PREFIX - 2, size);
    loop {
        at -= 1;
        prefix[at] = HEX[left & 0xf];
        left >>= 4;
        if left == 0 || at == 0 {
            return at;
        }
    }
}

/// The `Date` of a reply, formatted at most once a second. One per core; the second is passed in.
#[derive(Clone, Debug)]
pub struct DateCache {
    unix_s: i64,
    text: String,
}

impl Default for DateCache {
    fn default() -> DateCache {
        DateCache { unix_s: 0, text: "Thu, 01 Jan 1970 00:00:00 GMT".to_owned() }
    }
}

impl DateCache {
    /// `Tue, 15 Nov 1994 08:12:31 GMT` for a Unix time in seconds.
    pub fn at(&mut self, unix_s: i64) -> &str {
        if unix_s != self.unix_s {
            self.unix_s = unix_s;
            self.text.clear();
            self.text.extend(http_date(unix_s).map(char::from));
        }
        &self.text
    }
}

fn http_date(unix_s: i64) -> [u8; 29] {
    const DAYS: [&[u8; 3]; 7] = [b"Thu", b"Fri", b"Sat", b"Sun", b"Mon", b"Tue", b"Wed"];
    const MONTHS: [&[u8; 3]; 12] =
        [b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec"];
    // Years 1970 to 9999, so that every part has its width.
    let unix_s = unix_s.clamp(0, 253_402_300_799) as u64;
    let (days, second_of_day) = (unix_s / 86_400, unix_s % 86_400);
    let (year, month, day) = civil_from_days(days);
    let mut text = *b"---, -- --- ---- --:--:-- GMT";
    text[..3].copy_from_slice(DAYS[(days % 7) as usize]);
    two_digits(&mut text, 5, day);
    text[8..11].copy_from_slice(MONTHS[(month - 1) as usize]);
    two_digits(&mut text, 12, year / 100);
    two_digits(&mut text, 14, year % 100);
    two_digits(&mut text, 17, second_of_day / 3600);
    two_digits(&mut text, 20, second_of_day / 60 % 60);
    two_digits(&mut text, 23, second_of_day % 60);
    text
}

fn two_digits(text: &mut [u8; 29], at: usize, value: u64) {
    text[at] = b'0' + (value / 10 % 10) as u8;
    text[at + 1] = b'0' + (value % 10) as u8;
}

/// Year, month and day of a day since 1970-01-01. Years are counted from March, so that the leap day comes last and
/// each month's first day is a linear function of the month.
fn civil_from_days(days: u64) -> (u64, u64, u64) {
    const DAYS_PER_ERA: u64 = 146_097; // 400 years
    let since_march_0000 = days + 719_468;
    let (era, day_of_era) = (since_march_0000 / DAYS_PER_ERA, since_march_0000 % DAYS_PER_ERA);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

/// The usual phrase, or an empty one.
pub fn reason_phrase(status: u16) -> &'static str {
    match status {
        100 => "Continue",
        200 => "OK",
        201 => "Created",
        202 => "Accepted",
        204 => "No Content",
        206 => "Partial Content",
        301 => "Moved Permanently",
        302 => "Found",
        303 => "See Other",
        304 => "Not Modified",
        307 => "Temporary Redirect",
        308 => "Permanent Redirect",
        400 => "Bad Request",
        401 => "Unauthorized",
        402 => "Payment Required",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        406 => "Not Acceptable",
        408 => "Request Timeout",
        409 => "Conflict",
        410 => "Gone",
        411 => "Length Required",
        412 => "Precondition Failed",
        413 => "Content Too Large",
        415 => "Unsupported Media Type",
        417 => "Expectation Failed",
        421 => "Misdirected Request",
        422 => "Unprocessable Content",
        424 => "Failed Dependency",
        425 => "Too Early",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        451 => "Unavailable For Legal Reasons",
        499 => "Client Closed Request",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        529 => "Overloaded",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_reply_of_our_own_reads_as_written() {
        let head = text(|out| {
            own_reply(out, 429, "Thu, 01 Jan 1970 00:00:00 GMT", "application/json", 2, false);
            number_field(out, "retry-after", 7);
            line_end(out);
        });
        let lines = "HTTP/1.1 429 Too Many Requests\r\ndate: Thu, 01 Jan 1970 00:00:00 GMT\r\n\
                     content-type: application/json\r\ncontent-length: 2\r\nconnection: close\r\nretry-after: 7\r\n\r\n";
        assert_eq!(head, lines);
        assert_eq!(text(|out| status_line(out, 299)), "HTTP/1.1 299 \r\n");
    }

    #[test]
    fn a_value_cannot_leave_its_line() {
        assert_eq!(text(|out| field(out, "x-a", b"1\r\nx-b: 2\0")), "x-a: 1  x-b: 2 \r\n");
    }

    #[test]
    fn a_payload_is_framed_where_it_lies() {
        let mut buf = [b'.'; 40];
        buf[12..29].copy_from_slice(b"seventeen bytes!!");
        let framed = frame_in_place(&mut buf, 12..29).unwrap();
        assert_eq!(&buf[framed], b"11\r\nseventeen bytes!!\r\n");
        assert_eq!(frame_in_place(&mut buf, 12..12), None);
        assert_eq!(frame_in_place(&mut buf, 9..12), None);
        assert_eq!(frame_in_place(&mut buf, 12..39), None);
    }

    #[test]
    fn an_empty_chunk_is_not_written_because_it_would_end_the_body() {
        assert_eq!(text(|out| chunk(out, b"")), "");
        assert_eq!(text(|out| chunk(out, &[b'x'; 16])), format!("10\r\n{}\r\n", "x".repeat(16)));
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        let mut date = DateCache::default();
        for (unix_s, expected) in [
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT"),
            (951_782_400, "Tue, 29 Feb 2000 00:00:00 GMT"),
            (1_709_251_199, "Thu, 29 Feb 2024 23:59:59 GMT"),
            (4_107_542_400, "Mon, 01 Mar 2100 00:00:00 GMT"),
            (-5, "Thu, 01 Jan 1970 00:00:00 GMT"),
        ] {
            assert_eq!(date.at(unix_s), expected);
        }
        assert_eq!(date.at(i64::MAX), "Fri, 31 Dec 9999 23:59:59 GMT");
    }

    proptest! {
        #[test]
        fn framing_in_place_and_by_copy_agree(payload in proptest::collection::vec(any::<u8>(), 1..300)) {
            let mut copied = Vec::new();
            chunk(&mut copied, &payload);
            let mut buf = vec![0; CHUNK_PREFIX];
            buf.extend_from_slice(&payload);
            buf.extend_from_slice(&[0; CHUNK_SUFFIX]);
            let framed = frame_in_place(&mut buf, CHUNK_PREFIX..CHUNK_PREFIX + payload.len()).unwrap();
            prop_assert_eq!(&buf[framed], &copied[..]);
        }
    }
}

//! RESP2: commands out, replies in. A reply is read from bytes as they come and is bounded in every direction: nothing
//! is reserved for a length that a peer only claims.

/// The longest string a reply may hold, and the longest reply. A flush of 32 scopes with 64 peers each is 0.3 MB.
pub const REPLY_BYTES_MAX: usize = 16 << 20;
/// Arrays within arrays; our scripts answer two deep.
const DEPTH_MAX: usize = 8;
/// Elements of one reply, all arrays together.
const ELEMENTS_MAX: usize = 1 << 20;
/// `$-1`, `*1048576`, `:9223372036854775807`: no honest number is longer.
const NUMBER_BYTES_MAX: usize = 20;
/// A status or an error, which servers keep to a line.
const LINE_BYTES_MAX: usize = 64 << 10;
/// Of an error's text, in logs and on pages.
const ERROR_CHARS_MAX: usize = 200;

/// One reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// `+OK`
    Status(Vec<u8>),
    /// `-ERR …`: the server understood and refuses.
    Error(Vec<u8>),
    /// `:1`
    Integer(i64),
    /// `$3\r\nabc\r\n`
    Bulk(Vec<u8>),
    /// `$-1` or `*-1`
    Nil,
    /// `*2…`
    Array(Vec<Reply>),
}

impl Reply {
    /// The error's text, as far as it is text.
    ///
    /// Fit for a log: an unknown command's arguments are left out, for a server whose AUTH was renamed repeats the password.
    pub fn error(&self) -> Option<String> {
        let Reply::Error(text) = self else { return None };
        let text = String::from_utf8_lossy(text);
        let shown = text.split(", with args").next().unwrap_or_default();
        Some(shown.chars().filter(|char| !char.is_control()).take(ERROR_CHARS_MAX).collect())
    }

    /// An integer, also where a script spelled it as a string to keep all its digits.
    pub fn integer(&self) -> Option<i64> {
        match self {
            Reply::Integer(value) => Some(*value),
            Reply::Bulk(text) => std::str::from_utf8(text).ok()?.parse().ok(),
            _ => None,
        }
    }

    pub fn array(&self) -> Option<&[Reply]> {
        match self {
            Reply::Array(items) => Some(items),
            _ => None,
        }
    }

    pub fn bytes(&self) -> Option<&[u8]> {
        match self {
            Reply::Bulk(bytes) | Reply::Status(bytes) => Some(bytes),
            _ => None,
        }
    }
}

/// What came is no RESP2, or more of it than any honest server sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no RESP reply: {0}")]
pub struct Malformed(&'static str);

/// Appends one command.
pub fn command(out: &mut Vec<u8>, parts: &[&[u8]]) {
    let mut digits = itoa::Buffer::new();
    out.push(b'*');
    out.extend_from_slice(digits.format(parts.len()).as_bytes());
    out.extend_from_slice(b"\r\n");
    for part in parts {
        out.push(b'$');
        out.extend_from_slice(digits.format(part.len()).as_bytes());
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(part);
        out.extend_from_slice(b"\r\n");
    }
}

/// Reads one reply from the front of `bytes`: the reply and how many bytes it took, or `None` when its end has not come.
pub fn read(bytes: &[u8]) -> Result<Option<(Reply, usize)>, Malformed> {
    let mut reader = Reader { bytes, at: 0, elements_left: ELEMENTS_MAX };
    let reply = match reader.reply(DEPTH_MAX) {
        Ok(reply) => reply,
        Err(Stop::Incomplete) if bytes.len() <= REPLY_BYTES_MAX => return Ok(None),
        Err(Stop::Incomplete) => return Err(Malformed("it does not end")),
        Err(Stop::Malformed(why)) => return Err(why),
    };
    Ok(Some((reply, reader.at)))
}

struct Reader<'b> {
    bytes: &'b [u8],
    at: usize,
    elements_left: usize,
}

enum Stop {
    Incomplete,
    Malformed(Malformed),
}

fn malformed<T>(why: &'static str) -> Result<T, Stop> {
    Err(Stop::Malformed(Malformed(why)))
}

impl<'b> Reader<'b> {
    fn reply(&mut self, depth_left: usize) -> Result<Reply, Stop> {
        let Some(kind) = self.bytes.get(self.at).copied() else { return Err(Stop::Incomplete) };
        self.at += 1;
        match kind {
            b'+' => Ok(Reply::Status(self.line(LINE_BYTES_MAX)?.to_vec())),
            b'-' => Ok(Reply::Error(self.line(LINE_BYTES_MAX)?.to_vec())),
            b':' => Ok(Reply::Integer(self.number()?)),
            b'$' => self.bulk(),
            b'*' => self.array(depth_left),
            _ => malformed("it begins with no type"),
        }
    }

    fn bulk(&mut self) -> Result<Reply, Stop> {
        let length = match self.number()? {
            -1 => return Ok(Reply::Nil),
            length => usize::try_from(length).ok().filter(|length| *length <= REPLY_BYTES_MAX),
        };
        let Some(length) = length else { return malformed("the length of a string is beyond reason") };
        let Some(text) = self.bytes.get(self.at..self.at + length) else { return Err(Stop::Incomplete) };
        match self.bytes.get(self.at + length..self.at + length + 2) {
            None => Err(Stop::Incomplete),
            Some(b"\r\n") => {
                self.at += length + 2;
                Ok(Reply::Bulk(text.to_vec()))
            }
            Some(_) => malformed("a string is longer than it says"),
        }
    }

    fn array(&mut self, depth_left: usize) -> Result<Reply, Stop> {
        let count = match self.number()? {
            -1 => return Ok(Reply::Nil),
            count => usize::try_from(count).ok().filter(|count| *count <= self.elements_left),
        };
        let Some(count) = count else { return malformed("the length of an array is beyond reason") };
        let Some(depth_left) = depth_left.checked_sub(1) else { return malformed("arrays are nested too deeply") };
        self.elements_left -= count;
        // Each element takes at least three bytes, so what is here bounds what is reserved.
        let mut items = Vec::with_capacity(count.min(self.bytes.len().saturating_sub(self.at) / 3 + 1));
        for _ in 0..count {
            items.push(self.reply(depth_left)?);
        }
        Ok(Reply::Array(items))
    }

    fn number(&mut self) -> Result<i64, Stop> {
        let line = self.line(NUMBER_BYTES_MAX)?;
        let text = std::str::from_utf8(line).ok();
        match text.and_then(|text| text.parse().ok()) {
            Some(number) => Ok(number),
            None => malformed("a number is none"),
        }
    }

    /// Up to CRLF, which is consumed.
    fn line(&mut self, bytes_max: usize) -> Result<&'b [u8], Stop> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let window = &rest[..rest.len().min(bytes_max + 1)];
        let Some(end) = memchr::memchr(b'\r', window) else {
            return if rest.len() > bytes_max { malformed("a line does not end") } else { Err(Stop::Incomplete) };
        };
        match rest.get(end + 1) {
            None => Err(Stop::Incomplete),
            Some(b'\n') => {
                self.at += end + 2;
                Ok(&rest[..end])
            }
            Some(_) => malformed("a line holds a bare CR"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn whole(bytes: &[u8]) -> Reply {
        let (reply, taken) = read(bytes).expect("well formed").expect("complete");
        assert_eq!(taken, bytes.len());
        reply
    }

    #[test]
    fn an_errors_text_is_fit_for_a_log() {
        let shown = |text: &[u8]| Reply::Error(text.to_vec()).error();
        assert_eq!(shown(b"NOAUTH Authentication required.").as_deref(), Some("NOAUTH Authentication required."));
        let echoed = b"ERR unknown command 'AUTH', with args beginning with: 's3cret' ";
        assert_eq!(shown(echoed).as_deref(), Some("ERR unknown command 'AUTH'"));
        assert_eq!(shown(b"ERR a\x1b[2Jb\xff").as_deref(), Some("ERR a[2Jb\u{fffd}"));
        assert_eq!(shown(&[b'x'; 1_000]).map(|text| text.len()), Some(200));
        assert_eq!(Reply::Nil.error(), None);
    }

    #[test]
    fn a_command_is_an_array_of_strings() {
        let mut out = Vec::new();
        command(&mut out, &[b"SET", b"k", b""]);
        assert_eq!(out, b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$0\r\n\r\n");
    }

    #[test]
    fn each_kind_of_reply_is_read() {
        assert_eq!(whole(b"+OK\r\n"), Reply::Status(b"OK".to_vec()));
        assert_eq!(
            whole(b"-NOSCRIPT No matching script.\r\n").error().as_deref(),
            Some("NOSCRIPT No matching script.")
        );
        assert_eq!(whole(b":-12\r\n"), Reply::Integer(-12));
        assert_eq!(whole(b"$5\r\na\r\nbc\r\n"), Reply::Bulk(b"a\r\nbc".to_vec()));
        assert_eq!(
            (whole(b"$-1\r\n"), whole(b"*-1\r\n"), whole(b"*0\r\n")),
            (Reply::Nil, Reply::Nil, Reply::Array(vec![]))
        );
        let nested = whole(b"*2\r\n*1\r\n:1\r\n$1\r\n7\r\n");
        assert_eq!(
            nested.array().map(|items| items.iter().map(Reply::integer).collect::<Vec<_>>()),
            Some(vec![None, Some(7)])
        );
    }

    #[test]
    fn what_is_no_reply_is_refused_and_a_claimed_length_reserves_nothing() {
        for bytes in [
            &b"HTTP/1.1 400 Bad Request\r\n"[..],
            b":\r\n",
            b":12a\r\n",
            b"$-2\r\n",
            b"$99999999999\r\n",
            b"*99999999\r\n",
            b"$1\r\nab\r\n",
            b"+a\rb\r\n",
            b":111111111111111111111111",
            b"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n",
            b"\x00",
        ] {
            assert!(read(bytes).is_err(), "{:?}", String::from_utf8_lossy(bytes));
        }
        assert_eq!(read(b"*1048576\r\n"), Ok(None));
        assert!(read(b"*2\r\n*1048575\r\n").is_err(), "elements are counted over all arrays");
    }

    fn reply() -> impl Strategy<Value = Reply> {
        let text = proptest::collection::vec(any::<u8>(), 0..20);
        let line = "[a-zA-Z0-9 _.-]{0,20}".prop_map(String::into_bytes);
        let leaf = prop_oneof![
            line.clone().prop_map(Reply::Status),
            line.prop_map(Reply::Error),
            any::<i64>().prop_map(Reply::Integer),
            text.prop_map(Reply::Bulk),
            Just(Reply::Nil),
        ];
        leaf.prop_recursive(4, 32, 5, |inner| proptest::collection::vec(inner, 0..5).prop_map(Reply::Array))
    }

    fn write(reply: &Reply, out: &mut Vec<u8>) {
        match reply {
            Reply::Status(text) => out.extend([b"+", &text[..], b"\r\n"].concat()),
            Reply::Error(text) => out.extend([b"-", &text[..], b"\r\n"].concat()),
            Reply::Integer(value) => out.extend(format!(":{value}\r\n").bytes()),
            Reply::Bulk(text) => out.extend([format!("${}\r\n", text.len()).as_bytes(), text, b"\r\n"].concat()),
            Reply::Nil => out.extend(b"$-1\r\n"),
            Reply::Array(items) => {
                out.extend(format!("*{}\r\n", items.len()).bytes());
                items.iter().for_each(|item| write(item, out));
            }
        }
    }

    proptest! {
        #[test]
        fn a_reply_is_read_only_when_it_is_whole_and_leaves_what_follows(reply in reply(), next in "[+:$*a-z0-9]{0,8}") {
            let mut bytes = Vec::new();
            write(&reply, &mut bytes);
            for cut in 0..bytes.len() {
                prop_assert_eq!(read(&bytes[..cut]), Ok(None));
            }
            let end = bytes.len();
            bytes.extend(next.bytes());
            prop_assert_eq!(read(&bytes), Ok(Some((reply, end))));
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(prop_oneof![Just(b'*'), Just(b'$'), Just(b'\r'), Just(b'\n'), Just(b'1'), Just(b'-'), any::<u8>()], 0..60)) {
            let _ = read(&bytes);
        }
    }
}

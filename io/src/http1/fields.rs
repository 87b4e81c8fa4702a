//! Header fields of one head, kept as ranges into the caller's buffer, and what each field is for.
//!
//! A field is classified once, while the head is parsed: the request path then skips hop-by-hop fields, credentials
//! and framing by looking at one byte. Does not decide what is forwarded; `src/request.rs` does, with [`FieldKind`].

use std::ops::Range;

/// Bytes `start..end` of the buffer the head was parsed from. Small and `Copy`, so that the buffer can move.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    start: u32,
    end: u32,
}

impl Span {
    /// `None` only beyond 4 GiB, which no head limit lets through.
    pub(crate) fn new(range: Range<usize>) -> Option<Span> {
        Some(Span { start: u32::try_from(range.start).ok()?, end: u32::try_from(range.end).ok()? })
    }

    /// Where `part` lies in `whole`. `part` must be a subslice of `whole`; `None` otherwise.
    pub(crate) fn within(whole: &[u8], part: &[u8]) -> Option<Span> {
        let start = (part.as_ptr() as usize).checked_sub(whole.as_ptr() as usize)?;
        let end = start.checked_add(part.len()).filter(|&end| end <= whole.len())?;
        Span::new(start..end)
    }

    /// The bytes, or nothing when `buf` is not the buffer this came from.
    pub fn of<'b>(&self, buf: &'b [u8]) -> &'b [u8] {
        buf.get(self.start as usize..self.end as usize).unwrap_or_default()
    }

    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }
}

/// What a field is for, as far as a gateway treats it differently from passing it on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldKind {
    /// Passed on.
    Plain,
    /// Ends at this connection: never passed on. So do those that name who stands in front of us (`X-Forwarded-For`, …):
    /// they are for our operator, and a provider outside has no business with addresses inside. Fields that `Connection` names are not marked so; ask
    /// [`Fields::is_connection_named`].
    HopByHop,
    /// Framing and addressing, which each side writes anew.
    Host,
    ContentLength,
    TransferEncoding,
    Connection,
    Expect,
    /// Could carry a caller's secret: must not reach an upstream that has a key of its own.
    Credential,
    /// `x-tt-…`: our own words, believed from nobody else.
    Ours,
    /// A provider's rate figures, which may contradict ours.
    RateLimit,
    AcceptEncoding,
    ContentEncoding,
    ContentType,
    Date,
}

/// One field. `name` keeps the spelling of the sender.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    pub name: Span,
    pub value: Span,
    pub kind: FieldKind,
}

/// The fields of a head in the order they came. Keeps its capacity when it is cleared.
#[derive(Clone, Debug, Default)]
pub struct Fields {
    all: Vec<Field>,
}

/// More fields than this are refused (431): real clients send about 20, with a CDN in front about 40.
pub const FIELDS_MAX: usize = 128;
const FIELDS_USUAL: usize = 40;

/// Which line ends a head may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineEnds {
    /// Requests: a bare LF is where two parsers part company.
    CrLfOnly,
    /// Replies: some small servers write LF alone; nothing we send on keeps it.
    LfToo,
}

impl LineEnds {
    /// Whether the line before `line_start` ended as it may.
    pub(crate) fn check(self, buf: &[u8], line_start: usize) -> Result<(), FieldsError> {
        let well = self == LineEnds::LfToo || buf.get(..line_start).is_some_and(|before| before.ends_with(b"\r\n"));
        if well { Ok(()) } else { Err(FieldsError::LineEnd) }
    }
}

/// Why a block of fields could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FieldsError {
    TooMany,
    Name,
    Value,
    LineEnd,
}

impl FieldsError {
    pub(crate) fn reason(self) -> &'static str {
        match self {
            FieldsError::TooMany => "too many header fields",
            FieldsError::Name => "a header line is folded or its name is malformed",
            FieldsError::Value => "a header value has a control character",
            FieldsError::LineEnd => "a header line does not end with CR LF",
        }
    }
}

impl Fields {
    /// Reads the field lines that begin at `start` in `buf`, up to their empty line. `Ok(Some(end))`: `end` is behind
    /// it. `Ok(None)`: it has not come yet.
    pub(crate) fn read(&mut self, buf: &[u8], start: usize, ends: LineEnds) -> Result<Option<usize>, FieldsError> {
        self.all.clear();
        let block = buf.get(start..).unwrap_or_default();
        let mut usual = [httparse::EMPTY_HEADER; FIELDS_USUAL];
        match httparse::parse_headers(block, &mut usual) {
            // Two sizes, because filling the larger array costs as much as parsing an ordinary head.
            Err(httparse::Error::TooManyHeaders) => {
                let mut most = [httparse::EMPTY_HEADER; FIELDS_MAX];
                let parsed = httparse::parse_headers(block, &mut most);
                self.keep(buf, start, ends, parsed)
            }
            parsed => self.keep(buf, start, ends, parsed),
        }
    }

    fn keep(
        &mut self,
        buf: &[u8],
        start: usize,
        ends: LineEnds,
        parsed: httparse::Result<(usize, &[httparse::Header])>,
    ) -> Result<Option<usize>, FieldsError> {
        let (length, parsed) = match parsed {
            Ok(httparse::Status::Complete(complete)) => complete,
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(httparse::Error::TooManyHeaders) => return Err(FieldsError::TooMany),
            Err(httparse::Error::HeaderValue) => return Err(FieldsError::Value),
            Err(httparse::Error::NewLine) => return Err(FieldsError::LineEnd),
            Err(_) => return Err(FieldsError::Name),
        };
        let end = start + length;
        self.all.reserve(parsed.len());
        for header in parsed {
            let name = header.name.as_bytes();
            let Some(name_span) = Span::within(buf, name) else { return Err(FieldsError::Name) };
            // An empty value may point anywhere; an empty span says the same.
            let value = Span::within(buf, header.value).unwrap_or_default();
            ends.check(buf, name_span.start as usize)?;
            self.all.push(Field { name: name_span, value, kind: kind_of(name) });
        }
        // Behind the last line, and behind the empty one.
        let empty_line = if buf.get(..end).is_some_and(|head| head.ends_with(b"\r\n")) { 2 } else { 1 };
        ends.check(buf, end - empty_line)?;
        ends.check(buf, end)?;
        Ok(Some(end))
    }

    pub fn clear(&mut self) {
        self.all.clear();
    }

    pub fn len(&self) -> usize {
        self.all.len()
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The fields that are not simply passed on.
    pub(crate) fn notable(&self) -> impl Iterator<Item = &Field> {
        self.all.iter().filter(|field| field.kind != FieldKind::Plain)
    }

    /// Every field as `(field, name, value)`, in order.
    pub fn iter<'a, 'b: 'a>(&'a self, buf: &'b [u8]) -> impl Iterator<Item = (Field, &'b [u8], &'b [u8])> + 'a {
        self.all.iter().map(move |field| (*field, field.name.of(buf), field.value.of(buf)))
    }

    /// The first value of `name` (any case).
    pub fn get<'b>(&self, buf: &'b [u8], name: &str) -> Option<&'b [u8]> {
        self.get_all(buf, name).next()
    }

    /// Every value of `name` (any case).
    pub fn get_all<'a, 'b: 'a>(&'a self, buf: &'b [u8], name: &'a str) -> impl Iterator<Item = &'b [u8]> + 'a {
        self.iter(buf).filter(move |(_, found, _)| found.eq_ignore_ascii_case(name.as_bytes())).map(|(_, _, v)| v)
    }

    /// Every value of one kind.
    pub fn of_kind<'a, 'b: 'a>(&'a self, buf: &'b [u8], kind: FieldKind) -> impl Iterator<Item = &'b [u8]> + 'a {
        self.all.iter().filter(move |field| field.kind == kind).map(move |field| field.value.of(buf))
    }

    /// Whether a `Connection` field names `name`, which makes it hop-by-hop for this message.
    pub fn is_connection_named(&self, buf: &[u8], name: &[u8]) -> bool {
        self.connection_options(buf).any(|option| option.eq_ignore_ascii_case(name))
    }

    /// The comma-separated options of all `Connection` fields, trimmed.
    pub fn connection_options<'a, 'b: 'a>(&'a self, buf: &'b [u8]) -> impl Iterator<Item = &'b [u8]> + 'a {
        self.of_kind(buf, FieldKind::Connection).flat_map(|value| value.split(|&b| b == b',')).map(<[u8]>::trim_ascii)
    }
}

/// What a field of this name is for. Any case; an underscore counts as a hyphen, because CGI-style servers fold the
/// two and would take `x_api_key` or `transfer_encoding` for the real thing: such a spelling of a special name is
/// [`FieldKind::HopByHop`], so it is neither believed nor passed on.
pub fn kind_of(name: &[u8]) -> FieldKind {
    let word = first_word(name);
    if !NAMES_SIEVE[slot_of(word, name.len())] && !PREFIX_WORDS.contains(&word) {
        return FieldKind::Plain;
    }
    let exact = specials_of(name.len()).iter().find(|(special, _)| is_folded(name, special));
    let prefixed = || SPECIAL_PREFIXES.iter().find(|(prefix, _)| has_folded_prefix(name, prefix));
    match exact.or_else(prefixed) {
        None => FieldKind::Plain,
        Some(_) if memchr::memchr(b'_', name).is_some() => FieldKind::HopByHop,
        Some((_, kind)) => *kind,
    }
}

/// Lets through the length and first word of every special name, hashed, and few others: most names of a head are
/// plain, and comparing them with each special one costs more than parsing them.
const NAMES_SIEVE: [bool; 512] = {
    let mut sieve = [false; 512];
    let (mut length, mut at) = (0, 0);
    while length < 64 {
        while at < specials_of(length).len() {
            let name = specials_of(length)[at].0.as_bytes();
            sieve[slot_of(first_word(name), length)] = true;
            sieve[slot_of(underscored(first_word(name)), length)] = true;
            at += 1;
        }
        (length, at) = (length + 1, 0);
    }
    sieve
};

const PREFIX_WORDS: [u32; 8] = {
    let mut words = [0; 8];
    let mut at = 0;
    while at < SPECIAL_PREFIXES.len() {
        let word = first_word(SPECIAL_PREFIXES[at].0.as_bytes());
        (words[2 * at], words[2 * at + 1]) = (word, underscored(word));
        at += 1;
    }
    words
};

/// The first four bytes of a name, without regard to case. Four, because no special prefix is shorter.
const fn first_word(name: &[u8]) -> u32 {
    let bytes = match *name {
        [a, b, c, d, ..] => [a, b, c, d],
        [a, b, c] => [a, b, c, 0],
        [a, b] => [a, b, 0, 0],
        [a] => [a, 0, 0, 0],
        [] => [0; 4],
    };
    u32::from_le_bytes(bytes) | 0x2020_2020
}

/// The first word of a name that is spelled with underscores.
const fn underscored(word: u32) -> u32 {
    let mut bytes = word.to_le_bytes();
    let mut at = 0;
    while at < 4 {
        if bytes[at] == b'-' {
            bytes[at] = b'_' | 0x20;
        }
        at += 1;
    }
    u32::from_le_bytes(bytes)
}

const fn slot_of(word: u32, length: usize) -> usize {
    ((word ^ (length as u32) << 13).wrapping_mul(0x9e37_79b1) >> 23) as usize
}

const SPECIAL_PREFIXES: [(&str, FieldKind); 4] = [
    ("x-tt-", FieldKind::Ours),
    ("x-ratelimit-", FieldKind::RateLimit),
    ("ratelimit-", FieldKind::RateLimit),
    ("anthropic-ratelimit-", FieldKind::RateLimit),
];

/// The special names of one length.
const fn specials_of(length: usize) -> &'static [(&'static str, FieldKind)] {
    match length {
        2 => &[("te", FieldKind::HopByHop)],
        4 => &[("host", FieldKind::Host), ("date", FieldKind::Date)],
        6 => &[("cookie", FieldKind::Credential), ("expect", FieldKind::Expect), ("apikey", FieldKind::Credential)],
        7 => &[
            ("api-key", FieldKind::Credential),
            ("cookie2", FieldKind::Credential),
            ("upgrade", FieldKind::HopByHop),
            ("trailer", FieldKind::HopByHop),
        ],
        8 => &[("x-tt-key", FieldKind::Credential), ("x-apikey", FieldKind::Credential)],
        9 => &[
            ("x-api-key", FieldKind::Credential),
            ("ratelimit", FieldKind::RateLimit),
            ("forwarded", FieldKind::HopByHop),
            ("x-real-ip", FieldKind::HopByHop),
        ],
        10 => &[
            ("keep-alive", FieldKind::HopByHop),
            ("connection", FieldKind::Connection),
            ("x-auth-key", FieldKind::Credential),
        ],
        12 => &[("content-type", FieldKind::ContentType), ("x-auth-token", FieldKind::Credential)],
        13 => &[("authorization", FieldKind::Credential)],
        14 => &[
            ("x-goog-api-key", FieldKind::Credential),
            ("x-access-token", FieldKind::Credential),
            ("authentication", FieldKind::Credential),
            ("content-length", FieldKind::ContentLength),
            ("http2-settings", FieldKind::HopByHop),
            ("openai-api-key", FieldKind::Credential),
            ("true-client-ip", FieldKind::HopByHop),
        ],
        15 => &[
            ("x-forwarded-for", FieldKind::HopByHop),
            ("accept-encoding", FieldKind::AcceptEncoding),
            ("x-authorization", FieldKind::Credential),
            ("x-functions-key", FieldKind::Credential),
        ],
        16 => &[
            ("content-encoding", FieldKind::ContentEncoding),
            ("proxy-connection", FieldKind::HopByHop),
            ("x-openai-api-key", FieldKind::Credential),
            ("x-forwarded-host", FieldKind::HopByHop),
            ("x-forwarded-port", FieldKind::HopByHop),
            ("cf-connecting-ip", FieldKind::HopByHop),
        ],
        17 => &[
            ("transfer-encoding", FieldKind::TransferEncoding),
            ("anthropic-api-key", FieldKind::Credential),
            ("x-forwarded-proto", FieldKind::HopByHop),
        ],
        18 => &[
            ("proxy-authenticate", FieldKind::HopByHop),
            ("x-subscription-key", FieldKind::Credential),
            ("x-forwarded-server", FieldKind::HopByHop),
        ],
        19 => &[("proxy-authorization", FieldKind::HopByHop), ("x-anthropic-api-key", FieldKind::Credential)],
        20 => &[("x-amz-security-token", FieldKind::Credential)],
        24 => &[("x-forwarded-access-token", FieldKind::Credential)],
        25 => &[
            ("x-forwarded-authorization", FieldKind::Credential),
            ("ocp-apim-subscription-key", FieldKind::Credential),
            ("proxy-authentication-info", FieldKind::HopByHop),
        ],
        28 => &[("x-ms-authorization-auxiliary", FieldKind::Credential)],
        _ => &[],
    }
}

/// Whether `name` is `special` in any case and with underscores for hyphens. `| 0x20` is exact here: of the bytes that
/// may stand in a name, only upper case becomes a letter, a digit or a hyphen by it.
fn is_folded(name: &[u8], special: &str) -> bool {
    let same = |(&is, &should): (&u8, &u8)| is | 0x20 == should || (is == b'_' && should == b'-');
    name.len() == special.len() && name.iter().zip(special.as_bytes()).all(same)
}

fn has_folded_prefix(name: &[u8], prefix: &str) -> bool {
    name.get(..prefix.len()).is_some_and(|start| is_folded(start, prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_known_in_any_case() {
        for (name, kind) in [
            ("Host", FieldKind::Host),
            ("CONTENT-LENGTH", FieldKind::ContentLength),
            ("x-Api-Key", FieldKind::Credential),
            ("Cookie", FieldKind::Credential),
            ("Te", FieldKind::HopByHop),
            ("X-Forwarded-For", FieldKind::HopByHop),
            ("Forwarded", FieldKind::HopByHop),
            ("X-Real-IP", FieldKind::HopByHop),
            ("X-TT-Coordination", FieldKind::Ours),
            ("x-tt-key", FieldKind::Credential),
            ("RateLimit", FieldKind::RateLimit),
            ("RateLimit-Policy", FieldKind::RateLimit),
            ("Anthropic-RateLimit-Input-Tokens-Remaining", FieldKind::RateLimit),
            ("anthropic-version", FieldKind::Plain),
            ("x-stainless-retry-count", FieldKind::Plain),
            ("", FieldKind::Plain),
        ] {
            assert_eq!(kind_of(name.as_bytes()), kind, "{name}");
        }
    }

    #[test]
    fn every_special_name_has_its_length() {
        for length in 0..64 {
            assert!(specials_of(length).iter().all(|(name, _)| name.len() == length));
        }
    }

    #[test]
    fn an_underscored_spelling_of_a_special_name_goes_no_further() {
        for name in ["x_api_key", "Transfer_Encoding", "content_length", "x_tt_key"] {
            assert_eq!(kind_of(name.as_bytes()), FieldKind::HopByHop, "{name}");
        }
        assert_eq!(kind_of(b"my_own_field"), FieldKind::Plain);
    }

    #[test]
    fn a_name_longer_than_every_table_entry_is_plain() {
        assert_eq!(kind_of(&[b'a'; 500]), FieldKind::Plain);
        assert_eq!(kind_of(format!("x-ratelimit-{}", "y".repeat(100)).as_bytes()), FieldKind::RateLimit);
    }
}

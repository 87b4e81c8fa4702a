//! Header fields of one head, kept as ranges into the caller's buffer, and what each field is for.
//!
//! A field is classified once, while the head is parsed: the request path then skips hop-by-hop fields, credentials
//! and framing by looking at one byte. Does not decide what is forwarded; `src/request.rs` does, with [`FieldKind`].

use std::ops::Range;

use super::head::TOKEN_BYTES;

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

    fn len(&self) -> usize {
        self.end.saturating_sub(self.start) as usize
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
    /// A `Connection` field has options beside `close` and `keep-alive`: names of fields, that is.
    names_others: bool,
}

/// More fields than this are refused (431): real clients send about 20, with a CDN in front about 40.
pub const FIELDS_MAX: usize = 128;

/// Which line ends a head may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineEnds {
    /// Requests: a bare LF is where two parsers part company.
    CrLfOnly,
    /// Replies: some small servers write LF alone; nothing we send on keeps it.
    LfToo,
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
    /// it. `Ok(None)`: it has not come yet. The first line that is wrong is told, whatever follows it.
    ///
    /// By hand, in one pass that also says what each field is for: a parser that hands its fields over to be looked at
    /// again took twice as long (6,550 instructions for an SDK's 15 headers, 2,700 here). The tests hold it to what
    /// `httparse` accepts.
    pub(crate) fn read(&mut self, buf: &[u8], start: usize, ends: LineEnds) -> Result<Option<usize>, FieldsError> {
        self.clear();
        // Spans reach no further; no head does either.
        let buf = buf.get(..u32::MAX as usize).unwrap_or(buf);
        let mut line = start;
        loop {
            line = match buf.get(line) {
                None => return Ok(None),
                Some(b'\r' | b'\n') => return line_end(buf, line, ends, FieldsError::LineEnd),
                Some(_) => match self.read_line(buf, line, ends)? {
                    Some(next) => next,
                    None => return Ok(None),
                },
            };
        }
    }

    /// Reads one field and returns where the next line begins; `None` while its end has not come.
    #[inline]
    fn read_line(&mut self, buf: &[u8], line: usize, ends: LineEnds) -> Result<Option<usize>, FieldsError> {
        let Some(colon) = name_end(buf, line) else { return Ok(None) };
        if colon == line || buf[colon] != b':' {
            return Err(FieldsError::Name);
        }
        let Some(blanks) = buf[colon + 1..].iter().position(|&b| !is_blank(b)) else { return Ok(None) };
        let from = colon + 1 + blanks;
        let Some(to) = value_end(buf, from) else { return Ok(None) };
        let Some(next) = line_end(buf, to, ends, FieldsError::Value)? else { return Ok(None) };
        let value = &buf[from..to];
        let value = &value[..value.iter().rposition(|&b| !is_blank(b)).map_or(0, |last| last + 1)];
        if self.all.len() == FIELDS_MAX {
            return Err(FieldsError::TooMany);
        }
        let name = &buf[line..colon];
        let kind = kind_of(name);
        if kind == FieldKind::Connection {
            self.names_others |= value.split(|&b| b == b',').any(|option| !is_own_option(option.trim_ascii()));
        }
        // Below 2^32, as `read` has seen to.
        let name = Span { start: line as u32, end: colon as u32 };
        let value = Span { start: from as u32, end: (from + value.len()) as u32 };
        self.all.push(Field { name, value, kind });
        Ok(Some(next))
    }

    pub fn clear(&mut self) {
        self.all.clear();
        self.names_others = false;
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
        // By length first: nearly every other name has another.
        let is_it = move |field: &&Field| {
            field.name.len() == name.len() && field.name.of(buf).eq_ignore_ascii_case(name.as_bytes())
        };
        self.all.iter().filter(is_it).map(move |field| field.value.of(buf))
    }

    /// Appends the fields of a request that pass, as they came. Neighbours lie behind one another in `buf` and are copied
    /// together: a field at a time took twelve times the instructions. A request's lines end with CR LF and nothing
    /// else, so that what is copied ends where it ended when it was read.
    pub fn pass_on(&self, buf: &[u8], out: &mut Vec<u8>, mut passes: impl FnMut(Field, &[u8], &[u8]) -> bool) {
        let mut run: Option<Range<usize>> = None;
        let mut copy = |run: Option<Range<usize>>| {
            if let Some(lines) = run.and_then(|run| buf.get(run)) {
                out.extend_from_slice(lines);
                out.extend_from_slice(b"\r\n");
            }
        };
        for field in &self.all {
            if !passes(*field, field.name.of(buf), field.value.of(buf)) {
                copy(run.take());
                continue;
            }
            let start = run.map_or(field.name.start as usize, |run| run.start);
            run = Some(start..field.value.end as usize);
        }
        copy(run);
    }

    /// Every value of one kind.
    pub fn of_kind<'a, 'b: 'a>(&'a self, buf: &'b [u8], kind: FieldKind) -> impl Iterator<Item = &'b [u8]> + 'a {
        self.all.iter().filter(move |field| field.kind == kind).map(move |field| field.value.of(buf))
    }

    /// Every name and value of one kind.
    pub fn named_of_kind<'a, 'b: 'a>(
        &'a self,
        buf: &'b [u8],
        kind: FieldKind,
    ) -> impl Iterator<Item = (&'b [u8], &'b [u8])> + 'a {
        self.all.iter().filter(move |field| field.kind == kind).map(|field| (field.name.of(buf), field.value.of(buf)))
    }

    /// Whether a `Connection` field names `name`, which makes it hop-by-hop for this message.
    pub fn is_connection_named(&self, buf: &[u8], name: &[u8]) -> bool {
        self.names_others && self.connection_options(buf).any(|option| option.eq_ignore_ascii_case(name))
    }

    /// The comma-separated options of all `Connection` fields, trimmed.
    pub fn connection_options<'a, 'b: 'a>(&'a self, buf: &'b [u8]) -> impl Iterator<Item = &'b [u8]> + 'a {
        self.of_kind(buf, FieldKind::Connection).flat_map(|value| value.split(|&b| b == b',')).map(<[u8]>::trim_ascii)
    }
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

/// What `Connection` says of the connection itself.
fn is_own_option(option: &[u8]) -> bool {
    option.eq_ignore_ascii_case(b"keep-alive") || option.eq_ignore_ascii_case(b"close")
}

/// The first byte from `at` on that no name has. `None` while there is none. Eight at a time as long as they are letters,
/// digits and hyphens, as nearly all are.
#[inline]
fn name_end(buf: &[u8], mut at: usize) -> Option<usize> {
    while let Some(word) = buf.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
        let word = u64::from_le_bytes(*word);
        // Without their top bits, so that no sum carries into the next byte.
        let low = word & !TOP;
        let is_in = |bytes: u64, from: u8, to: u8| {
            (bytes + EACH * u64::from(0x80 - from)) & !(bytes + EACH * u64::from(0x7f - to))
        };
        let usual = is_in(low | (EACH * 0x20), b'a', b'z') | is_in(low, b'0', b'9') | is_in(low, b'-', b'-');
        let other = (!usual | word) & TOP;
        if other == 0 {
            at += 8;
            continue;
        }
        at += other.trailing_zeros() as usize / 8;
        if !TOKEN_BYTES.has(buf[at]) {
            return Some(at);
        }
        at += 1;
    }
    let rest = buf.get(at..)?;
    rest.iter().position(|&b| !TOKEN_BYTES.has(b)).map(|found| at + found)
}

/// One in each byte of a word, and the top bit of each.
const EACH: u64 = 0x0101_0101_0101_0101;
const TOP: u64 = EACH << 7;

/// The first byte from `at` on that no value has: a control character other than a tab. `None` while there is none.
#[inline]
fn value_end(buf: &[u8], mut at: usize) -> Option<usize> {
    // Eight at a time. The lowest bit that is set is right, those above it may not be: it is the first that is asked for.
    while let Some(word) = buf.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
        let word = u64::from_le_bytes(*word);
        let below_space = word.wrapping_sub(EACH * 0x20) & !word & TOP;
        let delete = word ^ (EACH * 0x7f);
        let delete = delete.wrapping_sub(EACH) & !delete & TOP;
        let found = below_space | delete;
        if found == 0 {
            at += 8;
            continue;
        }
        at += found.trailing_zeros() as usize / 8;
        if buf[at] != b'\t' {
            return Some(at);
        }
        at += 1;
    }
    let rest = buf.get(at..)?;
    rest.iter().position(|&b| b != b'\t' && (b < b' ' || b == 0x7f)).map(|found| at + found)
}

/// Where the line behind the line end at `at` begins; `None` while the end has not come whole. `otherwise`: what is wrong
/// when it is none.
#[inline]
fn line_end(buf: &[u8], at: usize, ends: LineEnds, otherwise: FieldsError) -> Result<Option<usize>, FieldsError> {
    match (buf.get(at), buf.get(at + 1)) {
        (Some(b'\r'), Some(b'\n')) => Ok(Some(at + 2)),
        (Some(b'\r'), None) | (None, _) => Ok(None),
        (Some(b'\n'), _) if ends == LineEnds::LfToo => Ok(Some(at + 1)),
        (Some(b'\n'), _) => Err(FieldsError::LineEnd),
        _ => Err(otherwise),
    }
}

/// What a field of this name is for. Any case; an underscore counts as a hyphen, because CGI-style servers fold the
/// two and would take `x_api_key` or `transfer_encoding` for the real thing: such a spelling of a special name is
/// [`FieldKind::HopByHop`], so it is neither believed nor passed on.
pub fn kind_of(name: &[u8]) -> FieldKind {
    let word = first_word(name);
    let may_be_special = NAMES_SIEVE[slot_of(word, name.len())];
    if !may_be_special && !PREFIX_WORDS.contains(&word) {
        return FieldKind::Plain;
    }
    // In the spelling that nearly everybody uses, so that nothing is looked at byte by byte.
    if may_be_special
        && let Some((_, kind)) = specials_of(name.len()).iter().find(|(special, _)| is_same(name, special))
    {
        return *kind;
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

/// Whether `name` is `special` in any case, eight bytes at a time.
fn is_same(name: &[u8], special: &str) -> bool {
    const UPPER: u64 = 0x2020_2020_2020_2020;
    let special = special.as_bytes();
    let same =
        |(name, special): (&[u8; 8], &[u8; 8])| u64::from_le_bytes(*name) | UPPER == u64::from_le_bytes(*special);
    match (name.last_chunk::<8>(), special.last_chunk::<8>()) {
        _ if name.len() != special.len() => false,
        (Some(end), Some(special_end)) => {
            same((end, special_end)) && name.as_chunks().0.iter().zip(special.as_chunks().0).all(same)
        }
        _ => name.iter().zip(special).all(|(byte, special)| byte | 0x20 == *special),
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
    use proptest::prelude::*;

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

    /// The same lines by another reader, strict about line ends where we are.
    #[allow(clippy::type_complexity)]
    fn as_httparse_reads(block: &[u8], ends: LineEnds) -> Result<Option<Vec<(Vec<u8>, Vec<u8>)>>, ()> {
        let mut headers = [httparse::EMPTY_HEADER; FIELDS_MAX];
        match httparse::parse_headers(block, &mut headers) {
            Ok(httparse::Status::Complete((end, headers))) => {
                let bare = (0..end).any(|at| block[at] == b'\n' && (at == 0 || block[at - 1] != b'\r'));
                if bare && ends == LineEnds::CrLfOnly {
                    return Err(());
                }
                Ok(Some(headers.iter().map(|header| (header.name.into(), header.value.into())).collect()))
            }
            Ok(httparse::Status::Partial) => Ok(None),
            Err(_) => Err(()),
        }
    }

    proptest! {
        #[test]
        fn fields_are_those_that_another_reader_reads(
            lines in proptest::collection::vec(("[A-Za-z_-]{1,9}", "[ \t]{0,2}", "[ -~\t]{0,30}", "\r\n|\r\n|\r\n|\n|\r"), 0..6),
            broken in proptest::option::of((any::<prop::sample::Index>(), any::<u8>())),
            ended in any::<bool>(),
        ) {
            let mut block: Vec<u8> =
                lines.iter().flat_map(|(name, blank, value, end)| format!("{name}:{blank}{value}{end}").into_bytes()).collect();
            if ended {
                block.extend_from_slice(b"\r\n");
            }
            if let Some((at, byte)) = broken && !block.is_empty() {
                let at = at.index(block.len());
                block[at] = byte;
            }
            for ends in [LineEnds::CrLfOnly, LineEnds::LfToo] {
                let mut fields = Fields::default();
                let ours = fields.read(&block, 0, ends);
                let read = fields.iter(&block).map(|(_, name, value)| (name.to_vec(), value.to_vec()));
                match (ours, as_httparse_reads(&block, ends)) {
                    (Ok(Some(_)), theirs) => prop_assert_eq!(Ok(Some(read.collect())), theirs),
                    (Ok(None), theirs) => prop_assert_eq!(theirs, Ok(None)),
                    // A line end that may not be is told at once, not when the head is complete.
                    (Err(FieldsError::LineEnd), theirs) if ends == LineEnds::CrLfOnly => prop_assert!(!matches!(theirs, Ok(Some(_)))),
                    (Err(_), theirs) => prop_assert_eq!(theirs, Err(())),
                }
            }
        }
    }

    proptest! {
        #[test]
        fn what_is_passed_on_is_read_again_as_it_was_chosen(
            lines in proptest::collection::vec(("[A-Za-z-]{1,9}", "[ \t]{0,2}", "[!-~]{0,9}[ \t]{0,2}", any::<bool>()), 0..9),
            before in "[ -~]{0,9}",
        ) {
            let fields_of = |block: &[u8], start| {
                let mut fields = Fields::default();
                assert_eq!(fields.read(block, start, LineEnds::CrLfOnly), Ok(Some(block.len())));
                fields
            };
            let mut head = before.clone();
            lines.iter().for_each(|(name, blank, value, _)| head += &format!("{name}:{blank}{value}\r\n"));
            head += "\r\n";
            let mut chosen = lines.iter().map(|(.., passes)| *passes);
            let mut passed = Vec::new();
            fields_of(head.as_bytes(), before.len()).pass_on(head.as_bytes(), &mut passed, |_, name, value| {
                assert!(!name.is_empty() && value.trim_ascii() == value);
                chosen.next().unwrap()
            });
            passed.extend_from_slice(b"\r\n");
            let fields = fields_of(&passed, 0);
            let read: Vec<_> = fields.iter(&passed).map(|(_, name, value)| (name, value)).collect();
            let meant = lines.iter().filter(|(.., passes)| *passes);
            let meant: Vec<_> = meant.map(|(name, _, value, _)| (name.as_bytes(), value.trim_ascii().as_bytes())).collect();
            prop_assert_eq!(read, meant);
        }
    }

    #[test]
    fn a_name_longer_than_every_table_entry_is_plain() {
        assert_eq!(kind_of(&[b'a'; 500]), FieldKind::Plain);
        assert_eq!(kind_of(format!("x-ratelimit-{}", "y".repeat(100)).as_bytes()), FieldKind::RateLimit);
    }
}

//! Header fields of one head, kept as ranges into the caller's buffer, and what each field is for.
//!
//! A field is classified once, while the head is parsed: the request path then skips hop-by-hop fields, credentials
//! and framing by looking at one byte. Does not decide what is forwarded; `src/request.rs` does, with [`FieldKind`].

mod kind;
mod seen;

use std::ops::Range;

pub(super) use self::kind::is_same;
use self::kind::kind_of_usual;
pub use self::kind::{FieldKind, kind_of};
use self::seen::Seen;
use super::head::TOKEN_BYTES;
use crate::stops::{self, Controls, NotOfUsualName, Stops};

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
        buf.get(self.range()).unwrap_or_default()
    }

    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    pub(super) fn range(&self) -> Range<usize> {
        self.start as usize..self.end as usize
    }

    fn len(&self) -> usize {
        self.end.saturating_sub(self.start) as usize
    }
}

/// One field. `name` keeps the spelling of the sender.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    pub name: Span,
    pub value: Span,
    pub kind: FieldKind,
}

impl Field {
    /// Whether it is a `Connection` that names other fields.
    fn names_others(&self, buf: &[u8]) -> bool {
        self.kind == FieldKind::Connection && names_others(self.value.of(buf))
    }
}

/// The fields of a head in the order they came. Keeps its capacity when it is cleared.
#[derive(Clone, Debug, Default)]
pub struct Fields {
    all: Vec<Field>,
    /// The places of those that are not plain: they are asked for again and again, and are a third of a head.
    notable: Vec<u8>,
    /// A `Connection` field has options beside `close` and `keep-alive`: names of fields, that is.
    names_others: bool,
    /// The head read before, of which this one may be a repetition.
    seen: Seen,
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
    /// again took three times as long. The tests hold it to what `httparse` accepts. Lines that the head before had as well
    /// are taken over from it.
    pub(crate) fn read(&mut self, buf: &[u8], start: usize, ends: LineEnds) -> Result<Option<usize>, FieldsError> {
        self.clear();
        // Spans reach no further; no head does either.
        let buf = buf.get(..u32::MAX as usize).unwrap_or(buf);
        let same = self.seen.same_lines(buf, start, ends);
        self.all.extend_from_slice(same.fields);
        self.notable.extend_from_slice(same.notable);
        self.names_others = same.names_others && same.fields.iter().any(|field| field.names_others(buf));
        let first_other = same.next;
        let mut line = first_other;
        loop {
            if let Some(found) = usual_line(buf, line) {
                line = self.take(buf, line, found)?;
                continue;
            }
            match buf.get(line) {
                None => return Ok(None),
                Some(b'\r' | b'\n') => {
                    let end = line_end(buf, line, ends, FieldsError::LineEnd)?;
                    if end.is_some() && line != first_other {
                        self.seen.keep(&buf[..line], (start, ends), &self.all, &self.notable, self.names_others);
                    }
                    return Ok(end);
                }
                Some(_) => match any_line(buf, line, ends)? {
                    Some(found) => line = self.take(buf, line, found)?,
                    None => return Ok(None),
                },
            }
        }
    }

    /// Keeps the field that was found at `line`, and says where the next line begins.
    #[inline(always)]
    fn take(&mut self, buf: &[u8], line: usize, found: Line) -> Result<usize, FieldsError> {
        let Line { name_end, value, kind, next } = found;
        if self.all.len() == FIELDS_MAX {
            return Err(FieldsError::TooMany);
        }
        if kind == FieldKind::Connection {
            self.names_others |= names_others(&buf[value.clone()]);
        }
        // Below 2^32, as `read` has seen to.
        let name = Span { start: line as u32, end: name_end as u32 };
        let value = Span { start: value.start as u32, end: value.end as u32 };
        if kind != FieldKind::Plain {
            self.notable.push(self.all.len() as u8); // fewer than FIELDS_MAX
        }
        self.all.push(Field { name, value, kind });
        Ok(next)
    }

    pub fn clear(&mut self) {
        self.all.clear();
        self.notable.clear();
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
        self.notable.iter().filter_map(|at| self.all.get(usize::from(*at)))
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

    /// Every value of one kind that is not [`FieldKind::Plain`].
    pub fn of_kind<'a, 'b: 'a>(&'a self, buf: &'b [u8], kind: FieldKind) -> impl Iterator<Item = &'b [u8]> + 'a {
        self.notable().filter(move |field| field.kind == kind).map(move |field| field.value.of(buf))
    }

    /// Every name and value of one kind that is not [`FieldKind::Plain`].
    pub fn named_of_kind<'a, 'b: 'a>(
        &'a self,
        buf: &'b [u8],
        kind: FieldKind,
    ) -> impl Iterator<Item = (&'b [u8], &'b [u8])> + 'a {
        self.notable().filter(move |field| field.kind == kind).map(|field| (field.name.of(buf), field.value.of(buf)))
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

/// A field line that was found.
struct Line {
    name_end: usize,
    value: Range<usize>,
    kind: FieldKind,
    /// Where the line behind it begins.
    next: usize,
}

/// The field line at `line` when it is spelled as nearly all are: a name of letters, digits and hyphens, a colon, one
/// space, a value that neither begins nor ends with a blank, CR LF. `None` says nothing about it.
#[inline(always)]
fn usual_line(buf: &[u8], line: usize) -> Option<Line> {
    let colon = stops::next::<NotOfUsualName>(buf, line);
    let &[b':', b' ', begin] = buf.get(colon..)?.first_chunk()? else { return None };
    let from = colon + 2;
    let to = stops::next::<Controls>(buf, from);
    let &[last, b'\r', b'\n'] = buf.get(to - 1..)?.first_chunk()? else { return None };
    if colon == line || begin <= b' ' || last <= b' ' {
        return None;
    }
    Some(Line { name_end: colon, value: from..to, kind: kind_of_usual(&buf[line..colon]), next: to + 2 })
}

/// The field line at `line`, byte by byte; `None` while its end has not come.
#[cold]
#[inline(never)]
fn any_line(buf: &[u8], line: usize, ends: LineEnds) -> Result<Option<Line>, FieldsError> {
    let behind = |at: usize, passes: fn(u8) -> bool| {
        let rest = buf.get(at..).unwrap_or_default();
        rest.iter().position(|&byte| !passes(byte)).map(|length| at + length)
    };
    let Some(colon) = behind(line, |byte| TOKEN_BYTES.has(byte)) else { return Ok(None) };
    if colon == line || buf[colon] != b':' {
        return Err(FieldsError::Name);
    }
    let Some(from) = behind(colon + 1, is_blank) else { return Ok(None) };
    let Some(to) = behind(from, |byte| byte == b'\t' || !Controls::has(byte)) else { return Ok(None) };
    let Some(next) = line_end(buf, to, ends, FieldsError::Value)? else { return Ok(None) };
    let length = buf[from..to].iter().rposition(|&byte| !is_blank(byte)).map_or(0, |last| last + 1);
    Ok(Some(Line { name_end: colon, value: from..from + length, kind: kind_of(&buf[line..colon]), next }))
}

/// What `Connection` says of the connection itself.
fn is_own_option(option: &[u8]) -> bool {
    is_same(option, "keep-alive") || is_same(option, "close")
}

#[inline(never)]
fn names_others(connection: &[u8]) -> bool {
    !is_own_option(connection) && connection.split(|&b| b == b',').any(|option| !is_own_option(option.trim_ascii()))
}

/// Where the line behind the line end at `at` begins; `None` while the end has not come whole. `otherwise`: what is wrong
/// when it is none.
fn line_end(buf: &[u8], at: usize, ends: LineEnds, otherwise: FieldsError) -> Result<Option<usize>, FieldsError> {
    match (buf.get(at), buf.get(at + 1)) {
        (Some(b'\r'), Some(b'\n')) => Ok(Some(at + 2)),
        (Some(b'\r'), None) | (None, _) => Ok(None),
        (Some(b'\n'), _) if ends == LineEnds::LfToo => Ok(Some(at + 1)),
        (Some(b'\n'), _) => Err(FieldsError::LineEnd),
        _ => Err(otherwise),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
            lines in proptest::collection::vec(("[A-Za-z0-9_.-]{1,20}", " |[ \t]{0,2}", "[ -~\t]{0,40}|[!-~]{0,70}", "\r\n|\r\n|\r\n|\n|\r"), 0..6),
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
        fn a_head_says_the_same_whatever_was_read_before_it(
            lines in proptest::collection::vec(("[A-Za-z-]{1,12}|Connection", "[!-~]{0,40}|close, x-b", "\r\n|\r\n|\r\n|\n"), 0..9),
            edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), "[A-Za-z: ,\r\n]{0,9}"), 0..3),
            cut in proptest::option::of(any::<prop::sample::Index>()),
            moved in 0..2_usize,
        ) {
            let mut first = b"first line\r\n".to_vec();
            lines.iter().for_each(|(name, value, end)| first.extend_from_slice(format!("{name}: {value}{end}").as_bytes()));
            first.extend_from_slice(b"\r\n");
            let mut second = first.clone();
            for (from, to, text) in edits {
                let (from, to) = (from.index(second.len() + 1), to.index(second.len() + 1));
                second.splice(from.min(to)..from.max(to).min(from.min(to) + 9), text.into_bytes());
            }
            if let Some(cut) = cut {
                second.truncate(cut.index(second.len() + 1));
            }
            let start = 12 - moved;
            for (ends, other_ends) in [(LineEnds::CrLfOnly, LineEnds::LfToo), (LineEnds::LfToo, LineEnds::LfToo)] {
                let mut again = Fields::default();
                let _ = again.read(&first, 12, other_ends);
                let _ = again.read(&first, 12, ends);
                let mut anew = Fields::default();
                prop_assert_eq!(again.read(&second, start, ends), anew.read(&second, start, ends));
                prop_assert_eq!(format!("{:?}", again.all), format!("{:?}", anew.all));
                prop_assert_eq!(&again.notable, &anew.notable);
                prop_assert_eq!(again.names_others, anew.names_others);
            }
        }
    }

    #[test]
    fn a_head_that_comes_again_is_read_from_its_first_other_line_on() {
        let head = |length: usize| format!("Host: a\r\nX-Some: {}\r\nContent-Length: {length}\r\n\r\n", "x".repeat(40));
        let mut fields = Fields::default();
        for (length, same, other) in [(1, 0, 0), (1, 3, 78), (2, 2, 59), (2, 3, 78)] {
            let head = head(length);
            let seen = fields.seen.same_lines(head.as_bytes(), 0, LineEnds::CrLfOnly);
            assert_eq!((seen.fields.len(), seen.next), (same, other), "{length}");
            assert_eq!(fields.read(head.as_bytes(), 0, LineEnds::CrLfOnly), Ok(Some(head.len())));
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

//! The configuration file as a tree in which every value and every key knows where it stands in the text.
//!
//! Built once per load by the YAML crate; everything after it (types, unknown keys, rules, the compile of limits)
//! points back into this tree, so one run can report every mistake with line, column and caret. Decides only what
//! YAML itself decides: syntax, duplicate keys, nesting. It knows no key of ours.

use std::fmt;
use std::ops::Range;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::budget::BudgetBreach;
use serde_saphyr::options::{DuplicateKeyPolicy, NonFiniteFloatPolicy};
use serde_saphyr::{Location, Spanned};

/// Byte range in the source text.
pub type Span = Range<usize>;

/// A file larger than this is no configuration: 100,000 limits of 40 bytes a line fit.
pub const SOURCE_BYTES_MAX: usize = 4 << 20;

/// Deeper than any key we have (five) by a wide margin, and far from the end of the stack.
const DEPTH_MAX: usize = 32;

/// 10,000 limits of 25 keys and values.
const NODES_MAX: usize = 250_000;

/// Aliases may repeat a block; they may not multiply it into millions.
const REPLAYED_MAX: usize = 100_000;

#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    pub value: Value,
    pub span: Span,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Null,
    Bool(bool),
    /// As written, so that `0.1` stays one tenth: money is never read through a float.
    Number(String),
    Text(String),
    List(Vec<Node>),
    Map(Vec<Entry>),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    pub key: String,
    pub key_span: Span,
    pub node: Node,
}

/// The text is not one YAML document. Nothing more can be said about the rest of the file.
#[derive(Clone, Debug, PartialEq)]
pub struct SyntaxError {
    pub message: String,
    /// `None` when the fault has no place, as with a file that is too large.
    pub span: Option<Span>,
}

/// A key that stands twice in one mapping.
#[derive(Clone, Debug, PartialEq)]
pub struct Duplicate {
    /// Path of the mapping plus the key: `server.listen`.
    pub path: String,
    pub key: String,
    pub first: Span,
    pub second: Span,
}

impl Value {
    /// What a message calls this value: "a number", "a list".
    pub fn noun(&self) -> &'static str {
        match self {
            Value::Null => "nothing",
            Value::Bool(_) => "a boolean",
            Value::Number(_) => "a number",
            Value::Text(_) => "text",
            Value::List(_) => "a list",
            Value::Map(_) => "a mapping",
        }
    }
}

/// Parses one YAML document. A repeated key is reported and its first value kept, so that one repeated key does not
/// hide the mistakes after it. An empty document is an empty mapping.
pub fn parse(text: &str) -> Result<(Node, Vec<Duplicate>), SyntaxError> {
    if text.len() > SOURCE_BYTES_MAX {
        let message = format!("the file has {} bytes; a configuration has at most {SOURCE_BYTES_MAX}", text.len());
        return Err(SyntaxError { message, span: None });
    }
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_documents: 1,
            max_depth: DEPTH_MAX,
            max_nodes: NODES_MAX,
        },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: REPLAYED_MAX },
        // Repeated keys come through to us: stopping at the first one would hide the rest of the file.
        duplicate_keys: DuplicateKeyPolicy::PassThrough,
        strict_booleans: true,
        reject_unsupported_tags: true,
        // `.inf` is judged where the key is known, with the remedy for that key.
        non_finite_float_policy: NonFiniteFloatPolicy::PassThrough,
        with_snippet: false,
    };
    let parsed: Option<Spanned<Raw>> =
        serde_saphyr::from_str_with_options(text, options).map_err(|error| syntax_error(text, &error))?;
    let mut duplicates = Vec::new();
    let node = match parsed {
        Some(raw) => settle(text, raw, &mut String::new(), &mut duplicates),
        None => Node { value: Value::Map(Vec::new()), span: 0..0 },
    };
    Ok((node, duplicates))
}

fn syntax_error(text: &str, error: &serde_saphyr::Error) -> SyntaxError {
    let message = match error.without_snippet() {
        serde_saphyr::Error::Budget { breach: BudgetBreach::Documents { .. }, .. } => {
            "the file holds more than one YAML document".to_owned()
        }
        error => {
            let message = error.render_with_formatter(&serde_saphyr::UserMessageFormatter);
            // The place is shown by our own snippet; the crate's trailing "at line L, column C" would say it twice.
            let message = message.split(" at line ").next().unwrap_or(&message).trim_end_matches([':', ' ']);
            // The crate says which of its counters overflowed, inside or outside an alias; for a reader it is one thing.
            let too_much = ["too large or too complex", "limit exceeded"].iter().any(|phrase| message.contains(phrase));
            if too_much { "the file nests or repeats more than any configuration does" } else { message }.to_owned()
        }
    };
    let span = error.location().and_then(|location| span_of(text, &location));
    SyntaxError { message, span }
}

/// Byte range of a location, clamped to character boundaries of the text: a location never makes us slice badly.
fn span_of(text: &str, location: &Location) -> Option<Span> {
    if location.line() == 0 {
        return None;
    }
    let start = match location.span().byte_offset() {
        Some(offset) => usize::try_from(offset).ok()?,
        None => offset_of(text, location.line(), location.column()),
    };
    let start = floor_boundary(text, start);
    let len = location.span().byte_len().and_then(|len| usize::try_from(len).ok()).unwrap_or(0);
    let end = ceil_boundary(text, start.saturating_add(len));
    Some(start..end)
}

/// The last character boundary at or before the offset.
pub fn floor_boundary(text: &str, offset: usize) -> usize {
    (0..=offset.min(text.len())).rev().find(|offset| text.is_char_boundary(*offset)).unwrap_or(0)
}

/// The first character boundary at or after the offset; the end for an offset beyond it.
pub fn ceil_boundary(text: &str, offset: usize) -> usize {
    (offset..text.len()).find(|offset| text.is_char_boundary(*offset)).unwrap_or(text.len())
}

/// Byte offset of a 1-based line and column, counted in characters.
fn offset_of(text: &str, line: u64, column: u64) -> usize {
    let mut start = 0;
    for _ in 1..line {
        match text.get(start..).and_then(|rest| rest.find('\n')) {
            Some(newline) => start += newline + 1,
            None => return text.len(),
        }
    }
    let rest = text.get(start..).unwrap_or("");
    let column = usize::try_from(column).unwrap_or(usize::MAX).saturating_sub(1);
    start + rest.char_indices().nth(column).map_or(rest.len(), |(offset, _)| offset)
}

/// Turns the deserialised shape into a [`Node`]: spans become byte ranges, numbers get their text back.
fn settle(text: &str, raw: Spanned<Raw>, path: &mut String, duplicates: &mut Vec<Duplicate>) -> Node {
    let span = span_of(text, &raw.referenced).unwrap_or(0..0);
    let value = match raw.value {
        Raw::Null => Value::Null,
        Raw::Bool(value) => Value::Bool(value),
        Raw::Text(value) => Value::Text(value),
        Raw::Number(rounded) => {
            let written = span_of(text, &raw.defined).and_then(|span| text.get(span));
            Value::Number(written.and_then(decimal).unwrap_or(rounded))
        }
        Raw::List(items) => {
            let mut list = Vec::with_capacity(items.len());
            for (index, item) in items.into_iter().enumerate() {
                let depth = path.len();
                path.push_str(&format!("[{index}]"));
                list.push(settle(text, item, path, duplicates));
                path.truncate(depth);
            }
            Value::List(list)
        }
        Raw::Map(entries) => {
            let mut map: Vec<Entry> = Vec::with_capacity(entries.len());
            let mut seen = std::collections::HashMap::new();
            for (key, value) in entries {
                let key_span = span_of(text, &key.referenced).unwrap_or(0..0);
                let depth = path.len();
                join(path, &key.value);
                if let Some(first) = seen.get(&key.value) {
                    let first = map.get(*first).map_or(0..0, |entry: &Entry| entry.key_span.clone());
                    let duplicate = Duplicate { path: path.clone(), key: key.value, first, second: key_span };
                    duplicates.push(duplicate);
                } else {
                    let node = settle(text, value, path, duplicates);
                    seen.insert(key.value.clone(), map.len());
                    map.push(Entry { key: key.value, key_span, node });
                }
                path.truncate(depth);
            }
            Value::Map(map)
        }
    };
    Node { value, span }
}

/// Appends a key to a path: `server` + `listen` = `server.listen`.
pub fn join(path: &mut String, key: &str) {
    if !path.is_empty() {
        path.push('.');
    }
    path.push_str(key);
}

/// `-12`, `0.50`, `1e9`, `1_000` without its marks: a number whose text means the same to a reader and to a decimal
/// parser. `None` for `0x1F` and the like, whose value is all we keep.
fn decimal(written: &str) -> Option<String> {
    let written = written.trim();
    let plain = written.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'.' | b'-' | b'+' | b'e' | b'E' | b'_'));
    (plain && !written.is_empty()).then(|| written.trim_start_matches('+').replace('_', ""))
}

/// What the YAML crate hands over, before spans are turned into byte ranges.
enum Raw {
    Null,
    Bool(bool),
    Number(String),
    Text(String),
    List(Vec<Spanned<Raw>>),
    Map(Vec<(Spanned<String>, Spanned<Raw>)>),
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RawVisitor)
    }
}

struct RawVisitor;

impl<'de> Visitor<'de> for RawVisitor {
    type Value = Raw;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_unit<E>(self) -> Result<Raw, E> {
        Ok(Raw::Null)
    }

    fn visit_none<E>(self) -> Result<Raw, E> {
        Ok(Raw::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Raw, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Raw, E> {
        Ok(Raw::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Raw, E> {
        Ok(Raw::Number(value.to_string()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Raw, E> {
        Ok(Raw::Number(value.to_string()))
    }

    fn visit_i128<E>(self, value: i128) -> Result<Raw, E> {
        Ok(Raw::Number(value.to_string()))
    }

    fn visit_u128<E>(self, value: u128) -> Result<Raw, E> {
        Ok(Raw::Number(value.to_string()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Raw, E> {
        Ok(Raw::Number(value.to_string()))
    }

    fn visit_str<E>(self, value: &str) -> Result<Raw, E> {
        Ok(Raw::Text(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Raw, E> {
        Ok(Raw::Text(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Raw, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Raw::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Raw, A::Error> {
        let mut entries = Vec::new();
        while let Some(key) = map.next_key()? {
            entries.push((key, map.next_value()?));
        }
        Ok(Raw::Map(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn value_of<'a>(node: &'a Node, key: &str) -> &'a Node {
        let Value::Map(entries) = &node.value else { panic!("not a mapping") };
        &entries.iter().find(|entry| entry.key == key).expect("the key is there").node
    }

    #[test]
    fn every_scalar_keeps_its_kind_and_its_place() {
        let text = "t: true\nno: no\nq: \"5\"\nn: 5\nlisten: 127.0.0.1:8790\nd: 2026-01-01\ne:\n";
        let (root, _) = parse(text).unwrap();
        let expected = [
            ("t", Value::Bool(true), "true"),
            ("no", Value::Text("no".into()), "no"),
            ("q", Value::Text("5".into()), "\"5\""),
            ("n", Value::Number("5".into()), "5"),
            ("listen", Value::Text("127.0.0.1:8790".into()), "127.0.0.1:8790"),
            ("d", Value::Text("2026-01-01".into()), "2026-01-01"),
            ("e", Value::Null, ""),
        ];
        for (key, value, written) in expected {
            let node = value_of(&root, key);
            assert_eq!((&node.value, &text[node.span.clone()]), (&value, written));
        }
    }

    #[test]
    fn a_number_keeps_the_text_that_money_is_read_from() {
        for (written, kept) in [
            ("0.10", "0.10"),
            ("+5", "5"),
            ("1_000_000", "1000000"),
            ("99999999999999999999999999", "99999999999999999999999999"),
            ("0x1F", "31"),
            (".inf", "inf"),
            ("1e3", "1e3"),
        ] {
            let (root, _) = parse(&format!("a: &anchor {written} # comment\nb: *anchor\n")).unwrap();
            assert_eq!(value_of(&root, "a").value, Value::Number(kept.into()));
            assert_eq!(value_of(&root, "b").value, Value::Number(kept.into()));
        }
    }

    #[test]
    fn an_alias_is_shown_where_it_stands() {
        let text = "a: &anchor 1\nb: *anchor\n";
        let (root, _) = parse(text).unwrap();
        assert_eq!(&text[value_of(&root, "b").span.clone()], "*anchor");
    }

    #[test]
    fn a_repeated_key_is_reported_with_both_places_and_the_first_value_stays() {
        let text = "s:\n  - { a: 1, b: 2, a: 3 }\n";
        let (root, duplicates) = parse(text).unwrap();
        let Value::List(items) = &value_of(&root, "s").value else { panic!("not a list") };
        assert_eq!(value_of(&items[0], "a").value, Value::Number("1".into()));
        assert_eq!(duplicates.len(), 1);
        assert_eq!((duplicates[0].path.as_str(), duplicates[0].key.as_str()), ("s[0].a", "a"));
        assert!(duplicates[0].first.start < duplicates[0].second.start);
    }

    #[test]
    fn an_empty_document_is_an_empty_mapping() {
        for text in ["", "# nothing yet\n", "---\n", "~\n"] {
            let (root, _) = parse(text).unwrap();
            assert!(matches!(root.value, Value::Map(entries) if entries.is_empty()), "{text:?}");
        }
    }

    #[test]
    fn what_is_no_single_yaml_document_says_why() {
        for (text, why) in [
            ("a: [", "unclosed bracket '['"),
            ("a: b: c", "mapping values are not allowed in this context"),
            ("a: 1\n---\nb: 2", "the file holds more than one YAML document"),
            ("a: *nope", "reference to unknown value"),
            ("a: !foo 1", "unsupported tag `!foo`"),
            ("[a]: 1", "expected string scalar"),
            ("&a [*a]", "Recursive reference not allowed here"),
            ("~: 1", "null is not allowed here"),
        ] {
            let error = parse(text).unwrap_err();
            assert_eq!(error.message, why, "{text:?}");
            assert!(error.span.is_some(), "{text:?}");
        }
    }

    #[test]
    fn depth_aliases_and_size_are_bounded() {
        assert_eq!(
            parse(&"[".repeat(100_000)).unwrap_err().message,
            "the file nests or repeats more than any configuration does"
        );
        let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..9 {
            let previous = vec![format!("*a{}", level - 1); 10].join(", ");
            bomb.push_str(&format!("a{level}: &a{level} [{previous}]\n"));
        }
        assert_eq!(parse(&bomb).unwrap_err().message, "the file nests or repeats more than any configuration does");
        assert!(parse(&"#".repeat(SOURCE_BYTES_MAX + 1)).unwrap_err().message.starts_with("the file has"));
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[-a-c:{}\\[\\]&*!|>'\"#?%@` \n\t\r0-9.~é<,]{0,60}") {
            if let Ok((root, _)) = parse(&text) {
                prop_assert!(text.get(root.span).is_some());
            }
        }
    }
}

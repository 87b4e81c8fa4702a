//! What a request body asks for: model, stream, caps, how much prompt. Read from a copy; the original is forwarded.
//!
//! Refuses only what the gateway could not govern: no model, two of a governed member, a cap that is no count.
//! Whether the rest of the body makes sense is the provider's to say. Knows no limit and no price; `src/request.rs`
//! turns what it finds into a reserve.

mod members;
mod prompt;
pub(crate) mod raw;

use compact_str::CompactString;
use members::{Member, Seen};
use prompt::{Prompt, node_count, string_at};
use simd_json::{Node, StaticNode, Tape};
use std::ops::Range;

/// Nesting beyond this is refused. Real tool schemas stay below 20.
const NESTING_MAX: usize = 128;
/// Values and members a body may hold: a million take about 40 MB while they are read. Bodies below
/// [`COUNTED_FROM_BYTES`] cannot hold enough to matter and are not counted.
const VALUES_MAX: usize = 1_000_000;
const COUNTED_FROM_BYTES: usize = 256 * 1024;
/// Working memory above this is given back after a large body; one inspector per core lives for ever.
const KEPT_BYTES: usize = 1024 * 1024;
/// No provider has model names near this long, and the name goes into every row.
const MODEL_BYTES_MAX: usize = 512;

/// What one body asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct Asked {
    /// As sent, escapes resolved; 1 to 512 bytes.
    pub model: CompactString,
    pub stream: bool,
    /// The largest of `max_tokens`, `max_completion_tokens` and `max_output_tokens`; `None` when no one bounded it.
    pub output_cap: Option<u64>,
    /// Answers asked for at once (`n`, or `best_of` where larger), at least 1.
    pub choices: u64,
    /// Bytes of prompt text and tool definitions, without pictures and sound.
    pub input_bytes: u64,
    /// Pictures, whatever their size.
    pub images: u32,
    /// Whether the caller itself asked for usage in its stream.
    pub include_usage: bool,
    /// What makes the body ask for usage on its stream.
    pub usage_splice: Splice,
}

/// One replacement that makes a body ask for usage, every other byte as it was.
#[derive(Clone, Debug, PartialEq)]
pub struct Splice {
    /// Which bytes of the body give way; within it.
    pub at: Range<usize>,
    /// What comes in their place.
    pub with: &'static str,
}

impl Splice {
    /// Appends the changed body. One that is shorter than the body this was made for stays as it is.
    pub fn apply(&self, body: &[u8], out: &mut Vec<u8>) {
        match (body.get(..self.at.start), body.get(self.at.end..)) {
            (Some(before), Some(behind)) => {
                out.extend_from_slice(before);
                out.extend_from_slice(self.with.as_bytes());
                out.extend_from_slice(behind);
            }
            _ => out.extend_from_slice(body),
        }
    }

    /// How long a body of `body_len` bytes becomes.
    pub fn changed_len(&self, body_len: usize) -> usize {
        body_len.saturating_sub(self.at.len()) + self.with.len()
    }
}

/// Why a body is answered with a 400. The text names the member.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadBody {
    #[error("the body is not valid JSON (near byte {near_byte})")]
    NotJson { near_byte: usize },
    #[error("the body holds more than 1,000,000 JSON values")]
    TooManyValues,
    #[error("the body must be a JSON object")]
    NotAnObject,
    #[error("`model` is missing")]
    NoModel,
    #[error("`model` must be a non-empty string of at most 512 bytes")]
    ModelNotAName,
    #[error("`{member}` appears more than once")]
    Duplicate { member: &'static str },
    #[error("a member differs from `{member}` only in its letters' case")]
    Misspelled { member: &'static str },
    #[error("`{member}` must be true or false")]
    NotABoolean { member: &'static str },
    #[error("`{member}` must be a whole number of at least 0")]
    NotACount { member: &'static str },
    #[error("`{member}` must be an object")]
    NotAnObjectMember { member: &'static str },
}

impl BadBody {
    /// The member at fault, for the `param` of an OpenAI error.
    pub fn member(&self) -> Option<&'static str> {
        match self {
            BadBody::NotJson { .. } | BadBody::TooManyValues | BadBody::NotAnObject => None,
            BadBody::NoModel | BadBody::ModelNotAName => Some("model"),
            BadBody::Duplicate { member }
            | BadBody::Misspelled { member }
            | BadBody::NotABoolean { member }
            | BadBody::NotACount { member }
            | BadBody::NotAnObjectMember { member } => Some(member),
        }
    }
}

/// Reads bodies, one after the other, with the same working memory. One per core; never waits.
pub struct Inspector {
    /// The body with the parser's padding; the parser writes into it.
    scratch: Vec<u8>,
    buffers: simd_json::Buffers,
    tape: Tape<'static>,
}

impl Default for Inspector {
    fn default() -> Inspector {
        Inspector {
            scratch: Vec::new(),
            buffers: simd_json::Buffers::with_max_depth(0, NESTING_MAX),
            tape: Tape(Vec::new()),
        }
    }
}

impl Inspector {
    /// Reads one complete body. Takes time in proportion to it: about 1 µs a kilobyte.
    pub fn inspect(&mut self, body: &[u8]) -> Result<Asked, BadBody> {
        if body.len() > COUNTED_FROM_BYTES && values_in(body) > VALUES_MAX {
            return Err(BadBody::TooManyValues);
        }
        self.scratch.clear();
        self.scratch.reserve_exact(body.len() + simd_json::INPUT_PADDING);
        self.scratch.extend_from_slice(body);
        self.scratch.resize(body.len() + simd_json::INPUT_PADDING, 0);
        let scratch_at = self.scratch.as_ptr() as usize;

        let mut tape = std::mem::replace(&mut self.tape, Tape(Vec::new())).reset();
        let parsed = simd_json::fill_tape_padded(&mut self.scratch, body.len(), &mut self.buffers, &mut tape);
        let asked = match parsed {
            Ok(()) => read(&tape.0, body, scratch_at),
            Err(error) => Err(BadBody::NotJson { near_byte: error.index() }),
        };
        self.tape = tape.reset();
        self.give_back_memory();
        asked
    }

    fn give_back_memory(&mut self) {
        if self.scratch.capacity() > KEPT_BYTES {
            *self = Inspector::default();
        }
    }
}

fn read(nodes: &[Node<'_>], body: &[u8], scratch_at: usize) -> Result<Asked, BadBody> {
    let Some(&Node::Object { len, .. }) = nodes.first() else { return Err(BadBody::NotAnObject) };
    let open = raw::skip_space(body, 0);
    let mut model = None;
    let mut asked = Asked {
        model: CompactString::default(),
        stream: false,
        output_cap: None,
        choices: 1,
        input_bytes: 0,
        images: 0,
        include_usage: false,
        // Right behind the opening brace; a comma fits there, because `model` follows.
        usage_splice: Splice { at: open + 1..open + 1, with: r#""stream_options":{"include_usage":true},"# },
    };
    let (mut seen, mut prompt, mut next) = (Seen::default(), Prompt::default(), 1);
    for _ in 0..len {
        let key = string_at(nodes, next).unwrap_or_default();
        let value = next + 1;
        next = value + node_count(nodes, value);
        let Some(member) = Member::of(key) else {
            match Member::mistaken(key) {
                Some(member) => return Err(BadBody::Misspelled { member: member.name() }),
                None => continue,
            }
        };
        if !seen.insert(member) {
            return Err(BadBody::Duplicate { member: member.name() });
        }
        match member {
            Member::Model => model = Some(model_name(nodes, value)?),
            Member::Stream => asked.stream = flag(nodes, value, "stream")?.unwrap_or(false),
            Member::StreamOptions => {
                let key_at = (key.as_ptr() as usize).wrapping_sub(scratch_at);
                read_stream_options(nodes, value, body, key_at, &mut asked)?;
            }
            Member::MaxTokens | Member::MaxCompletionTokens | Member::MaxOutputTokens => {
                asked.output_cap = asked.output_cap.max(count(nodes, value, member.name())?);
            }
            Member::N | Member::BestOf => {
                asked.choices = asked.choices.max(count(nodes, value, member.name())?.unwrap_or(1));
            }
            Member::Messages
            | Member::Prompt
            | Member::Input
            | Member::System
            | Member::Instructions
            | Member::Suffix => {
                prompt.add_prompt(nodes, value);
            }
            Member::Tools | Member::Functions => {
                prompt.add_tools(nodes, value);
            }
            // Read from the answer, which decides; only its being there once matters here.
            Member::ServiceTier => {}
        }
    }
    asked.model = model.ok_or(BadBody::NoModel)?;
    asked.input_bytes = prompt.text_bytes;
    asked.images = prompt.images;
    Ok(asked)
}

fn model_name(nodes: &[Node<'_>], at: usize) -> Result<CompactString, BadBody> {
    match string_at(nodes, at) {
        Some(name) if !name.is_empty() && name.len() <= MODEL_BYTES_MAX => Ok(CompactString::from(name)),
        _ => Err(BadBody::ModelNotAName),
    }
}

/// `None` for null.
fn flag(nodes: &[Node<'_>], at: usize, member: &'static str) -> Result<Option<bool>, BadBody> {
    match nodes.get(at) {
        Some(Node::Static(StaticNode::Bool(value))) => Ok(Some(*value)),
        Some(Node::Static(StaticNode::Null)) => Ok(None),
        _ => Err(BadBody::NotABoolean { member }),
    }
}

/// `None` for null. Numbers beyond a u64 saturate: the reserve is capped anyway, the provider will say no.
fn count(nodes: &[Node<'_>], at: usize, member: &'static str) -> Result<Option<u64>, BadBody> {
    match nodes.get(at) {
        Some(Node::Static(StaticNode::U64(value))) => Ok(Some(*value)),
        Some(Node::Static(StaticNode::I64(value))) if *value >= 0 => Ok(Some(value.unsigned_abs())),
        // `as` saturates. 1e18 is a whole number in another spelling; 1.5 is not.
        Some(Node::Static(StaticNode::F64(value))) if *value >= 0.0 && value.trunc() == *value => {
            Ok(Some(*value as u64))
        }
        Some(Node::Static(StaticNode::Null)) => Ok(None),
        _ => Err(BadBody::NotACount { member }),
    }
}

/// Reads `stream_options`, whose key begins at `key_at` in the body, and finds where to ask for usage.
fn read_stream_options(
    nodes: &[Node<'_>],
    at: usize,
    body: &[u8],
    key_at: usize,
    asked: &mut Asked,
) -> Result<(), BadBody> {
    const MEMBER: &str = "stream_options";
    let Some(value) = value_behind_key(body, key_at) else { return Err(BadBody::NotJson { near_byte: key_at }) };
    let members = match nodes.get(at) {
        Some(Node::Static(StaticNode::Null)) => {
            asked.usage_splice = Splice { at: value, with: r#"{"include_usage":true}"# };
            return Ok(());
        }
        Some(&Node::Object { len, .. }) => len,
        _ => return Err(BadBody::NotAnObjectMember { member: MEMBER }),
    };
    let inside = value.start + 1;
    let with = if members == 0 { r#""include_usage":true"# } else { r#""include_usage":true,"# };
    asked.usage_splice = Splice { at: inside..inside, with };

    let (mut next, mut found) = (at + 1, false);
    for _ in 0..members {
        let key = string_at(nodes, next).unwrap_or_default();
        if key == "include_usage" {
            if std::mem::replace(&mut found, true) {
                return Err(BadBody::Duplicate { member: "stream_options.include_usage" });
            }
            asked.include_usage = flag(nodes, next + 1, "stream_options.include_usage")?.unwrap_or(false);
        } else if key.eq_ignore_ascii_case("include_usage") {
            return Err(BadBody::Misspelled { member: "stream_options.include_usage" });
        }
        next += 1 + node_count(nodes, next + 1);
    }
    if found {
        asked.usage_splice = Splice { at: include_usage_value(body, value)?, with: "true" };
    }
    Ok(())
}

/// Where the value of `include_usage` lies inside the object at `object`. The key may be written with escapes, so it
/// is found by unescaping each key, as the parser did.
fn include_usage_value(body: &[u8], object: Range<usize>) -> Result<Range<usize>, BadBody> {
    let text = body.get(object.clone()).unwrap_or_default();
    let found = raw::members(text).find(|(key, _)| is_include_usage(key)).map(|(_, value)| value);
    let start = found.map(|value| value.as_ptr() as usize - body.as_ptr() as usize);
    match (start, found) {
        (Some(start), Some(value)) => Ok(start..start + value.len()),
        _ => Err(BadBody::NotJson { near_byte: object.start }),
    }
}

fn is_include_usage(raw_key: &[u8]) -> bool {
    if !raw_key.contains(&b'\\') {
        return raw_key == b"include_usage";
    }
    let mut quoted = Vec::with_capacity(raw_key.len() + 2);
    quoted.push(b'"');
    quoted.extend_from_slice(raw_key);
    quoted.push(b'"');
    serde_json::from_slice::<String>(&quoted).is_ok_and(|key| key == "include_usage")
}

/// The range of the value whose key's content begins at `key_at`.
fn value_behind_key(body: &[u8], key_at: usize) -> Option<Range<usize>> {
    let colon = raw::skip_space(body, raw::string_end(body, key_at)?);
    if body.get(colon) != Some(&b':') {
        return None;
    }
    let start = raw::skip_space(body, colon + 1);
    Some(start..raw::value_end(body, start)?)
}

/// How many values and members a text can hold: what stands outside strings is counted, without parsing.
fn values_in(body: &[u8]) -> usize {
    let (mut at, mut values) = (0, 0);
    while let Some(&byte) = body.get(at) {
        at += 1;
        match byte {
            b'"' => match raw::string_end(body, at) {
                Some(end) => at = end,
                None => break,
            },
            b'{' | b'[' | b',' | b':' => values += 1,
            _ => {}
        }
    }
    values
}

#[cfg(test)]
mod tests;

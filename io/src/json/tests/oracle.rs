//! The same questions answered in another way: a whole body at once, on the tape of simd-json. What the inspector says
//! is held against this.

use std::ops::Range;

use compact_str::CompactString;
use simd_json::{Node, StaticNode, Tape};

use super::super::members::{Member, Seen};
use super::super::{Asked, BadBody, Splice, raw};

const NESTING_MAX: usize = 128;
const VALUES_MAX: usize = 1_000_000;
const MODEL_BYTES_MAX: usize = 512;

pub(super) fn inspect(body: &[u8]) -> Result<Asked, BadBody> {
    let mut scratch = body.to_vec();
    scratch.resize(body.len() + simd_json::INPUT_PADDING, 0);
    let scratch_at = scratch.as_ptr() as usize;
    let mut buffers = simd_json::Buffers::with_max_depth(0, NESTING_MAX);
    let mut tape = Tape(Vec::new());
    let parsed = simd_json::fill_tape_padded(&mut scratch, body.len(), &mut buffers, &mut tape);
    if values_in(body) > VALUES_MAX {
        return Err(BadBody::TooManyValues);
    }
    match parsed {
        Ok(()) => read(&tape.0, body, scratch_at),
        Err(error) => Err(BadBody::NotJson { near_byte: error.index() }),
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
    let (mut seen, mut prompt, mut prompts, mut next) = (Seen::default(), Prompt::default(), 1, 1);
    for _ in 0..len {
        let key = string_at(nodes, next).unwrap_or_default();
        let value = next + 1;
        next = value + node_count(nodes, value);
        let Some(member) = Member::of(key.as_bytes()) else {
            match Member::mistaken(key.as_bytes()) {
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
            Member::Prompt => {
                prompts = prompts_in(nodes, value);
                prompt.add_prompt(nodes, value);
            }
            Member::Messages | Member::Input | Member::System | Member::Instructions | Member::Suffix => {
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
    asked.choices = asked.choices.saturating_mul(prompts);
    asked.input_bytes = prompt.text_bytes;
    asked.images = prompt.images;
    Ok(asked)
}

/// Strings and containers in a list, at least 1.
fn prompts_in(nodes: &[Node<'_>], at: usize) -> u64 {
    let Some(&Node::Array { len, .. }) = nodes.get(at) else { return 1 };
    let mut prompts = 0;
    let mut element = at + 1;
    for _ in 0..len {
        prompts += u64::from(!matches!(nodes.get(element), Some(Node::Static(_)) | None));
        element += node_count(nodes, element);
    }
    prompts.max(1)
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

/// Tokens given as numbers (`"prompt": [1212, 318]`) count as many bytes as the estimate divides by.
const BYTES_PER_TOKEN: u64 = 4;

/// What was found so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Prompt {
    pub text_bytes: u64,
    pub images: u32,
}

/// What the string under a key is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Under {
    Text,
    /// Not part of the prompt: not counted, nothing below it either.
    Label,
    /// The `type` of a part: says whether the part is a picture.
    Type,
    /// A link or data URL. The member of this name makes its object a picture.
    ImageLink,
    Link,
    /// Base64 most of the time, text at times (`{"type":"text","data":"…"}`).
    Payload,
}

impl Prompt {
    /// Counts the value at `nodes[at]`, a prompt member, and returns the index behind it. Recursion is as deep as the
    /// text nests, which the parser has limited.
    fn add_prompt(&mut self, nodes: &[Node<'_>], at: usize) -> usize {
        self.add(nodes, at, Under::Text)
    }

    /// Counts a value of tool definitions: every key and every string.
    fn add_tools(&mut self, nodes: &[Node<'_>], at: usize) -> usize {
        let end = at + node_count(nodes, at);
        for node in nodes.get(at..end).unwrap_or_default() {
            if let Node::String(text) = node {
                self.text_bytes += text.len() as u64;
            }
        }
        end
    }

    fn add(&mut self, nodes: &[Node<'_>], at: usize, under: Under) -> usize {
        match nodes.get(at) {
            Some(Node::String(text)) => {
                if counts(text, under) {
                    self.text_bytes += text.len() as u64;
                }
                at + 1
            }
            Some(&Node::Array { len, .. }) => {
                let mut next = at + 1;
                for _ in 0..len {
                    if let Some(Node::Static(number)) = nodes.get(next) {
                        self.text_bytes += BYTES_PER_TOKEN * u64::from(is_number(number));
                    }
                    next = self.add(nodes, next, under);
                }
                next
            }
            Some(&Node::Object { len, .. }) => {
                let (mut next, mut image) = (at + 1, false);
                for _ in 0..len {
                    let key = string_at(nodes, next).unwrap_or_default();
                    let below = under_key(key);
                    image |= match below {
                        Under::ImageLink => true,
                        Under::Type => string_at(nodes, next + 1).is_some_and(is_image_type),
                        _ => false,
                    };
                    next = match below {
                        Under::Label | Under::Type => next + 1 + node_count(nodes, next + 1),
                        _ => self.add(nodes, next + 1, below),
                    };
                }
                self.images = self.images.saturating_add(u32::from(image));
                next
            }
            _ => at + 1,
        }
    }
}

/// Nodes that the value at `at` takes up, its own included.
fn node_count(nodes: &[Node<'_>], at: usize) -> usize {
    match nodes.get(at) {
        Some(&Node::Object { count, .. } | &Node::Array { count, .. }) => count + 1,
        _ => 1,
    }
}

fn string_at<'a>(nodes: &[Node<'a>], at: usize) -> Option<&'a str> {
    match nodes.get(at) {
        Some(Node::String(text)) => Some(text),
        _ => None,
    }
}

fn is_number(node: &simd_json::StaticNode) -> bool {
    !matches!(node, simd_json::StaticNode::Null | simd_json::StaticNode::Bool(_))
}

fn under_key(key: &str) -> Under {
    match key {
        "type" => Under::Type,
        "role" | "id" | "object" | "status" | "index" | "tool_call_id" | "tool_use_id" | "call_id" | "item_id"
        | "cache_control" | "detail" | "format" | "media_type" | "mime_type" | "mimeType" | "signature"
        | "encrypted_content" | "file_id" | "phase" => Under::Label,
        "image_url" | "inlineData" | "inline_data" => Under::ImageLink,
        "url" | "uri" | "file_url" | "fileUri" => Under::Link,
        "data" | "file_data" | "b64_json" | "bytes" => Under::Payload,
        _ => Under::Text,
    }
}

fn is_image_type(kind: &str) -> bool {
    matches!(kind, "image_url" | "input_image" | "image" | "computer_screenshot")
}

fn counts(text: &str, under: Under) -> bool {
    match under {
        Under::Text => true,
        Under::Label | Under::Type | Under::Link | Under::ImageLink => false,
        Under::Payload => !is_base64(text),
    }
}

/// Whether a payload looks like base64 (or a data URL): 64 characters without a space are no prose in most scripts.
fn is_base64(text: &str) -> bool {
    const LOOKED_AT: usize = 64;
    let start = &text.as_bytes()[..text.len().min(LOOKED_AT)];
    text.starts_with("data:")
        || (text.len() >= LOOKED_AT
            && start.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/' | b'-' | b'_' | b'=')))
}

//! How much prompt a request carries: bytes of text, and how many pictures.
//!
//! The sum feeds an estimate (bytes ÷ 4), so it follows one simple rule rather than each provider's schema: under
//! the prompt members every string counts, except what is plainly not text (roles, ids, types, links) and payloads in
//! base64, which would make a 2 MB picture look like 600,000 tokens. An unknown member counts: text hidden under a
//! new name would otherwise be free. Tool definitions count whole, names included, because the model reads them.

use simd_json::Node;

/// Tokens given as numbers (`"prompt": [1212, 318]`) count as many bytes as the estimate divides by.
const BYTES_PER_TOKEN: u64 = 4;

/// What was found so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Prompt {
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
    pub(crate) fn add_prompt(&mut self, nodes: &[Node<'_>], at: usize) -> usize {
        self.add(nodes, at, Under::Text)
    }

    /// Counts a value of tool definitions: every key and every string.
    pub(crate) fn add_tools(&mut self, nodes: &[Node<'_>], at: usize) -> usize {
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
pub(crate) fn node_count(nodes: &[Node<'_>], at: usize) -> usize {
    match nodes.get(at) {
        Some(&Node::Object { count, .. } | &Node::Array { count, .. }) => count + 1,
        _ => 1,
    }
}

pub(crate) fn string_at<'a>(nodes: &[Node<'a>], at: usize) -> Option<&'a str> {
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

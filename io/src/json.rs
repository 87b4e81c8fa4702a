//! What a request body asks for: model, stream, caps, how much prompt. Read while it arrives; it is forwarded as it is.
//!
//! Refuses only what the gateway could not govern: no model, two of a governed member, a cap that is no count.
//! Whether the rest of the body makes sense is the provider's to say. Knows no limit and no price; `src/request.rs`
//! turns what it finds into a reserve.

mod inspector;
mod members;
mod prompt;
pub(crate) mod raw;
mod strings;

use std::ops::Range;

use compact_str::CompactString;
pub use inspector::Inspector;

/// What one body asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct Asked {
    /// As sent, escapes resolved; 1 to 512 bytes.
    pub model: CompactString,
    pub stream: bool,
    /// The largest of `max_tokens`, `max_completion_tokens` and `max_output_tokens`; `None` when no one bounded it.
    pub output_cap: Option<u64>,
    /// Answers asked for at once: `n`, or `best_of` where larger, for each prompt of a list (`prompt`); at least 1.
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

#[cfg(test)]
mod tests;

//! What the members of an answer mean, by their name and where they stand.
//!
//! Only a handful matter: where usage is, which kind of event this is, and which strings are generated text. The text
//! rule: string values under `choices`, `delta`, `content`, `content_block`, `output` or `candidates` whose member is
//! one of the known text members, and everything inside tool-call arguments. A stream of the Responses API repeats
//! its text in closing events (`…done`, `response.…`); those stand under other roots and are not counted again.

/// What a member is to us. Where it stands is already taken into account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Key {
    #[default]
    Other,
    Usage,
    Model,
    /// The kind of a stream event.
    Type,
    /// Non-null means that the answer is, or became, an error.
    Error,
    Tier,
    /// The root of OpenAI chunks; an empty one beside usage makes the usage chunk.
    Choices,
    /// A root under which text is found.
    TextRoot,
    /// A root that wraps the answer itself: `response`, `message`.
    Wrapper,
    /// A string here is generated text.
    Text,
    /// Everything inside is generated text.
    Arguments,
    FinishReason,
}

impl Key {
    pub(super) fn is_text_root(self) -> bool {
        matches!(self, Key::Choices | Key::TextRoot)
    }
}

/// The meaning of `name` in an object at `depth` (1 is the outermost) below the outermost member `root`.
pub(super) fn meaning(name: &[u8], depth: usize, root: Key) -> Key {
    if depth == 1 {
        return match name {
            b"usage" | b"usageMetadata" => Key::Usage,
            b"model" | b"modelVersion" => Key::Model,
            b"type" => Key::Type,
            b"error" => Key::Error,
            b"service_tier" => Key::Tier,
            b"choices" => Key::Choices,
            b"delta" | b"content" | b"content_block" | b"output" | b"candidates" => Key::TextRoot,
            b"response" | b"message" => Key::Wrapper,
            _ => Key::Other,
        };
    }
    if root == Key::Wrapper {
        return match name {
            b"usage" if depth == 2 => Key::Usage,
            b"model" if depth == 2 => Key::Model,
            b"service_tier" if depth == 2 => Key::Tier,
            b"error" if depth == 2 => Key::Error,
            _ => Key::Other,
        };
    }
    match name {
        b"content" | b"text" | b"partial_json" | b"thinking" | b"reasoning_content" | b"reasoning" | b"refusal" => {
            Key::Text
        }
        b"arguments" | b"input" => Key::Arguments,
        b"finish_reason" if root == Key::Choices && depth == 3 => Key::FinishReason,
        // Some servers report inside the choice instead of beside it.
        b"usage" if root == Key::Choices && depth == 3 => Key::Usage,
        _ => Key::Other,
    }
}

/// Stream events that end an answer or break it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum EventKind {
    #[default]
    Other,
    /// `message_stop`, `response.completed`, `response.incomplete`.
    End,
    /// `response.failed`: an end that is an error.
    Failed,
    Error,
}

impl EventKind {
    pub(super) fn of(name: &[u8]) -> EventKind {
        match name {
            b"message_stop" | b"response.completed" | b"response.incomplete" => EventKind::End,
            b"response.failed" => EventKind::Failed,
            b"error" => EventKind::Error,
            _ => EventKind::Other,
        }
    }
}

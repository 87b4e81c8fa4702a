//! How much prompt a request carries: bytes of text, and how many pictures.
//!
//! The sum feeds an estimate (bytes ÷ 4), so it follows one simple rule rather than each provider's schema: under
//! the prompt members every string counts, except what is plainly not text (roles, ids, types, links) and payloads in
//! base64, which would make a 2 MB picture look like 600,000 tokens. An unknown member counts: text hidden under a
//! new name would otherwise be free. Tool definitions count whole, names included, because the model reads them.

/// Tokens given as numbers (`"prompt": [1212, 318]`) count as many bytes as the estimate divides by.
pub(super) const BYTES_PER_TOKEN: u64 = 4;
/// No key and no type that means anything here is longer.
pub(super) const NAME_BYTES_MAX: usize = 32;
/// So much of a payload tells whether it is text.
pub(super) const LOOKED_AT: usize = 64;

/// What the string under a key of the prompt is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Under {
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

impl Under {
    pub(super) fn key(key: &[u8]) -> Under {
        match key {
            b"type" => Under::Type,
            b"role" | b"id" | b"object" | b"status" | b"index" | b"tool_call_id" | b"tool_use_id" | b"call_id"
            | b"item_id" | b"cache_control" | b"detail" | b"format" | b"media_type" | b"mime_type" | b"mimeType"
            | b"signature" | b"encrypted_content" | b"file_id" | b"phase" => Under::Label,
            b"image_url" | b"inlineData" | b"inline_data" => Under::ImageLink,
            b"url" | b"uri" | b"file_url" | b"fileUri" => Under::Link,
            b"data" | b"file_data" | b"b64_json" | b"bytes" => Under::Payload,
            _ => Under::Text,
        }
    }
}

pub(super) fn is_image_type(kind: &[u8]) -> bool {
    matches!(kind, b"image_url" | b"input_image" | b"image" | b"computer_screenshot")
}

/// Whether a payload that begins so, and is so long, looks like base64 (or a data URL): 64 characters without a space
/// are no prose in most scripts.
pub(super) fn is_base64(begin: &[u8], length: usize) -> bool {
    begin.starts_with(b"data:")
        || (length >= LOOKED_AT
            && begin.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/' | b'-' | b'_' | b'=')))
}

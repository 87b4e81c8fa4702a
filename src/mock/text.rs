//! The words of a mock answer and the counting of tokens. One word is one token; a prompt has one token per
//! four bytes. Called by `openai` and `anthropic`.

use serde_json::Value;

const WORDS: [&str; 12] =
    ["This", "answer", "comes", "from", "the", "built-in", "mock,", "which", "costs", "nothing", "and", "repeats:"];

/// `count` words, each but the first with its leading space, so that joining them gives the text.
pub fn words(count: u32) -> impl Iterator<Item = String> {
    WORDS.iter().cycle().take(count as usize).enumerate().map(|(at, word)| match at {
        0 => (*word).to_owned(),
        _ => format!(" {word}"),
    })
}

/// The words in `pieces` parts of nearly equal length, none of them empty.
pub fn pieces(count: u32, pieces: u32) -> Vec<String> {
    let pieces = pieces.clamp(1, count.max(1));
    let mut parts = vec![String::new(); pieces as usize];
    for (at, word) in words(count).enumerate() {
        // at < count <= u32::MAX, so the product stays inside u64
        let part = at as u64 * u64::from(pieces) / u64::from(count);
        parts[part as usize].push_str(&word);
    }
    parts
}

/// Tokens of everything textual under a JSON value: strings count their bytes, objects and arrays their parts.
pub fn prompt_tokens(prompt: &Value) -> u64 {
    fn bytes(value: &Value) -> u64 {
        match value {
            Value::String(text) => text.len() as u64,
            Value::Array(items) => items.iter().map(bytes).sum(),
            Value::Object(members) => members.iter().filter(|(name, _)| *name != "role").map(|(_, v)| bytes(v)).sum(),
            _ => 0,
        }
    }
    (bytes(prompt) / 4).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn pieces_join_to_the_whole_text() {
        let whole: String = words(40).collect();
        for count in [1, 3, 7, 40, 400] {
            assert_eq!(pieces(40, count).concat(), whole, "in {count} pieces");
        }
        assert_eq!(pieces(40, 3).len(), 3);
        assert_eq!(pieces(40, 400).len(), 40, "no piece is empty");
        assert_eq!(pieces(0, 5), [""]);
    }

    #[test]
    fn a_prompt_has_a_token_per_four_bytes() {
        assert_eq!(prompt_tokens(&json!("12345678")), 2);
        assert_eq!(prompt_tokens(&json!([{"role": "user", "content": [{"text": "12345678"}]}])), 2);
        assert_eq!(prompt_tokens(&json!(null)), 1, "even an empty prompt is one token");
    }
}

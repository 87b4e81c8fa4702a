//! The request bodies the cases name.

use serde_json::{Value, json};

/// 31 bytes, so 7 tokens by the four-bytes rule.
pub const QUESTION: &str = "What is the capital of Iceland?";

/// CHAT: `POST /v1/chat/completions`.
pub fn chat(model: &str) -> Value {
    json!({"model": model, "messages": [{"role": "user", "content": "hi"}]})
}

/// CHAT with a prompt that has tokens to count.
pub fn question(model: &str) -> Value {
    json!({"model": model, "messages": [{"role": "user", "content": QUESTION}]})
}

/// CHAT-S.
pub fn chat_stream(model: &str) -> Value {
    with(chat(model), "stream", json!(true))
}

/// MSG: `POST /v1/messages`.
pub fn message(model: &str) -> Value {
    json!({"model": model, "max_tokens": 64, "messages": [{"role": "user", "content": "hi"}]})
}

/// MSG-S.
pub fn message_stream(model: &str) -> Value {
    with(message(model), "stream", json!(true))
}

pub fn responses(model: &str) -> Value {
    json!({"model": model, "input": "hi"})
}

pub fn completion(model: &str) -> Value {
    json!({"model": model, "prompt": "hi"})
}

pub fn embedding(model: &str) -> Value {
    json!({"model": model, "input": "hi"})
}

/// The body with one more member.
pub fn with(mut body: Value, member: &str, value: Value) -> Value {
    body[member] = value;
    body
}

pub const CHAT: &str = "/v1/chat/completions";
pub const COMPLETIONS: &str = "/v1/completions";
pub const RESPONSES: &str = "/v1/responses";
pub const EMBEDDINGS: &str = "/v1/embeddings";
pub const MESSAGES: &str = "/v1/messages";
pub const COUNT_TOKENS: &str = "/v1/messages/count_tokens";

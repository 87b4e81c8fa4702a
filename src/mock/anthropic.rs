//! The shapes of Anthropic's answers: messages and token counting.
//!
//! Called by `route`. What each shape holds is what the official SDKs parse; a test runs them against it.

use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};

use super::reply::{event, json as whole, sse};
use super::route::Asked;
use super::text::{pieces, prompt_tokens, words};

pub fn error(kind: &str, message: &str) -> Value {
    json!({"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_mock"})
}

pub fn count_tokens(asked: &Asked) -> Response {
    whole(StatusCode::OK, &json!({"input_tokens": input_tokens(asked)}), asked.pace.cut)
}

pub fn message(asked: &Asked) -> Response {
    let stop_reason = if asked.capped { "max_tokens" } else { "end_turn" };
    if asked.body["stream"] != json!(true) {
        let content = json!([{"type": "text", "text": words(asked.tokens).collect::<String>()}]);
        let message = message_object(asked, content, json!(stop_reason), asked.tokens);
        return whole(StatusCode::OK, &message, asked.pace.cut);
    }
    let mut events = Vec::new();
    let mut tell = |kind: &str, mut members: Value| {
        members["type"] = json!(kind);
        events.push(event(Some(kind), &members));
    };
    // usage here is what is known before the first word; `message_delta` has the final, cumulative numbers
    tell("message_start", json!({"message": message_object(asked, json!([]), Value::Null, 1)}));
    tell("content_block_start", json!({"index": 0, "content_block": {"type": "text", "text": ""}}));
    tell("ping", json!({}));
    for piece in pieces(asked.tokens, asked.chunks) {
        tell("content_block_delta", json!({"index": 0, "delta": {"type": "text_delta", "text": piece}}));
    }
    tell("content_block_stop", json!({"index": 0}));
    let delta = json!({"stop_reason": stop_reason, "stop_sequence": null});
    tell("message_delta", json!({"delta": delta, "usage": usage(asked, asked.tokens)}));
    tell("message_stop", json!({}));
    sse(events, asked.pace)
}

fn message_object(asked: &Asked, content: Value, stop_reason: Value, output_tokens: u32) -> Value {
    json!({"id": "msg_mock", "type": "message", "role": "assistant", "model": asked.model, "content": content,
        "stop_reason": stop_reason, "stop_sequence": null, "usage": usage(asked, output_tokens)})
}

fn usage(asked: &Asked, output_tokens: u32) -> Value {
    json!({"input_tokens": input_tokens(asked), "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0,
        "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
        "output_tokens": output_tokens, "service_tier": "standard"})
}

fn input_tokens(asked: &Asked) -> u64 {
    prompt_tokens(&json!([asked.body["system"], asked.body["messages"], asked.body["tools"]]))
}

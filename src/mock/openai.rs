//! The shapes of OpenAI's answers: chat, legacy completions, Responses, embeddings, models.
//!
//! Called by `route`. What each shape holds is what the official SDKs parse; a test runs them against it.

use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};

use super::base64;
use super::reply::{event, json as whole, sse};
use super::route::Asked;
use super::text::{pieces, prompt_tokens, words};

/// A fixed instant: the mock's answers are the same on every run.
const CREATED: u64 = 1_700_000_000;
const EMBEDDING_LEN: usize = 8;

pub fn error(kind: &str, message: &str) -> Value {
    json!({"error": {"message": message, "type": kind, "param": null, "code": null}})
}

pub fn models() -> Value {
    let mock = json!({"id": "mock", "object": "model", "created": CREATED, "owned_by": "tokentriage"});
    json!({"object": "list", "data": [mock]})
}

pub fn chat(asked: &Asked) -> Response {
    let usage = usage(prompt_tokens(&asked.body["messages"]), asked.tokens);
    let finish = finish_reason(asked);
    if !streams(asked) {
        let message = json!({"role": "assistant", "content": words(asked.tokens).collect::<String>(), "refusal": null});
        let choice = json!({"index": 0, "message": message, "finish_reason": finish, "logprobs": null});
        return whole(StatusCode::OK, &completion_object(asked, "chat.completion", choice, &usage), asked.pace.cut);
    }
    let chunk = |choices: Value| completion_chunk(asked, "chat.completion.chunk", choices);
    let mut parts = vec![chunk(json!([choice(json!({"role": "assistant", "content": ""}), Value::Null)]))];
    for piece in pieces(asked.tokens, asked.chunks) {
        parts.push(chunk(json!([choice(json!({"content": piece}), Value::Null)])));
    }
    parts.push(chunk(json!([choice(json!({}), json!(finish))])));
    completion_stream(asked, parts, chunk(json!([])), usage)
}

fn choice(delta: Value, finish: Value) -> Value {
    json!({"index": 0, "delta": delta, "finish_reason": finish, "logprobs": null})
}

pub fn completion(asked: &Asked) -> Response {
    let usage = usage(prompt_tokens(&asked.body["prompt"]), asked.tokens);
    let finish = finish_reason(asked);
    let choice =
        |text: &str, finish: Value| json!({"index": 0, "text": text, "finish_reason": finish, "logprobs": null});
    if !streams(asked) {
        let choice = choice(&words(asked.tokens).collect::<String>(), json!(finish));
        return whole(StatusCode::OK, &completion_object(asked, "text_completion", choice, &usage), asked.pace.cut);
    }
    let chunk = |choices: Value| completion_chunk(asked, "text_completion", choices);
    let mut parts = Vec::new();
    for piece in pieces(asked.tokens, asked.chunks) {
        parts.push(chunk(json!([choice(&piece, Value::Null)])));
    }
    parts.push(chunk(json!([choice("", json!(finish))])));
    completion_stream(asked, parts, chunk(json!([])), usage)
}

fn completion_object(asked: &Asked, object: &str, choice: Value, usage: &Value) -> Value {
    json!({"id": "chatcmpl-mock", "object": object, "created": CREATED, "model": asked.model,
        "choices": [choice], "usage": usage, "system_fingerprint": null, "service_tier": "default"})
}

fn completion_chunk(asked: &Asked, object: &str, choices: Value) -> Value {
    json!({"id": "chatcmpl-mock", "object": object, "created": CREATED, "model": asked.model, "choices": choices,
        "system_fingerprint": null})
}

/// Usage comes only to who asked for it, in a chunk without choices just before the end; every earlier chunk
/// then says `usage: null`.
fn completion_stream(asked: &Asked, mut parts: Vec<Value>, mut last: Value, usage: Value) -> Response {
    if asked.body["stream_options"]["include_usage"] == json!(true) {
        for part in &mut parts {
            part["usage"] = Value::Null;
        }
        last["usage"] = usage;
        parts.push(last);
    }
    let mut events: Vec<String> = parts.iter().map(|part| event(None, part)).collect();
    events.push("data: [DONE]\n\n".to_owned());
    sse(events, asked.pace)
}

fn usage(prompt_tokens: u64, completion_tokens: u32) -> Value {
    json!({
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + u64::from(completion_tokens),
        "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0,
            "accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0},
    })
}

pub fn response(asked: &Asked) -> Response {
    let text: String = words(asked.tokens).collect();
    let part = json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []});
    let mut item =
        json!({"type": "message", "id": "msg_mock", "role": "assistant", "status": "completed", "content": [part]});
    let done = response_object(asked, if asked.capped { "incomplete" } else { "completed" }, json!([item]));
    if !streams(asked) {
        return whole(StatusCode::OK, &done, asked.pace.cut);
    }
    let mut story = Story::default();
    let begun = response_object(asked, "in_progress", json!([]));
    story.tell("response.created", json!({"response": begun}));
    story.tell("response.in_progress", json!({"response": begun}));
    let finished_item = item.clone();
    item["status"] = json!("in_progress");
    item["content"] = json!([]);
    story.tell("response.output_item.added", json!({"output_index": 0, "item": item}));
    let empty_part = json!({"type": "output_text", "text": "", "annotations": [], "logprobs": []});
    story.tell("response.content_part.added", in_part(json!({"part": empty_part})));
    for piece in pieces(asked.tokens, asked.chunks) {
        story.tell("response.output_text.delta", in_part(json!({"delta": piece, "logprobs": []})));
    }
    story.tell("response.output_text.done", in_part(json!({"text": text, "logprobs": []})));
    story.tell("response.content_part.done", in_part(json!({"part": part})));
    story.tell("response.output_item.done", json!({"output_index": 0, "item": finished_item}));
    story.tell(if asked.capped { "response.incomplete" } else { "response.completed" }, json!({"response": done}));
    sse(story.events, asked.pace)
}

/// The numbered events of one Responses stream.
#[derive(Default)]
struct Story {
    events: Vec<String>,
}

impl Story {
    fn tell(&mut self, kind: &str, mut members: Value) {
        members["type"] = json!(kind);
        members["sequence_number"] = json!(self.events.len());
        self.events.push(event(Some(kind), &members));
    }
}

fn in_part(mut members: Value) -> Value {
    members["item_id"] = json!("msg_mock");
    members["output_index"] = json!(0);
    members["content_index"] = json!(0);
    members
}

fn response_object(asked: &Asked, status: &str, output: Value) -> Value {
    let input_tokens = prompt_tokens(&json!([asked.body["input"], asked.body["instructions"]]));
    let usage = json!({
        "input_tokens": input_tokens,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": asked.tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": input_tokens + u64::from(asked.tokens),
    });
    let why = if status == "incomplete" { json!({"reason": "max_output_tokens"}) } else { Value::Null };
    json!({
        "id": "resp_mock", "object": "response", "created_at": CREATED, "status": status, "model": asked.model,
        "error": null, "incomplete_details": why, "instructions": asked.body["instructions"], "metadata": {},
        "output": output, "parallel_tool_calls": true, "temperature": 1.0, "top_p": 1.0,
        "tool_choice": "auto", "tools": [], "service_tier": "default",
        "usage": if status == "in_progress" { Value::Null } else { usage },
    })
}

pub fn embeddings(asked: &Asked) -> Response {
    let input = &asked.body["input"];
    let count = match input {
        // an array of numbers is one input that came as tokens
        Value::Array(items) if !items.iter().all(Value::is_number) => items.len(),
        _ => 1,
    };
    let as_base64 = asked.body["encoding_format"] == json!("base64");
    let data: Vec<Value> = (0..count)
        .map(|index| json!({"object": "embedding", "index": index, "embedding": embedding(index, as_base64)}))
        .collect();
    let tokens = prompt_tokens(input);
    let usage = json!({"prompt_tokens": tokens, "total_tokens": tokens});
    let list = json!({"object": "list", "data": data, "model": asked.model, "usage": usage});
    whole(StatusCode::OK, &list, asked.pace.cut)
}

/// A unit-like vector that differs from input to input.
fn embedding(index: usize, as_base64: bool) -> Value {
    let floats: [f32; EMBEDDING_LEN] = std::array::from_fn(|at| if at == index % EMBEDDING_LEN { 1.0 } else { 0.0 });
    match as_base64 {
        true => json!(base64::encode(&floats.map(f32::to_le_bytes).concat())),
        false => json!(floats),
    }
}

fn streams(asked: &Asked) -> bool {
    asked.body["stream"] == json!(true)
}

fn finish_reason(asked: &Asked) -> &'static str {
    if asked.capped { "length" } else { "stop" }
}

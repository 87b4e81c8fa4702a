//! Which path gets which answer, after the faults in the model's name have had their say.
//!
//! Called by `serve`; the shapes of the answers are in `openai` and `anthropic`.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderValue, StatusCode, Uri, header};
use axum::response::Response;
use axum::routing::{Router, get, post};
use serde_json::Value;

use super::MockOptions;
use super::faults::Faults;
use super::reply::{self, Pace};
use super::{anthropic, openai};

/// The two APIs spell errors differently.
#[derive(Clone, Copy, PartialEq)]
pub enum Family {
    OpenAi,
    Anthropic,
}

/// One request as an answer sees it.
pub struct Asked {
    pub body: Value,
    pub model: String,
    /// Tokens the answer has, after the request's own cap.
    pub tokens: u32,
    /// The cap cut the answer short.
    pub capped: bool,
    pub chunks: u32,
    pub pace: Pace,
}

pub fn router(options: MockOptions) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(chat_completions))
        .route("/v1/completions", post(completions))
        .route("/v1/responses", post(responses))
        .route("/v1/embeddings", post(embeddings))
        .route("/v1/models", get(models))
        .route("/v1/messages", post(messages))
        .route("/v1/messages/count_tokens", post(count_tokens))
        .fallback(unknown_path)
        .layer(DefaultBodyLimit::disable()) // prompts with pictures are larger than the framework's 2 MB
        .with_state(Arc::new(options))
}

type Options = State<Arc<MockOptions>>;

async fn chat_completions(options: Options, body: Bytes) -> Response {
    answer(options, Family::OpenAi, &body, openai::chat).await
}

async fn completions(options: Options, body: Bytes) -> Response {
    answer(options, Family::OpenAi, &body, openai::completion).await
}

async fn responses(options: Options, body: Bytes) -> Response {
    answer(options, Family::OpenAi, &body, openai::response).await
}

async fn embeddings(options: Options, body: Bytes) -> Response {
    answer(options, Family::OpenAi, &body, openai::embeddings).await
}

async fn messages(options: Options, body: Bytes) -> Response {
    answer(options, Family::Anthropic, &body, anthropic::message).await
}

async fn count_tokens(options: Options, body: Bytes) -> Response {
    answer(options, Family::Anthropic, &body, anthropic::count_tokens).await
}

async fn models() -> Response {
    reply::json(StatusCode::OK, &openai::models(), false)
}

async fn unknown_path(uri: Uri) -> Response {
    let message = format!("the mock has no {}", uri.path());
    error(family_of(uri.path()), StatusCode::NOT_FOUND, "not_found_error", &message)
}

fn family_of(path: &str) -> Family {
    if path.starts_with("/v1/messages") { Family::Anthropic } else { Family::OpenAi }
}

/// The life of one request: read the model, wait, then the fault or the reply.
async fn answer(options: Options, family: Family, body: &[u8], reply: fn(&Asked) -> Response) -> Response {
    let Ok(body @ Value::Object(_)) = serde_json::from_slice(body) else {
        return error(family, StatusCode::BAD_REQUEST, "invalid_request_error", "the body is not a JSON object");
    };
    let Some(model) = body["model"].as_str().map(str::to_owned) else {
        return error(family, StatusCode::BAD_REQUEST, "invalid_request_error", "the body names no model");
    };
    let faults = Faults::of_model(&model);
    reply::pause(faults.latency.unwrap_or(options.latency)).await;
    if let Some((status, kind)) = faults.status {
        let status = StatusCode::from_u16(status).expect("the table of faults holds valid statuses");
        return error(family, status, kind, "the model's name asked for this error");
    }
    let cap = output_cap(&body);
    let tokens = cap.map_or(options.tokens, |cap| options.tokens.min(cap));
    let pace = Pace { chunk_delay: faults.chunk_delay.unwrap_or(options.chunk_delay), cut: faults.cut };
    let chunks = options.chunks.unwrap_or(tokens);
    reply(&Asked { capped: tokens < options.tokens, body, model, tokens, chunks, pace })
}

/// The smallest cap the request names; a cap that is no whole number is ignored.
fn output_cap(body: &Value) -> Option<u32> {
    let caps = ["max_tokens", "max_completion_tokens", "max_output_tokens"].map(|name| body[name].as_u64());
    caps.into_iter().flatten().min().map(|cap| u32::try_from(cap).unwrap_or(u32::MAX))
}

fn error(family: Family, status: StatusCode, kind: &str, message: &str) -> Response {
    let body = match family {
        Family::OpenAi => openai::error(kind, message),
        Family::Anthropic => anthropic::error(kind, message),
    };
    let mut response = reply::json(status, &body, false);
    if status == StatusCode::TOO_MANY_REQUESTS {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

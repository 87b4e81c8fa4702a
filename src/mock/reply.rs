//! How an answer leaves: at once as JSON, piece by piece as server-sent events, or broken in the middle.
//!
//! Knows nothing of what the pieces say. Called by `openai` and `anthropic`.

use std::io;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde_json::Value;

/// How long to wait between the pieces of a stream, and whether to break off.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    pub chunk_delay: Duration,
    pub cut: bool,
}

/// One whole JSON answer; with `cut`, its first half and then a broken connection.
pub fn json(status: StatusCode, value: &Value, cut: bool) -> Response {
    let text = value.to_string();
    if !cut {
        return (status, [(header::CONTENT_TYPE, "application/json")], text).into_response();
    }
    let half = text.as_bytes()[..text.len() / 2].to_vec();
    let parts = stream::iter([Ok(half), Err(broken())]);
    (status, [(header::CONTENT_TYPE, "application/json")], Body::from_stream(parts)).into_response()
}

/// One server-sent event. OpenAI's chat streams have no event names, the other streams do.
pub fn event(name: Option<&str>, data: &Value) -> String {
    match name {
        Some(name) => format!("event: {name}\ndata: {data}\n\n"),
        None => format!("data: {data}\n\n"),
    }
}

/// Sends the events one by one, pausing after each of them but the last; with `cut`, only the first half of
/// them and then a broken connection, without the closing chunk that would make it look whole.
pub fn sse(events: Vec<String>, pace: Pace) -> Response {
    let kept = if pace.cut { events.len() / 2 } else { events.len() };
    let start = (events.into_iter().take(kept), Duration::ZERO, false);
    let body = Body::from_stream(stream::unfold(start, move |(mut left, pause, broke)| async move {
        tokio::time::sleep(pause).await;
        match left.next() {
            Some(event) => Some((Ok(event), (left, pace.chunk_delay, broke))),
            None if pace.cut && !broke => Some((Err(broken()), (left, Duration::ZERO, true))),
            None => None,
        }
    }));
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

fn broken() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "the model's name asked for a cut")
}

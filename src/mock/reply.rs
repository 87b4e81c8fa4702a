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

/// Waits; not at all for no time, where a timer would take its next tick, a millisecond.
pub async fn pause(time: Duration) {
    if !time.is_zero() {
        tokio::time::sleep(time).await;
    }
}

/// Sends the events one by one, pausing after each of them but the last; with `cut`, only the first half of
/// them and then a broken connection, without the closing chunk that would make it look whole.
pub fn sse(events: Vec<String>, pace: Pace) -> Response {
    let kept = if pace.cut { events.len() / 2 } else { events.len() };
    let start = (events.into_iter().take(kept), Duration::ZERO, false);
    let body = Body::from_stream(stream::unfold(start, move |(mut left, delay, broke)| async move {
        pause(delay).await;
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

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt, StreamExt};

    use super::*;

    #[tokio::test]
    async fn events_without_a_delay_go_back_to_back_and_others_wait() {
        let events = || (0..1_000).map(|number| format!("data: {number}\n\n")).collect::<Vec<_>>();
        // What is there without being waited for.
        let ready = |delay_ms| {
            let pace = Pace { chunk_delay: Duration::from_millis(delay_ms), cut: false };
            let mut body = sse(events(), pace).into_body().into_data_stream();
            std::iter::from_fn(|| body.next().now_or_never().flatten()).count()
        };
        assert_eq!((ready(0), ready(60_000)), (1_000, 1));
    }
}

//! What answers of the admin port look like: JSON, and for every fault its kind, what is wrong and what to do.
//!
//! Handlers return an [`Answer`]; nothing else writes a status. Decides no fault itself.

use axum::http::header::{CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tokio::sync::Semaphore;

/// What a handler gives back.
pub type Answer = Result<Response, Fault>;

/// A request that was not carried out.
#[derive(Debug)]
pub struct Fault {
    pub status: StatusCode,
    /// A word for programs.
    kind: &'static str,
    message: String,
    remedy: String,
    /// `WWW-Authenticate`, on a 401.
    challenge: Option<&'static str>,
}

impl Fault {
    pub fn new(status: StatusCode, kind: &'static str, message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Fault { status, kind, message: message.into(), remedy: remedy.into(), challenge: None }
    }

    /// The caller's: something in the request cannot be meant.
    pub fn bad_request(message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Fault::new(StatusCode::BAD_REQUEST, "invalid_request", message, remedy)
    }

    /// The machine's: a file could not be read or written.
    pub fn storage(message: impl ToString) -> Self {
        let remedy = "see the log; check the disk and the permissions under data_dir";
        Fault::new(StatusCode::INTERNAL_SERVER_ERROR, "storage_error", message.to_string(), remedy)
    }

    /// The caller's: a token is missing or wrong.
    pub fn unauthorized(message: &str, remedy: &str, challenge: &'static str) -> Self {
        let fault = Fault::new(StatusCode::UNAUTHORIZED, "authentication_error", message, remedy);
        Fault { challenge: Some(challenge), ..fault }
    }
}

#[derive(Serialize)]
struct Envelope<'a> {
    error: Shown<'a>,
}

#[derive(Serialize)]
struct Shown<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    message: &'a str,
    remedy: &'a str,
}

impl IntoResponse for Fault {
    fn into_response(self) -> Response {
        let error = Shown { kind: self.kind, message: &self.message, remedy: &self.remedy };
        // Three texts: nothing in here can fail to become JSON.
        let body = serde_json::to_string(&Envelope { error }).unwrap_or_default();
        let mut response = json_text(self.status, body);
        if let Some(challenge) = self.challenge {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
        }
        response
    }
}

/// 200 with this as JSON.
pub fn ok(body: &impl Serialize) -> Answer {
    with_status(StatusCode::OK, body)
}

/// Another status with this as JSON.
pub fn with_status(status: StatusCode, body: &impl Serialize) -> Answer {
    match serde_json::to_string(body) {
        Ok(text) => Ok(json_text(status, text)),
        // Text, numbers and lists only; kept as an answer so that a slip is a 500 and not a closed connection.
        Err(error) => Err(internal(error)),
    }
}

/// JSON that is text already.
pub fn json_text(status: StatusCode, text: String) -> Response {
    (status, [(CONTENT_TYPE, HeaderValue::from_static("application/json"))], text).into_response()
}

/// Reads that may take seconds and tens of megabytes, all callers together. The next one waits its turn.
static READS: Semaphore = Semaphore::const_new(4);

/// Runs a long look at the ledger or at all counters away from the control thread, a few at a time.
pub async fn reading<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Fault> {
    let _turn = READS.acquire().await.map_err(internal)?;
    blocking(work).await
}

/// Runs what waits for a disk or a network away from the control thread.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Fault> {
    tokio::task::spawn_blocking(work).await.map_err(internal)
}

/// Reads a body that must be this.
pub fn parse<'a, T: serde::Deserialize<'a>>(body: &'a [u8], shape: &str) -> Result<T, Fault> {
    serde_json::from_slice(body).map_err(|error| {
        let message = if body.is_empty() { "the body is empty".to_owned() } else { format!("the body: {error}") };
        Fault::bad_request(message, format!("send {shape}"))
    })
}

/// No such path.
pub async fn unknown_path(uri: Uri) -> Fault {
    let message = format!("there is no {}", uri.path());
    Fault::new(StatusCode::NOT_FOUND, "not_found", message, "see /tt/api/v1/openapi.json for every path")
}

/// The path exists, the method does not.
pub async fn wrong_method(method: Method, uri: Uri) -> Fault {
    let message = format!("{method} cannot be done to {}", uri.path());
    Fault::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message, "use a method of the Allow header")
}

/// Ours: a bug.
fn internal(error: impl std::fmt::Display) -> Fault {
    tracing::error!(%error, "an admin request failed inside");
    let remedy = "see the log, and report it";
    Fault::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", "the request failed inside the gateway", remedy)
}

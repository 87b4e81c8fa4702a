//! Answers of the gateway's own: errors in the caller's provider envelope, and what every answer of ours carries.
//!
//! Refusals by a limit are rendered by `shards::refusal`, since they are facts of a verdict; this file is for
//! everything that went wrong before or after one.

use shards::refusal::Family;

/// Something of ours to tell a caller instead of a provider's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The request cannot be understood.
    InvalidRequest,
    /// No usable key, and one is needed.
    Authentication,
    /// No such path.
    NotFound,
    /// Known path, wrong method.
    MethodNotAllowed,
    /// No upstream serves the model.
    ModelNotFound,
    /// A budget cannot hold for a model whose price is not known.
    ModelUnpriced,
    /// The request's body was too slow.
    RequestTimeout,
    /// The request's body is too large.
    TooLarge,
    /// The request's body is compressed: what it asks for cannot be read, so it cannot be governed.
    Encoded,
    /// No provider could be reached; nothing was sent.
    UpstreamUnreachable,
    /// The provider did not answer in time.
    UpstreamTimeout,
    /// The provider's answer was not HTTP, or ended before it began.
    UpstreamBroken,
    /// The operator's provider key is not there.
    UpstreamUnconfigured,
    /// A key was sent, and the store of keys has not told us about any yet.
    IdentityUnavailable,
    /// Too many connections.
    Overloaded,
    /// A bug of ours.
    Internal,
}

impl Fault {
    /// The HTTP status.
    pub fn status(self) -> u16 {
        match self {
            Fault::InvalidRequest | Fault::ModelUnpriced => 400,
            Fault::Authentication => 401,
            Fault::NotFound | Fault::ModelNotFound => 404,
            Fault::MethodNotAllowed => 405,
            Fault::RequestTimeout => 408,
            Fault::TooLarge => 413,
            Fault::Encoded => 415,
            Fault::Internal => 500,
            Fault::UpstreamUnreachable | Fault::UpstreamBroken => 502,
            Fault::UpstreamUnconfigured | Fault::IdentityUnavailable | Fault::Overloaded => 503,
            Fault::UpstreamTimeout => 504,
        }
    }

    /// The machine-readable word, repeated as OpenAI's `code`.
    pub fn code(self) -> &'static str {
        match self {
            Fault::InvalidRequest | Fault::TooLarge | Fault::Encoded | Fault::MethodNotAllowed => "invalid_request",
            Fault::Authentication => "authentication_error",
            Fault::NotFound => "not_found",
            Fault::ModelNotFound => "model_not_found",
            Fault::ModelUnpriced => "model_unpriced",
            Fault::RequestTimeout => "request_timeout",
            Fault::UpstreamUnreachable => "upstream_unreachable",
            Fault::UpstreamTimeout => "upstream_timeout",
            Fault::UpstreamBroken => "upstream_error",
            Fault::UpstreamUnconfigured => "upstream_unconfigured",
            Fault::IdentityUnavailable => "identity_unavailable",
            Fault::Overloaded => "overloaded",
            Fault::Internal => "internal_error",
        }
    }

    /// The vendor's own error class, so that its SDK raises the right exception.
    fn vendor_type(self, family: Family) -> &'static str {
        match (family, self.status()) {
            (Family::Anthropic, 401) => "authentication_error",
            (Family::Anthropic, 404) => "not_found_error",
            (Family::Anthropic, 413) => "request_too_large",
            (Family::Anthropic, 503) => "overloaded_error",
            (Family::Anthropic, 504) => "timeout_error",
            (Family::Anthropic, 500..) => "api_error",
            (Family::Anthropic, _) => "invalid_request_error",
            (Family::OpenAi, _) => self.code(),
        }
    }

    /// The JSON body in the caller's envelope.
    pub fn body(self, family: Family, message: &str, request_id: &str) -> Vec<u8> {
        let kind = self.vendor_type(family);
        let value = match family {
            Family::OpenAi => serde_json::json!({
                "error": { "message": message, "type": kind, "param": null, "code": self.code() }
            }),
            Family::Anthropic => serde_json::json!({
                "type": "error",
                "error": { "type": kind, "message": message, "code": self.code() },
                "request_id": request_id
            }),
        };
        value.to_string().into_bytes()
    }
}

/// Appends how every answer of ours begins; header lines of its own may follow, each ended by CRLF, and [`end`]. A body of
/// ours is JSON.
pub fn begin(out: &mut Vec<u8>, status: u16, request_id: &[u8], has_body: bool) {
    io::http1::write::status_line(out, status);
    out.extend_from_slice(b"x-tt-request-id: ");
    out.extend_from_slice(request_id);
    out.extend_from_slice(if has_body { b"\r\ncontent-type: application/json\r\n" } else { b"\r\n" });
}

/// How an answer of ours ends.
#[derive(Clone, Copy, Default)]
pub struct Ending {
    /// Answer a HEAD request: the length is told, the body is not sent.
    pub without_body: bool,
    /// Say `connection: close`.
    pub close: bool,
}

/// Appends the rest of an answer of ours.
pub fn end(out: &mut Vec<u8>, status: u16, body: &[u8], ending: Ending) {
    if ending.close {
        out.extend_from_slice(b"connection: close\r\n");
    }
    // 204 has no length (RFC 9110, 8.6).
    if status != 204 {
        io::http1::write::number_field(out, "content-length", body.len() as u64);
    }
    out.extend_from_slice(b"\r\n");
    if !ending.without_body {
        out.extend_from_slice(body);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_vendor_gets_its_own_envelope() {
        let openai: serde_json::Value =
            serde_json::from_slice(&Fault::Authentication.body(Family::OpenAi, "no", "tt_1")).unwrap();
        assert_eq!(openai["error"]["code"], "authentication_error");
        assert_eq!(openai["error"]["param"], serde_json::Value::Null);
        let anthropic: serde_json::Value =
            serde_json::from_slice(&Fault::UpstreamUnreachable.body(Family::Anthropic, "no", "tt_1")).unwrap();
        assert_eq!(anthropic["type"], "error");
        assert_eq!(anthropic["error"]["type"], "api_error");
        assert_eq!(anthropic["error"]["code"], "upstream_unreachable");
        assert_eq!(anthropic["request_id"], "tt_1");
    }
}

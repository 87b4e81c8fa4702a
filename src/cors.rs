//! Browsers: preflights are answered without a key, a charge or a row; every other answer says who may read it.
//!
//! Off unless `server.cors.allow_origins` names origins. Off, an `OPTIONS` request is still answered (204, no CORS
//! headers), and it leads nowhere.

use io::http1::{RequestHead, write};

use crate::config::Cors as CorsConfig;

/// What CORS has to say about one request.
#[derive(Default)]
pub struct Cors {
    /// The caller's origin, when the operator allowed it.
    origin: Option<String>,
    on: bool,
}

impl Cors {
    /// Looks at the request's `Origin`.
    pub fn of(config: &CorsConfig, head: &RequestHead, buf: &[u8]) -> Self {
        if config.allow_origins.is_empty() {
            return Cors::default();
        }
        let origin = head.fields.get(buf, "origin").and_then(|origin| std::str::from_utf8(origin).ok());
        let allowed =
            origin.filter(|origin| config.allow_origins.iter().any(|allowed| allowed == "*" || allowed == origin));
        Cors { origin: allowed.map(str::to_owned), on: true }
    }

    /// Whether the upstream's own CORS headers must give way to ours.
    pub fn is_on(&self) -> bool {
        self.on
    }

    /// Header lines for any answer.
    pub fn append_to(&self, out: &mut Vec<u8>) {
        if let Some(origin) = &self.origin {
            write::field(out, "access-control-allow-origin", origin.as_bytes());
            out.extend_from_slice(
                b"access-control-expose-headers: x-tt-request-id, x-tt-refusal-type, x-tt-refused-by, \
                  x-tt-coordination, x-should-retry, retry-after, retry-after-ms, ratelimit, ratelimit-policy\r\n",
            );
        }
        if self.on {
            out.extend_from_slice(b"vary: origin\r\n");
        }
    }

    /// Header lines of the answer to `OPTIONS`, beside those of [`Cors::append_to`].
    pub fn preflight(&self) -> Vec<u8> {
        let mut out = b"allow: GET, HEAD, POST, OPTIONS\r\n".to_vec();
        if self.origin.is_some() {
            out.extend_from_slice(
                b"access-control-allow-methods: GET, HEAD, POST, OPTIONS\r\n\
                  access-control-allow-headers: authorization, content-type, x-api-key, x-tt-key, anthropic-version, \
                  anthropic-beta, openai-organization, openai-project, traceparent, x-stainless-arch, \
                  x-stainless-lang, x-stainless-os, x-stainless-package-version, x-stainless-retry-count, \
                  x-stainless-runtime, x-stainless-runtime-version, x-stainless-timeout\r\n\
                  access-control-max-age: 600\r\n",
            );
        }
        out
    }
}

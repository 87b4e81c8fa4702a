//! The API in words for machines: `openapi.json` beside this file, with the version of this binary.

use std::sync::LazyLock;

use axum::http::StatusCode;
use serde_json::Value;

use super::answer::{Answer, json_text};

/// The document; a test reads it, so it is JSON.
const DOCUMENT: &str = include_str!("openapi.json");

static SERVED: LazyLock<String> = LazyLock::new(|| {
    let mut document: Value = serde_json::from_str(DOCUMENT).unwrap_or_default();
    document["info"]["version"] = env!("CARGO_PKG_VERSION").into();
    document.to_string()
});

pub async fn document() -> Answer {
    Ok(json_text(StatusCode::OK, SERVED.clone()))
}

#[cfg(test)]
mod tests;

//! Limits and prices written back in the shape of the file, digit for digit.
//!
//! A helper of `types`: the entries of `governance.limits` belong to the pure crate, which knows no file format, and
//! decimals must not pass through a float on their way out either.

use serde::{Serialize, Serializer};
use serde_json::value::RawValue;
use shards::limit::LimitDecl;

pub fn limits<S: Serializer>(limits: &[LimitDecl], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(limits.iter().map(LimitView::of))
}

/// A number as it was written.
pub fn decimal<S: Serializer>(text: &str, serializer: S) -> Result<S::Ok, S::Error> {
    Exact(text).serialize(serializer)
}

struct Exact<'a>(&'a str);

impl Serialize for Exact<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match (RawValue::from_string(self.0.to_owned()), self.0.parse::<f64>()) {
            (Ok(raw), Ok(_)) => raw.serialize(serializer),
            // `.5` and `012` are numbers to YAML and not to JSON.
            (Err(_), Ok(value)) if value.is_finite() => serializer.serialize_f64(value),
            _ => serializer.serialize_str(self.0),
        }
    }
}

#[derive(Serialize)]
struct LimitView<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    attach: Option<AttachView<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    r#match: Option<MatchView<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    r#type: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    amount_usd: Option<Exact<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    amount: Option<Exact<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    period: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    algorithm: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    burst: Option<Exact<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    store: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    posture: Option<PostureView<'a>>,
}

#[derive(Serialize)]
struct AttachView<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    level: Option<&'a str>,
}

#[derive(Serialize)]
struct MatchView<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<&'a [String]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    upstream: Option<&'a [String]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    endpoint: Option<&'a [String]>,
}

#[derive(Serialize)]
struct PostureView<'a> {
    mode: &'a str,
}

impl<'a> LimitView<'a> {
    fn of(limit: &'a LimitDecl) -> Self {
        Self {
            id: limit.id.as_deref(),
            attach: limit
                .attach
                .as_ref()
                .map(|attach| AttachView { node: attach.node.as_deref(), level: attach.level.as_deref() }),
            r#match: limit.match_.as_ref().map(|matches| MatchView {
                model: matches.model.as_deref(),
                upstream: matches.upstream.as_deref(),
                endpoint: matches.endpoint.as_deref(),
            }),
            r#type: limit.kind.as_deref(),
            amount_usd: limit.amount_usd.as_deref().map(Exact),
            amount: limit.amount.as_deref().map(Exact),
            period: limit.period.as_deref(),
            algorithm: limit.algorithm.as_deref(),
            burst: limit.burst.as_deref().map(Exact),
            store: limit.store.as_deref(),
            posture: limit.posture.as_deref().map(|mode| PostureView { mode }),
        }
    }
}

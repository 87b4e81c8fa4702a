//! `GET /tt/v1/me`: what the limits of a key say right now.

use serde_json::Value;

pub struct Me(pub Value);

/// One limit that applies to the key.
pub struct Applied(pub Value);

impl Me {
    pub fn limits(&self) -> Vec<Applied> {
        self.0["limits"].as_array().cloned().unwrap_or_default().into_iter().map(Applied).collect()
    }

    #[track_caller]
    pub fn limit(&self, id: &str) -> Applied {
        let found = self.limits().into_iter().find(|limit| limit.0["id"] == id);
        found.unwrap_or_else(|| panic!("no limit `{id}` in {}", self.0))
    }
}

impl Applied {
    pub fn kind(&self) -> &str {
        self.0["type"].as_str().unwrap_or_default()
    }

    /// Spent so far in this period: USD, tokens or requests.
    #[track_caller]
    pub fn used(&self) -> f64 {
        self.number("used")
    }

    /// Nano-USD spent so far, for a budget.
    #[track_caller]
    pub fn used_nanousd(&self) -> u64 {
        (self.used() * 1e9).round() as u64
    }

    /// What a rate has left right now.
    #[track_caller]
    pub fn remaining(&self) -> f64 {
        self.number("remaining")
    }

    /// The limit as enforced now.
    #[track_caller]
    pub fn amount(&self) -> f64 {
        self.number("limit")
    }

    /// Requests in flight, for `concurrency`.
    #[track_caller]
    pub fn live(&self) -> u64 {
        self.number("live") as u64
    }

    #[track_caller]
    fn number(&self, member: &str) -> f64 {
        self.0[member].as_f64().unwrap_or_else(|| panic!("no number `{member}` in {}", self.0))
    }
}

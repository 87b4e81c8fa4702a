//! The decision rows a gateway wrote, read from its segment files.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// One row; index it for fields that have no method here.
#[derive(Clone, Debug)]
pub struct Row(pub Value);

impl Row {
    pub fn request_id(&self) -> &str {
        self.0["request_id"].as_str().unwrap_or_default()
    }

    pub fn model(&self) -> &str {
        self.0["model"].as_str().unwrap_or_default()
    }

    pub fn decision(&self) -> &str {
        self.0["decision"].as_str().unwrap_or_default()
    }

    pub fn outcome(&self) -> &str {
        self.0["outcome"].as_str().unwrap_or_default()
    }

    pub fn endpoint(&self) -> &str {
        self.0["endpoint"].as_str().unwrap_or_default()
    }

    pub fn price(&self) -> &str {
        self.0["price"].as_str().unwrap_or_default()
    }

    #[track_caller]
    pub fn number(&self, field: &str) -> u64 {
        self.0[field].as_u64().unwrap_or_else(|| panic!("no number `{field}` in {}", self.0))
    }

    /// Nano-USD; `None` when the price was unknown.
    pub fn cost(&self) -> Option<u64> {
        self.0["cost_nanousd"].as_u64()
    }

    #[track_caller]
    pub fn usage(&self, field: &str) -> u64 {
        self.0["usage"][field].as_u64().unwrap_or_else(|| panic!("no number `usage.{field}` in {}", self.0))
    }

    /// `reported`, `estimated` or `none`.
    pub fn source(&self) -> &str {
        self.0["usage"]["source"].as_str().unwrap_or_default()
    }

    pub fn tokens(&self) -> u64 {
        self.usage("input") + self.usage("output")
    }

    /// Asserts reported usage: whole prompt, output, and of the prompt what was cached and written to a cache.
    #[track_caller]
    pub fn assert_reported(&self, input: u64, output: u64, cached_input: u64, cache_write: u64) {
        assert_eq!(self.source(), "reported", "{}", self.0);
        let usage = ["input", "output", "cached_input", "cache_write"].map(|field| self.usage(field));
        assert_eq!(usage, [input, output, cached_input, cache_write], "{}", self.0);
    }

    /// Asserts what a healthy OpenAI-shaped reply of the mock books.
    #[track_caller]
    pub fn assert_healthy_openai(&self) {
        self.assert_reported(100, 40, 60, 0);
        assert_eq!(self.cost(), Some(super::OPENAI_REPLY_NANOUSD), "{}", self.0);
        assert_eq!((self.decision(), self.outcome()), ("admitted", "completed"), "{}", self.0);
    }

    /// Asserts what a healthy Anthropic-shaped reply of the mock books. `usage.input` is the whole prompt for
    /// every provider: 25 + 200 + 1000.
    #[track_caller]
    pub fn assert_healthy_anthropic(&self) {
        self.assert_reported(1225, 40, 1000, 200);
        assert_eq!(self.cost(), Some(super::ANTHROPIC_REPLY_NANOUSD), "{}", self.0);
        assert_eq!((self.decision(), self.outcome()), ("admitted", "completed"), "{}", self.0);
    }

    /// Asserts that usage was estimated, and more than nothing.
    #[track_caller]
    pub fn assert_estimated(&self) {
        assert_eq!(self.source(), "estimated", "{}", self.0);
        assert!(self.tokens() > 0, "an estimate is never zero: {}", self.0);
        assert!(self.cost().is_some_and(|cost| cost > 0), "an estimate costs something: {}", self.0);
    }
}

impl std::ops::Index<&str> for Row {
    type Output = Value;
    fn index(&self, field: &str) -> &Value {
        &self.0[field]
    }
}

/// The segment files in the order of their rows.
pub fn segments(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let is_segment = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with("decisions-") && name.ends_with(".jsonl")
    };
    let mut segments: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(is_segment).collect();
    // by number: the names may or may not be padded
    segments.sort_by_key(|path| {
        let name = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        name.trim_start_matches("decisions-").parse::<u64>().unwrap_or(u64::MAX)
    });
    segments
}

/// Every whole row. A last line without its end is still being written, or was torn by a crash.
#[track_caller]
pub fn rows(dir: &Path) -> Vec<Row> {
    let mut rows = Vec::new();
    for segment in segments(dir) {
        let text = std::fs::read_to_string(&segment).unwrap_or_default();
        for line in text.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
            let row = serde_json::from_str(line);
            rows.push(Row(row.unwrap_or_else(|error| panic!("{error} in {}: {line:?}", segment.display()))));
        }
    }
    rows
}

/// How many whole rows there are.
pub fn count(dir: &Path) -> usize {
    let segments = segments(dir).into_iter().map(|path| std::fs::read(path).unwrap_or_default());
    segments.map(|text| memchr::memchr_iter(b'\n', &text).count()).sum()
}

/// Asserts that no request has two rows and that sequence numbers only rise.
#[track_caller]
pub fn assert_no_doubles(rows: &[Row]) {
    let mut ids = HashSet::new();
    let mut last_seq = None;
    for row in rows {
        assert!(ids.insert(row.request_id().to_owned()), "two rows of {}", row.request_id());
        let seq = row.number("seq");
        assert!(last_seq < Some(seq), "seq {seq} after {last_seq:?}");
        last_seq = Some(seq);
    }
}

/// What the rows cost together, in nano-USD.
pub fn cost(rows: &[Row]) -> u64 {
    rows.iter().filter_map(Row::cost).sum()
}

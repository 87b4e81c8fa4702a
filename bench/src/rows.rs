//! What the gateway's own rows say of a window: how long it took itself, by what became of the verdict in the shared store.
//!
//! The load generator sees the slowest request; only the rows tell which requests waited for the store at all.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// Reads a ledger from where it stopped the last time.
pub struct Rows {
    folder: PathBuf,
    /// Rows of each segment that were read before.
    read: BTreeMap<PathBuf, usize>,
}

#[derive(Deserialize)]
struct Row {
    overhead_us: u64,
    #[serde(default)]
    suspended_reasons: BTreeMap<String, String>,
}

/// What a store that hangs costs, and what it costs once the breaker is open: the reasons as the rows spell them.
const WAITED: &str = "redis deadline exceeded";
const OPEN: &str = "redis breaker open";

impl Rows {
    pub fn of(data_dir: &Path) -> Self {
        Self { folder: data_dir.join("ledger"), read: BTreeMap::new() }
    }

    /// Measures of the rows since the last time: the gateway's own time of requests whose verdict the store missed, and of
    /// those that met an open breaker, beyond the median of those that the store judged.
    pub fn measures(&mut self) -> BTreeMap<String, f64> {
        let (mut judged, mut waited, mut open) = (Vec::new(), Vec::new(), Vec::new());
        for row in self.fresh() {
            let mut reasons = row.suspended_reasons.values().map(String::as_str);
            match reasons.next() {
                None => judged.push(row.overhead_us),
                Some(WAITED) => waited.push(row.overhead_us),
                Some(OPEN) => open.push(row.overhead_us),
                Some(_) => {}
            }
        }
        let base_us = percentile(&mut judged, 50);
        let mut measures = BTreeMap::new();
        for (name, mut took) in [("waited", waited), ("open", open)] {
            measures.insert(format!("{name}_requests"), took.len() as f64);
            for percent in [50, 99] {
                if let (Some(base_us), Some(us)) = (base_us, percentile(&mut took, percent)) {
                    measures.insert(format!("{name}_added_p{percent}_us"), us as f64 - base_us as f64);
                }
            }
        }
        measures
    }

    fn fresh(&mut self) -> Vec<Row> {
        let segments = std::fs::read_dir(&self.folder).into_iter().flatten().flatten().map(|entry| entry.path());
        let mut fresh = Vec::new();
        for segment in segments.filter(|path| path.extension().is_some_and(|extension| extension == "jsonl")) {
            let text = std::fs::read_to_string(&segment).unwrap_or_default();
            let whole: Vec<&str> = text.split_inclusive('\n').filter(|line| line.ends_with('\n')).collect();
            let read = self.read.insert(segment, whole.len()).unwrap_or(0);
            fresh.extend(whole.iter().skip(read).filter_map(|line| serde_json::from_str::<Row>(line).ok()));
        }
        fresh
    }
}

/// `None` of nothing.
fn percentile(sorted: &mut [u64], percent: usize) -> Option<u64> {
    sorted.sort_unstable();
    sorted.get((sorted.len() * percent / 100).min(sorted.len().saturating_sub(1))).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_told_apart_by_what_became_of_their_verdict_and_read_once() {
        let folder = std::env::temp_dir().join(format!("bench-rows-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("ledger")).unwrap();
        let row = |us: u64, reason: &str| {
            let reasons = if reason.is_empty() { String::new() } else { format!("\"u\":\"{reason}\"") };
            format!("{{\"overhead_us\":{us},\"suspended_reasons\":{{{reasons}}}}}\n")
        };
        let mut text: String = [30, 32, 34].map(|us| row(us, "")).concat();
        text += &[row(5_032, WAITED), row(6_032, WAITED), row(40, OPEN), "{\"torn".to_owned()].concat();
        std::fs::write(folder.join("ledger/decisions-1.jsonl"), text).unwrap();
        let mut rows = Rows::of(&folder);
        let measures = rows.measures();
        assert_eq!((measures["waited_requests"], measures["open_requests"]), (2.0, 1.0));
        assert_eq!((measures["waited_added_p99_us"], measures["open_added_p50_us"]), (6_000.0, 8.0));
        assert_eq!(rows.measures()["waited_requests"], 0.0);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}

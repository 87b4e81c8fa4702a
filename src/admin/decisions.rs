//! `GET /tt/api/v1/decisions`: the newest rows, as they stand in the ledger.
//!
//! The accountant keeps about a thousand in memory; what is older is read from the segments backwards. One answer reads
//! a bounded part of the disk and says where it stopped, so a filter that fits nothing cannot keep a thread busy.

use std::path::Path;
use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use io::ledger_file::{Backward, LedgerError, Position, Reader, Segment, segments};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use shards::row::{Decision, RowFacts, decode_facts};
use shards::scope::Node;

use super::answer::{Answer, Fault, ok, reading};
use super::{Admin, query};

/// Rows of one answer unless `limit` says otherwise.
const ROWS: usize = 100;
const ROWS_MAX: usize = 1_000;
/// Read from the disk for one answer: about 100,000 rows.
const READ_BYTES_MAX: u64 = 64 << 20;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Params {
    limit: Option<usize>,
    /// This node and those below it.
    node: Option<String>,
    decision: Option<String>,
    /// Go on behind the row with this `seq`, towards older ones: the `next_after` of the answer before.
    after: Option<u64>,
}

/// What a row must be to be shown.
struct Wanted {
    limit: usize,
    node: Option<Node>,
    decision: Option<Decision>,
}

#[derive(Serialize)]
struct Page {
    /// Newest first.
    rows: Vec<Box<RawValue>>,
    /// Ask again with `after` set to this for older rows; null when there are none.
    next_after: Option<u64>,
}

pub async fn list(State(admin): State<Arc<Admin>>, params: Result<Query<Params>, QueryRejection>) -> Answer {
    let params = query::params(params)?;
    let wanted = wanted(&params)?;
    let page = reading(move || {
        let dir = admin.shared().rules.load().config.ledger_dir();
        newest(&admin.shared().ledger.recent(), &dir, &wanted, params.after)
    });
    ok(&page.await?.map_err(Fault::storage)?)
}

fn wanted(params: &Params) -> Result<Wanted, Fault> {
    let limit = params.limit.unwrap_or(ROWS);
    if !(1..=ROWS_MAX).contains(&limit) {
        return Err(Fault::bad_request("limit is out of range", format!("write 1 to {ROWS_MAX}")));
    }
    let decision = params.decision.as_deref().map(|word| {
        let wrong = || Fault::bad_request("decision is none of the three", "write admitted, refused or error");
        Decision::parse(word).ok_or_else(wrong)
    });
    let node = params.node.as_deref().map(query::node);
    Ok(Wanted { limit, node: node.transpose()?, decision: decision.transpose()? })
}

impl Wanted {
    fn is_met_by(&self, row: &RowFacts<'_>) -> bool {
        self.decision.is_none_or(|decision| row.decision == decision)
            && self.node.as_ref().is_none_or(|node| Node::parse(&row.node).is_ok_and(|of| of.is_within(node)))
    }
}

/// Rows found so far, on the way from the newest to the oldest.
struct Walk<'a> {
    wanted: &'a Wanted,
    rows: Vec<Box<RawValue>>,
    /// Everything from this `seq` on was looked at.
    seen_from: u64,
}

impl Walk<'_> {
    /// Looks at a line; `true` when the page is full. A line that is no row is passed over.
    fn look(&mut self, line: &[u8]) -> bool {
        let Ok(row) = decode_facts(line) else { return false };
        if row.seq < self.seen_from {
            self.seen_from = row.seq;
            if self.wanted.is_met_by(&row) {
                self.rows.extend(serde_json::from_slice::<Box<RawValue>>(line).ok());
            }
        }
        self.rows.len() >= self.wanted.limit
    }

    fn page(self, is_at_end: bool) -> Page {
        Page { rows: self.rows, next_after: (!is_at_end).then_some(self.seen_from) }
    }
}

/// `recent`: the newest lines in memory, newest first, which may be older than what is on disk by a batch.
fn newest(recent: &[String], dir: &Path, wanted: &Wanted, after: Option<u64>) -> Result<Page, LedgerError> {
    let mut walk = Walk { wanted, rows: Vec::new(), seen_from: after.unwrap_or(u64::MAX) };
    if recent.iter().any(|line| walk.look(line.as_bytes())) {
        return Ok(walk.page(false));
    }
    let mut read_bytes = 0;
    for segment in segments(dir)?.iter().rev() {
        if segment.first_seq >= walk.seen_from {
            continue;
        }
        let end = if walk.seen_from == u64::MAX { None } else { Some(begin_of(dir, segment, walk.seen_from)?) };
        let mut lines = match Backward::open(&segment.path, end) {
            Ok(lines) => lines,
            // Retention removed it since the listing, and everything older with it.
            Err(LedgerError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => break,
            Err(error) => return Err(error),
        };
        while let Some(line) = lines.next_line()? {
            if walk.look(line) || read_bytes + lines.read_bytes() > READ_BYTES_MAX {
                return Ok(walk.page(false));
            }
        }
        read_bytes += lines.read_bytes();
    }
    Ok(walk.page(true))
}

/// Where the first row with at least this `seq` begins: rows of a segment ascend, so it is found by halving.
fn begin_of(dir: &Path, segment: &Segment, seq: u64) -> Result<u64, LedgerError> {
    let (mut low, mut high) = (0, segment.bytes);
    while low < high {
        let middle = low + (high - low) / 2;
        match first_row_from(dir, segment, middle)? {
            Some((_, found)) if found < seq => low = middle + 1,
            _ => high = middle,
        }
    }
    Ok(first_row_from(dir, segment, low)?.map_or(segment.bytes, |(begin, _)| begin))
}

/// Place and `seq` of the first readable row that begins at `offset` or behind it.
fn first_row_from(dir: &Path, segment: &Segment, offset: u64) -> Result<Option<(u64, u64)>, LedgerError> {
    let place = |offset| Position { segment: segment.first_seq, offset };
    let mut lines = Reader::folder(dir, place(offset.saturating_sub(1)), Some(place(u64::MAX)))?;
    if offset > 0 {
        lines.next_line()?; // the rest of the line before, which is empty when a line begins right here
    }
    while let Some(line) = lines.next_line()? {
        if let Ok(row) = decode_facts(line.bytes) {
            return Ok(Some((line.at.offset, row.seq)));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn line(seq: u64, node: &str, decision: &str) -> String {
        format!(
            r#"{{"v":1,"seq":{seq},"ts":"2026-11-30T00:00:00.000Z","end":"2026-11-30T00:00:00.000Z","node":"{node}","endpoint":"messages","model":"m","decision":"{decision}","status":200,"forwarded":false,"usage":{{"input":0,"output":0,"cached_input":0,"cache_write":0,"reasoning":0,"source":"none"}},"cost_nanousd":null,"latency_us":1}}"#
        )
    }

    fn folder(name: &str, segments: &[&[u64]]) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("tt-decisions-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        for seqs in segments {
            let lines: String = seqs.iter().map(|seq| line(*seq, "org:acme/team:ml", "admitted") + "\n").collect();
            let first = seqs.first().unwrap();
            std::fs::write(dir.join(format!("decisions-{first:020}.jsonl")), lines).unwrap();
        }
        dir
    }

    fn seqs(page: &Page) -> Vec<u64> {
        page.rows.iter().map(|row| decode_facts(row.get().as_bytes()).unwrap().seq).collect()
    }

    fn all(limit: usize) -> Wanted {
        Wanted { limit, node: None, decision: None }
    }

    #[test]
    fn pages_walk_from_memory_into_the_segments_without_a_gap_or_a_row_twice() {
        let dir = folder("pages", &[&[1, 2, 3], &[4, 5, 6, 7], &[8, 9]]);
        let recent: Vec<String> = [9, 8, 7, 6].map(|seq| line(seq, "org:acme", "admitted")).to_vec();
        for limit in 1..=10 {
            let (mut found, mut after) = (Vec::new(), None);
            loop {
                let page = newest(&recent, &dir, &all(limit), after).unwrap();
                assert!(page.rows.len() <= limit);
                found.extend(seqs(&page));
                after = page.next_after;
                if after.is_none() {
                    break;
                }
            }
            assert_eq!(found, [9, 8, 7, 6, 5, 4, 3, 2, 1], "limit {limit}");
        }
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_page_begins_behind_any_row_also_one_that_does_not_exist() {
        let many: Vec<u64> = (1..=500).map(|index| index * 2).collect();
        let dir = folder("after", &[&many]);
        for after in [1, 2, 3, 499, 500, 501, 999, 1_000, 1_001, u64::MAX] {
            let page = newest(&[], &dir, &all(2), Some(after)).unwrap();
            let newest = (after.min(1_001) - 1) / 2 * 2;
            let expected: Vec<u64> = [newest, newest.saturating_sub(2)].into_iter().filter(|seq| *seq > 0).collect();
            assert_eq!(seqs(&page), expected, "after {after}");
        }
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn only_what_was_asked_for_is_shown() {
        let dir = folder("filter", &[&[1]]);
        let recent =
            [line(4, "org:acme/team:ml", "refused"), line(3, "org:acme", "refused"), line(2, "org:beta", "admitted")];
        let node = |text: &str| Some(Node::parse(text).unwrap());
        let ask = |wanted: Wanted| seqs(&newest(&recent, &dir, &wanted, None).unwrap());
        assert_eq!(ask(Wanted { node: node("org:acme"), ..all(9) }), [4, 3, 1]);
        assert_eq!(ask(Wanted { node: node("org:acme/team:ml"), ..all(9) }), [4, 1]);
        assert_eq!(ask(Wanted { decision: Some(Decision::Refused), ..all(9) }), [4, 3]);
        assert_eq!(ask(Wanted { decision: Some(Decision::Error), ..all(9) }), [] as [u64; 0]);
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_damaged_line_hides_nothing_but_itself() {
        let dir = folder("damaged", &[&[1, 2, 3]]);
        let path = dir.join("decisions-00000000000000000001.jsonl");
        let text = std::fs::read_to_string(&path).unwrap();
        let mut lines: Vec<&str> = text.lines().collect();
        lines[1] = "\u{0}garbage";
        std::fs::write(&path, lines.join("\n") + "\n{\"v\":1,\"seq\":4").unwrap();
        assert_eq!(seqs(&newest(&[], &dir, &all(9), None).unwrap()), [3, 1]);
        assert_eq!(seqs(&newest(&[], &dir, &all(9), Some(3)).unwrap()), [1]);
        std::fs::remove_dir_all(dir).unwrap();
    }
}

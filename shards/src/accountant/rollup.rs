//! Rollup: what happened per hour and scope, small enough that a query need not read rows.
//!
//! One per segment: grown in memory while the segment is open, written beside it when it closes. Holds sums only;
//! it can always be rebuilt from its segment's rows. Hours are those of the rows' `end`, so they add up to any
//! calendar period exactly. Read by [`super::Query`], and by [`super::Folder`] for a limit that was added later.

mod file;
mod totals;

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;

use foldhash::fast::RandomState;
use smallvec::SmallVec;

use super::period::HOUR_MS;
use crate::row::RowFacts;
use crate::scope::{Endpoint, Node, NodeError};
use crate::units::WallMs;

pub use file::RollupError;
pub use totals::Totals;

/// Scopes of one segment that get their model's own name whatever happens. Beyond it, refused rows are filed under
/// [`OTHER_MODEL`]: callers choose model names, and a refusal costs them nothing. Rows that reached an upstream
/// always keep theirs. 65,536 × about 250 B = 16 MB.
const SCOPES_MAX: usize = 65_536;

/// Stands for the models of refused rows that came after too many others.
pub const OTHER_MODEL: &str = "__other";

/// What rows of one cell have in common, beside the hour. A rollup that was read back holds each text once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scope {
    pub node: Node,
    pub key_id: Option<Arc<str>>,
    pub model: Arc<str>,
    pub upstream: Option<Arc<str>>,
    pub endpoint: Endpoint,
}

/// One hour of one scope.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cell {
    /// Hours since the Unix epoch.
    hour: i64,
    scope: u32,
    pub totals: Totals,
    /// `(limit, how many rows it refused)`; the limit is an index into the rollup's ids.
    refused_by: SmallVec<[(u32, u64); 1]>,
}

impl Cell {
    /// When the hour began.
    pub fn start(&self) -> WallMs {
        WallMs(self.hour.saturating_mul(HOUR_MS))
    }

    /// Index of the scope in [`Rollup::scopes`].
    pub fn scope(&self) -> usize {
        self.scope as usize
    }
}

/// The sums of one segment.
#[derive(Debug, Default)]
pub struct Rollup {
    /// Sequence number of the first row; 0 when there is none.
    first_seq: u64,
    last_seq: u64,
    scopes: Vec<Scope>,
    cells: Vec<Cell>,
    limit_ids: Vec<Box<str>>,
    /// Where a scope's newest cell is: rows of one scope nearly always fall into the same hour as the one before.
    newest: Vec<u32>,
    /// By [`scope_hash`]; of two scopes with one hash the later stands under the next number that is free.
    scope_by_hash: HashMap<u64, u32, RandomState>,
    cell_by_key: HashMap<(u32, i64), u32>,
}

impl Rollup {
    /// Adds a row and returns the index of its scope. `Err`, and nothing is added, when its node is none.
    pub fn add(&mut self, row: &RowFacts<'_>) -> Result<usize, NodeError> {
        let scope = self.scope_of(row)?;
        let hour = row.end.0.div_euclid(HOUR_MS);
        let at = self.cell_of(scope, hour);
        self.cells[at].totals.add(&Totals::of(row));
        if let Some(limit_id) = &row.refused_by {
            let limit = index_of(&mut self.limit_ids, limit_id);
            let refused_by = &mut self.cells[at].refused_by;
            match refused_by.iter_mut().find(|(known, _)| *known == limit) {
                Some((_, rows)) => *rows += 1,
                None => refused_by.push((limit, 1)),
            }
        }
        if self.first_seq == 0 {
            self.first_seq = row.seq;
        }
        self.last_seq = row.seq;
        Ok(scope as usize)
    }

    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    pub fn scopes(&self) -> &[Scope] {
        &self.scopes
    }

    /// Every hour of every scope, in no particular order.
    pub fn cells(&self) -> &[Cell] {
        &self.cells
    }

    /// Which limits refused rows of a cell, and how many.
    pub fn refused_by<'a>(&'a self, cell: &'a Cell) -> impl Iterator<Item = (&'a str, u64)> {
        cell.refused_by.iter().filter_map(|(limit, rows)| Some((&**self.limit_ids.get(*limit as usize)?, *rows)))
    }

    /// Sequence numbers of the first and last row; `None` before the first.
    pub fn seqs(&self) -> Option<(u64, u64)> {
        (self.first_seq > 0).then_some((self.first_seq, self.last_seq))
    }

    fn scope_of(&mut self, row: &RowFacts<'_>) -> Result<u32, NodeError> {
        let crowded = self.scopes.len() >= SCOPES_MAX && !row.forwarded;
        let model = if crowded { OTHER_MODEL } else { &row.model };
        let mut hash = scope_hash(self.scope_by_hash.hasher(), row, model);
        while let Some(&scope) = self.scope_by_hash.get(&hash) {
            if self.scopes[scope as usize].is_of(row, model) {
                return Ok(scope);
            }
            hash = hash.wrapping_add(1);
        }
        let scope = Scope {
            node: Node::parse(&row.node)?,
            key_id: row.key_id.as_deref().map(Arc::from),
            model: model.into(),
            upstream: row.upstream.as_deref().map(Arc::from),
            endpoint: row.endpoint,
        };
        let index = self.scopes.len() as u32; // a segment has fewer rows than 2^32
        self.scopes.push(scope);
        self.newest.push(u32::MAX);
        self.scope_by_hash.insert(hash, index);
        Ok(index)
    }

    fn cell_of(&mut self, scope: u32, hour: i64) -> usize {
        let newest = self.newest[scope as usize];
        if self.cells.get(newest as usize).is_some_and(|cell| cell.hour == hour) {
            return newest as usize;
        }
        let fresh = self.cells.len() as u32; // as above
        let at = *self.cell_by_key.entry((scope, hour)).or_insert(fresh);
        if at == fresh {
            self.cells.push(Cell { hour, scope, totals: Totals::default(), refused_by: SmallVec::new() });
        }
        self.newest[scope as usize] = at;
        at as usize
    }
}

/// One number for a scope, seeded per process: callers choose model names.
fn scope_hash(hasher: &RandomState, row: &RowFacts<'_>, model: &str) -> u64 {
    let mut hasher = hasher.build_hasher();
    hasher.write_u8(row.endpoint as u8);
    for text in [Some(&*row.node), row.key_id.as_deref(), Some(model), row.upstream.as_deref()] {
        // The length keeps two texts apart, and an absent one from an empty one.
        hasher.write_usize(text.map_or(usize::MAX, str::len));
        hasher.write(text.unwrap_or_default().as_bytes());
    }
    hasher.finish()
}

impl Scope {
    fn is_of(&self, row: &RowFacts<'_>, model: &str) -> bool {
        self.endpoint == row.endpoint
            && self.node.as_str() == row.node
            && self.key_id.as_deref() == row.key_id.as_deref()
            && &*self.model == model
            && self.upstream.as_deref() == row.upstream.as_deref()
    }
}

fn index_of(ids: &mut Vec<Box<str>>, id: &str) -> u32 {
    let known = ids.iter().position(|known| &**known == id);
    known.unwrap_or_else(|| {
        ids.push(id.into());
        ids.len() - 1
    }) as u32 // ids are those of configured limits
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::row::{Decision, Outcome};
    use crate::units::NanoUsd;
    use crate::usage::Usage;
    use std::borrow::Cow;

    /// A forwarded row: 100 tokens in, 40 out, 446,000 nano-USD.
    pub(in crate::accountant) fn row(seq: u64, end_ms: i64, node: &str, model: &str) -> RowFacts<'static> {
        RowFacts {
            seq,
            end: WallMs(end_ms),
            node: Cow::Owned(node.to_owned()),
            key_id: Some(Cow::Borrowed("k1")),
            endpoint: Endpoint::ChatCompletions,
            model: Cow::Owned(model.to_owned()),
            upstream: Some(Cow::Borrowed("up")),
            decision: Decision::Admitted,
            outcome: Some(Outcome::Completed),
            refused_by: None,
            forwarded: true,
            usage: Usage { input: 100, output: 40, cached_input: 60, ..Usage::default() },
            cost: Some(NanoUsd(446_000)),
            latency_us: 1_000,
        }
    }

    pub(in crate::accountant) fn refused(seq: u64, end_ms: i64, node: &str, limit: &str) -> RowFacts<'static> {
        RowFacts {
            decision: Decision::Refused,
            outcome: None,
            refused_by: Some(Cow::Owned(limit.to_owned())),
            upstream: None,
            forwarded: false,
            usage: Usage::default(),
            cost: None,
            ..row(seq, end_ms, node, "")
        }
    }

    #[test]
    fn rows_of_one_hour_and_scope_share_a_cell() {
        let mut rollup = Rollup::default();
        assert_eq!((rollup.seqs(), rollup.is_empty()), (None, true));
        assert_eq!(rollup.add(&row(5, 0, "org:a", "m")), Ok(0));
        assert_eq!(rollup.add(&row(6, HOUR_MS - 1, "org:a", "m")), Ok(0));
        assert_eq!(rollup.add(&row(7, HOUR_MS, "org:a", "m")), Ok(0));
        assert_eq!(rollup.add(&row(8, 0, "org:a", "n")), Ok(1));
        assert_eq!(rollup.add(&row(9, 1, "org:a", "m")), Ok(0), "a row that comes late finds its old hour");
        let cells: Vec<_> = rollup.cells().iter().map(|cell| (cell.start().0, cell.scope(), cell.totals)).collect();
        let one = Totals {
            requests: 1,
            forwarded: 1,
            input_tokens: 100,
            output_tokens: 40,
            cached_input_tokens: 60,
            cost_nanousd: 446_000,
            latency_us: 1_000,
            ..Totals::default()
        };
        let mut three = one;
        three.add(&one);
        three.add(&one);
        assert_eq!(cells, [(0, 0, three), (HOUR_MS, 0, one), (0, 1, one)]);
        assert_eq!((three.cost_nanousd, three.input_tokens, rollup.seqs()), (1_338_000, 300, Some((5, 9))));
    }

    #[test]
    fn scopes_differ_in_every_field_and_none_is_not_empty() {
        let base = row(1, 0, "org:a", "m");
        let mut rollup = Rollup::default();
        let others = [
            RowFacts { key_id: None, ..base.clone() },
            RowFacts { key_id: Some("".into()), ..base.clone() },
            RowFacts { upstream: None, ..base.clone() },
            RowFacts { upstream: Some("".into()), ..base.clone() },
            RowFacts { endpoint: Endpoint::Messages, ..base.clone() },
            RowFacts { key_id: Some("k1m".into()), model: "".into(), ..base.clone() },
        ];
        for (row, scope) in std::iter::once(&base).chain(&others).zip(0..) {
            assert_eq!(rollup.add(row), Ok(scope));
        }
    }

    #[test]
    fn an_error_is_every_row_that_failed_but_no_refusal_and_no_caller_that_left() {
        let errors = |decision, outcome| {
            let mut rollup = Rollup::default();
            rollup.add(&RowFacts { decision, outcome, ..row(1, 0, "org:a", "m") }).unwrap();
            rollup.cells()[0].totals.errors
        };
        for (outcome, counts) in [
            (Outcome::Completed, 0),
            (Outcome::ClientGone, 0),
            (Outcome::UpstreamCut, 1),
            (Outcome::UpstreamError, 1),
            (Outcome::Timeout, 1),
        ] {
            assert_eq!(errors(Decision::Admitted, Some(outcome)), counts, "{outcome:?}");
            assert_eq!(errors(Decision::Error, Some(outcome)), counts, "{outcome:?}: however far it had come");
        }
        assert_eq!(errors(Decision::Error, None), 1, "a body that is no JSON, a model nobody serves");
        assert_eq!((errors(Decision::Refused, None), errors(Decision::Admitted, None)), (0, 0));
    }

    #[test]
    fn refusals_are_counted_by_limit() {
        let mut rollup = Rollup::default();
        for (seq, limit) in [(1, "rpm"), (2, "usd"), (3, "rpm")] {
            rollup.add(&refused(seq, 0, "org:a", limit)).unwrap();
        }
        let cell = &rollup.cells()[0];
        assert_eq!(rollup.refused_by(cell).collect::<Vec<_>>(), [("rpm", 2), ("usd", 1)]);
        assert_eq!((cell.totals.requests, cell.totals.refusals, cell.totals.unpriced), (3, 3, 0));
    }

    #[test]
    fn model_names_of_refused_rows_cannot_fill_the_memory() {
        let mut rollup = Rollup::default();
        for seq in 0..SCOPES_MAX as u64 + 50 {
            let name = format!("invented-{seq}");
            rollup.add(&RowFacts { model: name.into(), ..refused(seq, 0, "org:a", "rpm") }).unwrap();
        }
        assert_eq!(rollup.scopes().len(), SCOPES_MAX + 1);
        assert_eq!(&*rollup.scopes()[SCOPES_MAX].model, OTHER_MODEL);
        // What was paid for keeps its name.
        let paid = rollup.add(&row(1 << 40, 0, "org:a", "real")).unwrap();
        assert_eq!(&*rollup.scopes()[paid].model, "real");
    }

    #[test]
    fn rollup_file_holds_all_of_it_and_a_damaged_one_is_an_error() {
        let mut rollup = Rollup::default();
        rollup.add(&row(1, 0, "__global", "m\"\n\u{1f30d}")).unwrap();
        rollup.add(&refused(2, -HOUR_MS, "org:a/team:b", "rpm")).unwrap();
        rollup.add(&RowFacts { cost: None, ..row(3, 5 * HOUR_MS, "__global", "m\"\n\u{1f30d}") }).unwrap();
        let bytes = rollup.encode();
        let read = Rollup::decode(&bytes).unwrap();
        assert_eq!((read.scopes(), read.cells(), read.seqs()), (rollup.scopes(), rollup.cells(), rollup.seqs()));
        assert_eq!(read.refused_by(&read.cells()[1]).collect::<Vec<_>>(), [("rpm", 1)]);
        assert_eq!(read.encode(), bytes);

        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            assert!(Rollup::decode(&damaged).is_err(), "byte {at}");
            assert!(Rollup::decode(&bytes[..at]).is_err(), "cut at {at}");
        }
        let newer = [b"ttr\x09", &bytes[4..]].concat();
        assert_eq!(Rollup::decode(&newer).unwrap_err().to_string(), "rollup format 9 is not known to this version");
    }

    #[test]
    fn rollup_file_of_the_first_format_is_still_read() {
        let text = r#"{"v":1,"first_seq":1,"last_seq":3,"limits":["rpm"],"scopes":[["__global","k1","m\"\n\ud83c\udf0d","up","chat.completions"],["org:a/team:b","k1","",null,"chat.completions"]],"cells":[[0,0,[1,0,0,1,100,40,60,0,0,446000,0,1000],[]],[-1,1,[1,1,0,0,0,0,0,0,0,0,0,1000],[[0,1]]]]}"#;
        let read = Rollup::decode(text.as_bytes()).unwrap();
        let mut same = Rollup::default();
        same.add(&row(1, 0, "__global", "m\"\n\u{1f30d}")).unwrap();
        same.add(&refused(3, -HOUR_MS, "org:a/team:b", "rpm")).unwrap();
        assert_eq!((read.scopes(), read.cells(), read.seqs()), (same.scopes(), same.cells(), same.seqs()));
        assert_eq!(read.encode(), same.encode(), "and written in the new one");

        let fails = |from: &str, to: &str| Rollup::decode(text.replace(from, to).as_bytes()).unwrap_err().to_string();
        assert_eq!(fails("\"v\":1", "\"v\":9"), "rollup format 9 is not known to this version");
        assert!(fails("org:a/team:b", "acme").starts_with("rollup names a node"));
        assert!(fails("[-1,1,", "[-1,7,").starts_with("rollup names a node"));
        assert!(Rollup::decode(&text.as_bytes()[..text.len() / 2]).is_err());
    }
}

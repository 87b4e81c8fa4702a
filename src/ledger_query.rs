//! "What was used and spent": a question put to this replica's ledger, and the answer as HTTP and the command line show
//! it.
//!
//! Closed segments answer from their rollups; the open one (and a closed one whose rollup is missing) from its rows.
//! The sums themselves are made in `shards::accountant`. Every answer says which replicas it covers: on a replica of its
//! own that is one, and one who merges several answers overwrites the coverage. Waits for the disk.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use io::ledger_file::{LedgerError, Position, Reader, Segment, read_small, rollup_path, segments};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use shards::accountant::{Answer, Group, GroupBy, Query, Rollup, Totals};
use shards::limit::LimitType;
use shards::row::decode_facts;
use shards::scope::{Glob, Node};
use shards::units::WallMs;

use crate::{me, when};

/// What can be grouped by, for messages.
pub const GROUPS: &str = "node, node:org, node:team, node:user, model, upstream, endpoint, key, limit, day, hour";
/// No more than there are different things to group by.
const GROUP_BY_MAX: usize = 8;

/// A question that makes sense.
#[derive(Clone, Debug)]
pub struct Question {
    /// As typed: the names of the parts of each group.
    group_by: Vec<String>,
    query: Query,
}

impl Question {
    /// `group_by` in the words of [`GROUPS`]; empty asks for one sum. The error names the parameter, what is wrong and
    /// what may be written.
    pub fn new(
        since: WallMs,
        until: WallMs,
        group_by: &[String],
        node: Option<&str>,
        model: Option<&str>,
    ) -> Result<Self, String> {
        if since >= until {
            return Err(format!("since: {} is not before until, which is {}", when::text(since), when::text(until)));
        }
        if group_by.len() > GROUP_BY_MAX {
            return Err(format!("group_by: at most {GROUP_BY_MAX} parts"));
        }
        let mut parts: Vec<GroupBy> = Vec::new();
        for text in group_by {
            let part = GroupBy::parse(text).ok_or_else(|| format!("group_by: `{text}` is none of {GROUPS}"))?;
            if parts.contains(&part) {
                return Err(format!("group_by: `{text}` stands there twice"));
            }
            parts.push(part);
        }
        let node = node.map(|text| Node::parse(text).map_err(|error| format!("node: it {error}"))).transpose()?;
        let model = model.map(Glob::new);
        Ok(Question { group_by: group_by.to_vec(), query: Query { since, until, group_by: parts, node, model } })
    }
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spend {
    /// The whole hours it covers.
    pub since: String,
    pub until: String,
    pub group_by: Vec<String>,
    /// In order of their names.
    pub groups: Vec<Line>,
    pub total: Sums,
    /// There were more groups than are kept apart; the rest is in the group whose names are all missing.
    pub is_truncated: bool,
    /// Lines of the ledger that could not be read and are in no sum.
    pub corrupt_rows: u64,
    #[serde(flatten)]
    pub coverage: Coverage,
}

/// One group: its name by each part of `group_by` (null: the rows have none), and its sums.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    pub by: BTreeMap<String, Option<String>>,
    #[serde(flatten)]
    pub sums: Sums,
}

/// Sums over rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sums {
    pub requests: u64,
    pub refusals: u64,
    /// Cut, failed or timed out at the provider, or answered with an error of ours. Callers who left are none.
    pub errors: u64,
    /// Rows that reached an upstream.
    pub forwarded: u64,
    pub tokens: Tokens,
    pub cost_usd: Value,
    pub cost_nanousd: u64,
    /// Forwarded rows whose price is not known and which are therefore not in the cost.
    pub unpriced: u64,
    pub latency_us_total: u64,
}

/// Tokens by kind; `cached_input` and `cache_write` are parts of `input`, `reasoning` is part of `output`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tokens {
    pub input: u64,
    pub output: u64,
    pub cached_input: u64,
    pub cache_write: u64,
    pub reasoning: u64,
}

/// Whose ledgers an answer is made of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Coverage {
    pub replicas_total: u32,
    pub replicas_answered: u32,
    /// Some replica's spend is missing from the sums, or may be.
    pub is_partial: bool,
    /// Where the list of replicas comes from.
    pub basis: String,
    /// Why replicas that nobody here has heard of may be missing; null where the list is known to be whole.
    #[serde(default)]
    pub note: Option<String>,
    pub replicas: Vec<ReplicaRead>,
}

/// One replica's part in an answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReplicaRead {
    pub id: String,
    pub state: String,
    /// The instant its answer is of; null when there is none.
    pub as_of: Option<String>,
    pub error: Option<String>,
    /// It is gone, and its ledger was read through this replica.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ledger_read_by: Option<String>,
}

impl Coverage {
    /// One replica, which answered.
    pub fn one(id: &str, state: &str, basis: &str, now: WallMs) -> Self {
        let read = ReplicaRead {
            id: id.to_owned(),
            state: state.to_owned(),
            as_of: Some(when::text(now)),
            error: None,
            ledger_read_by: None,
        };
        Coverage {
            replicas_total: 1,
            replicas_answered: 1,
            is_partial: false,
            basis: basis.to_owned(),
            note: None,
            replicas: vec![read],
        }
    }
}

impl Spend {
    /// Adds another replica's answer to the same question. The coverage stays for the caller to say.
    pub fn add(&mut self, other: Spend) {
        let mut groups: BTreeMap<Vec<Option<String>>, Line> = BTreeMap::new();
        let name =
            |line: &Line| self.group_by.iter().map(|part| line.by.get(part).cloned().flatten()).collect::<Vec<_>>();
        for line in std::mem::take(&mut self.groups).into_iter().chain(other.groups) {
            match groups.entry(name(&line)) {
                Entry::Occupied(mut known) => known.get_mut().sums.add(&line.sums),
                Entry::Vacant(free) => {
                    free.insert(line);
                }
            }
        }
        self.groups = groups.into_values().collect();
        self.total.add(&other.total);
        self.is_truncated |= other.is_truncated;
        self.corrupt_rows = self.corrupt_rows.saturating_add(other.corrupt_rows);
    }
}

impl Sums {
    /// Sums stop at the largest number instead of wrapping: a peer may say anything.
    fn add(&mut self, other: &Sums) {
        let more = |sum: &mut u64, by: u64| *sum = sum.saturating_add(by);
        more(&mut self.requests, other.requests);
        more(&mut self.refusals, other.refusals);
        more(&mut self.errors, other.errors);
        more(&mut self.forwarded, other.forwarded);
        more(&mut self.tokens.input, other.tokens.input);
        more(&mut self.tokens.output, other.tokens.output);
        more(&mut self.tokens.cached_input, other.tokens.cached_input);
        more(&mut self.tokens.cache_write, other.tokens.cache_write);
        more(&mut self.tokens.reasoning, other.tokens.reasoning);
        more(&mut self.cost_nanousd, other.cost_nanousd);
        more(&mut self.unpriced, other.unpriced);
        more(&mut self.latency_us_total, other.latency_us_total);
        self.cost_usd = me::amount(LimitType::BudgetUsd, self.cost_nanousd);
    }
}

impl From<Totals> for Sums {
    fn from(totals: Totals) -> Self {
        Sums {
            requests: totals.requests,
            refusals: totals.refusals,
            errors: totals.errors,
            forwarded: totals.forwarded,
            tokens: Tokens {
                input: totals.input_tokens,
                output: totals.output_tokens,
                cached_input: totals.cached_input_tokens,
                cache_write: totals.cache_write_tokens,
                reasoning: totals.reasoning_tokens,
            },
            cost_usd: me::amount(LimitType::BudgetUsd, totals.cost_nanousd),
            cost_nanousd: totals.cost_nanousd,
            unpriced: totals.unpriced,
            latency_us_total: totals.latency_us,
        }
    }
}

/// Rows are written in the order of their ends, so a segment covers the time from its first row to the first row of the
/// next. A clock that was wrong by less than this and was set right in between hides no row from a question.
const CLOCK_SLACK_MS: i64 = 24 * 3_600_000;

/// A ledger folder that is asked, and what was read of its open segment so far.
pub struct Ledger {
    dir: PathBuf,
    open: Mutex<Open>,
    /// When the first row of a segment ended. Never changes once it is there.
    begins: Mutex<HashMap<u64, WallMs>>,
}

/// The open segment grows at its end only: the next question reads on from where the last one stopped.
#[derive(Default)]
struct Open {
    read_to: Position,
    rollup: Rollup,
    corrupt_rows: u64,
}

impl Ledger {
    /// Reads nothing yet.
    pub fn at(dir: &Path) -> Self {
        Ledger { dir: dir.to_owned(), open: Mutex::default(), begins: Mutex::default() }
    }

    /// The answer as of the last row on disk. Memory is bounded by one segment's sums and the answer itself.
    pub fn query(&self, question: &Question, coverage: Coverage) -> Result<Spend, LedgerError> {
        let mut tally = question.query.clone().tally();
        let mut corrupt_rows = 0;
        let mut segments = segments(&self.dir)?;
        let begins = self.begins(&segments);
        let open = segments.pop();
        for (index, segment) in segments.iter().enumerate() {
            if is_outside(&question.query, &begins, index) {
                continue;
            }
            match self.kept_rollup(segment)? {
                Some(rollup) => tally.add(&rollup),
                None => {
                    let mut unkept = Open { read_to: start_of(segment), ..Open::default() };
                    unkept.read_on(&self.dir)?;
                    corrupt_rows += unkept.corrupt_rows;
                    tally.add(&unkept.rollup);
                }
            }
        }
        if let Some(segment) = open {
            let mut open = self.open.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            if open.read_to.segment != segment.first_seq {
                *open = Open { read_to: start_of(&segment), ..Open::default() };
            }
            if let Err(error) = open.read_on(&self.dir) {
                // Half of it was read: the next question begins anew.
                *open = Open::default();
                return Err(error);
            }
            corrupt_rows += open.corrupt_rows;
            tally.add(&open.rollup);
        }
        Ok(spend(question, tally.answer(), corrupt_rows, coverage))
    }

    /// When each segment begins; `None` where no row tells.
    fn begins(&self, segments: &[Segment]) -> Vec<Option<WallMs>> {
        let mut known = self.begins.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        known.retain(|first_seq, _| segments.iter().any(|segment| segment.first_seq == *first_seq));
        let begins = segments.iter().map(|segment| {
            let begin = known.get(&segment.first_seq).copied().or_else(|| first_end(&segment.path))?;
            known.insert(segment.first_seq, begin);
            Some(begin)
        });
        begins.collect()
    }

    /// `None`: missing or unreadable, which the rows make up for.
    fn kept_rollup(&self, segment: &Segment) -> Result<Option<Rollup>, LedgerError> {
        let bytes = read_small(&rollup_path(&self.dir, segment.first_seq))?;
        Ok(bytes.and_then(|bytes| Rollup::decode(&bytes).ok()))
    }
}

impl Open {
    /// Adds the rows behind `read_to`.
    fn read_on(&mut self, dir: &Path) -> Result<(), LedgerError> {
        let end = Position { segment: self.read_to.segment, offset: u64::MAX };
        let mut reader = Reader::folder(dir, self.read_to, Some(end))?;
        while let Some(line) = reader.next_line()? {
            self.read_to = line.next;
            if !decode_facts(line.bytes).is_ok_and(|row| self.rollup.add(&row).is_ok()) {
                reader.mark_corrupt();
            }
        }
        self.corrupt_rows += reader.report().corrupt;
        Ok(())
    }
}

/// Whether no row of this segment can have ended within the question's hours.
fn is_outside(query: &Query, begins: &[Option<WallMs>], index: usize) -> bool {
    let begin = begins.get(index).copied().flatten();
    let end = begins.get(index + 1..).and_then(|later| later.iter().find_map(|begin| *begin));
    let hour_ms = 3_600_000; // a question is widened to whole hours
    begin.is_some_and(|begin| begin.0.saturating_sub(CLOCK_SLACK_MS + hour_ms) > query.until.0)
        || end.is_some_and(|end| end.0.saturating_add(CLOCK_SLACK_MS + hour_ms) < query.since.0)
}

/// The end of the first readable row of a segment.
fn first_end(path: &Path) -> Option<WallMs> {
    let mut reader = Reader::file(path).ok()?;
    loop {
        let line = reader.next_line().ok()??;
        if let Ok(row) = decode_facts(line.bytes) {
            return Some(row.end);
        }
    }
}

fn start_of(segment: &Segment) -> Position {
    Position { segment: segment.first_seq, offset: 0 }
}

fn spend(question: &Question, answer: Answer, corrupt_rows: u64, coverage: Coverage) -> Spend {
    let mut total = Totals::default();
    answer.groups.iter().for_each(|group| total.add(&group.totals));
    let line = |group: Group| Line {
        by: question.group_by.iter().cloned().zip(group.by).collect(),
        sums: group.totals.into(),
    };
    Spend {
        since: me::instant(answer.since.0),
        until: me::instant(answer.until.0),
        group_by: question.group_by.clone(),
        groups: answer.groups.into_iter().map(line).collect(),
        total: total.into(),
        is_truncated: answer.is_truncated,
        corrupt_rows,
        coverage,
    }
}

#[cfg(test)]
mod tests;

//! Turns `governance.limits` into a [`LimitSet`], or into every problem there is, each once.
//!
//! `validate`, `run`, reload and `govern preview` all call this one function, so nothing is refused only at boot. Here
//! stands what concerns several limits or the rest of the file; what a single limit may be is in `rule`.

use std::collections::HashMap;
use std::sync::Arc;

use super::{LimitSet, Problem, rule};
use crate::limit::{Calendar, Limit, LimitDecl, Period};
use crate::rate::Clock0;

/// What compiling the limits needs to know of the rest of the file.
#[derive(Clone, Copy, Debug, Default)]
pub struct CompileInput<'a> {
    pub limits: &'a [LimitDecl],
    /// `shared_state.redis` is configured, with its consent.
    pub redis: bool,
    pub upstream_ids: &'a [String],
    /// Each upstream's `models` globs with their paths. Empty: globs are not checked against upstreams.
    pub upstream_model_globs: &'a [(String, String)],
    /// `ledger.retain`.
    pub retain_ms: u64,
    /// Aligns rate windows to the Unix epoch. The default will do where nothing is served.
    pub clock0: Clock0,
}

/// The outcome: warnings come with a set as well as with problems.
#[derive(Clone, Debug)]
pub struct Compiled {
    pub limits: Result<LimitSet, Vec<Problem>>,
    pub warnings: Vec<Problem>,
}

/// Collects what is wrong, in the order it is met.
#[derive(Default)]
pub(super) struct Findings {
    pub(super) problems: Vec<Problem>,
    pub(super) warnings: Vec<Problem>,
}

/// Compiles every limit, also after the first that fails.
pub fn compile(input: CompileInput<'_>) -> Compiled {
    let mut found = Findings::default();
    let mut limits: Vec<(&LimitDecl, Limit)> = Vec::with_capacity(input.limits.len());
    for decl in input.limits {
        limits.extend(rule::compile(decl, &input, &mut found).map(|limit| (decl, limit)));
    }
    unique_ids(input.limits, &limits, &mut found);
    retention(&limits, input.retain_ms, &mut found);
    all_shadow(&limits, input.limits.len(), &mut found);
    let set = LimitSet::new(limits.into_iter().map(|(_, limit)| Arc::new(limit)).collect());
    let limits = if found.problems.is_empty() { Ok(set) } else { Err(found.problems) };
    Compiled { limits, warnings: found.warnings }
}

/// One id names one limit. Two entries that are the same limit through and through are told so, because then the
/// remedy is to delete one.
fn unique_ids(decls: &[LimitDecl], compiled: &[(&LimitDecl, Limit)], found: &mut Findings) {
    let identity_of = |decl: &LimitDecl| {
        compiled.iter().find(|(of, _)| of.path == decl.path).map(|(_, limit)| limit.identity.as_str())
    };
    let mut first: HashMap<&str, &LimitDecl> = HashMap::new();
    for decl in decls {
        let Some(id) = decl.id.as_deref() else { continue };
        let Some(earlier) = first.get(id).copied() else {
            first.insert(id, decl);
            continue;
        };
        let is_same = identity_of(decl).is_some_and(|identity| identity_of(earlier) == Some(identity));
        let (message, remedy) = if is_same {
            let same = "same id, type, attach, match, algorithm and period";
            (
                format!("{id} is the same limit as {} ({same}), so both would share one counter", earlier.path),
                "remove one of the two",
            )
        } else {
            (format!("id {id} is already taken by {}", earlier.path), "give each limit an id of its own")
        };
        found.problems.push(Problem { path: format!("{}.id", decl.path), message, remedy: remedy.to_owned() });
    }
}

/// After a restart, a period's burn is rebuilt from the ledger: rows have to be kept that long.
fn retention(limits: &[(&LimitDecl, Limit)], retain_ms: u64, found: &mut Findings) {
    let calendar = |limit: &Limit| match limit.period {
        Some(Period::Calendar(calendar)) => Some(calendar),
        _ => None,
    };
    let armed = limits.iter().filter_map(|(_, limit)| Some((calendar(limit)?, limit)));
    let longest = armed.reduce(|longest, next| if next.0 > longest.0 { next } else { longest });
    let Some((period, limit)) = longest else { return };
    let needs_ms = Calendar::longest_ms(period);
    if retain_ms >= needs_ms {
        return;
    }
    let message = format!(
        "ledger.retain is {}, and limit {} counts by the {}: after a restart its burn could not be rebuilt",
        days_or_hours(retain_ms),
        limit.id,
        period.as_str(),
    );
    let remedy = format!("write retain: {} or more", days_or_hours(needs_ms));
    found.problems.push(Problem { path: "ledger.retain".to_owned(), message, remedy });
}

fn all_shadow(limits: &[(&LimitDecl, Limit)], declared: usize, found: &mut Findings) {
    let is_every_one = limits.len() == declared && limits.iter().all(|(_, limit)| !limit.is_enforcing());
    if limits.is_empty() || !is_every_one {
        return;
    }
    found.warnings.push(Problem {
        path: "governance.limits".to_owned(),
        message: "every limit is in shadow, so nothing is refused".to_owned(),
        remedy: "set posture: { mode: enforcing } on the limits that should refuse".to_owned(),
    });
}

/// As the operator would write it.
fn days_or_hours(ms: u64) -> String {
    const HOUR_MS: u64 = 3_600_000;
    if ms > 0 && ms.is_multiple_of(24 * HOUR_MS) {
        format!("{}d", ms / (24 * HOUR_MS))
    } else if ms > 0 && ms.is_multiple_of(HOUR_MS) {
        format!("{}h", ms / HOUR_MS)
    } else {
        Period::Every { ns: ms.saturating_mul(1_000_000) }.to_string()
    }
}

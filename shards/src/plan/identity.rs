//! What makes a limit the same limit after a reload: the text its live counters and its Redis key are kept under.
//!
//! Built from the compiled values, so spelling out a default, writing `60s` for `1m` or listing globs in another order
//! changes nothing. Amount, burst, store and posture are left out on purpose: changing them keeps the count.

use std::sync::Arc;

use crate::limit::{Algorithm, Attach, LimitIdentity, LimitType, Match, Period};

/// (id, type, attach, match, effective algorithm, period) on one line. This text is hashed into shared Redis keys: to
/// change its form is to start every shared counter afresh.
pub(super) fn of(
    id: &str,
    kind: LimitType,
    attach: &Attach,
    matches: &Match,
    algorithm: Algorithm,
    period: Option<Period>,
) -> LimitIdentity {
    let attach = match attach {
        Attach::Node(node) => format!("node:{node}"),
        Attach::Level(level) => format!("level:{}", level.as_str()),
    };
    let models = list(matches.model.iter().map(|glob| glob.as_str()));
    let upstreams = list(matches.upstream.iter().map(|id| &**id));
    let endpoints = list(matches.endpoint.iter().map(|endpoint| endpoint.as_str()));
    let algorithm = if kind.is_rate() { algorithm.as_str() } else { "-" };
    let period = match period {
        None => "-".to_owned(),
        Some(Period::Calendar(calendar)) => calendar.as_str().to_owned(),
        Some(Period::Every { ns }) => format!("{ns}ns"),
    };
    let kind = kind.as_str();
    LimitIdentity(Arc::from(format!("{id}|{kind}|{attach}|{models}|{upstreams}|{endpoints}|{algorithm}|{period}")))
}

/// Sorted and quoted, so that no glob can pass for two.
fn list<'a>(words: impl Iterator<Item = &'a str>) -> String {
    let mut words: Vec<&str> = words.collect();
    words.sort_unstable();
    words.dedup();
    let mut out = Vec::new();
    for word in words {
        out.push(if out.is_empty() { b'[' } else { b',' });
        crate::refusal::text::json_string(word, &mut out);
    }
    if out.is_empty() {
        return "*".to_owned();
    }
    out.push(b']');
    String::from_utf8_lossy(&out).into_owned()
}

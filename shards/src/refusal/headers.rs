//! Header lines about limits: on a refusal when to come back, on an answer what is left.
//!
//! The success headers are written on every request, so they go straight into the response buffer without `format!`.

use super::text::{go_duration, integer, rfc3339};
use super::{Family, Refusal, Wait, text, word_of};
use crate::gate::RateFact;
use crate::limit::{Limit, LimitType};
use crate::units::{Now, WallMs};

/// Structured fields hold integers of at most 15 digits.
const SF_INTEGER_MAX: u64 = 999_999_999_999_999;

/// `RateLimit` names at most this many limits.
const TIGHTEST_MAX: usize = 4;

pub(super) fn refusal(refusal: &Refusal, out: &mut Vec<u8>) {
    let seconds = refusal.wait.seconds();
    if let Some(seconds) = seconds {
        number_line("Retry-After", seconds, out);
    }
    if refusal.should_give_up() {
        out.extend_from_slice(b"x-should-retry: false\r\n");
    } else if let Wait::After { ms } = refusal.wait {
        number_line("retry-after-ms", ms.max(1), out);
    }
    let wording = &refusal.limit.wording;
    out.extend_from_slice(&wording.rate_limit);
    if let Some(seconds) = seconds {
        sf_integer(b";t=", seconds, out);
    }
    out.extend_from_slice(&wording.refused_by);
}

/// `RateLimit` of a refusal, up to the wait that it may have.
pub(super) fn rate_limit(id: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(b"RateLimit: ");
    sf_name(id, out);
    out.extend_from_slice(b";r=0");
}

/// The end of that line, and what follows it.
pub(super) fn refused_by(id: &str, kind: LimitType, out: &mut Vec<u8>) {
    out.extend_from_slice(b"\r\nx-tt-refusal-type: ");
    out.extend_from_slice(word_of(kind).as_bytes());
    out.extend_from_slice(b"\r\nx-tt-refused-by: ");
    out.extend_from_slice(id.as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Appends what a served caller is told: `RateLimit-Policy` and `RateLimit` for the four tightest rate limits, the
/// `x-ratelimit-*` of the tightest of each kind, on Anthropic paths also `anthropic-ratelimit-*`. Nothing without facts.
/// The limit beside a remaining is the burst, of which it is what remains; amount and period are the policy's `q` and `w`.
pub fn rate_headers(facts: &[RateFact], family: Family, now: Now, out: &mut Vec<u8>) {
    let (tightest, named) = tightest(facts);
    let tightest = &tightest[..named];
    if tightest.is_empty() {
        return;
    }
    list(b"RateLimit-Policy: ", facts, tightest, write_policy, out);
    list(b"RateLimit: ", facts, tightest, standing, out);
    for (kind, unit) in [(LimitType::Rpm, "requests"), (LimitType::Tpm, "tokens")] {
        let of_kind = facts.iter().filter(|fact| fact.limit().kind == kind);
        let Some(fact) = of_kind.reduce(|least, fact| if is_tighter(fact, least) { fact } else { least }) else {
            continue;
        };
        vendor(b"x-ratelimit-limit-", unit, b"", out, |out| integer(fact.burst, out));
        vendor(b"x-ratelimit-remaining-", unit, b"", out, |out| integer(fact.remaining, out));
        let reset_ns = fact.reset_ms.saturating_mul(1_000_000);
        vendor(b"x-ratelimit-reset-", unit, b"", out, |out| go_duration(reset_ns, out));
        if family == Family::Anthropic {
            let reset_ms = i64::try_from(fact.reset_ms).unwrap_or(i64::MAX);
            let reset_at = WallMs(now.wall.0.saturating_add(reset_ms));
            vendor(b"anthropic-ratelimit-", unit, b"-limit", out, |out| integer(fact.burst, out));
            vendor(b"anthropic-ratelimit-", unit, b"-remaining", out, |out| integer(fact.remaining, out));
            vendor(b"anthropic-ratelimit-", unit, b"-reset", out, |out| rfc3339(reset_at, out));
        }
    }
}

/// The four tightest, tightest first; of two alike the one that was asked first. Indices and how many there are.
fn tightest(facts: &[RateFact]) -> ([usize; TIGHTEST_MAX], usize) {
    let (mut best, mut named) = ([0; TIGHTEST_MAX], 0);
    for (at, fact) in facts.iter().enumerate() {
        let place = best[..named].iter().position(|&other| is_tighter(fact, &facts[other])).unwrap_or(named);
        if place == TIGHTEST_MAX {
            continue;
        }
        named = (named + 1).min(TIGHTEST_MAX);
        best.copy_within(place..named - 1, place + 1);
        best[place] = at;
    }
    (best, named)
}

/// By the part of the burst that is left: remaining / burst, compared without dividing.
fn is_tighter(left: &RateFact, right: &RateFact) -> bool {
    let part = |of: &RateFact, other: &RateFact| u128::from(of.remaining) * u128::from(other.burst.max(1));
    part(left, right) < part(right, left)
}

fn list(name: &[u8], facts: &[RateFact], at: &[usize], item: fn(&RateFact, &mut Vec<u8>), out: &mut Vec<u8>) {
    out.extend_from_slice(name);
    for (place, &at) in at.iter().enumerate() {
        if place > 0 {
            out.extend_from_slice(b", ");
        }
        item(&facts[at], out);
    }
    out.extend_from_slice(b"\r\n");
}

/// A share moves with the number of replicas; the full amount was spelled when the plan was made.
fn write_policy(fact: &RateFact, out: &mut Vec<u8>) {
    let full_amount = fact.limit().rate.as_ref().map(|rate| rate.amount());
    if full_amount == Some(fact.limit_amount) {
        return out.extend_from_slice(fact.policy());
    }
    out.extend_from_slice(&policy(fact.limit(), fact.limit_amount));
}

/// `"tpm";q=20000;w=60`. The window is left out where it is no whole number of seconds, which is all the field can say.
pub(crate) fn policy(limit: &Limit, amount: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(limit.id.len() + 48);
    sf_name(&limit.id, &mut out);
    sf_integer(b";q=", amount, &mut out);
    let period_ns = limit.rate.as_ref().map_or(0, |rate| rate.period_ns());
    if period_ns > 0 && period_ns.is_multiple_of(1_000_000_000) {
        sf_integer(b";w=", period_ns / 1_000_000_000, &mut out);
    }
    out
}

/// `"tpm";r=3609;t=1`, t being the wait for one unit more. No t when nothing is missing.
fn standing(fact: &RateFact, out: &mut Vec<u8>) {
    sf_name(&fact.limit().id, out);
    sf_integer(b";r=", fact.remaining, out);
    if fact.next_ms > 0 {
        sf_integer(b";t=", fact.next_ms.div_ceil(1_000), out);
    }
}

/// A structured-field string. Ids are checked to be `[a-z0-9_-]`, so nothing needs escaping.
fn sf_name(id: &str, out: &mut Vec<u8>) {
    out.push(b'"');
    out.extend_from_slice(id.as_bytes());
    out.push(b'"');
}

fn sf_integer(key: &[u8], value: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(key);
    integer(value.min(SF_INTEGER_MAX), out);
}

fn number_line(name: &str, value: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    text::integer(value, out);
    out.extend_from_slice(b"\r\n");
}

fn vendor(before: &[u8], unit: &str, after: &[u8], out: &mut Vec<u8>, value: impl FnOnce(&mut Vec<u8>)) {
    out.extend_from_slice(before);
    out.extend_from_slice(unit.as_bytes());
    out.extend_from_slice(after);
    out.extend_from_slice(b": ");
    value(out);
    out.extend_from_slice(b"\r\n");
}

//! Peers' burn on its way to the meters: written by the coordinator, published by the accountant.
//!
//! Also answers for scopes this replica has not met yet: peers' burn of a hash that no counter here has is kept, and a
//! meter takes it up in the moment it is made, before any gate can read it. Knows hashes; whoever makes a meter says which
//! hash is its own.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use foldhash::fast::FixedState;

use super::ScopeHash;
use crate::limit::Calendar;
use crate::meter::{Meter, PeerLag, PeriodSpan};
use crate::registry::ScopeKey;
use crate::units::{MonoNs, WallMs};

/// What all others burned of one scope in one period, and how far that may lag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    pub scope: ScopeHash,
    pub calendar: Calendar,
    pub period: PeriodSpan,
    /// Combined minus own.
    pub remote: u64,
    /// Own rows that are in the store.
    pub published_rows: u64,
    /// Σ peers: rows of the last flush × beat age in ms, at `as_of`.
    pub lag_row_ms: u64,
    /// Σ peers: rows of the last flush; what the above grows by per second.
    pub lag_rows_per_s: u64,
    pub as_of: MonoNs,
}

impl Term {
    pub fn lag(&self) -> PeerLag {
        PeerLag { row_ms: self.lag_row_ms, rows_per_s: self.lag_rows_per_s, as_of: self.as_of }
    }
}

/// The newest term of each scope, and whose scope it is here.
#[derive(Default)]
pub struct Terms(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    terms: HashMap<ScopeHash, Term, FixedState>,
    claimed: HashMap<ScopeHash, Claim, FixedState>,
    claims: u64,
    /// Claimed scopes whose term changed since the accountant last looked.
    changed: Vec<ScopeHash>,
}

#[derive(Clone)]
struct Claim {
    key: ScopeKey,
    /// Of all claims ever made: a counter that was made again has another number.
    number: u64,
}

impl Terms {
    /// New terms from the coordinator. `true` when some are for counters that exist: the accountant is to be woken.
    pub fn put(&self, terms: Vec<Term>) -> bool {
        let mut inner = self.lock();
        for term in terms {
            let newest = inner.terms.entry(term.scope).or_insert(term);
            if term.period.start < newest.period.start {
                continue;
            }
            *newest = term;
            if inner.claimed.contains_key(&term.scope) {
                inner.changed.push(term.scope);
            }
        }
        !inner.changed.is_empty()
    }

    /// A meter is being made that nobody can see yet: it starts from what peers are known to have burned. From now on
    /// the accountant hears of its scope. Called under the registry's lock, so that whoever hears of it also finds it.
    pub fn claim(&self, scope: ScopeHash, key: ScopeKey, meter: &Meter) {
        let mut inner = self.lock();
        if let Some(term) = inner.terms.get(&scope) {
            meter.publish_remote(term.period, term.remote);
            meter.publish_lag(term.lag());
        }
        inner.claims += 1;
        let number = inner.claims;
        inner.claimed.insert(scope, Claim { key, number });
    }

    /// What changed since the last call, each scope once, for the accountant to publish.
    pub fn take_changed(&self) -> Vec<(ScopeKey, Term)> {
        let mut inner = self.lock();
        let mut changed = std::mem::take(&mut inner.changed);
        changed.sort_unstable();
        changed.dedup();
        let term = |scope: ScopeHash| Some((inner.claimed.get(&scope)?.key.clone(), *inner.terms.get(&scope)?));
        changed.into_iter().filter_map(term).collect()
    }

    /// Which limit and node a hash stands for, if this replica has met it.
    pub fn key_of(&self, scope: ScopeHash) -> Option<ScopeKey> {
        self.lock().claimed.get(&scope).map(|claim| claim.key.clone())
    }

    /// Drops terms of periods that ended, and claims of counters that `is_there` no longer knows. Now and then.
    pub fn forget(&self, wall: WallMs, is_there: impl Fn(&ScopeKey) -> bool) {
        let claimed: Vec<(ScopeHash, Claim)> = {
            let mut inner = self.lock();
            inner.terms.retain(|_, term| wall < term.period.end);
            inner.claimed.iter().map(|(scope, claim)| (*scope, claim.clone())).collect()
        };
        // Looked up without our lock: the registry's comes first, as in `claim`.
        let gone: Vec<(ScopeHash, Claim)> = claimed.into_iter().filter(|(_, claim)| !is_there(&claim.key)).collect();
        let mut inner = self.lock();
        for (scope, seen) in gone {
            // A counter that was made in between has claimed its scope anew.
            if inner.claimed.get(&scope).is_some_and(|claim| claim.number == seen.number) {
                inner.claimed.remove(&scope);
            }
        }
    }

    /// How many scopes peers have that no counter here stands for.
    pub fn unclaimed(&self) -> usize {
        let inner = self.lock();
        inner.terms.keys().filter(|scope| !inner.claimed.contains_key(*scope)).count()
    }

    // Nothing in between calls out, so a poisoned lock guards a map as whole as any.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accountant::period_of;
    use crate::limit::LimitIdentity;
    use crate::scope::Node;
    use std::sync::Arc;

    const SCOPE: ScopeHash = ScopeHash([7; 16]);

    fn key() -> ScopeKey {
        ScopeKey { identity: LimitIdentity(Arc::from("budget")), node: Node::global() }
    }

    fn term(wall: i64, remote: u64) -> Term {
        Term {
            scope: SCOPE,
            calendar: Calendar::Hour,
            period: period_of(Calendar::Hour, WallMs(wall)),
            remote,
            published_rows: 0,
            lag_row_ms: 2_500,
            lag_rows_per_s: 1,
            as_of: MonoNs(0),
        }
    }

    #[test]
    fn a_meter_of_a_scope_nobody_met_here_starts_with_what_peers_burned() {
        let terms = Terms::default();
        assert!(!terms.put(vec![term(0, 300)]), "no counter here waits for it");
        assert_eq!(terms.unclaimed(), 1);
        let meter = Meter::new();
        terms.claim(SCOPE, key(), &meter);
        assert_eq!(meter.observed(WallMs(5)), 300);
        assert_eq!(meter.convergence_lag_rows(MonoNs(500_000_000)), 3, "2.5 row-seconds and half a second more");
        assert!(terms.put(vec![term(0, 400), term(0, 410)]));
        let changed = terms.take_changed();
        assert_eq!(changed.len(), 1);
        assert_eq!((changed[0].1.remote, terms.take_changed().len(), terms.unclaimed()), (410, 0, 0));
    }

    #[test]
    fn an_older_period_never_replaces_a_newer_one_and_an_ended_one_is_forgotten() {
        let terms = Terms::default();
        terms.put(vec![term(3_600_000, 5)]);
        terms.put(vec![term(0, 900)]);
        let meter = Meter::new();
        terms.claim(SCOPE, key(), &meter);
        assert_eq!(meter.observed(WallMs(3_600_001)), 5);
        terms.forget(WallMs(7_200_000), |_| false);
        assert_eq!(terms.key_of(SCOPE), None);
        let later = Meter::new();
        terms.claim(SCOPE, key(), &later);
        assert_eq!(later.observed(WallMs(3_600_001)), 0);
    }
}

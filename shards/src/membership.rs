//! How many replicas share the limits, as every thread may ask: one load per decision.
//!
//! Decides when the last count is too old to be trusted: then N is 1, each replica enforces the full amount, and every
//! verdict of a shared limit says so. Who is live is decided in [`roster`], from heartbeats.

pub mod roster;

use std::sync::atomic::{AtomicU64, Ordering};

use crate::suspend::Reason;
use crate::units::MonoNs;

/// The low bits of the word hold N, the high ones when it was true, in ms of the monotonic clock plus one.
const N_BITS: u32 = 16;
const N_MAX: u64 = (1 << N_BITS) - 1;

/// The count of live replicas and its age. Both in one word, so that no reader mixes two publications.
#[derive(Debug)]
pub struct Membership {
    word: AtomicU64,
    trusted_ms: u64,
}

impl Membership {
    /// Nothing was counted yet. `trusted_ns` is the liveness window.
    pub fn new(trusted_ns: u64) -> Membership {
        Membership { word: AtomicU64::new(0), trusted_ms: trusted_ns / 1_000_000 }
    }

    /// `n_live` replicas, this one included, as of `as_of`.
    pub fn publish(&self, n_live: u32, as_of: MonoNs) {
        let as_of_ms = as_of.0 / 1_000_000 + 1;
        // Relaxed: the word is all there is, nothing else is published with it.
        self.word.store((as_of_ms << N_BITS) | u64::from(n_live).min(N_MAX), Ordering::Relaxed);
    }

    /// How many replicas share the limits, at least 1. The reason is there when nobody knows: N is 1 then.
    pub fn n_live(&self, now: MonoNs) -> (u32, Option<Reason>) {
        let word = self.word.load(Ordering::Relaxed);
        let as_of_ms = word >> N_BITS;
        if as_of_ms == 0 || (now.0 / 1_000_000 + 1).saturating_sub(as_of_ms) > self.trusted_ms {
            return (1, Some(Reason::MembershipStale));
        }
        ((word & N_MAX).max(1) as u32, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_count_is_trusted_for_the_liveness_window_and_decays_to_self_afterwards() {
        let membership = Membership::new(15 * SECOND);
        assert_eq!(membership.n_live(MonoNs(0)), (1, Some(Reason::MembershipStale)));
        membership.publish(3, MonoNs(10 * SECOND));
        assert_eq!(membership.n_live(MonoNs(10 * SECOND)), (3, None));
        assert_eq!(membership.n_live(MonoNs(25 * SECOND)), (3, None));
        assert_eq!(membership.n_live(MonoNs(26 * SECOND)), (1, Some(Reason::MembershipStale)));
        membership.publish(0, MonoNs(30 * SECOND));
        assert_eq!(membership.n_live(MonoNs(30 * SECOND)), (1, None), "a replica always counts itself");
    }
}

//! The units every counter and every fact is spoken in: money, tokens, and the two clocks.
//!
//! They exist so that the compiler refuses the sums that would hurt: a monotonic instant never meets a wall
//! time, money never meets tokens. They convert nothing and read no clock; the caller reads both clocks once
//! per request and hands a [`Now`] down. Used by every module of this crate.

use serde::{Deserialize, Serialize};

/// Billionths of a US dollar. A `u64` holds 18 billion dollars.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
#[repr(transparent)]
pub struct NanoUsd(pub u64);

/// Tokens, as the provider bills them or as we estimate them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
#[repr(transparent)]
pub struct Tokens(pub u64);

/// Nanoseconds on the monotonic clock since this process started (not since the host did: rates count in up to
/// 64 ticks a nanosecond, which lasts 2.3 years). Comparable only within one process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
#[repr(transparent)]
pub struct MonoNs(pub u64);

/// Milliseconds since the Unix epoch. What people read and what calendars are cut from; it may step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
#[repr(transparent)]
pub struct WallMs(pub i64);

/// Both clocks, read together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Now {
    pub mono: MonoNs,
    pub wall: WallMs,
}

impl NanoUsd {
    /// The sum, held at the largest amount instead of wrapping: a meter that overflows must stay spent.
    pub const fn saturating_add(self, more: NanoUsd) -> NanoUsd {
        NanoUsd(self.0.saturating_add(more.0))
    }
}

impl Tokens {
    /// The sum, held at the largest count instead of wrapping: a meter that overflows must stay spent.
    pub const fn saturating_add(self, more: Tokens) -> Tokens {
        Tokens(self.0.saturating_add(more.0))
    }
}

impl MonoNs {
    /// Nanoseconds from `earlier` to `self`; zero when `earlier` is in fact later.
    pub const fn since(self, earlier: MonoNs) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// This instant moved forward by `ns`, held at the end of the clock.
    pub const fn plus_ns(self, ns: u64) -> MonoNs {
        MonoNs(self.0.saturating_add(ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_stop_at_the_end_instead_of_wrapping() {
        assert_eq!(NanoUsd(2).saturating_add(NanoUsd(3)), NanoUsd(5));
        assert_eq!(NanoUsd(u64::MAX).saturating_add(NanoUsd(1)), NanoUsd(u64::MAX));
        assert_eq!(Tokens(u64::MAX).saturating_add(Tokens(1)), Tokens(u64::MAX));
        assert_eq!(MonoNs(u64::MAX).plus_ns(1), MonoNs(u64::MAX));
    }

    #[test]
    fn time_since_a_later_instant_is_zero() {
        assert_eq!(MonoNs(10).since(MonoNs(4)), 6);
        assert_eq!(MonoNs(4).since(MonoNs(10)), 0);
    }

    #[test]
    fn a_unit_is_written_as_its_bare_number() {
        assert_eq!(serde_json::to_string(&NanoUsd(775_000)).unwrap(), "775000");
        assert_eq!(serde_json::from_str::<WallMs>("-1").unwrap(), WallMs(-1));
    }
}

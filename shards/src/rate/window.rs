//! Where `now` lies among windows aligned to the Unix epoch, and how a stored window index relates to it.
//!
//! Shared by the two window algorithms. Decides positions only; what is counted in a window is theirs.

use super::Clock0;
use crate::units::MonoNs;

/// A stored index this many windows ahead of now, or fewer, means that the clock is behind and the window stays
/// open; further ahead can only be an index that wrapped around, and the window is long past. 4,096 windows of a
/// second are over an hour. *Over-admits* one window after a larger step back; *over-refuses*, for at most 4,096
/// windows, a scope first asked again in exactly the last 4,096 windows before its index comes round, months later.
const BEHIND_WINDOWS_MAX: u64 = 4_096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    period_ns: u64,
    /// How far into its window the monotonic clock's zero lies.
    phase_ns: u64,
}

/// Now, as a window index and the time since that window opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    /// Counted from the window of boot, not reduced to any field's width.
    pub(super) index: u64,
    pub(super) elapsed_ns: u64,
}

/// A stored window seen from the present one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stored {
    /// The present one.
    Here,
    /// This many windows ago.
    Past(u64),
    /// The clock is behind by this many windows.
    Ahead(u64),
}

impl Window {
    /// `period_ns` is at least 1.
    pub(super) fn aligned(period_ns: u64, clock0: Clock0) -> Window {
        let phase_ns = i128::from(clock0.wall_offset_ns).rem_euclid(i128::from(period_ns.max(1)));
        // Below the period, so it fits.
        Window { period_ns: period_ns.max(1), phase_ns: phase_ns as u64 }
    }

    pub(super) fn period_ns(&self) -> u64 {
        self.period_ns
    }

    #[inline]
    pub(super) fn position(&self, now: MonoNs) -> Position {
        let at_ns = now.0.saturating_add(self.phase_ns);
        let index = at_ns / self.period_ns;
        Position { index, elapsed_ns: at_ns - index * self.period_ns }
    }

    /// Until the window that is `ahead` windows after the present one closes.
    #[inline]
    pub(super) fn closes_in_ns(&self, position: &Position, ahead: u64) -> u64 {
        (self.period_ns - position.elapsed_ns).saturating_add(self.period_ns.saturating_mul(ahead))
    }
}

impl Position {
    /// Where the window stored as `index` in a field of `bits` lies. The field wraps: 24 bits of one-second
    /// windows come round after 194 days.
    #[inline]
    pub(super) fn locate(&self, index: u64, bits: u32) -> Stored {
        let mask = (1 << bits) - 1;
        let past = self.index.wrapping_sub(index) & mask;
        if past == 0 {
            Stored::Here
        } else if past > mask - BEHIND_WINDOWS_MAX {
            Stored::Ahead(mask + 1 - past)
        } else {
            Stored::Past(past)
        }
    }
}

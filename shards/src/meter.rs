//! The published burn of one LedgerSettled scope: money, tokens or requests of the running calendar period.
//!
//! The accountant is the only writer, after it folded rows; the gates only read. Decides what a gate may believe: a
//! period that ended reads as zero at that instant, and a period never comes back. Knows no limits and no amounts.

#[cfg(loom)]
use loom::sync::atomic::{AtomicI64, AtomicU64, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use crate::units::{MonoNs, WallMs};

/// Peers are not assumed to go on burning for longer than this after their last word: ten minutes, then they count as
/// departed.
const LAG_GROWS_NS: u64 = 600_000_000_000;

/// A publication older than this is not trusted: six missed 5 s republications.
pub const METER_TRUST_NS: u64 = 30_000_000_000;

/// The accountant republishes every meter at least this often, also when no row arrived.
pub const METER_REPUBLISH_NS: u64 = 5_000_000_000;

/// One calendar period, `start ≤ t < end`, as instants. Two periods of one limit never overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeriodSpan {
    pub start: WallMs,
    pub end: WallMs,
}

impl PeriodSpan {
    pub fn contains(&self, wall: WallMs) -> bool {
        self.start <= wall && wall < self.end
    }
}

/// What a gate saw in a meter, taken together so that the burn and the reset belong to one period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Own burn plus what peers published.
    pub observed: u64,
    /// When the running period ends; `None` when it ended already or nothing was published yet (`observed` is 0).
    pub resets_at: Option<WallMs>,
}

/// How far peers' part of a meter may be behind, as an estimate in rows: what was missing at `as_of`, and what is missing
/// more with every second since.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerLag {
    /// Rows × milliseconds: rows of each peer's last flush, times its age.
    pub row_ms: u64,
    pub rows_per_s: u64,
    pub as_of: MonoNs,
}

/// One scope's burn. Rests at zero with a period that ended long ago.
#[derive(Debug)]
pub struct Meter {
    local: AtomicU64,
    remote: AtomicU64,
    period_start_ms: AtomicI64,
    period_end_ms: AtomicI64,
    /// Own rows that are not in the shared store yet.
    unsent_rows: AtomicU64,
    /// [`PeerLag`], word by word: an estimate, so a reader between two stores does no harm.
    lag_row_ms: AtomicU64,
    lag_rows_per_s: AtomicU64,
    lag_as_of_ns: AtomicU64,
}

impl Default for Meter {
    fn default() -> Meter {
        Meter::new()
    }
}

impl Meter {
    pub fn new() -> Meter {
        Meter {
            local: AtomicU64::new(0),
            remote: AtomicU64::new(0),
            period_start_ms: AtomicI64::new(i64::MIN),
            period_end_ms: AtomicI64::new(i64::MIN),
            unsent_rows: AtomicU64::new(0),
            lag_row_ms: AtomicU64::new(0),
            lag_rows_per_s: AtomicU64::new(0),
            lag_as_of_ns: AtomicU64::new(0),
        }
    }

    /// Burn and reset as of `wall`. Never waits. While the accountant rolls the period, a reader whose clock is
    /// still before the end may see the zero early: over-admits by what fits into that instant.
    pub fn read(&self, wall: WallMs) -> Reading {
        // Acquire: whoever sees the new end sees the zero that was stored before it.
        let end_ms = self.period_end_ms.load(Ordering::Acquire);
        if wall.0 >= end_ms {
            return Reading { observed: 0, resets_at: None };
        }
        let (local, remote) = (self.local.load(Ordering::Acquire), self.remote.load(Ordering::Acquire));
        Reading { observed: local.saturating_add(remote), resets_at: Some(WallMs(end_ms)) }
    }

    /// Burn as of `wall`: 0 once the published period ended.
    pub fn observed(&self, wall: WallMs) -> u64 {
        self.read(wall).observed
    }

    /// This replica's own part of `observed`.
    pub fn local(&self, wall: WallMs) -> u64 {
        if wall.0 >= self.period_end_ms.load(Ordering::Acquire) { 0 } else { self.local.load(Ordering::Acquire) }
    }

    /// Whether the meter carries a period that is still running.
    pub fn is_running(&self, wall: WallMs) -> bool {
        wall.0 < self.period_end_ms.load(Ordering::Acquire)
    }

    /// The period last published; `None` before the first publication.
    pub fn period(&self) -> Option<PeriodSpan> {
        let end_ms = self.period_end_ms.load(Ordering::Acquire);
        let start_ms = self.period_start_ms.load(Ordering::Acquire);
        (end_ms != i64::MIN).then_some(PeriodSpan { start: WallMs(start_ms), end: WallMs(end_ms) })
    }

    /// Own burn of `period`. `false` when the meter is already in a later period, which a clock that stepped back
    /// cannot undo: nothing is written then. Called by the accountant alone.
    pub fn publish(&self, period: PeriodSpan, local: u64) -> bool {
        let current = self.enter(period);
        if current {
            self.local.store(local, Ordering::Release);
        }
        current
    }

    /// What all other replicas burned in `period`; same rules as [`Meter::publish`]. Called by the accountant alone.
    pub fn publish_remote(&self, period: PeriodSpan, remote: u64) -> bool {
        let current = self.enter(period);
        if current {
            self.remote.store(remote, Ordering::Release);
        }
        current
    }

    /// How many own rows peers cannot know of yet.
    pub fn publish_unsent(&self, rows: u64) {
        self.unsent_rows.store(rows, Ordering::Relaxed); // an estimate orders nothing
    }

    /// How far peers' part may be behind.
    pub fn publish_lag(&self, lag: PeerLag) {
        // Relaxed: as above.
        self.lag_row_ms.store(lag.row_ms, Ordering::Relaxed);
        self.lag_rows_per_s.store(lag.rows_per_s, Ordering::Relaxed);
        self.lag_as_of_ns.store(lag.as_of.0, Ordering::Relaxed);
    }

    /// Rows that `observed` may be missing: own ones not yet published, and an estimate for the peers, rounded up.
    pub fn convergence_lag_rows(&self, now: MonoNs) -> u64 {
        let since_ns = now.0.saturating_sub(self.lag_as_of_ns.load(Ordering::Relaxed)).min(LAG_GROWS_NS);
        let more = self.lag_rows_per_s.load(Ordering::Relaxed).saturating_mul(since_ns / 1_000_000);
        let peers = self.lag_row_ms.load(Ordering::Relaxed).saturating_add(more).div_ceil(1_000);
        self.unsent_rows.load(Ordering::Relaxed).saturating_add(peers)
    }

    /// Rolls forward to `period`, values first: a reader must never pair the new end with the old burn.
    fn enter(&self, period: PeriodSpan) -> bool {
        let end_ms = self.period_end_ms.load(Ordering::Relaxed); // the only writer reads its own store
        if period.end.0 > end_ms {
            self.local.store(0, Ordering::Release);
            self.remote.store(0, Ordering::Release);
            self.period_start_ms.store(period.start.0, Ordering::Release);
            self.period_end_ms.store(period.end.0, Ordering::Release);
        }
        period.end.0 >= end_ms
    }
}

/// When all meters were last republished. One word for all of them: the accountant publishes them together, so they
/// go stale together.
#[derive(Debug)]
pub struct MeterBeat(AtomicU64);

impl Default for MeterBeat {
    fn default() -> MeterBeat {
        MeterBeat::new()
    }
}

impl MeterBeat {
    /// Stale until the first beat.
    pub fn new() -> MeterBeat {
        MeterBeat(AtomicU64::new(0))
    }

    /// The accountant has just republished every meter.
    pub fn beat(&self, now: MonoNs) {
        self.0.store(now.0.max(1), Ordering::Release); // 0 is "never"
    }

    /// Whether meters may no longer be believed. A beat from a core whose clock reads ahead counts as fresh.
    pub fn is_stale(&self, now: MonoNs) -> bool {
        let beat_ns = self.0.load(Ordering::Acquire);
        beat_ns == 0 || now.0.saturating_sub(beat_ns) > METER_TRUST_NS
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const JULY: PeriodSpan = PeriodSpan { start: WallMs(7_000), end: WallMs(8_000) };
    const AUGUST: PeriodSpan = PeriodSpan { start: WallMs(8_000), end: WallMs(9_000) };

    #[test]
    fn own_and_peers_burn_add_up_until_the_period_ends() {
        let meter = Meter::new();
        assert_eq!(meter.read(WallMs(7_500)), Reading { observed: 0, resets_at: None });
        assert!(meter.publish(JULY, 300) && meter.publish_remote(JULY, 20));
        assert_eq!(meter.read(WallMs(7_999)), Reading { observed: 320, resets_at: Some(WallMs(8_000)) });
        assert_eq!((meter.local(WallMs(7_999)), meter.period()), (300, Some(JULY)));
    }

    #[test]
    fn a_meter_reads_zero_the_instant_its_period_ended() {
        let meter = Meter::new();
        meter.publish(JULY, 300);
        assert_eq!((meter.observed(WallMs(7_999)), meter.observed(WallMs(8_000))), (300, 0));
        assert!(!meter.is_running(WallMs(8_000)));
    }

    #[test]
    fn a_new_period_starts_from_nothing_and_the_old_one_never_comes_back() {
        let meter = Meter::new();
        meter.publish(JULY, 300);
        meter.publish_remote(JULY, 20);
        assert!(meter.publish(AUGUST, 5));
        assert_eq!(meter.observed(WallMs(8_001)), 5, "peers' July burn is gone as well");
        assert!(!meter.publish(JULY, 900), "the clock stepped back");
        assert!(!meter.publish_remote(JULY, 900));
        assert_eq!((meter.observed(WallMs(8_001)), meter.observed(WallMs(7_999))), (5, 5));
    }

    #[test]
    fn burn_near_the_end_of_the_number_does_not_wrap_to_nothing() {
        let meter = Meter::new();
        meter.publish(JULY, u64::MAX);
        meter.publish_remote(JULY, 1);
        assert_eq!(meter.observed(WallMs(7_500)), u64::MAX);
    }

    #[test]
    fn meters_are_stale_before_the_first_beat_and_after_thirty_seconds_without_one() {
        let beat = MeterBeat::new();
        assert!(beat.is_stale(MonoNs(5)));
        beat.beat(MonoNs(0));
        assert!(!beat.is_stale(MonoNs(0)));
        beat.beat(MonoNs(1_000));
        assert!(!beat.is_stale(MonoNs(1_000 + METER_TRUST_NS)));
        assert!(beat.is_stale(MonoNs(1_001 + METER_TRUST_NS)));
        assert!(!beat.is_stale(MonoNs(0)), "a clock that reads earlier than the beat finds it fresh");
    }
}

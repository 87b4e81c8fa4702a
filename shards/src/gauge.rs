//! The in-flight gauge: how many requests of one scope are running right now.
//!
//! The cap holds exactly within this replica: a lease is taken by one compare-and-swap that declines at the
//! cap, so no two cores can both take the last slot. Knows nothing of limits, nodes or replicas; the gate
//! passes the cap in, because `store: share` changes it between two requests. A lowered cap ends no request:
//! the gauge is over it until enough of them have finished.

use crossbeam_utils::CachePadded;
#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU32, Ordering};

/// One scope's count. Rests at zero; a restart starts from zero, as a live count should.
#[derive(Debug)]
pub struct Gauge(CachePadded<AtomicU32>);

/// A slot in use, of the gauge it was taken from: it goes back to [`Gauge::free`], which consumes it. Neither `Clone` nor
/// `Copy`, so it is freed once; who holds it also holds the gauge and frees it when dropped (see [`crate::gate::Held`]).
/// No word of its own: counting references to the gauge would cost as much as the slot.
#[must_use = "a slot that is not freed stays in use"]
#[derive(Debug, PartialEq, Eq)]
pub struct Slot(());

/// No slot was free: `used` were taken when the gauge was asked. More than `cap` after a cap was lowered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full {
    pub used: u32,
    pub cap: u32,
}

impl Default for Gauge {
    fn default() -> Gauge {
        Gauge::new()
    }
}

impl Gauge {
    /// Nothing in flight.
    pub fn new() -> Gauge {
        Gauge(CachePadded::new(AtomicU32::new(0)))
    }

    /// Takes a slot, or returns how many were in use when it was full. Never waits.
    #[inline]
    pub fn try_lease(&self, cap: u32) -> Result<Slot, Full> {
        // Not add-then-undo: between the two, a neighbour would see the gauge full and refuse wrongly.
        // Acquire pairs with the release of the holder before us; release keeps the chain for the one after.
        let took = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, |used| (used < cap).then_some(used + 1));
        took.map(|_| Slot(())).map_err(|used| Full { used, cap })
    }

    /// Takes a slot whatever the cap: a shadow limit that is over still holds and counts what it would have
    /// refused. Never waits.
    pub fn lease_over(&self) -> Slot {
        // Cannot wrap: each lease is a request with buffers, and 2^32 of them do not fit any memory.
        self.0.fetch_add(1, Ordering::AcqRel); // as in try_lease
        Slot(())
    }

    /// Gives a slot back.
    #[inline]
    pub fn free(&self, slot: Slot) {
        let Slot(()) = slot;
        self.0.fetch_sub(1, Ordering::AcqRel); // pairs with the acquire above: the next holder sees our work done
    }

    /// How many slots are in use.
    pub fn in_flight(&self) -> u32 {
        self.0.load(Ordering::Acquire) // a reader who sees zero sees the holders' work done
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn two_slots_hold_two_and_one_that_is_freed_is_free() {
        let gauge = Gauge::new();
        let first = gauge.try_lease(2).unwrap();
        let _second = gauge.try_lease(2).unwrap();
        assert_eq!(gauge.try_lease(2).unwrap_err(), Full { used: 2, cap: 2 });
        gauge.free(first);
        assert_eq!(gauge.in_flight(), 1);
        assert!(gauge.try_lease(2).is_ok());
    }

    #[test]
    fn a_lowered_cap_ends_nobody_and_admits_nobody() {
        let gauge = Gauge::new();
        let held: Vec<_> = (0..3).map(|_| gauge.try_lease(3).unwrap()).collect();
        assert_eq!(gauge.try_lease(1).unwrap_err(), Full { used: 3, cap: 1 });
        held.into_iter().for_each(|slot| gauge.free(slot));
        assert!(gauge.try_lease(1).is_ok());
    }

    #[test]
    fn a_shadow_lease_over_the_cap_is_held_and_counted() {
        let gauge = Gauge::new();
        let held = gauge.try_lease(1).unwrap();
        let shadow = gauge.lease_over();
        assert_eq!(gauge.in_flight(), 2);
        gauge.free(held);
        assert!(gauge.try_lease(1).is_err(), "the shadow lease still counts");
        gauge.free(shadow);
        assert_eq!(gauge.in_flight(), 0);
    }

    #[test]
    fn a_cap_of_zero_admits_nobody() {
        assert_eq!(Gauge::new().try_lease(0).unwrap_err(), Full { used: 0, cap: 0 });
    }
}

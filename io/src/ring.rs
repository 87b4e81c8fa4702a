//! Single-producer rings from the data cores to a plain thread, with a bounded overflow and a lazy bell.
//!
//! The producer never waits and never allocates in steady state. When the ring is full, items wait in the
//! producer's own overflow; past that they are dropped and counted. The consumer sleeps on its [`Pager`] and is
//! woken only if it said that it sleeps, so that a busy system pays no wake-up per item.
//!
//! Proven by loom in `shards/tests/loom_ring.rs`, which compiles this file over a queue of its own that promises what
//! rtrb promises and not more: the order across the overflow, no page missed, nothing lost or doubled uncounted.

#[cfg_attr(loom, path = "ring/pager.rs")]
mod pager;

use std::collections::VecDeque;
use std::sync::Arc;

#[cfg(loom)]
use super::rtrb;
#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, Ordering};

pub use pager::Pager;

/// Counts that anyone may read: how far the producer is ahead, and what it had to give up.
#[derive(Default)]
pub struct RingCounts {
    handed_over: AtomicU64,
    taken: AtomicU64,
    dropped: AtomicU64,
}

impl RingCounts {
    /// Items handed over and not yet taken.
    pub fn lag(&self) -> u64 {
        let taken = self.taken.load(Ordering::Relaxed);
        self.handed_over.load(Ordering::Relaxed).saturating_sub(taken)
    }

    /// Items given up because ring and overflow were full.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

/// The producer's end, owned by one core.
pub struct RingSender<T> {
    ring: rtrb::Producer<T>,
    overflow: VecDeque<T>,
    overflow_max: usize,
    counts: Arc<RingCounts>,
    pager: Arc<Pager>,
}

/// The consumer's end.
pub struct RingReceiver<T> {
    ring: rtrb::Consumer<T>,
    counts: Arc<RingCounts>,
}

/// A ring of `depth` items with an overflow of `overflow_max` more on the producer's side.
pub fn ring<T>(
    depth: usize,
    overflow_max: usize,
    pager: Arc<Pager>,
) -> (RingSender<T>, RingReceiver<T>, Arc<RingCounts>) {
    let (producer, consumer) = rtrb::RingBuffer::new(depth);
    let counts = Arc::new(RingCounts::default());
    let sender = RingSender { ring: producer, overflow: VecDeque::new(), overflow_max, counts: counts.clone(), pager };
    (sender, RingReceiver { ring: consumer, counts: counts.clone() }, counts)
}

impl<T> RingSender<T> {
    /// Hands an item over, or keeps it in the overflow, or counts it as dropped (`false`). Never waits.
    pub fn send(&mut self, item: T) -> bool {
        self.flush();
        let kept = if self.overflow.is_empty() {
            self.ring.push(item).map_err(|rtrb::PushError::Full(item)| item)
        } else {
            Err(item)
        };
        match kept {
            Ok(()) => {}
            Err(item) if self.overflow.len() < self.overflow_max => self.overflow.push_back(item),
            Err(_) => {
                self.counts.dropped.fetch_add(1, Ordering::Relaxed);
                return false;
            }
        }
        // Written by this producer alone, so no locked instruction is needed.
        let handed_over = self.counts.handed_over.load(Ordering::Relaxed);
        self.counts.handed_over.store(handed_over + 1, Ordering::Relaxed);
        self.pager.page();
        true
    }

    /// Whether the overflow is more than half full: the producer had better slow down.
    pub fn is_crowded(&self) -> bool {
        self.overflow.len() > self.overflow_max / 2
    }

    /// Moves waiting items from the overflow into the ring, as far as there is room, and pages the consumer if there
    /// were any. `true` when none is left.
    pub fn flush(&mut self) -> bool {
        if self.overflow.is_empty() {
            return true;
        }
        while let Some(item) = self.overflow.pop_front() {
            if let Err(rtrb::PushError::Full(item)) = self.ring.push(item) {
                self.overflow.push_front(item);
                break;
            }
        }
        self.pager.page();
        self.overflow.is_empty()
    }
}

impl<T> Drop for RingSender<T> {
    /// What still waits in the overflow goes with the producer: it is given up like what found no room in it, and no
    /// longer counts as lag. A producer that wants to lose nothing flushes first.
    fn drop(&mut self) {
        let left = self.overflow.len() as u64;
        self.counts.dropped.fetch_add(left, Ordering::Relaxed);
        self.counts.taken.fetch_add(left, Ordering::Relaxed);
    }
}

impl<T> RingReceiver<T> {
    /// Takes up to `max` items in the order they were sent.
    pub fn drain(&mut self, max: usize, mut each: impl FnMut(T)) -> usize {
        let mut count = 0;
        while count < max {
            let Ok(item) = self.ring.pop() else { break };
            each(item);
            count += 1;
        }
        count
    }

    /// Says that `count` items are accounted for: only then do they stop counting as lag.
    pub fn settled(&self, count: u64) {
        self.counts.taken.fetch_add(count, Ordering::Relaxed);
    }

    /// Whether something is there to be taken.
    pub fn has_items(&self) -> bool {
        !self.ring.is_empty()
    }

    /// Whether the producer is gone and the ring is empty: nothing will ever come. Asked in this order: an empty ring
    /// whose producer leaves a moment later may have got items in between.
    pub fn is_finished(&self) -> bool {
        self.ring.is_abandoned() && self.ring.is_empty()
    }
}

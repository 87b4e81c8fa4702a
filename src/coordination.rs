//! What all threads see of the shared store: who is live, whether the store answers, and what it cost.
//!
//! Exists only where `shared_state.redis` is configured; everything else pays one branch. The coordinator thread writes
//! it, data cores read it per request, and the admin pages render it: the one place they all look at.

pub mod convergence;
pub mod desk;
pub mod fleet;
pub mod roster;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwapOption;
use shards::coordinate::breaker::Breaker;
use shards::gate::{Converging, FleetSeen};
use shards::membership::Membership;
use shards::suspend::Reason;
use shards::units::{MonoNs, WallMs};
use tokio::sync::Notify;

use self::fleet::FleetState;
use crate::config::Config;
use crate::metrics::{Histogram, OVERHEAD_BOUNDS_US};

/// One process, at most one of these.
pub struct Coordination {
    /// Whether the store is asked for admissions.
    pub breaker: Breaker,
    /// How many replicas share the limits.
    pub membership: Membership,
    /// The roster, and the exchange of burn.
    pub fleet: FleetState,
    /// What was said to the last failure of the breaker; empty where nothing was, as by a call that got no answer in time.
    pub admissions_trouble: LastTrouble,
    /// What is wrong with the exchange of burn and heartbeats; empty while nothing is.
    pub exchange_trouble: LastTrouble,
    /// The admissions connection stands, or no limit needs one.
    reachable: AtomicBool,
    late_replies: AtomicU64,
    rtt: Mutex<Histogram>,
    stop: Told,
    hurry: Told,
    wake: Arc<Notify>,
}

/// What a store said, or what became of the way to it, and when: the detail behind a reason, for logs and pages.
#[derive(Debug)]
pub struct StoreTrouble {
    pub error: String,
    pub at: WallMs,
}

/// The last of them.
#[derive(Default)]
pub struct LastTrouble(ArcSwapOption<StoreTrouble>);

impl LastTrouble {
    /// Keeps it. A server that refuses every call of a busy core is written down once a second.
    pub fn told(&self, error: &str, at: WallMs) {
        let is_kept = |before: &StoreTrouble| before.error == error && at.0.abs_diff(before.at.0) < 1_000;
        if !self.0.load().as_deref().is_some_and(is_kept) {
            self.0.store(Some(Arc::new(StoreTrouble { error: error.to_owned(), at })));
        }
    }

    /// It is over.
    pub fn clear(&self) {
        self.0.store(None);
    }

    pub fn get(&self) -> Option<Arc<StoreTrouble>> {
        self.0.load_full()
    }
}

impl Coordination {
    /// Nothing is known yet and nothing was dialled. `wake` is what the coordinator's admissions wait for.
    pub fn of(config: &Config, fleet: FleetState, wake: Arc<Notify>) -> Coordination {
        Coordination {
            breaker: Breaker::default(),
            membership: Membership::new(crate::rules::ns(config.fleet.liveness_window)),
            fleet,
            admissions_trouble: LastTrouble::default(),
            exchange_trouble: LastTrouble::default(),
            reachable: AtomicBool::new(true),
            late_replies: AtomicU64::new(0),
            rtt: Mutex::new(Histogram::new(&OVERHEAD_BOUNDS_US)),
            stop: Told::default(),
            hurry: Told::default(),
            wake,
        }
    }

    /// How many replicas share the limits, and why nobody knows. Read once per request.
    pub fn n_live(&self, now: MonoNs) -> (u32, Option<Reason>) {
        let (n_live, stale) = self.membership.n_live(now);
        (n_live, stale.or_else(|| self.fleet.conflict(now)))
    }

    /// What the gates may rely on, for one request.
    pub fn seen(&self, now: MonoNs) -> (u32, FleetSeen) {
        let (n_live, share_suspended) = self.n_live(now);
        let converging = Converging { suspended: self.fleet.burn_suspended(now) };
        (n_live, FleetSeen { share_suspended, converging: Some(converging) })
    }

    /// Whether a probe could reach the store. A hint for the breaker, so nothing hangs on its being fresh.
    pub fn is_reachable(&self) -> bool {
        self.reachable.load(Ordering::Relaxed)
    }

    /// The coordinator's word on [`Coordination::is_reachable`].
    pub fn set_reachable(&self, reachable: bool) {
        self.reachable.store(reachable, Ordering::Relaxed);
    }

    /// Counts so many verdicts of the store by the time from writing their calls to reading the reply.
    pub fn answered_in(&self, rtt_us: u64, verdicts: u32) {
        let mut rtt = self.rtt.lock().unwrap_or_else(PoisonError::into_inner);
        (0..verdicts).for_each(|_| rtt.record(rtt_us));
    }

    /// How long verdicts of the store took.
    pub fn rtt(&self) -> Histogram {
        self.rtt.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Counts replies that came after their verdict was given.
    pub fn late_replies(&self, count: u64) {
        if count > 0 {
            self.late_replies.fetch_add(count, Ordering::Relaxed);
        }
    }

    /// Replies that came too late and were dropped.
    pub fn late_reply_count(&self) -> u64 {
        self.late_replies.load(Ordering::Relaxed)
    }

    /// Other rules are in force: has the coordinator look whether they need a connection.
    pub fn rules_changed(&self) {
        self.wake.notify_one(); // is kept for it if it is busy
    }

    /// Tells the coordinator to take its leave and end. Called once the last row is folded.
    pub fn stop(&self) {
        self.stop.tell();
    }

    /// Waits until [`Coordination::stop`] was called.
    pub async fn stopped(&self) {
        self.stop.told().await;
    }

    /// Tells the coordinator to end now, whatever the store has not heard.
    pub fn hurry(&self) {
        self.hurry.tell();
    }

    /// Waits until [`Coordination::hurry`] was called.
    pub async fn hurried(&self) {
        self.hurry.told().await;
    }
}

/// Something that is said once, and heard by whoever waits for it then or later.
#[derive(Default)]
struct Told {
    is_told: AtomicBool,
    wake: Notify,
}

impl Told {
    fn tell(&self) {
        self.is_told.store(true, Ordering::Release);
        self.wake.notify_waiters();
    }

    async fn told(&self) {
        let mut notified = std::pin::pin!(self.wake.notified());
        // First in line, then look: a word between the two wakes us.
        notified.as_mut().enable();
        if !self.is_told.load(Ordering::Acquire) {
            notified.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_trouble_is_kept_in_its_own_words_and_a_second_old_at_most() {
        let trouble = LastTrouble::default();
        (0..5_000).for_each(|at_ms| trouble.told("OOM", WallMs(at_ms)));
        let kept = || trouble.get().map(|last| (last.error.clone(), last.at));
        assert_eq!(kept(), Some(("OOM".to_owned(), WallMs(4_000))));
        trouble.told("READONLY", WallMs(4_001));
        assert_eq!(kept(), Some(("READONLY".to_owned(), WallMs(4_001))));
        trouble.clear();
        assert_eq!(kept(), None);
    }
}

//! The bell of a plain thread: rung only when it sleeps, and never missed.
//!
//! The sleeper says that it sleeps and then looks once more; the pager leaves its work and then looks whether anybody
//! sleeps. The two fences make sure that at least one of them sees the other. Proven by loom in
//! `shards/tests/loom_pager.rs`, which compiles this file: the runtime beside it cannot be built for loom.

use std::sync::OnceLock;
use std::time::Duration;

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, Ordering, fence};
#[cfg(loom)]
use loom::thread::{Thread, current};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, Ordering, fence};
#[cfg(not(loom))]
use std::thread::{Thread, current};

/// Wakes one plain thread, if it sleeps.
#[derive(Default)]
pub struct Pager {
    asleep: AtomicBool,
    thread: OnceLock<Thread>,
}

impl Pager {
    /// Wakes the sleeper if it said that it sleeps. Never waits; costs a load when it is awake.
    pub fn page(&self) {
        // The fence pairs with the one in `sleep`: either we see `asleep`, or the sleeper sees our item.
        fence(Ordering::SeqCst);
        let sleeps = self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::AcqRel);
        if sleeps && let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// Sleeps until paged or `longest` passed, unless `has_work` says otherwise once the flag is up.
    /// Only ever called by one thread.
    pub fn sleep(&self, longest: Duration, has_work: impl FnOnce() -> bool) {
        self.thread.get_or_init(current);
        // A swap, so that it stands behind a pager's swap in the flag's own order; a store would by a longer argument.
        self.asleep.swap(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if !has_work() {
            park(longest);
        }
        self.asleep.store(false, Ordering::Release);
    }
}

#[cfg(not(loom))]
fn park(longest: Duration) {
    std::thread::park_timeout(longest);
}

/// Without a timeout: a missed page is then a deadlock, which loom reports.
#[cfg(loom)]
fn park(_longest: Duration) {
    loom::thread::park();
}

//! A provider that is worked by another thread for a while: a load generator that never sleeps and has the same CPU would
//! keep the provider's own thread from it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;
use std::time::Duration;

use super::{LOOK_UP, Serving};

/// A loop that its own thread works, or for a while another one that has the same CPU.
pub(super) struct Desk {
    serving: Mutex<Serving>,
    is_lent: AtomicBool,
}

impl Desk {
    pub(super) fn new(serving: Serving) -> Arc<Self> {
        Arc::new(Desk { serving: Mutex::new(serving), is_lent: AtomicBool::new(false) })
    }

    /// What its own thread does until it is told to stop.
    pub(super) fn work(&self, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            if self.is_lent.load(Ordering::SeqCst) {
                std::thread::park();
            } else {
                self.lock().turn(LOOK_UP);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Serving> {
        self.serving.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The right to work a provider that has a single thread.
#[derive(Clone)]
pub struct Loan {
    desk: Arc<Desk>,
    owner: Thread,
}

impl std::fmt::Debug for Loan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Loan")
    }
}

impl Loan {
    pub(super) fn new(desk: Arc<Desk>, owner: Thread) -> Self {
        Loan { desk, owner }
    }

    /// Waits until the owner has let go, 50 ms at most, and takes its place until the result is dropped.
    pub fn take(&self) -> Lent<'_> {
        self.desk.is_lent.store(true, Ordering::SeqCst);
        Lent { loan: self, serving: Some(self.desk.lock()) }
    }
}

/// A provider in the hands of another thread.
pub struct Lent<'a> {
    loan: &'a Loan,
    /// Taken only by the drop.
    serving: Option<MutexGuard<'a, Serving>>,
}

impl Lent<'_> {
    /// Serves what is ready by now, without waiting; whether anything was.
    pub fn turn(&mut self) -> bool {
        self.serving.as_mut().is_some_and(|serving| serving.turn(Duration::ZERO))
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        self.serving = None;
        self.loan.desk.is_lent.store(false, Ordering::SeqCst);
        self.loan.owner.unpark();
    }
}

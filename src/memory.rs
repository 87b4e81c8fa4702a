//! Giving memory back to the system after large bodies.
//!
//! While they keep coming, a core's large buffers come from its stock ([`large`]); what of it nobody needed for a tenth of
//! a second goes back to the system, a little at a time, so that other callers do not wait for it. What many requests at
//! once left in the heap is collected when the stock has run empty.

pub mod large;

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Poll, Waker};
use std::time::Duration;

use io::runtime::sleep;
use large::{Surplus, is_stock_empty};

/// How long a block may lie in the stock unneeded: long beside the time between two bodies of busy callers.
const TICK: Duration = Duration::from_millis(100);
/// So much is given back at a time, which takes about 0.1 ms, and others run for a millisecond.
const PART_BYTES: usize = 2 << 20;
/// So much in large buffers since the heap was last collected is worth a look: it takes a fraction of a millisecond.
const WORTH_BYTES: usize = 4 << 20;

unsafe extern "C" {
    fn mi_collect(force: bool);
}

/// What one core owes the system.
#[derive(Default)]
pub struct Owed {
    /// Bytes of large buffers given back since the heap was last collected.
    given_back: Cell<usize>,
    waiting: RefCell<Option<Waker>>,
}

impl Owed {
    /// A request ended; its buffers may lie in the stock now.
    pub fn after_request(&self) {
        if !is_stock_empty()
            && let Some(waker) = self.waiting.borrow_mut().take()
        {
            waker.wake();
        }
    }

    /// Gives back what this core needs no longer, for as long as the core runs.
    pub async fn keep_giving_back(&self) {
        large::keep_stock();
        loop {
            poll_fn(|cx| {
                if is_stock_empty() {
                    *self.waiting.borrow_mut() = Some(cx.waker().clone());
                    return Poll::Pending;
                }
                Poll::Ready(())
            })
            .await;
            while !is_stock_empty() {
                sleep(TICK).await;
                let mut surplus = Surplus::of_stock();
                while surplus.give_back(PART_BYTES) {
                    self.given_back.set(self.given_back.get() + PART_BYTES);
                    sleep(Duration::from_millis(1)).await;
                }
            }
            if self.given_back.replace(0) > WORTH_BYTES {
                // SAFETY: takes a flag and works on this thread's own heap and on what is free in it.
                unsafe { mi_collect(true) };
            }
        }
    }
}

//! Giving memory back to the system after large bodies.
//!
//! While they keep coming, a core's large buffers come from its stock ([`large`]); what of it nobody needed for a tenth of
//! a second goes back to the system, a little at a time, so that other callers do not wait for it. What many requests at
//! once left in the heap is collected when the stock has run empty, or when a core frees many of its read buffers.

pub mod large;

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Poll, Waker};
use std::time::Duration;

use io::runtime::{free_unneeded, sleep};
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

/// So much in read buffers that nobody needed for a second: a burst is over, and the heap is worth a look as well.
const BURST_BYTES: usize = 1 << 20;

/// Has the system give this process memory in small pages only. Huge ones take more than is used of them (RSS 28 MB instead
/// of 22 under load, 79 instead of 36 after 9,000 connections), and a burst waits while each is cleared: 2 MB, which takes
/// about 10 ms where a virtual machine gets its memory late. Without them CPU per request stayed within the noise.
pub fn keep_pages_small() {
    // SAFETY: a plain call on this process. Kernels without huge pages refuse it, and nothing is lost.
    unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) };
}

/// Gives back what the heap of this thread no longer needs.
fn collect_heap() {
    // SAFETY: takes a flag and works on this thread's own heap and on what is free in it.
    unsafe { mi_collect(true) };
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

    /// Once a second: frees the read buffers that nobody needs any more.
    pub fn after_second(&self) {
        if free_unneeded() >= BURST_BYTES {
            collect_heap();
        }
        self.after_request();
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
                collect_heap();
            }
        }
    }
}

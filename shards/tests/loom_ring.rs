//! The rows' way to the accountant under every interleaving: order across the overflow, nothing lost or doubled but what
//! is counted, no page missed, and an end that comes after the last row.
//!
//! Compiles `io/src/ring.rs` itself, because the runtime beside it cannot be built for loom. The queue underneath is
//! not ours (rtrb), so a queue with the same contract stands in for it: one producer, one consumer, bounded, `Release`
//! on what is handed over and `Acquire` on what is taken, and nothing stronger.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p shards --release --test loom_ring`; empty without the flag.
#![cfg(loom)]

#[path = "../../io/src/ring.rs"]
#[allow(dead_code)] // all of it is compiled, and part of it used
mod ring;

/// What `io/src/ring.rs` uses of rtrb, with its orderings.
mod rtrb {
    use std::sync::{Arc, Mutex};

    use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    pub struct RingBuffer;

    struct Shared<T> {
        /// The mutex is std's, which loom does not see: it holds a value and orders nothing in the model.
        slots: Vec<Mutex<Option<T>>>,
        /// Items taken, and items handed over, since the beginning.
        head: AtomicUsize,
        tail: AtomicUsize,
        is_abandoned: AtomicBool,
    }

    pub struct Producer<T>(Arc<Shared<T>>);
    pub struct Consumer<T>(Arc<Shared<T>>);

    pub enum PushError<T> {
        Full(T),
    }

    impl RingBuffer {
        #[allow(clippy::new_ret_no_self)] // as rtrb has it
        pub fn new<T>(depth: usize) -> (Producer<T>, Consumer<T>) {
            let shared = Arc::new(Shared {
                slots: (0..depth).map(|_| Mutex::new(None)).collect(),
                head: AtomicUsize::new(0),
                tail: AtomicUsize::new(0),
                is_abandoned: AtomicBool::new(false),
            });
            (Producer(shared.clone()), Consumer(shared))
        }
    }

    impl<T> Producer<T> {
        pub fn push(&mut self, item: T) -> Result<(), PushError<T>> {
            let shared = &*self.0;
            let tail = shared.tail.load(Ordering::Relaxed);
            if tail - shared.head.load(Ordering::Acquire) == shared.slots.len() {
                return Err(PushError::Full(item));
            }
            let before = shared.slots[tail % shared.slots.len()].lock().unwrap().replace(item);
            assert!(before.is_none(), "a free slot is empty");
            shared.tail.store(tail + 1, Ordering::Release);
            Ok(())
        }
    }

    impl<T> Drop for Producer<T> {
        fn drop(&mut self) {
            self.0.is_abandoned.store(true, Ordering::Release);
        }
    }

    impl<T> Consumer<T> {
        pub fn pop(&mut self) -> Result<T, ()> {
            let shared = &*self.0;
            let head = shared.head.load(Ordering::Relaxed);
            if shared.tail.load(Ordering::Acquire) == head {
                return Err(());
            }
            let item = shared.slots[head % shared.slots.len()].lock().unwrap().take();
            shared.head.store(head + 1, Ordering::Release);
            Ok(item.expect("a handed-over slot is filled"))
        }

        pub fn is_empty(&self) -> bool {
            self.0.tail.load(Ordering::Acquire) == self.0.head.load(Ordering::Relaxed)
        }

        pub fn is_abandoned(&self) -> bool {
            self.0.is_abandoned.load(Ordering::Acquire)
        }
    }
}

use std::sync::Arc;
use std::time::Duration;

use ring::{Pager, ring};

/// Every interleaving with at most three preemptions: all of them are too many for two threads of fifty steps each, and
/// a protocol that fails with more than three fails with three as well, as far as anybody has seen.
fn model(run: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(run);
}

/// The accountant's loop: look whether all is over, take, and sleep when there was nothing. Gives what it took.
fn take_all(mut receiver: ring::RingReceiver<u32>, pager: &Pager, at_once: usize) -> Vec<u32> {
    let mut taken = Vec::new();
    loop {
        let is_finished = receiver.is_finished();
        let count = receiver.drain(at_once, |item| taken.push(item));
        receiver.settled(count as u64);
        if is_finished && count == 0 {
            return taken;
        }
        if count == 0 {
            // loom's sleep has no timeout: whoever is not woken here is a deadlock, which loom reports.
            pager.sleep(Duration::MAX, || receiver.has_items() || receiver.is_finished());
        }
    }
}

/// A ring of one and an overflow of one: three items cross the full ring, the overflow, and perhaps its end.
#[test]
fn items_come_in_order_across_the_overflow_and_only_counted_ones_are_missing() {
    model(|| {
        let pager = Arc::new(Pager::default());
        let (mut sender, receiver, counts) = ring(1, 1, pager.clone());
        let consumer = {
            let pager = pager.clone();
            loom::thread::spawn(move || take_all(receiver, &pager, 2))
        };
        let kept: Vec<u32> = (1..=3).filter(|item| sender.send(*item)).collect();
        while !sender.flush() {
            loom::thread::yield_now();
        }
        drop(sender);
        pager.page();
        let taken = consumer.join().unwrap();
        assert_eq!(taken, kept, "what was kept arrives, once, in its order");
        assert_eq!((counts.dropped() as usize, counts.lag()), (3 - kept.len(), 0));
    });
}

/// The producer leaves without flushing: what the ring holds arrives, what the overflow held is counted as dropped.
#[test]
fn a_producer_that_leaves_in_a_hurry_counts_what_it_leaves_behind() {
    model(|| {
        let pager = Arc::new(Pager::default());
        let (mut sender, receiver, counts) = ring(1, 2, pager.clone());
        let consumer = {
            let pager = pager.clone();
            loom::thread::spawn(move || take_all(receiver, &pager, 1))
        };
        (1..=2).for_each(|item| assert!(sender.send(item), "there is room for both"));
        drop(sender);
        pager.page();
        let taken = consumer.join().unwrap();
        assert!(taken == [1] || taken == [1, 2], "{taken:?}");
        assert_eq!((counts.dropped() as usize, counts.lag()), (2 - taken.len(), 0));
    });
}

/// Nobody pages but `flush`: what it moved is found, whatever the consumer was doing.
#[test]
fn what_moves_out_of_the_overflow_wakes_the_consumer() {
    model(|| {
        let pager = Arc::new(Pager::default());
        let (mut sender, mut receiver, counts) = ring(1, 1, pager.clone());
        assert!(sender.send(1) && sender.send(2));
        let consumer = {
            let pager = pager.clone();
            loom::thread::spawn(move || {
                let mut taken = Vec::new();
                while taken.len() < 2 {
                    let count = receiver.drain(1, |item| taken.push(item));
                    receiver.settled(count as u64);
                    if count == 0 {
                        pager.sleep(Duration::MAX, || receiver.has_items());
                    }
                }
                taken
            })
        };
        while !sender.flush() {
            loom::thread::yield_now();
        }
        assert_eq!(consumer.join().unwrap(), [1, 2]);
        assert_eq!(counts.dropped(), 0);
    });
}

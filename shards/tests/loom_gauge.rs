//! Every interleaving of a few leases on one gauge.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p shards --test 'loom_*' --release`; empty without the flag.
#![cfg(loom)]

use loom::cell::UnsafeCell;
use loom::thread;
use shards::gauge::Gauge;
use std::sync::Arc;

/// With a cap of one, the holder is alone: loom's cell fails the test on any access that is not ordered after
/// the previous holder's, which also proves the gauge's orderings.
#[test]
fn a_cap_of_one_is_exclusive() {
    loom::model(|| {
        let gauge = Arc::new(Gauge::new());
        let guarded = loom::sync::Arc::new(UnsafeCell::new(()));
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let (gauge, guarded) = (Arc::clone(&gauge), loom::sync::Arc::clone(&guarded));
                thread::spawn(move || {
                    if let Ok(lease) = gauge.try_lease(1) {
                        guarded.with_mut(|_| ());
                        gauge.free(lease);
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(gauge.in_flight(), 0);
        assert!(gauge.try_lease(1).is_ok());
    });
}

#[test]
fn the_last_slot_goes_to_one() {
    loom::model(|| {
        let gauge = Arc::new(Gauge::new());
        let held = gauge.try_lease(2).unwrap();
        let other = {
            let gauge = Arc::clone(&gauge);
            thread::spawn(move || gauge.try_lease(2).ok())
        };
        let mine = gauge.try_lease(2).ok();
        let theirs = other.join().unwrap();
        assert!(mine.is_some() ^ theirs.is_some());
        assert_eq!(gauge.in_flight(), 2);
        for slot in [Some(held), mine, theirs].into_iter().flatten() {
            gauge.free(slot);
        }
        assert_eq!(gauge.in_flight(), 0);
    });
}

/// A shadow lease over the cap is counted, and its return frees only itself.
#[test]
fn a_lease_over_the_cap_is_counted_once() {
    loom::model(|| {
        let gauge = Arc::new(Gauge::new());
        let held = gauge.try_lease(1).unwrap();
        let shadow = {
            let gauge = Arc::clone(&gauge);
            thread::spawn(move || gauge.free(gauge.lease_over()))
        };
        assert!(gauge.try_lease(1).is_err(), "full with or without the shadow");
        gauge.free(held);
        shadow.join().unwrap();
        assert_eq!(gauge.in_flight(), 0);
        assert!(gauge.try_lease(1).is_ok());
    });
}

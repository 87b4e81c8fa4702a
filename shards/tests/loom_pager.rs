//! The accountant's bell under every interleaving: work left before a page is seen, or its sleeper is woken.
#![cfg(loom)]

#[path = "../../io/src/ring/pager.rs"]
mod pager;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use pager::Pager;

#[test]
fn a_page_is_never_missed() {
    loom::model(|| {
        let pager = Arc::new(Pager::default());
        let work = Arc::new(AtomicBool::new(false));
        let producer = {
            let (pager, work) = (pager.clone(), work.clone());
            loom::thread::spawn(move || {
                // Relaxed, as weak as a ring may be: the order comes from the pager's fences alone.
                work.store(true, Ordering::Relaxed);
                pager.page();
            })
        };
        while !work.load(Ordering::Relaxed) {
            pager.sleep(std::time::Duration::MAX, || work.load(Ordering::Relaxed));
        }
        producer.join().unwrap();
    });
}

//! Waiting on a condition with a deadline: the only way a test lets time pass.

use std::fmt::Debug;
use std::time::{Duration, Instant};

/// How long a condition may take that nobody promised a time for. It only bounds a failure, so it is generous.
pub const SOON: Duration = Duration::from_secs(15);

/// For what the contract promises "within a second": twice that, because the machine also runs other tests.
pub const PROMPTLY: Duration = Duration::from_secs(2);

/// Polls until `probe` gives something; panics with `what` when `within` has passed.
#[track_caller]
pub fn until_some<T>(what: &str, within: Duration, mut probe: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + within;
    loop {
        if let Some(found) = probe() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited {within:?} for {what}");
        std::thread::sleep(Duration::from_millis(5)); // the pause between two looks, not an order of events
    }
}

/// Polls until `holds` is true; panics with `what` when `within` has passed.
#[track_caller]
pub fn until(what: &str, within: Duration, mut holds: impl FnMut() -> bool) {
    until_some(what, within, || holds().then_some(()))
}

/// Polls until both sides are the same; panics with `what` and the two when `within` has passed.
#[track_caller]
pub fn until_equal<T: PartialEq + Debug>(what: &str, within: Duration, mut probe: impl FnMut() -> (T, T)) {
    let deadline = Instant::now() + within;
    loop {
        let (found, meant) = probe();
        if found == meant {
            return;
        }
        assert!(Instant::now() < deadline, "waited {within:?} for {what}: found {found:?}, meant {meant:?}");
        std::thread::sleep(Duration::from_millis(5)); // as above
    }
}

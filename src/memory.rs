//! Giving memory back to the system after large bodies.
//!
//! The allocator keeps what was freed until the thread that freed it allocates again, which on a quiet core is never:
//! one 10 MiB body an hour would hold 36 MB for ever, a burst of 1,500 bodies of 150 KB would hold 150 MB. A core counts
//! the large buffers it is done with, and when they stop coming it asks for what is free to be given back.

use std::cell::Cell;

use mimalloc as _; // links the allocator that `main` installs; under another one the call finds nothing to do

/// Buffers up to this size are reused from request to request.
const LARGE_BYTES: usize = 64 << 10;
/// So much in large buffers since the last time is worth a look: it takes a fraction of a millisecond.
const WORTH_BYTES: usize = 4 << 20;
/// While more than this comes in a second, the memory is needed again at once.
const CALM_BYTES: usize = 4 << 20;
/// Looks after a burst, a second apart: at the first, its last requests may still be running.
const LOOKS: u8 = 3;

unsafe extern "C" {
    fn mi_collect(force: bool);
}

/// What one core owes the system.
#[derive(Default)]
pub struct Owed {
    /// Bytes of large buffers since the last tick, and since memory was last given back.
    recent: Cell<usize>,
    all: Cell<usize>,
    looks: Cell<u8>,
}

impl Owed {
    /// A request ended whose buffer had this capacity.
    pub fn after(&self, buffer_bytes: usize) {
        if buffer_bytes > LARGE_BYTES {
            self.recent.set(self.recent.get().saturating_add(buffer_bytes));
        }
    }

    /// Once a second: gives back what is free, if large bodies came and have stopped coming.
    pub fn tick(&self) {
        if self.is_due() {
            // SAFETY: takes a flag and works on this thread's own heap and on what is free in it.
            unsafe { mi_collect(true) };
        }
    }

    fn is_due(&self) -> bool {
        let recent = self.recent.take();
        self.all.set(self.all.get().saturating_add(recent));
        if recent > CALM_BYTES {
            return false;
        }
        if self.all.get() > WORTH_BYTES {
            self.all.set(0);
            self.looks.set(LOOKS);
        }
        let left = self.looks.get();
        self.looks.set(left.saturating_sub(1));
        left > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticks(owed: &Owed, count: usize) -> Vec<bool> {
        (0..count).map(|_| owed.is_due()).collect()
    }

    #[test]
    fn memory_is_given_back_when_large_bodies_have_stopped_coming() {
        let owed = Owed::default();
        owed.after(10 << 20);
        assert_eq!(ticks(&owed, 6), [false, true, true, true, false, false], "the second of the body itself is busy");
        for _ in 0..5 {
            (0..1_500).for_each(|_| owed.after(150 << 10));
            assert_eq!(ticks(&owed, 1), [false], "it is needed again at once");
        }
        assert_eq!(ticks(&owed, 5), [true, true, true, false, false]);
    }

    #[test]
    fn ordinary_traffic_never_asks() {
        let owed = Owed::default();
        for _ in 0..100 {
            (0..10_000).for_each(|_| owed.after(LARGE_BYTES));
            assert_eq!(ticks(&owed, 1), [false]);
        }
    }

    #[test]
    fn what_comes_in_drops_is_given_back_once_it_is_worth_it() {
        let owed = Owed::default();
        let due = (0..10).filter(|_| {
            owed.after(1 << 20);
            owed.is_due()
        });
        assert_eq!(due.count(), 4, "three looks after the fifth megabyte, and the first one after the tenth");
    }
}

//! Counts heap allocations, in builds with the feature `count-allocations` alone: how `bench` learns that the steady
//! state of a request allocates nothing. Shown as `tokentriage_allocations_total` in `/metrics`.

use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::memory::large::Allocator;

static COUNT: AtomicU64 = AtomicU64::new(0);

/// Allocations and reallocations of the whole process so far.
pub fn count() -> u64 {
    COUNT.load(Ordering::Relaxed) // a statistic, nothing hangs on it
}

/// The usual allocator, counted.
pub struct Counting(pub Allocator);

// SAFETY: every call goes to the inner allocator as it came; the counter touches no memory of the caller's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise, passed on.
        unsafe { self.0.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise, passed on.
        unsafe { self.0.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise, passed on.
        unsafe { self.0.realloc(pointer, layout, new_size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.0.dealloc(pointer, layout) }
    }
}

//! A small stack of read buffers per core, so that an idle connection holds none and a busy one allocates none.

use std::cell::RefCell;

/// Big enough for nearly every head plus its JSON body in one read.
const BUFFER_BYTES: usize = 16 * 1024;
/// 256 x 16 KiB = 4 MiB kept per core at rest; more in use at once is allocated and freed.
const KEPT_MAX: usize = 256;

thread_local! {
    static KEPT: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// An empty buffer of at least 16 KiB capacity.
pub fn take_buffer() -> Vec<u8> {
    KEPT.with_borrow_mut(Vec::pop).unwrap_or_else(|| Vec::with_capacity(BUFFER_BYTES))
}

/// Gives a buffer back. One that grew past its size is freed, so that a big body leaves no memory behind.
pub fn give_buffer(mut buffer: Vec<u8>) {
    if buffer.capacity() < BUFFER_BYTES || buffer.capacity() > 2 * BUFFER_BYTES {
        return;
    }
    buffer.clear();
    KEPT.with_borrow_mut(|kept| {
        if kept.len() < KEPT_MAX {
            kept.push(buffer);
        }
    });
}

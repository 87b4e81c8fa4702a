//! A small stack of read buffers per core, so that an idle connection holds none and a busy one allocates none.

use std::cell::RefCell;

/// Big enough for nearly every head plus its JSON body in one read.
pub(super) const BUFFER_BYTES: usize = 16 * 1024;
/// 256 x 16 KiB = 4 MiB kept per core; more in use at once is allocated and freed.
const KEPT_MAX: usize = 256;
/// So many stay however long nobody needed them: half a megabyte.
const KEPT_MIN: usize = 32;

thread_local! {
    static SPARE: RefCell<Spare> = const { RefCell::new(Spare { buffers: Vec::new(), unneeded: 0 }) };
}

/// The buffers nobody uses.
struct Spare {
    buffers: Vec<Vec<u8>>,
    /// The fewest there were since the last [`free_unneeded`]: so many nobody needed.
    unneeded: usize,
}

/// An empty buffer of at least 16 KiB capacity.
pub fn take_buffer() -> Vec<u8> {
    let spare = SPARE.with_borrow_mut(|spare| {
        let buffer = spare.buffers.pop();
        spare.unneeded = spare.unneeded.min(spare.buffers.len());
        buffer
    });
    spare.unwrap_or_else(|| Vec::with_capacity(BUFFER_BYTES))
}

/// Takes a buffer in the place of none.
pub fn ensure_buffer(buffer: &mut Vec<u8>) {
    if buffer.capacity() == 0 {
        *buffer = take_buffer();
    }
}

/// Gives a buffer back. One that grew past its size is freed, so that a big body leaves no memory behind.
pub fn give_buffer(mut buffer: Vec<u8>) {
    if buffer.capacity() < BUFFER_BYTES || buffer.capacity() > 2 * BUFFER_BYTES {
        return;
    }
    buffer.clear();
    SPARE.with_borrow_mut(|spare| {
        if spare.buffers.len() < KEPT_MAX {
            spare.buffers.push(buffer);
        }
    });
}

/// Frees the buffers that nobody needed since the last call, but for a few; says how many bytes that were.
pub fn free_unneeded() -> usize {
    SPARE.with_borrow_mut(|spare| {
        let before = spare.buffers.len();
        let kept = (before - spare.unneeded.min(before)).max(KEPT_MIN);
        spare.buffers.truncate(kept);
        spare.buffers.shrink_to(kept);
        spare.unneeded = spare.buffers.len();
        (before - spare.buffers.len()) * BUFFER_BYTES
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_needed_since_the_last_look_is_freed_but_for_a_few() {
        let held: Vec<_> = (0..300).map(|_| take_buffer()).collect();
        held.into_iter().for_each(give_buffer);
        assert_eq!(free_unneeded(), 0, "all were in use a moment ago");
        let held: Vec<_> = (0..100).map(|_| take_buffer()).collect();
        held.into_iter().for_each(give_buffer);
        assert_eq!(free_unneeded(), (KEPT_MAX - 100) * BUFFER_BYTES);
        assert_eq!(free_unneeded(), (100 - KEPT_MIN) * BUFFER_BYTES);
        assert_eq!(free_unneeded(), 0);
        let held: Vec<_> = (0..KEPT_MIN + 1).map(|_| take_buffer()).collect();
        assert!(held.iter().all(|buffer| buffer.is_empty() && buffer.capacity() >= BUFFER_BYTES));
    }
}

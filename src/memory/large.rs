//! Blocks of memory for large buffers, straight from the system instead of from the allocator's heap.
//!
//! An allocator keeps what was freed, in case it is needed again, and gives it back when it is next asked for something,
//! which on a quiet core is never. A large block is a mapping of its own here: freed, it goes into the stock of its thread,
//! where there is one ([`keep_stock`], on a data core), and from there to the next who asks or back to the system
//! ([`Surplus`]); without a stock it goes back at once. A buffer that grows is moved by its page table instead of copied.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::ptr::null_mut;

use mimalloc::MiMalloc;

/// Blocks up to this size are the heap's; a read buffer of a connection is.
const SMALL_MAX: usize = 64 << 10;
/// Four sizes per doubling, from 64 KiB on: what a block is larger than asked costs address space and no memory.
const SIZES: usize = 4 * 24;
/// Larger ones are given back at once: up to 1 TiB there is a size each.
const STOCKED_MAX: usize = SMALL_MAX << 23;
const PAGE: usize = 4096;

/// The allocator of the process: a heap for what is small, mappings for what is large.
pub struct Allocator;

static HEAP: MiMalloc = MiMalloc;

unsafe extern "C" {
    fn mi_malloc(bytes: usize) -> *mut libc::c_void;
}

thread_local! {
    /// No destructor and no lazy beginning: the allocator may look at it at any time.
    static STOCK: Stock = const { Stock::new() };
}

/// Freed blocks of one thread, by size, the one freed last on top.
struct Stock {
    is_kept: Cell<bool>,
    tops: [Cell<*mut Free>; SIZES],
    counts: [Cell<u32>; SIZES],
    /// The fewest blocks there were since the surplus was last looked for: so many nobody needed.
    unneeded: [Cell<u32>; SIZES],
    blocks: Cell<u32>,
    /// A block that is being given back, and how much of it is left.
    going: Cell<(*mut Free, usize)>,
}

/// What stands in a freed block.
struct Free {
    below: *mut Free,
}

impl Stock {
    const fn new() -> Self {
        Stock {
            is_kept: Cell::new(false),
            tops: [const { Cell::new(null_mut()) }; SIZES],
            counts: [const { Cell::new(0) }; SIZES],
            unneeded: [const { Cell::new(0) }; SIZES],
            blocks: Cell::new(0),
            going: Cell::new((null_mut(), 0)),
        }
    }

    fn take(&self, size: usize) -> *mut Free {
        let top = self.tops[size].get();
        if !top.is_null() {
            // SAFETY: a block in the stock is mapped, ours alone, and begins with what `put` wrote.
            self.tops[size].set(unsafe { (*top).below });
            let left = self.counts[size].get() - 1;
            self.counts[size].set(left);
            self.unneeded[size].set(self.unneeded[size].get().min(left));
            self.blocks.set(self.blocks.get() - 1);
        }
        top
    }

    fn put(&self, size: usize, block: *mut Free) {
        // SAFETY: a freed block is mapped, page-aligned, and nobody else's.
        unsafe { block.write(Free { below: self.tops[size].get() }) };
        self.tops[size].set(block);
        self.counts[size].set(self.counts[size].get() + 1);
        self.blocks.set(self.blocks.get() + 1);
    }
}

/// From now on this thread keeps large blocks it freed, for as long as it keeps needing them. Only for threads that look
/// after their [`Surplus`] and live as long as the process.
pub fn keep_stock() {
    STOCK.with(|stock| stock.is_kept.set(true));
}

/// Whether this thread's stock is empty.
pub fn is_stock_empty() -> bool {
    STOCK.with(|stock| stock.blocks.get() == 0 && stock.going.get().0.is_null())
}

/// What this thread's stock held all the time since the last surplus was made: nobody needed it.
pub struct Surplus {
    counts: [u32; SIZES],
}

impl Surplus {
    /// Looks at the stock, and begins the time for the next one.
    pub fn of_stock() -> Self {
        STOCK.with(|stock| {
            let counts = std::array::from_fn(|size| stock.unneeded[size].replace(stock.counts[size].get()));
            Surplus { counts }
        })
    }

    /// Gives up to `bytes` of it back to the system, which takes about 50 µs a megabyte. `false`: nothing is left.
    pub fn give_back(&mut self, bytes: usize) -> bool {
        STOCK.with(|stock| {
            let mut left = bytes;
            while left > 0 {
                let (block, length) = match stock.going.get() {
                    (block, length) if !block.is_null() => (block, length),
                    _ => {
                        let Some(size) = self.counts.iter().rposition(|count| *count > 0) else { return false };
                        self.counts[size] -= 1;
                        match stock.take(size) {
                            block if block.is_null() => continue,
                            block => (block, bytes_of(size)),
                        }
                    }
                };
                // From its end, so that what is left is still a block.
                let part = length.min((left / PAGE).max(1) * PAGE);
                // SAFETY: the last `part` bytes of a mapping that nobody uses.
                unsafe { unmap(block.cast::<u8>().add(length - part), part) };
                stock.going.set(if part < length { (block, length - part) } else { (null_mut(), 0) });
                left = left.saturating_sub(part);
            }
            true
        })
    }
}

/// Which size a block of so many bytes (more than [`SMALL_MAX`], at most [`STOCKED_MAX`]) has.
fn size_of(bytes: usize) -> usize {
    let doublings = bytes.ilog2() as usize;
    let step = 1 << (doublings - 2);
    4 * (doublings - SMALL_MAX.ilog2() as usize) + (bytes - (1 << doublings)).div_ceil(step)
}

/// How many bytes a block of this size has.
fn bytes_of(size: usize) -> usize {
    let base = SMALL_MAX << (size / 4);
    base + size % 4 * (base / 4)
}

/// How long the mapping of a block is.
fn mapped(bytes: usize) -> usize {
    if bytes > STOCKED_MAX { bytes.next_multiple_of(PAGE) } else { bytes_of(size_of(bytes)) }
}

/// Whether any block of that size is aligned well enough, which C promises of `malloc` up to 16 bytes. The heap's call for
/// aligned blocks makes those of more than 1 KB larger than asked for and looks for an aligned place in them.
fn is_plain(layout: Layout) -> bool {
    layout.align() <= 16 && layout.size() >= layout.align()
}

fn is_large(layout: Layout) -> bool {
    layout.size() > SMALL_MAX && layout.align() <= PAGE
}

/// A new mapping, all zeros; null when there is no memory.
fn map(bytes: usize) -> *mut u8 {
    let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: asks for new memory at no place in particular.
    let block = unsafe { libc::mmap(null_mut(), bytes, access, flags, -1, 0) };
    if block == libc::MAP_FAILED { null_mut() } else { block.cast() }
}

/// # Safety
/// The bytes are whole pages of a mapping of ours, and nobody uses them.
unsafe fn unmap(block: *mut u8, bytes: usize) {
    // SAFETY: the caller's promise. It cannot fail on whole pages that are mapped, except for want of memory for the
    // kernel's own records, and then the pages stay.
    unsafe { libc::munmap(block.cast(), bytes) };
}

// SAFETY: small blocks are the heap's in every call, by size and alignment alone; large ones are mappings whose length
// follows from the layout, so that each call finds what an earlier one made. Nothing here panics or allocates.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !is_large(layout) {
            if is_plain(layout) {
                // SAFETY: any size will do; the heap frees and grows what either of its calls made.
                return unsafe { mi_malloc(layout.size()) }.cast();
            }
            // SAFETY: the caller's promise, passed on.
            return unsafe { HEAP.alloc(layout) };
        }
        let bytes = layout.size();
        if bytes <= STOCKED_MAX {
            let block = STOCK.with(|stock| stock.take(size_of(bytes)));
            if !block.is_null() {
                return block.cast();
            }
        }
        map(mapped(bytes))
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_large(layout) {
            return map(mapped(layout.size())); // zeros already, and none of its pages is there yet
        }
        // SAFETY: the caller's promise, passed on.
        unsafe { HEAP.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        if !is_large(layout) {
            // SAFETY: the caller's promise, passed on.
            return unsafe { HEAP.dealloc(pointer, layout) };
        }
        let bytes = layout.size();
        let is_kept = bytes <= STOCKED_MAX
            && STOCK.with(|stock| {
                if stock.is_kept.get() {
                    stock.put(size_of(bytes), pointer.cast());
                }
                stock.is_kept.get()
            });
        if !is_kept {
            // SAFETY: the whole mapping that `alloc` made for this layout.
            unsafe { unmap(pointer, mapped(bytes)) };
        }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: the alignment is one that exists, and the caller promises that the size does not overflow.
        let new = unsafe { Layout::from_size_align_unchecked(bytes, layout.align()) };
        match (is_large(layout), is_large(new)) {
            // SAFETY: the caller's promise, passed on.
            (false, false) => unsafe { HEAP.realloc(pointer, layout, bytes) },
            (true, true) if mapped(layout.size()) == mapped(bytes) => pointer,
            (true, true) => {
                // SAFETY: the whole mapping that `alloc` made for this layout; where it goes, the caller goes with it.
                let moved =
                    unsafe { libc::mremap(pointer.cast(), mapped(layout.size()), mapped(bytes), libc::MREMAP_MAYMOVE) };
                if moved == libc::MAP_FAILED { null_mut() } else { moved.cast() }
            }
            _ => {
                // SAFETY: a new block of at least the bytes that are copied, which no old block overlaps; then the old one
                // is freed as the caller's promise allows.
                unsafe {
                    let block = self.alloc(new);
                    if !block.is_null() {
                        block.copy_from_nonoverlapping(pointer, layout.size().min(bytes));
                        self.dealloc(pointer, layout);
                    }
                    block
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(bytes: usize) -> Layout {
        Layout::from_size_align(bytes, 1).unwrap()
    }

    fn blocks() -> u32 {
        STOCK.with(|stock| stock.blocks.get())
    }

    /// Allocates and fills a block.
    fn filled(bytes: usize, with: u8) -> *mut u8 {
        // SAFETY: the layout is not empty, and the block has so many bytes.
        unsafe {
            let block = Allocator.alloc(layout(bytes));
            assert!(!block.is_null());
            block.write_bytes(with, bytes);
            block
        }
    }

    #[test]
    fn a_size_holds_what_it_is_for_and_little_more() {
        for bytes in
            (SMALL_MAX + 1..2 << 20).step_by(997).chain([1 << 20, (1 << 20) + 1, 33_000_000, 1 << 30, STOCKED_MAX])
        {
            let (size, holds) = (size_of(bytes), bytes_of(size_of(bytes)));
            assert!(size < SIZES && holds >= bytes && holds % PAGE == 0, "{bytes}: {size}, {holds}");
            assert!((holds as f64) <= bytes as f64 * 1.25 + 1.0, "{bytes}: {holds}");
            assert_eq!(size_of(holds), size, "{bytes}");
        }
    }

    #[test]
    fn without_a_stock_a_block_goes_back_at_once() {
        let block = filled(1 << 20, 7);
        // SAFETY: freed once, as it was made.
        unsafe { Allocator.dealloc(block, layout(1 << 20)) };
        assert!(is_stock_empty());
    }

    #[test]
    fn what_is_needed_again_comes_from_the_stock_and_what_is_not_goes_back_in_parts() {
        keep_stock();
        let bytes = 150_000;
        let held: Vec<_> = (0..10).map(|_| filled(bytes, 1)).collect();
        // SAFETY: each is freed once, as it was made.
        held.iter().for_each(|block| unsafe { Allocator.dealloc(*block, layout(bytes)) });
        assert_eq!(blocks(), 10);
        assert!(!Surplus::of_stock().give_back(usize::MAX), "all of it was in use a moment ago");
        assert_eq!(blocks(), 10);
        // A block as large again is one of them; two in use at a time leave eight that nobody needed.
        for _ in 0..5 {
            let pair = [filled(bytes, 2), filled(bytes - 1_000, 3)];
            assert!(pair.iter().all(|block| held.contains(block)));
            // SAFETY: each is freed once, as it was made.
            unsafe {
                Allocator.dealloc(pair[0], layout(bytes));
                Allocator.dealloc(pair[1], layout(bytes - 1_000));
            }
        }
        let mut surplus = Surplus::of_stock();
        let mut parts = 0;
        while surplus.give_back(100_000) {
            parts += 1;
        }
        assert!((8 * bytes / 100_000..30).contains(&parts), "{parts}");
        assert_eq!(blocks(), 2);
        assert!(!Surplus::of_stock().give_back(usize::MAX), "nobody asked, and nothing was left");
        assert!(is_stock_empty());
    }

    #[test]
    fn a_buffer_keeps_its_bytes_while_it_grows_and_shrinks() {
        keep_stock();
        // SAFETY: each call has the layout of the one before, and reads within it.
        unsafe {
            let mut block = Allocator.alloc(layout(1_000));
            block.write_bytes(9, 1_000);
            let mut bytes = 1_000;
            for next in [60_000, 70_000, 71_000, 5_000_000, 20_000_000, 100_000, 64 << 10, 500, 1 << 20] {
                block = Allocator.realloc(block, layout(bytes), next);
                bytes = next;
                assert!((0..400).all(|at| block.add(at).read() == 9), "{bytes}");
                block.add(bytes - 1).write(8);
            }
            Allocator.dealloc(block, layout(bytes));
            let zeros = Allocator.alloc_zeroed(layout(bytes));
            assert!((0..bytes).all(|at| zeros.add(at).read() == 0));
            Allocator.dealloc(zeros, layout(bytes));
        }
    }
}

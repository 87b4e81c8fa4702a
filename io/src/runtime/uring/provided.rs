//! Buffers that the kernel takes by itself when bytes come, so that a socket that waits for some holds none.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::types::{BufRingEntry, Fd};
use io_uring::{IoUring, cqueue, opcode, squeue};

use crate::runtime::buffers::{BUFFER_BYTES, take_buffer};

/// The only group of a ring.
const GROUP: u16 = 0;
/// What may come in one turn before receives end early and are begun anew: 128 × 16 KiB, of which small requests touch the
/// first page.
const COUNT: u16 = 128;
/// On a page of its own, however large the pages of the machine are.
const LAYOUT: Layout = match Layout::from_size_align(COUNT as usize * size_of::<BufRingEntry>(), 64 * 1024) {
    Ok(layout) => layout,
    Err(_) => panic!("a page is a power of two"),
};

/// A receive that goes on ends when so much has come, and is begun anew by who reads on: a dozen of small requests. Without
/// an end the kernel would fill one buffer after the other from a socket that nobody reads.
pub(super) const RECEIVED_MAX: u32 = BUFFER_BYTES as u32;
/// Where a submission entry has that figure (`optlen`), for which the crate has no name.
const RECEIVED_MAX_AT: usize = 44;
const _: () = assert!(size_of::<squeue::Entry>() == 64, "a submission entry is the kernel's own");

/// A receive that goes on.
pub(super) fn receive_on(socket: RawFd) -> squeue::Entry {
    let mut entry = opcode::RecvMulti::new(Fd(socket), GROUP).build();
    // SAFETY: within the entry, aligned, and plain bytes; what else shares the place is of other operations.
    unsafe { (&raw mut entry).cast::<u8>().add(RECEIVED_MAX_AT).cast::<u32>().write(RECEIVED_MAX) };
    entry
}

/// A ring of buffers, shared with the kernel. To be dropped after the io_uring it is registered with.
pub(super) struct Provided {
    entries: NonNull<BufRingEntry>,
    /// By the number that the kernel knows each by.
    buffers: Vec<Vec<u8>>,
    tail: u16,
}

impl Provided {
    /// `None` where the kernel does not know such buffers, or no receives that go on to an end (Linux 6.17).
    pub(super) fn register(uring: &mut IoUring) -> io::Result<Option<Self>> {
        // SAFETY: the layout is not empty. Zeroes are entries that nobody has put yet.
        let memory = unsafe { alloc_zeroed(LAYOUT) };
        let Some(entries) = NonNull::new(memory.cast::<BufRingEntry>()) else { handle_alloc_error(LAYOUT) };
        let mut provided = Provided { entries, buffers: Vec::with_capacity(usize::from(COUNT)), tail: 0 };
        // SAFETY: the memory lives until the ring is gone (see the type) or knows it no longer, and is as long as said.
        let registered =
            unsafe { uring.submitter().register_buf_ring_with_flags(entries.as_ptr() as u64, COUNT, GROUP, 0) };
        if registered.is_err() {
            return Ok(None);
        }
        for id in 0..COUNT {
            provided.buffers.push(take_buffer());
            provided.put(id);
        }
        match provided.come_to_an_end(uring) {
            Ok(true) => Ok(Some(provided)),
            Ok(false) => {
                uring.submitter().unregister_buf_ring(GROUP).inspect_err(|_| std::mem::forget(provided))?;
                Ok(None)
            }
            Err(error) => {
                std::mem::forget(provided); // the kernel may have it
                Err(error)
            }
        }
    }

    /// Asks the kernel for such a receive, on a pair of sockets of which one says a byte and leaves.
    fn come_to_an_end(&mut self, uring: &mut IoUring) -> io::Result<bool> {
        let (socket, mut peer) = UnixStream::pair()?;
        peer.write_all(&[0])?;
        drop(peer);
        // SAFETY: what it reads into is registered, and it has ended before anybody lets go of that.
        unsafe { uring.submission().push(&receive_on(socket.as_raw_fd())) }.map_err(io::Error::other)?;
        loop {
            if let Err(error) = uring.submit_and_wait(1)
                && error.kind() != io::ErrorKind::Interrupted
            {
                return Err(error);
            }
            while let Some(done) = uring.completion().next() {
                if let Some(id) = cqueue::buffer_select(done.flags()) {
                    self.take(id, done.result().max(0) as usize);
                }
                if !cqueue::more(done.flags()) {
                    return Ok(done.result() == 0); // the peer's end, after its byte
                }
            }
        }
    }

    /// The buffer that the kernel filled with `count` bytes. Another takes its place.
    pub(super) fn take(&mut self, id: u16, count: usize) -> Option<Vec<u8>> {
        let mut buffer = std::mem::replace(self.buffers.get_mut(usize::from(id))?, take_buffer());
        self.put(id);
        // SAFETY: the kernel wrote that many bytes, and was given no more room than the buffer has.
        unsafe { buffer.set_len(count.min(BUFFER_BYTES)) };
        Some(buffer)
    }

    /// Offers the buffer of that number to the kernel.
    fn put(&mut self, id: u16) {
        let buffer = &mut self.buffers[usize::from(id)];
        // SAFETY: the index is within the ring, and the kernel reads no entry at or behind the tail.
        let entry = unsafe { &mut *self.entries.as_ptr().add(usize::from(self.tail % COUNT)) };
        entry.set_addr(buffer.as_mut_ptr() as u64);
        entry.set_len(BUFFER_BYTES as u32);
        entry.set_bid(id);
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: the tail lies in the first entry, where nothing else of ours writes.
        let tail = unsafe { AtomicU16::from_ptr(BufRingEntry::tail(self.entries.as_ptr()).cast_mut()) };
        tail.store(self.tail, Ordering::Release); // after the entry
    }
}

impl Drop for Provided {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout; the ring that knew of it is gone.
        unsafe { dealloc(self.entries.as_ptr().cast(), LAYOUT) };
    }
}

//! One TCP connection on whichever driver its core runs on: the same calls, polled.

use std::io;
use std::net::TcpStream;
use std::ops::Range;
use std::os::fd::RawFd;
use std::task::{Context, Poll, ready};

use super::driver::Driver;
use super::executor::driver;
use super::{epoll, give_buffer, take_buffer, uring};
use crate::clock;

/// What one write hands to the kernel at most: copying more would hold the core for longer than a small request takes.
pub(super) const PIECE_BYTES: usize = 256 * 1024;

/// A connection that only moves bytes.
pub(super) enum Stream {
    /// Operations in the ring.
    Uring(uring::Stream),
    /// Calls once epoll says that they will not wait.
    Epoll(epoll::Stream),
}

impl Stream {
    /// Takes a connecting or connected socket over.
    pub(super) fn new(tcp: TcpStream) -> io::Result<Self> {
        match driver() {
            Driver::Epoll(_) => {
                tcp.set_nonblocking(true)?;
                Ok(Stream::Epoll(epoll::Stream::new(tcp.into())?))
            }
            Driver::Uring(ring) => {
                tcp.set_nonblocking(false)?; // or an operation fails at once, on some kernels, instead of waiting in the ring
                Ok(Stream::Uring(uring::Stream::new(ring, tcp.into())))
            }
        }
    }

    pub(super) fn as_raw_fd(&self) -> RawFd {
        match self {
            Stream::Uring(stream) => stream.as_raw_fd(),
            Stream::Epoll(stream) => stream.as_raw_fd(),
        }
    }

    /// Ready when a read would not wait. Not while a read is under way.
    pub(super) fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self {
            Stream::Uring(stream) => stream.poll_readable(cx),
            Stream::Epoll(stream) => stream.poll_readable(cx),
        }
    }

    /// Appends at most `room` bytes; 0 is the peer's end. While it is pending the kernel may have the buffer, and who
    /// stops polling then gives up the connection.
    pub(super) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        into: &mut Vec<u8>,
        room: usize,
    ) -> Poll<io::Result<usize>> {
        match self {
            Stream::Uring(stream) => stream.poll_read(cx, into, room),
            Stream::Epoll(stream) => stream.poll_read(cx, into, room),
        }
    }

    /// Like [`Stream::poll_read`], but after [`Stream::poll_readable`]: `None` when that was a false alarm.
    pub(super) fn poll_read_now(
        &mut self,
        cx: &mut Context<'_>,
        into: &mut Vec<u8>,
        room: usize,
    ) -> Poll<io::Result<Option<usize>>> {
        match self {
            Stream::Uring(stream) => stream.poll_read_now(cx, into, room),
            Stream::Epoll(stream) => match stream.poll_read(cx, into, room) {
                Poll::Ready(result) => Poll::Ready(result.map(Some)),
                Poll::Pending => Poll::Ready(Ok(None)),
            },
        }
    }

    /// Reads into a buffer of the core's own, so that a peer may be waited for that has sent nothing. The kernel may have
    /// the buffer while it is pending; [`Stream::call_off_read_ahead`] gets it back.
    pub(super) fn poll_read_ahead(
        &mut self,
        cx: &mut Context<'_>,
        ahead: &mut Vec<u8>,
        room: usize,
    ) -> Poll<io::Result<usize>> {
        match self {
            Stream::Uring(stream) => {
                if !stream.is_reading() && !stream.needs_no_buffer() {
                    *ahead = take_buffer();
                }
                stream.poll_read(cx, ahead, room)
            }
            Stream::Epoll(stream) => {
                ready!(stream.poll_readable(cx));
                *ahead = take_buffer();
                let read = stream.poll_read(cx, ahead, room);
                if read.is_pending() {
                    give_buffer(std::mem::take(ahead));
                }
                read
            }
        }
    }

    /// The read ahead ends without its bytes: at once (`true`), or soon, with `ECANCELED` or the bytes that were faster.
    pub(super) fn call_off_read_ahead(&mut self) -> bool {
        match self {
            Stream::Uring(stream) if stream.needs_no_buffer() => true,
            Stream::Uring(stream) => {
                stream.call_off_read();
                false
            }
            Stream::Epoll(_) => true,
        }
    }

    /// Whether bytes or an end came that nobody has asked for.
    pub(super) fn has_arrived(&self) -> bool {
        match self {
            Stream::Uring(stream) => stream.has_arrived(),
            Stream::Epoll(_) => false, // they wait in the kernel
        }
    }

    /// Ready when a peer that was silent is no longer. Between reads; holds as little as can be.
    pub(super) fn poll_silence(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self {
            Stream::Uring(stream) => stream.poll_readable(cx),
            Stream::Epoll(stream) => stream.poll_readable(cx),
        }
    }

    /// Ready when a write would not wait: a connection came about, or failed.
    pub(super) fn poll_writable(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self {
            Stream::Uring(stream) => stream.poll_writable(cx),
            Stream::Epoll(stream) => stream.poll_writable(cx),
        }
    }

    /// Sends what the kernel takes at once; 0 when it takes nothing now. Only between writes.
    pub(super) fn write_now(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Uring(stream) => match stream.write_now(bytes) {
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(0),
                done => done,
            },
            Stream::Epoll(_) => Ok(0), // its writes begin that way
        }
    }

    /// Whether others should run before the next piece: on epoll a write ends without a wait. The task is woken then.
    pub(super) fn lets_others_run(&self, cx: &Context<'_>) -> bool {
        match self {
            Stream::Uring(_) => false,
            Stream::Epoll(_) => {
                cx.waker().wake_by_ref(); // runs in the next turn
                true
            }
        }
    }

    /// Sends what the kernel takes of a part of the buffer, at most a piece; ready with how much that was. The kernel
    /// may have the buffer while it is pending. `quietly`: the task need not be woken when all of the part has left; what
    /// became of it is told to who polls next.
    pub(super) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &mut Vec<u8>,
        part: Range<usize>,
        quietly: bool,
    ) -> Poll<io::Result<usize>> {
        let piece = part.start..part.end.min(part.start + PIECE_BYTES);
        match self {
            Stream::Uring(stream) => stream.poll_write(cx, bytes, piece.clone(), quietly && piece == part),
            Stream::Epoll(stream) => stream.poll_write(cx, &bytes[piece]),
        }
    }

    /// When the last write left, monotonic ns; to be asked when it is ready.
    pub(super) fn written_ns(&self) -> u64 {
        match self {
            Stream::Uring(stream) => stream.written_ns(),
            Stream::Epoll(_) => clock::mono_ns(),
        }
    }
}

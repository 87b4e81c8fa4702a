//! A core's epoll, and a connection on it, with readiness kept by ourselves.
//!
//! A wait begins without a call, because edge-triggered epoll tells of everything that comes after a read which took all
//! there was.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use super::buffers::ensure_buffer;
use super::driver::Driver;
use super::executor::driver;
use crate::clock;

/// Events taken with one call.
const EVENTS: usize = 128;

/// What one core's epoll descriptor watches.
pub(super) struct Reactor {
    epoll: OwnedFd,
    watched: RefCell<Vec<Option<Rc<Readiness>>>>,
    free: RefCell<Vec<usize>>,
    /// The kernel knows waits to the nanosecond.
    is_precise: Cell<bool>,
}

/// What is known of one descriptor.
#[derive(Default)]
pub(super) struct Readiness {
    readable: Cell<bool>,
    writable: Cell<bool>,
    /// The peer's end or an error was announced: reads tell, however little the last one brought.
    ended: Cell<bool>,
    reader: Cell<Option<Waker>>,
    writer: Cell<Option<Waker>>,
}

impl Readiness {
    /// Ready when a read may bring something; else the task is woken then.
    pub(super) fn poll_readable(&self, cx: &Context<'_>) -> Poll<()> {
        if self.readable.get() || self.ended.get() {
            return Poll::Ready(());
        }
        wait(&self.reader, cx);
        Poll::Pending
    }

    fn poll_writable(&self, cx: &Context<'_>) -> Poll<()> {
        if self.writable.get() {
            return Poll::Ready(());
        }
        wait(&self.writer, cx);
        Poll::Pending
    }

    /// A read found nothing, not even an end.
    pub(super) fn drained(&self) {
        self.readable.set(false);
        self.ended.set(false);
    }
}

fn wait(seat: &Cell<Option<Waker>>, cx: &Context<'_>) {
    let waker = match seat.take() {
        Some(waker) if waker.will_wake(cx.waker()) => waker,
        _ => cx.waker().clone(),
    };
    seat.set(Some(waker));
}

impl Reactor {
    pub(super) fn new() -> io::Result<Rc<Self>> {
        // SAFETY: a plain call.
        let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if epoll < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Rc::new(Reactor {
            // SAFETY: opened for us by the call above.
            epoll: unsafe { OwnedFd::from_raw_fd(epoll) },
            watched: RefCell::default(),
            free: RefCell::default(),
            is_precise: Cell::new(true),
        }))
    }

    /// Takes the events that are there, or waits for some until `until_ns` (monotonic; 0 does not wait, `u64::MAX` has no
    /// end), and wakes whom they concern.
    pub(super) fn turn(&self, until_ns: u64) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS];
        let count = self.wait(&mut events, until_ns);
        let watched = self.watched.borrow();
        for event in &events[..count] {
            let (flags, index) = (event.events, event.u64 as usize);
            let Some(Some(readiness)) = watched.get(index) else { continue };
            let ended = flags & (libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR) as u32 != 0;
            if ended {
                readiness.ended.set(true);
            }
            if ended || flags & libc::EPOLLIN as u32 != 0 {
                readiness.readable.set(true);
                if let Some(waker) = readiness.reader.take() {
                    waker.wake();
                }
            }
            if ended || flags & libc::EPOLLOUT as u32 != 0 {
                readiness.writable.set(true);
                if let Some(waker) = readiness.writer.take() {
                    waker.wake();
                }
            }
        }
    }

    /// How many events there are. None after a signal.
    fn wait(&self, events: &mut [libc::epoll_event; EVENTS], until_ns: u64) -> usize {
        let (epoll, room) = (self.epoll.as_raw_fd(), EVENTS as libc::c_int);
        let left_ns = if until_ns == 0 { 0 } else { until_ns.saturating_sub(clock::mono_ns()) };
        let count = if left_ns > 0 && until_ns < u64::MAX && self.is_precise.get() {
            let left = libc::timespec {
                tv_sec: (left_ns / 1_000_000_000) as libc::time_t,
                tv_nsec: (left_ns % 1_000_000_000) as libc::c_long,
            };
            let no_mask = std::ptr::null::<libc::sigset_t>();
            // SAFETY: the kernel writes at most as many events as the array holds, and reads the time during the call.
            // The C library has no name for it before its 2.35.
            let count = unsafe {
                libc::syscall(libc::SYS_epoll_pwait2, epoll, events.as_mut_ptr(), room, &raw const left, no_mask, 0)
            };
            if count < 0 && matches!(io::Error::last_os_error().raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) {
                self.is_precise.set(false); // Linux before 5.11, or a filter of that time
            }
            count
        } else {
            let left_ms = match until_ns {
                u64::MAX => -1,
                _ => libc::c_int::try_from(left_ns.div_ceil(1_000_000)).unwrap_or(libc::c_int::MAX),
            };
            // SAFETY: as above.
            i64::from(unsafe { libc::epoll_wait(epoll, events.as_mut_ptr(), room, left_ms) })
        };
        usize::try_from(count).unwrap_or(0)
    }

    /// Nobody waits any more. Whoever was waited for is dropped with its last waker.
    pub(super) fn forget_waiting(&self) {
        let watched: Vec<_> = self.watched.borrow().iter().flatten().cloned().collect();
        for readiness in watched {
            readiness.reader.take();
            readiness.writer.take();
        }
    }
}

/// A descriptor's place in the core's epoll. Ends with the descriptor: closing takes it out.
pub(super) struct Registration {
    reactor: Rc<Reactor>,
    index: usize,
    pub(super) readiness: Rc<Readiness>,
}

impl Registration {
    /// Watches a non-blocking descriptor for everything, edge-triggered.
    pub(super) fn new(fd: RawFd) -> io::Result<Self> {
        let Driver::Epoll(reactor) = driver() else { return Err(io::ErrorKind::Unsupported.into()) };
        let readiness = Rc::new(Readiness::default());
        let index = {
            let mut watched = reactor.watched.borrow_mut();
            let index = reactor.free.borrow_mut().pop().unwrap_or_else(|| {
                watched.push(None);
                watched.len() - 1
            });
            watched[index] = Some(readiness.clone());
            index
        };
        let registration = Registration { reactor, index, readiness };
        let interest = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET;
        let mut event = libc::epoll_event { events: interest as u32, u64: index as u64 };
        // SAFETY: both descriptors are open; the event is read during the call only.
        if unsafe { libc::epoll_ctl(registration.reactor.epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event) }
            < 0
        {
            return Err(io::Error::last_os_error());
        }
        Ok(registration)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.reactor.watched.borrow_mut()[self.index] = None;
        self.reactor.free.borrow_mut().push(self.index);
    }
}

/// One connection.
pub(super) struct Stream {
    fd: OwnedFd,
    registration: Registration,
}

impl Stream {
    /// A socket that connects.
    pub(super) fn new(fd: OwnedFd) -> io::Result<Self> {
        let registration = Registration::new(fd.as_raw_fd())?;
        Ok(Stream { fd, registration })
    }

    /// A connection that was accepted: it can be written to at once.
    pub(super) fn accepted(fd: OwnedFd) -> io::Result<Self> {
        let stream = Self::new(fd)?;
        stream.registration.readiness.writable.set(true);
        Ok(stream)
    }

    pub(super) fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    pub(super) fn poll_readable(&self, cx: &Context<'_>) -> Poll<()> {
        self.registration.readiness.poll_readable(cx)
    }

    pub(super) fn poll_writable(&self, cx: &Context<'_>) -> Poll<()> {
        self.registration.readiness.poll_writable(cx)
    }

    /// Appends at most `room` bytes; 0 is the peer's end. Without a buffer one of the core's is taken when bytes are there.
    pub(super) fn poll_read(&self, cx: &Context<'_>, into: &mut Vec<u8>, room: usize) -> Poll<io::Result<usize>> {
        let readiness = &self.registration.readiness;
        loop {
            if readiness.poll_readable(cx).is_pending() {
                return Poll::Pending;
            }
            ensure_buffer(into);
            into.reserve(room);
            let spare = &mut into.spare_capacity_mut()[..room];
            // SAFETY: the kernel writes at most `room` bytes into spare room of the buffer.
            let count = unsafe { libc::recv(self.fd.as_raw_fd(), spare.as_mut_ptr().cast(), room, libc::MSG_DONTWAIT) };
            let Ok(count) = usize::try_from(count) else {
                let error = io::Error::last_os_error();
                match error.kind() {
                    io::ErrorKind::WouldBlock => readiness.drained(),
                    io::ErrorKind::Interrupted => {}
                    _ => return Poll::Ready(Err(error)),
                }
                continue;
            };
            // SAFETY: that many bytes were just written there.
            unsafe { into.set_len(into.len() + count) };
            if count > 0 && count < room {
                readiness.readable.set(false); // it was all there was; what comes next is an edge
            }
            return Poll::Ready(Ok(count));
        }
    }

    /// Sends as much as the kernel takes, at least one byte.
    pub(super) fn poll_write(&self, cx: &Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let readiness = &self.registration.readiness;
        loop {
            if readiness.poll_writable(cx).is_pending() {
                return Poll::Pending;
            }
            let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            // SAFETY: the kernel reads the slice during the call.
            let count = unsafe { libc::send(self.fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) };
            if let Ok(count) = usize::try_from(count) {
                return Poll::Ready(Ok(count));
            }
            let error = io::Error::last_os_error();
            match error.kind() {
                io::ErrorKind::WouldBlock => readiness.writable.set(false),
                io::ErrorKind::Interrupted => {}
                _ => return Poll::Ready(Err(error)),
            }
        }
    }
}

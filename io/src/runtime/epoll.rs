//! A connection on epoll, with readiness kept by ourselves.
//!
//! monoio asks the kernel again what it has just been told: a receive that finds nothing before every wait. Here a wait
//! begins without a call, because edge-triggered epoll tells of everything that comes after a read which took all there
//! was. The core's own epoll descriptor lies inside monoio's, so that tasks, timers and doorbells stay where they are.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Events taken with one call.
const EVENTS: usize = 128;

thread_local! {
    static REACTOR: RefCell<Option<Rc<Reactor>>> = const { RefCell::new(None) };
}

/// What one core's epoll descriptor watches.
struct Reactor {
    epoll: RawFd,
    watched: RefCell<Vec<Option<Rc<Readiness>>>>,
    free: RefCell<Vec<usize>>,
    /// Tasks that let others run first.
    patient: RefCell<Vec<Waker>>,
    /// The task that takes the events.
    taker: Cell<Option<Waker>>,
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

/// Readies this thread for [`Registration`]s; to be called inside its runtime, once.
pub(super) fn start() -> io::Result<()> {
    // SAFETY: a plain call; the descriptor it returns is owned by the stream below, for as long as the runtime lives.
    let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    if epoll < 0 {
        return Err(io::Error::last_os_error());
    }
    let reactor = Rc::new(Reactor {
        epoll,
        watched: RefCell::default(),
        free: RefCell::default(),
        patient: RefCell::default(),
        taker: Cell::default(),
    });
    REACTOR.set(Some(reactor.clone()));
    // SAFETY: the descriptor is open and nobody else's. That it is no socket matters to nobody: monoio only waits on it.
    let nested = unsafe { std::os::unix::net::UnixStream::from_raw_fd(epoll) };
    let nested = monoio::net::UnixStream::from_std(nested)?;
    monoio::spawn(async move {
        loop {
            let mut events = pin!(nested.readable(false));
            poll_fn(|cx| {
                wait(&reactor.taker, cx);
                if reactor.patient.borrow().is_empty() { events.as_mut().poll(cx).map(drop) } else { Poll::Ready(()) }
            })
            .await;
            reactor.turn();
        }
    });
    Ok(())
}

/// Wakes the task after those that have something to do by now. A task that only woke itself would run again, up to two
/// times for each task that was ready, before anybody asked for events (measured: 36 pieces of a body).
pub(super) fn wake_after_others(cx: &Context<'_>) {
    let reactor = REACTOR.with_borrow(Clone::clone);
    let Some(reactor) = reactor else { return cx.waker().wake_by_ref() };
    reactor.patient.borrow_mut().push(cx.waker().clone());
    if let Some(taker) = reactor.taker.take() {
        taker.wake();
    }
}

impl Reactor {
    /// Takes the events that are there and wakes whom they concern, and after them who was patient.
    fn turn(&self) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS];
        // SAFETY: the kernel writes at most as many events as the array holds. Does not wait.
        let count = unsafe { libc::epoll_wait(self.epoll, events.as_mut_ptr(), EVENTS as libc::c_int, 0) };
        let watched = self.watched.borrow();
        for event in &events[..usize::try_from(count).unwrap_or(0)] {
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
        let patient = std::mem::take(&mut *self.patient.borrow_mut());
        patient.into_iter().for_each(Waker::wake);
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
        let reactor = REACTOR.with_borrow(Clone::clone).ok_or(io::ErrorKind::Unsupported)?;
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
        if unsafe { libc::epoll_ctl(registration.reactor.epoll, libc::EPOLL_CTL_ADD, fd, &raw mut event) } < 0 {
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

    /// Appends at most `room` bytes; 0 is the peer's end.
    pub(super) fn poll_read(&self, cx: &Context<'_>, into: &mut Vec<u8>, room: usize) -> Poll<io::Result<usize>> {
        let readiness = &self.registration.readiness;
        loop {
            if readiness.poll_readable(cx).is_pending() {
                return Poll::Pending;
            }
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

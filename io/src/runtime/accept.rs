//! Taking callers in, until told to stop.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::task::{Context, Poll};

use monoio::io::{CancelHandle, Canceller};

use super::driver::on_epoll;
use super::stream::Stream;
use super::{Event, Socket, epoll, uring};

/// A core's listening socket.
pub struct Listener(Accepting);

enum Accepting {
    /// Accepts in the ring.
    Uring(monoio::net::TcpListener),
    /// Accepts once epoll says that somebody is there.
    Epoll(epoll::Registration, TcpListener),
}

impl Listener {
    /// Takes a bound socket over, on the core that will accept from it.
    pub fn new(listener: TcpListener) -> io::Result<Self> {
        Ok(Listener(if on_epoll() {
            listener.set_nonblocking(true)?;
            Accepting::Epoll(epoll::Registration::new(listener.as_raw_fd())?, listener)
        } else {
            Accepting::Uring(monoio::net::TcpListener::from_std(listener)?)
        }))
    }

    /// Waits for the next caller. Awaited to its end: stopping goes through [`StopAccepting`].
    pub async fn accept(&self, stop: &StopAccepting) -> io::Result<Socket> {
        let stream = match &self.0 {
            Accepting::Uring(listener) => {
                let (stream, _) = listener.cancelable_accept(stop.handle()).await?;
                Stream::Uring(uring::Stream::new(stream))
            }
            Accepting::Epoll(registration, listener) => {
                let stopped = stop.stopped.waiter();
                let fd = poll_fn(|cx| match stopped.poll(cx) {
                    Poll::Ready(()) => Poll::Ready(Err(io::Error::from_raw_os_error(libc::ECANCELED))),
                    Poll::Pending => poll_accept(listener, registration, cx),
                });
                Stream::Epoll(epoll::Stream::accepted(fd.await?)?)
            }
        };
        Ok(Socket::new(stream))
    }
}

fn poll_accept(
    listener: &TcpListener,
    registration: &epoll::Registration,
    cx: &Context<'_>,
) -> Poll<io::Result<OwnedFd>> {
    loop {
        if registration.readiness.poll_readable(cx).is_pending() {
            return Poll::Pending;
        }
        let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: no address is asked for, so that the kernel writes nothing.
        let fd = unsafe { libc::accept4(listener.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut(), flags) };
        if fd >= 0 {
            // SAFETY: opened for us by the call above.
            return Poll::Ready(Ok(unsafe { OwnedFd::from_raw_fd(fd) }));
        }
        let error = io::Error::last_os_error();
        match error.kind() {
            io::ErrorKind::WouldBlock => registration.readiness.drained(),
            io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {}
            _ => return Poll::Ready(Err(error)),
        }
    }
}

/// Ends a core's accept operation without dropping it.
pub struct StopAccepting {
    canceller: RefCell<Option<Canceller>>,
    stopped: Event,
}

impl Default for StopAccepting {
    fn default() -> Self {
        StopAccepting { canceller: RefCell::new(Some(Canceller::new())), stopped: Event::default() }
    }
}

impl StopAccepting {
    fn handle(&self) -> CancelHandle {
        match &*self.canceller.borrow() {
            Some(canceller) => canceller.handle(),
            None => {
                let used_up = Canceller::new();
                let handle = used_up.handle();
                used_up.cancel();
                handle
            }
        }
    }

    /// The accept in flight, and every later one, ends with `ECANCELED`.
    pub fn stop(&self) {
        self.stopped.set();
        if let Some(canceller) = self.canceller.borrow_mut().take() {
            canceller.cancel();
        }
    }
}

//! Taking callers in, until told to stop.

use std::future::poll_fn;
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::task::{Context, Poll, ready};

use super::driver::Driver;
use super::executor::driver;
use super::stream::Stream;
use super::{Event, Socket, epoll, uring};

/// A core's listening socket.
pub struct Listener(Accepting);

enum Accepting {
    /// Accepts in the ring.
    Uring(uring::Listener),
    /// Accepts once epoll says that somebody is there.
    Epoll(epoll::Registration, TcpListener),
}

impl Listener {
    /// Takes a bound socket over, on the core that will accept from it.
    pub fn new(listener: TcpListener) -> io::Result<Self> {
        Ok(Listener(match driver() {
            Driver::Epoll(_) => {
                listener.set_nonblocking(true)?;
                Accepting::Epoll(epoll::Registration::new(listener.as_raw_fd())?, listener)
            }
            Driver::Uring(ring) => {
                listener.set_nonblocking(false)?;
                Accepting::Uring(uring::Listener::new(ring, listener.into()))
            }
        }))
    }

    /// Waits for the next caller. A caller who came while nobody awaited it is given to who asks next; one who came before
    /// [`StopAccepting::stop`] may be given after it.
    pub async fn accept(&self, stop: &StopAccepting) -> io::Result<Socket> {
        let stopped = stop.0.waiter();
        let is_stopped = |cx: &mut Context<'_>| stopped.poll(cx).is_ready();
        poll_fn(|cx| match &self.0 {
            Accepting::Uring(listener) => {
                let stopped = is_stopped(cx);
                listener.poll_accept(cx, stopped).map_ok(Stream::Uring)
            }
            Accepting::Epoll(..) if is_stopped(cx) => Poll::Ready(Err(io::Error::from_raw_os_error(libc::ECANCELED))),
            Accepting::Epoll(registration, listener) => {
                let fd = ready!(poll_accept(listener, registration, cx))?;
                Poll::Ready(epoll::Stream::accepted(fd).map(Stream::Epoll))
            }
        })
        .await
        .map(Socket::new)
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

/// Ends a core's accepting: the accept that is under way, and every later one, ends with `ECANCELED`.
#[derive(Default)]
pub struct StopAccepting(Event);

impl StopAccepting {
    /// Makes it so. Never waits.
    pub fn stop(&self) {
        self.0.set();
    }
}

//! Waiting until a descriptor that is no connection has something to read.

use std::future::poll_fn;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;
use std::task::Poll;

use super::driver::Driver;
use super::executor::driver;
use super::{epoll, uring};

/// A watched descriptor of this core.
pub(crate) struct Watch(Watching);

enum Watching {
    Uring(Rc<uring::Ring>, Rc<OwnedFd>),
    Epoll(epoll::Registration, #[allow(dead_code, reason = "the registration ends with it")] OwnedFd),
}

impl Watch {
    /// Watches a descriptor that does not block.
    pub(crate) fn new(fd: OwnedFd) -> io::Result<Self> {
        Ok(Watch(match driver() {
            Driver::Uring(ring) => Watching::Uring(ring, Rc::new(fd)),
            Driver::Epoll(_) => Watching::Epoll(epoll::Registration::new(fd.as_raw_fd())?, fd),
        }))
    }

    /// Waits until there may be something to read; whoever asks takes all there is before asking again. May be given up.
    pub(crate) async fn readable(&mut self) {
        match &mut self.0 {
            Watching::Uring(ring, fd) => {
                let mut operation = ring.watch(fd, libc::POLLIN);
                poll_fn(|cx| operation.poll(cx)).await;
            }
            Watching::Epoll(registration, _) => {
                let readiness = &registration.readiness;
                poll_fn(|cx| match readiness.poll_readable(cx) {
                    Poll::Ready(()) => {
                        readiness.drained(); // what comes after this is an edge
                        Poll::Ready(())
                    }
                    Poll::Pending => Poll::Pending,
                })
                .await;
            }
        }
    }
}

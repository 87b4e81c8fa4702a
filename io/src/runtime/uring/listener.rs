//! A listening socket on io_uring.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use super::{Operation, Ring, Stream};

/// One core's listener.
pub(in super::super) struct Listener {
    ring: Rc<Ring>,
    file: Rc<OwnedFd>,
    accept: RefCell<Option<Operation>>,
    was_called_off: Cell<bool>,
}

impl Listener {
    pub(in super::super) fn new(ring: Rc<Ring>, fd: OwnedFd) -> Self {
        Listener { ring, file: Rc::new(fd), accept: RefCell::default(), was_called_off: Cell::new(false) }
    }

    /// Takes the next caller in. `ECANCELED` once it is stopped and nobody was faster.
    pub(in super::super) fn poll_accept(&self, cx: &Context<'_>, is_stopped: bool) -> Poll<io::Result<Stream>> {
        let mut accept = self.accept.borrow_mut();
        loop {
            let operation = match &mut *accept {
                None if is_stopped => return Poll::Ready(Err(io::Error::from_raw_os_error(libc::ECANCELED))),
                None => accept.insert(self.ring.accept(&self.file)),
                Some(operation) => operation,
            };
            if is_stopped && !self.was_called_off.replace(true) {
                operation.call_off();
            }
            ready!(operation.poll(cx));
            let Some(done) = accept.take().and_then(Operation::end) else { continue };
            match done.result {
                Ok(fd) => {
                    // SAFETY: opened for us, and nobody else has it.
                    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
                    return Poll::Ready(Ok(Stream::new(self.ring.clone(), fd)));
                }
                Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::ECONNABORTED)) => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

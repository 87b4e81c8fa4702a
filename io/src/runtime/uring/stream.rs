//! A connection on io_uring: at most one operation in each direction, which outlives the call that began it.

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use io_uring::{opcode, types};

use super::provided::receive_on;
use super::{Operation, Ring, may_be_begun_anew};
use crate::runtime::buffers::{BUFFER_BYTES, ensure_buffer};

/// `IORING_RECVSEND_POLL_FIRST`: wait for bytes before looking for them, for a socket that was empty a moment ago.
const POLL_FIRST: u16 = 1;

/// One connection.
pub(in super::super) struct Stream {
    ring: Rc<Ring>,
    file: Rc<OwnedFd>,
    /// Its number, beside: a call of our own need not go where the file is counted.
    fd: RawFd,
    read: Option<(Operation, Reading)>,
    write: Option<Operation>,
    /// What lies in the kernel to write only watches.
    is_write_watch: bool,
    /// A read may find something at once.
    has_more: bool,
    /// The last read had room for more than a small one: it reads straight into the caller's buffer.
    is_large: bool,
    written_ns: u64,
}

/// What lies in the kernel to read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reading {
    /// Only watches.
    Watch,
    /// Into the caller's buffer.
    Once,
    /// Into the ring's own buffers, again and again.
    Ongoing,
    /// Such a one that was called off.
    Ending,
}

impl Reading {
    fn goes_on(self) -> bool {
        matches!(self, Reading::Ongoing | Reading::Ending)
    }

    /// Ready when it has ended, or has brought something already; else the task is woken then.
    fn poll(self, operation: &mut Operation, cx: &Context<'_>) -> Poll<()> {
        if self.goes_on() && operation.has_arrived() { Poll::Ready(()) } else { operation.poll(cx) }
    }
}

impl Stream {
    /// A socket that connects or was accepted. It is a blocking one, or an operation would fail at once, on some kernels,
    /// instead of waiting in the ring.
    pub(in super::super) fn new(ring: Rc<Ring>, fd: OwnedFd) -> Self {
        Stream {
            ring,
            fd: fd.as_raw_fd(),
            file: Rc::new(fd),
            read: None,
            write: None,
            is_write_watch: false,
            has_more: true,
            is_large: false,
            written_ns: 0,
        }
    }

    pub(in super::super) fn as_raw_fd(&self) -> RawFd {
        self.fd
    }

    /// Ready when a read would not wait. Not while a read into the caller's buffer lies in the kernel.
    pub(in super::super) fn poll_readable(&mut self, cx: &Context<'_>) -> Poll<()> {
        if self.read.is_none() && (self.is_large || !self.begin_ongoing()) {
            self.read = Some((self.ring.watch(&self.file, libc::POLLIN | libc::POLLRDHUP), Reading::Watch));
        }
        let Some((operation, reading)) = &mut self.read else { return Poll::Pending };
        ready!(reading.poll(operation, cx));
        if *reading == Reading::Watch {
            // An error of the watch itself shows again, with its reason, in the read that follows.
            self.read = None;
            self.has_more = true;
        }
        Poll::Ready(())
    }

    /// Appends at most `room` bytes to the buffer, which the kernel may have meanwhile; ready when it is back.
    pub(in super::super) fn poll_read(
        &mut self,
        cx: &Context<'_>,
        into: &mut Vec<u8>,
        room: usize,
    ) -> Poll<io::Result<usize>> {
        self.is_large = room > BUFFER_BYTES;
        loop {
            if self.read.is_none() && (self.is_large || !self.begin_ongoing()) {
                ensure_buffer(into);
                let operation = self.ring.receive(&self.file, std::mem::take(into), room, self.has_more);
                self.read = Some((operation, Reading::Once));
            }
            if let Some(result) = self.take_read(into, room) {
                return Poll::Ready(result);
            }
            if let Some((operation, reading)) = &mut self.read {
                ready!(reading.poll(operation, cx));
            }
        }
    }

    /// [`Stream::poll_read`] after [`Stream::poll_readable`]: `None` when there is nothing, and then nothing lies in the
    /// kernel that has the buffer.
    pub(in super::super) fn poll_read_now(
        &mut self,
        cx: &Context<'_>,
        into: &mut Vec<u8>,
        room: usize,
    ) -> Poll<io::Result<Option<usize>>> {
        self.is_large = room > BUFFER_BYTES;
        match &self.read {
            Some((_, reading)) if reading.goes_on() => Poll::Ready(self.take_read(into, room).transpose()),
            _ => self.poll_read(cx, into, room).map_ok(Some),
        }
    }

    /// What a read brought; `None` while it brought nothing, or when it has ended without a result and may be begun anew.
    fn take_read(&mut self, into: &mut Vec<u8>, room: usize) -> Option<io::Result<usize>> {
        let (operation, reading) = self.read.as_mut()?;
        let goes_on = reading.goes_on();
        if goes_on {
            if self.is_large && *reading == Reading::Ongoing {
                operation.call_off();
                *reading = Reading::Ending;
            }
            if let Some(count) = operation.take_arrived(into, room) {
                return Some(Ok(count));
            }
        }
        if !operation.is_done() {
            return None;
        }
        let (operation, reading) = self.read.take()?;
        let done = operation.end()?;
        self.has_more = done.has_more || reading != Reading::Once;
        if reading == Reading::Once {
            *into = done.buffer;
        }
        let count = match done.result {
            Ok(count) => count as usize,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return None,
            Err(error) if goes_on && error.raw_os_error().is_some_and(|code| may_be_begun_anew(-code)) => return None,
            Err(error) => return Some(Err(error)),
        };
        match reading {
            Reading::Watch => None,
            Reading::Once => {
                // SAFETY: the kernel wrote that many bytes behind those that were there.
                unsafe { into.set_len(into.len() + count) };
                Some(Ok(count))
            }
            // Its bytes were taken above; at its own end it is begun anew.
            Reading::Ongoing | Reading::Ending => (count == 0).then_some(Ok(0)),
        }
    }

    /// Begins to receive into the ring's own buffers, where the kernel can.
    fn begin_ongoing(&mut self) -> bool {
        self.read = self.ring.receive_on(&self.file).map(|operation| (operation, Reading::Ongoing));
        self.read.is_some()
    }

    /// Whether a read that lies in the kernel, or would be begun by the next call, needs no buffer of the caller's.
    pub(in super::super) fn needs_no_buffer(&self) -> bool {
        match &self.read {
            Some((_, reading)) => matches!(reading, Reading::Ongoing),
            None => self.ring.can_receive_on(),
        }
    }

    /// Whether bytes came that were not asked for, or an end.
    pub(in super::super) fn has_arrived(&self) -> bool {
        let Some((operation, reading)) = &self.read else { return false };
        reading.goes_on() && (operation.has_arrived() || operation.is_over())
    }

    /// Whether something lies in the kernel that reads or watches.
    pub(in super::super) fn is_reading(&self) -> bool {
        self.read.is_some()
    }

    /// The read that lies in the kernel ends soon, with `ECANCELED` or with the bytes that were faster.
    pub(in super::super) fn call_off_read(&self) {
        if let Some((operation, _)) = &self.read {
            operation.call_off();
        }
    }

    /// Ready when a write would not wait.
    pub(in super::super) fn poll_writable(&mut self, cx: &Context<'_>) -> Poll<()> {
        let operation = self.write.get_or_insert_with(|| {
            self.is_write_watch = true;
            self.ring.watch(&self.file, libc::POLLOUT)
        });
        ready!(operation.poll(cx));
        self.write = None;
        Poll::Ready(())
    }

    /// Hands a part of the buffer to the kernel, which has the buffer meanwhile; ready with how many bytes left when it is
    /// back. `quietly`: the task is not woken when the whole part has left.
    pub(in super::super) fn poll_write(
        &mut self,
        cx: &Context<'_>,
        bytes: &mut Vec<u8>,
        part: Range<usize>,
        quietly: bool,
    ) -> Poll<io::Result<usize>> {
        loop {
            let whole = i32::try_from(part.len()).ok();
            let operation = self.write.get_or_insert_with(|| {
                self.is_write_watch = false;
                self.ring.send(&self.file, std::mem::take(bytes), part.clone())
            });
            ready!(operation.poll_unless(cx, whole.filter(|_| quietly && !self.is_write_watch)));
            let Some(done) = self.write.take().and_then(Operation::end) else { continue };
            if self.is_write_watch {
                continue;
            }
            *bytes = done.buffer;
            self.written_ns = done.at_ns;
            return Poll::Ready(done.result.map(|count| count as usize));
        }
    }

    /// When the last write was found done, monotonic ns.
    pub(in super::super) fn written_ns(&self) -> u64 {
        self.written_ns
    }

    /// Sends what the socket takes at once, with a call of its own. Only while nothing lies in the write lane.
    pub(in super::super) fn write_now(&self, bytes: &[u8]) -> io::Result<usize> {
        // SAFETY: the kernel reads the slice during the call, which does not wait.
        let count = unsafe {
            let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            libc::send(self.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags)
        };
        usize::try_from(count).map_err(|_| io::Error::last_os_error())
    }
}

impl Ring {
    /// Whether the kernel takes buffers by itself.
    fn can_receive_on(&self) -> bool {
        self.0.borrow().provided.is_some()
    }

    /// Receives into buffers that the kernel takes by itself, until it is called off; `None` where it cannot.
    pub(super) fn receive_on(self: &Rc<Self>, file: &Rc<OwnedFd>) -> Option<Operation> {
        self.can_receive_on().then(|| self.begin(file, Vec::new(), false, receive_on(file.as_raw_fd())))
    }

    /// Reads at most `room` bytes behind those in the buffer. `at_once`: something is probably there.
    fn receive(self: &Rc<Self>, file: &Rc<OwnedFd>, mut buffer: Vec<u8>, room: usize, at_once: bool) -> Operation {
        buffer.reserve(room);
        let spare = buffer.spare_capacity_mut().as_mut_ptr().cast();
        let entry = opcode::Recv::new(types::Fd(file.as_raw_fd()), spare, u32::try_from(room).unwrap_or(u32::MAX));
        let poll_first = !at_once && self.0.borrow().can_poll_first;
        self.begin(file, buffer, false, entry.ioprio(if poll_first { POLL_FIRST } else { 0 }).build())
    }

    /// Sends a part of the buffer, or the beginning of it.
    fn send(self: &Rc<Self>, file: &Rc<OwnedFd>, buffer: Vec<u8>, part: Range<usize>) -> Operation {
        let bytes = &buffer[part];
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let entry = opcode::Send::new(types::Fd(file.as_raw_fd()), bytes.as_ptr(), length);
        self.begin(file, buffer, false, entry.flags(libc::MSG_NOSIGNAL).build())
    }
}

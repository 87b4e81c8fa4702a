//! A connection on io_uring: operations are handed to the kernel and outlive the call that began them.
//!
//! Each direction is a lane: an endless little task that takes one order at a time and is polled by whoever waits for
//! it. An order lies in the kernel while its task does something else, and costs no allocation of its own.

use std::cell::{Cell, UnsafeCell};
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use monoio::buf::{IoBuf, IoBufMut};
use monoio::io::{AsyncReadRent, AsyncWriteRent, CancelHandle, CancelableAsyncReadRent, Canceller};
use monoio::net::TcpStream;

/// What a read lane is told to do.
enum ReadOrder {
    /// Wait until a read would not wait.
    Watch,
    /// Append at most so many bytes; the handle may call it off.
    Read(Vec<u8>, usize, Option<CancelHandle>),
}

enum Reading {
    Watched,
    /// The buffer and what became of it.
    Read(io::Result<usize>, Vec<u8>),
}

enum WriteOrder {
    /// Wait until a write would not wait.
    Watch,
    Write(Vec<u8>, Range<usize>),
}

enum Written {
    Watched,
    /// How many bytes of the range left, and the buffer.
    Wrote(io::Result<usize>, Vec<u8>),
}

/// One connection. At most one order lies in each direction.
pub(super) struct Stream {
    tcp: Rc<Tcp>,
    /// Boxed, so that an idle connection has no room for them.
    lanes: Option<Box<Lanes>>,
    /// Waits for a silent peer, in less room than a lane takes.
    silence: Option<Pin<Box<dyn Future<Output = ()>>>>,
}

/// What only traffic needs.
#[derive(Default)]
struct Lanes {
    read: Option<Lane<ReadOrder, Reading>>,
    write: Option<Lane<WriteOrder, Written>>,
    canceller: Option<Canceller>,
}

impl Stream {
    pub(super) fn new(tcp: TcpStream) -> Self {
        Stream { tcp: Rc::new(Tcp(UnsafeCell::new(tcp))), lanes: None, silence: None }
    }

    pub(super) fn as_raw_fd(&self) -> RawFd {
        self.tcp.shared().as_raw_fd()
    }

    /// Ready when a read would not wait. Not while a read lies in the kernel.
    pub(super) fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let (lane, _) = self.reader();
        if lane.is_free() {
            lane.order(ReadOrder::Watch);
        }
        lane.poll(cx).map(|_| ())
    }

    /// Appends at most `room` bytes to the buffer, which the kernel has meanwhile; ready when it is back. With
    /// `may_be_called_off` the read can be ended by [`Stream::call_off_read`] without losing a byte.
    pub(super) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        into: &mut Vec<u8>,
        room: usize,
        may_be_called_off: bool,
    ) -> Poll<io::Result<usize>> {
        let (lane, canceller) = self.reader();
        loop {
            if lane.is_free() {
                let handle = may_be_called_off.then(|| canceller.get_or_insert_with(Canceller::new).handle());
                lane.order(ReadOrder::Read(std::mem::take(into), room, handle));
            }
            if let Reading::Read(result, buffer) = ready!(lane.poll(cx)) {
                *into = buffer;
                return Poll::Ready(result);
            } // else a watch was under way and has ended
        }
    }

    /// Whether something lies in the kernel that reads or watches.
    pub(super) fn is_reading(&self) -> bool {
        self.lanes.as_ref().and_then(|lanes| lanes.read.as_ref()).is_some_and(|lane| !lane.is_free())
    }

    /// The read that lies in the kernel ends soon, with `ECANCELED` or with the bytes that were faster.
    pub(super) fn call_off_read(&mut self) {
        if let Some(canceller) = self.lanes.as_mut().and_then(|lanes| lanes.canceller.take()) {
            canceller.cancel();
        }
    }

    /// Ready when a read would not wait, for a peer that may be silent for long. Between reads.
    pub(super) fn poll_silence(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let tcp = &self.tcp;
        let silence = self.silence.get_or_insert_with(|| Box::pin(watch(tcp.clone())));
        ready!(silence.as_mut().poll(cx));
        self.silence = None;
        Poll::Ready(())
    }

    /// Lets go of everything that only traffic needs. Only while nothing lies in the kernel.
    pub(super) fn rest(&mut self) {
        let Some(lanes) = &mut self.lanes else { return };
        lanes.canceller = None;
        lanes.read.take_if(|lane| lane.is_free());
        lanes.write.take_if(|lane| lane.is_free());
        if lanes.read.is_none() && lanes.write.is_none() {
            self.lanes = None;
        }
    }

    /// Ready when a write would not wait.
    pub(super) fn poll_writable(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let lane = self.writer();
        if lane.is_free() {
            lane.order(WriteOrder::Watch);
        }
        lane.poll(cx).map(|_| ())
    }

    /// Hands a part of the buffer to the kernel, which has the buffer meanwhile; ready with how many bytes left when it is
    /// back.
    pub(super) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &mut Vec<u8>,
        part: Range<usize>,
    ) -> Poll<io::Result<usize>> {
        let lane = self.writer();
        loop {
            if lane.is_free() {
                lane.order(WriteOrder::Write(std::mem::take(bytes), part.clone()));
            }
            if let Written::Wrote(result, buffer) = ready!(lane.poll(cx)) {
                *bytes = buffer;
                return Poll::Ready(result);
            }
        }
    }

    /// Sends what the socket takes at once, with a call of its own. Only while nothing lies in the write lane.
    pub(super) fn write_now(&self, bytes: &[u8]) -> io::Result<usize> {
        // SAFETY: the kernel reads the slice during the call, which does not wait.
        let count = unsafe {
            let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            libc::send(self.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags)
        };
        usize::try_from(count).map_err(|_| io::Error::last_os_error())
    }

    fn reader(&mut self) -> (&mut Lane<ReadOrder, Reading>, &mut Option<Canceller>) {
        let Lanes { read, canceller, .. } = self.lanes.get_or_insert_default().as_mut();
        (read.get_or_insert_with(|| Lane::new(|desk| reader(self.tcp.clone(), desk))), canceller)
    }

    fn writer(&mut self) -> &mut Lane<WriteOrder, Written> {
        let lanes = self.lanes.get_or_insert_default();
        lanes.write.get_or_insert_with(|| Lane::new(|desk| writer(self.tcp.clone(), desk)))
    }
}

/// monoio's stream, which takes `&mut` by convention only.
struct Tcp(UnsafeCell<TcpStream>);

impl Tcp {
    fn shared(&self) -> &TcpStream {
        // SAFETY: one core, and the `&mut` below only lives while an operation is built.
        unsafe { &*self.0.get() }
    }

    #[allow(clippy::mut_from_ref)]
    fn exclusive(&self) -> &mut TcpStream {
        // SAFETY: as above; the two lanes use different directions and touch nothing they share but the descriptor.
        unsafe { &mut *self.0.get() }
    }
}

async fn watch(tcp: Rc<Tcp>) {
    // An error of the watch itself shows again, with its reason, in the read that follows.
    let _ = tcp.shared().readable(false).await;
}

async fn reader(tcp: Rc<Tcp>, desk: Rc<Desk<ReadOrder, Reading>>) -> Infallible {
    loop {
        let done = match desk.next().await {
            ReadOrder::Watch => {
                let _ = tcp.shared().readable(false).await; // see `watch`
                Reading::Watched
            }
            ReadOrder::Read(mut buffer, room, handle) => loop {
                buffer.reserve(room);
                let from = buffer.len();
                let slice = buffer.slice_mut(from..from + room);
                let (result, slice) = match &handle {
                    Some(handle) => tcp.exclusive().cancelable_read(slice, handle.clone()).await,
                    None => tcp.exclusive().read(slice).await,
                };
                buffer = slice.into_inner();
                if result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::Interrupted) {
                    continue;
                }
                break Reading::Read(result, buffer);
            },
        };
        desk.done.set(Some(done));
    }
}

async fn writer(tcp: Rc<Tcp>, desk: Rc<Desk<WriteOrder, Written>>) -> Infallible {
    loop {
        let done = match desk.next().await {
            WriteOrder::Watch => {
                let _ = tcp.shared().writable(false).await;
                Written::Watched
            }
            WriteOrder::Write(bytes, part) => {
                let (result, slice) = tcp.exclusive().write(bytes.slice(part)).await;
                Written::Wrote(result, slice.into_inner())
            }
        };
        desk.done.set(Some(done));
    }
}

/// Where a lane and its owner meet.
struct Desk<O, D> {
    order: Cell<Option<O>>,
    done: Cell<Option<D>>,
}

impl<O, D> Desk<O, D> {
    /// The next order. Wakes nobody: whoever gives an order polls the lane.
    async fn next(&self) -> O {
        poll_fn(|_| self.order.take().map_or(Poll::Pending, Poll::Ready)).await
    }
}

/// One direction of a connection.
struct Lane<O, D> {
    task: Pin<Box<dyn Future<Output = Infallible>>>,
    desk: Rc<Desk<O, D>>,
    is_busy: bool,
}

impl<O, D> Lane<O, D> {
    fn new<Fut: Future<Output = Infallible> + 'static>(task: impl FnOnce(Rc<Desk<O, D>>) -> Fut) -> Self {
        let desk = Rc::new(Desk { order: Cell::new(None), done: Cell::new(None) });
        Lane { task: Box::pin(task(desk.clone())), desk, is_busy: false }
    }

    fn is_free(&self) -> bool {
        !self.is_busy
    }

    fn order(&mut self, order: O) {
        self.desk.order.set(Some(order));
        self.is_busy = true;
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<D> {
        let Poll::Pending = self.task.as_mut().poll(cx);
        match self.desk.done.take() {
            Some(done) => {
                self.is_busy = false;
                Poll::Ready(done)
            }
            None => Poll::Pending,
        }
    }
}

//! A TCP connection, plain or TLS, that waits for readiness and then reads.
//!
//! See [`super`] for why. A socket keeps at most one readiness watch; whoever asks next (the idle wait, the
//! client-gone detection beside an upstream wait, the next read) takes the same one over, so that a request costs
//! one poll operation and one receive on each side.

use std::cell::UnsafeCell;
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};

use monoio::buf::{IoBuf, IoBufMut};
use monoio::io::{AsyncReadRent, AsyncWriteRent};
use monoio::net::TcpStream;

use super::driver::on_epoll;
use super::tls::Session;
use super::{Alarm, ClientTls, ServerTls, give_buffer, take_buffer};
use crate::clock;

/// How a wait for bytes ended without any.
#[derive(Debug)]
pub enum Fill {
    /// The deadline passed first.
    Deadline,
    /// The connection broke.
    Broken(io::Error),
}

/// How a read ended that was waited for beside another socket.
#[derive(Debug)]
pub enum Beside {
    /// The read is done: that many bytes were appended, 0 at the peer's end.
    Read(io::Result<usize>),
    /// The other socket is readable (data, end or error). The read goes on.
    Other,
    /// Neither happened before the deadline. The read goes on.
    Deadline,
}

/// One connection of one core.
pub struct Socket {
    stream: Rc<UnsafeCell<TcpStream>>,
    tls: Option<Box<Session>>,
    watch: Option<Pin<Box<dyn Future<Output = io::Result<()>>>>>,
    /// A watch ended and nobody has read since.
    ready: bool,
    /// The TLS session may hold plain bytes that no readiness of the socket will announce.
    plain_left: bool,
    alarm: Alarm,
}

impl Socket {
    /// Takes a connected stream over. Small writes leave at once (no Nagle).
    pub(crate) fn new(stream: TcpStream) -> Self {
        // Failing to set it costs latency, never correctness.
        let _ = stream.set_nodelay(true);
        let stream = Rc::new(UnsafeCell::new(stream));
        Socket { stream, tls: None, watch: None, ready: false, plain_left: false, alarm: Alarm::default() }
    }

    /// The peer's address, for logs.
    pub fn peer(&self) -> Option<SocketAddr> {
        self.stream_ref().peer_addr().ok()
    }

    fn stream_ref(&self) -> &TcpStream {
        // SAFETY: one core, and the only `&mut` below lives inside a single method call of this socket.
        unsafe { &*self.stream.get() }
    }

    #[allow(clippy::mut_from_ref)]
    fn stream_mut(&self) -> &mut TcpStream {
        // SAFETY: as above; monoio takes `&mut` by convention only, the watch holds its own handle on the descriptor
        // and touches nothing else of the stream.
        unsafe { &mut *self.stream.get() }
    }

    /// Ready when a read will not wait: data, the end, an error, or plain bytes left inside the TLS session.
    pub fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.ready || self.plain_left {
            return Poll::Ready(());
        }
        let stream = &self.stream;
        let watch = self.watch.get_or_insert_with(|| Box::pin(watch(stream.clone())));
        // An error of the watch itself shows again, with its reason, in the read that follows.
        if watch.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        self.watch = None;
        self.ready = true;
        Poll::Ready(())
    }

    /// Waits until a read will not wait. `false`: the deadline (monotonic ns, `u64::MAX` = never) passed first.
    pub async fn readable(&mut self, deadline_ns: u64) -> bool {
        poll_fn(|cx| {
            if self.poll_readable(cx).is_ready() {
                return Poll::Ready(true);
            }
            self.alarm.poll_at(cx, deadline_ns).map(|()| false)
        })
        .await
    }

    /// Like [`Socket::readable`], and also `false` when `given_up` is ready first.
    pub async fn readable_unless(&mut self, deadline_ns: u64, given_up: impl Fn(&mut Context<'_>) -> Poll<()>) -> bool {
        poll_fn(|cx| {
            if self.poll_readable(cx).is_ready() {
                return Poll::Ready(true);
            }
            if given_up(cx).is_ready() {
                return Poll::Ready(false);
            }
            self.alarm.poll_at(cx, deadline_ns).map(|()| false)
        })
        .await
    }

    /// Reads what is there, after readiness: `None` when it was only part of a TLS record, `Some(0)` at the end.
    /// At most `room` bytes are appended.
    pub async fn try_read(&mut self, into: &mut Vec<u8>, room: usize) -> io::Result<Option<usize>> {
        if self.tls.is_some() {
            // Boxed: a plain connection must not carry the state of a TLS one.
            return Box::pin(self.try_read_tls(into, room)).await;
        }
        self.ready = false;
        read_raw(self.stream_mut(), into, room).await.map(Some)
    }

    async fn try_read_tls(&mut self, into: &mut Vec<u8>, room: usize) -> io::Result<Option<usize>> {
        let Some(session) = self.tls.as_mut() else { return Ok(None) };
        if let Some(count) = session.open(into, room)? {
            self.plain_left = count > 0 && session.has_more();
            return Ok(Some(count));
        }
        self.plain_left = false;
        if !self.ready {
            return Ok(None);
        }
        self.ready = false;
        let mut raw = take_buffer();
        let got = read_raw(self.stream_mut(), &mut raw, RAW_ROOM).await;
        let Some(session) = self.tls.as_mut() else { return Ok(None) };
        let opened = got.and_then(|_| session.receive(&raw)).and_then(|()| session.open(into, room));
        give_buffer(raw);
        let mut out = Vec::new();
        session.drain_into(&mut out)?;
        self.write_raw(out, STALL_NS).await.0?;
        self.plain_left = matches!(opened, Ok(Some(count)) if count > 0)
            && self.tls.as_mut().is_some_and(|session| session.has_more());
        opened
    }

    /// Waits for bytes and appends at most `room` of them. `Ok(0)` is the peer's end.
    pub async fn fill(&mut self, into: &mut Vec<u8>, room: usize, deadline_ns: u64) -> Result<usize, Fill> {
        loop {
            if !self.readable(deadline_ns).await {
                return Err(Fill::Deadline);
            }
            match self.try_read(into, room).await {
                Ok(Some(count)) => return Ok(count),
                Ok(None) => {}
                Err(error) => return Err(Fill::Broken(error)),
            }
        }
    }

    /// Reads what comes next and appends at most `room` bytes of it; 0 is the peer's end. Waits for it in the kernel:
    /// one operation less than readiness and then a read, at the price that **who drops it before it is done gives up
    /// the connection**, because bytes and buffer may be lost with it.
    pub async fn read(&mut self, into: &mut Vec<u8>, room: usize) -> io::Result<usize> {
        if self.tls.is_some() {
            return Box::pin(self.read_tls(into, room)).await;
        }
        self.watch = None; // it would tell of bytes that this read takes
        self.ready = false;
        read_raw(self.stream_mut(), into, room).await
    }

    async fn read_tls(&mut self, into: &mut Vec<u8>, room: usize) -> io::Result<usize> {
        loop {
            self.readable(u64::MAX).await;
            if let Some(count) = self.try_read_tls(into, room).await? {
                return Ok(count);
            }
        }
    }

    /// Whether something came, or the peer ended or broke the connection. One system call; takes nothing, never waits.
    pub fn has_news(&self) -> bool {
        self.plain_left || !matches!(self.peek(), Peeked::Nothing)
    }

    fn peek(&self) -> Peeked {
        let mut byte = 0_u8;
        // SAFETY: one byte is looked at, into a byte of ours; nothing is taken from the socket and nothing waits.
        let seen = unsafe {
            let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
            libc::recv(self.stream_ref().as_raw_fd(), (&raw mut byte).cast(), 1, flags)
        };
        match seen {
            0 => Peeked::Gone,
            1.. => Peeked::Bytes,
            _ if io::Error::last_os_error().kind() == io::ErrorKind::WouldBlock => Peeked::Nothing,
            _ => Peeked::Gone,
        }
    }

    /// Writes a part of a buffer that is still needed whole, such as a request body behind its head, as long as
    /// `asker`, on whose behalf it is written, is there. `ConnectionAborted`: it left, and nobody needs the rest; this
    /// connection is of no further use and the buffer may be gone. What the asker sends meanwhile stays unread.
    pub async fn write_part_for(
        &mut self,
        bytes: Vec<u8>,
        part: std::ops::Range<usize>,
        stall_ns: u64,
        asker: &mut Socket,
    ) -> (io::Result<()>, Vec<u8>) {
        let gone = |cx: &mut Context<'_>| asker.poll_gone(cx);
        let Some(session) = self.tls.as_mut() else {
            return self.write_raw_part(bytes, part, stall_ns, gone).await;
        };
        let piece = bytes.get(part).unwrap_or_default();
        let mut sealed = Vec::with_capacity(piece.len() + piece.len() / 64 + 256);
        if let Err(error) = session.seal(piece, &mut sealed) {
            return (Err(error), bytes);
        }
        let all = 0..sealed.len();
        (self.write_raw_part(sealed, all, stall_ns, gone).await.0, bytes)
    }

    /// Ready when the peer has ended or broken the connection. Bytes it sent are left where they are; a peer that has
    /// sent some is taken to be there.
    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.plain_left || self.poll_readable(cx).is_pending() {
            return Poll::Pending;
        }
        if matches!(self.peek(), Peeked::Gone) { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Writes all bytes; the buffer comes back for reuse. `TimedOut` when the peer took nothing for `stall_ns`:
    /// the connection is then of no further use.
    pub async fn write_all(&mut self, bytes: Vec<u8>, stall_ns: u64) -> (io::Result<()>, Vec<u8>) {
        let Some(session) = self.tls.as_mut() else {
            return self.write_raw(bytes, stall_ns).await;
        };
        let mut sealed = Vec::with_capacity(bytes.len() + 256);
        if let Err(error) = session.seal(&bytes, &mut sealed) {
            return (Err(error), bytes);
        }
        let (result, _) = self.write_raw(sealed, stall_ns).await;
        (result, bytes)
    }

    async fn write_raw(&mut self, bytes: Vec<u8>, stall_ns: u64) -> (io::Result<()>, Vec<u8>) {
        let all = 0..bytes.len();
        self.write_raw_part(bytes, all, stall_ns, |_| Poll::Pending).await
    }

    async fn write_raw_part(
        &mut self,
        mut bytes: Vec<u8>,
        part: std::ops::Range<usize>,
        stall_ns: u64,
        mut given_up: impl FnMut(&mut Context<'_>) -> Poll<()>,
    ) -> (io::Result<()>, Vec<u8>) {
        let mut sent = part.start;
        let end = part.end.min(bytes.len());
        let stream = self.stream.clone();
        while sent < end {
            // SAFETY: see `stream_mut`.
            let mut write = pin!(unsafe { &mut *stream.get() }.write(bytes.slice(sent..end)));
            let mut deadline_ns = None;
            let alarm = &mut self.alarm;
            // A write that misses its deadline is dropped (its buffer stays with the driver until the kernel lets
            // go) and the connection closed: nobody may write after half a message.
            let done = poll_fn(|cx| {
                if let Poll::Ready(done) = write.as_mut().poll(cx) {
                    return Poll::Ready(Ok(done));
                }
                if given_up(cx).is_ready() {
                    return Poll::Ready(Err(io::ErrorKind::ConnectionAborted));
                }
                let at = *deadline_ns.get_or_insert_with(|| clock::mono_ns().saturating_add(stall_ns));
                alarm.poll_at(cx, at).map(|()| Err(io::ErrorKind::TimedOut))
            })
            .await;
            let (result, slice) = match done {
                Ok(done) => done,
                Err(ended) => return (Err(ended.into()), Vec::new()),
            };
            bytes = slice.into_inner();
            match result {
                Ok(0) => return (Err(io::ErrorKind::WriteZero.into()), bytes),
                Ok(count) => sent += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return (Err(error), bytes),
            }
        }
        (Ok(()), bytes)
    }

    /// Becomes the server side of a TLS session.
    pub async fn accept_tls(&mut self, tls: &ServerTls, deadline_ns: u64) -> io::Result<()> {
        self.tls = Some(Box::new(tls.session()?));
        self.handshake(deadline_ns).await
    }

    /// Becomes the client side of a TLS session with `host`, whose certificate must name it.
    pub async fn connect_tls(&mut self, tls: &ClientTls, host: &str, deadline_ns: u64) -> io::Result<()> {
        self.tls = Some(Box::new(tls.session(host)?));
        self.handshake(deadline_ns).await
    }

    async fn handshake(&mut self, deadline_ns: u64) -> io::Result<()> {
        let mut raw = take_buffer();
        while let Some(session) = self.tls.as_mut() {
            let mut out = Vec::new();
            session.drain_into(&mut out)?;
            let handshaking = session.is_handshaking();
            self.write_raw(out, STALL_NS).await.0?;
            if !handshaking {
                break;
            }
            if !self.readable(deadline_ns).await {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.ready = false;
            raw.clear();
            if read_raw(self.stream_mut(), &mut raw, RAW_ROOM).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let Some(session) = self.tls.as_mut() else { break };
            if let Err(error) = session.receive(&raw) {
                let mut alert = Vec::new();
                session.drain_into(&mut alert)?;
                let _ = self.write_raw(alert, STALL_NS).await;
                return Err(error);
            }
        }
        give_buffer(raw);
        // The last flight may have carried the first request.
        self.plain_left = self.tls.as_mut().is_some_and(|session| session.has_more());
        Ok(())
    }

    /// Ends our side and reads what the peer still sends, up to 64 MiB and until the deadline, so that an answer given before its
    /// request was read completely is not destroyed by a reset.
    pub async fn close_gently(mut self, deadline_ns: u64) {
        if let Some(session) = self.tls.as_mut() {
            let mut out = Vec::new();
            if session.say_goodbye(&mut out).is_ok() {
                let _ = self.write_raw(out, STALL_NS).await;
            }
        }
        // SAFETY: a plain shutdown of a descriptor this socket owns.
        unsafe { libc::shutdown(self.stream_ref().as_raw_fd(), libc::SHUT_WR) };
        self.plain_left = false; // nobody reads it any more; only the socket is waited for
        let mut unread = take_buffer();
        let mut left: usize = 64 << 20;
        while left > 0 && self.readable(deadline_ns).await {
            self.ready = false;
            unread.clear();
            match read_raw(self.stream_mut(), &mut unread, RAW_ROOM).await {
                Ok(count) if count > 0 => left = left.saturating_sub(count),
                _ => break,
            }
        }
        give_buffer(unread);
    }
}

/// One read of raw TLS records: the largest record fits.
const RAW_ROOM: usize = 16 * 1024 + 512;
/// What TLS records of our own (handshake, alerts) may wait for a peer that takes nothing.
const STALL_NS: u64 = 10_000_000_000;

/// What a look at a socket shows.
enum Peeked {
    Nothing,
    Bytes,
    /// The peer's end, or a broken connection.
    Gone,
}

/// Waits for a read that runs ([`Socket::read`]) while another socket is watched: an upstream's answer, and the client
/// that may leave.
pub async fn read_beside(
    mut reading: Pin<&mut impl Future<Output = io::Result<usize>>>,
    other: &mut Socket,
    deadline_ns: u64,
) -> Beside {
    poll_fn(|cx| {
        if let Poll::Ready(done) = reading.as_mut().poll(cx) {
            return Poll::Ready(Beside::Read(done));
        }
        if other.poll_readable(cx).is_ready() {
            return Poll::Ready(Beside::Other);
        }
        other.alarm.poll_at(cx, deadline_ns).map(|()| Beside::Deadline)
    })
    .await
}

/// Waits until the stream is readable.
async fn watch(stream: Rc<UnsafeCell<TcpStream>>) -> io::Result<()> {
    // SAFETY: shared access on the owning core; see `stream_ref`.
    let stream = unsafe { &*stream.get() };
    if !on_epoll() {
        return stream.readable(false).await;
    }
    // monoio remembers the last event until something finds it out of date. Asked once, the kernel says what is true
    // now and the memory is cleared; the event that ends the wait is then news, and the kernel is not asked again.
    {
        let mut asked = pin!(stream.readable(false));
        if let Poll::Ready(done) = poll_fn(|cx| Poll::Ready(asked.as_mut().poll(cx))).await {
            return done;
        }
    }
    stream.readable(true).await
}

/// Appends at most `room` bytes from the stream. To be awaited to its end.
async fn read_raw(stream: &mut TcpStream, into: &mut Vec<u8>, room: usize) -> io::Result<usize> {
    let mut buffer = std::mem::take(into);
    buffer.reserve(room);
    let from = buffer.len();
    loop {
        let (result, slice) = stream.read(buffer.slice_mut(from..from + room)).await;
        buffer = slice.into_inner();
        match result {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => {
                *into = buffer;
                return result;
            }
        }
    }
}

/// Waits until a connecting stream is writable. `false`: the deadline passed first.
pub(crate) async fn writable(stream: &TcpStream, deadline_ns: u64) -> bool {
    let mut watch = pin!(stream.writable(false));
    let mut alarm = Alarm::default();
    poll_fn(|cx| {
        if watch.as_mut().poll(cx).is_ready() {
            return Poll::Ready(true);
        }
        alarm.poll_at(cx, deadline_ns).map(|()| false)
    })
    .await
}

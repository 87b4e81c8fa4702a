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

/// Which side has something to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ready {
    /// The first socket is readable (data, end or error).
    First,
    /// The second socket is readable.
    Second,
    /// Neither was before the deadline.
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
        let watch = self.watch.get_or_insert_with(|| {
            let stream = stream.clone();
            Box::pin(async move {
                // SAFETY: shared access on the owning core; see `stream_ref`.
                unsafe { &*stream.get() }.readable(false).await
            })
        });
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

    /// Writes a part of a buffer that is still needed whole, such as a request body behind its head.
    pub async fn write_part(
        &mut self,
        bytes: Vec<u8>,
        part: std::ops::Range<usize>,
        stall_ns: u64,
    ) -> (io::Result<()>, Vec<u8>) {
        if self.tls.is_some() {
            let piece = bytes.get(part).unwrap_or_default().to_vec();
            return (self.write_all(piece, stall_ns).await.0, bytes);
        }
        self.write_raw_part(bytes, part, stall_ns).await
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
        self.write_raw_part(bytes, all, stall_ns).await
    }

    async fn write_raw_part(
        &mut self,
        mut bytes: Vec<u8>,
        part: std::ops::Range<usize>,
        stall_ns: u64,
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
                    return Poll::Ready(Some(done));
                }
                let at = *deadline_ns.get_or_insert_with(|| clock::mono_ns().saturating_add(stall_ns));
                alarm.poll_at(cx, at).map(|()| None)
            })
            .await;
            let Some((result, slice)) = done else {
                return (Err(io::ErrorKind::TimedOut.into()), Vec::new());
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

/// Waits until one of two sockets is readable: an upstream's answer, or the client that may have left.
pub async fn either_readable(first: &mut Socket, second: &mut Socket, deadline_ns: u64) -> Ready {
    poll_fn(|cx| {
        if first.poll_readable(cx).is_ready() {
            return Poll::Ready(Ready::First);
        }
        if second.poll_readable(cx).is_ready() {
            return Poll::Ready(Ready::Second);
        }
        first.alarm.poll_at(cx, deadline_ns).map(|()| Ready::Deadline)
    })
    .await
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

//! A TCP connection, plain or TLS, whose reads and writes are begun by one call and ended by another.
//!
//! A write is begun and what comes next is waited for at once: the kernel gets both with one call, and the task wakes
//! for the answer, not for the write. What a peer sends unasked (the next request, or its end) is read ahead into a
//! buffer of the socket's own; whoever watches the peer and whoever reads it next take the same read over. A peer that
//! stays silent for a moment is watched without a buffer.

use std::future::poll_fn;
use std::io;
use std::net::TcpStream;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::task::{Context, Poll, ready};

use socket2::SockRef;

use super::stream::{PIECE_BYTES, Stream};
use super::tls::Session;
use super::{Alarm, ClientTls, ServerTls, give_buffer};
use crate::clock;

/// How a wait for bytes ended without any.
#[derive(Debug)]
pub enum Fill {
    /// The deadline passed first, or what was waited for was given up.
    Deadline,
    /// The connection broke.
    Broken(io::Error),
}

/// What happened first while one socket was read beside another.
#[derive(Debug)]
pub enum Beside {
    /// That many bytes were appended, 0 at the peer's end; or the connection broke.
    Read(io::Result<usize>),
    /// What was begun to be written on the socket has left it, at that time (monotonic ns), or cannot.
    Written(io::Result<u64>),
    /// The other socket has something: [`Socket::take_next`] says what.
    Other,
    /// The other socket takes no more bytes.
    OtherBroken,
    /// None of this before the deadline.
    Deadline,
}

/// One connection of one core.
pub struct Socket {
    stream: Stream,
    tls: Option<Box<Session>>,
    /// The TLS session may hold plain bytes that no read of the socket will bring.
    plain_left: bool,
    next: Next,
    /// What was read ahead: plain bytes, or a TLS session's raw ones.
    ahead: Vec<u8>,
    /// What is being written, and which part of it has not left. Empty while the kernel has it.
    out: Vec<u8>,
    unsent: Range<usize>,
    /// What the TLS session wants to say after that.
    afterwards: Vec<u8>,
    /// The buffer of the write is wanted back.
    keeps_out: bool,
    alarm: Alarm,
}

/// What the peer sends unasked.
enum Next {
    /// Nobody has asked.
    Unasked,
    /// The kernel has the buffer; silence is waited for without one from then on (monotonic ns).
    Reading { until_ns: u64 },
    /// The kernel is to give the buffer back.
    CallingOff,
    /// Watched without a buffer.
    Watching,
    /// Bytes are here, or the end.
    Here(io::Result<usize>),
}

impl Socket {
    /// Takes a connection over. Small writes leave at once (no Nagle).
    pub(super) fn new(stream: Stream) -> Self {
        let socket = Socket {
            stream,
            tls: None,
            plain_left: false,
            next: Next::Unasked,
            ahead: Vec::new(),
            out: Vec::new(),
            unsent: 0..0,
            afterwards: Vec::new(),
            keeps_out: false,
            alarm: Alarm::default(),
        };
        // Failing to set it costs latency, never correctness.
        let _ = SockRef::from(&socket).set_tcp_nodelay(true);
        socket
    }

    /// Takes a socket over that connects, and waits until it has. `TimedOut` at the deadline.
    pub(crate) async fn connected(tcp: TcpStream, deadline_ns: u64) -> io::Result<Self> {
        let mut socket = Self::new(Stream::new(tcp)?);
        let Socket { stream, alarm, .. } = &mut socket;
        let in_time = poll_fn(|cx| match stream.poll_writable(cx) {
            Poll::Ready(()) => Poll::Ready(true),
            Poll::Pending => alarm.poll_at(cx, deadline_ns).map(|()| false),
        });
        if !in_time.await {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let failed = SockRef::from(&socket).take_error()?;
        failed.map_or(Ok(socket), Err)
    }

    // Reading what was asked for.

    /// Appends at most `room` bytes of what comes; 0 is the peer's end. While it is pending the kernel may have the
    /// buffer: **who stops polling before it is ready gives up the connection**.
    pub fn poll_read(&mut self, cx: &mut Context<'_>, into: &mut Vec<u8>, room: usize) -> Poll<io::Result<usize>> {
        if self.tls.is_none() && matches!(self.next, Next::Unasked) {
            return self.stream.poll_read(cx, into, room);
        }
        loop {
            ready!(self.poll_next(cx));
            if let Some(count) = self.take_next(into, room)? {
                return Poll::Ready(Ok(count));
            }
        }
    }

    /// Waits for bytes and appends at most `room` of them. `Ok(0)` is the peer's end. May be given up: nothing is lost.
    pub async fn fill(&mut self, into: &mut Vec<u8>, room: usize, deadline_ns: u64) -> Result<usize, Fill> {
        while self.tls.is_none() && matches!(self.next, Next::Unasked) {
            // Straight into the caller's buffer, and only once the bytes are there.
            let wait = poll_fn(|cx| match self.stream.poll_readable(cx) {
                Poll::Ready(()) => Poll::Ready(Ok(())),
                Poll::Pending => self.alarm.poll_at(cx, deadline_ns).map(|()| Err(Fill::Deadline)),
            });
            wait.await?;
            let read = poll_fn(|cx| self.stream.poll_read_now(cx, into, room));
            if let Some(count) = read.await.map_err(Fill::Broken)? {
                return Ok(count);
            }
        }
        self.next(into, deadline_ns, |_| Poll::Pending).await
    }

    // Reading what comes unasked.

    /// Ready when [`Socket::take_next`] has something to give: bytes, the peer's end, or an error. May be given up.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.plain_left {
            return Poll::Ready(());
        }
        loop {
            match &mut self.next {
                Next::Here(_) => return Poll::Ready(()),
                Next::Unasked => {
                    let until_ns = clock::tick_ns().saturating_add(READ_AHEAD_NS);
                    self.next = Next::Reading { until_ns };
                }
                Next::Watching => {
                    ready!(self.stream.poll_silence(cx));
                    self.next = Next::Unasked;
                }
                Next::Reading { .. } | Next::CallingOff => {
                    let was_called_off = matches!(self.next, Next::CallingOff);
                    match ready!(self.stream.poll_read_ahead(cx, &mut self.ahead, AHEAD_ROOM)) {
                        Err(error) if was_called_off && error.raw_os_error() == Some(libc::ECANCELED) => {
                            give_buffer(std::mem::take(&mut self.ahead));
                            self.next = Next::Watching;
                        }
                        result => self.next = Next::Here(result),
                    }
                }
            }
        }
    }

    /// Waits until something came, the peer ended or the connection broke. `false`: the deadline (monotonic ns,
    /// `u64::MAX` = never) passed first. May be given up.
    pub async fn readable(&mut self, deadline_ns: u64) -> bool {
        poll_fn(|cx| match self.poll_next(cx) {
            Poll::Ready(()) => Poll::Ready(true),
            Poll::Pending => self.poll_alarm(cx, deadline_ns).map(|()| false),
        })
        .await
    }

    /// Appends what came: at most `room` bytes of it, or as many as were read ahead. `Some(0)` at the peer's end, `None`
    /// when it was nothing yet: not asked for, or part of a TLS record.
    pub fn take_next(&mut self, into: &mut Vec<u8>, room: usize) -> io::Result<Option<usize>> {
        if self.tls.is_some() {
            return self.take_next_tls(into, room);
        }
        let Next::Here(result) = std::mem::replace(&mut self.next, Next::Unasked) else { return Ok(None) };
        let ahead = std::mem::take(&mut self.ahead);
        if into.is_empty() {
            give_buffer(std::mem::replace(into, ahead));
        } else {
            into.extend_from_slice(&ahead);
            give_buffer(ahead);
        }
        result.map(Some)
    }

    fn take_next_tls(&mut self, into: &mut Vec<u8>, room: usize) -> io::Result<Option<usize>> {
        let Some(session) = self.tls.as_mut() else { return Ok(None) };
        if let Some(count) = session.open(into, room)? {
            self.plain_left = count > 0 && session.has_more();
            return Ok(Some(count));
        }
        self.plain_left = false;
        if !matches!(self.next, Next::Here(_)) {
            return Ok(None);
        }
        let Next::Here(result) = std::mem::replace(&mut self.next, Next::Unasked) else { return Ok(None) };
        let raw = std::mem::take(&mut self.ahead);
        let opened = result.and_then(|_| session.receive(&raw)).and_then(|()| session.open(into, room));
        give_buffer(raw);
        session.drain_into(&mut self.afterwards)?; // leaves with the next write or wait
        self.plain_left = matches!(opened, Ok(Some(count)) if count > 0) && session.has_more();
        opened
    }

    /// Waits for what the peer sends unasked and appends it. `Ok(0)` is the peer's end. What was begun to be written
    /// goes on meanwhile, and its failure ends the wait. `Deadline`: the deadline passed or `given_up` was ready first.
    pub async fn next(
        &mut self,
        into: &mut Vec<u8>,
        deadline_ns: u64,
        given_up: impl Fn(&mut Context<'_>) -> Poll<()>,
    ) -> Result<usize, Fill> {
        loop {
            poll_fn(|cx| {
                if let Poll::Ready(Err(error)) = self.poll_flush_quietly(cx) {
                    return Poll::Ready(Err(Fill::Broken(error)));
                }
                if self.poll_next(cx).is_ready() {
                    return Poll::Ready(Ok(()));
                }
                if given_up(cx).is_ready() {
                    return Poll::Ready(Err(Fill::Deadline));
                }
                self.poll_alarm(cx, deadline_ns).map(|()| Err(Fill::Deadline))
            })
            .await?;
            if let Some(count) = self.take_next(into, AHEAD_ROOM).map_err(Fill::Broken)? {
                return Ok(count);
            }
        }
    }

    /// Ready when the peer has ended or broken the connection. A peer that has sent something is taken to be there.
    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if matches!(self.poll_flush_quietly(cx), Poll::Ready(Err(_))) {
            return Poll::Ready(());
        }
        if self.plain_left {
            return Poll::Pending;
        }
        ready!(self.poll_next(cx));
        if matches!(self.next, Next::Here(Ok(1..))) { Poll::Pending } else { Poll::Ready(()) }
    }

    /// Ready at the deadline. Until then it sees to it that a silent peer holds no buffer.
    fn poll_alarm(&mut self, cx: &mut Context<'_>, deadline_ns: u64) -> Poll<()> {
        if let Next::Reading { until_ns } = self.next
            && until_ns < deadline_ns
        {
            ready!(self.alarm.poll_at(cx, until_ns));
            if self.stream.call_off_read_ahead() {
                self.next = Next::Watching;
                let _ = self.poll_next(cx); // so that somebody is woken
            } else {
                self.next = Next::CallingOff;
            }
        }
        self.alarm.poll_at(cx, deadline_ns)
    }

    /// [`Socket::has_news`] as far as it is known here already. No system call.
    pub fn has_arrived(&self) -> bool {
        self.plain_left || matches!(self.next, Next::Here(_)) || self.stream.has_arrived()
    }

    /// Whether something came, or the peer ended or broke the connection. One system call; takes nothing, never waits.
    pub fn has_news(&self) -> bool {
        if self.has_arrived() {
            return true;
        }
        let mut byte = 0_u8;
        // SAFETY: one byte is looked at, into a byte of ours; nothing is taken from the socket and nothing waits.
        let seen = unsafe {
            let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
            libc::recv(self.stream.as_raw_fd(), (&raw mut byte).cast(), 1, flags)
        };
        seen >= 0 || io::Error::last_os_error().kind() != io::ErrorKind::WouldBlock
    }

    // Writing.

    /// Whether everything that was begun to be written has left.
    pub fn is_flushed(&self) -> bool {
        self.unsent.is_empty() && self.afterwards.is_empty()
    }

    /// Ready when everything that was begun to be written has left, or cannot: that is said once.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flushed(cx, false)
    }

    /// [`Socket::poll_flush`] for who waits for something else: the task is woken if something is wrong, and not when
    /// everything has left as it should.
    fn poll_flush_quietly(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flushed(cx, true)
    }

    fn poll_flushed(&mut self, cx: &mut Context<'_>, quietly: bool) -> Poll<io::Result<()>> {
        let done = ready!(self.poll_out(cx, quietly));
        if done.is_err() {
            self.unsent = 0..0;
            self.afterwards.clear();
        }
        Poll::Ready(done)
    }

    fn poll_out(&mut self, cx: &mut Context<'_>, quietly: bool) -> Poll<io::Result<()>> {
        while !self.is_flushed() {
            if self.unsent.is_empty() {
                self.out = std::mem::take(&mut self.afterwards);
                self.unsent = 0..self.out.len();
            }
            let quietly = quietly && self.afterwards.is_empty();
            match ready!(self.stream.poll_write(cx, &mut self.out, self.unsent.clone(), quietly)) {
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Ok(count) => {
                    self.unsent.start += count;
                    if !self.unsent.is_empty() && self.stream.lets_others_run(cx) {
                        return Poll::Pending;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        if !self.keeps_out && self.out.capacity() > 0 {
            give_buffer(std::mem::take(&mut self.out));
        }
        Poll::Ready(Ok(()))
    }

    /// Waits until everything that was begun to be written has left. `TimedOut` when the peer took nothing for `stall_ns`:
    /// the connection is then of no further use.
    pub async fn flush(&mut self, stall_ns: u64) -> io::Result<()> {
        self.flush_unless(stall_ns, |_| Poll::Pending).await
    }

    async fn flush_unless(
        &mut self,
        stall_ns: u64,
        mut given_up: impl FnMut(&mut Context<'_>) -> Poll<()>,
    ) -> io::Result<()> {
        let mut stalled = None;
        poll_fn(|cx| {
            if let Poll::Ready(done) = self.poll_flush(cx) {
                return Poll::Ready(done);
            }
            if given_up(cx).is_ready() {
                return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
            }
            let at = match stalled {
                Some((at, left)) if left == self.unsent.len() => at,
                _ => clock::tick_ns().saturating_add(stall_ns),
            };
            stalled = Some((at, self.unsent.len()));
            self.alarm.poll_at(cx, at).map(|()| Err(io::ErrorKind::TimedOut.into()))
        })
        .await
    }

    /// Begins to write all bytes, after those begun before, and does not wait for them to leave: [`Socket::poll_flush`]
    /// tells. A failure shows there, or in the next write.
    pub async fn send(&mut self, bytes: Vec<u8>, stall_ns: u64) -> io::Result<()> {
        self.load(bytes, stall_ns).await?;
        poll_fn(|cx| match self.poll_flush_quietly(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            _ => Poll::Ready(Ok(())),
        })
        .await
    }

    /// [`Socket::send`] for a piece of a stream. It leaves at once with a call of its own: in the ring its completion
    /// would wake the task for nothing, once for each piece.
    pub async fn send_piece(&mut self, bytes: Vec<u8>, stall_ns: u64) -> io::Result<()> {
        self.load(bytes, stall_ns).await?;
        self.unsent.start += self.stream.write_now(&self.out)?;
        poll_fn(|cx| match self.poll_flush_quietly(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            _ => Poll::Ready(Ok(())),
        })
        .await
    }

    /// Makes bytes the next to be written.
    async fn load(&mut self, bytes: Vec<u8>, stall_ns: u64) -> io::Result<()> {
        self.flush(stall_ns).await?;
        match self.tls.as_mut() {
            Some(session) => {
                let mut sealed = Vec::with_capacity(bytes.len() + bytes.len() / 64 + 256);
                session.seal(&bytes, &mut sealed)?;
                give_buffer(bytes);
                self.out = sealed;
            }
            None => self.out = bytes,
        }
        self.unsent = 0..self.out.len();
        Ok(())
    }

    /// Writes all bytes and waits until they have left; errors as [`Socket::flush`].
    pub async fn write_all(&mut self, bytes: Vec<u8>, stall_ns: u64) -> io::Result<()> {
        self.send(bytes, stall_ns).await?;
        self.flush(stall_ns).await
    }

    /// Writes a part of a buffer that is still needed whole, such as a request body behind its head, as long as
    /// `asker`, on whose behalf it is written, is there. `ConnectionAborted`: it left, and nobody needs the rest; this
    /// connection is of no further use and the buffer may be gone.
    pub async fn write_part_for(
        &mut self,
        bytes: Vec<u8>,
        part: Range<usize>,
        stall_ns: u64,
        asker: &mut Socket,
    ) -> (io::Result<()>, Vec<u8>) {
        if let Err(error) = self.flush(stall_ns).await {
            return (Err(error), bytes);
        }
        if self.tls.is_some() {
            return (self.seal_part_for(&bytes, part, stall_ns, asker).await, bytes);
        }
        self.unsent = part.start..part.end.min(bytes.len());
        self.out = bytes;
        self.keeps_out = true;
        let result = self.flush_unless(stall_ns, |cx| asker.poll_gone(cx)).await;
        self.keeps_out = false;
        (result, std::mem::take(&mut self.out))
    }

    async fn seal_part_for(
        &mut self,
        bytes: &[u8],
        part: Range<usize>,
        stall_ns: u64,
        asker: &mut Socket,
    ) -> io::Result<()> {
        for piece in bytes.get(part).unwrap_or_default().chunks(PIECE_BYTES) {
            let Some(session) = self.tls.as_mut() else { break };
            let mut sealed = Vec::with_capacity(piece.len() + piece.len() / 64 + 256);
            session.seal(piece, &mut sealed)?;
            self.unsent = 0..sealed.len();
            self.out = sealed;
            self.flush_unless(stall_ns, |cx| asker.poll_gone(cx)).await?;
        }
        Ok(())
    }

    /// Many small pieces are about to come and nothing will be said meanwhile: the kernel may acknowledge every second
    /// one. Holds until the next silence of 40 ms.
    pub fn expect_pieces(&self) {
        let _ = SockRef::from(self).set_tcp_quickack(false); // failing to costs some packets
    }

    // The beginning and the end.

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
        while let Some(session) = self.tls.as_mut() {
            session.drain_into(&mut self.afterwards)?;
            let handshaking = session.is_handshaking();
            self.flush(HANDSHAKE_STALL_NS).await?;
            if !handshaking {
                break;
            }
            let in_time = poll_fn(|cx| match self.poll_next(cx) {
                Poll::Ready(()) => Poll::Ready(true),
                Poll::Pending => self.alarm.poll_at(cx, deadline_ns).map(|()| false),
            });
            if !in_time.await {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let came = std::mem::replace(&mut self.next, Next::Unasked);
            let raw = std::mem::take(&mut self.ahead);
            if let Next::Here(Err(error)) = came {
                return Err(error);
            }
            if raw.is_empty() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let Some(session) = self.tls.as_mut() else { break };
            let received = session.receive(&raw);
            give_buffer(raw);
            if let Err(error) = received {
                session.drain_into(&mut self.afterwards)?;
                let _ = self.flush(HANDSHAKE_STALL_NS).await; // the alert that says why
                return Err(error);
            }
        }
        // The last flight may have carried the first request.
        self.plain_left = self.tls.as_mut().is_some_and(|session| session.has_more());
        Ok(())
    }

    /// Ends our side once what was begun has left, and reads what the peer still sends, up to 64 MiB and until the
    /// deadline, so that an answer given before its request was read completely is not destroyed by a reset.
    pub async fn close_gently(mut self, deadline_ns: u64) {
        if let Some(session) = self.tls.as_mut()
            && session.say_goodbye(&mut self.afterwards).is_err()
        {
            self.afterwards.clear();
        }
        if self.flush(deadline_ns.saturating_sub(clock::mono_ns())).await.is_err() {
            return;
        }
        // SAFETY: a plain shutdown of a descriptor this socket owns.
        unsafe { libc::shutdown(self.stream.as_raw_fd(), libc::SHUT_WR) };
        // Nobody reads it any more, so that a TLS session's raw bytes are as good as plain ones.
        self.tls = None;
        self.plain_left = false;
        let mut unread = Vec::new();
        let mut left: usize = 64 << 20;
        while left > 0 {
            match self.next(&mut unread, deadline_ns, |_| Poll::Pending).await {
                Ok(count) if count > 0 => left = left.saturating_sub(count),
                _ => break,
            }
            unread.clear();
        }
        give_buffer(unread);
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the stream owns the descriptor and lives as long as this borrow.
        unsafe { BorrowedFd::borrow_raw(self.stream.as_raw_fd()) }
    }
}

/// One read ahead: nearly every head plus its JSON body, and the largest TLS record.
const AHEAD_ROOM: usize = 16 * 1024;
/// How long a buffer waits for a silent peer: 16 KB each, and who thinks for longer than this is no benchmark.
const READ_AHEAD_NS: u64 = 50_000_000;
/// What a handshake's flights may wait for a peer that takes nothing.
const HANDSHAKE_STALL_NS: u64 = 10_000_000_000;

/// Reads one socket while another is watched and written to: an upstream that answers, and the client that may leave.
/// Waits; after anything but bytes the same call goes on with the same buffer.
pub async fn read_beside(
    socket: &mut Socket,
    into: &mut Vec<u8>,
    room: usize,
    other: &mut Socket,
    deadline_ns: u64,
) -> Beside {
    poll_fn(|cx| {
        if !socket.is_flushed()
            && let Poll::Ready(done) = socket.poll_flush_quietly(cx)
        {
            return Poll::Ready(Beside::Written(done.map(|()| socket.stream.written_ns())));
        }
        if let Poll::Ready(done) = socket.poll_read(cx, into, room) {
            return Poll::Ready(Beside::Read(done));
        }
        if let Poll::Ready(Err(_)) = other.poll_flush_quietly(cx) {
            return Poll::Ready(Beside::OtherBroken);
        }
        if other.poll_next(cx).is_ready() {
            return Poll::Ready(Beside::Other);
        }
        other.poll_alarm(cx, deadline_ns).map(|()| Beside::Deadline)
    })
    .await
}

//! The mock provider: a fixed chat completion, plain or streamed, as fast as a socket can be written.
//!
//! One epoll loop per thread, each with a listener of its own on one port. It parses no JSON: whether a stream is asked
//! for is found by searching the first 16 KB of the body for `"stream":true`. It never fails, limits or validates;
//! it only counts. Every run states its floor by driving it directly.

mod answers;
mod loan;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use memchr::memmem;
use serde::{Deserialize, Serialize};
use socket2::{Domain, Socket, Type};

use self::answers::Answers;
use self::loan::Desk;
pub use self::loan::{Lent, Loan};
use crate::sys::{self, Interest, Poller};
use crate::wire::{Progress, Reader};

/// What stands before a frame's number, so that the load generator can tell a lost or repeated frame.
pub const FRAME_MARK: &[u8] = b"tt-frame-";
/// Stands in every plain reply, whatever a gateway makes of its JSON.
pub const REPLY_MARK: &[u8] = b"tt-reply";
/// How much of a body is searched for `"stream":true`.
const SEARCHED_BYTES: usize = 16 * 1024;
/// How often a thread that has nothing to do looks whether it should end.
const LOOK_UP: Duration = Duration::from_millis(50);

/// How it answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Wait before the first byte of an answer, in microseconds.
    pub delay_us: u64,
    /// Length of a plain reply's text.
    pub text_bytes: usize,
    /// Frames of a stream that carry text; the finish, the usage and `[DONE]` come on top.
    pub chunks: u32,
    /// Length of a frame's text.
    pub chunk_bytes: usize,
    /// Pause between two frames, in microseconds; 0 writes them back to back, one write each.
    pub gap_us: u64,
    /// Tokens it says it used.
    pub tokens: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self { delay_us: 0, text_bytes: 160, chunks: 50, chunk_bytes: 24, gap_us: 0, tokens: 40 }
    }
}

/// A running provider. It ends when this is dropped.
pub struct Provider {
    pub addr: SocketAddr,
    pub settings: Settings,
    answered: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    desks: Vec<Arc<Desk>>,
    threads: Vec<JoinHandle<()>>,
}

impl Provider {
    /// Starts it on a free loopback port, its threads on `cpus`.
    pub fn start(settings: &Settings, threads: usize, cpus: &[usize]) -> io::Result<Self> {
        Self::start_at(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), settings, threads, cpus)
    }

    pub fn start_at(addr: SocketAddr, settings: &Settings, threads: usize, cpus: &[usize]) -> io::Result<Self> {
        let first = listen(addr)?;
        let addr = first.local_addr()?;
        let mut listeners = vec![first];
        for _ in 1..threads {
            listeners.push(listen(addr)?);
        }
        let answers = Arc::new(Answers::of(settings));
        let answered = Arc::new(AtomicU64::new(0));
        let stop = Arc::new(AtomicBool::new(false));
        let (mut desks, mut threads) = (Vec::new(), Vec::new());
        for (index, listener) in listeners.into_iter().enumerate() {
            let desk = Desk::new(Serving::new(listener, answers.clone(), answered.clone())?);
            desks.push(desk.clone());
            let (cpus, stop) = (cpus.to_vec(), stop.clone());
            threads.push(std::thread::Builder::new().name(format!("provider-{index}")).spawn(move || {
                let _ = sys::pin_this_thread(&cpus); // the report says what was pinned, from the same list
                sys::tighten_timers();
                desk.work(&stop);
            })?);
        }
        Ok(Self { addr, settings: settings.clone(), answered, stop, desks, threads })
    }

    /// What lets a thread on the same CPU do this provider's work; `None` when it has several threads.
    pub fn loan(&self) -> Option<Loan> {
        let ([desk], [thread]) = (&self.desks[..], &self.threads[..]) else { return None };
        Some(Loan::new(desk.clone(), thread.thread().clone()))
    }

    /// Answers begun so far.
    pub fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed) // a statistic, nothing hangs on it
    }

    /// Waits for its threads, which end only with the process: for `bench mock`.
    pub fn join(mut self) {
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed); // seen with the next look-up; the join below waits for it
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

fn listen(addr: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.bind(&addr.into())?;
    socket.listen(4096)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// One connection of a gateway.
struct Peer {
    socket: TcpStream,
    reader: Reader,
    /// The beginning of the body, searched when it is complete.
    body: Vec<u8>,
    /// What the socket did not take yet.
    unsent: Vec<u8>,
    is_watched_for_write: bool,
    answer: Answer,
    /// Tells a timer of this connection from one of its predecessor in the slot.
    generation: u32,
    closes: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Answer {
    None,
    Plain,
    /// So many frames were sent; `u32::MAX` before the head.
    Stream(u32),
}

const LISTENER: u64 = u64::MAX;

struct Serving {
    poller: Poller,
    listener: TcpListener,
    peers: Vec<Option<Peer>>,
    free: Vec<usize>,
    timers: BinaryHeap<Reverse<(u64, usize, u32)>>,
    generation: u32,
    answers: Arc<Answers>,
    answered: Arc<AtomicU64>,
    began: Instant,
    buffer: Vec<u8>,
    ready: Vec<u64>,
}

impl Serving {
    fn new(listener: TcpListener, answers: Arc<Answers>, answered: Arc<AtomicU64>) -> io::Result<Self> {
        let poller = Poller::new()?;
        poller.add(&listener, LISTENER, Interest::Read)?;
        Ok(Self {
            poller,
            listener,
            peers: Vec::new(),
            free: Vec::new(),
            timers: BinaryHeap::new(),
            generation: 0,
            answers,
            answered,
            began: Instant::now(),
            // One read of a large body: what came on other connections waits as long.
            buffer: vec![0; 64 * 1024],
            ready: Vec::new(),
        })
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Serves what is ready within `wait`, which is all it waits; whether anything was.
    fn turn(&mut self, wait: Duration) -> bool {
        let wait = match self.timers.peek() {
            Some(Reverse((due, ..))) if !wait.is_zero() => {
                Duration::from_nanos(due.saturating_sub(self.now_ns())).min(wait)
            }
            _ => wait,
        };
        let mut ready = std::mem::take(&mut self.ready);
        // The arguments are all right by construction, so there is nothing that another try would not meet again.
        self.poller.wait(wait, &mut ready).expect("epoll waits");
        for token in &ready {
            match *token {
                LISTENER => self.accept(),
                slot => self.on_ready(usize::try_from(slot).unwrap_or(usize::MAX)),
            }
        }
        let fired = self.fire_timers();
        let has_worked = fired || !ready.is_empty();
        self.ready = ready;
        has_worked
    }

    fn accept(&mut self) {
        while let Ok((socket, _)) = self.listener.accept() {
            if socket.set_nonblocking(true).is_err() || socket.set_nodelay(true).is_err() {
                continue;
            }
            let slot = self.free.pop().unwrap_or_else(|| {
                self.peers.push(None);
                self.peers.len() - 1
            });
            if self.poller.add(&socket, slot as u64, Interest::Read).is_err() {
                self.free.push(slot);
                continue;
            }
            self.generation = self.generation.wrapping_add(1);
            self.peers[slot] = Some(Peer {
                socket,
                reader: Reader::requests(),
                body: Vec::new(),
                unsent: Vec::new(),
                is_watched_for_write: false,
                answer: Answer::None,
                generation: self.generation,
                closes: false,
            });
        }
    }

    fn close(&mut self, slot: usize) {
        if self.peers[slot].take().is_some() {
            self.free.push(slot);
        }
    }

    fn on_ready(&mut self, slot: usize) {
        let Some(peer) = self.peers.get_mut(slot).and_then(Option::as_mut) else { return };
        if peer.is_watched_for_write {
            let done = flush(peer).and_then(|()| {
                if peer.unsent.is_empty() {
                    peer.is_watched_for_write = false;
                    self.poller.change(&peer.socket, slot as u64, Interest::Read)?;
                }
                Ok(())
            });
            if done.is_err() || (peer.unsent.is_empty() && peer.closes && peer.answer == Answer::None) {
                self.close(slot);
            }
            return;
        }
        match peer.socket.read(&mut self.buffer) {
            Ok(0) => self.close(slot),
            Ok(count) => {
                let buffer = std::mem::take(&mut self.buffer);
                self.on_bytes(slot, &buffer[..count]);
                self.buffer = buffer;
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(_) => self.close(slot),
        }
    }

    fn on_bytes(&mut self, slot: usize, bytes: &[u8]) {
        let Some(peer) = self.peers[slot].as_mut() else { return };
        let had_head = peer.reader.head().is_some();
        let body = &mut peer.body;
        let fed = peer.reader.feed(bytes, |piece| {
            let room = SEARCHED_BYTES - body.len().min(SEARCHED_BYTES);
            body.extend_from_slice(&piece[..piece.len().min(room)]);
        });
        match fed {
            Ok(Progress::Complete { used }) if used == bytes.len() && peer.answer == Answer::None => {
                peer.answer = if asks_for_stream(&peer.body) { Answer::Stream(u32::MAX) } else { Answer::Plain };
                peer.closes = peer.reader.head().is_some_and(|head| !head.keep_alive);
                peer.body.clear();
                peer.reader.reset();
                self.answered.fetch_add(1, Ordering::Relaxed);
                if self.answers.delay_ns == 0 {
                    self.go_on(slot);
                } else {
                    let due = self.now_ns() + self.answers.delay_ns;
                    self.timers.push(Reverse((due, slot, self.peers[slot].as_ref().map_or(0, |peer| peer.generation))));
                }
            }
            Ok(Progress::More) => {
                let asks = peer.reader.head().is_some_and(|head| head.expects_continue);
                if asks && !had_head {
                    let _ = peer.socket.write_all(b"HTTP/1.1 100 Continue\r\n\r\n"); // 25 bytes fit an idle socket
                }
            }
            // Pipelining is nothing a gateway does to a provider; whoever does it finds the connection closed.
            Ok(Progress::Complete { .. }) | Err(_) => self.close(slot),
        }
    }

    fn fire_timers(&mut self) -> bool {
        if self.timers.is_empty() {
            return false;
        }
        let now = self.now_ns();
        let mut fired = false;
        while let Some(Reverse((due, slot, generation))) = self.timers.peek().copied() {
            if due > now {
                break;
            }
            fired = true;
            self.timers.pop();
            if self.peers[slot].as_ref().is_some_and(|peer| peer.generation == generation) {
                self.go_on(slot);
            }
        }
        fired
    }

    /// Sends what is due of the answer, and sets a timer for the rest.
    fn go_on(&mut self, slot: usize) {
        let answers = self.answers.clone();
        let now = if answers.gap_ns > 0 { self.now_ns() } else { 0 };
        let Some(peer) = self.peers[slot].as_mut() else { return };
        let mut result = Ok(());
        loop {
            let sent = match peer.answer {
                Answer::None => break,
                Answer::Plain => {
                    result = send(peer, &answers.plain);
                    peer.answer = Answer::None;
                    break;
                }
                Answer::Stream(sent) => sent,
            };
            let index = if sent == u32::MAX { 0 } else { sent as usize };
            if sent == u32::MAX {
                result = send(peer, &answers.stream_head);
            }
            if result.is_err() {
                break;
            }
            let Some(frame) = answers.frames.get(index) else {
                result = send(peer, &answers.stream_end);
                peer.answer = Answer::None;
                break;
            };
            result = send(peer, frame);
            peer.answer = Answer::Stream(u32::try_from(index + 1).unwrap_or(u32::MAX - 1));
            if result.is_err() {
                break;
            }
            if answers.gap_ns > 0 {
                self.timers.push(Reverse((now + answers.gap_ns, slot, peer.generation)));
                break;
            }
        }
        let is_blocked = !peer.unsent.is_empty();
        if is_blocked && !peer.is_watched_for_write && result.is_ok() {
            peer.is_watched_for_write = true;
            result = self.poller.change(&peer.socket, slot as u64, Interest::Write);
        }
        if result.is_err() || (peer.closes && !is_blocked && peer.answer == Answer::None) {
            self.close(slot);
        }
    }
}

/// Writes, or keeps what the socket does not take. A peer that never reads is bounded by its one answer.
fn send(peer: &mut Peer, bytes: &[u8]) -> io::Result<()> {
    if !peer.unsent.is_empty() {
        peer.unsent.extend_from_slice(bytes);
        return Ok(());
    }
    match peer.socket.write(bytes) {
        Ok(count) => {
            peer.unsent.extend_from_slice(&bytes[count..]);
            Ok(())
        }
        Err(error) if error.kind() == ErrorKind::WouldBlock => {
            peer.unsent.extend_from_slice(bytes);
            Ok(())
        }
        Err(error) => Err(error),
    }
}

fn flush(peer: &mut Peer) -> io::Result<()> {
    match peer.socket.write(&peer.unsent) {
        Ok(count) => {
            peer.unsent.drain(..count);
            Ok(())
        }
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Whether a body says `"stream": true`.
fn asks_for_stream(body: &[u8]) -> bool {
    memmem::find_iter(body, b"\"stream\"").any(|at| {
        let rest = body[at + 8..].trim_ascii_start();
        rest.strip_prefix(b":").is_some_and(|rest| rest.trim_ascii_start().starts_with(b"true"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(addr: SocketAddr, body: &str) -> (Vec<u8>, Vec<u8>) {
        let mut socket = TcpStream::connect(addr).unwrap();
        let request =
            format!("POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", body.len());
        socket.write_all(request.as_bytes()).unwrap();
        socket.write_all(body.as_bytes()).unwrap();
        let (mut reader, mut all, mut payload) = (Reader::answers(), Vec::new(), Vec::new());
        let mut buffer = [0; 4096];
        loop {
            let count = socket.read(&mut buffer).unwrap();
            assert!(count > 0, "closed");
            all.extend_from_slice(&buffer[..count]);
            let progress = reader.feed(&buffer[..count], |piece| payload.extend_from_slice(piece)).unwrap();
            if progress != Progress::More {
                return (all, payload);
            }
        }
    }

    #[test]
    fn a_plain_reply_is_json_with_usage() {
        let provider = Provider::start(&Settings::default(), 1, &sys::usable_cpus()).unwrap();
        let (_, payload) = ask(provider.addr, r#"{"model":"gpt-4o-mini"}"#);
        let reply: serde_json::Value = serde_json::from_slice(&payload).unwrap();
        assert_eq!(reply["usage"]["completion_tokens"], 40);
        assert!(reply["choices"][0]["message"]["content"].as_str().unwrap().starts_with("tt-reply"));
        assert_eq!(provider.answered(), 1);
    }

    #[test]
    fn a_stream_has_every_frame_in_order_and_ends() {
        for gap_us in [0, 200] {
            let settings = Settings { chunks: 7, gap_us, ..Settings::default() };
            let provider = Provider::start(&settings, 2, &sys::usable_cpus()).unwrap();
            let (_, payload) = ask(provider.addr, r#"{"model":"gpt-4o-mini", "stream" : true}"#);
            let text = String::from_utf8(payload).unwrap();
            let frames: Vec<_> =
                text.match_indices("tt-frame-").map(|(at, mark)| &text[at + mark.len()..][..5]).collect();
            assert_eq!(frames, ["00000", "00001", "00002", "00003", "00004", "00005", "00006"]);
            assert!(text.ends_with("data: [DONE]\n\n"));
        }
    }

    #[test]
    fn a_lent_provider_is_served_by_the_borrower_and_then_by_its_own_thread() {
        let provider = Provider::start(&Settings::default(), 1, &sys::usable_cpus()).unwrap();
        let addr = provider.addr;
        let loan = provider.loan().expect("one thread");
        let mut lent = loan.take();
        let asking = std::thread::spawn(move || ask(addr, "{}"));
        while provider.answered() == 0 {
            lent.turn(); // nobody else can
        }
        asking.join().expect("an answer");
        drop(lent);
        ask(addr, "{}");
        assert_eq!(provider.answered(), 2);
        assert!(Provider::start(&Settings::default(), 2, &sys::usable_cpus()).unwrap().loan().is_none());
    }

    #[test]
    fn a_reply_that_no_socket_buffer_holds_arrives_whole() {
        let settings = Settings { text_bytes: 20_000_000, ..Settings::default() };
        let provider = Provider::start(&settings, 1, &sys::usable_cpus()).unwrap();
        let (_, payload) = ask(provider.addr, "{}");
        assert!(payload.len() > 20_000_000);
        assert!(serde_json::from_slice::<serde_json::Value>(&payload).is_ok());
    }

    #[test]
    fn only_a_true_stream_member_asks_for_a_stream() {
        assert!(asks_for_stream(br#"{"stream":true}"#));
        assert!(asks_for_stream(br#"{"stream": false, "x": {"stream" : true}}"#));
        assert!(!asks_for_stream(br#"{"stream":false}"#));
        assert!(!asks_for_stream(br#"{"text":"stream:true"}"#));
    }
}

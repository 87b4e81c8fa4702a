//! One thread of the load generator: an epoll loop over its share of the connections.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::Ordering;
use std::time::Duration;

use socket2::{Domain, Socket, Type};

use super::check::{Check, Expect};
use super::{Live, Load, Pace, Tally, Window};
use crate::provider::Lent;
use crate::stop;
use crate::sys::{Interest, Poller};
use crate::wire::{Fault, Progress, Reader};

/// How often it looks for answers that are overdue.
const SWEEP_NS: u64 = 50_000_000;
/// After a connection failed, the next try waits, so that a dead target is not hammered.
const RETRY_NS: u64 = 10_000_000;
/// One write of a large body: the kernel copies it in one go, and whoever shares the CPU waits as long.
const WRITE_BYTES: usize = 64 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// No request; the socket may be open or not.
    Idle,
    Connecting,
    Sending,
    Waiting,
}

struct Conn {
    socket: Option<TcpStream>,
    state: State,
    reader: Reader,
    check: Check,
    /// The head, and a small body.
    out: Vec<u8>,
    sent: usize,
    served: u32,
    is_watched_for_write: bool,
    /// What latency is counted from.
    from_ns: u64,
    /// When the request was begun: what the timeout is counted from.
    begun_ns: u64,
    last_frame_ns: u64,
    has_first_byte: bool,
}

pub struct Worker<'a> {
    load: &'a Load,
    window: Window,
    live: &'a Live,
    poller: Poller,
    conns: Vec<Conn>,
    /// Connections without a request, open loop.
    idle: Vec<usize>,
    /// When a connection begins its next request, closed loop.
    timers: BinaryHeap<Reverse<(u64, usize)>>,
    /// Requests that are due and have no connection yet, by when they were due.
    backlog: VecDeque<u64>,
    next_due_ns: u64,
    every_ns: f64,
    due_exact: f64,
    random: u64,
    tally: Tally,
    underway: usize,
    buffer: Vec<u8>,
}

impl<'a> Worker<'a> {
    pub fn new(load: &'a Load, window: Window, live: &'a Live, index: usize, threads: usize) -> io::Result<Self> {
        let mine = (0..load.connections).filter(|conn| conn % threads == index).count();
        let now = window.now_ns();
        let conns = (0..mine).map(|_| Conn::new(load.expect)).collect();
        let mut worker = Self {
            load,
            window,
            live,
            poller: Poller::new()?,
            conns,
            idle: Vec::new(),
            timers: BinaryHeap::new(),
            backlog: VecDeque::new(),
            next_due_ns: u64::MAX,
            every_ns: 0.0,
            due_exact: 0.0,
            random: 0x9e37_79b9_7f4a_7c15 ^ (index as u64 + 1),
            tally: Tally::default(),
            underway: 0,
            buffer: vec![0; 256 * 1024],
        };
        match load.pace {
            Pace::Open { rate, .. } => {
                worker.idle = (0..mine).rev().collect();
                worker.every_ns = 1e9 * threads as f64 / rate;
                // Threads take turns, so that their sum is even.
                worker.due_exact = now as f64 + worker.every_ns * (index as f64 / threads as f64);
                worker.next_due_ns = worker.due_exact as u64;
            }
            Pace::Closed { .. } | Pace::Once => {
                for conn in 0..mine {
                    let spread = load.ramp_ns * conn as u64 / mine.max(1) as u64;
                    worker.timers.push(Reverse((now + spread, conn)));
                }
            }
        }
        Ok(worker)
    }

    /// Works until the window is over and what was under way is answered or overdue, or until a stop is asked for.
    ///
    /// A load that never sleeps works the provider too, where that has the same CPU and is lent.
    pub fn run(mut self, mut provider: Option<Lent<'_>>) -> io::Result<Tally> {
        let mut ready = Vec::new();
        let mut next_sweep = 0;
        let mut idle_since = None;
        loop {
            let now = self.window.now_ns();
            if let Some(since) = idle_since {
                add(&self.live.idle_ns, now - since);
            }
            idle_since = self.load.is_busy.then_some(now);
            let is_over = now >= self.window.end_ns;
            if stop::is_asked() {
                break; // the window is thrown away
            }
            if is_over && (self.underway == 0 && self.backlog.is_empty()) {
                break;
            }
            if is_over && now > self.window.end_ns + self.load.timeout_ns {
                let late = self.underway + self.backlog.len();
                *self.tally.failures.entry("unanswered at the end").or_default() += late as u64;
                break;
            }
            if self.begin_due(now) {
                idle_since = None;
            }
            if now >= next_sweep {
                self.sweep(now);
                next_sweep = now + SWEEP_NS;
            }
            if let Some(provider) = &mut provider
                && provider.turn()
            {
                idle_since = None;
            }
            let next = self.next_due_ns.min(self.timers.peek().map_or(u64::MAX, |Reverse((due, _))| *due));
            let until = if is_over { next_sweep } else { next.min(next_sweep).min(self.window.end_ns) };
            let wait = if self.load.is_busy { 0 } else { until.saturating_sub(self.window.now_ns()) };
            self.poller.wait(Duration::from_nanos(wait), &mut ready)?;
            for token in &ready {
                self.on_ready(usize::try_from(*token).unwrap_or(usize::MAX));
            }
            if !ready.is_empty() {
                idle_since = None;
            }
        }
        Ok(self.tally)
    }

    /// Begins what is due by now; whether anything was. After the window nothing new is due, but an open loop still
    /// owes what waits.
    fn begin_due(&mut self, now: u64) -> bool {
        let mut has_begun = false;
        while let Some(Reverse((due, conn))) = self.timers.peek().copied() {
            if due > now {
                break;
            }
            self.timers.pop();
            has_begun = true;
            match self.load.pace {
                Pace::Open { .. } => self.is_free(conn, now),
                Pace::Closed { .. } | Pace::Once if now < self.window.end_ns => self.begin(conn, now, now),
                Pace::Closed { .. } | Pace::Once => {}
            }
        }
        let Pace::Open { is_poisson, .. } = self.load.pace else { return has_begun };
        while self.next_due_ns <= now.min(self.window.end_ns - 1) {
            has_begun = true;
            let due = self.next_due_ns;
            self.due_exact += if is_poisson { self.exponential() } else { self.every_ns };
            self.next_due_ns = self.due_exact as u64;
            match self.idle.pop() {
                Some(conn) => self.begin(conn, due, now),
                None => {
                    self.backlog.push_back(due);
                    self.tally.backlog_max = self.tally.backlog_max.max(self.backlog.len());
                }
            }
        }
        has_begun
    }

    /// A distance of a Poisson process. The generator is splitmix64: good enough to be uneven, and the same each run.
    fn exponential(&mut self) -> f64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.random;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let uniform = ((bits ^ (bits >> 31)) >> 11) as f64 / (1_u64 << 53) as f64;
        -self.every_ns * (1.0 - uniform).ln()
    }

    fn begin(&mut self, index: usize, from_ns: u64, now: u64) {
        let key = self.load.next_key();
        self.underway += 1;
        let conn = &mut self.conns[index];
        self.load.request.fill(key, &mut conn.out);
        conn.sent = 0;
        conn.reader.reset();
        conn.check.reset();
        conn.from_ns = from_ns;
        conn.begun_ns = now;
        conn.last_frame_ns = 0;
        conn.has_first_byte = false;
        if conn.socket.is_some() {
            conn.state = State::Sending;
            self.send(index);
        } else if let Err(why) = self.connect(index) {
            self.fail(index, why);
        }
    }

    fn connect(&mut self, index: usize) -> Result<(), Fault> {
        let no_socket = "no socket: too many open files?";
        let target = self.load.target;
        let socket = Socket::new(Domain::for_address(target), Type::STREAM, None).map_err(|_| no_socket)?;
        socket.set_nonblocking(true).map_err(|_| no_socket)?;
        socket.set_tcp_nodelay(true).map_err(|_| no_socket)?;
        let connected = match socket.connect(&target.into()) {
            Ok(()) => true,
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => false,
            Err(_) => return Err("connection refused"),
        };
        self.tally.connects += 1;
        let socket = TcpStream::from(socket);
        let interest = if connected { Interest::Read } else { Interest::Write };
        self.poller.add(&socket, index as u64, interest).map_err(|_| no_socket)?;
        let conn = &mut self.conns[index];
        conn.is_watched_for_write = !connected;
        conn.served = 0;
        conn.socket = Some(socket);
        conn.state = if connected { State::Sending } else { State::Connecting };
        if connected {
            self.send(index);
        }
        Ok(())
    }

    fn send(&mut self, index: usize) {
        let conn = &mut self.conns[index];
        let Some(socket) = conn.socket.as_mut() else { return };
        let body = if self.load.request.body.len() > super::COPIED_BODY_BYTES { &*self.load.request.body } else { &[] };
        let result = loop {
            let in_body = conn.sent.saturating_sub(conn.out.len());
            let written = if conn.sent >= conn.out.len() {
                if in_body == body.len() {
                    break Ok(true);
                }
                socket.write(&body[in_body..body.len().min(in_body + WRITE_BYTES)])
            } else if body.is_empty() {
                socket.write(&conn.out[conn.sent..])
            } else {
                socket.write_vectored(&[
                    IoSlice::new(&conn.out[conn.sent..]),
                    IoSlice::new(&body[..body.len().min(WRITE_BYTES)]),
                ])
            };
            match written {
                Ok(count) => conn.sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => break Err("a connection broken while sending"),
            }
        };
        let watch_for_write = result == Ok(false);
        // While a long body goes out, nothing is read: an early answer is found when the sending fails or ends.
        if result.is_ok() && watch_for_write != conn.is_watched_for_write {
            let interest = if watch_for_write { Interest::Write } else { Interest::Read };
            conn.is_watched_for_write = watch_for_write;
            if self.poller.change(socket, index as u64, interest).is_err() {
                return self.fail(index, "epoll refused a socket");
            }
        }
        match result {
            Ok(true) => conn.state = State::Waiting,
            Ok(false) => {}
            Err(why) => self.fail(index, why),
        }
    }

    fn on_ready(&mut self, index: usize) {
        let conn = &mut self.conns[index];
        let Some(socket) = conn.socket.as_mut() else { return };
        match conn.state {
            State::Connecting => match socket.take_error() {
                Ok(None) => {
                    conn.state = State::Sending;
                    self.send(index);
                }
                _ => self.fail(index, "connection refused"),
            },
            State::Sending => self.send(index),
            State::Waiting => self.receive(index),
            State::Idle => {
                // A target may close a connection it no longer wants; anything it says unasked is its fault.
                match socket.read(&mut self.buffer) {
                    Ok(0) => conn.socket = None,
                    Ok(_) => {
                        conn.socket = None;
                        self.count_failure("bytes that nobody asked for");
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(_) => conn.socket = None,
                }
            }
        }
    }

    fn receive(&mut self, index: usize) {
        let conn = &mut self.conns[index];
        let Some(socket) = conn.socket.as_mut() else { return };
        let count = match socket.read(&mut self.buffer) {
            Ok(count) => count,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => return,
            Err(_) => return self.fail(index, "a connection that was reset"),
        };
        let now = self.window.now_ns();
        if count == 0 {
            let status = conn.reader.head().map_or(0, |head| head.status);
            let verdict = conn.reader.end().and_then(|()| conn.check.verdict(status));
            conn.socket = None;
            return match verdict {
                Ok(()) => self.complete(index, now),
                Err(why) => self.fail(index, why),
            };
        }
        let Conn { reader, check, .. } = conn;
        let frames_before = check.frames();
        let mut got_body = false;
        let progress = reader.feed(&self.buffer[..count], |piece| {
            got_body = true;
            check.take(piece);
        });
        let frames = conn.check.frames() - frames_before;
        let is_counted = now >= self.window.begin_ns && now < self.window.end_ns;
        if got_body && !conn.has_first_byte {
            conn.has_first_byte = true;
            if is_counted {
                self.tally.first_byte.saturating_record((now - conn.from_ns).max(1));
            }
        }
        if frames > 0 {
            if is_counted {
                if conn.last_frame_ns != 0 {
                    self.tally.gap.saturating_record((now - conn.last_frame_ns).max(1));
                }
                if frames > 1 {
                    self.tally.gap.saturating_record_n(1, u64::from(frames - 1));
                }
                self.tally.frames += u64::from(frames);
            }
            conn.last_frame_ns = now;
            add(&self.live.frames, u64::from(frames));
        }
        match progress {
            Ok(Progress::More) => {}
            Ok(Progress::Complete { used }) if used == count => {
                let head = conn.reader.head();
                let verdict = conn.check.verdict(head.map_or(0, |head| head.status));
                conn.served += 1;
                let is_used_up = self.load.requests_per_connection != 0
                    && conn.served >= self.load.requests_per_connection
                    || head.is_none_or(|head| !head.keep_alive);
                if is_used_up {
                    conn.socket = None;
                }
                match verdict {
                    Ok(()) => self.complete(index, now),
                    Err(why) => self.fail_open(index, why),
                }
            }
            Ok(Progress::Complete { .. }) => self.fail(index, "bytes after the end of an answer"),
            Err(why) => self.fail(index, why),
        }
    }

    /// A right answer is complete.
    fn complete(&mut self, index: usize, now: u64) {
        add(&self.live.requests, 1);
        let conn = &self.conns[index];
        // An open loop owes an answer to everything that was due inside the window; a closed one counts what ended in it.
        let belongs_at = if matches!(self.load.pace, Pace::Open { .. }) { conn.from_ns } else { now };
        if belongs_at >= self.window.begin_ns && belongs_at < self.window.end_ns {
            self.tally.completed += 1;
            self.tally.latency.saturating_record((now - conn.from_ns).max(1));
        }
        self.rest(index, now, 0);
    }

    /// The request failed, and its connection with it.
    fn fail(&mut self, index: usize, why: Fault) {
        self.conns[index].socket = None;
        self.fail_open(index, why);
    }

    /// The request failed; its connection is still good.
    fn fail_open(&mut self, index: usize, why: Fault) {
        self.count_failure(why);
        let pause = if self.conns[index].socket.is_none() { RETRY_NS } else { 0 };
        self.rest(index, self.window.now_ns(), pause);
    }

    fn count_failure(&mut self, why: Fault) {
        let is_early = self.window.now_ns() < self.window.begin_ns;
        let failures = if is_early { &mut self.tally.early_failures } else { &mut self.tally.failures };
        *failures.entry(why).or_default() += 1;
    }

    /// The connection has no request any more: what it does next.
    fn rest(&mut self, index: usize, now: u64, pause_ns: u64) {
        self.underway -= 1;
        self.conns[index].state = State::Idle;
        match self.load.pace {
            Pace::Once => {}
            Pace::Closed { think_ns } if think_ns + pause_ns == 0 => {
                if now < self.window.end_ns {
                    self.begin(index, now, now);
                }
            }
            Pace::Closed { think_ns } => self.timers.push(Reverse((now + think_ns + pause_ns, index))),
            // By way of a timer, so that a dead target does not lead from one failure straight into the next.
            Pace::Open { .. } if pause_ns > 0 => self.timers.push(Reverse((now + pause_ns, index))),
            Pace::Open { .. } => self.is_free(index, now),
        }
    }

    /// Open loop: a connection can take a request.
    fn is_free(&mut self, index: usize, now: u64) {
        match self.backlog.pop_front() {
            Some(due) => self.begin(index, due, now),
            None => self.idle.push(index),
        }
    }

    /// Gives up on what takes too long.
    fn sweep(&mut self, now: u64) {
        for index in 0..self.conns.len() {
            let conn = &self.conns[index];
            if conn.state != State::Idle && now.saturating_sub(conn.begun_ns) > self.load.timeout_ns {
                self.fail(index, "no complete answer in time");
            }
        }
    }
}

impl Conn {
    fn new(expect: Expect) -> Self {
        Self {
            socket: None,
            state: State::Idle,
            reader: Reader::answers(),
            check: Check::new(expect),
            out: Vec::new(),
            sent: 0,
            served: 0,
            is_watched_for_write: false,
            from_ns: 0,
            begun_ns: 0,
            last_frame_ns: 0,
            has_first_byte: false,
        }
    }
}

/// Only this thread writes the counter, so a load and a store are enough.
fn add(counter: &std::sync::atomic::AtomicU64, count: u64) {
    counter.store(counter.load(Ordering::Relaxed) + count, Ordering::Relaxed);
}

//! The load generator: many connections per thread, closed loop or open loop, every answer checked.
//!
//! In a closed loop each connection sends its next request when it has its answer. In an open loop requests are due at
//! fixed times whatever the target does, and latency counts from when a request was *due*, not from when a connection
//! was free to send it: a target that stalls cannot hide that by slowing its own load (coordinated omission).
//! A connection that has an answer short of a byte, a frame or its status counts a failure, and a window with a failure
//! is no result.

mod check;
mod tally;
mod worker;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

pub use check::Expect;
pub use tally::Tally;
use worker::Worker;

use crate::provider::Loan;
use crate::sys;

/// How requests follow each other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// A connection sends again when it has its answer, after a pause.
    Closed { think_ns: u64 },
    /// So many requests a second over all connections, at even or at random (Poisson) distances.
    Open { rate: f64, is_poisson: bool },
    /// One request per connection, which then stays open and idle.
    Once,
}

/// The bytes of a request; the caller's key goes between the two parts of its head.
#[derive(Clone, Debug)]
pub struct Request {
    before_key: Vec<u8>,
    after_key: Vec<u8>,
    body: Arc<[u8]>,
}

/// Up to this size a body is copied behind its head and sent in one write.
const COPIED_BODY_BYTES: usize = 16 * 1024;

impl Request {
    /// A chat completion as the OpenAI SDK for Python sends it: its headers, and a body of about `body_bytes`.
    pub fn chat(host: SocketAddr, path: &str, body_bytes: usize, stream: bool) -> Self {
        let body = chat_body(body_bytes, stream);
        let before_key = format!(
            "POST {path} HTTP/1.1\r\nHost: {host}\r\nAccept-Encoding: gzip, deflate\r\nConnection: keep-alive\r\n\
             Accept: application/json\r\nContent-Type: application/json\r\nUser-Agent: OpenAI/Python 2.8.0\r\n\
             X-Stainless-Lang: python\r\nX-Stainless-Package-Version: 2.8.0\r\nX-Stainless-OS: Linux\r\n\
             X-Stainless-Arch: x64\r\nX-Stainless-Runtime: CPython\r\nX-Stainless-Runtime-Version: 3.11.2\r\n\
             X-Stainless-Async: false\r\nx-stainless-retry-count: 0\r\nx-stainless-read-timeout: 600\r\n\
             Content-Length: {}\r\nAuthorization: Bearer ",
            body.len()
        );
        Self { before_key: before_key.into_bytes(), after_key: b"\r\n\r\n".to_vec(), body: body.into_bytes().into() }
    }

    #[cfg(test)]
    pub fn body_bytes(&self) -> usize {
        self.body.len()
    }

    /// Writes what is sent first into `out`, and gives what follows it.
    fn fill(&self, key: &str, out: &mut Vec<u8>) -> &[u8] {
        out.clear();
        out.extend_from_slice(&self.before_key);
        out.extend_from_slice(key.as_bytes());
        out.extend_from_slice(&self.after_key);
        if self.body.len() > COPIED_BODY_BYTES {
            return &self.body;
        }
        out.extend_from_slice(&self.body);
        &[]
    }
}

fn chat_body(bytes: usize, stream: bool) -> String {
    let stream = if stream { ",\"stream\":true,\"stream_options\":{\"include_usage\":true}" } else { "" };
    let begin = format!(
        "{{\"model\":\"gpt-4o-mini\"{stream},\"max_tokens\":200,\"temperature\":0.7,\"messages\":[\
         {{\"role\":\"system\",\"content\":\"You are a helpful assistant.\"}},{{\"role\":\"user\",\"content\":\""
    );
    let end = "\"}]}";
    let words = "the quick brown fox jumps over the lazy dog and asks what happened. ";
    let room = bytes.saturating_sub(begin.len() + end.len());
    let mut text = words.repeat(room / words.len() + 1);
    text.truncate(room);
    begin + &text + end
}

/// One load on one target.
#[derive(Clone, Debug)]
pub struct Load {
    pub target: SocketAddr,
    pub request: Request,
    /// Taken in turn, one per request.
    pub keys: Arc<[String]>,
    /// How many were taken, by all windows of this load: the next one goes on where the last one ended.
    pub keys_taken: Arc<AtomicUsize>,
    pub connections: usize,
    pub pace: Pace,
    pub expect: Expect,
    /// A connection is closed after so many requests; 0 keeps it.
    pub requests_per_connection: u32,
    /// First requests are spread over this time.
    pub ramp_ns: u64,
    /// No answer may take longer.
    pub timeout_ns: u64,
    pub threads: usize,
    pub cpus: Vec<usize>,
    /// Its threads never sleep: no answer waits for one to wake, and the target wakes nobody.
    pub is_busy: bool,
    /// A provider on the same CPU, which a thread that never sleeps has to work as well.
    pub provider: Option<Loan>,
    /// It runs beside the load that is measured, and must not hold that one up where they share a CPU.
    pub is_beside: bool,
}

impl Load {
    fn next_key(&self) -> &str {
        let taken = if self.keys.len() > 1 { self.keys_taken.fetch_add(1, Ordering::Relaxed) } else { 0 };
        &self.keys[taken % self.keys.len()]
    }
}

/// When a load begins to count and when it ends, in ns since `origin`.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    pub origin: Instant,
    pub begin_ns: u64,
    pub end_ns: u64,
}

impl Window {
    pub fn now_ns(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// What was done so far; read while the load runs, to divide CPU time by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    pub requests: u64,
    pub frames: u64,
    /// CPU time that threads which never sleep spent looking for something to do.
    pub idle_ns: u64,
}

/// Counters of one thread: written by it, read by the one who measures.
#[derive(Default, Debug)]
pub struct Live {
    pub requests: AtomicU64,
    pub frames: AtomicU64,
    pub idle_ns: AtomicU64,
}

/// A load that runs.
pub struct Running {
    live: Vec<Arc<Live>>,
    threads: Vec<JoinHandle<io::Result<Tally>>>,
}

/// Starts a load. It warms up at once, counts from `window.begin_ns` and starts nothing after `window.end_ns`.
pub fn start(load: &Load, window: Window) -> io::Result<Running> {
    let load = Arc::new(load.clone());
    let threads = load.threads.clamp(1, load.connections.max(1));
    let mut running = Running { live: Vec::new(), threads: Vec::new() };
    for index in 0..threads {
        let live = Arc::new(Live::default());
        running.live.push(live.clone());
        let load = load.clone();
        let thread = std::thread::Builder::new().name(format!("load-{index}")).spawn(move || {
            let _ = sys::pin_this_thread(&load.cpus); // the report says what was pinned, from the same list
            sys::tighten_timers();
            if load.is_beside {
                sys::step_back();
            }
            let provider = load.provider.as_ref().filter(|_| load.is_busy).map(Loan::take);
            Worker::new(&load, window, &live, index, threads)?.run(provider)
        })?;
        running.threads.push(thread);
    }
    Ok(running)
}

impl Running {
    /// What was done so far. Relaxed reads: each counter is a sum of its own.
    pub fn done(&self) -> Done {
        let sum = |read: fn(&Live) -> &AtomicU64| self.live.iter().map(|live| read(live).load(Ordering::Relaxed)).sum();
        Done {
            requests: sum(|live| &live.requests),
            frames: sum(|live| &live.frames),
            idle_ns: sum(|live| &live.idle_ns),
        }
    }

    /// Waits for the end and for what is still under way, and adds up what the threads saw.
    pub fn finish(self) -> io::Result<Tally> {
        let mut total = Tally::default();
        for thread in self.threads {
            match thread.join() {
                Ok(tally) => total.add(&tally?),
                Err(_) => return Err(io::Error::other("a thread of the load generator panicked")),
            }
        }
        Ok(total)
    }
}

#[cfg(test)]
mod tests;

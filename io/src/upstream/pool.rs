//! Idle connections to one provider, kept by one core.

use crate::clock;
use crate::runtime::Socket;

/// Idle for longer than this, a connection is looked at before it is used: one system call.
const LOOK_AFTER_NS: u64 = 1_000_000;

/// A stack: the connection used last is the least likely to have been closed by the other side.
pub struct Pool {
    idle: Vec<(Socket, u64)>,
    idle_max: usize,
    /// Providers close idle connections after a minute or more; we forget them first.
    idle_ns_max: u64,
}

impl Pool {
    /// Keeps at most `idle_max` connections, none longer than `idle_ns_max`.
    pub fn new(idle_max: usize, idle_ns_max: u64) -> Self {
        Pool { idle: Vec::new(), idle_max, idle_ns_max }
    }

    /// A connection that was open a moment ago, or `None`. Never waits for the network.
    pub fn take(&mut self) -> Option<Socket> {
        while let Some((socket, since_ns)) = self.idle.pop() {
            let idle_ns = clock::mono_ns().saturating_sub(since_ns);
            if idle_ns > self.idle_ns_max {
                self.idle.clear(); // everything below is older still
                return None;
            }
            // An idle provider has nothing to say: news means closed, or an answer nobody asked for. A connection that
            // was used a moment ago is asked only for what has come already; should it be closed, the request is sent again on
            // a fresh one.
            if !(if idle_ns <= LOOK_AFTER_NS { socket.has_arrived() } else { socket.has_news() }) {
                return Some(socket);
            }
        }
        None
    }

    /// Keeps a connection whose last answer was read completely, unless its request never left whole.
    pub fn give(&mut self, socket: Socket) {
        if self.idle.len() >= self.idle_max || !socket.is_flushed() {
            return;
        }
        self.idle.push((socket, clock::mono_ns()));
    }

    /// Closes what has been idle too long. Called by the core's housekeeping.
    pub fn sweep(&mut self) {
        let now_ns = clock::mono_ns();
        self.idle.retain(|(_, since_ns)| now_ns.saturating_sub(*since_ns) <= self.idle_ns_max);
    }

    /// How many connections are idle.
    pub fn idle(&self) -> usize {
        self.idle.len()
    }
}

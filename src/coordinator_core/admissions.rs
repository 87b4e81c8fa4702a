//! The admissions connection: what all cores ask goes out together, and each answer goes back to the core that asked.
//!
//! What is decided is decided in [`shards::coordinate::lane`]; this file moves bytes. The connection is made as soon as a
//! limit in force names `store: redis`, so that the first calls find it. When it breaks, when the breaker opens and when a
//! probe fails it is made anew, which resolves the name anew: a server that moved is found, and one that hangs is not
//! waited for.

mod news;

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use io::clock;
use io::errand::Answerer;
use io::redis::{Connection, Endpoint, Pipeline, Reply, Trouble, admission};
use shards::coordinate::breaker::Turn;
use shards::coordinate::eval::EvalCall;
use shards::coordinate::key::RATE_PREFIX;
use shards::coordinate::lane::{Asked, Command, Lane, Said};
use shards::coordinate::numbers::{DIAL_AGAIN_NS, DIAL_NS, DIAL_PAUSE_MAX_NS, DIAL_PAUSE_NS};
use shards::coordinate::ticket::TicketId;
use shards::limit::Store;
use shards::rate::Script;
use shards::suspend::Reason;
use shards::units::{MonoNs, WallMs};
use tokio::sync::Notify;

use self::news::News;
use crate::coordination::Coordination;
use crate::coordination::desk::{Answer, Question};
use crate::shared::Shared;

/// What is said of a reply that a script of ours does not give.
const STRANGE: &str = "the server answers in words that are not our script's";

/// A core and its ticket.
type Asker = (usize, TicketId);
type Dialling = Pin<Box<dyn Future<Output = Result<(Connection, Vec<Reply>), Trouble>>>>;

/// The state of the one connection.
enum Link {
    /// No limit in force needs it.
    Unused,
    Dialling(Dialling),
    Up(Box<Connection>),
    /// Dialling failed; it is tried again when a call needs it and `soonest` has passed, or else at `until`.
    Down {
        soonest: MonoNs,
        until: MonoNs,
        reason: Reason,
        error: String,
    },
}

/// The cores' ends of the rings.
pub struct Admissions {
    endpoint: Endpoint,
    shared: Arc<Shared>,
    coordination: Arc<Coordination>,
    desks: Vec<Answerer<Question, Answer>>,
    lane: Lane<Asker>,
    link: Link,
    /// The scripts' names on the server, in the order of [`Script::ALL`].
    names: Vec<Vec<u8>>,
    /// Of the reply that is being read.
    words: Vec<i64>,
    pause_ns: u64,
    late: u64,
    news: News,
    /// Some call has needed the connection, though it may be gone by now, and its limit with it.
    was_asked: bool,
}

/// What the coordinator was woken by.
enum Event {
    Stopped,
    Dialled(Result<(Connection, Vec<Reply>), Trouble>),
    /// Questions, replies or time: all three are looked after anyway.
    Look(Result<(), Trouble>),
}

impl Admissions {
    /// Dials nothing.
    pub fn new(
        endpoint: Endpoint,
        shared: Arc<Shared>,
        coordination: Arc<Coordination>,
        desks: Vec<Answerer<Question, Answer>>,
    ) -> Self {
        Admissions {
            endpoint,
            shared,
            coordination,
            desks,
            lane: Lane::default(),
            link: Link::Unused,
            names: Vec::new(),
            words: Vec::new(),
            pause_ns: DIAL_PAUSE_NS,
            late: 0,
            news: News::default(),
            was_asked: false,
        }
    }

    /// Runs until the coordinator is told to stop. `wake`: some core has asked, or other rules are in force.
    pub async fn run(mut self, wake: Arc<Notify>) {
        let coordination = self.coordination.clone();
        let mut stopped = std::pin::pin!(coordination.stopped());
        self.keep_connected();
        loop {
            match self.event(stopped.as_mut(), &wake).await {
                Event::Stopped => return,
                Event::Dialled(Ok((connection, replies))) => self.connected(connection, &replies),
                Event::Dialled(Err(trouble)) => self.not_connected(&trouble),
                Event::Look(Err(trouble)) => self.broken(&trouble),
                Event::Look(Ok(())) => {}
            }
            self.take_replies().await;
            // Misses come before what was asked after them: the breaker counts a call that began after a miss.
            self.declare_misses();
            self.take_questions();
            self.declare_misses(); // a call that lay here for too long is not made
            self.keep_connected();
            self.write().await;
            self.answer();
        }
    }

    /// Waits for whatever comes first.
    async fn event(&mut self, mut stopped: Pin<&mut impl Future<Output = ()>>, wake: &Notify) -> Event {
        let mut asked = std::pin::pin!(wake.notified());
        let deadline = match &self.link {
            Link::Down { until, .. } => Some(self.lane.next_deadline().map_or(*until, |deadline| deadline.min(*until))),
            _ => self.lane.next_deadline(),
        };
        let left = deadline.map(|deadline| Duration::from_nanos(deadline.0.saturating_sub(clock::mono_ns())));
        let mut timer = std::pin::pin!(left.map(tokio::time::sleep));
        poll_fn(|cx| {
            if stopped.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Event::Stopped);
            }
            match &mut self.link {
                Link::Up(connection) => {
                    if let Poll::Ready(read) = connection.progress(cx) {
                        return Poll::Ready(Event::Look(read));
                    }
                }
                Link::Dialling(dialling) => {
                    if let Poll::Ready(dialled) = dialling.as_mut().poll(cx) {
                        return Poll::Ready(Event::Dialled(dialled));
                    }
                }
                Link::Unused | Link::Down { .. } => {}
            }
            let is_due = timer.as_mut().as_pin_mut().is_some_and(|timer| timer.poll(cx).is_ready());
            if is_due || asked.as_mut().poll(cx).is_ready() { Poll::Ready(Event::Look(Ok(()))) } else { Poll::Pending }
        })
        .await
    }

    fn take_questions(&mut self) {
        let now = now();
        for (core, desk) in self.desks.iter_mut().enumerate() {
            while let Some(Question { ticket, call, deadline }) = desk.next_question() {
                self.was_asked = true;
                self.lane.ask(Asked { to: (core, ticket), call, deadline }, now);
            }
        }
    }

    /// Nobody says anything to a call that got no answer in time.
    fn declare_misses(&mut self) {
        self.lane.tick(now(), &self.coordination.breaker);
        explain(&mut self.lane, &self.coordination, None);
    }

    /// Reads what is there, without waiting for more, and tells it to the lane.
    async fn take_replies(&mut self) {
        let Link::Up(connection) = &mut self.link else { return };
        let read = poll_fn(|cx| match connection.progress(cx) {
            Poll::Ready(read) => Poll::Ready(read),
            Poll::Pending => Poll::Ready(Ok(())),
        })
        .await;
        // What came before the end is heard first.
        let trouble = loop {
            let reply = match connection.next_reply() {
                Ok(Some(reply)) => reply,
                Ok(None) => break read.err(),
                Err(trouble) => break Some(trouble),
            };
            let error = reply.error();
            if let Some(error) = &error {
                heard(&mut self.news, error);
            }
            match self.lane.said(spoken(&reply, &mut self.words), now(), &self.coordination.breaker) {
                Ok(Some(answered)) => self.coordination.answered_in(answered.rtt_ns / 1_000, answered.calls),
                Ok(None) => {}
                Err(_) => break Some(Trouble::Unasked),
            }
            explain(&mut self.lane, &self.coordination, Some(error.as_deref().unwrap_or(STRANGE)));
        };
        if let Some(trouble) = trouble {
            self.broken(&trouble);
        }
        let late = self.lane.late();
        self.coordination.late_replies(late - std::mem::replace(&mut self.late, late));
    }

    /// Makes a connection where one is needed, and tells those that wait where none is to be had.
    fn keep_connected(&mut self) {
        match self.lane.take_turn() {
            Turn::Opened => {
                let why = self.coordination.breaker.last_failure().map_or("", Reason::as_str);
                let trouble = self.coordination.admissions_trouble.get();
                let error = trouble.as_ref().map_or("no answer in time", |trouble| &trouble.error);
                tracing::warn!(
                    why,
                    error,
                    "redis: the breaker is open; limits are held per replica until a probe succeeds"
                );
                self.give_up(Reason::RedisBreakerOpen);
                self.dial();
            }
            Turn::Closed => tracing::info!("redis: the breaker is closed; limits are exact again"),
            Turn::None => {}
        }
        if self.lane.is_overdue() {
            self.broken(&Trouble::Overdue);
        }
        match self.link {
            Link::Unused if self.was_asked || self.is_named() => self.dial(),
            Link::Down { until, .. } if now() >= until => self.dial(),
            Link::Down { soonest, .. } if self.lane.has_waiting() && now() >= soonest => self.dial(),
            Link::Down { reason, ref error, .. } => {
                self.lane.unreachable(reason, now(), &self.coordination.breaker);
                explain(&mut self.lane, &self.coordination, Some(error));
            }
            _ => {}
        }
    }

    /// Whether a limit in force asks the store for admissions.
    fn is_named(&self) -> bool {
        self.shared.rules.load().limits.limits.iter().any(|limit| limit.store == Store::Redis)
    }

    fn dial(&mut self) {
        let mut greeting = Pipeline::new();
        for script in Script::ALL {
            greeting.push(&[b"SCRIPT", b"LOAD", text(script).as_bytes()]);
        }
        let endpoint = self.endpoint.clone();
        self.link = Link::Dialling(Box::pin(async move {
            Connection::open(&endpoint, &greeting, Duration::from_nanos(DIAL_NS)).await
        }));
        self.coordination.set_reachable(false);
    }

    fn connected(&mut self, connection: Connection, replies: &[Reply]) {
        if let Some(refused) = replies.iter().find_map(Reply::error) {
            return self.not_connected(&Trouble::Refused(refused));
        }
        self.names = replies.iter().filter_map(|reply| reply.bytes().map(<[u8]>::to_vec)).collect();
        if self.names.len() != Script::ALL.len() {
            return self.not_connected(&Trouble::Unasked);
        }
        tracing::info!(redis = ?self.endpoint, "redis: connected for admissions");
        self.link = Link::Up(Box::new(connection));
        self.pause_ns = DIAL_PAUSE_NS;
        self.coordination.set_reachable(true);
    }

    fn not_connected(&mut self, trouble: &Trouble) {
        let (reason, error) = (reason_of(trouble), trouble.to_string());
        if self.coordination.breaker.not_connected(reason) {
            self.coordination.admissions_trouble.told(&error, wall());
        }
        if self.pause_ns == DIAL_PAUSE_NS {
            // Once, and not for every attempt that follows.
            tracing::warn!(redis = ?self.endpoint, error, "redis: cannot connect; trying again");
        }
        let (soonest, until) = (now().plus_ns(DIAL_AGAIN_NS), now().plus_ns(self.pause_ns));
        self.link = Link::Down { soonest, until, reason, error };
        self.pause_ns = (self.pause_ns * 2).min(DIAL_PAUSE_MAX_NS);
        self.coordination.set_reachable(false);
    }

    fn broken(&mut self, trouble: &Trouble) {
        tracing::warn!(redis = ?self.endpoint, error = %trouble, "redis: the connection for admissions broke");
        self.give_up(reason_of(trouble));
        explain(&mut self.lane, &self.coordination, Some(&trouble.to_string()));
        self.dial();
    }

    fn give_up(&mut self, reason: Reason) {
        self.lane.broke(reason, now(), &self.coordination.breaker);
        self.link = Link::Unused;
    }

    /// Writes what waits, as far as the socket takes it now; the rest goes when there is room.
    async fn write(&mut self) {
        let Link::Up(connection) = &mut self.link else { return };
        if !self.lane.has_waiting() {
            return;
        }
        let mut batch = Pipeline::new();
        let names = &self.names;
        self.lane.write(now(), |command| match command {
            Command::Load(script) => {
                batch.push(&[b"SCRIPT", b"LOAD", text(script).as_bytes()]);
            }
            Command::Eval(call, calls) => eval(&mut batch, names, &call, calls),
        });
        let written = match connection.queue(&batch) {
            // Reads too, if something has come meanwhile; the next turn of the loop looks at it.
            Ok(()) => {
                poll_fn(|cx| match connection.progress(cx) {
                    Poll::Ready(Err(trouble)) => Poll::Ready(Err(trouble)),
                    Poll::Ready(Ok(())) | Poll::Pending => Poll::Ready(Ok(())),
                })
                .await
            }
            Err(trouble) => Err(trouble),
        };
        if let Err(trouble) = written {
            self.broken(&trouble);
        }
    }

    fn answer(&mut self) {
        for ((core, ticket), outcome) in self.lane.outcomes() {
            if let Some(desk) = self.desks.get_mut(core) {
                // An answer that finds no room is one that nobody waits for any more: its core has stopped looking.
                desk.answer(Answer { ticket, outcome });
            }
        }
        self.desks.iter_mut().for_each(Answerer::ring);
    }
}

fn now() -> MonoNs {
    MonoNs(clock::mono_ns())
}

fn wall() -> WallMs {
    WallMs(clock::wall_ms())
}

/// What was said, if anything, to the calls that failed in the step before: it belongs to their failure and to no other. A
/// failure that the breaker did not take for its last one leaves what is said of that.
fn explain(lane: &mut Lane<Asker>, coordination: &Coordination, error: Option<&str>) {
    let Some(reason) = lane.take_failure() else { return };
    if coordination.breaker.last_failure() != Some(reason) {
        return;
    }
    match error {
        Some(error) => coordination.admissions_trouble.told(error, wall()),
        None => coordination.admissions_trouble.clear(),
    }
}

/// The server answered a call with an error: its own words, in the log once a minute. A script that it forgot is no trouble.
fn heard(news: &mut News, error: &str) {
    if !error.starts_with("NOSCRIPT") && news.heard(error, wall()) {
        tracing::warn!(error, "redis: the server answers admissions with an error; local cells answer them");
    }
}

/// `EVALSHA name 1 key args [calls]`, the three as doubles in a row: a script reads them without a conversion of text each.
fn eval(batch: &mut Pipeline, names: &[Vec<u8>], call: &EvalCall, calls: u32) {
    let args = call.args.map(|arg| (arg as f64).to_le_bytes()); // whole numbers below 2^53
    let name = names.get(call.script as usize).map_or(&b""[..], Vec::as_slice);
    let key = call.scope.key(RATE_PREFIX);
    let one: [&[u8]; 5] = [b"EVALSHA", name, b"1", &key, args.as_flattened()];
    if calls == 1 {
        batch.push(&one);
    } else {
        let [eval, name, keys, key, args] = one;
        batch.push(&[eval, name, keys, key, args, itoa::Buffer::new().format(calls).as_bytes()]);
    }
}

fn text(script: Script) -> String {
    admission::whole(match script {
        Script::Backlog => admission::BACKLOG,
        Script::FixedWindow => admission::FIXED_WINDOW,
        Script::SlidingWindow => admission::SLIDING_WINDOW,
    })
}

/// What the lane hears of a reply.
fn spoken<'w>(reply: &Reply, words: &'w mut Vec<i64>) -> Said<'w> {
    words.clear();
    match reply {
        Reply::Error(text) if text.starts_with(b"NOSCRIPT") => Said::NoScript,
        Reply::Error(_) => Said::Error,
        Reply::Integer(value) => {
            words.push(*value);
            Said::Words(words)
        }
        Reply::Array(items) => {
            for item in items {
                let Reply::Integer(value) = item else { return Said::Other };
                words.push(*value);
            }
            Said::Words(words)
        }
        _ => Said::Other,
    }
}

/// Which of the four reasons a broken connection is.
fn reason_of(trouble: &Trouble) -> Reason {
    match trouble {
        Trouble::TimedOut(_) | Trouble::Overdue => Reason::RedisDeadlineExceeded,
        Trouble::Malformed(_) | Trouble::Unasked => Reason::RedisReplyMalformed,
        Trouble::Unresolved(..) | Trouble::Broken(_) | Trouble::Closed | Trouble::Refused(_) => Reason::RedisEvalError,
    }
}

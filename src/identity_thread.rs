//! The thread that follows Postgres for virtual keys: it listens for the doorbell, reads all keys, publishes them.
//!
//! ```text
//! connect → LISTEN → migrate → read all keys → ┬ doorbell     → read all keys
//!     ▲                                        ├ every 3.75 s → did the keys' version move? then read; every 22.5 s read anyway
//!     └──── any call over 10 s, any error ─────┴ an ask       → change the store, then the snapshot here
//! ```
//!
//! A lost Postgres costs promptness, never traffic: the last keys stay in force, are called stale after a minute, and the
//! thread connects again by itself. A call that is given up closes its connection and leaves no thread behind; only a
//! resolver that hangs holds one, and at most two do. Whether a request may be served is decided in `caller.rs`.

mod link;
mod roster;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use io::clock;
use io::postgres::{Dsn, DsnError, PgError};
use shards::units::{MonoNs, Now, WallMs};
use tokio::sync::mpsc::Receiver;
use tokio::time::{Instant, sleep_until, timeout};

use self::link::Link;
pub use self::link::{Postgres, Store};
pub use self::roster::RosterStore;
use crate::keys::{Ask, Followed, Key, LastGood, LastGoodFile, Reply, Standing, StoreError};

/// Every number of this thread. [`Times::FIXED`] is what is published; tests run with shorter ones.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// A revoked key is served no longer than this after the revocation, as long as Postgres can be reached.
    pub revocation_bound: Duration,
    /// A call to Postgres that takes longer is given up, and its connection with it.
    pub call: Duration,
    /// The first pause before another try; it doubles up to the retry of a missed doorbell.
    pub first_pause: Duration,
    /// Two reads on doorbells are this far apart: ten full reads a second are enough for any storm of changes.
    pub doorbell_gap: Duration,
    /// The copy on disk is written this often though nothing changed, so that its age says when Postgres was last seen.
    pub keep_every: Duration,
}

impl Times {
    /// The published numbers.
    pub const FIXED: Times = Times {
        revocation_bound: Duration::from_secs(30),
        call: Duration::from_secs(10),
        first_pause: Duration::from_millis(250),
        doorbell_gap: Duration::from_millis(100),
        keep_every: Duration::from_secs(600),
    };

    /// How soon a missed doorbell is noticed, and how long a pause between two tries gets: bound ÷ 8 = 3.75 s.
    pub const fn retry(&self) -> Duration {
        Duration::from_nanos(self.revocation_bound.as_nanos() as u64 / 8)
    }

    /// After this all keys are read again although nothing rang: bound × 3/4 = 22.5 s, which leaves a quarter for the
    /// read, so that one ends within every bound.
    pub const fn reread(&self) -> Duration {
        Duration::from_nanos(self.revocation_bound.as_nanos() as u64 / 4 * 3)
    }

    /// Keys that were not confirmed for this long are called stale: two bounds = 60 s.
    pub const fn stale(&self) -> Duration {
        Duration::from_nanos(self.revocation_bound.as_nanos() as u64 * 2)
    }
}

/// Names that are being resolved at once; the system's resolver cannot be interrupted.
const RESOLVERS_MAX: usize = 2;

/// Everything but the thread itself: made before the ports open, started once there are cores to tell.
pub struct Identity {
    followed: Arc<Followed>,
    follower: Follower<Postgres>,
}

impl Identity {
    /// Reads the connection string and what the last run left on disk. Dials nothing.
    pub fn new(dsn: &str, replica: &str, data_dir: &std::path::Path) -> Result<Self, DsnError> {
        let dsn = Dsn::parse(dsn, &format!("tokentriage/{replica}"))?;
        if !dsn.verifies_the_server() {
            tracing::warn!(
                postgres = dsn.endpoint(),
                "the connection to Postgres does not verify the server; use sslmode=verify-full off this machine"
            );
        }
        let times = Times::FIXED;
        let file = LastGoodFile::of(data_dir);
        let last_good = file.read(&dsn.endpoint(), wall());
        if let Some(last) = &last_good {
            tracing::info!(keys = last.keys.len(), "keys of the last run are known until Postgres answers");
        }
        let (followed, asks) = Followed::new(dsn.endpoint(), last_good.as_ref(), times.stale(), times.call);
        let followed = Arc::new(followed);
        let follower = Follower {
            store: Postgres(dsn),
            followed: followed.clone(),
            asks,
            times,
            announce: Box::new(|| {}),
            now: Box::new(|| Now { mono: MonoNs(clock::mono_ns()), wall: wall() }),
            file: Some(file),
            known: last_good.map(|last| last.keys).unwrap_or_default(),
            version: None,
            is_announced: false,
            said_stale: false,
            waiting: None,
            is_kept: true,
            kept_at: None,
        };
        Ok(Identity { followed, follower })
    }

    /// What the rest of the process sees of it.
    pub fn followed(&self) -> Arc<Followed> {
        self.followed.clone()
    }

    /// The thread's body. `announce` tells the cores of other keys. Ends with the process.
    pub fn run(mut self, announce: impl Fn() + Send + 'static) -> std::io::Result<()> {
        self.follower.announce = Box::new(announce);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(RESOLVERS_MAX)
            .thread_name("tt-identity-dns")
            .build()?;
        // A panic on something a server sent must not end a process that serves without the server as well.
        while catch_unwind(AssertUnwindSafe(|| runtime.block_on(self.follower.run()))).is_err() {
            tracing::error!("following the keys panicked, which is a bug; it begins anew");
            self.follower.followed.fail("following the keys panicked, see the log".to_owned(), wall());
            std::thread::sleep(self.follower.times.retry());
        }
        Ok(())
    }
}

fn wall() -> WallMs {
    WallMs(clock::wall_ms())
}

/// The loop, over any store: tests have one without a network and a clock of their own.
struct Follower<S: Store> {
    store: S,
    followed: Arc<Followed>,
    asks: Receiver<Ask>,
    times: Times,
    announce: Box<dyn Fn() + Send>,
    now: Box<dyn Fn() -> Now + Send>,
    file: Option<LastGoodFile>,
    /// The keys in force.
    known: Vec<Key>,
    /// Of the keys in force, as the store counts; `None` when that is not known.
    version: Option<i64>,
    /// The log says that the store is followed.
    is_announced: bool,
    /// The log says that the keys are stale.
    said_stale: bool,
    /// An urgent ask that had the store tried at once.
    waiting: Option<Ask>,
    /// The file has what is in force.
    is_kept: bool,
    kept_at: Option<Instant>,
}

/// How a connection ended.
enum End {
    /// Try again.
    Failed(PgError),
    /// Nobody can ask any more: the process stops.
    Stopping,
}

impl From<PgError> for End {
    fn from(error: PgError) -> Self {
        End::Failed(error)
    }
}

/// What happened while the store was followed.
enum Event {
    Rang,
    Asked(Ask),
    Tick,
}

impl<S: Store> Follower<S> {
    /// Follows until nobody can ask any more. Waits for the store, for asks and for time.
    async fn run(&mut self) {
        let mut pause = Duration::ZERO;
        loop {
            let mut had_keys = false;
            let Err(End::Failed(error)) = self.follow(&mut had_keys).await else { return };
            self.has_failed(&error);
            // A connection that worked is replaced at once; one that did not come about is given some time.
            pause =
                if had_keys { Duration::ZERO } else { (pause * 2).clamp(self.times.first_pause, self.times.retry()) };
            if self.rest(pause, &error).await.is_err() {
                return;
            }
        }
    }

    /// One connection, for as long as it works.
    async fn follow(&mut self, had_keys: &mut bool) -> Result<std::convert::Infallible, End> {
        let call = self.times.call;
        let mut link = within(call, "connecting", self.store.open()).await?;
        // Listening first: a change from now on rings, one before is in the read below.
        within(call, "LISTEN", link.listen()).await?;
        // Keys of ours once came from here: then a database without tables is not the one, and no reason to forget them.
        within(call, "the migration", link.prepare(self.known.is_empty())).await?;
        self.read(&mut link).await?;
        *had_keys = true;
        let mut read_at = Instant::now();
        let mut looked_at = read_at;
        if let Some(ask) = self.waiting.take() {
            self.serve(&mut link, ask).await?;
        }
        loop {
            let event = tokio::select! {
                rung = link.rung() => rung.map(|()| Event::Rang)?,
                ask = self.asks.recv() => Event::Asked(ask.ok_or(End::Stopping)?),
                () = sleep_until(looked_at + self.times.retry()) => Event::Tick,
            };
            match event {
                Event::Rang => {
                    sleep_until(read_at + self.times.doorbell_gap).await;
                    self.read(&mut link).await?;
                    (read_at, looked_at) = (Instant::now(), Instant::now());
                }
                Event::Asked(ask) => self.serve(&mut link, ask).await?,
                Event::Tick => {
                    let asked = (self.now)();
                    let version = within(call, "reading the keys' version", link.version()).await?;
                    if self.version == Some(version) && read_at.elapsed() < self.times.reread() {
                        self.followed.confirm(asked.mono, asked.wall);
                        self.keep();
                    } else {
                        self.read(&mut link).await?;
                        read_at = Instant::now();
                    }
                    looked_at = Instant::now();
                }
            }
        }
    }

    /// Reads all keys and puts them in force. They count as of the instant before the read.
    async fn read(&mut self, link: &mut S::Link) -> Result<(), PgError> {
        let asked = (self.now)();
        let read = within(self.times.call, "reading the keys", link.keys()).await?;
        let keys: Vec<Key> = read.keys.into_iter().map(Key::from).collect();
        self.version = Some(read.version);
        if keys != self.known || !self.followed.snapshot().is_seed() {
            if keys.is_empty() && !self.known.is_empty() {
                tracing::warn!(before = self.known.len(), "Postgres holds no keys any more: none opens anything");
            }
            self.put_in_force(keys);
        }
        self.followed.confirm(asked.mono, asked.wall);
        if !self.is_announced {
            (self.is_announced, self.said_stale) = (true, false);
            tracing::info!(postgres = self.followed.endpoint(), keys = self.known.len(), "keys are followed");
        }
        self.keep();
        Ok(())
    }

    fn put_in_force(&mut self, keys: Vec<Key>) {
        self.followed.publish(&keys);
        (self.announce)();
        self.known = keys;
        self.is_kept = false;
    }

    /// Has the copy on disk written if it is due.
    fn keep(&mut self) {
        let Some(file) = &mut self.file else { return };
        let is_old = self.kept_at.is_none_or(|at| at.elapsed() >= self.times.keep_every);
        if self.is_kept && !is_old {
            return;
        }
        let Some(refreshed) = self.followed.refreshed() else { return };
        let store = self.followed.endpoint().to_owned();
        let last = LastGood { store, refreshed_ms: refreshed.0, keys: self.known.clone() };
        if file.write(&last) {
            (self.is_kept, self.kept_at) = (true, Some(Instant::now()));
        }
    }

    /// Does what somebody asked for. An error ends the connection; whoever asked has been answered by then.
    async fn serve(&mut self, link: &mut S::Link, ask: Ask) -> Result<(), PgError> {
        if ask.is_late() {
            ask.refuse(StoreError::Unreachable("it was asked for too long ago".to_owned()));
            return Ok(());
        }
        let call = self.times.call;
        match ask {
            Ask::Insert { key, by, reply } => {
                let inserted = within(call, "keeping the key", link.insert(&key, &by)).await;
                if inserted.is_ok() {
                    self.put_in_force_one(key);
                }
                settle(reply, inserted)
            }
            Ask::Revoke { id, now, by, reply } => {
                let revoked = within(call, "revoking the key", link.revoke(&id, now, &by)).await;
                if let Ok(Some(key)) = &revoked {
                    self.put_in_force_one(key.clone());
                }
                settle(reply, revoked)
            }
            Ask::List { reply } => {
                let read = self.read(link).await;
                let unreachable = |error: &PgError| StoreError::Unreachable(error.to_string());
                reply.send(read.as_ref().map(|()| self.known.clone()).map_err(unreachable));
                read
            }
            Ask::SaveReplicas { rows, reply } => {
                let saved = within(call, "saving the roster", link.save_replicas(&rows)).await;
                settle(reply, saved)
            }
            Ask::LoadReplicas { reply } => {
                let loaded = within(call, "reading the roster", link.replicas()).await;
                settle(reply, loaded)
            }
        }
    }

    /// A key that was just made or revoked here: in force at once, also if the next read fails.
    fn put_in_force_one(&mut self, key: Key) {
        let mut keys = self.known.clone();
        match keys.iter_mut().find(|known| known.id == key.id) {
            Some(known) => *known = key,
            None => keys.push(key),
        }
        // As a read gives them: one tick of the clock may date several, and a set in another order would pass for another
        // set, which every core takes up and the disk keeps.
        keys.sort_by(|a, b| (a.created_ms, &a.id).cmp(&(b.created_ms, &b.id)));
        self.put_in_force(keys);
        self.keep();
    }

    fn has_failed(&mut self, error: &PgError) {
        let now = (self.now)();
        self.followed.fail(error.to_string(), now.wall);
        self.version = None;
        if self.is_announced || self.followed.trouble().is_some_and(|trouble| trouble.since == now.wall) {
            self.is_announced = false;
            let (postgres, keys) = (self.followed.endpoint(), self.known.len());
            tracing::warn!(postgres, keys, %error, "keys cannot be followed; those known stay in force");
        }
        if !self.said_stale && self.followed.standing(now.mono) == Standing::Stale {
            self.said_stale = true;
            tracing::error!(
                keys = self.known.len(),
                "keys are stale: one minted or revoked elsewhere since may not be known here"
            );
        }
    }

    /// Lets some time pass. Whoever asks meanwhile learns why nothing was done, except that somebody who changes keys
    /// has the store tried at once. An error: nobody can ask any more.
    async fn rest(&mut self, pause: Duration, error: &PgError) -> Result<(), End> {
        let unreachable = || StoreError::Unreachable(error.to_string());
        if let Some(ask) = self.waiting.take() {
            ask.refuse(unreachable());
        }
        while let Ok(ask) = self.asks.try_recv() {
            ask.refuse(unreachable()); // it came while the store was being tried
        }
        let until = Instant::now() + pause;
        loop {
            tokio::select! {
                () = sleep_until(until) => return Ok(()),
                ask = self.asks.recv() => match ask.ok_or(End::Stopping)? {
                    ask if ask.is_urgent() => {
                        self.waiting = Some(ask);
                        return Ok(());
                    }
                    ask => ask.refuse(unreachable()),
                },
            }
        }
    }
}

/// Answers whoever asked; gives an error on when the connection must end with it.
fn settle<T>(reply: Reply<T>, done: Result<T, PgError>) -> Result<(), PgError> {
    match done {
        Ok(value) => {
            reply.send(Ok(value));
            Ok(())
        }
        Err(error) if error.leaves_the_session_usable() => {
            reply.send(Err(StoreError::Refused(error.to_string())));
            Ok(())
        }
        Err(error) => {
            reply.send(Err(StoreError::Unconfirmed(error.to_string())));
            Err(error)
        }
    }
}

/// A call with its deadline. What is given up is dropped, which closes the connection it was made on.
pub async fn within<T>(
    at_most: Duration,
    doing: &'static str,
    call: impl Future<Output = Result<T, PgError>>,
) -> Result<T, PgError> {
    let late = || PgError::Lost(format!("{doing} took longer than {} s", at_most.as_secs_f64()));
    timeout(at_most, call).await.unwrap_or_else(|_| Err(late()))
}

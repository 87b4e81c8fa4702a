//! Keys that live in Postgres, as everybody but the identity thread sees them: the last-good snapshot, how far it may be
//! believed, and the way to have something changed.
//!
//! The identity thread is the only one that publishes here and the only one that talks to Postgres: a mint or revoke is
//! an [`Ask`] to it, so that a snapshot that was being read meanwhile cannot undo what was just changed. Asks wait for
//! the store; nothing that data cores call does.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use io::postgres::ReplicaRow;
use shards::suspend::IDENTITY;
use shards::units::{MonoNs, WallMs};
use tokio::sync::mpsc;

use super::{Key, LastGood, Snapshot};

/// Asks that wait for the identity thread at once; an administrator, a few pages and the coordinator.
const ASKS_MAX: usize = 64;

/// How far a snapshot of keys may be believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It is what the store said a moment ago.
    Fresh,
    /// It may miss keys and revocations of other replicas. It is served all the same, and that is disclosed.
    Stale,
    /// There is none: nobody can be told from anybody.
    NeverSeeded,
}

/// Why Postgres did not do what was asked of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// Nothing was changed.
    #[error("Postgres cannot be reached, nothing was changed: {0}")]
    Unreachable(String),
    /// The answer did not come.
    #[error(
        "Postgres did not confirm the change, it may or may not have happened; look at the list of keys and repeat it: {0}"
    )]
    Unconfirmed(String),
    /// It understood and refused; nothing was changed.
    #[error("Postgres {0}")]
    Refused(String),
    /// Too many asks wait already.
    #[error("too many changes wait for Postgres already; try again later")]
    Busy,
}

/// What keeps the store from being followed right now.
#[derive(Clone, Debug)]
pub struct Trouble {
    /// The words of the store or the system.
    pub error: String,
    /// Since when, Unix ms.
    pub since: WallMs,
}

/// Something to be done in the store, by the identity thread.
pub enum Ask {
    /// Keep a new key.
    Insert { key: Key, by: String, reply: Reply<()> },
    /// Revoke one.
    Revoke { id: String, now: WallMs, by: String, reply: Reply<Option<Key>> },
    /// Read all of them again.
    List { reply: Reply<Vec<Key>> },
    /// Write words about replicas down.
    SaveReplicas { rows: Vec<ReplicaRow>, reply: Reply<()> },
    /// Read the roster.
    LoadReplicas { reply: Reply<Vec<ReplicaRow>> },
}

impl Ask {
    /// Answers without having done anything.
    pub fn refuse(self, why: StoreError) {
        match self {
            Ask::Insert { reply, .. } | Ask::SaveReplicas { reply, .. } => reply.send(Err(why)),
            Ask::Revoke { reply, .. } => reply.send(Err(why)),
            Ask::List { reply } => reply.send(Err(why)),
            Ask::LoadReplicas { reply } => reply.send(Err(why)),
        }
    }

    /// Whether somebody waits who wants the store tried at once, and not only when its turn has come.
    pub fn is_urgent(&self) -> bool {
        matches!(self, Ask::Insert { .. } | Ask::Revoke { .. } | Ask::List { .. })
    }

    /// Whether whoever asked has given up: then nothing must be done any more.
    pub fn is_late(&self) -> bool {
        let late = match self {
            Ask::Insert { reply, .. } | Ask::SaveReplicas { reply, .. } => reply.late,
            Ask::Revoke { reply, .. } => reply.late,
            Ask::List { reply } => reply.late,
            Ask::LoadReplicas { reply } => reply.late,
        };
        Instant::now() >= late
    }
}

/// The way back to whoever asked.
pub struct Reply<T> {
    to: SyncSender<Result<T, StoreError>>,
    late: Instant,
}

impl<T> Reply<T> {
    /// Answers. Never waits: there is room for one answer, and this takes the reply.
    pub fn send(self, answer: Result<T, StoreError>) {
        let _ = self.to.try_send(answer); // whoever asked may have given up
    }
}

/// Shared by the identity thread, which writes, and everybody else.
pub struct Followed {
    snapshot: ArcSwap<Snapshot>,
    /// The last instant at which the snapshot was known to be what the store says; 0 before the first in this process.
    refreshed_mono_ns: AtomicU64,
    /// The same for people, in Unix ms, also from before this process; 0: never.
    refreshed_wall_ms: AtomicI64,
    seeded: AtomicBool,
    trouble: Mutex<Option<Trouble>>,
    looked: (Mutex<bool>, Condvar),
    asks: mpsc::Sender<Ask>,
    stale_after_ns: u64,
    ask_within: Duration,
    endpoint: String,
    /// Stands where a limit id stands, on rows and panels.
    pub limit_id: Arc<str>,
}

impl Followed {
    /// Nothing known but what the last process left on disk. The receiver is the identity thread's end.
    pub fn new(
        endpoint: String,
        last_good: Option<&LastGood>,
        stale_after: Duration,
        ask_within: Duration,
    ) -> (Self, mpsc::Receiver<Ask>) {
        let (asks, receiver) = mpsc::channel(ASKS_MAX);
        let followed = Followed {
            snapshot: ArcSwap::from_pointee(last_good.map(|last| Snapshot::of(&last.keys)).unwrap_or_default()),
            refreshed_mono_ns: AtomicU64::new(0),
            refreshed_wall_ms: AtomicI64::new(last_good.map_or(0, |last| last.refreshed_ms)),
            seeded: AtomicBool::new(last_good.is_some()),
            trouble: Mutex::new(None),
            looked: (Mutex::new(false), Condvar::new()),
            asks,
            stale_after_ns: u64::try_from(stale_after.as_nanos()).unwrap_or(u64::MAX),
            ask_within,
            endpoint,
            limit_id: Arc::from(IDENTITY),
        };
        (followed, receiver)
    }

    // ---- for everybody

    /// The keys as of now.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    /// How far the snapshot may be believed. Two loads.
    pub fn standing(&self, now: MonoNs) -> Standing {
        // Acquire pairs with the release of `confirm`: who sees the instant sees that there are keys.
        let refreshed_ns = self.refreshed_mono_ns.load(Ordering::Acquire);
        if refreshed_ns != 0 && now.0.saturating_sub(refreshed_ns) <= self.stale_after_ns {
            Standing::Fresh
        } else if self.seeded.load(Ordering::Acquire) {
            Standing::Stale
        } else {
            Standing::NeverSeeded
        }
    }

    /// When the snapshot was last known to be what the store says, by this process or the one before.
    pub fn refreshed(&self) -> Option<WallMs> {
        let at = self.refreshed_wall_ms.load(Ordering::Relaxed); // a number to show, nothing hangs on it
        (at != 0).then_some(WallMs(at))
    }

    /// Nanoseconds since the snapshot was last known to be what the store says; `None`: not in this process.
    pub fn age_ns(&self, now: MonoNs) -> Option<u64> {
        let refreshed_ns = self.refreshed_mono_ns.load(Ordering::Acquire);
        (refreshed_ns != 0).then(|| now.0.saturating_sub(refreshed_ns))
    }

    /// Why the store is not followed right now, if it is not.
    pub fn trouble(&self) -> Option<Trouble> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Where the store is.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Waits until the store was reached, or could not be, for the first time; at most so long.
    pub fn await_first_look(&self, at_most: Duration) {
        let looked = self.looked.0.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = self.looked.1.wait_timeout_while(looked, at_most, |looked| !*looked);
    }

    // ---- asks; each waits for the store

    /// Every key, read again.
    pub fn list(&self) -> Result<Vec<Key>, StoreError> {
        self.ask(|reply| Ask::List { reply })
    }

    /// Keeps a new key.
    pub fn insert(&self, key: Key, by: String) -> Result<(), StoreError> {
        self.ask(|reply| Ask::Insert { key, by, reply })
    }

    /// Revokes a key. `None`: no such id.
    pub fn revoke(&self, id: String, now: WallMs, by: String) -> Result<Option<Key>, StoreError> {
        self.ask(|reply| Ask::Revoke { id, now, by, reply })
    }

    /// Has the identity thread do something, and waits for its answer.
    pub fn ask<T>(&self, ask: impl FnOnce(Reply<T>) -> Ask) -> Result<T, StoreError> {
        let (to, answer) = sync_channel(1);
        let reply = Reply { to, late: Instant::now() + self.ask_within };
        self.asks.try_send(ask(reply)).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => StoreError::Busy,
            mpsc::error::TrySendError::Closed(_) => StoreError::Unreachable("the gateway is stopping".to_owned()),
        })?;
        // What is late when its turn comes is not begun, and what has begun ends within another deadline.
        let answer = answer.recv_timeout(self.ask_within * 2);
        answer.unwrap_or_else(|_| Err(StoreError::Unconfirmed("no answer in time".to_owned())))
    }

    // ---- for the identity thread alone

    /// Other keys. The caller tells the cores.
    pub fn publish(&self, keys: &[Key]) {
        self.snapshot.store(Arc::new(Snapshot::of(keys)));
    }

    /// The snapshot is what the store said at this instant.
    pub fn confirm(&self, mono: MonoNs, wall: WallMs) {
        self.seeded.store(true, Ordering::Release); // before the instant: see `standing`
        self.refreshed_wall_ms.store(wall.0, Ordering::Relaxed);
        self.refreshed_mono_ns.store(mono.0.max(1), Ordering::Release);
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.has_looked();
    }

    /// The store cannot be followed. The first of a row of errors dates them all.
    pub fn fail(&self, error: String, wall: WallMs) {
        let mut trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        let since = trouble.as_ref().map_or(wall, |trouble| trouble.since);
        *trouble = Some(Trouble { error, since });
        drop(trouble);
        self.has_looked();
    }

    fn has_looked(&self) {
        *self.looked.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.looked.1.notify_all();
    }
}

//! What all threads see of the fleet: the roster, the exchange of burn, and the way to ask the coordinator for something.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwapOption;
use shards::converge::{CellSeen, PeerShown, ScopeHash};
use shards::limit::Calendar;
use shards::membership::roster::{Card, Roster, State};
use shards::meter::PeriodSpan;
use shards::suspend::Reason;
use shards::units::MonoNs;
use tokio::sync::{mpsc, oneshot};

use super::convergence::Convergence;
use super::roster::{RosterKeeper, RosterRows, RosterSeen};
use crate::config::{Config, ReplicaIdentity};

/// Questions that may wait for the coordinator: they come from operators.
const COMMANDS_MAX: usize = 16;

/// What the coordinator can be asked for.
pub enum Command {
    /// The process drains: leave `N_live` now.
    Leave,
    /// A copy of the roster remembers these.
    Remember(RosterRows),
    /// Take a replica off the fleet and its burn out of the sums.
    Decommission { replica: String, force: bool, answer: oneshot::Sender<Result<Dropped, NotRemoved>> },
    /// Every peer's cell, for a page.
    Peers { answer: oneshot::Sender<Vec<PeerShown>> },
}

/// What went with a decommissioned replica.
#[derive(Clone, Debug, Default)]
pub struct Dropped {
    /// What it was on the roster when it was removed; `None`: only its burn was known.
    pub state: Option<State>,
    pub cells: Vec<(ScopeHash, Calendar, PeriodSpan, CellSeen)>,
}

/// Why a replica is still there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotRemoved {
    /// It beats.
    Live,
    /// Nobody by that name is on the roster, and no burn is published under it.
    Unknown,
    /// The store lost everything a moment ago, and does not know again yet what there is to drop: nothing was changed.
    Refilling,
    /// The store did not answer, or not in words we know.
    Unreachable(String),
}

/// One process, at most one of these.
pub struct FleetState {
    pub roster: RosterSeen,
    pub convergence: Arc<Convergence>,
    /// Who remembers the roster when the store does not.
    pub keepers: Vec<Arc<dyn RosterKeeper>>,
    /// What this replica says of itself.
    pub card: Card,
    /// Drawn once per process.
    pub nonce: String,
    commands: mpsc::Sender<Command>,
    inbox: Mutex<Option<mpsc::Receiver<Command>>>,
    /// Monotonic ns until which another process is taken to use our name or our ledger.
    conflict_until_ns: AtomicU64,
    /// The store's policy, where it may evict our keys.
    eviction: ArcSwapOption<String>,
}

impl FleetState {
    /// Nobody was heard of yet.
    pub fn new(
        config: &Config,
        replica: &ReplicaIdentity,
        ledger_id: &str,
        advertise_url: Option<String>,
        started_at_ms: i64,
        convergence: Arc<Convergence>,
        keepers: Vec<Arc<dyn RosterKeeper>>,
    ) -> std::io::Result<Self> {
        let mut seed = [0_u8; 8];
        getrandom::fill(&mut seed).map_err(std::io::Error::other)?;
        let nonce = format!("{:016x}", u64::from_le_bytes(seed));
        let window_ns = crate::rules::ns(config.fleet.liveness_window);
        let (commands, inbox) = mpsc::channel(COMMANDS_MAX);
        Ok(FleetState {
            roster: RosterSeen::new(Roster::new(&replica.name, &nonce, ledger_id, window_ns)),
            convergence,
            keepers,
            card: Card {
                ledger_id: ledger_id.to_owned(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                source: replica.source.as_str().to_owned(),
                stable: replica.is_stable(),
                started_at_ms,
                advertise_url,
                skew_ms: 0,
            },
            nonce,
            commands,
            inbox: Mutex::new(Some(inbox)),
            conflict_until_ns: AtomicU64::new(0),
            eviction: ArcSwapOption::empty(),
        })
    }

    /// Asks the coordinator. `false` when it is busy with sixteen others, or gone.
    pub fn ask(&self, command: Command) -> bool {
        self.commands.try_send(command).is_ok()
    }

    /// The coordinator's end; `Some` once.
    pub fn take_inbox(&self) -> Option<mpsc::Receiver<Command>> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Another process uses our name or a copy of our ledger, until further notice for `until`.
    pub fn publish_conflict(&self, until: Option<MonoNs>) {
        self.conflict_until_ns.store(until.map_or(0, |until| until.0), Ordering::Relaxed); // stands for itself
    }

    /// Whether two processes are taken to overwrite each other's words.
    pub fn conflict(&self, now: MonoNs) -> Option<Reason> {
        (now.0 < self.conflict_until_ns.load(Ordering::Relaxed)).then_some(Reason::ReplicaIdConflict)
    }

    /// The store's `maxmemory-policy`, where it may evict our keys.
    pub fn publish_eviction(&self, policy: Option<String>) {
        self.eviction.store(policy.map(Arc::new));
    }

    /// What the health page warns of.
    pub fn eviction_warning(&self) -> Option<String> {
        let policy = self.eviction.load_full()?;
        Some(format!(
            "shared_state.redis: its maxmemory-policy is {policy}, so a full server drops our counters and burn without a \
             word (set maxmemory-policy noeviction, or give it more memory)"
        ))
    }

    /// Why peers' burn cannot be relied on now, if so.
    pub fn burn_suspended(&self, now: MonoNs) -> Option<Reason> {
        self.convergence.suspended(now).or_else(|| self.conflict(now))
    }
}

//! A copy of the roster that outlives the store, and which version it holds. Written in the background, whenever the roster
//! moved: a disk or a database that is slow must not delay admissions, which the coordinator's thread answers too.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use shards::units::MonoNs;

use crate::coordination::Coordination;
use crate::coordination::fleet::Command;
use crate::coordination::roster::RosterKeeper;

/// A copy is written at most this often.
const KEEP_AGAIN_NS: u64 = 1_000_000_000;

/// One copy. Never awaited.
pub struct Kept {
    keeper: Arc<dyn RosterKeeper>,
    state: Arc<KeptState>,
    again_at_ns: u64,
}

struct KeptState {
    /// What it held at the start is on its way to the roster. Not written over before.
    is_loaded: AtomicBool,
    /// The version it holds; `u64::MAX`: not known, or what it was given did not arrive.
    version: AtomicU64,
    is_busy: AtomicBool,
    has_failed: AtomicBool,
}

impl Kept {
    /// Begins to read it.
    pub fn new(keeper: Arc<dyn RosterKeeper>, coordination: &Arc<Coordination>) -> Kept {
        let state = KeptState {
            is_loaded: AtomicBool::new(false),
            version: AtomicU64::new(u64::MAX),
            is_busy: AtomicBool::new(false),
            has_failed: AtomicBool::new(false),
        };
        let mut kept = Kept { keeper, state: Arc::new(state), again_at_ns: 0 };
        kept.keep(coordination, MonoNs(0));
        kept
    }

    /// Reads it, until that went well once; then gives it the roster whenever that moved.
    pub fn keep(&mut self, coordination: &Arc<Coordination>, now: MonoNs) {
        let version = coordination.fleet.roster.version();
        let state = &self.state;
        let is_loaded = state.is_loaded.load(Ordering::Acquire);
        let is_due = now.0 >= self.again_at_ns && !state.is_busy.load(Ordering::Acquire);
        if !is_due || (is_loaded && state.version.load(Ordering::Relaxed) == version) {
            return;
        }
        self.again_at_ns = now.0 + KEEP_AGAIN_NS;
        state.is_busy.store(true, Ordering::Relaxed);
        let (keeper, state, coordination) = (self.keeper.clone(), state.clone(), coordination.clone());
        tokio::task::spawn_blocking(move || {
            let outcome = if is_loaded {
                keeper.save(&coordination.fleet.roster.rows()).map(|()| state.version.store(version, Ordering::Relaxed))
            } else {
                keeper.load().map(|rows| {
                    // The coordinator takes it in before it is written over: Release pairs with the Acquire above.
                    let is_taken = coordination.fleet.ask(Command::Remember(rows));
                    state.is_loaded.store(is_taken, Ordering::Release);
                })
            };
            let had_failed = state.has_failed.swap(outcome.is_err(), Ordering::Relaxed);
            if let (Err(error), false) = (outcome, had_failed) {
                tracing::warn!(keeper = keeper.name(), error, "a copy of the roster cannot be kept; it is tried again");
            }
            state.is_busy.store(false, Ordering::Release);
        });
    }
}

//! Burn on its way between the accountant and the coordinator, and whether it can be relied on.
//!
//! The accountant tells own burn and takes up peers' terms; the coordinator does the reverse; data cores look at three
//! words per request. Nobody waits for anybody.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use shards::converge::{ScopeHash, Term, Terms, standing};
use shards::limit::Calendar;
use shards::meter::PeriodSpan;
use shards::suspend::Reason;
use shards::units::MonoNs;

/// What this replica burned of one scope in one period, in full.
#[derive(Clone, Copy, Debug)]
pub struct OwnBurn {
    pub scope: ScopeHash,
    pub calendar: Calendar,
    pub period: PeriodSpan,
    pub burn: u64,
    pub rows: u64,
}

/// One process, at most one of these.
#[derive(Default)]
pub struct Convergence {
    /// Peers' burn, for the meters.
    pub terms: Terms,
    told: Mutex<Vec<OwnBurn>>,
    has_told: AtomicBool,
    /// Terms wait for the accountant.
    has_news: AtomicBool,
    /// A LedgerSettled limit exists, so burn is exchanged.
    is_attached: AtomicBool,
    /// Monotonic ns of the last complete round, plus one; 0: there was none.
    flushed_ns: AtomicU64,
    unsent_rows: AtomicU64,
}

impl Convergence {
    /// The accountant tells what changed.
    pub fn tell(&self, burns: Vec<OwnBurn>) {
        self.told().extend(burns);
        self.has_told.store(true, Ordering::Release); // pairs with `has_told`: what was told comes first
    }

    /// Whether the accountant has told what its ledger holds: the first time it does, everything.
    pub fn has_told(&self) -> bool {
        self.has_told.load(Ordering::Acquire)
    }

    /// The coordinator takes what was told, oldest first.
    pub fn take_told(&self) -> Vec<OwnBurn> {
        std::mem::take(&mut *self.told())
    }

    /// The coordinator has heard of peers' burn. `true`: the accountant is to be paged.
    pub fn heard(&self, terms: Vec<Term>) -> bool {
        let is_news = self.terms.put(terms);
        if is_news {
            self.has_news.store(true, Ordering::Release); // pairs with `take_news`: the terms come first
        }
        is_news
    }

    /// Whether the accountant has something to take up. Cheap enough for every turn of its loop.
    pub fn has_news(&self) -> bool {
        self.has_news.load(Ordering::Acquire)
    }

    /// The same, and it is taken up now.
    pub fn take_news(&self) -> bool {
        self.has_news() && self.has_news.swap(false, Ordering::AcqRel)
    }

    /// How the exchange stands, from the coordinator.
    pub fn publish(&self, is_attached: bool, flushed: Option<MonoNs>, unsent_rows: u64) {
        // Relaxed: each word stands for itself.
        self.is_attached.store(is_attached, Ordering::Relaxed);
        self.flushed_ns.store(flushed.map_or(0, |flushed| flushed.0.saturating_add(1)), Ordering::Relaxed);
        self.unsent_rows.store(unsent_rows, Ordering::Relaxed);
    }

    /// Begin of the last complete round.
    pub fn flushed(&self) -> Option<MonoNs> {
        self.flushed_ns.load(Ordering::Relaxed).checked_sub(1).map(MonoNs)
    }

    /// Why peers' burn cannot be relied on now, if so.
    pub fn suspended(&self, now: MonoNs) -> Option<Reason> {
        standing(self.flushed(), now)
    }

    /// Whether burn is exchanged at all.
    pub fn is_attached(&self) -> bool {
        self.is_attached.load(Ordering::Relaxed)
    }

    /// Own rows that are in no peer's reach yet.
    pub fn unsent_rows(&self) -> u64 {
        self.unsent_rows.load(Ordering::Relaxed)
    }

    fn told(&self) -> std::sync::MutexGuard<'_, Vec<OwnBurn>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner) // a push or a take leaves it whole
    }
}

//! The shared store as the simulations see it: what the Redis scripts do, step by step, on maps. A test that has a real
//! server runs both side by side and compares every answer.

#![allow(dead_code)] // each test uses its own part

use std::collections::BTreeMap;

use shards::converge::{CellSeen, Cells, Changes, Job, Reply, ScopeHash};
use shards::limit::Calendar;
use shards::membership::roster::{Beat, Card, Snapshot};

/// As many changes at once as a look asks for.
pub const PAGE: usize = 1_000;

/// A scope's cells in one period.
type At = (ScopeHash, i64);

/// Scopes by when they changed last.
#[derive(Default)]
struct Index {
    scores: BTreeMap<ScopeHash, u64>,
    top: u64,
}

impl Index {
    fn note(&mut self, scope: ScopeHash, now_us: u64) {
        self.top = now_us.max(self.top + 1);
        self.scores.insert(scope, self.top);
    }
}

#[derive(Default)]
pub struct Store {
    /// The server's clock.
    pub now_us: u64,
    pub cells: BTreeMap<At, BTreeMap<String, CellSeen>>,
    indexes: BTreeMap<(Calendar, i64), Index>,
    generation: Option<u64>,
    fleet: BTreeMap<String, Beat>,
    gone: BTreeMap<String, u64>,
    purged: BTreeMap<String, u64>,
}

impl Store {
    pub fn at(now_us: u64) -> Store {
        Store { now_us, ..Store::default() }
    }

    /// It lost everything: a restart without a file, a FLUSHALL.
    pub fn wipe(&mut self) {
        *self = Store::at(self.now_us);
    }

    /// What a look would say; 0: none yet.
    pub fn generation(&self) -> u64 {
        self.generation.unwrap_or(0)
    }

    pub fn run(&mut self, ledger: &str, replica: &str, job: &Job) -> Reply {
        match job {
            Job::Changed { indexes } => {
                let generation = *self.generation.get_or_insert(self.now_us);
                let fresh = |(calendar, start, since): &(Calendar, _, u64)| {
                    let start: &shards::units::WallMs = start;
                    let index = self.indexes.get(&(*calendar, start.0));
                    let scores = index.into_iter().flat_map(|index| &index.scores);
                    let newer = scores.filter(|(_, score)| **score > *since);
                    let mut newer: Vec<_> = newer.map(|(scope, score)| (*scope, *score)).collect();
                    newer.sort_by_cached_key(|(scope, score)| (*score, scope.to_string()));
                    newer.truncate(PAGE);
                    newer
                };
                let indexes = std::array::from_fn(|at| fresh(&indexes[at]));
                Reply::Changes(Changes { now_us: self.now_us, generation, indexes, page: PAGE })
            }
            Job::Publish { scope, calendar, period, burn, rows, is_first } => {
                let at = (*scope, period.start.0);
                let cells = self.cells.entry(at).or_default();
                let old = cells.get(ledger);
                let (mut burn, mut rows) = (*burn, *rows);
                let mut flush_rows = rows;
                if let Some(old) = old {
                    if *is_first && old.burn > burn {
                        (burn, rows) = (old.burn, old.rows.max(rows));
                    }
                    flush_rows = rows.saturating_sub(old.rows);
                }
                let beat_us = self.now_us;
                let cell = CellSeen { ledger: ledger.into(), replica: replica.into(), burn, rows, flush_rows, beat_us };
                cells.insert(ledger.to_owned(), cell);
                self.indexes.entry((*calendar, period.start.0)).or_default().note(*scope, self.now_us);
                self.read(*scope, *calendar, period.start.0)
            }
            Job::Read { scope, calendar, period } => self.read(*scope, *calendar, period.start.0),
            Job::Restore { scope, calendar, period, cell } => {
                let is_purged = self.purged.get(&*cell.replica).is_some_and(|at_us| *at_us >= cell.beat_us);
                let cells = self.cells.entry((*scope, period.start.0)).or_default();
                let old = cells.get(&*cell.ledger);
                let is_more = old.is_none_or(|old| old.burn < cell.burn && old.beat_us <= cell.beat_us);
                if !is_purged && is_more {
                    cells.insert(cell.ledger.to_string(), cell.clone());
                    self.indexes.entry((*calendar, period.start.0)).or_default().note(*scope, self.now_us);
                }
                self.read(*scope, *calendar, period.start.0)
            }
        }
    }

    fn read(&self, scope: ScopeHash, calendar: Calendar, start: i64) -> Reply {
        let score = self.indexes.get(&(calendar, start)).and_then(|index| index.scores.get(&scope)).copied();
        let cells = self.cells.get(&(scope, start)).into_iter().flat_map(|cells| cells.values().cloned()).collect();
        Reply::Cells(Cells {
            now_us: self.now_us,
            generation: self.generation.unwrap_or(0),
            score: score.unwrap_or(0),
            cells,
        })
    }

    /// `at_us`: when it was removed; what it has published since stays.
    pub fn purge(
        &mut self,
        scope: ScopeHash,
        calendar: Calendar,
        start: i64,
        replica: &str,
        at_us: u64,
    ) -> Vec<CellSeen> {
        let noted = self.purged.entry(replica.to_owned()).or_default();
        *noted = at_us.max(*noted);
        let Some(cells) = self.cells.get_mut(&(scope, start)) else { return Vec::new() };
        let removed: Vec<_> =
            cells.values().filter(|cell| cell.replica == replica && cell.beat_us <= at_us).cloned().collect();
        cells.retain(|_, cell| !removed.contains(cell));
        if let Some(index) = self.indexes.get_mut(&(calendar, start)).filter(|_| !removed.is_empty()) {
            index.note(scope, self.now_us);
        }
        removed
    }

    pub fn beat(&mut self, replica: &str, drained: bool, nonce: &str, card: &Card) -> Snapshot {
        let before = self.fleet.get(replica).cloned();
        if !drained || before.as_ref().is_none_or(|before| before.nonce == nonce) {
            let beat = Beat { at_us: self.now_us, drained, nonce: nonce.to_owned(), card: card.clone() };
            self.fleet.insert(replica.to_owned(), beat);
        }
        let beats = self.fleet.iter().map(|(id, beat)| (id.clone(), beat.clone())).collect();
        let gone = self.gone.iter().map(|(id, at_us)| (id.clone(), *at_us)).collect();
        Snapshot { now_us: self.now_us, before, beats, gone }
    }

    /// `None` when it is alive; else the entry that went with it.
    pub fn decommission(&mut self, replica: &str, window_us: u64, force: bool) -> Option<Option<Beat>> {
        let alive = |beat: &Beat| !beat.drained && self.now_us - beat.at_us <= window_us;
        if !force && self.fleet.get(replica).is_some_and(alive) {
            return None;
        }
        self.gone.insert(replica.to_owned(), self.now_us);
        Some(self.fleet.remove(replica))
    }

    /// What the store knows of who is alive.
    pub fn live(&self, window_us: u64) -> usize {
        self.fleet.values().filter(|beat| !beat.drained && self.now_us - beat.at_us <= window_us).count()
    }
}

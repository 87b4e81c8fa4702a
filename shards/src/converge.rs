//! How replicas learn of each other's burn: own sums out, peers' sums in, for `budget_usd`, `quota_tokens` and
//! `quota_requests`.
//!
//! ```text
//! accountant: own burn of a scope ─▶ Converge::own ─▶ Publish ─▶ store ─▶ every cell ─▶ Term { remote } ─▶ Terms ─▶ meter
//!                          peers changed something ─▶ Changed ─▶ Read ───────────────▶ the same
//! ```
//!
//! Each ledger has one cell per scope and period, and rewrites it whole: a retry or a restart says the same again, so
//! nothing is ever counted twice. `remote` is what all cells say minus our own. Sans I/O: [`Converge`] says what to ask the
//! store and takes the answers; batches, pacing and deadlines are decided here, sockets are the coordinator's.

mod cell;
mod lost;
mod scope;
mod terms;

use std::collections::{HashMap, HashSet, VecDeque};

use compact_str::CompactString;
use foldhash::fast::FixedState;

pub use cell::{CellSeen, Cells, Changes, Job, Reply, ScopeHash};
use scope::{Key, Own, Peer, Scope, Sent};
pub use terms::{Term, Terms};

use crate::accountant::period_of;
pub use crate::coordinate::numbers::{
    CELL_DEPARTED_US as DEPARTED_US, CONVERGENCE_BATCH as BATCH, CONVERGENCE_FLUSH_NS as FLUSH_NS,
    CONVERGENCE_LOOK_NS as LOOK_NS, CONVERGENCE_SCRIPTS_PER_S as SCRIPTS_PER_S, CONVERGENCE_STALE_NS as STALE_NS,
};
use crate::limit::Calendar;
use crate::meter::PeriodSpan;
use crate::suspend::Reason;
use crate::units::{MonoNs, Now, WallMs};

/// So much before its time a publication goes along with a batch: ten thousand a second are 50 in it.
const EARLY_NS: u64 = 5_000_000;
/// Scopes are kept in so many parts, one of which is gone through with every look: in a minute, every cell of ours is
/// written anew (so that an idle replica is not taken for a departed one, and a store that lost writes gets them back) and
/// what is long over is forgotten. Never all at once: whoever runs this also answers admissions.
pub const PARTS: usize = 120;
/// Scopes that are kept, own and peers': 1,000,000 x 0.2 KB. Peers' further ones are left out and counted.
const SCOPES_MAX: usize = 1_000_000;
/// A period's cells are forgotten here this long after its end: what was folded late is published by then.
const FORGET_AFTER_MS: i64 = 600_000;
/// Own burn that the store did not take is kept this long after its period's end.
const KEEP_UNSENT_MS: i64 = 86_400_000;

/// One calendar's index: which period is followed, and up to where it was read.
#[derive(Clone, Copy, Debug)]
struct Watch {
    start: WallMs,
    since: u64,
}

/// The state of one replica's exchange with the store. Owned by the coordinator.
pub struct Converge {
    ledger: CompactString,
    scopes: HashMap<Key, Scope, FixedState>,
    /// Which of them are in which part.
    parts: Vec<Vec<Key>>,
    /// Own cells that are not in the store as they are here.
    dirty: HashSet<Key, FixedState>,
    /// Scopes somebody changed, and the score they have now.
    to_read: HashMap<Key, Wanted, FixedState>,
    watch: [Watch; CALENDARS.len()],
    generation: Option<u64>,
    /// When it was first met here.
    generation_met: MonoNs,
    /// Looks and reads of this round.
    queue: VecDeque<Job>,
    /// Publications of this round, and when each is due, soonest first: spread as they were spread a second ago.
    due: VecDeque<(u64, Key)>,
    in_flight: usize,
    round: Round,
    look_at_ns: u64,
    batch_at_ns: u64,
    looks: u64,
    flushed: Option<MonoNs>,
    terms: Vec<Term>,
    /// Scopes of peers that were left out for want of room.
    left_out: u64,
    generations_lost: u64,
    /// Scopes of peers whose cells the store lost (24 B each), and from when on they are brought back.
    to_restore: VecDeque<Key>,
    restore_at_ns: u64,
}

#[derive(Clone, Copy, Debug)]
struct Wanted {
    calendar: Calendar,
    period: PeriodSpan,
    score: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Round {
    is_running: bool,
    has_failed: bool,
    began: MonoNs,
}

/// Every calendar is followed, whether a limit uses it now or not: a reload may arm one that does.
pub const CALENDARS: [Calendar; 5] = [Calendar::Hour, Calendar::Day, Calendar::Week, Calendar::Month, Calendar::Year];

/// What one peer's ledger has in the scopes a caller named, for pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerShown {
    pub scope: ScopeHash,
    pub period: PeriodSpan,
    pub cell: CellSeen,
    pub age_us: u64,
}

impl PeerShown {
    pub fn is_departed(&self) -> bool {
        self.age_us > DEPARTED_US
    }
}

impl Converge {
    /// `phase` (any number of the replica's own) spreads the replicas' rounds over the time between two looks.
    pub fn new(ledger: &str, phase: u64, now: MonoNs) -> Converge {
        Converge {
            ledger: ledger.into(),
            scopes: HashMap::default(),
            parts: vec![Vec::new(); PARTS],
            dirty: HashSet::default(),
            to_read: HashMap::default(),
            watch: [Watch { start: WallMs(i64::MIN), since: 0 }; CALENDARS.len()],
            generation: None,
            generation_met: now,
            queue: VecDeque::new(),
            due: VecDeque::new(),
            in_flight: 0,
            round: Round::default(),
            look_at_ns: now.0.saturating_add(phase % (LOOK_NS / 4)), // the first one soon: a boot waits for it
            batch_at_ns: now.0,
            looks: phase,
            flushed: None,
            terms: Vec::new(),
            left_out: 0,
            generations_lost: 0,
            to_restore: VecDeque::new(),
            restore_at_ns: 0,
        }
    }

    /// This replica's burn of a scope in a period, in full. Everything the ledger holds is told before the first batch:
    /// what the store has and the ledger has not is taken for lost.
    pub fn own(&mut self, scope: ScopeHash, calendar: Calendar, period: PeriodSpan, burn: u64, rows: u64) {
        let key = Key { scope, start: period.start };
        let known = known(&mut self.scopes, &mut self.parts, key, calendar, period);
        let own = known.own.get_or_insert_default();
        (own.burn, own.rows) = (burn, rows);
        if own.is_unsent() {
            self.dirty.insert(key);
        }
    }

    /// The next scripts, at most a batch, or none: one batch is under way, or nothing is due. Each of them must be
    /// answered with [`Converge::answer`] or [`Converge::failed`], all before the next batch.
    pub fn next_batch(&mut self, now: Now) -> Vec<Job> {
        if self.in_flight > 0 {
            return Vec::new();
        }
        if !self.round.is_running && now.mono.0 >= self.look_at_ns {
            self.begin_round(now);
        }
        if now.mono.0 < self.batch_at_ns {
            return Vec::new();
        }
        let mut batch = Vec::new();
        while batch.len() < BATCH {
            let Some(job) = self.queue.pop_front() else { break };
            if self.is_wanted(&job) {
                batch.push(job);
            }
        }
        while batch.len() < BATCH && self.due.front().is_some_and(|(due_ns, _)| *due_ns <= now.mono.0 + EARLY_NS) {
            let Some((_, key)) = self.due.pop_front() else { break };
            batch.extend(self.publish(key)); // with the newest sums
        }
        // A timer that woke late may catch up 50 ms, no more: admissions share the server.
        let behind_ns = now.mono.0.saturating_sub(50_000_000).max(self.batch_at_ns);
        self.batch_at_ns = behind_ns.saturating_add(batch.len() as u64 * (1_000_000_000 / SCRIPTS_PER_S));
        self.in_flight = batch.len();
        if batch.is_empty() {
            self.end_round_if_done();
        }
        batch
    }

    /// When [`Converge::next_batch`] may have something.
    pub fn next_due(&self) -> MonoNs {
        if self.in_flight > 0 {
            return MonoNs(u64::MAX);
        }
        let work_ns = match self.due.front() {
            _ if !self.queue.is_empty() => 0,
            Some((due_ns, _)) => due_ns.saturating_sub(EARLY_NS),
            None => 0, // the round is at its end
        };
        MonoNs(if self.round.is_running { self.batch_at_ns.max(work_ns) } else { self.look_at_ns })
    }

    /// The store answered a job.
    pub fn answer(&mut self, job: &Job, reply: Reply, now: Now) {
        self.in_flight = self.in_flight.saturating_sub(1);
        match (job, reply) {
            (Job::Changed { .. }, Reply::Changes(changes)) => self.changed(changes, now),
            (
                Job::Publish { scope, calendar, period, .. }
                | Job::Read { scope, calendar, period }
                | Job::Restore { scope, calendar, period, .. },
                Reply::Cells(cells),
            ) => {
                self.is_of(cells.generation, now.mono);
                let key = Key { scope: *scope, start: period.start };
                match job {
                    Job::Publish { burn, rows, .. } => self.published(key, *burn, *rows, &cells, now.mono),
                    Job::Restore { cell, .. } => self.restored(key, cell, &cells),
                    Job::Read { .. } | Job::Changed { .. } => {}
                }
                self.seen(key, *calendar, *period, cells, now.mono);
            }
            _ => self.round.has_failed = true, // an answer to another question
        }
        self.end_round_if_done();
    }

    /// The store did not answer a job, or not in words we know. It is asked again in the next round.
    pub fn failed(&mut self, job: &Job) {
        let _ = job; // what it was about is still dirty or wanted
        self.in_flight = self.in_flight.saturating_sub(1);
        self.round.has_failed = true;
        // The rest would fail as slowly: a new round asks for all of it again.
        self.queue.clear();
        self.due.clear();
        self.end_round_if_done();
    }

    /// What changed for the meters since the last call.
    pub fn take_terms(&mut self) -> Vec<Term> {
        std::mem::take(&mut self.terms)
    }

    /// Begin of the last round in which everything that was due was exchanged.
    pub fn flushed(&self) -> Option<MonoNs> {
        self.flushed
    }

    /// Own rows that peers cannot know of yet.
    pub fn unsent_rows(&self) -> u64 {
        let of = |key: &Key| self.scopes.get(key).and_then(|scope| scope.own.as_ref()).map_or(0, Own::unsent_rows);
        self.dirty.iter().map(of).sum()
    }

    /// Scopes known in running periods, and peers' scopes left out for want of room.
    pub fn size(&self) -> (usize, u64) {
        (self.scopes.len(), self.left_out)
    }

    /// How often the store turned out to have begun from nothing since it was first met.
    pub fn generations_lost(&self) -> u64 {
        self.generations_lost
    }

    /// A replica was decommissioned: what was kept of it in spite of the store goes too.
    pub fn forget_replica(&mut self, replica: &str, now: MonoNs) {
        let keys: Vec<Key> = self
            .scopes
            .iter()
            .filter(|(_, scope)| scope.peers.iter().any(|peer| peer.is_kept && peer.cell.replica == replica))
            .map(|(key, _)| *key)
            .collect();
        for key in keys {
            if let Some(scope) = self.scopes.get_mut(&key) {
                scope.peers.retain(|peer| !(peer.is_kept && peer.cell.replica == replica));
            }
            self.term(key, now);
        }
    }

    /// Every scope of one part in every period that is known, for a decommission to look through.
    pub fn places(&self, part: usize) -> impl Iterator<Item = (ScopeHash, Calendar, PeriodSpan)> {
        self.part(part).map(|(key, scope)| (key.scope, scope.calendar, scope.period))
    }

    /// Every peer's cell of one part, for pages.
    pub fn peers(&self, part: usize, now: MonoNs) -> impl Iterator<Item = PeerShown> {
        self.part(part).flat_map(move |(key, scope)| {
            scope.peers.iter().map(move |peer| PeerShown {
                scope: key.scope,
                period: scope.period,
                cell: peer.cell.clone(),
                age_us: peer.age_at(now),
            })
        })
    }

    fn part(&self, part: usize) -> impl Iterator<Item = (&Key, &Scope)> {
        let keys = self.parts.get(part).map_or(&[][..], Vec::as_slice);
        keys.iter().filter_map(|key| Some((key, self.scopes.get(key)?)))
    }

    /// This replica is leaving: everything unsent is due at once.
    pub fn flush_all(&mut self, now: Now) {
        self.batch_at_ns = now.mono.0;
        for scope in self.scopes.values_mut() {
            if let Some(sent) = scope.own.as_mut().and_then(|own| own.sent.as_mut()) {
                sent.at = MonoNs(0);
            }
        }
        // What was not due yet is gathered again.
        self.due.clear();
        self.round.has_failed = true;
        self.end_round_if_done();
        self.look_at_ns = now.mono.0;
    }

    /// Whether everything of ours is in the store.
    pub fn is_flushed(&self) -> bool {
        !self
            .dirty
            .iter()
            .any(|key| self.scopes.get(key).is_some_and(|scope| scope.own.as_ref().is_some_and(Own::is_unsent)))
    }

    fn begin_round(&mut self, now: Now) {
        self.round = Round { is_running: true, has_failed: false, began: now.mono };
        self.look_at_ns = now.mono.0.saturating_add(LOOK_NS);
        self.looks = self.looks.wrapping_add(1);
        for (calendar, watch) in CALENDARS.into_iter().zip(&mut self.watch) {
            let start = period_of(calendar, now.wall).start;
            if watch.start != start {
                *watch = Watch { start, since: 0 };
                self.to_read.retain(|_, wanted| wanted.calendar != calendar); // of the period that ended
            }
        }
        let due_ns = |key: &Key| self.scopes.get(key)?.own.as_ref()?.due_ns();
        let dues = self.dirty.iter().filter_map(|key| Some((due_ns(key)?, *key)));
        let mut due: Vec<(u64, Key)> = dues.filter(|(due_ns, _)| *due_ns < self.look_at_ns).collect();
        due.sort_unstable_by_key(|(due_ns, _)| *due_ns);
        self.due = due.into();
        self.queue.push_back(self.look());
        for key in self.go_through_a_part(now) {
            self.dirty.insert(key);
            self.due.push_front((0, key));
        }
        let wanted = self.to_read.iter().map(|(key, wanted)| wanted.job(key.scope));
        self.queue.extend(wanted);
        if now.mono.0 >= self.restore_at_ns {
            self.restore(now);
        }
    }

    fn look(&self) -> Job {
        let mut indexes = [(Calendar::Hour, WallMs(0), 0); CALENDARS.len()];
        for ((slot, calendar), watch) in indexes.iter_mut().zip(CALENDARS).zip(&self.watch) {
            *slot = (calendar, watch.start, watch.since);
        }
        Job::Changed { indexes }
    }

    fn publish(&self, key: Key) -> Option<Job> {
        let scope = self.scopes.get(&key)?;
        let own = scope.own.as_ref()?;
        Some(Job::Publish {
            scope: key.scope,
            calendar: scope.calendar,
            period: scope.period,
            burn: own.burn.saturating_add(own.lost_burn),
            rows: own.rows.saturating_add(own.lost_rows),
            is_first: own.sent.is_none(),
        })
    }

    /// A scope that was read since, by a publication of ours, needs no reading; a cell that is there again, no restoring.
    fn is_wanted(&self, job: &Job) -> bool {
        match job {
            Job::Restore { scope, period, cell, .. } => {
                let scope = self.scopes.get(&Key { scope: *scope, start: period.start });
                let peers = scope.map_or(&[][..], |scope| scope.peers.as_slice());
                peers.iter().any(|peer| peer.is_kept && peer.cell.ledger == cell.ledger)
            }
            Job::Read { scope, period, .. } => self.to_read.contains_key(&Key { scope: *scope, start: period.start }),
            Job::Publish { .. } | Job::Changed { .. } => true,
        }
    }

    fn published(&mut self, key: Key, burn: u64, rows: u64, cells: &Cells, now: MonoNs) {
        let Some(own) = self.scopes.get_mut(&key).and_then(|scope| scope.own.as_mut()) else { return };
        let stored = cells.cells.iter().find(|cell| cell.ledger == self.ledger);
        if own.sent.is_none() {
            // Our cell held more than our ledger does: rows were lost after they were published.
            own.lost_burn = stored.map_or(0, |cell| cell.burn.saturating_sub(burn));
            own.lost_rows = stored.map_or(0, |cell| cell.rows.saturating_sub(rows));
        }
        let flush_rows = stored.map_or(0, |cell| cell.flush_rows);
        own.sent = Some(Sent {
            burn: burn.max(stored.map_or(0, |cell| cell.burn)),
            rows: rows.max(stored.map_or(0, |cell| cell.rows)),
            flush_rows,
            at: now,
        });
        // One more publication tells the peers that no more rows come.
        if !own.is_unsent() && flush_rows == 0 {
            self.dirty.remove(&key);
        }
    }

    /// All cells of a scope, as of `cells.score`.
    fn seen(&mut self, key: Key, calendar: Calendar, period: PeriodSpan, cells: Cells, now: MonoNs) {
        if self.to_read.get(&key).is_some_and(|wanted| wanted.score <= cells.score) {
            self.to_read.remove(&key);
        }
        let ledger = self.ledger.clone();
        let stored = cells.cells.iter().find(|cell| cell.ledger == ledger);
        let scope = known(&mut self.scopes, &mut self.parts, key, calendar, period);
        if let (None, Some(stored)) = (&scope.own, stored) {
            // All rows of this scope were lost after they were published: spent all the same.
            let sent = Sent { burn: stored.burn, rows: stored.rows, flush_rows: 0, at: now };
            scope.own =
                Some(Own { lost_burn: stored.burn, lost_rows: stored.rows, sent: Some(sent), ..Own::default() });
        }
        let before = std::mem::take(&mut scope.peers);
        for cell in cells.cells.into_iter().filter(|cell| cell.ledger != ledger) {
            let mut cell = cell;
            let mut is_kept = false;
            if let Some(known) = before.iter().find(|known| known.cell.ledger == cell.ledger) {
                // Brought back by somebody who had heard less than we: not by its owner, whose beat would be newer.
                is_kept = known.is_kept && known.cell.burn > cell.burn && known.cell.beat_us >= cell.beat_us;
                // A store that fell back to an older copy must not un-spend: a ledger's burn only grows in a period.
                cell.burn = cell.burn.max(known.cell.burn);
                cell.rows = cell.rows.max(known.cell.rows);
                if is_kept {
                    cell.beat_us = known.cell.beat_us; // as it is to be brought back
                }
            }
            let age_us = cells.now_us.saturating_sub(cell.beat_us);
            scope.peers.push(Peer { cell, age_us, read_at: now, is_kept });
        }
        for known in before.into_iter().filter(|known| known.is_kept) {
            if !scope.peers.iter().any(|peer| peer.cell.ledger == known.cell.ledger) {
                scope.peers.push(known);
            }
        }
        scope.seen_score = scope.seen_score.max(cells.score);
        self.term(key, now);
    }

    fn term(&mut self, key: Key, now: MonoNs) {
        let Some(scope) = self.scopes.get(&key) else { return };
        self.terms.push(scope.term(key.scope, now));
    }

    fn changed(&mut self, changes: Changes, now: Now) {
        if self.is_of(changes.generation, now.mono) {
            let mut is_cut = false;
            for ((calendar, watch), index) in CALENDARS.into_iter().zip(&mut self.watch).zip(&changes.indexes) {
                is_cut |= index.len() >= changes.page;
                for (scope, score) in index {
                    watch.since = watch.since.max(*score);
                    let key = Key { scope: *scope, start: watch.start };
                    if self.scopes.get(&key).is_some_and(|scope| scope.seen_score >= *score) {
                        continue;
                    }
                    if !self.scopes.contains_key(&key) && self.scopes.len() + self.to_read.len() >= SCOPES_MAX {
                        self.left_out += 1;
                        continue;
                    }
                    // The period is that of the index, whatever our clock says by now.
                    let wanted = Wanted { calendar, period: period_of(calendar, watch.start), score: *score };
                    if self.to_read.insert(key, wanted).is_none() {
                        self.queue.push_back(wanted.job(*scope));
                    }
                }
            }
            if is_cut {
                self.queue.push_back(self.look());
            }
        }
    }

    /// Forgets what is long over in the part whose turn it is, and gives what is to be written anew there.
    fn go_through_a_part(&mut self, now: Now) -> Vec<Key> {
        let at = (self.looks % PARTS as u64) as usize;
        let is_over = |period: &PeriodSpan, by_ms: i64| period.end.0.saturating_add(by_ms) <= now.wall.0;
        let mut rewrite = Vec::new();
        let (scopes, dirty) = (&mut self.scopes, &mut self.dirty);
        self.parts[at].retain(|key| {
            let Some(scope) = scopes.get(key) else { return false };
            // Own burn that could not be published waits a day: the store keeps cells no longer either.
            let wait_ms = if dirty.contains(key) { KEEP_UNSENT_MS } else { FORGET_AFTER_MS };
            if is_over(&scope.period, wait_ms) {
                scopes.remove(key);
                dirty.remove(key);
                return false;
            }
            let sent = scope.own.as_ref().and_then(|own| own.sent);
            let is_old = sent.is_some_and(|sent| now.mono.since(sent.at) >= FLUSH_NS);
            if is_old && !dirty.contains(key) && scope.period.contains(now.wall) {
                rewrite.push(*key);
            }
            true
        });
        rewrite
    }

    fn end_round_if_done(&mut self) {
        if self.round.is_running && self.in_flight == 0 && self.queue.is_empty() && self.due.is_empty() {
            self.round.is_running = false;
            if !self.round.has_failed {
                self.flushed = Some(self.round.began);
            }
        }
    }
}

/// The scope, made now if it is not known.
fn known<'a>(
    scopes: &'a mut HashMap<Key, Scope, FixedState>,
    parts: &mut [Vec<Key>],
    key: Key,
    calendar: Calendar,
    period: PeriodSpan,
) -> &'a mut Scope {
    scopes.entry(key).or_insert_with(|| {
        let [first, second, ..] = key.scope.0;
        let part = usize::from(u16::from_le_bytes([first, second])) % parts.len().max(1);
        if let Some(part) = parts.get_mut(part) {
            part.push(key);
        }
        Scope::new(calendar, period)
    })
}

impl Wanted {
    fn job(&self, scope: ScopeHash) -> Job {
        Job::Read { scope, calendar: self.calendar, period: self.period }
    }
}

/// Why peers' burn cannot be relied on now, if so. `flushed`: [`Converge::flushed`].
pub fn standing(flushed: Option<MonoNs>, now: MonoNs) -> Option<Reason> {
    match flushed {
        None => Some(Reason::NeverSynced),
        Some(flushed) if now.since(flushed) > STALE_NS => Some(Reason::ConvergenceStale),
        Some(_) => None,
    }
}

//! A fleet in a few hundred thousand steps: replicas burn, publish, read, die, come back under the same or another name,
//! lose ledgers, are cut off and healed, are decommissioned; the store restarts empty; periods end; clocks disagree.
//!
//! Beside the product runs a plain model that knows what was really spent. After every step: nothing is counted twice,
//! nothing that a completed exchange must show is missing, and every bound that would be published holds. A failure names
//! its seed; `SIM_SEED=17 cargo test -p shards --test sim_fleet` runs that seed alone.

#[path = "support/dice.rs"]
mod dice;
#[path = "support/store.rs"]
mod store;

use std::collections::{BTreeMap, BTreeSet};

use dice::{Dice, each_seed};
use shards::accountant::period_of;
use shards::converge::{Converge, Job, STALE_NS, ScopeHash, Term, standing};
use shards::limit::{Calendar, Class};
use shards::membership::roster::{Card, Roster};
use shards::refusal::bounds;
use shards::suspend::Reason;
use shards::units::{MonoNs, Now, WallMs};
use store::Store;

const STEP_MS: u64 = 50;
const STEPS: u64 = 4_000;
const HEARTBEAT_MS: u64 = 2_000;
const WINDOW_NS: u64 = 15_000_000_000;
/// 90 s before an hour ends, so that every run crosses a period's end.
const START_MS: i64 = 1_785_549_600_000 - 90_000;
const LIMIT: u64 = 400;
const COST_MAX: u64 = 4;
const SHARE: u64 = 600;
/// One scope of each kind of period, and one more.
const SCOPES: [(ScopeHash, Calendar); 3] =
    [(ScopeHash([1; 16]), Calendar::Hour), (ScopeHash([2; 16]), Calendar::Hour), (ScopeHash([3; 16]), Calendar::Day)];

/// A scope's number and the start of the period.
type Slot = (usize, i64);

/// A ledger folder: what it holds, whoever runs on it.
#[derive(Default)]
struct Ledger {
    id: String,
    /// What its rows add up to.
    spent: BTreeMap<Slot, (u64, u64)>,
    /// What it is known to have spent, also where rows were lost after they were published.
    truth: BTreeMap<Slot, u64>,
    is_lost: bool,
}

/// A running process.
struct Process {
    name: String,
    nonce: String,
    ledger: usize,
    converge: Converge,
    roster: Roster,
    terms: BTreeMap<Slot, Term>,
    skew_ms: i64,
    is_cut_off: bool,
    began_ms: u64,
    beat_at_ms: u64,
    /// What the store held of others when a round began, by scope.
    floor: Vec<(MonoNs, BTreeMap<Slot, u64>)>,
    /// Replicas that had beaten within the window when it last did.
    live_when_beating: usize,
    /// Removals it has heard of.
    gone: BTreeSet<String>,
}

struct Fleet {
    dice: Dice,
    ms: u64,
    store: Store,
    ledgers: Vec<Ledger>,
    processes: Vec<Process>,
    /// Everything that was ever spent, whether anybody still knows of it or not.
    ever: BTreeMap<Slot, u64>,
    /// Of it, what ledgers lost again.
    lost: BTreeMap<Slot, u64>,
    /// Cells were removed or the store was emptied: floors taken before are void.
    floors_void_before: MonoNs,
    wiped_ms: Option<u64>,
    /// Names ever given; who is dead and may be decommissioned.
    dead: Vec<(String, usize)>,
    named: u64,
}

impl Fleet {
    fn new(seed: u64, replicas: usize) -> Fleet {
        let mut fleet = Fleet {
            dice: Dice(seed),
            ms: 0,
            store: Store::at(5_000_000_000),
            ledgers: Vec::new(),
            processes: Vec::new(),
            ever: BTreeMap::new(),
            lost: BTreeMap::new(),
            floors_void_before: MonoNs(0),
            wiped_ms: None,
            dead: Vec::new(),
            named: 0,
        };
        for _ in 0..replicas {
            let ledger = fleet.new_ledger();
            let name = fleet.new_name();
            fleet.boot(name, ledger);
        }
        fleet
    }

    fn new_ledger(&mut self) -> usize {
        self.ledgers.push(Ledger { id: format!("ledger{}", self.ledgers.len()), ..Ledger::default() });
        self.ledgers.len() - 1
    }

    fn new_name(&mut self) -> String {
        self.named += 1;
        format!("tt-{}", self.named)
    }

    fn mono(&self) -> MonoNs {
        MonoNs(self.ms * 1_000_000)
    }

    fn now(&self, skew_ms: i64) -> Now {
        Now { mono: self.mono(), wall: WallMs(START_MS + self.ms as i64 + skew_ms) }
    }

    fn boot(&mut self, name: String, ledger: usize) {
        let skew_ms = self.dice.roll(3_001) as i64 - 1_500;
        let nonce = format!("n{}", self.dice.roll(u64::MAX));
        let id = &self.ledgers[ledger].id;
        let mut converge = Converge::new(id, self.dice.roll(1 << 40), self.mono());
        for ((scope, start), (burn, rows)) in &self.ledgers[ledger].spent {
            let (hash, calendar) = SCOPES[*scope];
            converge.own(hash, calendar, period_of(calendar, WallMs(*start)), *burn, *rows);
        }
        let roster = Roster::new(&name, &nonce, id, WINDOW_NS);
        self.dead.retain(|(dead, _)| *dead != name);
        self.processes.push(Process {
            name,
            nonce,
            ledger,
            converge,
            roster,
            terms: BTreeMap::new(),
            skew_ms,
            is_cut_off: false,
            began_ms: self.ms,
            beat_at_ms: self.ms,
            floor: Vec::new(),
            live_when_beating: 1,
            gone: BTreeSet::new(),
        });
    }

    /// Burns where the process believes there is room; what its gate would do.
    fn admit(&mut self, who: usize) {
        let scope = self.dice.roll(SCOPES.len() as u64) as usize;
        let cost = 1 + self.dice.roll(COST_MAX);
        let process = &self.processes[who];
        let (hash, calendar) = SCOPES[scope];
        let period = period_of(calendar, self.now(process.skew_ms).wall);
        let slot = (scope, period.start.0);
        if self.observed(process, slot) >= LIMIT {
            return;
        }
        let ledger = &mut self.ledgers[process.ledger];
        let (burn, rows) = ledger.spent.entry(slot).or_default();
        (*burn, *rows) = (*burn + cost, *rows + 1);
        let (burn, rows) = (*burn, *rows);
        *ledger.truth.entry(slot).or_default() += cost;
        *self.ever.entry(slot).or_default() += cost;
        self.processes[who].converge.own(hash, calendar, period, burn, rows);
    }

    fn observed(&self, process: &Process, slot: Slot) -> u64 {
        let own = self.ledgers[process.ledger].spent.get(&slot).map_or(0, |(burn, _)| *burn);
        own + process.terms.get(&slot).map_or(0, |term| term.remote)
    }

    fn spent(&self, slot: Slot) -> u64 {
        self.ledgers.iter().map(|ledger| ledger.truth.get(&slot).copied().unwrap_or(0)).sum()
    }

    /// What is in the store of other ledgers than this one, in the periods that run by a clock.
    fn published_by_others(&self, ledger: &str, wall: WallMs) -> BTreeMap<Slot, u64> {
        let mut sums = BTreeMap::new();
        for ((hash, start), cells) in &self.store.cells {
            let scope = SCOPES.iter().position(|(known, _)| known == hash).expect("a scope of ours");
            if period_of(SCOPES[scope].1, wall).start.0 != *start {
                continue;
            }
            let others = cells.values().filter(|cell| cell.ledger != ledger).map(|cell| cell.burn).sum();
            sums.insert((scope, *start), others);
        }
        sums
    }

    fn exchange(&mut self, who: usize) {
        let now = self.now(self.processes[who].skew_ms);
        loop {
            let process = &mut self.processes[who];
            let batch = process.converge.next_batch(now);
            if batch.is_empty() {
                break;
            }
            let ledger = self.ledgers[process.ledger].id.clone();
            if batch.iter().any(|job| matches!(job, Job::Changed { .. })) {
                let floor = self.published_by_others(&ledger, now.wall);
                self.processes[who].floor.push((now.mono, floor));
            }
            let process = &mut self.processes[who];
            for job in &batch {
                // Cut off: the question is lost, or only the answer is.
                if process.is_cut_off {
                    if self.dice.roll(2) == 0 && process.converge.flushed().is_some() {
                        let _ = self.store.run(&ledger, &process.name, job);
                        self.dice.roll(2);
                    }
                    process.converge.failed(job);
                    continue;
                }
                let reply = self.store.run(&ledger, &process.name, job);
                process.converge.answer(job, reply, now);
            }
            for term in process.converge.take_terms() {
                let scope = SCOPES.iter().position(|(known, _)| *known == term.scope).expect("a scope of ours");
                process.terms.insert((scope, term.period.start.0), term);
            }
        }
        if now.mono.0 / 1_000_000 >= self.processes[who].beat_at_ms {
            self.heartbeat(who, false);
        }
    }

    fn heartbeat(&mut self, who: usize, is_goodbye: bool) {
        let mono = self.mono();
        let process = &mut self.processes[who];
        process.beat_at_ms = self.ms + HEARTBEAT_MS;
        if process.is_cut_off {
            return;
        }
        let card = Card {
            ledger_id: self.ledgers[process.ledger].id.clone(),
            version: "0.1.0".to_owned(),
            source: "config".to_owned(),
            stable: true,
            started_at_ms: process.began_ms as i64,
            advertise_url: None,
            skew_ms: process.skew_ms,
        };
        let snapshot = self.store.beat(&process.name, is_goodbye, &process.nonce, &card);
        process.roster.heard(snapshot, mono);
        for (name, _) in process.roster.gone() {
            if process.gone.insert(name.clone()) {
                process.converge.forget_replica(&name, mono);
            }
        }
        process.live_when_beating = self.store.live(WINDOW_NS / 1_000);
    }

    fn something_happens(&mut self) {
        if self.processes.is_empty() {
            let ledger = self.new_ledger();
            let name = self.new_name();
            return self.boot(name, ledger);
        }
        let who = self.dice.roll(self.processes.len() as u64) as usize;
        match self.dice.roll(12) {
            0..=2 => {
                let process = &mut self.processes[who];
                process.is_cut_off = !process.is_cut_off;
            }
            3 | 4 => {
                // Killed; perhaps it left rows behind that were published and never reached the disk.
                let process = self.processes.remove(who);
                if self.dice.roll(3) == 0 {
                    self.lose_rows(process.ledger);
                }
                self.dead.push((process.name, process.ledger));
            }
            5 => {
                // A clean stop: what it burned is out, it says goodbye.
                let now = self.now(self.processes[who].skew_ms);
                if !self.processes[who].is_cut_off {
                    self.processes[who].converge.flush_all(now);
                    self.exchange(who);
                    self.heartbeat(who, true);
                }
                let process = self.processes.remove(who);
                self.dead.push((process.name, process.ledger));
            }
            6..=8 if !self.dead.is_empty() => {
                let at = self.dice.roll(self.dead.len() as u64) as usize;
                let (name, ledger) = self.dead.remove(at);
                let is_free = !self.processes.iter().any(|process| process.ledger == ledger);
                let name_is_free = !self.processes.iter().any(|process| process.name == name);
                match self.dice.roll(4) {
                    0 => {
                        let name = self.new_name();
                        if is_free && !self.ledgers[ledger].is_lost {
                            self.boot(name, ledger); // the volume moved
                        }
                    }
                    1 if name_is_free => {
                        self.ledgers[ledger].is_lost = true;
                        let fresh = self.new_ledger();
                        self.boot(name, fresh);
                    }
                    _ if is_free && name_is_free && !self.ledgers[ledger].is_lost => self.boot(name, ledger),
                    _ => self.dead.push((name, ledger)),
                }
            }
            9 if !self.dead.is_empty() => {
                let at = self.dice.roll(self.dead.len() as u64) as usize;
                self.decommission(at);
            }
            10 if self.dice.roll(3) == 0 => {
                self.store.wipe();
                self.wiped_ms = Some(self.ms);
                self.floors_void_before = self.mono();
            }
            11 if self.processes.len() < 5 => {
                let ledger = self.new_ledger();
                let name = self.new_name();
                self.boot(name, ledger);
            }
            _ => {}
        }
    }

    /// Only what is in the store is still known of the rows a crash took.
    fn lose_rows(&mut self, ledger: usize) {
        let id = self.ledgers[ledger].id.clone();
        let published: BTreeMap<Slot, u64> = {
            let of = |cells: &BTreeMap<String, shards::converge::CellSeen>| cells.get(&id).map_or(0, |cell| cell.burn);
            let slot = |(hash, start): &(ScopeHash, i64)| {
                (SCOPES.iter().position(|(known, _)| known == hash).expect("a scope of ours"), *start)
            };
            self.store.cells.iter().map(|(at, cells)| (slot(at), of(cells))).collect()
        };
        let Ledger { spent, truth, .. } = &mut self.ledgers[ledger];
        for (slot, (burn, rows)) in spent.iter_mut() {
            let lost = (*burn).min(7);
            *self.lost.entry(*slot).or_default() += lost;
            *burn -= lost;
            *rows = (*rows).saturating_sub(2);
            // If the cell holds more than the ledger now, that much stays spent; the rest nobody can know of.
            let known = published.get(slot).copied().unwrap_or(0).max(*burn);
            let true_burn = truth.entry(*slot).or_default();
            *true_burn = (*true_burn).min(known);
        }
        self.floors_void_before = MonoNs(self.ms * 1_000_000);
    }

    fn decommission(&mut self, at: usize) {
        let (name, ledger) = self.dead[at].clone();
        if self.store.decommission(&name, WINDOW_NS / 1_000, false).is_none() {
            return; // its last heartbeat is too young: refused
        }
        // Every place that is known, whether the store has anything there or not.
        let running = SCOPES.map(|(hash, calendar)| (hash, period_of(calendar, self.now(0).wall).start.0));
        let places: BTreeSet<_> = self.store.cells.keys().copied().chain(running).collect();
        for (hash, start) in places {
            let scope = SCOPES.iter().position(|(known, _)| *known == hash).expect("a scope of ours");
            let at_us = self.store.now_us;
            for cell in self.store.purge(hash, SCOPES[scope].1, start, &name, at_us) {
                let owner = self.ledgers.iter().position(|ledger| ledger.id == cell.ledger).expect("a ledger of ours");
                let truth = self.ledgers[owner].truth.entry((scope, start)).or_default();
                *truth = truth.saturating_sub(cell.burn);
            }
        }
        // Its ledger is gone with it, so that what it held cannot come back. What it published under an earlier name stays.
        self.ledgers[ledger].is_lost = true;
        self.dead.remove(at);
        self.floors_void_before = self.mono();
    }

    fn check(&mut self) {
        let now = self.mono();
        for who in 0..self.processes.len() {
            let process = &self.processes[who];
            let reason = standing(process.converge.flushed(), now);
            // The published bound says what happened: nothing was ever completed, nothing for 30 s, or it was.
            let bound = reason.map_or(bounds::CONVERGED, |reason| bounds::outage_note(Class::LedgerSettled, reason));
            match process.converge.flushed() {
                None => assert_eq!(bound, bounds::NEVER_SYNCED),
                Some(flushed) if now.since(flushed) > STALE_NS => assert_eq!(bound, bounds::CONVERGENCE_STALE),
                Some(_) => assert_eq!(bound, bounds::CONVERGED),
            }
            for (scope, (_, calendar)) in SCOPES.iter().enumerate() {
                let slot = (scope, period_of(*calendar, self.now(process.skew_ms).wall).start.0);
                let observed = self.observed(process, slot);
                let spent = self.ever.get(&slot).copied().unwrap_or(0);
                assert!(observed <= spent, "{}: {observed} observed, {spent} was ever spent", process.name);
                // "fleet ≤ N×limit": whatever was lost, each ledger on its own never passes the limit by more than a call.
                for ledger in &self.ledgers {
                    let own = ledger.spent.get(&slot).map_or(0, |(burn, _)| *burn);
                    assert!(own < LIMIT + COST_MAX, "{}: {own}", ledger.id);
                }
                // "peers' burn since their last publication" is all that may be missing after a completed exchange.
                if let Some(began) = process.converge.flushed().filter(|began| *began > self.floors_void_before) {
                    let floor = process.floor.iter().rev().find(|(at, _)| *at <= began);
                    let published = floor.and_then(|(_, floor)| floor.get(&slot)).copied().unwrap_or(0);
                    let remote = process.terms.get(&slot).map_or(0, |term| term.remote);
                    assert!(remote >= published, "{}: {remote} of {published} published", process.name);
                }
            }
            self.check_share(who, now);
            let process = &mut self.processes[who];
            if let Some(began) = process.converge.flushed() {
                let keep = process.floor.iter().rposition(|(at, _)| *at <= began).unwrap_or(0);
                process.floor.drain(..keep);
            }
        }
    }

    fn check_share(&self, who: usize, now: MonoNs) {
        let process = &self.processes[who];
        let (parts, reason) = process.roster.parts(now);
        let is_fresh = process.roster.as_of().is_some_and(|as_of| now.since(as_of) <= WINDOW_NS);
        if !is_fresh {
            assert_eq!(
                (parts, reason),
                (1, Some(Reason::MembershipStale)),
                "each enforces the full amount, and says so"
            );
            assert_eq!(bounds::outage_note(Class::AdmissionCounted, Reason::MembershipStale), bounds::SHARE_STALE);
            return;
        }
        assert!(parts as usize >= process.live_when_beating, "everybody who beat within the window");
        if self.wiped_ms.is_none_or(|wiped_ms| self.ms - wiped_ms > 2 * WINDOW_NS / 1_000_000) {
            // A store that forgot everybody is not believed at once: who beat lately is taken to be alive.
            assert_eq!(parts as usize, process.live_when_beating, "and nobody else");
        }
        // All fresh, nobody came lately: the shares add up to the limit and the rounding.
        let everybody = &self.processes;
        let is_calm = everybody.iter().all(|process| {
            let parts = process.roster.parts(now);
            parts.1.is_none() && parts.0 as usize >= everybody.len()
        });
        if is_calm {
            let n = everybody.len() as u64;
            let shares: u64 = everybody.iter().map(|p| SHARE.div_ceil(u64::from(p.roster.parts(now).0))).sum();
            assert!(shares < SHARE + n, "{shares} over {n} replicas");
        }
    }

    fn step(&mut self, burns: bool) {
        self.ms += STEP_MS;
        self.store.now_us += STEP_MS * 1_000;
        for who in 0..self.processes.len() {
            if burns && self.dice.roll(6) == 0 {
                self.admit(who);
            }
            self.exchange(who);
        }
        self.check();
    }

    /// Everybody can reach the store again and nothing burns: all agree on everything that was spent and not dropped.
    fn settle(&mut self) {
        self.processes.iter_mut().for_each(|process| process.is_cut_off = false);
        for _ in 0..6_000 / STEP_MS {
            self.step(false);
        }
        for process in &self.processes {
            for (scope, (hash, calendar)) in SCOPES.iter().enumerate() {
                let slot = (scope, period_of(*calendar, self.now(process.skew_ms).wall).start.0);
                let cells = self.store.cells.get(&(*hash, slot.1));
                let published: u64 = cells.into_iter().flatten().map(|(_, cell)| cell.burn).sum();
                let observed = self.observed(process, slot);
                // A ledger that lost rows while the store lost its cell says less than those who had heard it remember.
                let lost = self.lost.get(&slot).copied().unwrap_or(0);
                assert!(
                    (published..=published + lost).contains(&observed),
                    "{} settled at {observed} of {published} in {slot:?}, {lost} lost",
                    process.name
                );
            }
        }
    }
}

fn run(seed: u64) {
    let mut dice = Dice(seed ^ 0xF1EE7);
    let mut fleet = Fleet::new(seed, 2 + dice.roll(3) as usize);
    for _ in 0..STEPS {
        if fleet.dice.roll(60) == 0 {
            fleet.something_happens();
        }
        fleet.step(true);
    }
    fleet.settle();
}

#[test]
fn a_fleet_in_every_kind_of_weather_counts_nothing_twice_and_discloses_what_it_misses() {
    each_seed(12, run);
}

#[test]
fn a_healthy_fleet_passes_a_limit_by_no_more_than_two_seconds_of_its_peers() {
    each_seed(10, |seed| {
        let mut fleet = Fleet::new(seed, 4);
        for _ in 0..20 {
            fleet.step(false); // everybody has met
        }
        for _ in 0..1_600 {
            fleet.step(true);
        }
        // 4 replicas, one call of at most 4 every 6 steps of 50 ms a scope's third of the time: 2 s of all peers.
        let slack = 3 * (2_000 / STEP_MS) * COST_MAX + COST_MAX;
        for (scope, (_, calendar)) in SCOPES.iter().enumerate() {
            let slot = (scope, period_of(*calendar, WallMs(START_MS)).start.0);
            let spent = fleet.spent(slot);
            assert!(spent <= LIMIT + slack, "{spent} of {LIMIT}");
        }
        fleet.settle();
        for process in &fleet.processes {
            for (scope, (_, calendar)) in SCOPES.iter().enumerate() {
                let slot = (scope, period_of(*calendar, fleet.now(process.skew_ms).wall).start.0);
                assert_eq!(fleet.observed(process, slot), fleet.spent(slot), "{}", process.name);
            }
        }
    });
}

#[test]
fn a_period_that_ends_with_a_dead_replica_over_refuses_nobody() {
    let mut fleet = Fleet::new(3, 3);
    for _ in 0..1_200 {
        fleet.step(true);
    }
    let dead = fleet.processes.remove(0);
    while fleet.ms < 100_000 {
        fleet.step(false); // past the hour's end
    }
    for process in &fleet.processes {
        let slot = (0, period_of(Calendar::Hour, fleet.now(process.skew_ms).wall).start.0);
        assert_eq!(fleet.observed(process, slot), 0, "the new hour begins empty; {} burned in the last", dead.name);
        let day = (2, period_of(Calendar::Day, fleet.now(process.skew_ms).wall).start.0);
        assert_eq!(fleet.observed(process, day), fleet.spent(day), "in the day that runs on it still counts");
    }
}

//! The background connection: heartbeats, and the exchange of burn with peers. Waits for nobody's request.
//!
//! One task, one thing at a time: a batch of scripts or a heartbeat is under way, never both. What to ask and when is
//! decided in `shards::converge` and `shards::membership`; this carries it to Redis and back. `words` are the bytes of it,
//! `kept` the roster's copies, `trouble` what is said of an outage.

mod kept;
mod trouble;
mod words;

use std::cell::Cell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use io::clock;
use io::redis::{Call, Endpoint, Line, Reply as Answer, Trouble};
use io::ring::Pager;
use shards::converge::{BATCH, Converge, Job, LOOK_NS, PARTS, PeerShown};
use shards::coordinate::breaker::State;
use shards::coordinate::numbers::BACKGROUND_DEADLINE_NS;
use shards::limit::Class;
use shards::membership::roster::{Card, Roster};
use shards::units::{MonoNs, Now, WallMs};
use tokio::sync::mpsc::Receiver;

use self::kept::Kept;
use self::trouble::{Failed, Said};
use self::words::Removal;
use crate::coordination::Coordination;
use crate::coordination::fleet::{Command, Dropped, NotRemoved};
use crate::shared::Shared;

/// How long any call may take.
const WITHIN: Duration = Duration::from_nanos(BACKGROUND_DEADLINE_NS);
/// A stop waits for the last publication and the goodbye this long, while the store answers; then it goes without: the ledger
/// has the burn, and the next start or an operator's decommission settles it.
const FAREWELL_NS: u64 = 2_000_000_000;
/// And this long for a store that gives no answer, from the stop or its last answer on: one that is busy needs less.
const FAREWELL_SILENT_NS: u64 = 1_000_000_000;
/// And this long where it gave none before (the breaker is open, the last call failed), or when we were told to stop twice.
/// More than a round trip to wherever a Redis may be.
const FAREWELL_OUT_NS: u64 = 250_000_000;
/// Unpublished rows are counted for pages this often.
const COUNT_EVERY_NS: u64 = 250_000_000;
/// How often the store is asked whether it may evict keys.
const EVICTION_EVERY_NS: u64 = 60_000_000_000;
/// Claims of counters that were swept are looked for this often.
const FORGET_EVERY_NS: u64 = 60_000_000_000;

/// Scopes worked on before an admission, which is answered on this thread too, may go first: 0.1 ms.
const AT_ONCE: usize = 512;

/// Runs until the coordinator is told to stop.
pub async fn run(endpoint: Endpoint, shared: Arc<Shared>, coordination: Arc<Coordination>, pager: Arc<Pager>) {
    let Some(inbox) = coordination.fleet.take_inbox() else { return };
    let config = shared.rules.load_full();
    let roster = Roster::clone(&coordination.fleet.roster.load());
    let keepers = coordination.fleet.keepers.iter().map(|keeper| Kept::new(keeper.clone(), &coordination)).collect();
    let now = now();
    let heartbeat_ns = crate::rules::ns(config.config.fleet.heartbeat);
    let phase = u64::from_str_radix(&coordination.fleet.nonce, 16).unwrap_or_default();
    let card = coordination.fleet.card.clone();
    let mut background = Background {
        shared,
        coordination,
        pager,
        line: Line::new(endpoint),
        converge: Converge::new(&card.ledger_id, phase, now.mono),
        roster,
        keepers,
        heartbeat_ns,
        window_ns: crate::rules::ns(config.config.fleet.liveness_window),
        beat_at_ns: now.mono.0,
        forget_at_ns: now.mono.0 + FORGET_EVERY_NS,
        eviction_at_ns: 0,
        count_at_ns: 0,
        unsent_rows: 0,
        card,
        is_leaving: false,
        gone: HashMap::new(),
        trouble: Said::default(),
        generations_lost: 0,
        has_left: false,
        answered: Rc::default(),
    };
    let over =
        farewell_is_over(background.shared.clone(), background.coordination.clone(), background.answered.clone());
    // Whatever is under way when it is over is given up with the connection.
    tokio::select! {
        () = async {
            background.serve(inbox).await;
            background.take_leave().await;
        } => {}
        () = over => {}
    }
    background.tell_what_was_not_heard();
}

/// Waits until a stop need not wait any more for what the store has not heard: [`FAREWELL_NS`] and its like.
async fn farewell_is_over(shared: Arc<Shared>, coordination: Arc<Coordination>, answered: Rc<Cell<MonoNs>>) {
    coordination.stopped().await;
    let began = now().mono;
    let is_out = !matches!(coordination.breaker.state(), State::Closed { .. })
        || coordination.exchange_trouble.get().is_some()
        || shared.cutting.load(Ordering::Acquire);
    let patience_ns = if is_out { FAREWELL_OUT_NS } else { FAREWELL_SILENT_NS };
    let given_up = async {
        loop {
            let until = answered.get().max(began).plus_ns(patience_ns).min(began.plus_ns(FAREWELL_NS));
            match until.since(now().mono) {
                0 => return,
                left_ns => tokio::time::sleep(Duration::from_nanos(left_ns)).await,
            }
        }
    };
    tokio::select! {
        () = given_up => {}
        () = coordination.hurried() => {}
    }
}

struct Background {
    shared: Arc<Shared>,
    coordination: Arc<Coordination>,
    pager: Arc<Pager>,
    line: Line,
    converge: Converge,
    roster: Roster,
    keepers: Vec<Kept>,
    heartbeat_ns: u64,
    window_ns: u64,
    beat_at_ns: u64,
    forget_at_ns: u64,
    eviction_at_ns: u64,
    count_at_ns: u64,
    unsent_rows: u64,
    card: Card,
    is_leaving: bool,
    /// Removals that were acted upon, and when each was.
    gone: HashMap<String, u64>,
    trouble: Said,
    generations_lost: u64,
    /// The store has heard our goodbye.
    has_left: bool,
    /// When the store last did what it was asked.
    answered: Rc<Cell<MonoNs>>,
}

impl Background {
    async fn serve(&mut self, mut inbox: Receiver<Command>) {
        let coordination = self.coordination.clone();
        let stopped = coordination.stopped();
        let mut stopped = std::pin::pin!(stopped);
        loop {
            while let Ok(command) = inbox.try_recv() {
                self.command(command).await;
            }
            if now().mono.0 >= self.beat_at_ns {
                self.beat().await;
            }
            self.exchange().await;
            self.look_at_eviction().await;
            self.forget();
            let now_ns = now().mono.0;
            // Where nothing is exchanged, a reload may arm a limit that asks for it.
            let exchange_ns = if self.exchanges() { self.converge.next_due().0 } else { now_ns + LOOK_NS };
            let wait = Duration::from_nanos(exchange_ns.min(self.beat_at_ns).saturating_sub(now_ns));
            tokio::select! {
                () = &mut stopped => return,
                command = inbox.recv() => match command {
                    Some(command) => self.command(command).await,
                    None => return,
                },
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Runs batches until nothing is due. A heartbeat that falls due in between goes first.
    async fn exchange(&mut self) {
        let (is_attached, exchanges) = (self.is_attached(), self.exchanges());
        loop {
            for told in self.coordination.fleet.convergence.take_told().chunks(AT_ONCE) {
                for own in told {
                    self.converge.own(own.scope, own.calendar, own.period, own.burn, own.rows);
                }
                tokio::task::yield_now().await;
            }
            let batch = if exchanges { self.converge.next_batch(now()) } else { Vec::new() };
            let sends = !batch.is_empty();
            if sends {
                self.run_batch(batch).await;
            }
            let now_ns = now().mono.0;
            if now_ns >= self.count_at_ns {
                self.count_at_ns = now_ns + COUNT_EVERY_NS;
                self.unsent_rows = self.converge.unsent_rows();
            }
            let convergence = &self.coordination.fleet.convergence;
            convergence.publish(is_attached, self.converge.flushed(), self.unsent_rows);
            if !sends || now().mono.0 >= self.beat_at_ns {
                return;
            }
        }
    }

    /// Whether there is a limit whose burn peers must know.
    fn is_attached(&self) -> bool {
        let rules = self.shared.rules.load();
        rules.limits.limits.iter().any(|limit| limit.kind.class() == Class::LedgerSettled)
    }

    /// Whether burn is exchanged. Not before the accountant has told what the ledger holds: our own cells would be taken
    /// for what it has lost.
    fn exchanges(&self) -> bool {
        self.is_attached() && self.coordination.fleet.convergence.has_told()
    }

    async fn run_batch(&mut self, batch: Vec<Job>) {
        let calls: Vec<Call> =
            batch.iter().map(|job| words::job(job, &self.card.ledger_id, &self.shared.replica.name)).collect();
        match self.line.run(&calls, WITHIN).await {
            Ok(answers) => {
                let now = now();
                let mut trouble = None;
                for (job, answer) in batch.iter().zip(&answers) {
                    match words::reply(job, answer) {
                        Some(reply) => self.converge.answer(job, reply, now),
                        None => {
                            trouble = Some(Failed::answered(answer));
                            self.converge.failed(job);
                        }
                    }
                }
                self.outcome(trouble.map_or(Ok(()), Err));
                self.say_if_the_store_began_anew();
                if self.coordination.fleet.convergence.heard(self.converge.take_terms()) {
                    self.pager.page();
                }
            }
            Err(error) => {
                self.outcome(Err(Failed::of(&error)));
                batch.iter().for_each(|job| self.converge.failed(job));
            }
        }
    }

    async fn beat(&mut self) {
        let began = now();
        self.beat_at_ns = began.mono.0.saturating_add(self.heartbeat_ns);
        let fleet = &self.coordination.fleet;
        let call = words::beat(&self.shared.replica.name, self.is_leaving, &fleet.nonce, &self.card);
        let answered = self.line.run(std::slice::from_ref(&call), WITHIN).await;
        let snapshot = match answered.map(|answers| answers.into_iter().next()) {
            Ok(Some(answer)) => words::snapshot(&answer).ok_or_else(|| Failed::answered(&answer)),
            Ok(None) => Err(Failed::Malformed),
            Err(error) => Err(Failed::of(&error)),
        };
        match snapshot {
            Ok(snapshot) => {
                let ended = now();
                // The store looked at its clock somewhere between the two: the middle is off by half the way at most.
                let middle_ms = began.wall.0 + (ended.wall.0 - began.wall.0) / 2;
                self.card.skew_ms =
                    middle_ms.saturating_sub(i64::try_from(snapshot.now_us / 1_000).unwrap_or(i64::MAX));
                self.outcome(Ok(()));
                self.has_left = self.is_leaving;
                let changed = self.roster.heard(snapshot, began.mono);
                self.forget_gone(ended.mono);
                self.show_roster(changed, ended.mono);
            }
            Err(failed) => self.outcome(Err(failed)),
        }
    }

    /// How a call ended, for the health page, and for the log when that is news.
    fn outcome(&mut self, outcome: Result<(), Failed>) {
        if outcome.is_ok() {
            self.answered.set(now().mono);
        }
        let said = self.trouble.outcome(outcome.as_ref().err());
        let page = &self.coordination.exchange_trouble;
        match (&outcome, said) {
            (Err(failed), _) => page.told(failed.words(), now().wall),
            (Ok(()), Some(_)) => page.clear(),
            (Ok(()), None) => {}
        }
        match (outcome, said) {
            (_, Some(Ok(()))) => tracing::info!("the shared store answers again: burn and heartbeats are exchanged"),
            (Err(failed), Some(Err(headline))) => tracing::warn!(
                error = failed.words(),
                "{headline}: burn and heartbeats wait; limits that need them say suspended when that lasts"
            ),
            _ => {}
        }
    }

    /// A store that was emptied, or replaced by an empty one, forgot counters: whoever looks for a burst finds it here.
    fn say_if_the_store_began_anew(&mut self) {
        let began_anew = self.converge.generations_lost();
        if began_anew > std::mem::replace(&mut self.generations_lost, began_anew) {
            tracing::warn!(
                "the shared store began from nothing (it was emptied, or restarted without its data): this replica's burn \
                 is published again, and peers' burn stays counted and is brought back where they do not publish it \
                 themselves; counters of `store: redis` started anew"
            );
        }
    }

    /// Somebody was decommissioned, here or elsewhere: what a lost store made us remember of it goes too. If it was this
    /// replica, which runs, its burn is not in the store any more.
    fn forget_gone(&mut self, now: MonoNs) {
        for (id, at_us) in self.roster.gone() {
            if self.gone.get(&id).is_some_and(|known_us| *known_us >= at_us) {
                continue; // it may have been removed, come back, and gone again
            }
            if id != self.shared.replica.name {
                self.converge.forget_replica(&id, now);
            } else if self.converge.publish_again(now) {
                tracing::warn!(
                    "this replica was decommissioned while it runs: it is on the roster again, and everything it burned \
                     in running periods is published again"
                );
            }
            self.gone.insert(id, at_us);
        }
        if self.coordination.fleet.convergence.heard(self.converge.take_terms()) {
            self.pager.page();
        }
    }

    fn show_roster(&mut self, changed: bool, now: MonoNs) {
        let fleet = &self.coordination.fleet;
        if let Some(as_of) = self.roster.as_of() {
            self.coordination.membership.publish(self.roster.n_live(), as_of);
        }
        let had_conflict = fleet.conflict(now).is_some();
        let conflict = self.roster.has_conflict(now);
        if conflict && !had_conflict {
            tracing::error!(
                replica = self.shared.replica.name,
                "another live process uses this replica's name or a copy of its ledger folder: they overwrite each \
                 other's published burn; give each process its own replica.name and data_dir"
            );
        }
        // Until the heartbeat after next: by then it is seen again, or it is over.
        fleet.publish_conflict(conflict.then(|| now.plus_ns(self.heartbeat_ns.saturating_mul(2))));
        fleet.roster.publish(self.roster.clone(), changed);
        for keeper in &mut self.keepers {
            keeper.keep(&self.coordination, now);
        }
    }

    async fn command(&mut self, command: Command) {
        match command {
            Command::Leave => {
                self.is_leaving = true;
                self.beat().await;
            }
            Command::Remember(rows) => {
                let changed = self.roster.remember(rows.entries, &rows.gone);
                self.show_roster(changed, now().mono);
            }
            Command::Decommission { replica, force, answer } => {
                let _ = answer.send(self.decommission(&replica, force).await); // whoever asked may have gone
            }
            Command::Peers { answer } => {
                let mut peers: Vec<PeerShown> = Vec::new();
                for part in 0..PARTS {
                    peers.extend(self.converge.peers(part, now().mono));
                    tokio::task::yield_now().await;
                }
                let _ = answer.send(peers); // as above
            }
        }
    }

    async fn decommission(&mut self, replica: &str, force: bool) -> Result<Dropped, NotRemoved> {
        let mut places = Vec::new();
        let mut has_burn = false;
        for part in 0..PARTS {
            has_burn |= self.converge.peers(part, now().mono).any(|peer| peer.cell.replica == replica);
            places.extend(self.converge.places(part));
            tokio::task::yield_now().await;
        }
        if self.roster.find(replica).is_none() && !has_burn {
            return Err(NotRemoved::Unknown);
        }
        let unreachable = |trouble: Trouble| NotRemoved::Unreachable(trouble.to_string());
        // A purge takes what the store has: in one that is being told again, it would drop the rest without a word.
        let generation = self.generation().await?;
        if generation.is_some_and(|(store_us, since)| self.converge.is_refilling(since, store_us, now().mono)) {
            return Err(NotRemoved::Refilling);
        }
        let call = words::decommission(replica, self.window_ns, force);
        let answers = self.line.run(&[call], WITHIN).await.map_err(unreachable)?;
        let (at_us, beat) = match answers.first().and_then(words::removal) {
            Some(Removal::Live) => return Err(NotRemoved::Live),
            Some(Removal::Gone { at_us, beat }) => (at_us, beat),
            None => {
                let error = answers.first().and_then(Answer::error);
                return Err(NotRemoved::Unreachable(error.unwrap_or_else(|| "a malformed reply".to_owned())));
            }
        };
        // From the store's own entry: our roster is as old as our last heartbeat, and a replica that said goodbye since
        // would still be live in it. Only a store that knew nothing of it leaves us with ours.
        let state = match beat {
            Some(beat) => Some(self.roster.state_of(&beat, at_us)),
            None => self.roster.find(replica).map(|entry| self.roster.state_at(entry, at_us)),
        };
        let mut dropped = Dropped { state, cells: Vec::new() };
        for batch in places.chunks(BATCH) {
            let purge =
                |(scope, calendar, period): &(_, _, _)| words::purge(replica, at_us, *scope, *calendar, *period);
            let calls: Vec<Call> = batch.iter().map(purge).collect();
            let answers = self.line.run(&calls, WITHIN).await.map_err(unreachable)?;
            for ((scope, calendar, period), answer) in batch.iter().zip(&answers) {
                dropped.cells.extend(words::purged(answer).into_iter().map(|cell| (*scope, *calendar, *period, cell)));
            }
        }
        if self.generation().await?.map(|(_, since)| since) != generation.map(|(_, since)| since) {
            return Err(NotRemoved::Unreachable("it lost its data meanwhile".to_owned()));
        }
        self.beat().await; // the roster without it, at once
        Ok(dropped)
    }

    /// The store's clock, and since when it has what it has; `None` where no burn is exchanged.
    async fn generation(&mut self) -> Result<Option<(u64, u64)>, NotRemoved> {
        if !self.is_attached() {
            return Ok(None);
        }
        let answers = self.line.run(&[words::generation()], WITHIN).await;
        let answers = answers.map_err(|trouble: Trouble| NotRemoved::Unreachable(trouble.to_string()))?;
        let begun = answers.first().and_then(words::begun);
        let said = || answers.first().and_then(Answer::error).unwrap_or_else(|| "a malformed reply".to_owned());
        begun.map(Some).ok_or_else(|| NotRemoved::Unreachable(said()))
    }

    /// A store that evicts keys when it is full forgets counters and burn without a word: said on the health page.
    async fn look_at_eviction(&mut self) {
        let now = now();
        if now.mono.0 < self.eviction_at_ns || self.trouble.is_out() {
            return;
        }
        self.eviction_at_ns = now.mono.0 + EVICTION_EVERY_NS;
        // A server that does not tell us (an ACL) is taken to know what it does.
        let Ok(answer) = self.line.command(&[b"INFO", b"memory"], WITHIN).await else { return };
        let text = answer.bytes().map(String::from_utf8_lossy).unwrap_or_default();
        let field =
            |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim);
        let policy = field("maxmemory_policy").unwrap_or("noeviction");
        let may_evict = policy != "noeviction" && field("maxmemory").unwrap_or("0") != "0";
        self.coordination.fleet.publish_eviction(may_evict.then(|| policy.to_owned()));
    }

    /// Drops what no counter and no period needs any more.
    fn forget(&mut self) {
        let now = now();
        if now.mono.0 < self.forget_at_ns {
            return;
        }
        self.forget_at_ns = now.mono.0 + FORGET_EVERY_NS;
        let registry = &self.shared.registry;
        self.coordination.fleet.convergence.terms.forget(now.wall, |key| registry.get(key).is_some());
    }

    /// The process ends: the last burn out, and goodbye, where a drain has not said it. Whoever awaits this gives it up when it
    /// takes too long.
    async fn take_leave(&mut self) {
        self.is_leaving = true;
        self.exchange().await; // takes in what the accountant told last
        self.converge.flush_all(now());
        while self.exchanges() && !self.converge.is_flushed() {
            self.exchange().await;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        if !self.has_left {
            self.beat().await;
        }
    }

    /// Of the leave that was taken.
    fn tell_what_was_not_heard(&mut self) {
        for own in self.coordination.fleet.convergence.take_told() {
            self.converge.own(own.scope, own.calendar, own.period, own.burn, own.rows);
        }
        if self.exchanges() && !self.converge.is_flushed() {
            tracing::warn!(rows = self.converge.unsent_rows(), "burn that peers did not hear of; it is in the ledger");
        }
        if !self.has_left {
            tracing::warn!("peers did not hear the goodbye; a liveness window of silence tells them");
        }
    }
}

fn now() -> Now {
    Now { mono: MonoNs(clock::mono_ns()), wall: WallMs(clock::wall_ms()) }
}

//! The background connection: heartbeats, and the exchange of burn with peers. Waits for nobody's request.
//!
//! One task, one thing at a time: a batch of scripts or a heartbeat is under way, never both. What to ask and when is
//! decided in `shards::converge` and `shards::membership`; this carries their words to Redis and back.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use io::clock;
use io::redis::{Call, Endpoint, Line, Reply as Answer, Script, Trouble};
use io::ring::Pager;
use shards::converge::{
    BATCH, CALENDARS, CellSeen, Cells, Changes, Converge, Job, LOOK_NS, PARTS, PeerShown, Reply, ScopeHash,
};
use shards::coordinate::numbers::BACKGROUND_DEADLINE_NS;
use shards::limit::{Calendar, Class};
use shards::membership::roster::{Beat, Card, GONE_KEPT_US, Roster, Snapshot, State};
use shards::units::{MonoNs, Now, WallMs};
use tokio::sync::mpsc::Receiver;

use crate::coordination::Coordination;
use crate::coordination::fleet::{Command, Dropped, NotRemoved};
use crate::coordination::roster::RosterKeeper;
use crate::shared::Shared;

/// How long any call may take.
const WITHIN: Duration = Duration::from_nanos(BACKGROUND_DEADLINE_NS);
/// A stop waits for the last publication this long, then goes without it: the ledger has it, and the next start or an
/// operator's decommission settles it.
const FAREWELL_NS: u64 = 2_000_000_000;
/// Changed scopes a look asks for at once, per index.
const PAGE: usize = 2_000;
/// Cells outlive their period by a day.
const KEEP_CELLS_MS: i64 = 86_400_000;
/// The store's generation is renewed with every look; a store without replicas for a day has none.
const KEEP_GENERATION_MS: u64 = 86_400_000;
/// A fleet that is off this long is remembered by its copies only.
const KEEP_FLEET_MS: u64 = 86_400_000;
/// Unpublished rows are counted for pages this often.
const COUNT_EVERY_NS: u64 = 250_000_000;
/// How often the store is asked whether it may evict keys.
const EVICTION_EVERY_NS: u64 = 60_000_000_000;
/// A copy of the roster is written at most this often.
const KEEP_AGAIN_NS: u64 = 1_000_000_000;
/// Claims of counters that were swept are looked for this often.
const FORGET_EVERY_NS: u64 = 60_000_000_000;

/// Scopes worked on before an admission, which is answered on this thread too, may go first: 0.1 ms.
const AT_ONCE: usize = 512;

// One hash slot for keys that one script uses together, so that a cluster's node takes them.
const GENERATION: &str = "tt:{burn}:generation";
const CELLS: &str = "tt:{burn}:cells";
const INDEX: &str = "tt:{burn}:index";
const FLEET: &str = "tt:{fleet}:roster";
const GONE: &str = "tt:{fleet}:gone";

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
        gone: HashSet::new(),
        trouble: Said::default(),
        generations_lost: 0,
    };
    background.serve(inbox).await;
    background.take_leave().await;
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
    /// Removals that were acted upon.
    gone: HashSet<String>,
    trouble: Said,
    generations_lost: u64,
}

/// One copy of the roster, and which version it holds. Never awaited: a disk or a database that is slow must not delay
/// admissions, which this thread answers too.
struct Kept {
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
    fn new(keeper: Arc<dyn RosterKeeper>, coordination: &Arc<Coordination>) -> Kept {
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
    fn keep(&mut self, coordination: &Arc<Coordination>, now: MonoNs) {
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

/// Why a call came to nothing.
#[derive(Debug, PartialEq, Eq)]
enum Failed {
    /// No answer: the way there, or a server that hangs.
    Silent(String),
    /// An answer, and it is an error: a full memory, a wrong password, a server that is loading.
    Refused(String),
    /// An answer in words we do not know.
    Malformed,
}

impl Failed {
    fn of(trouble: &Trouble) -> Failed {
        match trouble {
            Trouble::Refused(error) => Failed::Refused(error.clone()),
            trouble => Failed::Silent(trouble.to_string()),
        }
    }

    fn answered(answer: &Answer) -> Failed {
        answer.error().map_or(Failed::Malformed, Failed::Refused)
    }

    fn words(&self) -> &str {
        match self {
            Failed::Silent(error) | Failed::Refused(error) => error,
            Failed::Malformed => "a malformed reply",
        }
    }

    /// What the operator looks for next: the network, or what the server says.
    fn headline(&self) -> &'static str {
        match self {
            Failed::Silent(_) => "the shared store does not answer",
            Failed::Refused(_) => "the shared store answers with an error",
            Failed::Malformed => "the shared store answers in words we do not know",
        }
    }
}

/// What was said of an outage: once when it begins, once when it becomes another one, once when it ends.
#[derive(Default)]
struct Said(Option<&'static str>);

impl Said {
    /// What is to be said now, if anything: `Ok` for an end.
    fn outcome(&mut self, failed: Option<&Failed>) -> Option<Result<(), &'static str>> {
        let now = failed.map(Failed::headline);
        let before = std::mem::replace(&mut self.0, now);
        (now != before).then(|| now.map_or(Ok(()), Err))
    }
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
        let calls: Vec<Call> = batch.iter().map(|job| self.call(job)).collect();
        match self.line.run(&calls, WITHIN).await {
            Ok(answers) => {
                let now = now();
                let mut trouble = None;
                for (job, answer) in batch.iter().zip(&answers) {
                    match reply(job, answer) {
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

    fn call(&self, job: &Job) -> Call {
        let text = |number: u64| number.to_string().into_bytes();
        match job {
            Job::Changed { indexes } => {
                let mut keys = vec![GENERATION.as_bytes().to_vec()];
                let mut args = vec![text(PAGE as u64), text(KEEP_GENERATION_MS)];
                for (calendar, start, since) in indexes {
                    keys.push(index_key(*calendar, *start));
                    args.push(text(*since));
                }
                Call { script: Script::Changes, keys, args }
            }
            Job::Publish { scope, calendar, period, burn, rows, is_first } => Call {
                script: Script::Publish,
                keys: cell_keys(*scope, *calendar, period.start),
                args: vec![
                    self.card.ledger_id.clone().into_bytes(),
                    self.shared.replica.name.clone().into_bytes(),
                    text(*burn),
                    text(*rows),
                    period.end.0.saturating_add(KEEP_CELLS_MS).to_string().into_bytes(),
                    scope.hex().to_vec(),
                    text(u64::from(*is_first)),
                ],
            },
            Job::Read { scope, calendar, period } => Call {
                script: Script::Cells,
                keys: cell_keys(*scope, *calendar, period.start),
                args: vec![scope.hex().to_vec()],
            },
        }
    }

    async fn beat(&mut self) {
        let began = now();
        self.beat_at_ns = began.mono.0.saturating_add(self.heartbeat_ns);
        let call = Call {
            script: Script::Beat,
            keys: vec![FLEET.into(), GONE.into()],
            args: vec![
                self.shared.replica.name.clone().into_bytes(),
                (if self.is_leaving { "drained" } else { "live" }).into(),
                self.coordination.fleet.nonce.clone().into_bytes(),
                serde_json::to_vec(&self.card).unwrap_or_default(), // strings and numbers always become JSON
                KEEP_FLEET_MS.to_string().into_bytes(),
            ],
        };
        let answered = self.line.run(std::slice::from_ref(&call), WITHIN).await;
        let snapshot = match answered.map(|answers| answers.into_iter().next()) {
            Ok(Some(answer)) => snapshot(&answer).ok_or_else(|| Failed::answered(&answer)),
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
                let changed = self.roster.heard(snapshot, began.mono);
                self.forget_gone(ended.mono);
                self.show_roster(changed, ended.mono);
            }
            Err(failed) => self.outcome(Err(failed)),
        }
    }

    /// How a call ended, for the health page, and for the log when that is news.
    fn outcome(&mut self, outcome: Result<(), Failed>) {
        let said = self.trouble.outcome(outcome.as_ref().err());
        let page = &self.coordination.exchange_trouble;
        match (&outcome, said) {
            (Err(failed), _) => drop(page.told(failed.words(), now().wall)),
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
                 is published again and peers' burn stays counted; counters of `store: redis` started anew"
            );
        }
    }

    /// Somebody was decommissioned, here or elsewhere: what a lost store made us remember of it goes too.
    fn forget_gone(&mut self, now: MonoNs) {
        let fresh: Vec<String> =
            self.roster.gone().into_iter().map(|(id, _)| id).filter(|id| !self.gone.contains(id)).collect();
        for id in fresh {
            self.converge.forget_replica(&id, now);
            self.gone.insert(id);
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
        let call = Call {
            script: Script::Decommission,
            keys: vec![FLEET.into(), GONE.into()],
            args: vec![
                replica.into(),
                (self.window_ns / 1_000).to_string().into_bytes(),
                u8::from(force).to_string().into_bytes(),
                (GONE_KEPT_US / 1_000).to_string().into_bytes(),
            ],
        };
        let answers = self.line.run(&[call], WITHIN).await.map_err(unreachable)?;
        let items = answers.first().and_then(Answer::array).unwrap_or_default();
        match items.first().and_then(Answer::bytes) {
            Some(b"live") => return Err(NotRemoved::Live),
            Some(b"gone") => {}
            _ => {
                let error = answers.first().and_then(Answer::error);
                return Err(NotRemoved::Unreachable(error.unwrap_or_else(|| "a malformed reply".to_owned())));
            }
        }
        let mut dropped = Dropped { state: self.state_when_removed(replica, items), cells: Vec::new() };
        for batch in places.chunks(BATCH) {
            let calls: Vec<Call> = batch
                .iter()
                .map(|(scope, calendar, period)| Call {
                    script: Script::Purge,
                    keys: vec![cells_key(*scope, period.start), index_key(*calendar, period.start)],
                    args: vec![replica.into(), scope.hex().to_vec()],
                })
                .collect();
            let answers = self.line.run(&calls, WITHIN).await.map_err(unreachable)?;
            for ((scope, calendar, period), answer) in batch.iter().zip(&answers) {
                let cells = answer.array().map(pairs).unwrap_or_default();
                let cells = cells.into_iter().filter_map(|(ledger, cell)| CellSeen::parse(&ledger, &cell));
                dropped.cells.extend(cells.map(|cell| (*scope, *calendar, *period, cell)));
            }
        }
        self.gone.remove(replica); // it may have been removed, come back, and gone again
        self.beat().await; // the roster without it, at once
        Ok(dropped)
    }

    /// What a removed replica was, from the store's own entry: our roster is as old as our last heartbeat, and one that
    /// said goodbye since would still be live in it. Only a store that knew nothing of it leaves us with ours.
    fn state_when_removed(&self, replica: &str, removal: &[Answer]) -> Option<State> {
        let at_us = removal.get(1).and_then(string).and_then(|at| at.parse().ok());
        let beat = removal.get(2).and_then(string).and_then(|entry| Beat::parse(&entry));
        match (beat, at_us) {
            (Some(beat), Some(at_us)) => Some(self.roster.state_of(&beat, at_us)),
            _ => self.roster.find(replica).map(|entry| self.roster.state(entry, now().mono)),
        }
    }

    /// A store that evicts keys when it is full forgets counters and burn without a word: said on the health page.
    async fn look_at_eviction(&mut self) {
        let now = now();
        if now.mono.0 < self.eviction_at_ns || self.trouble.0.is_some() {
            return;
        }
        self.eviction_at_ns = now.mono.0 + EVICTION_EVERY_NS;
        // A server that does not tell us (an ACL) is taken to know what it does.
        let Ok(answer) = self.line.command(&[b"INFO", b"memory"], WITHIN).await else { return };
        let text = string(&answer).unwrap_or_default();
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

    /// The process ends: the last burn out, and goodbye.
    async fn take_leave(&mut self) {
        let until_ns = now().mono.0 + FAREWELL_NS;
        self.is_leaving = true;
        self.beat().await;
        self.exchange().await; // takes in what the accountant told last
        self.converge.flush_all(now());
        while self.exchanges() && !self.converge.is_flushed() && now().mono.0 < until_ns {
            self.exchange().await;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        if self.exchanges() && !self.converge.is_flushed() {
            tracing::warn!(rows = self.converge.unsent_rows(), "burn that peers did not hear of; it is in the ledger");
        }
    }
}

fn now() -> Now {
    Now { mono: MonoNs(clock::mono_ns()), wall: WallMs(clock::wall_ms()) }
}

fn cell_keys(scope: ScopeHash, calendar: Calendar, start: WallMs) -> Vec<Vec<u8>> {
    vec![cells_key(scope, start), index_key(calendar, start), GENERATION.into()]
}

fn cells_key(scope: ScopeHash, start: WallMs) -> Vec<u8> {
    format!("{CELLS}:{scope}:{}", start.0).into_bytes()
}

fn index_key(calendar: Calendar, start: WallMs) -> Vec<u8> {
    format!("{INDEX}:{}:{}", calendar.as_str(), start.0).into_bytes()
}

fn number(answer: &Answer) -> Option<u64> {
    answer.integer().and_then(|number| u64::try_from(number).ok())
}

fn string(answer: &Answer) -> Option<String> {
    answer.bytes().and_then(|bytes| std::str::from_utf8(bytes).ok()).map(str::to_owned)
}

/// `[a, 1, b, 2]` as pairs of text. Whatever is no text is left out.
fn pairs(items: &[Answer]) -> Vec<(String, String)> {
    items.chunks_exact(2).filter_map(|pair| Some((string(&pair[0])?, string(&pair[1])?))).collect()
}

/// What a script's answer says; `None` for anything it cannot say.
fn reply(job: &Job, answer: &Answer) -> Option<Reply> {
    let items = answer.array()?;
    let (now_us, second) = (number(items.first()?)?, number(items.get(1)?)?);
    let rest = items.get(2..)?;
    if !matches!(job, Job::Changed { .. }) {
        let score = number(rest.first()?)?;
        let cells: Option<Vec<CellSeen>> = rest
            .get(1..)?
            .chunks(2)
            .map(|pair| {
                let [ledger, cell] = pair else { return None };
                CellSeen::parse(&string(ledger)?, &string(cell)?)
            })
            .collect();
        return Some(Reply::Cells(Cells { now_us, generation: second, score, cells: cells? }));
    }
    let mut indexes: [Vec<(ScopeHash, u64)>; CALENDARS.len()] = Default::default();
    if rest.len() != indexes.len() {
        return None;
    }
    for (index, found) in indexes.iter_mut().zip(rest) {
        for pair in found.array()?.chunks(2) {
            let [scope, score] = pair else { return None };
            // A score is a double: 1.7e15 comes back in digits, and without a fraction.
            let score: f64 = string(score)?.parse().ok()?;
            index.push((ScopeHash::parse(&string(scope)?)?, score as u64));
        }
    }
    Some(Reply::Changes(Changes { now_us, generation: second, indexes, page: PAGE }))
}

/// What a heartbeat's answer says. Entries that no version of ours has written are left out: one of them must not make
/// the rest of the fleet invisible.
fn snapshot(answer: &Answer) -> Option<Snapshot> {
    let items = answer.array()?;
    let before = string(items.get(1)?)?;
    let beats = pairs(items.get(2)?.array()?);
    let gone = pairs(items.get(3)?.array()?);
    Some(Snapshot {
        now_us: number(items.first()?)?,
        before: Beat::parse(&before),
        beats: beats.into_iter().filter_map(|(id, beat)| Some((id, Beat::parse(&beat)?))).collect(),
        gone: gone.into_iter().filter_map(|(id, at)| Some((id, at.parse().ok()?))).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_answer() -> impl Strategy<Value = Answer> {
        let text = prop_oneof![
            any::<Vec<u8>>(),
            "[0-9a-f]{32}".prop_map(String::into_bytes),
            "[0-9]{1,20}".prop_map(String::into_bytes),
            "[0-9]{1,20} [0-9]{1,20} [0-9]{1,3} [0-9]{1,16} tt-[a-z]".prop_map(String::into_bytes),
            "[0-9]{1,16} (live|drained) n [{}]*".prop_map(String::into_bytes),
            Just(b"nan".to_vec()),
            Just(b"-1e300".to_vec()),
        ];
        let leaf = prop_oneof![
            4 => text.prop_map(Answer::Bulk),
            1 => any::<i64>().prop_map(Answer::Integer),
            1 => Just(Answer::Nil),
            1 => Just(Answer::Error(b"ERR no".to_vec())),
        ];
        leaf.prop_recursive(3, 64, 8, |inner| proptest::collection::vec(inner, 0..8).prop_map(Answer::Array))
    }

    fn jobs() -> [Job; 2] {
        let period = shards::accountant::period_of(Calendar::Day, WallMs(0));
        let indexes = CALENDARS.map(|calendar| (calendar, WallMs(0), 0));
        [Job::Changed { indexes }, Job::Read { scope: ScopeHash([1; 16]), calendar: Calendar::Day, period }]
    }

    proptest! {
        #[test]
        fn no_answer_of_a_store_does_harm(answer in any_answer(), parts in proptest::collection::vec(any_answer(), 7)) {
            let now = Now { mono: MonoNs(1), wall: WallMs(1) };
            for answer in [answer, Answer::Array(parts)] {
                let mut roster = Roster::new("a", "n", "l", 1);
                if let Some(snapshot) = snapshot(&answer) {
                    roster.heard(snapshot, now.mono);
                }
                prop_assert!(roster.n_live() >= 1);
                for job in jobs() {
                    let mut converge = Converge::new("l", 0, now.mono);
                    let _ = converge.next_batch(now);
                    match reply(&job, &answer) {
                        Some(reply) => converge.answer(&job, reply, now),
                        None => converge.failed(&job),
                    }
                    let _ = (converge.take_terms(), converge.next_batch(now));
                }
            }
        }
    }

    #[test]
    fn an_outage_is_said_once_for_each_kind_and_in_the_words_of_the_server() {
        let mut said = Said::default();
        let full =
            Failed::answered(&Answer::Error(b"OOM command not allowed when used memory > 'maxmemory'.".to_vec()));
        assert_eq!(full.words(), "OOM command not allowed when used memory > 'maxmemory'.");
        assert_eq!(said.outcome(Some(&full)), Some(Err("the shared store answers with an error")));
        assert_eq!(said.outcome(Some(&full)), None);
        let gone = Failed::of(&Trouble::Closed);
        assert_eq!(said.outcome(Some(&gone)), Some(Err("the shared store does not answer")));
        assert_eq!((said.outcome(None), said.outcome(None)), (Some(Ok(())), None));
        assert_eq!(Failed::answered(&Answer::Nil).words(), "a malformed reply");
    }

    #[test]
    fn keys_name_nobody_and_share_a_slot_where_a_script_uses_them_together() {
        let key = String::from_utf8(cells_key(ScopeHash([0xab; 16]), WallMs(5))).unwrap();
        assert_eq!(key, format!("tt:{{burn}}:cells:{}:5", "ab".repeat(16)));
        assert_eq!(index_key(Calendar::Month, WallMs(5)), b"tt:{burn}:index:month:5");
        assert!([GENERATION, CELLS, INDEX].iter().all(|key| key.starts_with("tt:{burn}:")));
        assert!([FLEET, GONE].iter().all(|key| key.starts_with("tt:{fleet}:")));
    }
}

//! One replica with its ledger: virtual cores run the real gates and settlements and hand rows over bounded tees, a
//! virtual accountant numbers, writes, folds and publishes them with the real folder, rollups and checkpoints, the disk
//! fills up, the clock rolls over hours, limits come and go by reload, and the process dies in between.
//!
//! Beside it runs a plain list of the rows, added up anew after every step. Held at every step: no more in flight than
//! the cap and no refusal below it, no rate above burst and what time re-earned, no budget refused before it was spent,
//! every meter equal to the rows it stands for, and no nano-dollar unaccounted: what was settled is in a tee, dropped and
//! counted, or folded. A failure names its seed; `SIM_SEED=17 cargo test -p shards --test sim_ledger` runs that alone.

#[path = "sim_ledger/accountant.rs"]
mod accountant;
mod support;

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use compact_str::CompactString;
use shards::accountant::{Checkpoint, Folder, GroupBy, LedgerPosition, Query, Rollup, period_of};
use shards::gate::{Ask, Passed, Verdict, after_parse, before_body};
use shards::limit::{Limit, LimitDecl, LimitType, Period};
use shards::meter::{METER_TRUST_NS, MeterBeat};
use shards::plan::{Counter, LimitSet};
use shards::price::PriceSource;
use shards::refusal::Refusal;
use shards::registry::Registry;
use shards::row::{Decision, Outcome, RefusedBy, RequestId, Row, decode_facts, encode};
use shards::scope::{Endpoint, Node};
use shards::settle::{OutputBound, Settlement};
use shards::units::{MonoNs, NanoUsd, Now, WallMs};
use shards::usage::{Usage, UsageSource};
use support::dice::{Dice, each_seed, only_seed};
use support::{BOOT, SECOND_NS, decl, limits, node, shadow};

const CORES: usize = 3;
const STEPS: u32 = 3_000;
/// Rows between a core and the accountant, in its ring and in its overflow.
const TEE_ROWS: usize = 8;
const SEGMENT_ROWS: usize = 40;
/// Lines that may wait for a disk that takes none.
const WAITING_ROWS_MAX: usize = 10;
const CALLERS: [&str; 4] =
    ["org:acme/team:ml/user:ann", "org:acme/team:ml/user:bob", "org:acme/team:web/user:cid", "org:beta"];
const START_NS: u64 = 1_000 * SECOND_NS;
const CENT: u64 = 10_000_000;

/// The limit that a reload adds and removes.
const LATE: &str = "late_usd";

fn by_the(decl: LimitDecl, period: &str) -> LimitDecl {
    LimitDecl { period: Some(period.to_owned()), ..decl }
}

fn configured(with_late: bool) -> Vec<LimitDecl> {
    let mut decls = vec![
        LimitDecl { burst: Some("6".into()), ..decl("user_rpm", "rpm", "level:user", "120") },
        decl("team_slots", "concurrency", "level:team", "3"),
        shadow(decl("trial_slots", "concurrency", "__global", "2")),
        decl("org_tpm", "tpm", "level:org", "20000"),
        by_the(decl("team_usd", "budget_usd", "level:team", "3"), "hour"),
        by_the(decl("org_tokens", "quota_tokens", "org:acme", "20000"), "day"),
        by_the(decl("beta_requests", "quota_requests", "org:beta", "9"), "hour"),
        shadow(by_the(decl("all_usd", "budget_usd", "__global", "1"), "year")),
    ];
    if with_late {
        decls.push(by_the(decl(LATE, "budget_usd", "org:acme", "3"), "day"));
    }
    decls
}

/// A row that was folded, as the model keeps it.
#[derive(Clone)]
struct Folded {
    row: Row,
    /// The disk took none for too long: spent, and in no file.
    given_up: bool,
    /// Given up before the open segment began: no rollup holds it any more.
    is_forgotten: bool,
    /// It was forgotten when [`LATE`] was added.
    is_missed_by_late: bool,
}

struct Segment {
    first_seq: u64,
    lines: Vec<Vec<u8>>,
    rollup: Option<Vec<u8>>,
}

#[derive(Default)]
struct Disk {
    segments: Vec<Segment>,
    checkpoint: Option<Vec<u8>>,
    is_full: bool,
}

/// By limit, node and the period's start.
type Sums = BTreeMap<(Arc<str>, Node, WallMs), u64>;

/// What the model knows of the checkpoint on disk.
#[derive(Clone, Default)]
struct Checkpointed {
    given_up: Vec<Folded>,
    knows_late: bool,
}

#[derive(Default)]
struct Core {
    running: Vec<Request>,
    tee: VecDeque<Row>,
}

struct Request {
    passed: Passed,
    leases: Vec<String>,
    row: Row,
    is_parsed: bool,
}

/// What `src/accountant_core.rs` does with a batch, without its disk and clock.
struct Accountant {
    folder: Folder,
    next_seq: u64,
    waiting: Vec<(u64, Vec<u8>)>,
    /// The open rollup is the sum of its segment's lines and nothing else.
    is_exact: bool,
}

struct World {
    set: LimitSet,
    registry: Registry,
    beat: MeterBeat,
    beat_ns: u64,
    now_ns: u64,
    life_began_ns: u64,
    cores: [Core; CORES],
    accountant: Accountant,
    disk: Disk,
    has_late: bool,
    // The model.
    folded: Vec<Folded>,
    /// What [`World::spent`] has added up since the list last changed.
    sums: RefCell<Sums>,
    checkpointed: Checkpointed,
    in_flight: BTreeMap<String, u64>,
    rpm_admitted: BTreeMap<String, u64>,
    settled_nanousd: u64,
    taken_nanousd: u64,
    dropped_nanousd: u64,
    given_up_nanousd: u64,
    lost_nanousd: u64,
    seen: BTreeMap<String, u64>,
}

fn cost_of(row: &Row) -> u64 {
    row.cost.map_or(0, |cost| cost.0)
}

fn costs<'a>(rows: impl IntoIterator<Item = &'a Row>) -> u64 {
    rows.into_iter().map(cost_of).sum()
}

fn rollup_of(segment: &Segment) -> Rollup {
    if let Some(bytes) = &segment.rollup {
        return Rollup::decode(bytes).expect("a rollup we wrote");
    }
    let mut rollup = Rollup::default();
    for line in &segment.lines {
        rollup.add(&decode_facts(line).expect("a line we wrote")).expect("its node is one");
    }
    rollup
}

impl World {
    fn new() -> World {
        let (set, registry) = (limits(&configured(false)), Registry::new());
        let mut folder = Folder::new();
        folder.arm(Arc::new(set.clone()), &registry, BOOT);
        folder.caught_up();
        let beat = MeterBeat::new();
        beat.beat(MonoNs(START_NS));
        World {
            set,
            registry,
            beat,
            beat_ns: START_NS,
            now_ns: START_NS,
            life_began_ns: START_NS,
            cores: Default::default(),
            accountant: Accountant { folder, next_seq: 1, waiting: Vec::new(), is_exact: true },
            disk: Disk::default(),
            has_late: false,
            folded: Vec::new(),
            sums: RefCell::default(),
            checkpointed: Checkpointed::default(),
            in_flight: BTreeMap::new(),
            rpm_admitted: BTreeMap::new(),
            settled_nanousd: 0,
            taken_nanousd: 0,
            dropped_nanousd: 0,
            given_up_nanousd: 0,
            lost_nanousd: 0,
            seen: BTreeMap::new(),
        }
    }

    fn saw(&mut self, what: &str) {
        *self.seen.entry(what.to_owned()).or_default() += 1;
    }

    fn wall(&self) -> WallMs {
        WallMs(BOOT.0 + ((self.now_ns - START_NS) / 1_000_000) as i64)
    }

    /// A core acts on the monotonic clock it read a moment ago.
    fn now(&self, dice: &mut Dice) -> Now {
        let mono = self.now_ns.saturating_sub(dice.roll(5_000_000)).max(self.life_began_ns);
        Now { mono: MonoNs(mono), wall: self.wall() }
    }

    fn step(&mut self, dice: &mut Dice) {
        self.now_ns += match dice.roll(400) {
            0 => dice.roll(2 * 3_600 * SECOND_NS), // over the hour, and now and then over midnight
            1..4 => dice.roll(60 * SECOND_NS),     // longer than stale meters are trusted
            4..200 => dice.roll(SECOND_NS / 5),
            _ => 0,
        };
        let core = dice.roll(CORES as u64) as usize;
        match dice.roll(100) {
            0..30 => self.arrive(core, dice),
            30..80 => self.go_on(core, dice),
            80..93 => self.account(dice),
            93 => self.checkpoint(),
            94 => self.disk.is_full = !self.disk.is_full && dice.roll(2) == 0,
            95 => self.reload(),
            96 => self.republish(),
            97 if dice.roll(4) == 0 => self.die(),
            98 if dice.roll(4) == 0 => self.restart_cleanly(dice),
            _ => {}
        }
        self.compare();
    }

    // ---- the cores

    fn arrive(&mut self, core: usize, dice: &mut Dice) {
        let caller = CALLERS[dice.roll(CALLERS.len() as u64) as usize];
        let now = self.now(dice);
        let plan = self.set.plan_for(&node(caller), Endpoint::Messages, &self.registry);
        let mut passed = Passed::default();
        // The contract's walk, in the order of the plan.
        let (mut want, mut leases) = (None, Vec::new());
        for armed in &plan.before_body {
            let scope = format!("{} {}", armed.limit.id, armed.node);
            match &armed.counter {
                Counter::Cell(cell)
                    if cell.peek(armed.limit.rate.as_ref().expect("a rate"), now.mono).remaining == 0 =>
                {
                    want = Some(scope);
                    break;
                }
                Counter::Cell(_) => *self.rpm_admitted.entry(scope).or_default() += 1,
                Counter::Gauge(_) => {
                    let used = self.in_flight.entry(scope.clone()).or_default();
                    if *used >= armed.limit.amount && armed.limit.is_enforcing() {
                        want = Some(scope);
                        break;
                    }
                    *used += 1;
                    leases.push(scope);
                }
                Counter::Meter(_) => unreachable!("gate A reads no meter"),
            }
        }
        let verdict = before_body(&plan, now, 1, &mut passed);
        let mut request = Request { passed, leases, row: self.row(caller, now, dice), is_parsed: false };
        match self.agree(verdict, want) {
            None => self.cores[core].running.push(request),
            Some(refusal) => {
                self.give_back(&mut request.leases);
                self.refuse(core, request, &refusal);
            }
        }
    }

    fn go_on(&mut self, core: usize, dice: &mut Dice) {
        let running = &mut self.cores[core].running;
        if running.is_empty() {
            return;
        }
        let request = running.swap_remove(dice.roll(running.len() as u64) as usize);
        if request.is_parsed { self.finish(core, request, dice) } else { self.parse(core, request, dice) }
    }

    fn parse(&mut self, core: usize, mut request: Request, dice: &mut Dice) {
        let now = self.now(dice);
        let plan = self.set.plan_for(&request.row.node, Endpoint::Messages, &self.registry);
        let cap = if dice.roll(8) == 0 { dice.roll(16_000) } else { dice.roll(400) };
        let output = Some(OutputBound { cap: Some(cap), choices: 1 });
        let ask = Ask { model: "mock", upstream: "mock", input_tokens: dice.roll(200), output, free_price: false };
        let is_stale = now.mono.0.saturating_sub(self.beat_ns) > METER_TRUST_NS;
        let over = plan.after_parse.iter().find(|armed| match &armed.counter {
            Counter::Meter(_) if !armed.limit.is_enforcing() || is_stale => false,
            Counter::Meter(_) => self.spent(&armed.limit, &armed.node, now.wall) >= armed.limit.amount,
            Counter::Cell(cell) => {
                let rate = armed.limit.rate.as_ref().expect("a rate");
                let tokens = ask.input_tokens + output.and_then(|output| output.cap).unwrap_or_default();
                cell.peek(rate, now.mono).remaining < tokens
            }
            Counter::Gauge(_) => false,
        });
        let want = over.map(|armed| format!("{} {}", armed.limit.id, armed.node));
        let verdict = after_parse(&plan, now, 1, &self.beat, &ask, &mut request.passed);
        let settled = plan.after_parse.iter().filter(|armed| matches!(armed.counter, Counter::Meter(_))).count();
        if is_stale && want.is_none() {
            assert_eq!(request.passed.suspended.len(), settled, "what is not checked is said to be suspended");
            self.saw("stale");
        }
        match self.agree(verdict, want) {
            None => {
                request.is_parsed = true;
                self.cores[core].running.push(request);
            }
            Some(refusal) => {
                self.give_back(&mut request.leases);
                self.refuse(core, request, &refusal);
            }
        }
    }

    fn finish(&mut self, core: usize, mut request: Request, dice: &mut Dice) {
        let used = if dice.roll(6) == 0 { 0 } else { 1 + dice.roll(900) };
        let settlement = if used == 0 { Settlement::Returned } else { Settlement::Used { tokens: used } };
        request.passed.held.settle(MonoNs(self.now_ns), 1, settlement);
        let row = &mut request.row;
        row.decision = Decision::Admitted;
        row.outcome = Some(Outcome::Completed);
        (row.upstream, row.forwarded, row.attempts, row.status) = (Some("mock".into()), true, 1, 200);
        if used > 0 {
            row.usage = Usage { input: used / 3, output: used - used / 3, source: UsageSource::Reported, ..row.usage };
            row.cost = Some(NanoUsd(used * CENT / 40));
        }
        self.give_back(&mut request.leases);
        self.hand_over(core, request);
    }

    fn refuse(&mut self, core: usize, mut request: Request, refusal: &Refusal) {
        assert_eq!((request.passed.held.leases(), request.passed.held.reserves()), (0, 0));
        request.row.decision = Decision::Refused;
        let (limit_id, limit_type) = (refusal.limit.id.clone(), refusal.limit.kind);
        request.row.refused_by = Some(RefusedBy { limit_id, node: refusal.node.clone(), limit_type });
        self.hand_over(core, request);
    }

    /// The row goes to the tee, or is dropped and counted; everything held goes back.
    fn hand_over(&mut self, core: usize, request: Request) {
        let Request { passed, mut row, .. } = request;
        drop(passed);
        row.end = self.wall();
        self.settled_nanousd += cost_of(&row);
        let tee = &mut self.cores[core].tee;
        if tee.len() < TEE_ROWS {
            tee.push_back(row);
        } else {
            self.dropped_nanousd += cost_of(&row);
            self.saw("dropped");
        }
    }

    fn give_back(&mut self, leases: &mut Vec<String>) {
        for scope in leases.drain(..) {
            *self.in_flight.get_mut(&scope).expect("a lease was counted") -= 1;
        }
    }

    fn row(&self, caller: &str, now: Now, dice: &mut Dice) -> Row {
        Row {
            seq: 0,
            ts: now.wall,
            end: now.wall,
            request_id: RequestId::new(now.wall, dice.roll(u64::MAX).into()),
            node: node(caller),
            key_id: Some("key_1".into()),
            endpoint: Endpoint::Messages,
            model: CompactString::const_new("mock"),
            upstream: None,
            decision: Decision::Error,
            outcome: None,
            attempts: 0,
            refused_by: None,
            shadow: Default::default(),
            suspended: Default::default(),
            status: 429,
            forwarded: false,
            stream: false,
            usage: Usage::default(),
            cost: Some(NanoUsd(0)),
            price: PriceSource::Table,
            reserved_tokens: 0,
            latency_us: 10,
            first_byte_us: None,
            overhead_us: 1,
            traceparent: None,
        }
    }

    /// Who refused, if gate and contract say the same.
    fn agree(&mut self, verdict: Verdict, want: Option<String>) -> Option<Box<Refusal>> {
        let refusal = match verdict {
            Verdict::Admitted => None,
            Verdict::Refused(refusal) => Some(refusal),
        };
        let got = refusal.as_ref().map(|refusal| format!("{} {}", refusal.limit.id, refusal.node));
        assert_eq!(got, want, "the gate and the contract disagree on who refuses");
        match &refusal {
            Some(refusal) => self.saw(&refusal.limit.id),
            None => self.saw("admitted"),
        }
        refusal
    }

    // ---- the accountant

    /// A reload adds or removes a limit. Its meter is complete before any gate reads it.
    fn reload(&mut self) {
        self.has_late = !self.has_late;
        let set = limits(&configured(self.has_late));
        if self.accountant.folder.arm(Arc::new(set.clone()), &self.registry, self.wall()).is_some() {
            let closed = self.disk.segments.len().saturating_sub(1);
            for segment in &self.disk.segments[..closed] {
                self.accountant.folder.backfill(&rollup_of(segment), &self.registry);
            }
        }
        self.accountant.folder.caught_up();
        self.republish();
        self.folded.iter_mut().for_each(|folded| folded.is_missed_by_late = folded.is_forgotten);
        self.sums.get_mut().clear();
        self.set = set;
        self.saw("reload");
    }

    // ---- ends and beginnings

    /// Every running meter and what it shows.
    fn meters(&self) -> BTreeMap<String, u64> {
        let mut meters = BTreeMap::new();
        self.registry.each(|key, counter| {
            if let Counter::Meter(meter) = counter
                && self.set.limits.iter().any(|limit| limit.identity == key.identity)
                && meter.observed(self.wall()) > 0
            {
                meters.insert(format!("{} {}", key.identity.as_str(), key.node), meter.observed(self.wall()));
            }
        });
        meters
    }

    /// What a meter has to show: the rows of the period, added up.
    fn spent(&self, limit: &Limit, at: &Node, wall: WallMs) -> u64 {
        let Some(Period::Calendar(calendar)) = limit.period else { return 0 };
        let period = period_of(calendar, wall);
        let key = (limit.id.clone(), at.clone(), period.start);
        if let Some(sum) = self.sums.borrow().get(&key) {
            return *sum;
        }
        let counts = |folded: &&Folded| {
            period.contains(folded.row.end)
                && folded.row.node.is_within(at)
                && !(folded.is_missed_by_late && &*limit.id == LATE)
        };
        let rows = self.folded.iter().filter(counts).map(|folded| &folded.row);
        let sum = match limit.kind {
            LimitType::BudgetUsd => costs(rows),
            LimitType::QuotaTokens => rows.map(|row| row.usage.total_tokens()).sum(),
            _ => rows.filter(|row| row.forwarded).count() as u64,
        };
        self.sums.borrow_mut().insert(key, sum);
        sum
    }

    fn compare(&self) {
        let wall = self.wall();
        self.registry.each(|key, counter| {
            let Some(limit) = self.set.limits.iter().find(|limit| limit.identity == key.identity) else { return };
            let scope = format!("{} {}", limit.id, key.node);
            match counter {
                Counter::Gauge(gauge) => {
                    let used = u64::from(gauge.in_flight());
                    assert_eq!(used, self.in_flight.get(&scope).copied().unwrap_or(0), "{scope}: in flight");
                    assert!(!limit.is_enforcing() || used <= limit.amount, "{scope}: {used} in flight");
                }
                Counter::Cell(_) if limit.kind == LimitType::Rpm => {
                    let admitted = self.rpm_admitted.get(&scope).copied().unwrap_or(0);
                    let earned = (self.now_ns - self.life_began_ns) * limit.amount / (60 * SECOND_NS);
                    assert!(admitted <= limit.burst + earned, "{scope}: {admitted} admitted");
                }
                Counter::Cell(_) => {}
                Counter::Meter(meter) => {
                    assert_eq!(meter.observed(wall), self.spent(limit, &key.node, wall), "{scope}: what was spent");
                }
            }
        });
        let in_tees: u64 = self.cores.iter().map(|core| costs(&core.tee)).sum();
        assert_eq!(self.settled_nanousd, in_tees + self.dropped_nanousd + self.taken_nanousd, "money");
    }

    /// The files say what the model says, row by row and summed up.
    fn audit(&self) {
        let lines = self.disk.segments.iter().flat_map(|segment| &segment.lines);
        let rows: Vec<Row> = lines.map(|line| shards::row::decode(line).expect("a line we wrote").row).collect();
        assert!(rows.is_sorted_by(|left, right| left.seq < right.seq), "each row once, in its order");
        let waiting: Vec<u64> = self.accountant.waiting.iter().map(|(seq, _)| *seq).collect();
        let unwritten = self.folded.iter().filter(|folded| waiting.contains(&folded.row.seq));
        let unwritten = costs(unwritten.map(|folded| &folded.row));
        let kept = self.taken_nanousd - self.given_up_nanousd - self.lost_nanousd - unwritten;
        assert_eq!(costs(&rows), kept, "Σ rows = what was taken, less what was given up, lost or still waits");

        let everything = Query {
            since: WallMs(0),
            until: WallMs(i64::MAX / 2),
            group_by: vec![GroupBy::Node(None), GroupBy::Hour],
            node: None,
            model: None,
        };
        let mut tally = everything.tally();
        let closed = self.disk.segments.len().saturating_sub(1);
        self.disk.segments[..closed].iter().for_each(|segment| tally.add(&rollup_of(segment)));
        tally.add(self.accountant.folder.rollup());
        let asked: u64 = tally.answer().groups.iter().map(|group| group.totals.cost_nanousd).sum();
        let remembered = self.folded.iter().filter(|folded| !folded.is_forgotten);
        assert_eq!(asked, costs(remembered.map(|folded| &folded.row)), "Σ rollups = Σ rows");
    }

    /// Everyone leaves; nothing may stay behind.
    fn close(mut self, dice: &mut Dice) -> BTreeMap<String, u64> {
        self.audit();
        self.restart_cleanly(dice);
        self.compare();
        self.audit();
        assert!(self.in_flight.values().all(|used| *used == 0));
        self.seen
    }
}

#[test]
fn no_nano_dollar_is_lost_whatever_happens_between_a_gate_and_the_disk() {
    let mut seen: BTreeMap<String, u64> = BTreeMap::new();
    let runs = each_seed(10, |seed| {
        let (mut dice, mut world) = (Dice(seed), World::new());
        for step in 0..STEPS {
            world.step(&mut dice);
            if step % 100 == 0 {
                world.audit();
            }
        }
        world.close(&mut dice)
    });
    for (what, times) in runs.into_iter().flatten() {
        *seen.entry(what).or_default() += times;
    }
    // A run in which something never happens proves nothing about it.
    let wanted = [
        "admitted",
        "user_rpm",
        "team_slots",
        "org_tpm",
        "team_usd",
        "org_tokens",
        "beta_requests",
        LATE,
        "stale",
        "dropped",
        "given up",
        "disk full",
        "rebuilt",
        "checkpoint",
        "reload",
        "crash",
        "clean restart",
    ];
    let never: Vec<_> = wanted.iter().filter(|what| !seen.contains_key(**what)).collect();
    assert!(only_seed().is_some() || never.is_empty(), "never seen: {never:?} in {seen:?}");
}

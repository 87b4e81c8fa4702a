//! Cores, coordinator and a store that freezes, lies, flushes and dies, under a virtual clock: what a request may rely on
//! holds at every step. A failure names its seed; `SIM_SEED=17 cargo test -p shards --test sim_coordinate` runs it alone.

#[path = "support/dice.rs"]
mod dice;

use std::collections::{BTreeMap, VecDeque};
use std::task::Waker;

use dice::{Dice, each_seed};
use shards::coordinate::breaker::{Breaker, Pass, State, Turn};
use shards::coordinate::deadline::Budget;
use shards::coordinate::eval::EvalCall;
use shards::coordinate::key::ScopeHash;
use shards::coordinate::lane::{Asked, Command, Lane, Said};
use shards::coordinate::numbers::{BREAKER_PROBE_NS, OPERATION_DEADLINE_NS};
use shards::coordinate::ticket::{TicketId, Tickets};
use shards::rate::{Script, ScriptReply};
use shards::suspend::Reason;
use shards::units::MonoNs;

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const STEP_NS: u64 = 200 * US;
const STEPS: u64 = 60_000;
const CORES: usize = 3;
/// What the store admits in all.
const LIMIT: u64 = 500;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mood {
    Well,
    Slow,
    Frozen,
    Erring,
    Lying,
    Gone,
}

/// What the store would say, and when.
struct Reply {
    due_ns: u64,
    /// What its calls are known by in the store; `None`: it belongs to a load.
    name: Option<u64>,
    said: Line,
}

#[derive(Clone)]
enum Line {
    /// Whether each of the calls was admitted.
    Verdicts(Vec<bool>),
    NoScript,
    Error,
    Nonsense,
}

struct Store {
    mood: Mood,
    has_script: bool,
    used: u64,
    line: VecDeque<Reply>,
}

struct Call {
    id: u64,
    ticket: TicketId,
    budget: Budget,
    is_probe: bool,
}

struct World {
    dice: Dice,
    now_ns: u64,
    breaker: Breaker,
    lane: Lane<(usize, TicketId)>,
    store: Store,
    tickets: Vec<Tickets<Result<ScriptReply, Reason>>>,
    waiting: Vec<Vec<Call>>,
    rings: Vec<VecDeque<Asked<(usize, TicketId)>>>,
    next_id: u64,
    /// Which call a ticket is for, to see that it gets its own reply.
    call_of: BTreeMap<(usize, u64), u64>,
    written: BTreeMap<u64, u32>,
    no_script: BTreeMap<u64, u32>,
    outcomes: BTreeMap<u64, Result<bool, Reason>>,
    admitted_by_store: u64,
    probes: Vec<u64>,
    opened: u32,
    /// The most calls of one command.
    together: u32,
    scope: ScopeHash,
}

impl World {
    fn new(seed: u64) -> World {
        World {
            dice: Dice(seed),
            now_ns: 1,
            breaker: Breaker::default(),
            lane: Lane::default(),
            store: Store { mood: Mood::Well, has_script: true, used: 0, line: VecDeque::new() },
            tickets: (0..CORES).map(|_| Tickets::default()).collect(),
            waiting: (0..CORES).map(|_| Vec::new()).collect(),
            rings: (0..CORES).map(|_| VecDeque::new()).collect(),
            next_id: 1,
            call_of: BTreeMap::new(),
            written: BTreeMap::new(),
            no_script: BTreeMap::new(),
            outcomes: BTreeMap::new(),
            admitted_by_store: 0,
            probes: Vec::new(),
            opened: 0,
            together: 0,
            scope: ScopeHash::named(b"one limit", b"__global"),
        }
    }

    fn now(&self) -> MonoNs {
        MonoNs(self.now_ns)
    }

    fn step(&mut self, asks: bool) {
        self.now_ns += STEP_NS;
        if asks {
            for core in 0..CORES {
                if self.dice.roll(4) == 0 {
                    self.ask(core);
                }
                if self.dice.roll(300) == 0 {
                    self.hang_up(core);
                }
            }
        }
        self.coordinate();
        for core in 0..CORES {
            self.look(core);
        }
    }

    /// A request meets the limit.
    fn ask(&mut self, core: usize) {
        let (id, now) = (self.next_id, self.now());
        self.next_id += 1;
        let pass = self.breaker.pass(now, self.store.mood != Mood::Gone);
        if pass == Pass::Open {
            self.outcomes.insert(id, Err(Reason::RedisBreakerOpen)); // at once, whatever the store does
            return;
        }
        if pass == Pass::Probe {
            self.probes.push(self.now_ns);
        }
        let ticket = self.tickets[core].issue().expect("few calls are out");
        let budget = Budget::starting(now);
        let call = EvalCall { scope: self.scope, script: Script::Backlog, args: [name(id), 0, 0] };
        self.call_of.insert((core, hash(ticket)), id);
        self.rings[core].push_back(Asked { to: (core, ticket), call, deadline: budget.deadline() });
        self.waiting[core].push(Call { id, ticket, budget, is_probe: pass == Pass::Probe });
    }

    /// A caller leaves: its task is dropped in the middle.
    fn hang_up(&mut self, core: usize) {
        let Some(at) = self.waiting[core].iter().position(|call| !call.is_probe) else { return };
        let call = self.waiting[core].remove(at);
        self.tickets[core].give_up(call.ticket);
        self.outcomes.insert(call.id, Err(Reason::RedisDeadlineExceeded));
    }

    fn coordinate(&mut self) {
        let now = self.now();
        if self.store.mood == Mood::Gone {
            self.lane.broke(Reason::RedisEvalError, now, &self.breaker);
            self.store.line.clear();
        }
        for ring in &mut self.rings {
            while let Some(asked) = ring.pop_front() {
                self.lane.ask(asked, now);
            }
        }
        while self.store.line.front().is_some_and(|reply| reply.due_ns <= self.now_ns) {
            let reply = self.store.line.pop_front().expect("looked at above");
            self.hear(&reply);
        }
        self.lane.tick(now, &self.breaker);
        if self.lane.take_turn() == Turn::Opened {
            self.opened += 1;
            // A new connection, as the coordinator makes one: what the old one owed is lost.
            self.lane.broke(Reason::RedisBreakerOpen, now, &self.breaker);
            self.store.line.clear();
        }
        if self.store.mood == Mood::Gone {
            self.lane.unreachable(Reason::RedisEvalError, now, &self.breaker);
        } else {
            let mut commands = Vec::new();
            self.lane.write(now, |command| commands.push(command));
            commands.into_iter().for_each(|command| self.execute(command));
        }
        let outcomes: Vec<_> = self.lane.outcomes().collect();
        for ((core, ticket), outcome) in outcomes {
            let _ = self.tickets[core].answer(ticket, outcome);
        }
    }

    fn hear(&mut self, reply: &Reply) {
        let word = |name: u64, admitted: bool| if admitted { name as i64 } else { !(name as i64) };
        let words: Vec<i64> = match (reply.name, &reply.said) {
            (Some(name), Line::Verdicts(verdicts)) => verdicts.iter().map(|admitted| word(name, *admitted)).collect(),
            _ => Vec::new(),
        };
        let said = match reply.said {
            Line::Verdicts(_) => Said::Words(&words),
            Line::NoScript => Said::NoScript,
            Line::Error => Said::Error,
            Line::Nonsense => Said::Other,
        };
        self.lane.said(said, MonoNs(self.now_ns), &self.breaker).expect("the store answers what was asked");
    }

    /// The store gets a command: it counts at once, and its reply takes its time.
    fn execute(&mut self, command: Command) {
        let delay_ns = match self.store.mood {
            Mood::Slow => 20 * MS,
            Mood::Frozen => u64::MAX / 2,
            _ => 50 * US + self.dice.roll(600) * US,
        };
        // In order, whatever each takes.
        let earlier = self.store.line.back().map_or(0, |reply| reply.due_ns);
        let due_ns = self.now_ns.saturating_add(delay_ns).max(earlier);
        let (name, said) = match command {
            Command::Load(_) => {
                self.store.has_script = true;
                (None, Line::Nonsense)
            }
            Command::Eval(call, calls) => {
                let [name, ..] = call.args;
                *self.written.entry(name).or_default() += calls;
                self.together = self.together.max(calls);
                let said = match self.store.mood {
                    Mood::Erring => Line::Error,
                    Mood::Lying => Line::Nonsense,
                    _ if !self.store.has_script => {
                        *self.no_script.entry(name).or_default() += calls;
                        Line::NoScript
                    }
                    _ => {
                        let admitted = u64::from(calls).min(LIMIT - self.store.used);
                        self.store.used += admitted;
                        Line::Verdicts((0..u64::from(calls)).map(|nth| nth < admitted).collect())
                    }
                };
                (Some(name), said)
            }
        };
        self.store.line.push_back(Reply { due_ns, name, said });
    }

    /// A core looks who has an answer, and who waits no longer.
    fn look(&mut self, core: usize) {
        let (now, mut still) = (self.now(), Vec::new());
        for call in std::mem::take(&mut self.waiting[core]) {
            let outcome = match self.tickets[core].take(call.ticket, Waker::noop()) {
                Some(outcome) => outcome,
                None if call.budget.is_over(now) => {
                    self.tickets[core].give_up(call.ticket);
                    Err(Reason::RedisDeadlineExceeded)
                }
                None => {
                    still.push(call);
                    continue;
                }
            };
            let late_ns = now.0.saturating_sub(call.budget.deadline().0);
            assert!(late_ns <= STEP_NS, "call {} waited {late_ns} ns past its deadline", call.id);
            let told = outcome.map(|reply| {
                let rate = any_rate();
                // The reply's backlog is the name of the call it belongs to.
                let (admitted, _, standing) = rate.read_script(&reply, 1);
                assert_eq!(standing.reset_ns / US, name(call.id), "a reply went to another call");
                admitted
            });
            assert_eq!(self.call_of.get(&(core, hash(call.ticket))), Some(&call.id));
            self.admitted_by_store += u64::from(told == Ok(true));
            let before = self.outcomes.insert(call.id, told);
            assert!(before.is_none(), "call {} had two outcomes", call.id);
        }
        self.waiting[core] = still;
    }

    fn change_mood(&mut self) {
        let moods =
            [Mood::Well, Mood::Well, Mood::Well, Mood::Slow, Mood::Frozen, Mood::Erring, Mood::Lying, Mood::Gone];
        let mood = moods[self.dice.roll(moods.len() as u64) as usize];
        if self.store.mood == Mood::Frozen && mood != Mood::Frozen {
            // It thaws and answers everything at once.
            self.store.line.iter_mut().for_each(|reply| reply.due_ns = self.now_ns);
        }
        self.store.mood = mood;
    }

    fn check(&self) {
        for (name, count) in &self.written {
            let calls = if is_shared(*name) { ALIKE as u32 } else { 1 };
            let may = calls + self.no_script.get(name).copied().unwrap_or(0).min(calls);
            assert!(*count <= may, "calls {name} were sent {count} times");
        }
        assert!(self.admitted_by_store <= LIMIT, "{} admitted of {LIMIT}", self.admitted_by_store);
        for pair in self.probes.windows(2) {
            assert!(pair[1] - pair[0] >= BREAKER_PROBE_NS - MS, "two probes within {} ns", pair[1] - pair[0]);
        }
    }
}

/// Calls of one name in every other block of so many: alike, so that the lane puts them together.
const ALIKE: u64 = 4;

/// What a call is known by in the store.
fn name(id: u64) -> u64 {
    if is_shared(id) { id / ALIKE * ALIKE } else { id }
}

fn is_shared(id: u64) -> bool {
    (id / ALIKE).is_multiple_of(2)
}

/// Sixty a minute: one unit is a second, and the backlog of a reply is read back as its reset.
fn any_rate() -> shards::rate::RateParams {
    let spec = shards::rate::RateSpec {
        amount: 60,
        period_ns: 60_000 * MS,
        burst: 60,
        algorithm: shards::rate::Algorithm::Gcra,
        debt: false,
    };
    shards::rate::RateParams::new(spec).expect("a plain rate")
}

fn hash(ticket: TicketId) -> u64 {
    use std::hash::{Hash, Hasher};
    let mut hasher = std::hash::DefaultHasher::new();
    ticket.hash(&mut hasher);
    hasher.finish()
}

fn run(seed: u64) -> (u64, u32, usize) {
    let mut world = World::new(seed);
    for nth in 0..STEPS {
        if world.dice.roll(2_500) == 0 {
            world.change_mood();
        }
        if world.dice.roll(4_000) == 0 {
            world.store.has_script = false;
        }
        world.step(true);
        if nth % 1_000 == 0 {
            world.check();
        }
    }
    // Well again: within one probe interval and a little, verdicts are the store's.
    world.store.mood = Mood::Frozen;
    world.change_mood();
    world.store.mood = Mood::Well;
    for _ in 0..(BREAKER_PROBE_NS + 200 * MS) / STEP_NS {
        world.step(true);
    }
    assert_eq!(world.breaker.state(), State::Closed { failures: 0 }, "it recovers by itself");
    for _ in 0..2 * OPERATION_DEADLINE_NS / STEP_NS {
        world.step(false);
    }
    world.check();
    assert!(world.tickets.iter().all(|tickets| tickets.out() == 0), "every ticket came back");
    assert_eq!(world.outcomes.len() as u64, world.next_id - 1, "every call had its outcome");
    assert!(world.together > 1, "no calls alike went together");
    (world.next_id, world.opened, world.probes.len())
}

#[test]
fn every_call_has_one_outcome_in_time_whatever_the_store_does() {
    let (mut calls, mut opened, mut probes) = (0, 0, 0);
    for (more, openings, probed) in each_seed(24, run) {
        calls += more;
        opened += openings;
        probes += probed;
    }
    println!("{calls} calls, the breaker opened {opened} times, {probes} probes");
}

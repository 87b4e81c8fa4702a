//! One replica in a few hundred thousand steps: virtual cores interleave gate A, gate B, settlement and sudden death on
//! shared counters under a virtual clock, while the number of live replicas moves.
//!
//! Beside the product runs a plain model of it, written as the contract says it and without sharing a line of its
//! code: exact backlogs in nanoseconds, sets of leases. Every verdict and every counter is compared after every step. A
//! failure names its seed; `SIM_SEED=17 cargo test -p shards --test sim_replica` runs that seed alone.

mod support;

use std::collections::BTreeMap;
use std::rc::Rc;

use shards::gate::{Ask, Passed, Verdict, after_parse, before_body};
use shards::limit::{Limit, LimitDecl, LimitType, Store};
use shards::plan::{Armed, Counter, NodePlan};
use shards::refusal::Refusal;
use shards::scope::Endpoint;
use shards::settle::{OutputBound, Settlement};
use shards::units::{MonoNs, Now, WallMs};
use support::dice::{Dice, each_seed};
use support::{AUGUST, BOOT, Gateway, SECOND_NS, decl, node, shadow, share};

const CALLERS: [&str; 4] =
    ["org:acme/team:ml/user:ann", "org:acme/team:ml/user:bob", "org:acme/team:web/user:cid", "org:beta"];
const STEPS: u32 = 3_000;
const CONNECTIONS: u64 = 12;

/// A rate as the contract states it: one emission interval a unit, `burst` of them at once, debts up to ten bursts.
#[derive(Clone, Copy)]
struct Rate {
    interval_ns: u64,
    burst: u64,
    has_debt: bool,
}

impl Rate {
    fn of(limit: &Limit, n_live: u64) -> Rate {
        let n = if limit.store == Store::Share { n_live } else { 1 };
        let has_debt = limit.kind == LimitType::Tpm;
        let burst = limit.burst.div_ceil(n);
        let burst = if has_debt { burst.max(16_384) } else { burst };
        Rate { interval_ns: (60 * SECOND_NS).div_ceil(limit.amount.div_ceil(n)), burst, has_debt }
    }

    fn tau(&self) -> u64 {
        self.burst * self.interval_ns
    }
}

#[derive(Default, Clone)]
struct Backlog {
    end_ns: u64,
}

impl Backlog {
    fn take(&mut self, rate: Rate, now: u64, units: u64) -> bool {
        let end = self.end_ns.max(now) + units * rate.interval_ns;
        let fits = end <= now + rate.tau();
        if fits && units > 0 {
            self.end_ns = end;
        }
        fits
    }

    fn settle(&mut self, rate: Rate, now: u64, held: Reserve, used: u64) {
        if used > held.tokens {
            let ceiling = now + rate.tau() * if rate.has_debt { 11 } else { 1 };
            let base = self.end_ns.max(now);
            self.end_ns = (base + (used - held.tokens) * rate.interval_ns).min(ceiling).max(base);
        } else if self.end_ns > now {
            self.end_ns = self.end_ns.saturating_sub((held.tokens - used) * held.interval_ns).max(now);
        }
    }

    fn remaining(&self, rate: Rate, now: u64) -> u64 {
        ((now + rate.tau()).saturating_sub(self.end_ns.max(now)) / rate.interval_ns).min(rate.burst)
    }
}

#[derive(Clone, Copy)]
struct Reserve {
    tokens: u64,
    interval_ns: u64,
}

/// What a request holds according to the model, by scope.
#[derive(Default)]
struct ModelHeld {
    leases: Vec<String>,
    reserves: Vec<(String, Reserve)>,
}

#[derive(Default)]
struct Model {
    backlogs: BTreeMap<String, Backlog>,
    in_flight: BTreeMap<String, u64>,
    rpm_admitted: BTreeMap<String, u64>,
}

struct Request {
    plan: NodePlan,
    passed: Passed,
    model: ModelHeld,
    is_parsed: bool,
}

fn scope(armed: &Armed) -> String {
    format!("{} {}", armed.limit.id, armed.node)
}

impl Model {
    /// The contract's walk: who refuses, if anybody.
    fn walk(
        &mut self,
        list: &[Rc<Armed>],
        now: u64,
        n_live: u64,
        ask: Option<(u64, u64)>,
        spent: bool,
        held: &mut ModelHeld,
    ) -> Option<String> {
        for armed in list {
            let (limit, scope) = (&armed.limit, scope(armed));
            let is_over = match limit.kind {
                LimitType::Rpm => {
                    let fits = self.backlogs.entry(scope.clone()).or_default().take(Rate::of(limit, n_live), now, 1);
                    *self.rpm_admitted.entry(scope.clone()).or_default() += u64::from(fits);
                    !fits
                }
                LimitType::Concurrency => {
                    let cap = limit.amount.div_ceil(if limit.store == Store::Share { n_live } else { 1 });
                    let used = self.in_flight.entry(scope.clone()).or_default();
                    let is_over = *used >= cap;
                    if !is_over || !limit.is_enforcing() {
                        *used += 1;
                        held.leases.push(scope.clone());
                    }
                    is_over
                }
                LimitType::Tpm => {
                    let rate = Rate::of(limit, n_live);
                    let (input, output) = ask.expect("gate B knows the request");
                    let tokens = input + output.min(rate.burst.saturating_sub(input));
                    let fits = self.backlogs.entry(scope.clone()).or_default().take(rate, now, tokens);
                    if fits {
                        let reserve = Reserve { tokens, interval_ns: rate.interval_ns };
                        held.reserves.push((scope.clone(), reserve));
                    }
                    !fits
                }
                _ => spent,
            };
            if is_over && limit.is_enforcing() {
                self.give_back(held);
                return Some(scope);
            }
        }
        None
    }

    fn give_back(&mut self, held: &mut ModelHeld) {
        for scope in held.leases.drain(..) {
            *self.in_flight.get_mut(&scope).expect("a lease was counted") -= 1;
        }
        for (scope, reserve) in held.reserves.drain(..) {
            let backlog = self.backlogs.get_mut(&scope).expect("a reserve was counted");
            backlog.end_ns = backlog.end_ns.saturating_sub(reserve.tokens * reserve.interval_ns);
        }
    }
}

struct World {
    gateway: Gateway,
    model: Model,
    now_ns: u64,
    /// The budget is spent and published.
    spent: bool,
    running: Vec<Request>,
    admissions: u64,
    refusals: BTreeMap<String, u64>,
}

const START_NS: u64 = 1_000 * SECOND_NS;

fn bursting(decl: LimitDecl, burst: &str) -> LimitDecl {
    LimitDecl { burst: Some(burst.to_owned()), ..decl }
}

impl World {
    fn new() -> World {
        let gateway = Gateway::new(&[
            bursting(decl("user_rpm", "rpm", "level:user", "480"), "5"),
            share(bursting(decl("team_rpm", "rpm", "level:team", "600"), "7")),
            bursting(decl("all_rpm", "rpm", "__global", "600"), "9"),
            decl("user_slots", "concurrency", "level:user", "2"),
            share(decl("all_slots", "concurrency", "__global", "6")),
            shadow(decl("trial_slots", "concurrency", "level:org", "1")),
            bursting(decl("team_tpm", "tpm", "level:team", "24000"), "16384"),
            share(decl("all_tpm", "tpm", "__global", "120000")),
            shadow(decl("trial_tpm", "tpm", "level:org", "20000")),
            decl("budget", "budget_usd", "org:acme", "1"),
        ]);
        World {
            gateway,
            model: Model::default(),
            now_ns: START_NS,
            spent: false,
            running: Vec::new(),
            admissions: 0,
            refusals: BTreeMap::new(),
        }
    }

    fn now(&self, behind_ns: u64) -> Now {
        let mono = self.now_ns.saturating_sub(behind_ns).max(START_NS);
        Now { mono: MonoNs(mono), wall: WallMs(BOOT.0 + ((mono - START_NS) / 1_000_000) as i64) }
    }

    fn step(&mut self, dice: &mut Dice) {
        self.now_ns += match dice.roll(100) {
            0 => dice.roll(5 * SECOND_NS),
            1..50 => dice.roll(SECOND_NS / 25),
            _ => 0,
        };
        self.gateway.beat.beat(MonoNs(self.now_ns));
        match dice.roll(40) {
            0 => self.gateway.n_live = 1 + dice.roll(3) as u32,
            1 => {
                self.spent = !self.spent && dice.roll(3) == 0;
                let burn = if self.spent { 1_000_000_000 } else { 0 };
                self.gateway.meter("budget", "org:acme").publish(AUGUST, burn);
            }
            2..14 if (self.running.len() as u64) < CONNECTIONS => self.arrive(dice),
            _ if self.running.is_empty() => self.arrive(dice),
            _ => {
                let at = dice.roll(self.running.len() as u64) as usize;
                if !self.running[at].is_parsed { self.parse(at, dice) } else { self.finish(at, dice) }
            }
        }
        self.compare();
    }

    fn arrive(&mut self, dice: &mut Dice) {
        let caller = CALLERS[dice.roll(CALLERS.len() as u64) as usize];
        // A core acts on the clock it read a moment ago.
        let (now, n_live) = (self.now(dice.roll(5_000_000)), self.gateway.n_live);
        let plan = self.gateway.set.plan_for(&node(caller), Endpoint::Messages, &self.gateway.registry);
        let (mut passed, mut held) = (Passed::default(), ModelHeld::default());
        let verdict = before_body(&plan, now, n_live, &mut passed);
        let want = self.model.walk(&plan.before_body, now.mono.0, n_live.into(), None, false, &mut held);
        if self.agree(verdict, want) {
            self.running.push(Request { plan, passed, model: held, is_parsed: false });
        }
    }

    fn parse(&mut self, at: usize, dice: &mut Dice) {
        let mut request = self.running.swap_remove(at);
        if dice.roll(20) == 0 {
            return self.drop_request(request); // the client left while sending its body
        }
        let (now, n_live) = (self.now(dice.roll(5_000_000)), self.gateway.n_live);
        let (input_tokens, cap) =
            if dice.roll(30) == 0 { (dice.roll(20_000), 20_000) } else { (dice.roll(300), dice.roll(500)) };
        let output = Some(OutputBound { cap: Some(cap), choices: 1 });
        let ask = Ask { model: "mock", upstream: "mock", input_tokens, output, free_price: false };
        let beat = &self.gateway.beat;
        let verdict = after_parse(&request.plan, now, n_live, beat, &ask, &mut request.passed);
        let asked = Some((input_tokens, cap.min(16_384)));
        let list = &request.plan.after_parse;
        let want = self.model.walk(list, now.mono.0, n_live.into(), asked, self.spent, &mut request.model);
        let is_admitted = self.agree(verdict, want);
        assert_eq!(request.passed.held.leases(), request.model.leases.len());
        assert_eq!(request.passed.held.reserves(), request.model.reserves.len());
        if is_admitted {
            request.is_parsed = true;
            self.running.push(request);
        }
    }

    fn finish(&mut self, at: usize, dice: &mut Dice) {
        let mut request = self.running.swap_remove(at);
        if dice.roll(8) == 0 {
            return self.drop_request(request); // a panic: nobody settles
        }
        let (now, n_live) = (self.now(0), self.gateway.n_live);
        let used = if dice.roll(3) == 0 { 0 } else { dice.roll(1_500) };
        let settlement = if used == 0 { Settlement::Returned } else { Settlement::Used { tokens: used } };
        request.passed.held.settle(now.mono, n_live, settlement);
        request.passed.held.settle(now.mono, n_live, Settlement::Used { tokens: 1_000_000 }); // nothing is left to settle
        for (scope, reserve) in request.model.reserves.drain(..) {
            let id = scope.split(' ').next().expect("a scope starts with its limit's id");
            let rate = Rate::of(self.gateway.limit(id), n_live.into());
            let backlog = self.model.backlogs.get_mut(&scope).expect("a reserve was counted");
            backlog.settle(rate, now.mono.0, reserve, used);
        }
        self.drop_request(request);
    }

    fn drop_request(&mut self, mut request: Request) {
        self.model.give_back(&mut request.model);
        drop(request.passed);
    }

    /// Whether both admitted; a disagreement ends the run.
    fn agree(&mut self, verdict: Verdict, want: Option<String>) -> bool {
        let by = |refusal: &Refusal| format!("{} {}", refusal.limit.id, refusal.node);
        let got = match &verdict {
            Verdict::Admitted => None,
            Verdict::Refused(refusal) => Some(by(refusal)),
        };
        assert_eq!(got, want, "the gate and the contract disagree on who refuses");
        match verdict {
            Verdict::Admitted => self.admissions += 1,
            Verdict::Refused(refusal) => *self.refusals.entry(refusal.limit.id.to_string()).or_default() += 1,
        }
        got.is_none()
    }

    /// Every live counter against the model.
    fn compare(&self) {
        let now = self.now(0);
        self.gateway.registry.each(|key, counter| {
            let (id, _) = key.identity.as_str().split_once('|').expect("an identity starts with its id");
            let (limit, scope) = (self.gateway.limit(id), format!("{id} {}", key.node));
            match counter {
                Counter::Gauge(gauge) => {
                    let used = u64::from(gauge.in_flight());
                    assert_eq!(used, self.model.in_flight.get(&scope).copied().unwrap_or(0), "{scope}");
                    assert!(!limit.is_enforcing() || used <= limit.amount, "{scope}: {used} in flight");
                }
                Counter::Cell(cell) => {
                    let rate = Rate::of(limit, self.gateway.n_live.into());
                    let want = self.model.backlogs.get(&scope).cloned().unwrap_or_default();
                    let got = cell.peek(&limit.effective_rate(self.gateway.n_live).expect("a rate"), now.mono);
                    assert_eq!(got.remaining, want.remaining(rate, now.mono.0), "{scope}");
                    if let (LimitType::Rpm, Some(&admitted)) = (limit.kind, self.model.rpm_admitted.get(&scope)) {
                        let earned = (now.mono.0 - START_NS) * limit.amount / (60 * SECOND_NS);
                        assert!(admitted <= limit.burst + earned, "{scope}: {admitted} admitted");
                    }
                }
                Counter::Meter(_) => {}
            }
        });
    }

    /// Everyone leaves; nothing may stay behind. Says how often each limit refused.
    fn close(mut self) -> (u64, BTreeMap<String, u64>) {
        while let Some(request) = self.running.pop() {
            self.drop_request(request);
        }
        self.compare();
        assert!(self.model.in_flight.values().all(|&used| used == 0));
        self.now_ns += 3_600 * SECOND_NS;
        let meters = self.gateway.set.limits.iter().filter(|limit| limit.kind == LimitType::BudgetUsd).count();
        let swept = self.gateway.registry.sweep(0, 1, self.now(0));
        assert_eq!(swept.kept, meters, "an hour later only the running month is still counted");
        (self.admissions, self.refusals)
    }
}

#[test]
fn no_interleaving_breaks_a_promise() {
    let (mut admissions, mut refusals) = (0, BTreeMap::new());
    let runs = each_seed(10, |seed| {
        let (mut dice, mut world) = (Dice(seed), World::new());
        for _ in 0..STEPS {
            world.step(&mut dice);
        }
        world.close()
    });
    for (admitted, refused) in runs {
        admissions += admitted;
        for (id, times) in refused {
            *refusals.entry(id).or_insert(0) += times;
        }
    }
    // A run in which a limit never refuses proves nothing about it.
    let enforcing = ["all_rpm", "all_slots", "all_tpm", "budget", "team_rpm", "team_tpm", "user_rpm", "user_slots"];
    let never: Vec<_> = enforcing.iter().filter(|id| !refusals.contains_key(**id)).collect();
    assert!(admissions > 100 && never.is_empty(), "{admissions} admitted; never refused by {never:?} of {refusals:?}");
}

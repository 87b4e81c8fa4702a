//! A cell, a gauge, and the decision over 1, 5 and 20 limits: the walk of both gates, and its settlement.

use std::cell::RefCell;
use std::hint::black_box;

use divan::Bencher;
use shards::cell::Cell;
use shards::gate::{Ask, Passed, Verdict, after_parse, before_body};
use shards::gauge::Gauge;
use shards::limit::{AttachDecl, LimitDecl};
use shards::meter::MeterBeat;
use shards::plan::{CompileInput, LimitSet, NodePlan, compile};
use shards::rate::{Algorithm, RateParams, RateSpec};
use shards::refusal::Family;
use shards::registry::Registry;
use shards::scope::{Endpoint, Node};
use shards::settle::{OutputBound, Settlement};
use shards::units::{MonoNs, Now, WallMs};

pub const CALLER: &str = "org:bench/team:load/user:u0";
pub const NOW: Now = Now { mono: MonoNs(1_000_000_000_000), wall: WallMs(1_796_029_687_006) };

fn rate(algorithm: Algorithm) -> RateParams {
    let spec = RateSpec { amount: 1_000_000, period_ns: 60_000_000_000, burst: 1_000_000, algorithm, debt: false };
    RateParams::new(spec).expect("a rate of ordinary size is valid")
}

#[divan::bench(args = [Algorithm::Gcra, Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::SlidingWindow])]
fn cell_acquire(bencher: Bencher, algorithm: Algorithm) {
    let params = rate(algorithm);
    let cell = Cell::new(&params);
    let mut now = NOW.mono.0;
    bencher.bench_local(|| {
        now += 100_000; // 10,000 requests a second: never over
        black_box(cell.acquire(&params, MonoNs(now), 1)).is_ok()
    });
}

#[divan::bench]
fn gauge_lease_and_back(bencher: Bencher) {
    let gauge = Gauge::new();
    bencher.bench_local(|| match black_box(gauge.try_lease(1_000)) {
        Ok(slot) => gauge.free(slot),
        Err(full) => panic!("{full:?}"),
    });
}

/// The five types, on the user, the team, the org and everybody, as the load harness configures them.
pub fn limits(count: usize) -> LimitSet {
    let decls: Vec<LimitDecl> = (0..count).map(decl).collect();
    let input = CompileInput { limits: &decls, retain_ms: u64::MAX, ..CompileInput::default() };
    compile(input).limits.expect("the limits of this benchmark are valid")
}

fn decl(index: usize) -> LimitDecl {
    let node = |text: &str| AttachDecl { node: Some(text.to_owned()), level: None };
    let level = |text: &str| AttachDecl { node: None, level: Some(text.to_owned()) };
    let attach = [level("user"), level("team"), node("org:bench"), node("__global")][index / 5].clone();
    let (kind, amount, period) = [
        ("rpm", "10000000", Some("1m")),
        ("tpm", "50000000000", Some("1m")),
        ("concurrency", "4000000000", None), // the walk alone gives none back
        ("budget_usd", "1000000", Some("month")),
        ("quota_tokens", "1000000000000000", Some("month")),
    ][index % 5];
    let is_money = kind == "budget_usd";
    LimitDecl {
        path: format!("governance.limits[{index}]"),
        id: Some(format!("limit_{index}")),
        kind: Some(kind.to_owned()),
        attach: Some(attach),
        amount: (!is_money).then(|| amount.to_owned()),
        amount_usd: is_money.then(|| amount.to_owned()),
        period: period.map(str::to_owned),
        ..LimitDecl::default()
    }
}

/// A caller with so many limits, asking every 100 µs.
struct Scene {
    plan: NodePlan,
    beat: MeterBeat,
    now: Now,
}

impl Scene {
    fn new(count: usize) -> Scene {
        let plan = limits(count).plan_for(&node(CALLER), Endpoint::ChatCompletions, &Registry::new());
        let beat = MeterBeat::new();
        beat.beat(NOW.mono);
        Scene { plan, beat, now: NOW }
    }

    /// Both gates: every limit asked, and taken.
    fn walk(&mut self, passed: &mut Passed) {
        self.now.mono.0 += 100_000;
        self.beat.beat(self.now.mono);
        let output = Some(OutputBound { cap: Some(200), choices: 1 });
        let ask = Ask { model: "gpt-4o-mini", upstream: "provider", input_tokens: 150, output, free_price: false };
        let first = before_body(&self.plan, self.now, 1, passed);
        let second = after_parse(&self.plan, self.now, 1, &self.beat, &ask, passed);
        assert!(matches!((first, second), (Verdict::Admitted, Verdict::Admitted)));
    }

    fn settle(&self, passed: &mut Passed) {
        passed.held.settle(self.now.mono, 1, Settlement::Used { tokens: 60 });
        passed.clear();
    }
}

/// The decision alone: what is taken is forgotten, as if the request ran for ever.
#[divan::bench(args = [0, 1, 5, 20])]
fn gate_walk(bencher: Bencher, count: usize) {
    let (mut scene, mut passed) = (Scene::new(count), Passed::default());
    bencher.bench_local(|| {
        scene.walk(&mut passed);
        std::mem::forget(std::mem::take(&mut passed.held));
        passed.facts.clear();
    });
}

/// What the end of a request costs: reserves corrected, slots and facts given back. Few at a time, or the memory of those
/// that wait would be measured.
#[divan::bench(args = [0, 1, 5, 20], sample_size = 16, sample_count = 20_000)]
fn settlement(bencher: Bencher, count: usize) {
    let scene = RefCell::new(Scene::new(count));
    let walked = || {
        let mut passed = Passed::default();
        scene.borrow_mut().walk(&mut passed);
        passed
    };
    bencher.with_inputs(walked).bench_local_refs(|passed| scene.borrow().settle(passed));
}

#[divan::bench(args = [0, 1, 5, 20])]
fn gate_walk_and_settlement(bencher: Bencher, count: usize) {
    let (mut scene, mut passed) = (Scene::new(count), Passed::default());
    bencher.bench_local(|| {
        scene.walk(&mut passed);
        scene.settle(&mut passed);
    });
}

/// What a refused caller is told: the header lines and the JSON of a rate limit.
#[divan::bench]
fn refusal_spelled(bencher: Bencher) {
    let one = LimitDecl { amount: Some("1".to_owned()), ..decl(0) };
    let input = CompileInput { limits: &[one], retain_ms: u64::MAX, ..CompileInput::default() };
    let set = compile(input).limits.expect("the limit of this benchmark is valid");
    let plan = set.plan_for(&node(CALLER), Endpoint::ChatCompletions, &Registry::new());
    let refusal = (0..2).find_map(|_| match before_body(&plan, NOW, 1, &mut Passed::default()) {
        Verdict::Admitted => None,
        Verdict::Refused(refusal) => Some(refusal),
    });
    let refusal = refusal.expect("one of two is over one a minute");
    let (mut headers, mut body) = (Vec::with_capacity(1_024), Vec::with_capacity(1_024));
    bencher.bench_local(|| {
        headers.clear();
        body.clear();
        black_box(&refusal).headers(&mut headers);
        refusal.body(Family::OpenAi, b"tt_01M8NJ1QSFWJCCTT5S0BVRQV6A", &mut body);
        headers.len() + body.len()
    });
}

pub fn node(text: &str) -> Node {
    Node::parse(text).expect("a well-formed node")
}

//! A cell, a gauge, and the walk of both gates over 1, 5 and 20 limits, with settlement.

use std::hint::black_box;
use std::sync::Arc;

use divan::Bencher;
use shards::cell::Cell;
use shards::gate::{Ask, Passed, after_parse, before_body};
use shards::gauge::Gauge;
use shards::limit::{AttachDecl, LimitDecl};
use shards::meter::MeterBeat;
use shards::plan::{CompileInput, LimitSet, compile};
use shards::rate::{Algorithm, RateParams, RateSpec};
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
    let gauge = Arc::new(Gauge::new());
    bencher.bench_local(|| black_box(gauge.try_lease(1_000)).is_ok());
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
        ("concurrency", "100000", None),
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

#[divan::bench(args = [0, 1, 5, 20])]
fn both_gates_and_settlement(bencher: Bencher, count: usize) {
    let registry = Registry::new();
    let plan = limits(count).plan_for(&node(CALLER), Endpoint::ChatCompletions, &registry);
    let beat = MeterBeat::new();
    let output = Some(OutputBound { cap: Some(200), choices: 1 });
    let ask = Ask { model: "gpt-4o-mini", upstream: "provider", input_tokens: 150, output, free_price: false };
    let mut passed = Passed::default();
    let mut now = NOW;
    bencher.bench_local(|| {
        now.mono.0 += 100_000;
        beat.beat(now.mono);
        let first = before_body(&plan, now, 1, &mut passed);
        let second = after_parse(&plan, now, 1, &beat, &ask, &mut passed);
        passed.held.settle(now.mono, 1, Settlement::Used { tokens: 60 });
        passed.clear();
        black_box((first, second))
    });
}

pub fn node(text: &str) -> Node {
    Node::parse(text).expect("a well-formed node")
}

//! What follows a request: its row encoded, handed over, folded, and the meter published.

use std::hint::black_box;
use std::sync::Arc;

use divan::Bencher;
use io::ring::{Pager, ring};
use shards::accountant::Folder;
use shards::meter::{Meter, PeriodSpan};
use shards::price::PriceSource;
use shards::registry::Registry;
use shards::row::{Decision, Outcome, RequestId, Row, encode};
use shards::scope::Endpoint;
use shards::units::{NanoUsd, WallMs};
use shards::usage::{Usage, UsageSource};
use smallvec::SmallVec;

use crate::decide::{CALLER, NOW, limits, node};

fn row() -> Row {
    Row {
        seq: 1,
        ts: NOW.wall,
        end: WallMs(NOW.wall.0 + 300),
        request_id: RequestId::new(NOW.wall, 31),
        node: node(CALLER),
        key_id: Some("key_0123456789abcdef".into()),
        endpoint: Endpoint::ChatCompletions,
        model: "gpt-4o-mini".into(),
        upstream: Some("provider".into()),
        decision: Decision::Admitted,
        outcome: Some(Outcome::Completed),
        attempts: 1,
        refused_by: None,
        shadow: SmallVec::new(),
        suspended: SmallVec::new(),
        status: 200,
        forwarded: true,
        stream: false,
        usage: Usage { input: 20, output: 40, source: UsageSource::Reported, ..Usage::default() },
        cost: Some(NanoUsd(27_000)),
        price: PriceSource::Table,
        reserved_tokens: 350,
        latency_us: 300_000,
        first_byte_us: Some(1_200),
        overhead_us: 42,
        traceparent: None,
    }
}

#[divan::bench]
fn row_encode(bencher: Bencher) {
    let row = row();
    let mut line = Vec::with_capacity(4096);
    bencher.bench_local(|| {
        line.clear();
        encode(black_box(&row), "tt-bench", &mut line);
        line.len()
    });
}

/// One row into the ring and out of it, on one thread: what the core pays, and what the accountant pays, without the
/// cache lines that move between them.
#[divan::bench]
fn ring_hand_over(bencher: Bencher) {
    let (mut sender, mut receiver, _) = ring(4_096, 16_384, Arc::new(Pager::default()));
    bencher.with_inputs(row).bench_local_values(|row| {
        sender.send(row);
        receiver.drain(1, |row| drop(black_box(row)))
    });
}

#[divan::bench]
fn meter_publish(bencher: Bencher) {
    let meter = Meter::new();
    let month = PeriodSpan { start: WallMs(1_793_491_200_000), end: WallMs(1_796_083_200_000) };
    let mut burn = 0;
    bencher.bench_local(|| {
        burn += 27_000;
        meter.publish(month, burn)
    });
}

/// One row into the meters of so many limits; two of five types have a meter.
#[divan::bench(args = [0, 5, 20])]
fn fold(bencher: Bencher, count: usize) {
    let registry = Registry::new();
    let mut folder = Folder::new();
    folder.arm(Arc::new(limits(count)), &registry, NOW.wall);
    folder.caught_up();
    let mut row = row();
    bencher.bench_local(|| {
        row.seq += 1;
        folder.fold(&row.facts(), &registry).is_ok()
    });
}

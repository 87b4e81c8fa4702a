//! What one data core counts, for `/metrics`: private to the core while it works, summed over cores at scrape.
//!
//! A core records a finished request under a lock that only a scrape ever contends for, so no two cores share a
//! cache line and the request path pays one uncontended lock, about 10 ns. Rendering is in `admin`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use shards::limit::LimitType;
use shards::price::PriceSource;
use shards::row::{Decision, Row};
use shards::scope::Endpoint;

/// Upper bounds of the latency buckets in microseconds: 100 µs to 10 min.
pub const LATENCY_BOUNDS_US: [u64; 16] = [
    100,
    250,
    500,
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    1_000_000,
    5_000_000,
    30_000_000,
    120_000_000,
    600_000_000,
];
/// Upper bounds of the overhead buckets in microseconds: what the gateway itself adds.
pub const OVERHEAD_BOUNDS_US: [u64; 16] =
    [5, 10, 20, 30, 50, 75, 100, 150, 250, 500, 1_000, 2_500, 5_000, 10_000, 50_000, 250_000];

/// A histogram with fixed bounds.
#[derive(Clone)]
pub struct Histogram {
    /// Upper bounds, ascending.
    pub bounds_us: &'static [u64; 16],
    /// One count per bound, and one for everything above the last.
    pub counts: [u64; 17],
    /// Sum of all values in microseconds.
    pub sum_us: u64,
}

impl Histogram {
    /// An empty one.
    pub fn new(bounds_us: &'static [u64; 16]) -> Self {
        Histogram { bounds_us, counts: [0; 17], sum_us: 0 }
    }

    /// Counts one value.
    pub fn record(&mut self, value_us: u64) {
        let bucket = self.bounds_us.iter().position(|bound| value_us <= *bound).unwrap_or(16);
        self.counts[bucket] += 1;
        self.sum_us = self.sum_us.saturating_add(value_us);
    }

    fn add(&mut self, other: &Histogram) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(ours, theirs)| *ours += theirs);
        self.sum_us = self.sum_us.saturating_add(other.sum_us);
    }
}

/// Everything one core has counted, or the sum over cores.
#[derive(Clone)]
pub struct Numbers {
    /// By endpoint, upstream (empty when none was asked) and status code.
    pub requests: BTreeMap<(Endpoint, Arc<str>, u16), u64>,
    /// By limit type and limit id.
    pub refusals: BTreeMap<(&'static str, Arc<str>), u64>,
    /// Verdicts that a limit could not hold, by limit id and reason.
    pub suspended: BTreeMap<(Arc<str>, &'static str), u64>,
    /// Whole requests.
    pub duration: Histogram,
    /// What the gateway itself added before the upstream was asked and after it answered.
    pub overhead: Histogram,
    /// From the request's last byte to the upstream's first.
    pub first_byte: Histogram,
    /// input, output, cached_input, cache_write, reasoning.
    pub tokens: [u64; 5],
    /// Integer nano-USD.
    pub cost_nanousd: u64,
    /// Rows served without a known price.
    pub unpriced_rows: u64,
    /// Rows whose usage had to be estimated.
    pub estimated_rows: u64,
    /// Provider reports with impossible numbers.
    pub usage_anomalies: u64,
    /// Connections to providers that had to be opened.
    pub upstream_connects: u64,
    /// Requests refused before any verdict, by status code: bad heads, wrong keys, unknown paths.
    pub unjudged: BTreeMap<u16, u64>,
    /// 401s, by why the caller is not known.
    pub unauthenticated: BTreeMap<&'static str, u64>,
    /// Requests that a shadow limit would have refused, by limit id.
    pub shadow_breaches: BTreeMap<Arc<str>, u64>,
    /// Tasks that panicked. Each is a bug; the core lived on.
    pub panics: u64,
}

/// The kinds of [`Numbers::tokens`], in order.
pub const TOKEN_KINDS: [&str; 5] = ["input", "output", "cached_input", "cache_write", "reasoning"];

impl Default for Numbers {
    fn default() -> Self {
        Numbers {
            requests: BTreeMap::new(),
            refusals: BTreeMap::new(),
            suspended: BTreeMap::new(),
            duration: Histogram::new(&LATENCY_BOUNDS_US),
            overhead: Histogram::new(&OVERHEAD_BOUNDS_US),
            first_byte: Histogram::new(&LATENCY_BOUNDS_US),
            tokens: [0; 5],
            cost_nanousd: 0,
            unpriced_rows: 0,
            estimated_rows: 0,
            usage_anomalies: 0,
            upstream_connects: 0,
            unjudged: BTreeMap::new(),
            unauthenticated: BTreeMap::new(),
            shadow_breaches: BTreeMap::new(),
            panics: 0,
        }
    }
}

impl Numbers {
    /// Counts a row that is about to be handed over.
    pub fn record(&mut self, row: &Row) {
        let upstream = row.upstream.as_deref().unwrap_or_default();
        count(
            &mut self.requests,
            |(endpoint, of, status)| *status == row.status && *endpoint == row.endpoint && **of == *upstream,
            || (row.endpoint, row.upstream.clone().unwrap_or_else(none), row.status),
        );
        if let Some(by) = &row.refused_by {
            let kind = LimitType::as_str(by.limit_type);
            count(
                &mut self.refusals,
                |(of, limit)| **limit == *by.limit_id && *of == kind,
                || (kind, by.limit_id.clone()),
            );
        }
        for (limit, reason) in &row.suspended {
            *self.suspended.entry((limit.clone(), reason.as_str())).or_default() += 1;
        }
        self.duration.record(row.latency_us);
        if row.decision == Decision::Admitted {
            self.overhead.record(row.overhead_us);
        }
        if let Some(first_byte_us) = row.first_byte_us {
            self.first_byte.record(first_byte_us);
        }
        for limit in &row.shadow {
            *self.shadow_breaches.entry(limit.clone()).or_default() += 1;
        }
        let usage = &row.usage;
        let kinds = [usage.input, usage.output, usage.cached_input, usage.cache_write, usage.reasoning];
        self.tokens.iter_mut().zip(kinds).for_each(|(sum, tokens)| *sum = sum.saturating_add(tokens));
        self.cost_nanousd = self.cost_nanousd.saturating_add(row.cost.map_or(0, |cost| cost.0));
        if row.forwarded {
            self.unpriced_rows += u64::from(row.price == PriceSource::Unpriced);
            self.estimated_rows += u64::from(row.usage.source == shards::usage::UsageSource::Estimated);
        }
    }

    /// Adds another core's counts.
    pub fn add(&mut self, other: &Numbers) {
        fn merge<K: Ord + Clone>(ours: &mut BTreeMap<K, u64>, theirs: &BTreeMap<K, u64>) {
            theirs.iter().for_each(|(key, count)| *ours.entry(key.clone()).or_default() += count);
        }
        merge(&mut self.requests, &other.requests);
        merge(&mut self.refusals, &other.refusals);
        merge(&mut self.suspended, &other.suspended);
        merge(&mut self.unjudged, &other.unjudged);
        merge(&mut self.unauthenticated, &other.unauthenticated);
        merge(&mut self.shadow_breaches, &other.shadow_breaches);
        self.duration.add(&other.duration);
        self.overhead.add(&other.overhead);
        self.first_byte.add(&other.first_byte);
        self.tokens.iter_mut().zip(other.tokens).for_each(|(sum, tokens)| *sum = sum.saturating_add(tokens));
        self.cost_nanousd = self.cost_nanousd.saturating_add(other.cost_nanousd);
        self.unpriced_rows += other.unpriced_rows;
        self.estimated_rows += other.estimated_rows;
        self.usage_anomalies += other.usage_anomalies;
        self.upstream_connects += other.upstream_connects;
        self.panics += other.panics;
    }
}

/// Changes a count that one thread alone writes, so no locked instruction is needed. Relaxed: who reads it learns nothing else.
fn move_by(count: &AtomicI64, change: i64) {
    count.store(count.load(Ordering::Relaxed) + change, Ordering::Relaxed);
}

/// Counts one under the key for which `is_it`. The few keys there nearly always are stand in one node of the map, so
/// looking at each takes less than making one to look it up by, which counts references that all cores share.
fn count<K: Ord>(counts: &mut BTreeMap<K, u64>, is_it: impl Fn(&K) -> bool, key: impl FnOnce() -> K) {
    const FEW: usize = 11;
    let known = if counts.len() <= FEW { counts.iter_mut().find(|(key, _)| is_it(key)) } else { None };
    match known {
        Some((_, count)) => *count += 1,
        None => *counts.entry(key()).or_default() += 1,
    }
}

fn none() -> Arc<str> {
    static NONE: std::sync::OnceLock<Arc<str>> = std::sync::OnceLock::new();
    NONE.get_or_init(|| Arc::from("")).clone()
}

/// One core's counters.
#[derive(Default)]
pub struct CoreMetrics {
    numbers: Mutex<Numbers>,
    connections: AtomicI64,
    inflight: AtomicI64,
}

impl CoreMetrics {
    /// Changes the counts. Contended only by a scrape.
    pub fn with(&self, change: impl FnOnce(&mut Numbers)) {
        change(&mut self.numbers.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
    }

    /// A copy, for the scrape.
    pub fn numbers(&self) -> Numbers {
        self.numbers.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    /// A caller's connection opened (+1) or closed (−1). Only called by the core itself.
    pub fn connection(&self, change: i64) {
        move_by(&self.connections, change);
    }

    /// A request began (+1) or ended (−1). Only called by the core itself.
    pub fn request(&self, change: i64) {
        move_by(&self.inflight, change);
    }

    /// Open connections of callers.
    pub fn connections(&self) -> i64 {
        self.connections.load(Ordering::Relaxed)
    }

    /// Requests between their head and their last byte.
    pub fn inflight(&self) -> i64 {
        self.inflight.load(Ordering::Relaxed)
    }
}

//! Where live counters are kept: one per (limit identity, node), in 256 shards.
//!
//! Promises that a key never has two counters, whoever asks at the same time and whatever is swept away meanwhile: a
//! counter is created under its shard's write lock, and evicted under it, and only when it is at rest and nobody but
//! the shard holds it. Decides nothing about limits. Cores ask when they resolve a plan, never per request.

#[cfg(loom)]
use loom::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::hash::BuildHasher;
use std::sync::{Arc, PoisonError};
#[cfg(not(loom))]
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use crossbeam_utils::CachePadded;
use foldhash::fast::FixedState;

use crate::cell::Cell;
use crate::gauge::Gauge;
use crate::limit::{Class, Limit, LimitIdentity};
use crate::meter::Meter;
use crate::plan::Counter;
use crate::scope::{Node, SHARDS, shard_of};
use crate::units::Now;

type Shard = std::collections::HashMap<ScopeKey, Counter, FixedState>;

/// What a counter is kept under. The hash is seeded by a constant: keys come from the operator, who has easier ways
/// to slow the gateway down than colliding node names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ScopeKey {
    pub identity: LimitIdentity,
    pub node: Node,
}

/// Looks at a meter that is being made, before anybody else can.
pub type Newborn = Box<dyn Fn(&ScopeKey, &Meter) + Send + Sync>;

/// All counters of this process.
pub struct Registry {
    hasher: FixedState,
    /// What a meter starts from, where burn is exchanged with peers.
    newborn: Option<Newborn>,
    shards: Box<[CachePadded<RwLock<Shard>>]>,
}

/// What one sweep did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    pub kept: usize,
    pub evicted: usize,
}

impl Default for Registry {
    fn default() -> Registry {
        Registry::new()
    }
}

impl Registry {
    pub fn new() -> Registry {
        let hasher = FixedState::default();
        let shards = (0..SHARDS).map(|_| CachePadded::new(RwLock::new(Shard::with_hasher(hasher.clone())))).collect();
        Registry { hasher, newborn: None, shards }
    }

    /// Shows every meter to `newborn` when it is made, under its shard's lock: whoever sees the meter sees what `newborn`
    /// put into it.
    pub fn with_newborn(mut self, newborn: Newborn) -> Registry {
        self.newborn = Some(newborn);
        self
    }

    /// The one counter of this limit at this node, made now if there is none. May wait for another core that is
    /// resolving or sweeping in the same shard.
    pub fn counter(&self, limit: &Limit, node: &Node) -> Counter {
        let key = ScopeKey { identity: limit.identity.clone(), node: node.clone() };
        let shard = self.shard(&key);
        if let Some(counter) = read(shard).get(&key) {
            return counter.clone(); // cloned under the lock: from here on a sweep sees it held
        }
        // Another core may have been faster between the two locks; then its counter is the one.
        let mut shard = write(shard);
        let entry = shard.entry(key).or_insert_with_key(|key| {
            let counter = fresh(limit);
            if let (Counter::Meter(meter), Some(newborn)) = (&counter, &self.newborn) {
                newborn(key, meter);
            }
            counter
        });
        entry.clone()
    }

    /// The meter of a LedgerSettled limit; `None` for the other classes, which have none.
    pub fn meter(&self, limit: &Limit, node: &Node) -> Option<Arc<Meter>> {
        if limit.kind.class() != Class::LedgerSettled {
            return None;
        }
        match self.counter(limit, node) {
            Counter::Meter(meter) => Some(meter),
            Counter::Cell(_) | Counter::Gauge(_) => None, // the class is part of the key, so this is not met
        }
    }

    /// The counter if it exists. Creates nothing: for pages, which must not fill the registry by looking at it.
    pub fn find(&self, limit: &Limit, node: &Node) -> Option<Counter> {
        self.get(&ScopeKey { identity: limit.identity.clone(), node: node.clone() })
    }

    /// The same by its key.
    pub fn get(&self, key: &ScopeKey) -> Option<Counter> {
        read(self.shard(key)).get(key).cloned()
    }

    /// Drops the counters of this core's shards that are at rest and that no plan, lease or reserve holds: an
    /// untouched counter answers exactly as a new one would. Called by each core for its own shards now and then.
    pub fn sweep(&self, owner_core: usize, cores: usize, now: Now) -> Swept {
        let mut swept = Swept::default();
        for shard in self.shards.iter().skip(owner_core).step_by(cores.max(1)) {
            let mut shard = write(shard);
            let before = shard.len();
            shard.retain(|_, counter| !may_go(counter, now));
            swept.kept += shard.len();
            swept.evicted += before - shard.len();
        }
        swept
    }

    /// Shows every counter, shard by shard, for the admin page. A counter made meanwhile may be missed. `visit` runs
    /// outside the lock.
    pub fn each(&self, mut visit: impl FnMut(&ScopeKey, &Counter)) {
        let mut batch: Vec<(ScopeKey, Counter)> = Vec::new();
        for shard in &self.shards {
            batch.extend(read(shard).iter().map(|(key, counter)| (key.clone(), counter.clone())));
            for (key, counter) in batch.drain(..) {
                visit(&key, &counter);
            }
        }
    }

    /// How many counters there are.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| read(shard).len()).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn shard(&self, key: &ScopeKey) -> &RwLock<Shard> {
        &self.shards[shard_of(self.hasher.hash_one(key))] // shard_of stays below SHARDS, which is how many there are
    }
}

/// Whether nobody else holds the counter and it is as good as new. `get_mut` is the count and the fence in one: it sees
/// everything the last other holder did. Called under the shard's write lock, so nobody can take hold of it meanwhile.
fn may_go(counter: &mut Counter, now: Now) -> bool {
    match counter {
        Counter::Cell(cell) => Arc::get_mut(cell).is_some_and(|cell| cell.at_rest(now.mono)),
        Counter::Gauge(gauge) => Arc::get_mut(gauge).is_some_and(|gauge| gauge.in_flight() == 0),
        Counter::Meter(meter) => Arc::get_mut(meter).is_some_and(|meter| !meter.is_running(now.wall)),
    }
}

fn fresh(limit: &Limit) -> Counter {
    match &limit.rate {
        Some(rate) => Counter::Cell(Arc::new(Cell::new(rate))),
        None if limit.kind.class() == Class::InflightLease => Counter::Gauge(Arc::new(Gauge::new())),
        None => Counter::Meter(Arc::new(Meter::new())),
    }
}

// A panic under a lock cannot leave a map half changed (nothing in between calls out), so a poisoned lock is as good
// as any and must not take the other cores down with it.
fn read(shard: &RwLock<Shard>) -> RwLockReadGuard<'_, Shard> {
    shard.read().unwrap_or_else(PoisonError::into_inner)
}

fn write(shard: &RwLock<Shard>) -> RwLockWriteGuard<'_, Shard> {
    shard.write().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::limit::{Algorithm, Attach, LimitType, Match, Posture, Store};
    use crate::meter::PeriodSpan;
    use crate::rate::{RateParams, RateSpec};
    use crate::refusal::Wording;
    use crate::units::{MonoNs, WallMs};

    fn limit(kind: LimitType) -> Limit {
        let spec =
            RateSpec { amount: 60, period_ns: 60_000_000_000, burst: 60, algorithm: Algorithm::Gcra, debt: false };
        Limit {
            id: Arc::from(kind.as_str()),
            kind,
            attach: Attach::Node(Node::global()),
            matches: Match::default(),
            amount: 60,
            burst: 60,
            period: None,
            algorithm: Algorithm::Gcra,
            store: Store::Local,
            posture: Posture::Enforcing,
            identity: LimitIdentity(Arc::from(kind.as_str())),
            rate: kind.is_rate().then(|| RateParams::new(spec).expect("a plain rate")),
            wording: Wording::of(&Arc::from(kind.as_str()), kind, None, Posture::Enforcing),
        }
    }

    fn at(mono_s: u64) -> Now {
        Now { mono: MonoNs(mono_s * 1_000_000_000), wall: WallMs(mono_s as i64 * 1_000) }
    }

    fn sweep_all(registry: &Registry, now: Now) -> Swept {
        registry.sweep(0, 1, now)
    }

    #[test]
    fn a_limit_has_one_counter_for_each_node() {
        let registry = Registry::new();
        let (rpm, acme) = (limit(LimitType::Rpm), Node::parse("org:acme").expect("a node"));
        let cell = |node: &Node| match registry.counter(&rpm, node) {
            Counter::Cell(cell) => cell,
            other => panic!("a cell expected, got {other:?}"),
        };
        assert!(Arc::ptr_eq(&cell(&acme), &cell(&acme)));
        assert!(!Arc::ptr_eq(&cell(&acme), &cell(&Node::global())));
        assert_eq!(registry.len(), 2);
        assert!(registry.find(&limit(LimitType::Concurrency), &acme).is_none(), "looking creates nothing");
        assert!(registry.meter(&rpm, &acme).is_none(), "a rate has no meter");
        assert_eq!(registry.len(), 2);
    }

    #[test]
    fn a_cell_goes_when_it_has_drained_and_nobody_holds_it() {
        let registry = Registry::new();
        let rpm = limit(LimitType::Rpm);
        let held = registry.counter(&rpm, &Node::global());
        let Counter::Cell(cell) = &held else { panic!("a cell expected") };
        let rate = rpm.rate.expect("rpm has a rate");
        assert!(cell.acquire(&rate, at(10).mono, 1).is_ok()); // one request is gone again a second later
        assert_eq!(sweep_all(&registry, at(20)), Swept { kept: 1, evicted: 0 }, "a plan holds it");
        drop(held);
        assert_eq!(sweep_all(&registry, at(10)), Swept { kept: 1, evicted: 0 }, "it still counts one");
        assert_eq!(sweep_all(&registry, at(11)), Swept { kept: 0, evicted: 1 });
        assert!(registry.is_empty());
    }

    #[test]
    fn a_gauge_stays_as_long_as_a_lease_is_out() {
        let registry = Registry::new();
        let Counter::Gauge(gauge) = registry.counter(&limit(LimitType::Concurrency), &Node::global()) else {
            panic!("a gauge expected")
        };
        let lease = gauge.try_lease(1).expect("a free slot");
        drop(gauge);
        assert_eq!(sweep_all(&registry, at(1)).evicted, 0);
        let limit = limit(LimitType::Concurrency);
        let Some(Counter::Gauge(gauge)) = registry.find(&limit, &Node::global()) else { panic!("it was kept") };
        gauge.free(lease);
        drop(gauge);
        assert_eq!(sweep_all(&registry, at(1)).evicted, 1);
    }

    #[test]
    fn a_meter_stays_until_its_period_has_ended() {
        let registry = Registry::new();
        let meter = registry.meter(&limit(LimitType::BudgetUsd), &Node::global()).expect("a budget has a meter");
        meter.publish(PeriodSpan { start: WallMs(0), end: WallMs(60_000) }, 7);
        drop(meter);
        assert_eq!(sweep_all(&registry, at(59)).evicted, 0);
        assert_eq!(sweep_all(&registry, at(60)).evicted, 1);
    }

    #[test]
    fn cores_sweep_disjoint_shards_and_together_all_of_them() {
        let registry = Registry::new();
        let rpm = limit(LimitType::Rpm);
        for n in 0..1_000 {
            registry.counter(&rpm, &Node::parse(&format!("org:o{n}")).expect("a node"));
        }
        let mut seen = 0;
        registry.each(|_, _| seen += 1);
        assert_eq!(seen, 1_000);
        let evicted: Vec<usize> = (0..3).map(|core| registry.sweep(core, 3, at(1)).evicted).collect();
        assert_eq!(evicted.iter().sum::<usize>(), 1_000);
        assert!(evicted.iter().all(|evicted| (250..420).contains(evicted)), "shards are used evenly: {evicted:?}");
    }
}

//! What every thread of the process sees: the rules in force, the keys, the counters, and the health of the ledger.
//!
//! Data cores keep private copies of everything they read per request and look at one number, [`Shared::generation`],
//! to learn that a copy is out of date. Nobody waits for anybody here.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use io::doorbell::Doorbell;
use io::ring::RingCounts;
use io::runtime::DriverInUse;
use shards::gate::FleetSeen;
use shards::meter::MeterBeat;
use shards::registry::Registry;
use shards::units::MonoNs;

use crate::blanks::Blanks;
use crate::config::ReplicaIdentity;
use crate::coordination::Coordination;
use crate::keys::KeyStore;
use crate::ledger::LedgerState;
use crate::metrics::CoreMetrics;
use crate::rules::Rules;

/// One process, one of these.
pub struct Shared {
    /// This replica's name, as rows and panels spell it.
    pub replica: ReplicaIdentity,
    /// The rules in force. Published whole by boot and reload.
    pub rules: ArcSwap<Rules>,
    /// Virtual keys; a mint or revoke publishes a new snapshot.
    pub keys: KeyStore,
    /// Every shared counter.
    pub registry: Registry,
    /// When the meters were last published.
    pub beat: MeterBeat,
    /// The ledger's health, and what admin pages ask the accountant for.
    pub ledger: LedgerState,
    /// One entry per data core, in order.
    pub cores: Vec<CoreSeen>,
    /// The shared store; `None` where none is configured.
    pub coordination: Option<Arc<Coordination>>,
    /// SIGTERM was received: readiness is off, connections end after their request.
    pub draining: AtomicBool,
    /// A second signal was received: connections end now.
    pub cutting: AtomicBool,
    /// Wall ms at boot.
    pub started_wall_ms: i64,
    generation: AtomicU64,
}

/// What others may know of a data core.
pub struct CoreSeen {
    /// Its request counters, read at scrape.
    pub metrics: Arc<CoreMetrics>,
    /// Rows on their way from it to the accountant.
    pub rows: Arc<RingCounts>,
    /// Rows that came back from the accountant, for it to fill again.
    pub blanks: Arc<Blanks>,
    /// Wakes it.
    pub doorbell: Doorbell,
    /// Rows of this core that are on disk; only kept where `ledger.sync: always`.
    pub synced_rows: Arc<AtomicU64>,
    /// The driver it got; `None` until it runs.
    pub driver: std::sync::OnceLock<DriverInUse>,
}

impl Shared {
    /// Everything but the generation, which starts at one.
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        replica: ReplicaIdentity,
        rules: Rules,
        keys: KeyStore,
        registry: Registry,
        ledger: LedgerState,
        cores: Vec<CoreSeen>,
        coordination: Option<Arc<Coordination>>,
        started_wall_ms: i64,
    ) -> Self {
        Shared {
            replica,
            rules: ArcSwap::from_pointee(rules),
            keys,
            registry,
            beat: MeterBeat::new(),
            ledger,
            cores,
            coordination,
            draining: AtomicBool::new(false),
            cutting: AtomicBool::new(false),
            started_wall_ms,
            generation: AtomicU64::new(1),
        }
    }

    /// Changes whenever rules or keys changed: a core that remembers another number looks again.
    pub fn generation(&self) -> u64 {
        // Acquire pairs with `announce`: whoever sees the number sees what was published before it.
        self.generation.load(Ordering::Acquire)
    }

    /// Tells every core that something was published. Effective for the next request each of them reads.
    pub fn announce(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
    }

    /// How many replicas share the limits; 1 without a shared store. Read once per request.
    pub fn n_live(&self, now: MonoNs) -> u32 {
        self.coordination.as_ref().map_or(1, |coordination| coordination.n_live(now).0)
    }

    /// The same, and what else the gates must know of the fleet.
    pub fn fleet_seen(&self, now: MonoNs) -> (u32, FleetSeen) {
        self.coordination.as_ref().map_or((1, FleetSeen::default()), |coordination| coordination.seen(now))
    }

    /// Since peers' burn was last exchanged; `None`: never since boot, or without a shared store. `now_ns` is only asked
    /// where there is one: a refusal has no time to look at a clock for nothing.
    pub fn convergence_age_ms(&self, now_ns: impl FnOnce() -> u64) -> Option<u64> {
        let flushed = self.coordination.as_ref()?.fleet.convergence.flushed()?;
        Some(MonoNs(now_ns()).since(flushed) / 1_000_000)
    }

    /// Rows handed over by the cores and not folded yet.
    pub fn tee_lag_rows(&self) -> u64 {
        self.cores.iter().map(|core| core.rows.lag()).sum()
    }

    /// Rows lost because the ledger could not keep up or could not be written.
    pub fn dropped_rows(&self) -> u64 {
        self.cores.iter().map(|core| core.rows.dropped()).sum::<u64>() + self.ledger.dropped_rows()
    }
}

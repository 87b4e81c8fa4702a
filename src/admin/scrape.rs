//! `GET /metrics`: what the cores counted, summed when somebody looks.
//!
//! Nothing is registered or kept between two scrapes: the numbers live with the cores, the ledger and the key store. No
//! label names a tenant; label values are ids of the config file, words of the contract and small numbers.

mod process;

use std::fmt::Error;
use std::sync::Arc;

use axum::extract::State as Extracted;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::prometheus_text::{self, CONTENT_TYPE as TEXT_FORMAT};
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, LabelSetEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use shards::coordinate::breaker::State;
use shards::suspend::Reason;
use shards::units::Now;

use super::answer::reading;
use super::limits::fullest;
use super::{Admin, now};
use crate::coordination::convergence::Convergence;
use crate::keys::Standing;
use crate::last_stop::LastStop;
use crate::ledger::DiskWork;
use crate::me;
use crate::metrics::{Histogram, Numbers, TOKEN_KINDS};
use crate::shared::Shared;

pub async fn metrics(Extracted(admin): Extracted<Arc<Admin>>) -> Response {
    // How full limits are takes a walk over all counters, which may be a million.
    let scrape = reading(move || {
        let mut text = String::with_capacity(32 * 1024);
        // A String takes everything, so that encoding cannot fail.
        let _ = prometheus_text::encode(&mut text, &admin.metrics);
        text
    });
    match scrape.await {
        Ok(text) => ([(CONTENT_TYPE, TEXT_FORMAT)], text).into_response(),
        Err(fault) => fault.into_response(),
    }
}

/// What a scrape encodes.
pub fn registry(shared: Arc<Shared>) -> Registry {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Gateway(shared)));
    registry.register_collector(Box::new(process::Process));
    registry
}

/// Everything this process knows about its work.
struct Gateway(Arc<Shared>);

impl std::fmt::Debug for Gateway {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Gateway")
    }
}

impl Collector for Gateway {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let shared = &*self.0;
        let mut numbers = Numbers::default();
        shared.cores.iter().for_each(|core| numbers.add(&core.metrics.numbers()));
        let mut scrape = Scrape(encoder);
        requests(&mut scrape, &numbers)?;
        spend(&mut scrape, &numbers)?;
        cores(&mut scrape, shared)?;
        ledger(&mut scrape, shared)?;
        guarantees(&mut scrape, shared, &numbers)?;
        coordination(&mut scrape, shared, &numbers)?;
        build(&mut scrape, shared)
    }
}

fn requests(scrape: &mut Scrape<'_>, numbers: &Numbers) -> Result<(), Error> {
    scrape.counters(
        "tokentriage_requests",
        "Requests that reached a verdict, by endpoint, upstream (empty when none was asked) and status",
        numbers.requests.iter().map(|((endpoint, upstream, code), count)| {
            (labels([("endpoint", endpoint.as_str()), ("upstream", upstream), ("code", &code.to_string())]), *count)
        }),
    )?;
    scrape.counters(
        "tokentriage_refusals",
        "Requests refused by a limit, by its type and id",
        numbers.refusals.iter().map(|((kind, limit), count)| (labels([("type", kind), ("limit", limit)]), *count)),
    )?;
    scrape.counters(
        "tokentriage_unjudged_requests",
        "Requests answered before any verdict (bad heads, wrong keys, unknown paths), by status",
        numbers.unjudged.iter().map(|(code, count)| (labels([("code", &code.to_string())]), *count)),
    )?;
    scrape.counters(
        "tokentriage_unauthenticated_requests",
        "Requests answered with 401, by reason: no_key, bad_key (unknown, revoked or expired), two_keys",
        numbers.unauthenticated.iter().map(|(reason, count)| (labels([("reason", reason)]), *count)),
    )?;
    scrape.counters(
        "tokentriage_shadow_breaches",
        "Requests that a limit in shadow would have refused, by limit",
        numbers.shadow_breaches.iter().map(|(limit, count)| (labels([("limit", limit)]), *count)),
    )?;
    scrape.histogram("tokentriage_request_duration_seconds", "From head to last byte", &numbers.duration)?;
    scrape.histogram(
        "tokentriage_gateway_overhead_seconds",
        "The part of an admitted request's duration that the gateway added",
        &numbers.overhead,
    )?;
    scrape.histogram(
        "tokentriage_upstream_first_byte_seconds",
        "From the request's last byte to the upstream's first",
        &numbers.first_byte,
    )?;
    scrape.counter("tokentriage_upstream_connects", "Connections opened to providers", numbers.upstream_connects)?;
    scrape.counter("tokentriage_panics", "Tasks that panicked; each is a bug, and the core lived on", numbers.panics)
}

fn spend(scrape: &mut Scrape<'_>, numbers: &Numbers) -> Result<(), Error> {
    scrape.counters(
        "tokentriage_tokens",
        "Tokens used, by kind; cached_input and cache_write are parts of input, reasoning of output",
        TOKEN_KINDS.iter().zip(numbers.tokens).map(|(kind, tokens)| (labels([("kind", kind)]), tokens)),
    )?;
    let cost_usd = numbers.cost_nanousd as f64 / 1e9; // exact to a nano-dollar up to nine million dollars
    scrape.number("tokentriage_cost_usd", "What priced requests cost, in USD", &ConstCounter::new(cost_usd))?;
    scrape.counter("tokentriage_unpriced_rows", "Requests served without a known price", numbers.unpriced_rows)?;
    scrape.counter("tokentriage_estimated_rows", "Requests whose usage was estimated", numbers.estimated_rows)?;
    scrape.counter(
        "tokentriage_usage_anomalies",
        "Usage reports of providers with impossible numbers",
        numbers.usage_anomalies,
    )
}

fn cores(scrape: &mut Scrape<'_>, shared: &Shared) -> Result<(), Error> {
    let cores = &shared.cores;
    let inflight: i64 = cores.iter().map(|core| core.metrics.inflight()).sum();
    let connections: i64 = cores.iter().map(|core| core.metrics.connections()).sum();
    scrape.gauge("tokentriage_inflight", "Requests between their head and their last byte", inflight)?;
    scrape.gauge("tokentriage_connections", "Open connections of callers", connections)?;
    scrape.gauges(
        "tokentriage_ring_lag_rows",
        "Rows handed over by a core and not folded yet",
        cores.iter().enumerate().map(|(index, core)| {
            (labels([("core", &index.to_string())]), i64::try_from(core.rows.lag()).unwrap_or(i64::MAX))
        }),
    )?;
    scrape.gauges(
        "tokentriage_core_info",
        "The I/O driver a core runs on, and its set-up",
        cores.iter().enumerate().filter_map(|(index, core)| {
            let driver = core.driver.get()?;
            let index = index.to_string();
            Some((labels([("core", &index), ("driver", driver.kind.as_str()), ("setup", driver.setup)]), 1))
        }),
    )
}

fn ledger(scrape: &mut Scrape<'_>, shared: &Shared) -> Result<(), Error> {
    let ledger = &shared.ledger;
    scrape.counter("tokentriage_dropped_rows", "Rows lost: in no file and in no sum of one", shared.dropped_rows())?;
    scrape.counter("tokentriage_written_rows", "Rows handed to the kernel", ledger.written_rows())?;
    let waiting = i64::try_from(ledger.waiting_rows()).unwrap_or(i64::MAX);
    scrape.gauge("tokentriage_waiting_rows", "Rows in memory that wait for the disk", waiting)?;
    scrape.histograms(
        "tokentriage_ledger_write_seconds",
        "What the ledger does to the disk: write hands a batch to the kernel, sync puts it on the disk",
        [("write", ledger.disk_work(DiskWork::Write)), ("sync", ledger.disk_work(DiskWork::Sync))]
            .into_iter()
            .map(|(work, took)| (labels([("op", work)]), took)),
    )?;
    scrape.counter("tokentriage_ledger_errors", "Writes and syncs that failed", ledger.errors())?;
    let trouble = i64::from(ledger.trouble().is_some());
    scrape.gauge("tokentriage_ledger_trouble", "1 while the disk takes no rows", trouble)?;
    let unclean = i64::from(*ledger.last_stop() != LastStop::Clean);
    scrape.gauge("tokentriage_unclean_start", "1 if the process before this one did not stop cleanly", unclean)
}

fn guarantees(scrape: &mut Scrape<'_>, shared: &Shared, numbers: &Numbers) -> Result<(), Error> {
    let now = now();
    let rules = shared.rules.load();
    scrape.gauges(
        "tokentriage_suspended",
        "1 while the guarantee of a limit is not held",
        rules
            .limits
            .limits
            .iter()
            .map(|limit| (labels([("limit", &limit.id)]), i64::from(me::suspension(shared, limit, now).is_some())))
            .chain(shared.keys.followed().map(|followed| {
                let is_suspended = followed.standing(now.mono) != Standing::Fresh;
                (labels([("limit", &followed.limit_id)]), i64::from(is_suspended))
            })),
    )?;
    scrape.shares(
        "tokentriage_limit_used_ratio",
        "How full the fullest scope of a limit is: 0 untouched, 1 refuses; more where a limit can be passed",
        fullest(shared, now).into_iter().map(|(limit, used)| (labels([("limit", &limit)]), used)),
    )?;
    scrape.counters(
        "tokentriage_suspended_verdicts",
        "Verdicts that a limit could not hold, by limit and reason",
        numbers
            .suspended
            .iter()
            .map(|((limit, reason), count)| (labels([("limit", limit), ("reason", reason)]), *count)),
    )?;
    let known_at_ms = shared.keys.refreshed().map_or(shared.started_wall_ms, |at| at.0);
    scrape.number(
        "tokentriage_identity_age_seconds",
        "Since the keys were last known to be what the store says; since the start while there are none",
        &ConstGauge::new(now.wall.0.saturating_sub(known_at_ms).max(0) as f64 / 1e3),
    )?;
    let is_seeded = shared.keys.standing(now.mono) != Standing::NeverSeeded;
    scrape.gauge("tokentriage_identity_seeded", "1 once there are keys to tell callers by", i64::from(is_seeded))?;
    if let Some(coordination) = &shared.coordination {
        convergence(scrape, &coordination.fleet.convergence, now)?;
    }
    scrape.gauge(
        "tokentriage_fleet_live",
        "Live replicas as this one sees them; 1 on a single node",
        shared.n_live(now.mono).into(),
    )
}

/// NaN is how Prometheus says that there is no age yet.
fn convergence(scrape: &mut Scrape<'_>, convergence: &Convergence, now: Now) -> Result<(), Error> {
    if !convergence.is_attached() {
        return Ok(());
    }
    let age_s = convergence.flushed().map_or(f64::NAN, |flushed| now.mono.since(flushed) as f64 / 1e9);
    scrape.number(
        "tokentriage_convergence_age_seconds",
        "Since burn was last exchanged with every peer in full",
        &ConstGauge::new(age_s),
    )?;
    let unsent = i64::try_from(convergence.unsent_rows()).unwrap_or(i64::MAX);
    scrape.gauge("tokentriage_convergence_unsent_rows", "Own rows that peers cannot know of yet", unsent)
}

/// Nothing where no shared store is configured.
fn coordination(scrape: &mut Scrape<'_>, shared: &Shared, numbers: &Numbers) -> Result<(), Error> {
    let Some(coordination) = &shared.coordination else { return Ok(()) };
    scrape.histogram(
        "tokentriage_redis_rtt_seconds",
        "Verdicts of the store that came in time, from writing the call to reading the reply",
        &coordination.rtt(),
    )?;
    // The same verdicts that rows, headers and `tokentriage_suspended_verdicts` tell of, by reason alone.
    let fell_back = |reason: &'static str| {
        let of_reason = numbers.suspended.iter().filter(|((_, why), _)| *why == reason);
        of_reason.map(|(_, count)| count).sum::<u64>()
    };
    scrape.counters(
        "tokentriage_redis_fallbacks",
        "Verdicts of `store: redis` that the local cell gave, by reason",
        Reason::FALLBACKS.iter().map(|reason| (labels([("reason", reason.as_str())]), fell_back(reason.as_str()))),
    )?;
    scrape.counter(
        "tokentriage_redis_late_replies",
        "Replies of the store that came after their verdict was given",
        coordination.late_reply_count(),
    )?;
    let state = match coordination.breaker.state() {
        State::Closed { .. } => 0,
        State::HalfOpen { .. } => 1,
        State::Open { .. } => 2,
    };
    scrape.gauge("tokentriage_breaker_state", "Whether the store is asked: 0 closed, 1 half open, 2 open", state)
}

fn build(scrape: &mut Scrape<'_>, shared: &Shared) -> Result<(), Error> {
    let mut drivers = shared.cores.iter().filter_map(|core| Some(core.driver.get()?.kind.as_str()));
    let first = drivers.next().unwrap_or("none");
    let driver = if drivers.all(|driver| driver == first) { first } else { "mixed" };
    #[cfg(feature = "count-allocations")]
    scrape.counter("tokentriage_allocations", "Heap allocations of the process", crate::allocations::count())?;
    let labels = labels([("version", env!("CARGO_PKG_VERSION")), ("driver", driver)]);
    scrape.gauges("tokentriage_build_info", "The version, and the I/O driver of its cores", [(labels, 1)].into_iter())
}

/// Names and values, in the order they are written.
struct Labels(Vec<(&'static str, String)>);

fn labels<const N: usize>(pairs: [(&'static str, &str); N]) -> Labels {
    Labels(pairs.into_iter().map(|(name, value)| (name, value.to_owned())).collect())
}

impl EncodeLabelSet for Labels {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> Result<(), Error> {
        self.0.as_slice().encode(encoder)
    }
}

/// Writes one family after the other. Names of counters come without their `_total`.
struct Scrape<'a>(DescriptorEncoder<'a>);

impl Scrape<'_> {
    fn number(&mut self, name: &str, help: &str, value: &impl EncodeMetric) -> Result<(), Error> {
        value.encode(self.0.encode_descriptor(name, help, None, value.metric_type())?)
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) -> Result<(), Error> {
        self.number(name, help, &ConstCounter::new(value))
    }

    fn gauge(&mut self, name: &str, help: &str, value: i64) -> Result<(), Error> {
        self.number(name, help, &ConstGauge::new(value))
    }

    fn counters(&mut self, name: &str, help: &str, values: impl Iterator<Item = (Labels, u64)>) -> Result<(), Error> {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, value) in values {
            ConstCounter::new(value).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn gauges(&mut self, name: &str, help: &str, values: impl Iterator<Item = (Labels, i64)>) -> Result<(), Error> {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in values {
            ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn shares(&mut self, name: &str, help: &str, values: impl Iterator<Item = (Labels, f64)>) -> Result<(), Error> {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in values {
            ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) -> Result<(), Error> {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Histogram)?;
        let (sum, count, buckets) = in_seconds(histogram);
        family.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }

    fn histograms(
        &mut self,
        name: &str,
        help: &str,
        values: impl Iterator<Item = (Labels, Histogram)>,
    ) -> Result<(), Error> {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Histogram)?;
        for (labels, histogram) in values {
            let (sum, count, buckets) = in_seconds(&histogram);
            family.encode_family(&labels)?.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
        }
        Ok(())
    }
}

/// Sum, count, and (upper bound, values in this bucket alone). What is above the last bound shows in the count.
fn in_seconds(histogram: &Histogram) -> (f64, u64, Vec<(f64, u64)>) {
    let buckets = histogram.bounds_us.iter().zip(histogram.counts).map(|(bound, count)| (*bound as f64 / 1e6, count));
    (histogram.sum_us as f64 / 1e6, histogram.counts.iter().sum(), buckets.collect())
}

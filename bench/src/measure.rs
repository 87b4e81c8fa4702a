//! One window: a load on a target, and what the kernel says the target used meanwhile.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::load::{self, Expect, Load, Pace, Request, Tally, Window};
use crate::machine::Placement;
use crate::process;
use crate::provider::Provider;
use crate::results::WindowResult;
use crate::scenario::LoadSpec;
use crate::stop;
use crate::targets::Target;
use crate::trouble::{Result, While};

/// The percentiles of the table.
pub const PERCENTILES: &[(&str, f64)] =
    &[("p50_us", 0.5), ("p90_us", 0.9), ("p99_us", 0.99), ("p999_us", 0.999), ("p9999_us", 0.9999)];

/// What a load is made of, ready to be started.
pub struct Prepared {
    main: Load,
    beside: Option<Load>,
    /// Frames of a stream; 0 for plain replies.
    frames: u32,
    /// Of the target, the load and the provider; none where others cannot be told from the target.
    cpus: Vec<usize>,
}

pub fn prepare(
    spec: &LoadSpec,
    rate: Option<f64>,
    target: &Target,
    provider: &Provider,
    placement: &Placement,
) -> Prepared {
    let beside = spec.beside.as_ref().map(|beside| Load {
        is_beside: true,
        is_busy: false,
        ..load(beside, beside.rate, target, provider, placement)
    });
    let main = load(spec, rate.or(spec.rate), target, provider, placement);
    let frames = if spec.stream.unwrap_or(false) { provider.settings.chunks } else { 0 };
    let mut cpus = match &target.process {
        Some(_) => [&placement.gateway[..], &placement.load, &placement.provider].concat(),
        None if target.is_mocked => [&placement.load[..], &placement.provider].concat(),
        // What runs already may do so on these CPUs, and is no other.
        None => Vec::new(),
    };
    cpus.sort_unstable();
    cpus.dedup();
    Prepared { main, beside, frames, cpus }
}

fn load(spec: &LoadSpec, rate: Option<f64>, target: &Target, provider: &Provider, placement: &Placement) -> Load {
    let connections = spec.connections.unwrap_or(32);
    let stream = spec.stream.unwrap_or(false);
    let pace = match rate {
        Some(rate) => Pace::Open { rate, is_poisson: spec.poisson.unwrap_or(false) },
        None if spec.once.unwrap_or(false) => Pace::Once,
        None => Pace::Closed { think_ns: spec.think_ms.unwrap_or(0) * 1_000_000 },
    };
    let expect = match spec.expect_status {
        Some(status) => Expect::Status(status),
        None if !target.is_mocked => Expect::Complete,
        None if stream => Expect::Stream { frames: provider.settings.chunks },
        None => Expect::Reply,
    };
    let is_together = placement.load.len() == 1 && placement.load == placement.provider;
    // Where all share all CPUs, a load that never sleeps would take the target's.
    let is_busy = spec.busy_poll.unwrap_or(false) && placement.load != placement.gateway;
    Load {
        target: target.addr,
        request: Request::chat(target.addr, &target.path, spec.body_bytes.unwrap_or(600), stream),
        keys: target.keys.clone(),
        keys_taken: Arc::default(),
        connections,
        pace,
        expect,
        requests_per_connection: spec.requests_per_connection.unwrap_or(0),
        ramp_ns: spec.ramp_ms.unwrap_or(0) * 1_000_000,
        timeout_ns: spec.timeout_ms.unwrap_or(10_000) * 1_000_000,
        threads: placement.load.len().min(8),
        cpus: placement.load.clone(),
        is_busy,
        provider: provider.loan().filter(|_| is_together),
        is_beside: false,
    }
}

/// What was used at one instant.
struct Used {
    at: Instant,
    target_ns: u64,
    own_ns: u64,
    done: load::Done,
    /// Of a build that counts them.
    allocations: Option<f64>,
    /// By others on the same CPUs.
    others_ns: Option<i128>,
}

impl Used {
    fn now(prepared: &Prepared, target: &Target, running: &load::Running) -> Self {
        let target_ns = target.process.as_ref().map_or(0, process::Process::cpu_ns);
        let allocations = target
            .admin
            .filter(|_| target.is_counting)
            .and_then(|admin| metric_value(&fetch(admin, "/metrics").ok()?, "tokentriage_allocations_total"));
        let (at, own_ns, done) = (Instant::now(), process::own_cpu_ns(), running.done());
        // Last: it reads many files, and delays nothing that is divided by another.
        Used { at, target_ns, own_ns, done, allocations, others_ns: process::others_cpu_ns(&prepared.cpus) }
    }
}

/// One window as it was seen.
struct Seen {
    length: Duration,
    round: u32,
    before: Used,
    after: Used,
    rss_before_kib: u64,
    rss_midway_kib: u64,
    tally: Tally,
    beside: Option<Tally>,
}

/// Runs one window. `midway` is called once when half of it is over: for faults. An error when a stop cut it short.
pub fn window(
    prepared: &Prepared,
    target: &Target,
    warmup: Duration,
    length: Duration,
    round: u32,
    midway: &mut dyn FnMut(),
) -> Result<WindowResult> {
    let ns = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    let rss_kib = || target.process.as_ref().map_or(0, process::Process::rss_kib);
    let rss_before_kib = rss_kib();
    // Connections that ask only once do so while the others warm up.
    let begin = if prepared.main.pace == Pace::Once { Duration::ZERO } else { warmup };
    let window = Window { origin: Instant::now(), begin_ns: ns(begin), end_ns: ns(warmup + length) };
    let beside = prepared.beside.as_ref().map(|load| load::start(load, window)).transpose();
    let beside = beside.whilst(|| "the load beside".to_owned())?;
    let running = load::start(&prepared.main, window).whilst(|| "the load".to_owned())?;
    stop::sleep(warmup.saturating_sub(window.origin.elapsed()));
    let before = Used::now(prepared, target, &running);
    stop::sleep((warmup + length / 2).saturating_sub(window.origin.elapsed()));
    let rss_midway_kib = rss_kib();
    midway();
    stop::sleep((warmup + length).saturating_sub(window.origin.elapsed()));
    let after = Used::now(prepared, target, &running);
    let tally = running.finish().whilst(|| "the load".to_owned())?;
    let beside = beside.map(load::Running::finish).transpose().whilst(|| "the load beside".to_owned())?;
    stop::check()?;
    let seen = Seen { length, round, before, after, rss_before_kib, rss_midway_kib, tally, beside };
    Ok(summed(prepared, target, &seen))
}

fn summed(prepared: &Prepared, target: &Target, seen: &Seen) -> WindowResult {
    let Seen { length, before, after, tally, .. } = seen;
    let mut measures = BTreeMap::new();
    let mut put = |name: &str, value: f64| {
        if value.is_finite() {
            measures.insert(name.to_owned(), value);
        }
    };
    let elapsed_ns = (after.at - before.at).as_nanos() as f64;
    let requests = (after.done.requests - before.done.requests) as f64;
    let frames = (after.done.frames - before.done.frames) as f64;
    put("requests_all", requests);
    put("requests_ever", after.done.requests as f64);
    put("rps", tally.completed as f64 / length.as_secs_f64());
    if target.process.is_some() {
        let cpu_ns = (after.target_ns - before.target_ns) as f64;
        put("busy_percent", 100.0 * cpu_ns / elapsed_ns);
        if prepared.frames > 0 {
            // By frames, not by ended streams: streams end in waves, frames flow.
            put("cpu_us_per_stream", cpu_ns / 1e3 / (frames / f64::from(prepared.frames)));
        } else if prepared.beside.is_none() {
            put("cpu_us", cpu_ns / 1e3 / requests);
        }
    }
    // Looking for something to do is not work.
    let own_ns = (after.own_ns - before.own_ns).saturating_sub(after.done.idle_ns - before.done.idle_ns);
    put("own_busy_percent", 100.0 * own_ns as f64 / elapsed_ns);
    if let (Some(before), Some(after)) = (before.others_ns, after.others_ns) {
        put("others_percent", (100.0 * (after - before) as f64 / elapsed_ns).max(0.0));
    }
    if prepared.frames > 0 {
        put("frames_per_s", tally.frames as f64 / length.as_secs_f64());
    }
    let mut curve = Vec::new();
    if !tally.latency.is_empty() {
        for (name, share) in PERCENTILES {
            put(name, tally.latency.value_at_quantile(*share) as f64 / 1e3);
        }
        put("max_us", tally.latency.max() as f64 / 1e3);
        for nines in 0..=40 {
            // From the median towards 100 %, ten points for each nine: the axis of HdrHistogram's plots.
            let share = 1.0 - 0.5 * 10_f64.powf(-f64::from(nines) / 10.0);
            curve.push((share * 100.0, tally.latency.value_at_quantile(share) as f64 / 1e3));
        }
    }
    if !tally.first_byte.is_empty() {
        put("first_byte_p50_us", tally.first_byte.value_at_quantile(0.5) as f64 / 1e3);
        put("first_byte_p99_us", tally.first_byte.value_at_quantile(0.99) as f64 / 1e3);
    }
    if !tally.gap.is_empty() {
        put("gap_p50_us", tally.gap.value_at_quantile(0.5) as f64 / 1e3);
        put("gap_p99_us", tally.gap.value_at_quantile(0.99) as f64 / 1e3);
    }
    if matches!(prepared.main.pace, Pace::Open { .. }) {
        put("backlog_max", tally.backlog_max as f64);
    }
    if target.process.is_some() {
        put("rss_mb", seen.rss_midway_kib as f64 / 1024.0);
        if prepared.main.pace == Pace::Once {
            let grown = seen.rss_midway_kib.saturating_sub(seen.rss_before_kib) as f64 * 1024.0;
            put("bytes_per_idle_connection", grown / prepared.main.connections as f64);
        }
    }
    if let (Some(before), Some(after)) = (before.allocations, after.allocations) {
        put("allocations_per_request", (after - before) / requests);
    }
    let words = |failures: &BTreeMap<&'static str, u64>| {
        failures.iter().map(|(why, count)| ((*why).to_owned(), *count)).collect::<BTreeMap<_, _>>()
    };
    let mut failures = words(&tally.failures);
    let mut early_failures = words(&tally.early_failures);
    if let Some(beside) = &seen.beside {
        failures.extend(beside.failures.iter().map(|(why, count)| (format!("beside: {why}"), *count)));
        early_failures.extend(beside.early_failures.iter().map(|(why, count)| (format!("beside: {why}"), *count)));
        put("beside_rps", beside.completed as f64 / length.as_secs_f64());
    }
    let is_valid = failures.is_empty() && tally.is_valid();
    WindowResult { round: seen.round, is_valid, failures, early_failures, measures, curve }
}

/// The value of a metric without labels.
pub fn metric_value(text: &str, name: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

/// A whole message or nothing: reads what an admin port says.
pub fn fetch(addr: std::net::SocketAddr, path: &str) -> io::Result<String> {
    use std::io::{Read, Write};
    let mut socket = std::net::TcpStream::connect(addr)?;
    socket.set_read_timeout(Some(Duration::from_secs(5)))?;
    write!(socket, "GET {path} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    socket.read_to_string(&mut text)?;
    Ok(text)
}

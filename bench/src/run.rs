//! A scenario from its start to its result: targets started, cells measured in turn round after round, facts taken.
//!
//! Every round measures every cell once, odd rounds in reverse order, so that a machine that warms up or slows down does
//! so for all of them alike.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::folder::Folder;
use crate::machine::Placement;
use crate::measure::{self, Prepared};
use crate::provider::Provider;
use crate::redis::RedisServer;
use crate::report::table;
use crate::results::{CellResult, ScenarioResult};
use crate::rows::Rows;
use crate::say;
use crate::scenario::{LoadSpec, Redis, Scenario};
use crate::stats::Spread;
use crate::stop;
use crate::sys;
use crate::syscalls;
use crate::targets::{self, Absent, Base, Spec, Surroundings, Target};
use crate::trouble::{Result, Trouble, While, trouble};

/// How long after the last request memory is read, at most.
const AFTER_LOAD: Duration = Duration::from_secs(1);

/// So many keys that their first calls are worth a number of their own.
const MANY_KEYS: usize = 1_000;
/// A target that is slow is measured with the keys it has met by then.
const PRIME_AT_MOST: Duration = Duration::from_secs(30);

/// What the command line says for all scenarios.
pub struct Options {
    pub rounds: Option<u32>,
    pub window_ms: Option<u64>,
    /// Only cells whose name contains one of these.
    pub only: Vec<String>,
    /// More targets, measured under the scenario's own load.
    pub also: Vec<String>,
    pub binary: PathBuf,
    pub counting_binary: PathBuf,
    pub peers_folder: PathBuf,
    pub given_keys: Option<Arc<[String]>>,
    pub is_private_network: bool,
}

struct Running {
    result: CellResult,
    target: Option<Target>,
    load: LoadSpec,
    syscalls: bool,
    prepared: Option<Prepared>,
}

/// What a terminal takes for: back to the beginning of the line, and nothing on it.
const CLEARED: &str = "\r\x1b[2K";

/// Says what is going on, on stderr: over one line on a terminal, in lines elsewhere.
pub struct Progress {
    is_terminal: bool,
}

impl Progress {
    pub fn new() -> Self {
        Self { is_terminal: std::io::stderr().is_terminal() }
    }

    fn step(&self, words: &str) {
        if self.is_terminal {
            say::aside(&format!("{CLEARED}{words}"));
        }
    }

    pub fn line(&self, words: &str) {
        let cleared = if self.is_terminal { CLEARED } else { "" };
        say::aside(&format!("{cleared}{words}\n"));
    }

    pub fn clear(&self) {
        if self.is_terminal {
            say::aside(CLEARED);
        }
    }
}

/// What the command line makes of a scenario: its rounds, its windows, and the cells that are measured.
pub fn chosen(mut scenario: Scenario, options: &Options) -> Result<Scenario> {
    scenario.rounds = options.rounds.unwrap_or(scenario.rounds);
    scenario.window_ms = options.window_ms.unwrap_or(scenario.window_ms);
    for target in &options.also {
        scenario.cells.push(crate::scenario::Cell {
            name: target.clone(),
            target: target.clone(),
            load: LoadSpec::default(),
            syscalls: false,
            keys: None,
        });
    }
    if !options.only.is_empty() {
        scenario.cells.retain(|cell| options.only.iter().any(|part| cell.name.contains(part.as_str())));
    }
    let is_left = |name: &String| scenario.cells.iter().any(|cell| cell.name == *name);
    scenario.ratios.retain(|ratio| is_left(&ratio.of) && ratio.over.as_ref().is_none_or(is_left));
    if scenario.cells.is_empty() {
        return Err(Trouble(format!("nothing of the scenario {} is left to measure", scenario.name)));
    }
    Ok(scenario)
}

/// Measures a scenario, as it was chosen.
pub fn scenario(scenario: &Scenario, options: &Options, progress: &Progress) -> Result<ScenarioResult> {
    let folder = Folder::new()?;
    let cpus = sys::usable_cpus();
    let gateway_cores =
        scenario.cells.iter().map(|cell| Spec::parse(&cell.target)?.cores()).collect::<Result<Vec<_>>>()?;
    // The provider serves all cells, so it stays where the most demanding cell leaves it.
    let shared = Placement::of(&cpus, gateway_cores.iter().copied().max().unwrap_or(1));
    let provider = Provider::start(&scenario.provider, shared.provider.len().min(8), &shared.provider)
        .whilst(|| "the mock provider".to_owned())?;
    progress.line(&format!("{}: {}", scenario.name, scenario.about));
    let mut redis = match scenario.redis {
        Some(_) => RedisServer::start(&folder.path().join("redis"), &shared.provider)?,
        None => None,
    };
    let network =
        if options.is_private_network { "in a network namespace of its own" } else { "in the host's network" };
    let mut notes = vec![shared.describe(), network.to_owned()];
    if scenario.load.busy_poll == Some(true) {
        notes.push("the load never sleeps".to_owned());
    }
    let mut cells = Vec::new();
    for (index, cell) in scenario.cells.iter().enumerate() {
        stop::check()?;
        let spec = Spec::parse(&cell.target)?;
        let mut placement = Placement::of(&cpus, gateway_cores[index]);
        placement.provider.clone_from(&shared.provider);
        progress.step(&format!("  starting {}", cell.name));
        let around = Surroundings {
            provider: provider.addr,
            folder: folder.path(),
            cpus: &placement.gateway,
            binary: &options.binary,
            counting_binary: &options.counting_binary,
            keys: cell.keys.unwrap_or(scenario.keys),
            given_keys: options.given_keys.clone(),
            peers_folder: &options.peers_folder,
            redis: redis.as_ref().map(|redis| redis.addr),
            is_private_network: options.is_private_network,
        };
        let mut is_broken = false;
        let (target, skipped) = match targets::start(&spec, &cell.name, &around) {
            Ok(target) => (Some(target), None),
            Err(Absent::Skipped(why)) => {
                progress.line(&format!("  {} skipped: {why}", cell.name));
                (None, Some(why))
            }
            // Another gateway that does not start is no reason to measure nothing.
            Err(Absent::Broken(trouble)) if matches!(spec.base, Base::Peer(_)) && !stop::is_asked() => {
                progress.line(&format!("  {} skipped: {trouble}", cell.name));
                is_broken = true;
                (None, Some(trouble.to_string()))
            }
            Err(Absent::Broken(trouble)) => return Err(Trouble(format!("{}: {trouble}", cell.name))),
        };
        let mut facts = BTreeMap::new();
        if let Some(process) = target.as_ref().and_then(|target| target.process.as_ref()) {
            facts.insert("rss_idle_mb".to_owned(), process.rss_kib() as f64 / 1024.0);
        }
        cells.push(Running {
            result: CellResult {
                name: cell.name.clone(),
                target: cell.target.clone(),
                placement,
                skipped,
                is_broken,
                windows: Vec::new(),
                facts,
                notes: Vec::new(),
            },
            target,
            load: cell.load.over(&scenario.load),
            syscalls: cell.syscalls,
            prepared: None,
        });
    }
    let mut known = BTreeMap::new();
    let mut rates = Vec::new();
    for index in 0..cells.len() {
        rates.push(rate(index, &cells, scenario, &provider, &mut known, progress)?);
    }
    for (cell, rate) in cells.iter_mut().zip(rates) {
        if let Some(target) = &cell.target {
            let placement = &cell.result.placement;
            cell.prepared = Some(measure::prepare(&cell.load, rate, target, &provider, placement));
        }
    }
    for cell in &mut cells {
        prime(cell, progress)?;
    }
    rounds(scenario, &mut cells, &mut redis, progress)?;
    stop::sleep(AFTER_LOAD.min(Duration::from_millis(scenario.window_ms)));
    for cell in &mut cells {
        match take_facts(cell, scenario, progress, &mut notes) {
            // Whoever pressed Ctrl-C has stopped the gateways, too; the windows stand.
            Err(_) if stop::is_asked() => break,
            done => done?,
        }
    }
    if stop::is_asked() {
        let cells = || cells.iter().map(|cell| &cell.result).filter(|cell| cell.skipped.is_none());
        if cells().all(|cell| cell.windows.is_empty()) {
            return trouble(format!("nothing of the scenario {} was measured", scenario.name));
        }
        let done = cells().map(|cell| cell.windows.len()).min().unwrap_or(0);
        notes.push(format!("INTERRUPTED after {done} of {} rounds", scenario.rounds));
    }
    progress.clear();
    notes.push(format!("the provider answered {} requests", table::number(provider.answered() as f64, 0)));
    Ok(ScenarioResult {
        name: scenario.name.clone(),
        cells: cells.into_iter().map(|cell| cell.result).collect(),
        scenario: scenario.clone(),
        notes,
    })
}

/// The rate of a cell whose load is a share of what another target can do, which is measured here once: the median of
/// three closed-loop windows.
fn rate(
    index: usize,
    cells: &[Running],
    scenario: &Scenario,
    provider: &Provider,
    known: &mut BTreeMap<(String, usize), f64>,
    progress: &Progress,
) -> Result<Option<f64>> {
    let Some(share) = &cells[index].load.rate_share else { return Ok(None) };
    let key = (share.of_target.clone(), cells[index].load.connections.unwrap_or(0));
    if let Some(most) = known.get(&key) {
        return Ok(Some(most * share.percent / 100.0));
    }
    let of = cells.iter().find(|cell| cell.result.target == share.of_target);
    let of = of.ok_or_else(|| Trouble(format!("rate_share: no cell has the target {}", share.of_target)))?;
    let Some(target) = &of.target else {
        return Err(Trouble(format!("rate_share: {} is not there; give a `rate` instead", share.of_target)));
    };
    progress.step(&format!("  how much {} takes at most", share.of_target));
    let load = LoadSpec { rate_share: None, rate: None, ..cells[index].load.clone() };
    let prepared = measure::prepare(&load, None, target, provider, &of.result.placement);
    let (warmup, length) = (Duration::from_millis(scenario.warmup_ms), Duration::from_millis(scenario.window_ms));
    let mut found = Vec::new();
    for round in 0..3 {
        let window = measure::window(&prepared, target, warmup, length, round, &mut || {})?;
        found.extend(window.measures.get("rps").copied().filter(|_| window.is_valid));
    }
    let most = Spread::of(found).ok_or_else(|| Trouble(format!("{} answered nothing", share.of_target)))?;
    known.insert(key, most.median);
    Ok(Some(most.median * share.percent / 100.0))
}

/// Where many keys call, each of them once before the rounds: what the first call of a key costs is a fact of its own,
/// and the windows then measure keys that are known.
fn prime(cell: &mut Running, progress: &Progress) -> Result<()> {
    let (Some(target), Some(prepared)) = (&cell.target, &cell.prepared) else { return Ok(()) };
    if target.keys.len() < MANY_KEYS {
        return Ok(());
    }
    let began = Instant::now();
    let (mut requests, mut cpu_us) = (0.0, 0.0);
    while requests < target.keys.len() as f64 && began.elapsed() < PRIME_AT_MOST {
        progress.step(&format!("  the first call of each key of {}: {requests}", cell.result.name));
        let window = measure::window(prepared, target, Duration::ZERO, Duration::from_secs(1), 0, &mut || {})?;
        let measure = |name: &str| window.measures.get(name).copied().unwrap_or(0.0);
        cpu_us += measure("cpu_us") * measure("requests_all");
        requests += measure("requests_all");
    }
    if requests > 0.0 {
        cell.result.facts.insert("first_call_cpu_us".to_owned(), cpu_us / requests);
    }
    Ok(())
}

fn rounds(
    scenario: &Scenario,
    cells: &mut [Running],
    redis: &mut Option<RedisServer>,
    progress: &Progress,
) -> Result<()> {
    let began = Instant::now();
    let (warmup, length) = (Duration::from_millis(scenario.warmup_ms), Duration::from_millis(scenario.window_ms));
    let live = cells.iter().filter(|cell| cell.target.is_some()).count();
    let total = live * scenario.rounds as usize;
    let mut done = 0;
    let mut rows: Vec<Option<Rows>> =
        cells.iter().map(|cell| cell.target.as_ref()?.data_dir.as_deref().map(Rows::of)).collect();
    for round in 0..scenario.rounds {
        let mut order: Vec<usize> = (0..cells.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for index in order {
            let cell = &mut cells[index];
            let (Some(target), Some(prepared)) = (&cell.target, &cell.prepared) else { continue };
            progress.step(&format!(
                "  round {} of {}, {} ({done}/{total}, {} s)",
                round + 1,
                scenario.rounds,
                cell.result.name,
                began.elapsed().as_secs()
            ));
            let redis_before_ns = redis.as_ref().map(RedisServer::cpu_ns);
            let fault = scenario.redis.unwrap_or(Redis::Healthy);
            let mut midway = || redis.iter_mut().for_each(|redis| redis.befall(fault));
            let window = measure::window(prepared, target, warmup, length, round, &mut midway);
            if stop::is_asked() {
                // The windows before this one stand. A gateway ends sooner when its store is not frozen.
                return if fault == Redis::Frozen {
                    redis.iter_mut().try_for_each(|r| r.recover(fault))
                } else {
                    Ok(())
                };
            }
            let mut window = window?;
            if let (Some(redis), Some(before_ns)) = (redis.as_mut(), redis_before_ns) {
                redis.recover(fault)?;
                if fault == Redis::Healthy {
                    // Over the warm-up too, on both sides of the division.
                    let requests = window.measures.get("requests_ever").copied().unwrap_or(f64::INFINITY);
                    let used_us = redis.cpu_ns().saturating_sub(before_ns) as f64 / 1e3;
                    window.measures.insert("redis_cpu_us".to_owned(), used_us / requests);
                } else if let Some(rows) = &mut rows[index] {
                    window.measures.extend(rows.measures());
                }
            }
            if !window.is_valid {
                let why: Vec<String> = window.failures.iter().map(|(why, count)| format!("{why} ({count})")).collect();
                let why = if why.is_empty() { "nothing was answered".to_owned() } else { why.join(", ") };
                progress.line(&format!("  {} round {}: INVALID: {why}", cell.result.name, round + 1));
            }
            cell.result.windows.push(window);
            done += 1;
        }
    }
    Ok(())
}

/// What is measured once, after the rounds.
fn take_facts(cell: &mut Running, scenario: &Scenario, progress: &Progress, notes: &mut Vec<String>) -> Result<()> {
    stop::check()?;
    let Some(target) = &cell.target else { return Ok(()) };
    let Some(process) = &target.process else { return Ok(()) };
    let facts = &mut cell.result.facts;
    let after_mb = process.rss_kib() as f64 / 1024.0;
    facts.insert("rss_after_mb".to_owned(), after_mb);
    if let Some(idle_mb) = facts.get("rss_idle_mb").copied() {
        facts.insert("rss_after_share".to_owned(), after_mb / (1.5 * idle_mb + 50.0));
    }
    facts.insert("rss_peak_mb".to_owned(), process.rss_peak_kib() as f64 / 1024.0);
    if let Some(admin) = target.admin {
        let text = measure::fetch(admin, "/metrics").whilst(|| "the gateway's metrics".to_owned())?;
        for (fact, metric) in
            [("dropped_rows", "tokentriage_dropped_rows_total"), ("panics", "tokentriage_panics_total")]
        {
            if let Some(value) = measure::metric_value(&text, metric) {
                facts.insert(fact.to_owned(), value);
            }
        }
    }
    if cell.syscalls
        && let Some(prepared) = &cell.prepared
    {
        progress.step(&format!("  counting system calls of {}", cell.result.name));
        match syscalls::per_request(prepared, target, Duration::from_millis(scenario.window_ms)) {
            Ok((count, tool)) => {
                cell.result.facts.insert("syscalls_per_request".to_owned(), count);
                cell.result.notes.push(format!("system calls counted with {tool}"));
            }
            Err(why) => {
                stop::check()?; // then it was not the tools'
                let why = format!("system calls not counted: {why}");
                if !notes.contains(&why) {
                    notes.push(why);
                }
            }
        }
    }
    Ok(())
}

//! Scenario files: which load, on which targets, how often, and which ratios are read from the result.
//!
//! The checked-in ones stand in `bench/scenarios/` and are built in, so that `bench run steady` works from any folder.
//! A path works as well. A file that says something unknown is refused with its place.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::provider::Settings;
use crate::trouble::{Result, Trouble, While};

macro_rules! built_in {
    ($($name:literal),* $(,)?) => {
        /// Name and text of every scenario that is built in.
        pub const BUILT_IN: &[(&str, &str)] = &[$(($name, include_str!(concat!("../scenarios/", $name, ".yaml")))),*];
    };
}
built_in!(
    "steady",
    "steady-256",
    "open",
    "burst",
    "cores",
    "limits",
    "refuse",
    "refuse-256",
    "stream",
    "stream-fast",
    "big-body",
    "memory",
    "idle-10k",
    "held-streams",
    "noisy-neighbour",
    "hot-limit",
    "many-keys",
    "churn",
    "allocations",
    "peers",
    "redis-ok",
    "redis-frozen",
    "redis-dead",
    "smoke",
);

/// The scenarios of `bench table`: those whose ratios the README states.
pub const RECORD: &[&str] = &[
    "steady",
    "steady-256",
    "open",
    "limits",
    "refuse",
    "refuse-256",
    "stream",
    "memory",
    "idle-10k",
    "held-streams",
    "noisy-neighbour",
    "many-keys",
    "allocations",
    "peers",
    "redis-ok",
    "redis-frozen",
    "redis-dead",
];

/// One file.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// From the file's name.
    #[serde(skip)]
    pub name: String,
    /// One sentence.
    pub about: String,
    #[serde(default)]
    pub provider: Settings,
    /// What every cell's load is, unless the cell says otherwise.
    #[serde(default)]
    pub load: LoadSpec,
    #[serde(default = "Scenario::warmup_ms")]
    pub warmup_ms: u64,
    #[serde(default = "Scenario::window_ms")]
    pub window_ms: u64,
    /// Alternations: each round measures every cell once.
    #[serde(default = "Scenario::rounds")]
    pub rounds: u32,
    /// How many virtual keys call, in turn, where the target knows keys.
    #[serde(default = "Scenario::keys")]
    pub keys: usize,
    /// A Redis of our own for targets with `store=redis`, and what befalls it in the middle of each window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redis: Option<Redis>,
    pub cells: Vec<Cell>,
    #[serde(default)]
    pub ratios: Vec<Ratio>,
}

impl Scenario {
    fn warmup_ms() -> u64 {
        300
    }
    fn window_ms() -> u64 {
        1_000
    }
    fn rounds() -> u32 {
        7
    }
    fn keys() -> usize {
        1
    }
}

/// What befalls the shared store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Redis {
    Healthy,
    /// Stopped by SIGSTOP: its connections stay open and answer nothing.
    Frozen,
    /// Killed: its port refuses.
    Dead,
}

/// One target under one load.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cell {
    /// What the report calls it; the target's name when left out.
    #[serde(default)]
    pub name: String,
    /// Such as `governed+epoll`, `nginx`, `direct` or `http://127.0.0.1:4000`: see `bench targets`.
    pub target: String,
    #[serde(default)]
    pub load: LoadSpec,
    /// Count system calls after the timed rounds, with the tracer attached.
    #[serde(default)]
    pub syscalls: bool,
    /// Another number of virtual keys than the scenario's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keys: Option<usize>,
}

/// A load as a file says it; what is absent comes from the scenario, then from the default.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LoadSpec {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections: Option<usize>,
    /// Open loop: requests per second. Absent: closed loop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
    /// Open loop at a share of what a cell of this scenario can do at most, which is measured first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_share: Option<RateShare>,
    /// Open loop: at random distances instead of even ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub poisson: Option<bool>,
    /// The load's threads never sleep, and work the provider too where that shares their only CPU: no answer waits for
    /// a thread to wake, and no gateway pays for waking one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub busy_poll: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub think_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_per_connection: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body_bytes: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream: Option<bool>,
    /// Instead of a 200 with the provider's reply, for refusals.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expect_status: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ramp_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// Each connection asks once and then stays open, idle.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub once: Option<bool>,
    /// Another client of the same target at the same time, whose own numbers are not reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beside: Option<Box<LoadSpec>>,
}

/// A share of another cell's maximum.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RateShare {
    pub percent: f64,
    /// A target; it is measured in a closed loop of the same connections.
    pub of_target: String,
}

impl LoadSpec {
    /// This load where it says something, `base` where it does not.
    pub fn over(&self, base: &LoadSpec) -> LoadSpec {
        LoadSpec {
            connections: self.connections.or(base.connections),
            rate: self.rate.or(base.rate),
            rate_share: self.rate_share.clone().or_else(|| base.rate_share.clone()),
            poisson: self.poisson.or(base.poisson),
            busy_poll: self.busy_poll.or(base.busy_poll),
            think_ms: self.think_ms.or(base.think_ms),
            requests_per_connection: self.requests_per_connection.or(base.requests_per_connection),
            body_bytes: self.body_bytes.or(base.body_bytes),
            stream: self.stream.or(base.stream),
            expect_status: self.expect_status.or(base.expect_status),
            ramp_ms: self.ramp_ms.or(base.ramp_ms),
            timeout_ms: self.timeout_ms.or(base.timeout_ms),
            once: self.once.or(base.once),
            beside: self.beside.clone().or_else(|| base.beside.clone()),
        }
    }
}

/// A number the result is read for: one cell's measure, or its ratio to another's.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ratio {
    pub name: String,
    /// Such as `cpu_us`, `rps`, `p99_us`, `rss_idle_mb`: the names in the JSON report.
    pub measure: String,
    pub of: String,
    /// Absent: the measure itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_most: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_least: Option<f64>,
    /// What we would like, beyond what must be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aim: Option<f64>,
}

impl Scenario {
    /// A built-in one by its name, or a file by its path.
    pub fn find(name: &str) -> Result<Self> {
        if let Some((name, text)) = BUILT_IN.iter().find(|(known, _)| *known == name) {
            return Self::parse(name, text);
        }
        let path = Path::new(name);
        if path.extension().is_none() && !path.exists() {
            let known: Vec<&str> = BUILT_IN.iter().map(|(name, _)| *name).collect();
            return Err(Trouble(format!("no scenario {name}; there are {}, or give a path", known.join(", "))));
        }
        let text = std::fs::read_to_string(path).whilst(|| format!("cannot read the scenario {name}"))?;
        let name = path.file_stem().map_or_else(|| name.to_owned(), |stem| stem.to_string_lossy().into_owned());
        // Two files in different folders may have the same name, so the whole path is told.
        Self::parse(&name, &text).whilst(|| path.display().to_string())
    }

    pub fn parse(name: &str, text: &str) -> Result<Self> {
        let mut scenario: Scenario = serde_saphyr::from_str(text).whilst(|| format!("the scenario {name}"))?;
        name.clone_into(&mut scenario.name);
        for cell in &mut scenario.cells {
            if cell.name.is_empty() {
                cell.name.clone_from(&cell.target);
            }
        }
        let cells: Vec<&str> = scenario.cells.iter().map(|cell| cell.name.as_str()).collect();
        if let Some(twice) = cells.iter().enumerate().find(|(index, name)| cells[..*index].contains(name)) {
            return Err(Trouble(format!("the scenario {name}: two cells are called {}; give one a name", twice.1)));
        }
        if scenario.rounds == 0 || scenario.window_ms == 0 {
            return Err(Trouble(format!("the scenario {name}: rounds and window_ms must be at least 1")));
        }
        for ratio in &scenario.ratios {
            for cell in [Some(&ratio.of), ratio.over.as_ref()].into_iter().flatten() {
                if !cells.contains(&cell.as_str()) {
                    return Err(Trouble(format!("the scenario {name}: ratio {} names no cell {cell}", ratio.name)));
                }
            }
        }
        Ok(scenario)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_scenario_reads_and_names_targets_that_exist() {
        for (name, text) in BUILT_IN {
            let scenario = Scenario::parse(name, text).unwrap_or_else(|error| panic!("{error}"));
            assert!(!scenario.cells.is_empty());
            for cell in &scenario.cells {
                crate::targets::Spec::parse(&cell.target).unwrap_or_else(|error| panic!("{name}: {error}"));
            }
        }
    }

    #[test]
    fn a_cell_says_what_differs_and_inherits_the_rest() {
        let text = "{ about: x, load: { connections: 7, body_bytes: 9 }, cells: [{ target: direct, load: { connections: 3 } }] }";
        let scenario = Scenario::parse("x", text).unwrap();
        let load = scenario.cells[0].load.over(&scenario.load);
        assert_eq!((load.connections, load.body_bytes, load.rate), (Some(3), Some(9), None));
    }

    #[test]
    fn mistakes_are_told_with_their_place() {
        let unknown = Scenario::parse("x", "{ about: x, cellz: [] }").unwrap_err().to_string();
        assert!(unknown.contains("cellz"), "{unknown}");
        let twice = Scenario::parse("x", "{ about: x, cells: [{ target: direct }, { target: direct }] }").unwrap_err();
        assert!(twice.to_string().contains("two cells are called direct"), "{twice}");
        let never = Scenario::parse("x", "{ about: x, rounds: 0, cells: [{ target: direct }] }").unwrap_err();
        assert!(never.to_string().contains("at least 1"), "{never}");
        let ratio = "{ about: x, cells: [{ target: direct }], ratios: [{ name: r, measure: rps, of: nginx }] }";
        assert!(Scenario::parse("x", ratio).unwrap_err().to_string().contains("names no cell nginx"));
    }

    #[test]
    fn a_mistake_in_a_file_is_told_with_its_path() {
        let path = std::env::temp_dir().join(format!("bench-scenario-{}.toml", std::process::id()));
        std::fs::write(&path, "about = 1").unwrap();
        let error = Scenario::find(path.to_str().unwrap()).unwrap_err().to_string();
        std::fs::remove_file(&path).unwrap();
        assert!(error.starts_with(path.to_str().unwrap()), "{error}");
    }
}

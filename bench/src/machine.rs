//! The machine, and what runs where on it. Printed before every run and kept in every report.

use std::fs;

use serde::{Deserialize, Serialize};

use crate::sys;

/// What a number is worth little without.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Machine {
    pub cpu: String,
    pub cpus: usize,
    pub memory_gib: u64,
    pub kernel: String,
    /// What the harness was built from, fixed then by `build.rs`; `+` when its files differed from the commit.
    pub commit: String,
    /// Whether this is a release build of the harness.
    pub is_release: bool,
    /// Load average when the run began: a busy machine measures something else.
    pub load_average: f64,
}

impl Machine {
    pub fn here() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let field = |text: &str, name: &str| -> String {
            let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
            line.split_once(':').map_or("", |(_, value)| value.trim()).to_owned()
        };
        let memory = field(&read("/proc/meminfo"), "MemTotal");
        let memory_kib: u64 = memory.split_whitespace().next().and_then(|kib| kib.parse().ok()).unwrap_or(0);
        let load = read("/proc/loadavg");
        Self {
            cpu: field(&read("/proc/cpuinfo"), "model name"),
            cpus: sys::usable_cpus().len(),
            memory_gib: memory_kib.div_ceil(1024 * 1024),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            commit: env!("BENCH_COMMIT").to_owned(),
            is_release: !cfg!(debug_assertions),
            load_average: load.split_whitespace().next().and_then(|load| load.parse().ok()).unwrap_or(0.0),
        }
    }
}

impl Machine {
    pub fn describe(&self) -> String {
        let build = if self.is_release { "" } else { "; DEBUG build: numbers mean nothing" };
        format!(
            "{} × {}, {} GiB, Linux {}, harness of commit {}, load average {:.2}{build}",
            self.cpus, self.cpu, self.memory_gib, self.kernel, self.commit, self.load_average
        )
    }
}

/// Which CPUs each part gets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    pub gateway: Vec<usize>,
    pub load: Vec<usize>,
    pub provider: Vec<usize>,
}

impl Placement {
    /// The gateway gets its own CPUs; load and provider share what is left, each its own where there are enough. On a
    /// machine without CPUs to spare all share all, and the report says so.
    pub fn of(cpus: &[usize], gateway_cores: usize) -> Self {
        if gateway_cores >= cpus.len() {
            return Self { gateway: cpus.to_vec(), load: cpus.to_vec(), provider: cpus.to_vec() };
        }
        let (gateway, rest) = cpus.split_at(gateway_cores.max(1));
        let (load, provider) = if rest.len() < 2 { (rest, rest) } else { rest.split_at(rest.len() / 2) };
        Self { gateway: gateway.to_vec(), load: load.to_vec(), provider: provider.to_vec() }
    }

    pub fn describe(&self) -> String {
        let list = |cpus: &[usize]| cpus.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        let shared = if self.gateway == self.load { " (SHARED by all three)" } else { "" };
        format!(
            "gateway on CPU {}, load on {}, provider on {}{shared}",
            list(&self.gateway),
            list(&self.load),
            list(&self.provider)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_harness_names_the_commit_it_was_built_from() {
        let commit = Machine::here().commit;
        let is_hash = |text: &str| text.len() >= 10 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        assert!(commit == "unknown" || is_hash(commit.trim_end_matches('+')), "{commit}");
    }

    #[test]
    fn the_gateway_has_its_cpus_to_itself_where_there_are_enough() {
        let placed = |cpus: usize, cores| Placement::of(&(0..cpus).collect::<Vec<_>>(), cores);
        assert_eq!(placed(2, 1), Placement { gateway: vec![0], load: vec![1], provider: vec![1] });
        assert_eq!(placed(4, 1), Placement { gateway: vec![0], load: vec![1], provider: vec![2, 3] });
        assert_eq!(placed(8, 4), Placement { gateway: vec![0, 1, 2, 3], load: vec![4, 5], provider: vec![6, 7] });
        assert!(placed(2, 2).describe().contains("SHARED"));
        assert!(placed(1, 1).describe().contains("SHARED"));
    }
}

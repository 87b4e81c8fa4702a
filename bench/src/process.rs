//! A process under measurement, with its children: what it used of CPU and memory, as the kernel counts it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::sys;
use crate::trouble::{Result, While};

/// How long a process may take to end when it is asked to.
const END_WITHIN: Duration = Duration::from_secs(8);

/// A child of ours. It is ended, with its own children, when this is dropped.
pub struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts it on `cpus`, what it prints going to a file.
    pub fn start(mut command: Command, cpus: &[usize], log: &Path) -> Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        let file = File::create(log).whilst(|| format!("cannot write {}", log.display()))?;
        let copy = file.try_clone().whilst(|| format!("cannot write {}", log.display()))?;
        command.stdin(Stdio::null()).stdout(file).stderr(copy);
        sys::prepare_child(&mut command, cpus);
        let child = command.spawn().whilst(|| format!("cannot start {name}"))?;
        Ok(Self { child, log: log.to_owned() })
    }

    pub fn signal(&self, signal: i32) {
        sys::signal(self.child.id(), signal);
    }

    /// It and all that descend from it.
    pub fn pids(&self) -> Vec<u32> {
        family(self.child.id())
    }

    /// CPU time of all of them, ended threads included, in ns.
    pub fn cpu_ns(&self) -> u64 {
        self.pids().into_iter().filter_map(sys::process_cpu_ns).sum()
    }

    /// Resident memory of all of them, in KiB. Pages they share count once for each, as `ps` shows them.
    pub fn rss_kib(&self) -> u64 {
        self.status_kib("VmRSS")
    }

    /// The most it ever was, summed.
    pub fn rss_peak_kib(&self) -> u64 {
        self.status_kib("VmHWM")
    }

    fn status_kib(&self, field: &str) -> u64 {
        self.pids().into_iter().filter_map(|pid| status_kib(pid, field)).sum()
    }

    pub fn has_exited(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// All it printed.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The last lines it printed, for a message about its end.
    pub fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(12)..].join("\n")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let pids = self.pids();
        sys::signal(self.child.id(), libc::SIGCONT); // one that a scenario stopped could not hear the next
        sys::signal(self.child.id(), libc::SIGTERM);
        let began = Instant::now();
        while began.elapsed() < END_WITHIN {
            if self.has_exited() {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        if !self.has_exited() {
            // Its children first: they were ours to end, and nobody else would.
            pids.into_iter().rev().for_each(|pid| sys::signal(pid, libc::SIGKILL));
        }
        let _ = self.child.wait();
    }
}

/// A process and all that descend from it.
fn family(pid: u32) -> Vec<u32> {
    let mut pids = vec![pid];
    let mut at = 0;
    while at < pids.len() {
        for child in children(pids[at]) {
            if !pids.contains(&child) {
                pids.push(child);
            }
        }
        at += 1;
    }
    pids
}

fn children(pid: u32) -> Vec<u32> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let lists = tasks.flatten().filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()).collect()
}

fn status_kib(pid: u32, field: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse().ok()
}

/// CPU time of this process, in ns: the load generator and the mock provider together.
pub fn own_cpu_ns() -> u64 {
    sys::process_cpu_ns(std::process::id()).unwrap_or(0)
}

/// CPU time that others than this process and what it started used on these CPUs since the machine began, in ns; also what
/// the host of a virtual machine took. `None` of no CPUs, and where the kernel does not say.
///
/// The difference of two readings is a floor: time in interrupts is nobody's here, though some of it is theirs. It is as fine as
/// the kernel's ticks, about 10 ms a CPU.
pub fn others_cpu_ns(cpus: &[usize]) -> Option<i128> {
    if cpus.is_empty() {
        return None;
    }
    let busy_ns = busy_ns(&fs::read_to_string("/proc/stat").ok()?, cpus, sys::tick_ns())?;
    let ours_ns: u64 = family(std::process::id()).into_iter().filter_map(sys::process_cpu_ns).sum();
    Some(i128::from(busy_ns) - i128::from(ours_ns))
}

fn busy_ns(stat: &str, cpus: &[usize], tick_ns: u64) -> Option<u64> {
    let mut ticks = 0;
    for cpu in cpus {
        let line = stat.lines().find_map(|line| line.strip_prefix("cpu")?.strip_prefix(&format!("{cpu} ")))?;
        let fields: Vec<u64> = line.split_whitespace().filter_map(|field| field.parse().ok()).collect();
        // user, nice, system, idle, iowait, irq, softirq, steal.
        let [user, nice, system, _, _, _, _, steal, ..] = fields[..] else { return None };
        ticks += user + nice + system + steal;
    }
    Some(ticks * tick_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_work_on_the_cpus_asked_for_is_busy_time() {
        let stat = "cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 1 2 3 400 500 600 700 4 0 0\ncpu1 10 0 0 1 1 1 1 0 0 0\ncpu10 7 0 0 0 0 0 0 0 0 0\n";
        assert_eq!(busy_ns(stat, &[0], 10), Some(100));
        assert_eq!(busy_ns(stat, &[0, 1], 10), Some(200));
        assert_eq!(busy_ns(stat, &[2], 10), None);
    }

    #[test]
    fn the_work_of_a_child_of_a_child_is_counted_and_it_ends_with_its_parent() {
        let log = std::env::temp_dir().join(format!("bench-process-{}", std::process::id()));
        let mut command = Command::new("sh");
        command.args(["-c", "sh -c 'i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; echo done; sleep 60' & wait"]);
        let process = Process::start(command, &sys::usable_cpus(), &log).unwrap();
        let began = Instant::now();
        while !process.log().contains("done") {
            assert!(began.elapsed() < Duration::from_secs(20), "the child did not work");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(process.pids().len() >= 2, "{:?}", process.pids());
        assert!(process.cpu_ns() > 5_000_000, "{} ns", process.cpu_ns());
        assert!(process.rss_kib() > 100);
        drop(process);
        let _ = fs::remove_file(log);
    }
}

//! What every dashboard asks of a process, by the names every exporter uses.

use std::fmt::Error;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::gauge::ConstGauge;

/// Read from `/proc/self`; what cannot be read is left out.
#[derive(Debug)]
pub struct Process;

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let mut gauge = |name: &str, help: &str, value: Option<u64>| {
            let Some(value) = value.and_then(|value| i64::try_from(value).ok()) else { return Ok(()) };
            let gauge = ConstGauge::new(value);
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)
        };
        gauge("process_resident_memory_bytes", "Resident memory", resident_bytes())?;
        gauge("process_open_fds", "Open file descriptors", open_fds())?;
        gauge("process_max_fds", "Limit of open file descriptors", max_fds())?;
        gauge("process_threads", "Threads", threads())
    }
}

fn status(field: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse().ok()
}

fn resident_bytes() -> Option<u64> {
    status("VmRSS").map(|kib| kib * 1024)
}

fn threads() -> Option<u64> {
    status("Threads")
}

fn open_fds() -> Option<u64> {
    let count = std::fs::read_dir("/proc/self/fd").ok()?.count();
    Some(count.saturating_sub(1) as u64) // without the one that lists them
}

fn max_fds() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer is to a live struct; the call only writes to it.
    let read = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } == 0;
    read.then_some(limit.rlim_cur)
}

//! The ledger as the rest of the process sees it: is it healthy, what was lost, what was decided last.
//!
//! Written by the accountant, read by gates, panel and metrics. The accountant itself is in `accountant_core`.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::metrics::{Histogram, LATENCY_BOUNDS_US};

/// Rows the panel can show without reading the disk.
const RECENT_ROWS: usize = 1_000;

/// What the accountant does to the disk, and how long it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskWork {
    /// A batch of rows handed to the kernel.
    Write,
    /// Everything handed over put on the disk.
    Sync,
}

/// Shared by all threads.
pub struct LedgerState {
    dropped_rows: AtomicU64,
    waiting_rows: AtomicU64,
    written_rows: AtomicU64,
    errors: AtomicU64,
    limits_changed: AtomicBool,
    trouble: Mutex<Option<Trouble>>,
    recent: Mutex<VecDeque<(Vec<u8>, usize)>>,
    took: Mutex<[Histogram; 2]>,
}

/// Why rows are not getting to disk right now.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Trouble {
    /// The system's words.
    pub error: String,
    /// Unix milliseconds.
    pub since_ms: i64,
    /// More space would cure it.
    pub disk_full: bool,
}

impl Default for LedgerState {
    /// A healthy, empty ledger.
    fn default() -> Self {
        let never = || Histogram::new(&LATENCY_BOUNDS_US);
        LedgerState {
            dropped_rows: AtomicU64::new(0),
            waiting_rows: AtomicU64::new(0),
            written_rows: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            limits_changed: AtomicBool::new(false),
            trouble: Mutex::default(),
            recent: Mutex::default(),
            took: Mutex::new([never(), never()]),
        }
    }
}

impl LedgerState {
    /// Counts one write or sync, failed or not.
    pub fn took(&self, work: DiskWork, took_ns: u64) {
        lock(&self.took)[work as usize].record(took_ns / 1_000);
    }

    /// How long writes and syncs took since the process started.
    pub fn disk_work(&self, work: DiskWork) -> Histogram {
        lock(&self.took)[work as usize].clone()
    }

    /// Rows given up because the disk took none for too long.
    pub fn dropped_rows(&self) -> u64 {
        self.dropped_rows.load(Ordering::Relaxed)
    }

    /// Counts rows as given up.
    pub fn drop_rows(&self, count: u64) {
        self.dropped_rows.fetch_add(count, Ordering::Relaxed);
    }

    /// Rows in memory that wait for the disk.
    pub fn waiting_rows(&self) -> u64 {
        self.waiting_rows.load(Ordering::Relaxed)
    }

    /// Says how many rows wait for the disk.
    pub fn set_waiting_rows(&self, count: u64) {
        self.waiting_rows.store(count, Ordering::Relaxed);
    }

    /// Rows written since the process started.
    pub fn written_rows(&self) -> u64 {
        self.written_rows.load(Ordering::Relaxed)
    }

    /// Counts rows as written.
    pub fn wrote_rows(&self, count: u64) {
        self.written_rows.fetch_add(count, Ordering::Relaxed);
    }

    /// Failed writes and syncs since the process started.
    pub fn errors(&self) -> u64 {
        self.errors.load(Ordering::Relaxed)
    }

    /// A write or sync failed.
    pub fn failed(&self, trouble: Trouble) {
        self.errors.fetch_add(1, Ordering::Relaxed);
        lock(&self.trouble).get_or_insert(trouble);
    }

    /// The disk takes rows again. `true` when there had been trouble.
    pub fn recovered(&self) -> bool {
        lock(&self.trouble).take().is_some()
    }

    /// What is wrong, if anything is.
    pub fn trouble(&self) -> Option<Trouble> {
        lock(&self.trouble).clone()
    }

    /// A reload published other limits: the accountant must fold the period's earlier rows into new ones.
    pub fn limits_changed(&self) {
        self.limits_changed.store(true, Ordering::Release);
    }

    /// Whether limits changed since this was asked last.
    pub fn take_limits_changed(&self) -> bool {
        self.limits_changed.swap(false, Ordering::AcqRel)
    }

    /// Remembers a batch of lines for the panel, and forgets the oldest.
    pub fn remember(&self, lines: &[u8], rows: usize) {
        let mut recent = lock(&self.recent);
        recent.push_back((lines.to_vec(), rows));
        let mut kept: usize = recent.iter().map(|(_, rows)| rows).sum();
        while recent.len() > 1 && kept > RECENT_ROWS {
            kept -= recent.pop_front().map_or(0, |(_, rows)| rows);
        }
    }

    /// The newest rows as JSON lines, newest first; about a thousand.
    pub fn recent(&self) -> Vec<String> {
        let recent = lock(&self.recent);
        let lines = |batch: &Vec<u8>| -> Vec<String> {
            String::from_utf8_lossy(batch).lines().rev().map(str::to_owned).collect()
        };
        recent.iter().rev().flat_map(|(batch, _)| lines(batch)).collect()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

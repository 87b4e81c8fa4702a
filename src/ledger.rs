//! The ledger as the rest of the process sees it: is it healthy, what was lost, what was decided last.
//!
//! Written by the accountant, read by gates, panel and metrics. The accountant itself is in `accountant_core`.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::{Duration, Instant};

use shards::plan::LimitSet;

use crate::last_stop::LastStop;
use crate::metrics::{Histogram, LATENCY_BOUNDS_US};

/// Rows the panel can show without reading the disk.
const RECENT_ROWS: usize = 1_000;
/// Batches below this are copied: about 25 rows, so that a slow hour's many batches hold no more than their lines.
const COPIED_BYTES: usize = 16 * 1024;
/// Buffers of forgotten batches that are kept for later ones, and how large one may be: 4 x 512 KB = 2 MB at most.
const SPARE_MAX: usize = 4;
const SPARE_BYTES_MAX: usize = 512 * 1024;

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
    arming: Mutex<Arming>,
    armed: Condvar,
    last_stop: OnceLock<LastStop>,
    trouble: Mutex<Option<Trouble>>,
    recent: Mutex<Recent>,
    took: Mutex<[Histogram; 2]>,
}

/// The batches that were written last, oldest first, each with its number of rows.
#[derive(Default)]
struct Recent {
    batches: VecDeque<(Vec<u8>, usize)>,
    rows: usize,
    spare: Vec<Vec<u8>>,
}

/// Limits on their way to the accountant, who folds the period's earlier rows into new ones before any gate reads them.
#[derive(Debug, Default)]
enum Arming {
    /// Nobody waits.
    #[default]
    Idle,
    /// A reload waits; the accountant has not looked yet.
    Asked(Arc<LimitSet>),
    /// The accountant is at it.
    Taken,
    /// It is done, but for this many segments that it could not read.
    Done(usize),
}

/// The accountant did not look at new limits in time: it hangs, most likely in the disk.
#[derive(Debug, PartialEq, Eq)]
pub struct Hangs;

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
            arming: Mutex::default(),
            armed: Condvar::new(),
            last_stop: OnceLock::new(),
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

    /// Has the accountant follow these limits and waits until their meters are complete and published; `page` wakes it.
    /// Says how many segments could not be read. `Err`: it did not look within `longest`, and never will at this set.
    /// One caller at a time.
    pub fn arm(&self, limits: Arc<LimitSet>, longest: Duration, page: impl FnOnce()) -> Result<usize, Hangs> {
        let mut arming = lock(&self.arming);
        *arming = Arming::Asked(limits);
        drop(arming);
        page();
        let until = Instant::now() + longest;
        let mut arming = lock(&self.arming);
        loop {
            if let Arming::Done(unread) = *arming {
                *arming = Arming::Idle;
                return Ok(unread);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() && matches!(*arming, Arming::Asked(_)) {
                *arming = Arming::Idle;
                return Err(Hangs);
            }
            // Once it has begun it will end: it reads rollups, and rows go on only behind it.
            let wait = left.max(Duration::from_millis(100));
            arming = self.armed.wait_timeout(arming, wait).unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
    }

    /// Whether limits wait for the accountant.
    pub fn is_asked_to_arm(&self) -> bool {
        matches!(*lock(&self.arming), Arming::Asked(_))
    }

    /// The limits that wait for the accountant; it owes [`LedgerState::armed`] for them.
    pub fn take_limits_to_arm(&self) -> Option<Arc<LimitSet>> {
        let mut arming = lock(&self.arming);
        match std::mem::take(&mut *arming) {
            Arming::Asked(limits) => {
                *arming = Arming::Taken;
                Some(limits)
            }
            other => {
                *arming = other;
                None
            }
        }
    }

    /// The accountant has published every meter of the limits it took.
    pub fn armed(&self, unread_segments: usize) {
        *lock(&self.arming) = Arming::Done(unread_segments);
        self.armed.notify_all();
    }

    /// How the process before this one ended. Said once, by boot.
    pub fn set_last_stop(&self, last_stop: LastStop) {
        let _ = self.last_stop.set(last_stop);
    }

    /// How the process before this one ended; clean until boot has looked.
    pub fn last_stop(&self) -> &LastStop {
        self.last_stop.get().unwrap_or(&LastStop::Clean)
    }

    /// Remembers a batch of lines for the panel and leaves an empty buffer in its place: that of a batch it forgets for it.
    /// Copied, each line would go through the cache once more; and a new buffer for each batch was a third of the
    /// accountant's work at saturation, most of it page faults.
    pub fn remember(&self, lines: &mut Vec<u8>, rows: usize) {
        let mut recent = lock(&self.recent);
        recent.rows += rows;
        while recent.rows > RECENT_ROWS
            && let Some((oldest, rows)) = recent.batches.pop_front()
        {
            recent.rows -= rows;
            recent.keep_spare(oldest);
        }
        let batch = if lines.len() < COPIED_BYTES {
            let copy = lines.as_slice().into();
            lines.clear();
            copy
        } else {
            let empty = recent.spare.pop().unwrap_or_else(|| Vec::with_capacity(lines.len()));
            std::mem::replace(lines, empty)
        };
        recent.batches.push_back((batch, rows));
    }

    /// The newest rows as JSON lines, newest first; about a thousand.
    pub fn recent(&self) -> Vec<String> {
        let recent = lock(&self.recent);
        let lines = |batch: &Vec<u8>| -> Vec<String> {
            String::from_utf8_lossy(batch).lines().rev().map(str::to_owned).collect()
        };
        recent.batches.iter().rev().flat_map(|(batch, _)| lines(batch)).collect()
    }
}

impl Recent {
    fn keep_spare(&mut self, mut buffer: Vec<u8>) {
        if self.spare.len() < SPARE_MAX && (COPIED_BYTES..=SPARE_BYTES_MAX).contains(&buffer.capacity()) {
            buffer.clear();
            self.spare.push(buffer);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_limits_wait_until_the_accountant_has_published_them() {
        let ledger = Arc::new(LedgerState::default());
        assert!(ledger.take_limits_to_arm().is_none() && !ledger.is_asked_to_arm());
        let (paged, page) = std::sync::mpsc::channel();
        let accountant = {
            let ledger = ledger.clone();
            std::thread::spawn(move || {
                page.recv().expect("paged once the limits are there");
                let limits = ledger.take_limits_to_arm().expect("they are there");
                ledger.armed(limits.limits.len() + 3);
            })
        };
        let armed = ledger.arm(Arc::default(), Duration::from_secs(60), || paged.send(()).expect("it listens"));
        assert_eq!(armed, Ok(3));
        accountant.join().expect("the accountant ended well");
        assert!(ledger.take_limits_to_arm().is_none(), "asked once, armed once");
    }

    #[test]
    fn the_panel_has_the_newest_thousand_rows_and_the_accountant_an_empty_buffer() {
        let ledger = LedgerState::default();
        let line = |row: usize| format!("{row:>99}\n");
        let mut lines = Vec::new();
        let mut row = 0;
        // Batches that are copied and batches that are handed over, one of them with more rows than are kept.
        for rows in [1, 1_500, 3, 400, 400, 5, 400] {
            (row..row + rows).for_each(|row| lines.extend_from_slice(line(row).as_bytes()));
            row += rows;
            ledger.remember(&mut lines, rows);
            assert!(lines.is_empty());
            let recent = ledger.recent();
            let newest = (row.saturating_sub(recent.len())..row).rev();
            assert!(recent.iter().map(|line| line.trim_start().parse::<usize>().expect("a number")).eq(newest));
        }
        assert_eq!(ledger.recent().len(), 805, "the batch before them would be more than a thousand");
    }

    #[test]
    fn limits_that_nobody_looked_at_are_withdrawn() {
        let ledger = LedgerState::default();
        assert_eq!(ledger.arm(Arc::default(), Duration::ZERO, || ()), Err(Hangs));
        assert!(!ledger.is_asked_to_arm() && ledger.take_limits_to_arm().is_none());
    }
}

//! The accountant: takes the cores' rows, writes them, folds them into meters, and publishes those to the gates.
//!
//! A plain thread. While rows come it looks every 2 ms, so that a busy core wakes nobody; when they stop it sleeps
//! until it is paged. Rows are folded when they are taken, whatever the disk says: spend is spend. Rows that cannot
//! be written wait in bounded memory and are tried again; past the bound they are given up and counted.

mod catch_up;
mod tidy;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use io::clock;
use io::cpu;
use io::ledger_file::{LedgerError, LedgerFolder, Log, write_atomic};
use io::ring::{Pager, RingReceiver};
use shards::accountant::{Folder, LedgerPosition};
use shards::limit::Period;
use shards::registry::Registry;
use shards::row::{Row, encode};
use shards::units::{MonoNs, WallMs};

use crate::config::{Config, Sync};
use crate::coordination::convergence::{Convergence, OwnBurn};
use crate::ledger::{DiskWork, LedgerState, Trouble};
use crate::rules::ns;
use crate::shared::Shared;

/// Rows taken and written at once: 4,096 x 0.5 KB = 2 MB.
const BATCH_ROWS: usize = 4_096;
/// How often rings are looked at while rows come. A 2 ms old meter is within what `tee_lag_rows` discloses.
const BUSY_LOOK: Duration = Duration::from_millis(2);
/// Rows stopped coming this long ago: sleep until paged.
const BUSY_NS: u64 = 50_000_000;
/// The longest sleep: meters are republished, and so proven alive, well within what gates trust.
const IDLE_SLEEP: Duration = Duration::from_secs(1);
/// Meters are republished at least this often.
const REPUBLISH_NS: u64 = 5_000_000_000;
/// A restart folds at most what came since the last checkpoint's segment began; the checkpoint itself is cheap.
const CHECKPOINT_NS: u64 = 30_000_000_000;
/// How often a disk that failed is tried again.
const RETRY_NS: u64 = 500_000_000;
/// Own burn is told to the coordinator at most this often; it publishes once a second.
const TELL_NS: u64 = 50_000_000;
/// Lines that may wait for a disk that takes none: 64 MiB, about 130,000 rows.
const WAITING_BYTES_MAX: usize = 64 << 20;

/// The ledger of this process, caught up.
pub struct Accountant {
    folder: LedgerFolder,
    log: Log,
    meters: Folder,
    replica: String,
    sync: Sync,
    sync_interval_ns: u64,
    retain_ms: i64,
    next_seq: u64,
    /// Rows taken and not folded yet.
    #[allow(clippy::vec_box)] // the boxes go back to their cores
    batch: Vec<Box<Row>>,
    /// Encoded lines that are not on their way to disk yet, and how many.
    waiting: Vec<u8>,
    waiting_rows: u64,
    waiting_first_seq: u64,
    /// The open rollup is the sum of its segment's lines and of nothing else. Not so after a write failed: then rows were
    /// folded that wait for the next segment, or that no segment will ever hold.
    is_rollup_exact: bool,
    /// A row of the batch was given up.
    gave_up: bool,
    /// Since the disk took rows last.
    given_up_rows: u64,
    /// The last sync failed. The system tells of a write-back that failed once, and the next sync succeeds.
    sync_failed: bool,
    unsynced_since_ns: Option<u64>,
    retry_at_ns: u64,
    checkpoint_at_ns: u64,
    republish_at_ns: u64,
    tidy_at_ns: u64,
    /// Burn is exchanged with peers.
    tells: bool,
    tell_at_ns: u64,
    checkpointed_seq: u64,
}

impl Accountant {
    fn checkpoint_path(&self) -> PathBuf {
        self.folder.dir().join("checkpoint.json")
    }

    /// Names this ledger among all of the fleet.
    pub fn ledger_id(&self) -> &str {
        self.folder.ledger_id()
    }
}

/// What the disk did not take to the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unwritten {
    /// So many of the last rows are in no file.
    Lost { rows: u64 },
    /// The last rows are in the file, and it failed to put them on the disk.
    Unsynced,
}

/// Takes rows until every core is gone and every ring is empty. Waits.
pub fn run(
    mut accountant: Accountant,
    mut rows: Vec<RingReceiver<Box<Row>>>,
    shared: &Shared,
    pager: &Pager,
) -> Result<(), Unwritten> {
    if accountant.sync == Sync::Interval
        && let Err(error) = cpu::wait_for_a_turn()
    {
        tracing::debug!(%error, "the accountant interrupts data cores that share its CPU");
    }
    let mut counts: Vec<u64> = vec![0; rows.len()];
    let mut synced = counts.clone();
    let mut busy_until_ns = 0;
    loop {
        let finished = rows.iter().all(RingReceiver::is_finished);
        let taken = accountant.take(&mut rows, &mut counts, shared);
        let now_ns = clock::mono_ns();
        if taken > 0 {
            busy_until_ns = now_ns + BUSY_NS;
        }
        accountant.write(shared, now_ns);
        accountant.fold(shared, &counts);
        for ((ring, count), synced) in rows.iter().zip(&mut counts).zip(&mut synced) {
            ring.settled(*count);
            *synced += std::mem::take(count);
        }
        accountant.sync_if_due(shared, &synced, now_ns, finished);
        accountant.beat(shared, now_ns, taken > 0);
        accountant.converge(shared, now_ns, finished);
        if finished && taken == 0 {
            return accountant.finish(shared);
        }
        if taken >= BATCH_ROWS {
            continue;
        }
        if now_ns < busy_until_ns && accountant.sync == Sync::Interval {
            std::thread::park_timeout(BUSY_LOOK);
        } else {
            let longest = accountant.next_due(now_ns).min(IDLE_SLEEP);
            pager.sleep(longest, || {
                rows.iter().any(RingReceiver::has_items)
                    || rows.iter().all(RingReceiver::is_finished)
                    || shared.ledger.is_asked_to_arm()
                    || convergence(shared).is_some_and(Convergence::has_news)
            });
        }
    }
}

impl Accountant {
    /// Takes what the rings hold, at most a batch: numbers and encodes it.
    fn take(&mut self, rings: &mut [RingReceiver<Box<Row>>], counts: &mut [u64], shared: &Shared) -> usize {
        let mut taken = 0;
        for (ring, count) in rings.iter_mut().zip(counts) {
            let drained = ring.drain(BATCH_ROWS - taken, |row| self.take_row(row, &shared.ledger));
            *count = drained as u64;
            taken += drained;
        }
        taken
    }

    /// Adds the batch to the meters and to the rollup of the segment it went to, and publishes. After the write, so
    /// that a segment the write closed has ended its rollup without it. `counts` says how many rows of it are whose.
    fn fold(&mut self, shared: &Shared, counts: &[u64]) {
        if self.batch.is_empty() {
            return;
        }
        self.is_rollup_exact &= !std::mem::take(&mut self.gave_up);
        for row in &self.batch {
            if self.meters.fold(&row.facts(), &shared.registry).is_err() {
                tracing::error!(node = row.node.as_str(), "a row of our own has a malformed node");
            }
        }
        self.meters.publish(WallMs(clock::wall_ms()));
        let mut folded = self.batch.drain(..);
        for (core, count) in shared.cores.iter().zip(counts) {
            core.blanks.give(folded.by_ref().take(*count as usize));
        }
    }

    fn take_row(&mut self, mut row: Box<Row>, ledger: &LedgerState) {
        row.seq = self.next_seq;
        self.next_seq += 1;
        if self.waiting.len() >= WAITING_BYTES_MAX {
            ledger.drop_rows(1);
            self.gave_up = true;
            self.given_up_rows += 1;
            self.batch.push(row); // lost to the record, but spent
            return;
        }
        if self.waiting_rows == 0 {
            self.waiting_first_seq = row.seq;
        }
        encode(&row, &self.replica, &mut self.waiting);
        self.waiting_rows += 1;
        self.batch.push(row);
    }

    /// Hands what waits to the kernel, with one write.
    fn write(&mut self, shared: &Shared, now_ns: u64) {
        if self.waiting_rows == 0 {
            return;
        }
        if now_ns < self.retry_at_ns {
            self.is_rollup_exact = false; // the batch is folded before it is known which segment takes it
            return;
        }
        let began_ns = clock::mono_ns();
        let appended = self.log.append(&self.waiting, self.waiting_first_seq);
        shared.ledger.took(DiskWork::Write, clock::mono_ns().saturating_sub(began_ns));
        match appended {
            Ok(appended) => {
                if let Some(closed) = appended.closed {
                    self.close_segment(&closed);
                }
                shared.ledger.wrote_rows(self.waiting_rows);
                let rows = usize::try_from(self.waiting_rows).unwrap_or(usize::MAX);
                shared.ledger.remember(&mut self.waiting, rows);
                self.waiting_rows = 0;
                self.given_up_rows = 0;
                self.unsynced_since_ns.get_or_insert(now_ns);
                self.retry_at_ns = 0;
                if shared.ledger.recovered() {
                    tracing::info!("the ledger takes rows again");
                }
            }
            Err(error) => {
                // The rows are folded now, into the rollup of a segment they may not end up in.
                self.is_rollup_exact = false;
                self.failed(shared, now_ns, &error);
            }
        }
        shared.ledger.set_waiting_rows(self.waiting_rows);
    }

    fn failed(&mut self, shared: &Shared, now_ns: u64, error: &LedgerError) {
        if shared.ledger.trouble().is_none() {
            tracing::error!(%error, "the ledger takes no rows; traffic goes on, rows wait in memory");
        }
        self.retry_at_ns = now_ns + RETRY_NS;
        shared.ledger.failed(Trouble {
            error: error.to_string(),
            since_ms: clock::wall_ms(),
            disk_full: error.is_disk_full(),
        });
    }

    /// Puts written rows on the disk: at once, or when the group commit is due; and tells waiting cores.
    fn sync_if_due(&mut self, shared: &Shared, synced: &[u64], now_ns: u64, at_once: bool) {
        let always = self.sync == Sync::Always;
        let due = match self.unsynced_since_ns {
            Some(since_ns) => always || at_once || now_ns.saturating_sub(since_ns) >= self.sync_interval_ns,
            None => false,
        };
        if due {
            let began_ns = clock::mono_ns();
            let outcome = self.log.sync();
            shared.ledger.took(DiskWork::Sync, clock::mono_ns().saturating_sub(began_ns));
            self.sync_failed = outcome.is_err();
            match outcome {
                Ok(()) => self.unsynced_since_ns = None,
                Err(error) => {
                    self.failed(shared, now_ns, &error);
                    self.unsynced_since_ns = Some(now_ns);
                }
            }
        }
        if always {
            for (core, count) in shared.cores.iter().zip(synced) {
                // A disk that takes nothing must not hold traffic: the row waits, the caller does not.
                if core.synced_rows.swap(*count, Ordering::AcqRel) != *count {
                    core.doorbell.ring();
                }
            }
        }
    }

    /// Everything that is due by the clock.
    fn beat(&mut self, shared: &Shared, now_ns: u64, published: bool) {
        let wall = WallMs(clock::wall_ms());
        if let Some(limits) = shared.ledger.take_limits_to_arm() {
            let unread = self.arm(&limits, &shared.registry, wall);
            self.meters.republish(wall);
            shared.ledger.armed(unread);
        }
        if now_ns >= self.republish_at_ns {
            self.meters.republish(wall);
            self.republish_at_ns = now_ns + REPUBLISH_NS;
            shared.beat.beat(MonoNs(now_ns));
        } else if published {
            shared.beat.beat(MonoNs(now_ns));
        }
        if now_ns >= self.checkpoint_at_ns {
            self.checkpoint_at_ns = now_ns + CHECKPOINT_NS;
            self.checkpoint();
        }
        if now_ns >= self.tidy_at_ns {
            self.tidy_at_ns = now_ns + tidy::EVERY_NS;
            self.remove_old_segments(wall);
        }
    }

    /// Takes up what peers burned and tells the coordinator what this replica did. Without a shared store: one branch.
    fn converge(&mut self, shared: &Shared, now_ns: u64, at_once: bool) {
        let Some(convergence) = convergence(shared) else { return };
        if convergence.take_news() {
            for (key, term) in convergence.terms.take_changed() {
                self.meters.hear(&key, &term, &shared.registry);
            }
        }
        let is_due = at_once || now_ns >= self.tell_at_ns;
        if (self.meters.has_changed() && is_due) || !convergence.has_told() {
            self.tell_at_ns = now_ns + TELL_NS;
            let mut burns = Vec::new();
            self.meters.changed(WallMs(clock::wall_ms()), |scope, burn| {
                if let Some(Period::Calendar(calendar)) = burn.limit.period {
                    burns.push(OwnBurn { scope, calendar, period: burn.period, burn: burn.amount, rows: burn.rows });
                }
            });
            convergence.tell(burns);
        }
    }

    /// How long nothing is due.
    fn next_due(&self, now_ns: u64) -> Duration {
        let sync_ns = self.unsynced_since_ns.map_or(u64::MAX, |since_ns| since_ns + self.sync_interval_ns);
        let retry_ns = if self.waiting_rows > 0 { self.retry_at_ns } else { u64::MAX };
        let tell_ns = if self.tells && self.meters.has_changed() { self.tell_at_ns } else { u64::MAX };
        let due_ns = sync_ns.min(retry_ns).min(self.republish_at_ns).min(tell_ns);
        Duration::from_nanos(due_ns.saturating_sub(now_ns).max(1_000_000))
    }

    /// Writes the meters down, if rows came since the last time and all of them are in the log.
    fn checkpoint(&mut self) {
        if self.waiting_rows > 0 || self.meters.folded_seq() == self.checkpointed_seq {
            return;
        }
        // Meters on disk must not be ahead of the rows they were made of.
        if let Err(error) = self.log.sync() {
            tracing::warn!(%error, "rows could not be synced, so the meters' checkpoint waits");
            return;
        }
        let Some(position) = self.log.position() else { return };
        let position = LedgerPosition { segment: position.segment, offset: position.offset };
        let checkpoint = self.meters.checkpoint(position);
        match write_atomic(&self.checkpoint_path(), &checkpoint.encode()) {
            Ok(()) => self.checkpointed_seq = self.meters.folded_seq(),
            // No loss: the next start folds more rows.
            Err(error) => tracing::warn!(%error, "the meters' checkpoint could not be written"),
        }
    }

    /// The process ends: the last rows, and where the meters stand.
    fn finish(&mut self, shared: &Shared) -> Result<(), Unwritten> {
        self.retry_at_ns = 0;
        let given_up_rows = self.given_up_rows; // a write that succeeds now does not bring them back
        self.write(shared, clock::mono_ns());
        if let Err(error) = self.log.sync() {
            self.failed(shared, clock::mono_ns(), &error);
            tracing::error!(%error, "the last rows may not be on disk");
            self.sync_failed = true;
        }
        if self.waiting_rows > 0 {
            shared.ledger.drop_rows(self.waiting_rows);
            tracing::error!(rows = self.waiting_rows, "the ledger took no rows until the end; these are lost");
        }
        self.checkpoint();
        match self.waiting_rows + given_up_rows {
            0 if self.sync_failed => Err(Unwritten::Unsynced),
            0 => Ok(()),
            rows => Err(Unwritten::Lost { rows }),
        }
    }
}

fn convergence(shared: &Shared) -> Option<&Convergence> {
    shared.coordination.as_ref().map(|coordination| &*coordination.fleet.convergence)
}

/// Opens a config's ledger and catches its meters up. Reads the disk, for as long as the current period's rows take.
pub fn open(
    config: &Config,
    replica: &str,
    limits: &Arc<shards::plan::LimitSet>,
    registry: &Registry,
    ledger: &LedgerState,
) -> Result<Accountant, LedgerError> {
    let folder = LedgerFolder::open(&config.ledger_dir())?;
    let (log, torn) = Log::open(&folder, config.ledger.segment_bytes)?;
    if let Some(torn) = torn {
        tracing::warn!(
            segment = torn.at.segment,
            offset = torn.at.offset,
            bytes = torn.bytes,
            "a torn last row was cut off"
        );
    }
    let mut accountant = Accountant {
        folder,
        log,
        meters: Folder::new(),
        replica: replica.to_owned(),
        sync: config.ledger.sync,
        sync_interval_ns: ns(config.ledger.sync_interval),
        retain_ms: i64::try_from(config.ledger.retain.as_millis()).unwrap_or(i64::MAX),
        next_seq: 1,
        batch: Vec::new(),
        waiting: Vec::new(),
        waiting_rows: 0,
        waiting_first_seq: 0,
        is_rollup_exact: true,
        gave_up: false,
        given_up_rows: 0,
        sync_failed: false,
        unsynced_since_ns: None,
        retry_at_ns: 0,
        checkpoint_at_ns: clock::mono_ns() + CHECKPOINT_NS,
        republish_at_ns: 0,
        tidy_at_ns: 0,
        tells: config.shared_state.redis.is_some(),
        tell_at_ns: 0,
        checkpointed_seq: 0,
    };
    accountant.catch_up(limits, registry, ledger)?;
    Ok(accountant)
}

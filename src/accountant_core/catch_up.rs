//! Where the meters stood: the checkpoint, the rollups of closed segments, and the rows since.
//!
//! A torn or corrupt line is reported and skipped; nothing else is lost. Rows are read once: a million of them take
//! under two seconds.

use std::sync::Arc;

use io::clock;
use io::ledger_file::{LedgerError, Position, Reader, Segment, read_small, write_atomic};
use shards::accountant::{Checkpoint, Folder, Rollup};
use shards::plan::LimitSet;
use shards::registry::Registry;
use shards::row::decode_facts;
use shards::units::WallMs;

use super::Accountant;
use crate::ledger::LedgerState;

impl Accountant {
    /// Brings the meters to the last row on disk and publishes them.
    pub(super) fn catch_up(
        &mut self,
        limits: &Arc<LimitSet>,
        registry: &Registry,
        ledger: &LedgerState,
    ) -> Result<(), LedgerError> {
        let began_ns = clock::mono_ns();
        let wall = WallMs(clock::wall_ms());
        let checkpoint = read_small(&self.checkpoint_path())?.and_then(|bytes| Checkpoint::decode(&bytes));
        if let Some(checkpoint) = &checkpoint {
            self.meters = Folder::restore(checkpoint, limits, registry);
        }
        let since = self.meters.arm(limits.clone(), registry, wall);
        let segments = self.folder.segments()?;
        let open = segments.last().map_or(0, |segment| segment.first_seq);
        // Rows from the checkpoint's segment on are folded one by one; without a checkpoint, those of the open one.
        let from = checkpoint.map_or(open, |checkpoint| checkpoint.position.segment);
        if since.is_some() {
            for segment in segments.iter().filter(|segment| segment.first_seq < from) {
                let rollup = self.rollup_of(segment)?;
                self.meters.backfill(&rollup, registry);
            }
        }
        let mut rows = 0;
        let mut corrupt = 0;
        for segment in segments.iter().filter(|segment| segment.first_seq >= from) {
            let (read, bad) = self.fold_segment(segment, registry)?;
            rows += read;
            corrupt += bad;
            if segment.first_seq != open {
                let rollup = self.meters.take_rollup();
                self.keep_rollup(segment, &rollup);
            }
        }
        self.meters.caught_up();
        self.meters.republish(wall);
        self.next_seq = (self.meters.folded_seq() + 1).max(open.max(1));
        if corrupt > 0 {
            tracing::warn!(lines = corrupt, "corrupt lines in the ledger were skipped");
        }
        tracing::info!(
            rows,
            segments = segments.len(),
            next_seq = self.next_seq,
            took_ms = (clock::mono_ns() - began_ns) / 1_000_000,
            "ledger caught up"
        );
        let _ = ledger;
        Ok(())
    }

    /// Follows other limits, which a reload is about to publish; new ones are caught up with the period's earlier rows.
    /// Returns how many segments could not be read.
    pub(super) fn arm(&mut self, limits: &Arc<LimitSet>, registry: &Registry, wall: WallMs) -> usize {
        let mut unread = 0;
        if self.meters.arm(limits.clone(), registry, wall).is_some() {
            let open = self.log.position().map_or(u64::MAX, |position| position.segment);
            let segments = self.folder.segments().unwrap_or_default();
            for segment in segments.iter().filter(|segment| segment.first_seq < open) {
                match self.rollup_of(segment) {
                    Ok(rollup) => self.meters.backfill(&rollup, registry),
                    Err(error) => {
                        unread += 1;
                        tracing::error!(%error, "a new limit could not be caught up with rows of an earlier segment");
                    }
                }
            }
        }
        self.meters.caught_up();
        unread
    }

    /// A closed segment's sums: from its rollup, or from its rows when that is missing or unreadable.
    fn rollup_of(&self, segment: &Segment) -> Result<Rollup, LedgerError> {
        let path = self.folder.rollup_path(segment.first_seq);
        if let Some(rollup) = read_small(&path)?.and_then(|bytes| Rollup::decode(&bytes).ok()) {
            return Ok(rollup);
        }
        let mut rollup = Rollup::default();
        read_rows(self.folder.dir(), segment, |row| rollup.add(row).is_ok())?;
        self.keep_rollup(segment, &rollup);
        Ok(rollup)
    }

    fn fold_segment(&mut self, segment: &Segment, registry: &Registry) -> Result<(u64, u64), LedgerError> {
        let dir = self.folder.dir().to_owned();
        read_rows(&dir, segment, |row| self.meters.fold(row, registry).is_ok())
    }

    /// A segment was closed: its sums so far become its rollup.
    pub(super) fn close_segment(&mut self, segment: &Segment) {
        let rollup = self.meters.take_rollup();
        if self.is_rollup_exact {
            self.keep_rollup(segment, &rollup);
            return;
        }
        if let Err(error) = self.rollup_of(segment) {
            tracing::warn!(%error, "a segment's rollup could not be made; it will be made when it is needed");
        }
        // What waited was folded for the closed segment and is written to the new one.
        for line in self.waiting.split_inclusive(|byte| *byte == b'\n') {
            if let Ok(row) = decode_facts(line) {
                self.meters.roll_again(&row);
            }
        }
        self.is_rollup_exact = true;
    }

    fn keep_rollup(&self, segment: &Segment, rollup: &Rollup) {
        let path = self.folder.rollup_path(segment.first_seq);
        if let Err(error) = write_atomic(&path, &rollup.encode()) {
            // No loss: it can be made again from the rows.
            tracing::warn!(%error, "a segment's rollup could not be written");
        }
    }
}

/// Reads one segment's rows; `each` says whether a row was usable. Returns rows and corrupt lines.
fn read_rows(
    dir: &std::path::Path,
    segment: &Segment,
    mut each: impl FnMut(&shards::row::RowFacts<'_>) -> bool,
) -> Result<(u64, u64), LedgerError> {
    let from = Position { segment: segment.first_seq, offset: 0 };
    let until = Position { segment: segment.first_seq, offset: u64::MAX };
    let mut reader = Reader::folder(dir, from, Some(until))?;
    let mut rows = 0;
    while let Some(line) = reader.next_line()? {
        let usable = decode_facts(line.bytes).is_ok_and(|row| each(&row));
        if usable {
            rows += 1;
        } else {
            reader.mark_corrupt();
        }
    }
    Ok((rows, reader.report().corrupt))
}

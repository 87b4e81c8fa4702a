//! Retention: closed segments whose last row is older than `ledger.retain` go, with their rollups.

use std::time::UNIX_EPOCH;

use shards::units::WallMs;

use super::Accountant;

/// How often old segments are looked for.
pub(super) const EVERY_NS: u64 = 600_000_000_000;

impl Accountant {
    pub(super) fn remove_old_segments(&mut self, wall: WallMs) {
        let open = self.log.position().map_or(u64::MAX, |position| position.segment);
        let segments = self.folder.segments().unwrap_or_default();
        for segment in segments.iter().filter(|segment| segment.first_seq < open) {
            // A closed segment was last changed by its last row.
            let changed = std::fs::metadata(&segment.path).and_then(|metadata| metadata.modified());
            let Ok(age) = changed.map(|at| at.duration_since(UNIX_EPOCH).unwrap_or_default()) else { continue };
            let changed_ms = i64::try_from(age.as_millis()).unwrap_or(i64::MAX);
            if wall.0.saturating_sub(changed_ms) <= self.retain_ms {
                continue;
            }
            match self.folder.remove_segment(segment.first_seq) {
                Ok(()) => tracing::info!(segment = segment.first_seq, "a segment past ledger.retain was removed"),
                Err(error) => tracing::warn!(%error, "an old segment could not be removed"),
            }
        }
    }
}

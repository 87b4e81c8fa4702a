//! Whether the process before this one ended well: a file that is there while one runs and goes when it stops.
//!
//! A process that is killed, or whose machine loses power, leaves the file behind. The next one then says so, in the
//! log, in the health and in a metric, because some things can have happened that no row tells of.

use std::path::{Path, PathBuf};

use io::ledger_file::{LedgerError, read_small, write_atomic};
use shards::units::WallMs;

use crate::when;

/// The file, under `data_dir`.
pub const FILE_NAME: &str = "running";

/// What an end that was not clean can mean, in one sentence.
pub const MEANING: &str = "requests that were in flight, or were answered in the last few milliseconds, have no row and are in \
                           no budget; the same goes for the last ledger.sync_interval after a power loss, and for rows that \
                           a full disk did not take; everything older is there";

/// How the process before this one ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LastStop {
    /// It stopped and wrote everything, or there was none.
    Clean,
    /// It was killed, crashed, lost its power, or could not write its last rows.
    Unclean {
        /// When it had started, in its own words.
        started: String,
    },
}

/// Says that a process runs on this data folder, until it is dropped.
pub struct RunningMark {
    path: PathBuf,
    /// The mark stays: it was left behind by another process, and nothing was served since; or rows of this one are lost.
    stays: bool,
}

impl RunningMark {
    /// Looks how the process before this one ended, and sets the mark of this one. Only while the ledger is locked: then
    /// nobody else runs here. Waits for the disk.
    pub fn set(data_dir: &Path, now: WallMs) -> Result<(Self, LastStop), LedgerError> {
        let path = data_dir.join(FILE_NAME);
        let last_stop = match read_small(&path)? {
            None => LastStop::Clean,
            Some(bytes) => LastStop::Unclean { started: String::from_utf8_lossy(&bytes).trim().to_owned() },
        };
        let stays = last_stop != LastStop::Clean;
        if !stays {
            write_atomic(&path, format!("{}\n", when::text(now)).as_bytes())?;
        }
        Ok((RunningMark { path, stays }, last_stop))
    }

    /// From here on requests are served: the mark is of this process.
    pub fn serves(&mut self, now: WallMs) -> Result<(), LedgerError> {
        if std::mem::take(&mut self.stays) {
            write_atomic(&self.path, format!("{}\n", when::text(now)).as_bytes())?;
        }
        Ok(())
    }

    /// The process ends without having written everything, for the next one to tell of. The mark is there already, so that
    /// this needs no room on a disk that has none.
    pub fn stay(mut self) {
        self.stays = true;
    }
}

impl Drop for RunningMark {
    fn drop(&mut self) {
        if self.stays {
            return;
        }
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!(%error, path = %self.path.display(), "the mark of a running process could not be removed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("tt-mark-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn a_mark_goes_with_its_process_and_stays_when_that_was_killed() {
        let folder = folder("killed");
        let (mark, last_stop) = RunningMark::set(&folder, WallMs(1_000)).unwrap();
        assert_eq!(last_stop, LastStop::Clean, "there was none before");
        drop(mark);
        let (mark, last_stop) = RunningMark::set(&folder, WallMs(2_000)).unwrap();
        assert_eq!(last_stop, LastStop::Clean);
        std::mem::forget(mark); // killed
        let (_, last_stop) = RunningMark::set(&folder, WallMs(3_000)).unwrap();
        assert_eq!(last_stop, LastStop::Unclean { started: "1970-01-01T00:00:02.000Z".to_owned() });
    }

    #[test]
    fn a_mark_stays_when_rows_are_lost() {
        let folder = folder("lost");
        let (mut mark, _) = RunningMark::set(&folder, WallMs(1_000)).unwrap();
        mark.serves(WallMs(1_000)).unwrap();
        mark.stay();
        let (_, last_stop) = RunningMark::set(&folder, WallMs(2_000)).unwrap();
        assert_eq!(last_stop, LastStop::Unclean { started: "1970-01-01T00:00:01.000Z".to_owned() });
    }

    #[test]
    fn a_start_that_fails_does_not_hide_the_unclean_stop_before_it() {
        let folder = folder("fails");
        std::mem::forget(RunningMark::set(&folder, WallMs(1_000)).unwrap().0);
        drop(RunningMark::set(&folder, WallMs(2_000)).unwrap()); // its port was taken, say
        let (mut mark, last_stop) = RunningMark::set(&folder, WallMs(3_000)).unwrap();
        assert!(matches!(last_stop, LastStop::Unclean { .. }));
        mark.serves(WallMs(3_000)).unwrap();
        drop(mark);
        assert_eq!(RunningMark::set(&folder, WallMs(4_000)).unwrap().1, LastStop::Clean);
    }
}

//! The keys as they were last read from Postgres, on disk, so that a restart during an outage still knows them.
//!
//! Hashes only, readable by the service's user alone, replaced whole. It is a copy: nobody writes it but the identity
//! thread, and it counts for nothing once it is a day old or comes from another database. Writing happens on a thread of
//! its own, one at a time, so that a disk that hangs does not keep a revocation from being followed.

use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use shards::units::WallMs;

use super::Key;

/// The file, under `data_dir`.
const FILE_NAME: &str = "identity-snapshot.json";
/// Older than this it counts as never seeded.
const KEPT_MS: i64 = 24 * 60 * 60 * 1_000;

/// What the file says.
#[derive(Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct LastGood {
    /// Host, port and database the keys came from.
    pub store: String,
    /// When they were last known to be what the store says.
    pub refreshed_ms: i64,
    /// All of them, revoked ones too.
    pub keys: Vec<Key>,
}

/// The file, and the thread that writes it.
pub struct LastGoodFile {
    path: PathBuf,
    writing: Option<JoinHandle<()>>,
}

impl LastGoodFile {
    /// The one of a data folder.
    pub fn of(data_dir: &Path) -> Self {
        LastGoodFile { path: data_dir.join(FILE_NAME), writing: None }
    }

    /// What the last process left, if it may still be used. A file that is damaged, too old or another store's is none.
    pub fn read(&self, store: &str, now: WallMs) -> Option<LastGood> {
        let bytes = match io::ledger_file::read_small(&self.path) {
            Ok(bytes) => bytes?,
            Err(error) => {
                tracing::warn!(%error, "the key snapshot of the last run cannot be read");
                return None;
            }
        };
        let Ok(last) = serde_json::from_slice::<LastGood>(&bytes) else {
            tracing::warn!(file = %self.path.display(), "the key snapshot of the last run is damaged and not used");
            return None;
        };
        let age_ms = now.0.saturating_sub(last.refreshed_ms);
        if last.store != store || age_ms > KEPT_MS {
            tracing::warn!(store = last.store, age_s = age_ms / 1_000, "the key snapshot of the last run is not used");
            return None;
        }
        Some(last)
    }

    /// Writes the keys, unless a write is under way still: then the caller comes again. `true` when it was begun.
    pub fn write(&mut self, last: &LastGood) -> bool {
        if self.writing.as_ref().is_some_and(|writing| !writing.is_finished()) {
            return false;
        }
        let path = self.path.clone();
        let text = serde_json::to_vec(last).expect("keys are plain data");
        let write = move || {
            if let Err(error) = io::ledger_file::write_atomic(&path, &text) {
                tracing::error!(%error, "the key snapshot cannot be kept; a restart without Postgres would know no keys");
            }
        };
        let spawned = std::thread::Builder::new().name("tt-identity-disk".into()).spawn(write);
        self.writing = spawned.ok();
        self.writing.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("tt-last-good-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn what_was_written_is_read_back_for_a_day_and_for_the_same_store_only() {
        use std::os::unix::fs::PermissionsExt;
        let folder = folder("day");
        let mut file = LastGoodFile::of(&folder);
        let key = Key::mint(&shards::scope::Node::parse("org:acme").unwrap(), None, None, WallMs(5)).unwrap().key;
        let last = LastGood { store: "db:5432/tt".into(), refreshed_ms: 1_000, keys: vec![key] };
        assert!(file.write(&last));
        file.writing.take().unwrap().join().unwrap();
        assert_eq!(file.read("db:5432/tt", WallMs(1_000 + KEPT_MS)).unwrap(), last);
        assert_eq!(file.read("db:5432/tt", WallMs(1_001 + KEPT_MS)), None, "too old");
        assert_eq!(file.read("other:5432/tt", WallMs(1_000)), None, "another store");
        let mode = std::fs::metadata(folder.join(FILE_NAME)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_damaged_file_is_no_snapshot() {
        let folder = folder("damaged");
        let file = LastGoodFile::of(&folder);
        assert_eq!(file.read("db", WallMs(0)), None, "no file");
        std::fs::write(folder.join(FILE_NAME), "{\"keys\":[").unwrap();
        assert_eq!(file.read("db", WallMs(0)), None);
        std::fs::remove_dir_all(folder).unwrap();
    }
}

//! The embedded key store: one JSON file, replaced whole, hashes only.
//!
//! A change is read, made and written under a lock on the file beside it, so that the command line and a running
//! replica do not lose each other's keys. A write is fsynced and renamed into place before anybody is told. Files made
//! by root belong to the owner of the folder, so that a service can read what an administrator minted.

use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use arc_swap::ArcSwap;
use shards::scope::Node;
use shards::units::WallMs;

use super::{Key, KeyError, Minted, Snapshot};

/// Why the key file could not be used. All of these are the operator's to mend.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// The disk said no.
    #[error("key file {file}: {reason}")]
    Io {
        /// Its path.
        file: String,
        /// The system's words.
        reason: std::io::Error,
    },
    /// Somebody edited the file into something else.
    #[error("key file {file} is not a list of keys: {reason}; restore it from a backup or move it away")]
    Content {
        /// Its path.
        file: String,
        /// Where and what.
        reason: serde_json::Error,
    },
}

/// The keys of a replica that keeps them in its own file.
pub struct FileStore {
    snapshot: ArcSwap<Snapshot>,
    file: Mutex<KeyFile>,
    /// Unix ms at which the snapshot was last known to be what the file says.
    refreshed_ms: AtomicI64,
}

impl FileStore {
    /// Opens the key file, creating its folder on first use.
    pub fn open(path: &Path) -> Result<Self, KeyFileError> {
        let file = KeyFile::open(path)?;
        let snapshot = ArcSwap::from_pointee(Snapshot::of(&file.read_for_snapshot()?));
        Ok(FileStore { snapshot, file: Mutex::new(file), refreshed_ms: AtomicI64::new(io::clock::wall_ms()) })
    }

    pub(super) fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    pub(super) fn refresh(&self) -> Result<bool, KeyFileError> {
        let file = self.lock();
        let changed = file.changed_since_read()?;
        if changed {
            self.snapshot.store(Arc::new(Snapshot::of(&file.read_for_snapshot()?)));
        }
        self.refreshed_ms.store(io::clock::wall_ms(), Ordering::Relaxed); // a number to show, nothing hangs on it
        Ok(changed)
    }

    pub(super) fn refreshed(&self) -> WallMs {
        WallMs(self.refreshed_ms.load(Ordering::Relaxed))
    }

    pub(super) fn list(&self) -> Result<Vec<Key>, KeyFileError> {
        self.lock().read()
    }

    pub(super) fn mint(
        &self,
        node: &Node,
        name: Option<String>,
        expires: Option<WallMs>,
        now: WallMs,
    ) -> Result<Minted, KeyError> {
        let file = self.lock();
        let (minted, keys) = file.mint(node, name, expires, now)?;
        self.snapshot.store(Arc::new(Snapshot::of(&keys)));
        Ok(minted)
    }

    pub(super) fn revoke(&self, id: &str, now: WallMs) -> Result<Option<Key>, KeyFileError> {
        let file = self.lock();
        let (revoked, keys) = file.revoke(id, now)?;
        self.snapshot.store(Arc::new(Snapshot::of(&keys)));
        Ok(revoked)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, KeyFile> {
        self.file.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// The file, and what was seen of it last.
pub struct KeyFile {
    path: PathBuf,
    seen: Mutex<Option<Seen>>,
}

#[derive(PartialEq, Eq, Clone, Copy)]
struct Seen {
    modified: Option<std::time::SystemTime>,
    inode: u64,
    bytes: u64,
}

#[derive(serde::Serialize, serde::Deserialize, Default)]
struct Content {
    keys: Vec<Key>,
}

impl KeyFile {
    /// Names the file; its folder is made if missing.
    pub fn open(path: &Path) -> Result<Self, KeyFileError> {
        let file = KeyFile { path: path.to_owned(), seen: Mutex::new(None) };
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(|reason| file.io(reason))?;
        }
        Ok(file)
    }

    /// Every key, for a snapshot: what is read here is what [`KeyFile::changed_since_read`] compares with.
    pub fn read_for_snapshot(&self) -> Result<Vec<Key>, KeyFileError> {
        let (keys, seen) = self.read_seeing()?;
        *self.seen.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = seen;
        Ok(keys)
    }

    /// Every key. A file that does not exist holds none.
    pub fn read(&self) -> Result<Vec<Key>, KeyFileError> {
        Ok(self.read_seeing()?.0)
    }

    fn read_seeing(&self) -> Result<(Vec<Key>, Option<Seen>), KeyFileError> {
        let mut text = String::new();
        let mut seen = None;
        match File::open(&self.path) {
            Ok(mut file) => {
                seen = Some(see(&file.metadata().map_err(|reason| self.io(reason))?));
                file.read_to_string(&mut text).map_err(|reason| self.io(reason))?;
            }
            Err(reason) if reason.kind() == std::io::ErrorKind::NotFound => {}
            Err(reason) => return Err(self.io(reason)),
        }
        if seen.is_none() {
            return Ok((Vec::new(), None)); // an empty file, though, is a damaged one
        }
        let content: Content = serde_json::from_str(&text)
            .map_err(|reason| KeyFileError::Content { file: self.path.display().to_string(), reason })?;
        Ok((content.keys, seen))
    }

    /// Whether somebody else replaced the file since the last read or write.
    pub fn changed_since_read(&self) -> Result<bool, KeyFileError> {
        let now = match fs::metadata(&self.path) {
            Ok(metadata) => Some(see(&metadata)),
            Err(reason) if reason.kind() == std::io::ErrorKind::NotFound => None,
            Err(reason) => return Err(self.io(reason)),
        };
        Ok(now != *self.seen.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    /// Makes a key; on disk when this returns.
    pub fn mint(
        &self,
        node: &Node,
        name: Option<String>,
        expires: Option<WallMs>,
        now: WallMs,
    ) -> Result<(Minted, Vec<Key>), KeyError> {
        let minted = Key::mint(node, name, expires, now)?;
        let keys = self.change(|keys| keys.push(minted.key.clone()))?;
        Ok((minted, keys))
    }

    /// Revokes a key; on disk when this returns. `None`: no such id.
    pub fn revoke(&self, id: &str, now: WallMs) -> Result<(Option<Key>, Vec<Key>), KeyFileError> {
        let mut revoked = None;
        let keys = self.change(|keys| {
            if let Some(key) = keys.iter_mut().find(|key| key.id == id) {
                key.revoked_ms.get_or_insert(now.0);
                revoked = Some(key.clone());
            }
        })?;
        Ok((revoked, keys))
    }

    fn change(&self, edit: impl FnOnce(&mut Vec<Key>)) -> Result<Vec<Key>, KeyFileError> {
        let lock = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW) // the folder's owner must not lead root to another file
            .open(self.path.with_extension("lock"))
            .map_err(|reason| self.io(reason))?;
        io::ledger_file::give_to_owner_of_folder(&lock, &self.path).map_err(|reason| self.io(reason))?;
        // SAFETY: a plain flock on a descriptor that lives until the end of this function; closing it unlocks.
        if unsafe { libc::flock(lock.as_raw_fd(), libc::LOCK_EX) } != 0 {
            return Err(self.io(std::io::Error::last_os_error()));
        }
        let mut content = Content { keys: self.read()? };
        edit(&mut content.keys);
        let text = serde_json::to_vec_pretty(&content).expect("keys are plain data");
        io::ledger_file::write_atomic(&self.path, &text).map_err(|reason| self.io(std::io::Error::other(reason)))?;
        let metadata = fs::metadata(&self.path).map_err(|reason| self.io(reason))?;
        *self.seen.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(see(&metadata));
        Ok(content.keys)
    }

    fn io(&self, reason: std::io::Error) -> KeyFileError {
        KeyFileError::Io { file: self.path.display().to_string(), reason }
    }
}

fn see(metadata: &fs::Metadata) -> Seen {
    use std::os::unix::fs::MetadataExt;
    Seen { modified: metadata.modified().ok(), inode: metadata.ino(), bytes: metadata.len() }
}

#[cfg(test)]
mod tests {
    use super::super::{KeyStore, token};
    use super::*;

    fn folder() -> PathBuf {
        let mut random = [0_u8; 8];
        getrandom::fill(&mut random).unwrap();
        std::env::temp_dir().join(format!("tt-keys-{}", token::hex(&random)))
    }

    #[test]
    fn a_key_opens_until_it_is_revoked_or_expires_and_only_its_hash_rests_on_disk() {
        let folder = folder();
        let path = folder.join("keys.json");
        let store = KeyStore::open(&path).unwrap();
        let node = Node::parse("org:acme/team:ml").unwrap();
        let forever = store.mint(&node, Some("ci".into()), None, WallMs(1_000), "a test").unwrap();
        let brief = store.mint(&node, None, Some(WallMs(5_000)), WallMs(1_000), "a test").unwrap();

        let found = store.snapshot().find(forever.token.as_bytes(), WallMs(2_000)).unwrap().node.clone();
        assert_eq!(found, node);
        assert!(store.snapshot().find(brief.token.as_bytes(), WallMs(4_999)).is_some());
        assert!(store.snapshot().find(brief.token.as_bytes(), WallMs(5_000)).is_none(), "expired");

        let text = fs::read_to_string(&path).unwrap();
        assert!(!text.contains(&forever.token) && !text.contains(&forever.token[4..20]));

        assert!(store.revoke(&forever.key.id, WallMs(3_000), "a test").unwrap().is_some());
        assert!(store.snapshot().find(forever.token.as_bytes(), WallMs(3_000)).is_none());
        assert!(store.revoke("key_nobody", WallMs(3_000), "a test").unwrap().is_none());
        assert_eq!(store.list().unwrap().len(), 2);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_key_minted_by_another_process_is_seen_on_refresh() {
        let folder = folder();
        let path = folder.join("keys.json");
        let (ours, theirs) = (KeyStore::open(&path).unwrap(), KeyStore::open(&path).unwrap());
        let node = Node::parse("org:acme").unwrap();
        let minted = theirs.mint(&node, None, None, WallMs(1), "a test").unwrap();
        assert!(ours.snapshot().find(minted.token.as_bytes(), WallMs(2)).is_none());
        assert!(ours.refresh().unwrap());
        assert!(ours.snapshot().find(minted.token.as_bytes(), WallMs(2)).is_some());
        assert!(!ours.refresh().unwrap(), "nothing new");
        let second = ours.mint(&node, None, None, WallMs(3), "a test").unwrap();
        assert_eq!(theirs.list().unwrap().len(), 2, "neither lost the other's key");
        assert!(theirs.refresh().unwrap());
        assert!(theirs.snapshot().find(second.token.as_bytes(), WallMs(4)).is_some());
        fs::remove_dir_all(folder).unwrap();
    }

    /// As root this is about an administrator who mints in a service's folder; for anybody else it says little.
    #[test]
    fn what_is_minted_belongs_to_the_owner_of_the_folder() {
        use std::os::unix::fs::{MetadataExt, chown};
        let folder = folder();
        fs::create_dir_all(&folder).unwrap();
        // SAFETY: takes nothing, touches no memory, cannot fail.
        if unsafe { libc::geteuid() } == 0 {
            chown(&folder, Some(65_534), Some(65_534)).unwrap();
        }
        let store = KeyStore::open(&folder.join("keys.json")).unwrap();
        store.mint(&Node::parse("org:acme").unwrap(), None, None, WallMs(1), "a test").unwrap();
        let audit = crate::audit::AuditFile::of(&folder);
        audit
            .record(WallMs(1), &crate::audit::Who::command_line(), "keys.mint", &serde_json::Value::Null, "done")
            .unwrap();
        let owner = fs::metadata(&folder).unwrap().uid();
        for entry in fs::read_dir(&folder).unwrap().flatten() {
            assert_eq!(entry.metadata().unwrap().uid(), owner, "{:?}", entry.file_name());
        }
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 3);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_damaged_file_is_an_error_and_not_an_empty_store() {
        let folder = folder();
        let path = folder.join("keys.json");
        fs::create_dir_all(&folder).unwrap();
        fs::write(&path, "{\"keys\": [").unwrap();
        let error = KeyStore::open(&path).err().unwrap().to_string();
        assert!(error.contains("is not a list of keys"), "{error}");
        fs::remove_dir_all(folder).unwrap();
    }
}

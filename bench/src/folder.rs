//! The folder of a run, for configurations, logs and ledgers. It goes when the run ends.
//!
//! A run that was killed leaves its folder; the next one removes it.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::sys;
use crate::trouble::{Result, While};

const PREFIX: &str = "tokentriage-bench-";

/// A folder that goes when this is dropped.
pub struct Folder {
    path: PathBuf,
    /// Locked as long as the folder is in use: a process in another container has a number that means nothing here.
    _lock: File,
}

impl Folder {
    pub fn new() -> Result<Self> {
        let nanos = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_nanos());
        let path = std::env::temp_dir().join(format!("{PREFIX}{}-{nanos}", std::process::id()));
        fs::create_dir_all(&path).whilst(|| format!("cannot make {}", path.display()))?;
        let lock = File::open(&path).whilst(|| format!("cannot open {}", path.display()))?;
        let _ = lock.try_lock(); // where the file system has no locks, the process number alone protects
        // Peers drop their rights and must still find their files.
        let open = fs::Permissions::from_mode(0o755);
        fs::set_permissions(&path, open).whilst(|| format!("cannot open {}", path.display()))?;
        Ok(Self { path, _lock: lock })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Removes what killed runs left: folders named like ours, of this user, whose process is gone and which nobody locks.
pub fn remove_left_behind() {
    remove_left_in(&std::env::temp_dir());
}

fn remove_left_in(place: &Path) {
    for entry in fs::read_dir(place).into_iter().flatten().flatten() {
        let path = entry.path();
        let Some(pid) = entry.file_name().to_str().and_then(process_of) else { continue };
        // Of the entry itself, so that a link is never followed.
        let is_ours = entry.metadata().is_ok_and(|found| found.is_dir() && found.uid() == sys::user());
        if is_ours && !sys::is_alive(pid) && File::open(&path).is_ok_and(|folder| folder.try_lock().is_ok()) {
            let _ = fs::remove_dir_all(&path); // what cannot be removed is no reason to measure nothing
        }
    }
}

/// The process that a folder is named after; `None` when the name is not exactly one of ours.
fn process_of(name: &str) -> Option<u32> {
    let (pid, nanos) = name.strip_prefix(PREFIX)?.split_once('-')?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    (is_number(pid) && is_number(nanos)).then(|| pid.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Above the largest number that Linux gives a process.
    const NOBODY: u32 = 1 << 23;

    #[test]
    fn only_folders_of_runs_that_are_gone_are_removed() {
        let place = Folder::new().unwrap();
        let make = |name: String| {
            let path = place.path().join(name);
            fs::create_dir_all(path.join("governed/data")).unwrap();
            path
        };
        let left = make(format!("{PREFIX}{NOBODY}-17"));
        let locked = make(format!("{PREFIX}{NOBODY}-18"));
        let lock = File::open(&locked).unwrap();
        lock.try_lock().unwrap();
        let others = [
            locked,
            make(format!("{PREFIX}{}-17", std::process::id())),
            make(format!("{PREFIX}{NOBODY}-17-x")),
            make(format!("{PREFIX}{NOBODY}")),
            make(format!("{PREFIX}results-17")),
            make(format!("my-{PREFIX}{NOBODY}-17")),
        ];
        let link = place.path().join(format!("{PREFIX}{NOBODY}-19"));
        std::os::unix::fs::symlink(&others[1], &link).unwrap();
        remove_left_in(place.path());
        assert!(!left.exists());
        assert!(others.iter().all(|path| path.join("governed/data").is_dir()), "{others:?}");
        assert!(link.exists());
    }
}

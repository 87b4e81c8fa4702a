//! Small files that are replaced whole or not at all: checkpoint, rollups, key snapshots, the ledger id.
//!
//! A reader sees the old bytes or the new ones, also after power loss. Not for anything that grows.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};

use super::{Doing, FILE_MODE, LedgerError};

/// Marks a file that a crash may have left half written.
const TEMPORARY: &str = ".tmp";

/// Replaces `path` with `bytes`: written aside, synced, renamed, and the folder synced, in that order. On an error
/// the old file still stands. What root writes belongs to the owner of the folder.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> Result<(), LedgerError> {
    let aside = aside(path);
    let written = write_synced(&aside, bytes).and_then(|()| fs::rename(&aside, path).doing("replace", path));
    if written.is_err() {
        // Gives the space back at once; a leftover is removed at the next start anyway.
        let _ = fs::remove_file(&aside);
    }
    written?;
    sync_dir(folder_of(path))
}

/// The whole file, or `None` when there is none.
pub fn read_small(path: &Path) -> Result<Option<Vec<u8>>, LedgerError> {
    match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other.doing("read", path).map(Some),
    }
}

/// Makes creations, renames and removals in a folder durable; syncing a file alone does not keep its name.
pub(super) fn sync_dir(dir: &Path) -> Result<(), LedgerError> {
    File::open(dir).and_then(|dir| dir.sync_all()).doing("sync folder", dir)
}

/// Removes what a crash left beside the files it did not get to replace.
pub(super) fn remove_leftovers(dir: &Path) -> Result<(), LedgerError> {
    for entry in fs::read_dir(dir).doing("list", dir)? {
        let path = entry.doing("list", dir)?.path();
        if path.to_str().is_some_and(|name| name.ends_with(TEMPORARY)) {
            fs::remove_file(&path).doing("remove", &path)?;
        }
    }
    Ok(())
}

/// Gives a file that root made to the owner of the folder `path` is in: a service must be able to read and replace what
/// an administrator left in its folder. Nothing happens to a file that has another owner already or another name
/// elsewhere (the folder's owner may have linked somebody else's file there), or for anybody but root.
pub fn give_to_owner_of_folder(file: &File, path: &Path) -> io::Result<()> {
    let now = file.metadata()?;
    // SAFETY: takes nothing, touches no memory, cannot fail.
    let is_root = unsafe { libc::geteuid() } == 0;
    if !is_root || now.uid() != 0 || !now.is_file() || now.nlink() != 1 {
        return Ok(());
    }
    let folder = fs::metadata(folder_of(path))?;
    if folder.uid() != 0 {
        fchown(file, Some(folder.uid()), Some(folder.gid()))?;
    }
    Ok(())
}

fn write_synced(path: &Path, bytes: &[u8]) -> Result<(), LedgerError> {
    // A leftover of a crash goes first, so that the file is new: a link planted here leads to no other file.
    let _ = fs::remove_file(path);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(path).doing("create", path)?;
    give_to_owner_of_folder(&file, path).doing("give away", path)?;
    file.write_all(bytes).doing("write", path)?;
    file.sync_all().doing("sync", path)
}

fn aside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(TEMPORARY);
    PathBuf::from(name)
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::TestDir;
    use super::*;

    #[test]
    fn file_is_replaced_whole_and_nothing_is_left_aside() {
        let dir = TestDir::new();
        let path = dir.path().join("checkpoint.json");
        assert_eq!(read_small(&path).unwrap(), None);
        write_atomic(&path, b"first, and longer").unwrap();
        write_atomic(&path, b"second").unwrap();
        assert_eq!(read_small(&path).unwrap().unwrap(), b"second");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn failed_replacement_leaves_the_old_file_and_no_litter() {
        let dir = TestDir::new();
        let path = dir.path().join("taken");
        fs::create_dir(&path).unwrap(); // a folder cannot be replaced by a file
        let error = write_atomic(&path, b"x").unwrap_err();
        assert!(error.to_string().starts_with("cannot replace "), "{error}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn leftover_of_a_crash_is_removed_at_the_next_start() {
        let dir = TestDir::new();
        fs::write(dir.path().join("checkpoint.json.tmp"), "half").unwrap();
        remove_leftovers(dir.path()).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}

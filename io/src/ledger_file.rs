//! The ledger folder: who may write it, which segments it holds, and small files that are replaced whole.
//!
//! Knows bytes and lines only; what a line means, when to sync, rotate a rollup in or remove a segment is the
//! accountant's business. [`Log`] appends, [`Reader`] reads back; both are plain blocking file calls made from a
//! thread that may wait, never from a data core.
//!
//! ```text
//! ledger/
//!   ledger.lock                                 held (flock) by the one process that writes here
//!   ledger-id                                   minted with the folder, moves with the volume
//!   decisions-00000000000000000001.jsonl        a segment, named by the first sequence number in it
//!   rollup-00000000000000000001.jsonl           what the accountant derived from a closed segment
//!   …                                           other small files, written whole by [`write_atomic`]
//! ```

mod backward;
mod log;
mod reader;
mod small;

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

pub use backward::Backward;
pub use log::{Appended, Log};
pub use reader::{Line, ReadReport, Reader};
pub use small::{give_to_owner_of_folder, read_small, write_atomic};

const LOCK_FILE: &str = "ledger.lock";
const ID_FILE: &str = "ledger-id";
const SEGMENT_PREFIX: &str = "decisions-";
const ROLLUP_PREFIX: &str = "rollup-";
const SUFFIX: &str = ".jsonl";

/// Rows name tenants and what they spend: nobody but the service's own user needs them.
const FOLDER_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;

#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// The operator's: two processes were pointed at one folder.
    #[error(
        "ledger folder {} is already in use by {holder}; stop that process or give this one its own ledger.dir",
        folder.display()
    )]
    InUse { folder: PathBuf, holder: String },
    /// The operator's: somebody edited a file that only we write.
    #[error("{} does not hold a ledger id; restore it, or remove it to have a new one minted", path.display())]
    MalformedId { path: PathBuf },
    /// The machine's: disk full, I/O error, permissions.
    #[error("cannot {doing} {}: {source}{}", path.display(), remedy(source))]
    Io { doing: &'static str, path: PathBuf, source: io::Error },
}

impl LedgerError {
    /// Whether more space (or a larger quota or file size limit) would cure it.
    pub fn is_disk_full(&self) -> bool {
        use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
        matches!(self, LedgerError::Io { source, .. }
            if matches!(source.kind(), StorageFull | QuotaExceeded | FileTooLarge))
    }
}

/// What the operator can do about it, where the system's words do not say.
fn remedy(error: &io::Error) -> &'static str {
    use io::ErrorKind::{FileTooLarge, PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    match error.kind() {
        PermissionDenied => "; give this user the folder, or name another data_dir",
        ReadOnlyFilesystem => "; name a data_dir that can be written to",
        StorageFull => "; make room there",
        QuotaExceeded => "; raise this user's quota, or make room",
        FileTooLarge => "; raise the limit of a file's size (ulimit -f)",
        _ => "",
    }
}

/// Names what was being done, on which path, beside the system's own words.
trait Doing<T> {
    fn doing(self, doing: &'static str, path: &Path) -> Result<T, LedgerError>;
}

impl<T> Doing<T> for io::Result<T> {
    fn doing(self, doing: &'static str, path: &Path) -> Result<T, LedgerError> {
        self.map_err(|source| LedgerError::Io { doing, path: path.to_owned(), source })
    }
}

/// A byte in the ledger: segment, then offset. Orders as the rows were written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, serde::Serialize, serde::Deserialize)]
pub struct Position {
    /// First sequence number of the segment, as in its name.
    pub segment: u64,
    pub offset: u64,
}

/// Bytes after the last newline: a write that a crash cut short.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Torn {
    pub at: Position,
    pub bytes: u64,
}

/// One segment on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    pub first_seq: u64,
    pub path: PathBuf,
    pub bytes: u64,
}

/// A ledger folder that this process alone may write, until the value is dropped.
pub struct LedgerFolder {
    dir: PathBuf,
    ledger_id: String,
    /// Holds the lock; the kernel releases it with the last descriptor, also after kill −9.
    _lock: File,
}

impl LedgerFolder {
    /// Creates the folder if it is missing, locks it, and mints its id the first time. Never waits for the lock.
    pub fn open(dir: &Path) -> Result<LedgerFolder, LedgerError> {
        DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(dir).doing("create ledger folder", dir)?;
        let lock = lock_folder(dir)?;
        small::remove_leftovers(dir)?;
        let ledger_id = read_or_mint_id(dir)?;
        Ok(LedgerFolder { dir: dir.to_owned(), ledger_id, _lock: lock })
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// 32 hexadecimal digits that name this ledger wherever its volume goes.
    pub fn ledger_id(&self) -> &str {
        &self.ledger_id
    }

    pub fn segments(&self) -> Result<Vec<Segment>, LedgerError> {
        segments(&self.dir)
    }

    /// Where the rollup of a segment belongs; written with [`write_atomic`], removed with its segment.
    pub fn rollup_path(&self, first_seq: u64) -> PathBuf {
        rollup_path(&self.dir, first_seq)
    }

    /// Removes a closed segment that the retention has passed. Its rollup goes first: a crash in between leaves
    /// rows without a rollup, which can be rebuilt, never a rollup without its rows.
    pub fn remove_segment(&self, first_seq: u64) -> Result<(), LedgerError> {
        for path in [rollup_path(&self.dir, first_seq), segment_path(&self.dir, first_seq)] {
            match fs::remove_file(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                other => other.doing("remove", &path)?,
            }
        }
        small::sync_dir(&self.dir)
    }
}

/// The segments of a folder, oldest first. Needs no lock, so that an offline query can look at a live ledger.
pub fn segments(dir: &Path) -> Result<Vec<Segment>, LedgerError> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).doing("list", dir)? {
        let entry = entry.doing("list", dir)?;
        let Some(first_seq) = entry.file_name().to_str().and_then(first_seq_of) else { continue };
        let path = entry.path();
        let bytes = match entry.metadata() {
            Ok(metadata) => metadata.len(),
            // The writer's retention removed it between the listing and this line.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error).doing("look at", &path),
        };
        found.push(Segment { first_seq, path, bytes });
    }
    found.sort_unstable_by_key(|segment| segment.first_seq);
    Ok(found)
}

/// Where the rollup of a segment belongs in `dir`.
pub fn rollup_path(dir: &Path, first_seq: u64) -> PathBuf {
    dir.join(format!("{ROLLUP_PREFIX}{first_seq:020}{SUFFIX}"))
}

fn segment_path(dir: &Path, first_seq: u64) -> PathBuf {
    dir.join(format!("{SEGMENT_PREFIX}{first_seq:020}{SUFFIX}"))
}

/// The sequence number in a segment's name; `None` for any other file.
fn first_seq_of(name: &str) -> Option<u64> {
    let digits = name.strip_prefix(SEGMENT_PREFIX)?.strip_suffix(SUFFIX)?;
    let plain = digits.len() == 20 && digits.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| digits.parse().ok()).flatten()
}

fn lock_folder(dir: &Path) -> Result<File, LedgerError> {
    let path = dir.join(LOCK_FILE);
    let mut lock = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(FILE_MODE)
        .open(&path)
        .doing("open", &path)?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut pid = String::new();
            // Only for the message; a holder that has not written its pid yet is "another process".
            let known = (&mut lock).take(32).read_to_string(&mut pid).is_ok() && !pid.trim().is_empty();
            let holder = if known { format!("process {}", pid.trim()) } else { "another process".to_owned() };
            return Err(LedgerError::InUse { folder: dir.to_owned(), holder });
        }
        Err(TryLockError::Error(error)) => return Err(error).doing("lock", &path),
    }
    lock.set_len(0).doing("write", &path)?;
    lock.rewind().doing("write", &path)?;
    // A full disk must not keep the gateway from starting: the pid only words somebody else's error message.
    let _ = writeln!(lock, "{}", std::process::id());
    Ok(lock)
}

fn read_or_mint_id(dir: &Path) -> Result<String, LedgerError> {
    let path = dir.join(ID_FILE);
    if let Some(bytes) = read_small(&path)? {
        let id = String::from_utf8(bytes).unwrap_or_default().trim().to_owned();
        let well_formed = id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        return if well_formed { Ok(id) } else { Err(LedgerError::MalformedId { path }) };
    }
    let mut random = [0u8; 16];
    getrandom::fill(&mut random).map_err(io::Error::other).doing("draw random bytes for", &path)?;
    let id = format!("{:032x}", u128::from_be_bytes(random));
    write_atomic(&path, id.as_bytes())?;
    Ok(id)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// A folder of its own for one test, removed when the test ends.
    pub(crate) struct TestDir(PathBuf);

    impl TestDir {
        pub(crate) fn new() -> TestDir {
            static NEXT: AtomicU64 = AtomicU64::new(0);
            let unique = NEXT.fetch_add(1, Ordering::Relaxed); // Relaxed: only uniqueness matters
            let dir = std::env::temp_dir().join(format!("tt-ledger-{}-{unique}", std::process::id()));
            fs::create_dir_all(&dir).expect("a temporary folder can be created");
            TestDir(dir)
        }

        pub(crate) fn path(&self) -> &Path {
            &self.0
        }
    }

    impl Drop for TestDir {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn second_opener_is_told_the_folder_and_who_holds_it() {
        let dir = TestDir::new();
        let first = LedgerFolder::open(dir.path()).unwrap();
        let error = LedgerFolder::open(dir.path()).err().unwrap().to_string();
        let expected = format!(
            "ledger folder {} is already in use by process {}; stop that process or give this one its own ledger.dir",
            dir.path().display(),
            std::process::id()
        );
        assert_eq!(error, expected);
        drop(first);
        LedgerFolder::open(dir.path()).unwrap();
    }

    #[test]
    fn ledger_id_is_minted_once_and_survives() {
        let dir = TestDir::new();
        let minted = LedgerFolder::open(dir.path()).unwrap().ledger_id().to_owned();
        assert_eq!(minted.len(), 32);
        assert_eq!(LedgerFolder::open(dir.path()).unwrap().ledger_id(), minted);

        fs::write(dir.path().join(ID_FILE), "not an id").unwrap();
        let error = LedgerFolder::open(dir.path()).err().unwrap().to_string();
        assert!(error.contains("does not hold a ledger id; restore it"), "{error}");
    }

    #[test]
    fn segments_are_listed_in_order_of_their_first_row_and_nothing_else_is() {
        let dir = TestDir::new();
        for name in [
            "decisions-00000000000000000100.jsonl",
            "decisions-00000000000000000002.jsonl",
            "decisions-2.jsonl",
            "decisions-+0000000000000000003.jsonl",
            "decisions-99999999999999999999.jsonl", // beyond 64 bits
            "rollup-00000000000000000002.jsonl",
            "checkpoint.json",
        ] {
            fs::write(dir.path().join(name), "x\n").unwrap();
        }
        let seqs: Vec<u64> = segments(dir.path()).unwrap().iter().map(|segment| segment.first_seq).collect();
        assert_eq!(seqs, [2, 100]);
    }

    #[test]
    fn removed_segment_takes_its_rollup_along() {
        let dir = TestDir::new();
        let folder = LedgerFolder::open(dir.path()).unwrap();
        fs::write(segment_path(dir.path(), 1), "a\n").unwrap();
        fs::write(segment_path(dir.path(), 2), "b\n").unwrap();
        write_atomic(&folder.rollup_path(1), b"{}\n").unwrap();
        folder.remove_segment(1).unwrap();
        assert_eq!(folder.segments().unwrap().len(), 1);
        assert!(!folder.rollup_path(1).exists());
        folder.remove_segment(1).unwrap(); // twice is once
    }

    #[test]
    fn what_the_system_refuses_is_said_with_what_to_do() {
        for (code, wanted) in [
            (libc::EACCES, "cannot open /l: Permission denied (os error 13); give this user the folder"),
            (libc::ENOSPC, "No space left on device (os error 28); make room there"),
            (libc::EROFS, "name a data_dir that can be written to"),
            (libc::EDQUOT, "raise this user's quota"),
            (libc::EFBIG, "ulimit -f"),
        ] {
            let refused: io::Result<()> = Err(io::Error::from_raw_os_error(code));
            let said = refused.doing("open", Path::new("/l")).unwrap_err().to_string();
            assert!(said.contains(wanted), "{said}");
        }
    }
}

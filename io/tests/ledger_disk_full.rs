//! A disk that fills up under the ledger: nothing half written stays, nothing is lost, and it recovers by itself.
//!
//! The only test of its process, because the limit it sets holds for the whole process: a file size limit makes
//! the kernel behave as a full disk does, a short write first and an error for the rest.

use std::fs;
use std::path::PathBuf;

use io::ledger_file::{LedgerFolder, Log, Position, Reader};

/// Files of this process may not grow past `bytes` (`None`: as large as they like).
fn limit_file_size(bytes: Option<u64>) {
    // SAFETY: plain system calls with a valid, initialised struct; only the soft limit moves.
    unsafe {
        let mut limit = std::mem::zeroed::<libc::rlimit>();
        assert_eq!(libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit), 0);
        limit.rlim_cur = bytes.unwrap_or(limit.rlim_max);
        assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &limit), 0);
        // Without this the kernel ends the process where a full disk would only fail the write.
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
}

struct TestDir(PathBuf);

impl Drop for TestDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn full_disk_is_an_error_that_loses_nothing_and_passes() {
    let dir = TestDir(std::env::temp_dir().join(format!("tt-ledger-full-{}", std::process::id())));
    let folder = LedgerFolder::open(&dir.0).unwrap();
    let (mut log, _) = Log::open(&folder, 1 << 20).unwrap();
    log.append(b"one\n", 1).unwrap();
    let batch = b"two, which does not fit\n";

    limit_file_size(Some(10));
    for _ in 0..3 {
        let error = log.append(batch, 2).unwrap_err();
        assert!(error.is_disk_full(), "{error}");
        assert!(error.to_string().starts_with("cannot append to "), "{error}");
        let segment = &folder.segments().unwrap()[0];
        assert_eq!(fs::read(&segment.path).unwrap(), b"one\n", "half a batch stayed behind");
    }
    // A smaller batch still fits: the log is not stuck on the one that failed.
    log.append(b"2\n", 2).unwrap();

    limit_file_size(None);
    log.append(batch, 3).unwrap();
    log.sync().unwrap();
    assert_eq!(log.unsynced_bytes(), 0);

    let mut reader = Reader::folder(&dir.0, Position::default(), None).unwrap();
    let mut lines = Vec::new();
    while let Some(line) = reader.next_line().unwrap() {
        lines.push(String::from_utf8(line.bytes.to_vec()).unwrap());
    }
    assert_eq!(lines, ["one", "2", "two, which does not fit"]);
}

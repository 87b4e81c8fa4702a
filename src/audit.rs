//! The audit file: every change somebody made through the admin API, the command line or a signal. Who, when, what.
//!
//! JSON lines in `data_dir/audit.jsonl`. An entry is on the disk before the one who asked is answered, and a change that
//! cannot be recorded is not answered as done. Entries hold ids and names, never a key or a token.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use ::io::ledger_file::{Backward, LedgerError, give_to_owner_of_folder};
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;
use shards::units::WallMs;

use crate::when;

/// The file, under `data_dir`.
pub const FILE_NAME: &str = "audit.jsonl";

/// Who did it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "through", rename_all = "snake_case")]
pub enum Who {
    /// Over HTTP.
    AdminApi {
        /// `admin`, `peer` or `none`: what was shown. The token itself is nowhere.
        token: &'static str,
        /// Address and port of the other end.
        peer: String,
    },
    /// On this machine, by somebody who may write the files.
    CommandLine {
        /// Numeric user id.
        uid: u32,
    },
    /// By a signal; the kernel does not tell whose.
    Signal {
        /// `SIGHUP`.
        name: &'static str,
    },
}

impl Who {
    /// In one line, for a store of keys that several replicas write to.
    pub fn on_replica(&self, replica: &str) -> String {
        let who = serde_json::to_value(self).unwrap_or_default(); // two words and a number: plain data
        serde_json::json!({ "replica": replica, "who": who }).to_string()
    }

    /// Whoever started this process.
    pub fn command_line() -> Self {
        // SAFETY: takes nothing, touches no memory, cannot fail.
        Who::CommandLine { uid: unsafe { libc::getuid() } }
    }
}

/// One entry.
#[derive(Serialize)]
struct Entry<'a> {
    at: String,
    who: &'a Who,
    action: &'a str,
    what: &'a Value,
    outcome: &'a str,
}

/// Names the file. Each entry opens it, so that it may be moved away at any time.
#[derive(Clone, Debug)]
pub struct AuditFile(PathBuf);

impl AuditFile {
    /// The one of a data folder.
    pub fn of(data_dir: &Path) -> Self {
        AuditFile(data_dir.join(FILE_NAME))
    }

    /// Appends an entry: on the disk when this returns. Waits for that.
    pub fn record(&self, at: WallMs, who: &Who, action: &str, what: &Value, outcome: &str) -> io::Result<()> {
        let entry = Entry { at: when::text(at), who, action, what, outcome };
        let mut line = serde_json::to_vec(&entry)?;
        line.push(b'\n');
        let mut file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(&self.0)?;
        // A file that was just made by root; an older one keeps the owner it has.
        if file.metadata()?.len() == 0 && self.0.symlink_metadata()?.is_file() {
            give_to_owner_of_folder(&file, &self.0)?;
        }
        end_torn_line(&mut file, &mut line)?;
        // One write: the kernel keeps entries of two processes apart.
        file.write_all(&line)?;
        file.sync_all()
    }

    /// The newest entries, newest first. Waits for the disk.
    pub fn newest(&self, limit: usize) -> Result<Vec<Box<RawValue>>, LedgerError> {
        let mut entries = Vec::new();
        if !self.0.exists() {
            return Ok(entries);
        }
        let mut lines = Backward::open(&self.0, None)?;
        while entries.len() < limit {
            let Some(line) = lines.next_line()? else { break };
            // A line that a full disk cut short is not an entry.
            entries.extend(serde_json::from_slice::<Box<RawValue>>(line).ok());
        }
        Ok(entries)
    }
}

/// A full disk or a power loss may have cut the last entry short; the next one begins on a line of its own all the same.
fn end_torn_line(file: &mut std::fs::File, line: &mut Vec<u8>) -> io::Result<()> {
    use std::os::unix::fs::FileExt;
    let length = file.metadata()?.len();
    let mut last = [b'\n'];
    if length > 0 {
        file.read_exact_at(&mut last, length - 1)?;
    }
    if last != *b"\n" {
        line.insert(0, b'\n');
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn file(name: &str) -> AuditFile {
        let folder = std::env::temp_dir().join(format!("tt-audit-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        AuditFile::of(&folder)
    }

    #[test]
    fn the_newest_entry_comes_first_and_says_who_when_and_what() {
        let file = file("order");
        assert!(file.newest(10).unwrap().is_empty(), "no file is no entry");
        let who = Who::AdminApi { token: "admin", peer: "127.0.0.1:5".into() };
        file.record(WallMs(1_000), &who, "keys.mint", &json!({"id": "key_1"}), "done").unwrap();
        file.record(WallMs(2_500), &Who::CommandLine { uid: 7 }, "keys.revoke", &json!({"id": "key_1"}), "done")
            .unwrap();
        let entries: Vec<String> = file.newest(10).unwrap().iter().map(|entry| entry.get().to_owned()).collect();
        let newest = r#"{"at":"1970-01-01T00:00:02.500Z","who":{"through":"command_line","uid":7},"#;
        assert_eq!(entries[0], format!(r#"{newest}"action":"keys.revoke","what":{{"id":"key_1"}},"outcome":"done"}}"#));
        assert!(entries[1].contains(r#""who":{"through":"admin_api","token":"admin","peer":"127.0.0.1:5"}"#));
        assert_eq!(file.newest(1).unwrap().len(), 1);
    }

    #[test]
    fn an_entry_after_a_torn_one_is_whole() {
        let file = file("torn");
        std::fs::write(&file.0, b"{\"at\":\"20").unwrap();
        file.record(WallMs(1_000), &Who::command_line(), "config.reload", &Value::Null, "refused").unwrap();
        assert_eq!(file.newest(10).unwrap().len(), 1);
    }
}

//! The roster where every thread can look at it, and who keeps a copy of it.
//!
//! Copies are why a Redis that restarts empty makes nobody forget a replica: a file always, a database where one is
//! configured. All of them keep the same rows.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use io::ledger_file::{read_small, write_atomic};
use io::postgres::ReplicaRow;
use serde::{Deserialize, Serialize};
use shards::membership::roster::{Entry, Roster};

use crate::identity_thread::RosterStore;
use crate::keys::Followed;

/// The file, under `data_dir`.
const FILE_NAME: &str = "roster.json";
const VERSION: u32 = 1;

/// The roster as plain data.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RosterRows {
    v: u32,
    pub entries: Vec<Entry>,
    /// Names that were decommissioned, and when, by the store's clock in µs.
    pub gone: Vec<(String, u64)>,
}

impl RosterRows {
    pub fn new(entries: Vec<Entry>, gone: Vec<(String, u64)>) -> Self {
        RosterRows { v: VERSION, entries, gone }
    }
}

/// What everybody sees of the roster.
pub struct RosterSeen {
    newest: ArcSwap<Roster>,
    version: AtomicU64,
}

impl RosterSeen {
    pub fn new(roster: Roster) -> Self {
        RosterSeen { newest: ArcSwap::from_pointee(roster), version: AtomicU64::new(0) }
    }

    /// Takes up what a copy remembers, before anybody asks.
    pub fn remember(&self, rows: RosterRows) {
        let mut roster = Roster::clone(&self.load());
        let has_changed = roster.remember(rows.entries, &rows.gone);
        self.publish(roster, has_changed);
    }

    /// As of the last heartbeat. Ages and states are asked of it with the present time.
    pub fn load(&self) -> Arc<Roster> {
        self.newest.load_full()
    }

    /// Moves when somebody came, left, moved or was removed; not with every heartbeat.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// The rows a copy holds.
    pub fn rows(&self) -> RosterRows {
        let roster = self.load();
        RosterRows::new(roster.entries().cloned().collect(), roster.gone())
    }

    /// The coordinator has heard from the store.
    pub fn publish(&self, roster: Roster, has_changed: bool) {
        self.newest.store(Arc::new(roster));
        if has_changed {
            self.version.fetch_add(1, Ordering::AcqRel);
        }
    }
}

/// Keeps a copy of the roster. Both calls may wait for seconds: they are made on a thread for that, one at a time.
pub trait RosterKeeper: Send + Sync {
    /// For the log.
    fn name(&self) -> &'static str;
    /// What it holds; nothing when there is none.
    fn load(&self) -> Result<RosterRows, String>;
    /// Upserts `entries` by id, where the copy's `last_beat_us` is not newer, and then forgets each of `gone` whose
    /// `last_beat_us` is not newer than its removal.
    fn save(&self, rows: &RosterRows) -> Result<(), String>;
}

/// The copy in Postgres, next to the keys. A row there is the newest word about a replica, that it is there or that it was
/// removed, so that every replica may save all that it knows.
pub struct RosterTable(pub Arc<Followed>);

impl RosterKeeper for RosterTable {
    fn name(&self) -> &'static str {
        "postgres"
    }

    /// Rows that no version of ours wrote are left out.
    fn load(&self) -> Result<RosterRows, String> {
        let mut rows = RosterRows::new(Vec::new(), Vec::new());
        for row in RosterStore::load(&*self.0).map_err(|error| error.to_string())? {
            match row.entry {
                Some(entry) => rows.entries.extend(serde_json::from_str::<Entry>(&entry).ok()),
                None => rows.gone.push((row.id, u64::try_from(row.as_of_us).unwrap_or(0))),
            }
        }
        Ok(rows)
    }

    fn save(&self, rows: &RosterRows) -> Result<(), String> {
        let as_of_us = |at_us: u64| i64::try_from(at_us).unwrap_or(i64::MAX);
        let entries = rows.entries.iter().map(|entry| ReplicaRow {
            id: entry.id.clone(),
            as_of_us: as_of_us(entry.last_beat_us),
            entry: serde_json::to_string(entry).ok(), // strings and numbers always become JSON
        });
        let gone = rows.gone.iter();
        let gone = gone.map(|(id, at_us)| ReplicaRow { id: id.clone(), as_of_us: as_of_us(*at_us), entry: None });
        RosterStore::save(&*self.0, entries.chain(gone).collect()).map_err(|error| error.to_string())
    }
}

/// The local copy.
#[derive(Clone, Debug)]
pub struct RosterFile(PathBuf);

impl RosterFile {
    pub fn of(data_dir: &Path) -> Self {
        RosterFile(data_dir.join(FILE_NAME))
    }
}

impl RosterKeeper for RosterFile {
    fn name(&self) -> &'static str {
        "file"
    }

    /// A file that is not one of ours counts as none.
    fn load(&self) -> Result<RosterRows, String> {
        let bytes = read_small(&self.0).map_err(|error| error.to_string())?.unwrap_or_default();
        let rows = serde_json::from_slice(&bytes).ok();
        Ok(rows.filter(|rows: &RosterRows| rows.v == VERSION).unwrap_or_default())
    }

    /// Replaces it whole: this process is the only one that writes it.
    fn save(&self, rows: &RosterRows) -> Result<(), String> {
        let bytes = serde_json::to_vec(rows).map_err(|error| error.to_string())?;
        write_atomic(&self.0, &bytes).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shards::membership::roster::Card;

    #[test]
    fn the_copy_holds_what_was_written_and_nonsense_holds_nothing() {
        let folder = std::env::temp_dir().join(format!("tt-roster-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = RosterFile::of(&folder);
        assert_eq!(file.load(), Ok(RosterRows::default()));
        let card = Card {
            ledger_id: "l1".to_owned(),
            version: "0.1.0".to_owned(),
            source: "config".to_owned(),
            stable: true,
            started_at_ms: 5,
            advertise_url: Some("http://tt-0:9090".to_owned()),
            skew_ms: -3,
        };
        let entry = Entry { id: "tt-0".to_owned(), card, last_beat_us: 7, drained: true };
        let rows = RosterRows::new(vec![entry], vec![("tt-9".to_owned(), 4)]);
        file.save(&rows).unwrap();
        assert_eq!(file.load(), Ok(rows));
        std::fs::write(&file.0, b"{\"v\":2,\"entries\":[],\"gone\":[]}").unwrap();
        assert_eq!(file.load(), Ok(RosterRows::default()));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}

//! The roster of replicas in Postgres, for whoever keeps it (the coordinator): so that a Redis restart forgets nobody.
//!
//! Decides nothing about who is alive. A row is the newest word about a replica, that it is there or that it was removed;
//! an older word never replaces it, so that every replica may save all that it knows.

use io::postgres::ReplicaRow;

use crate::keys::{Ask, Followed, StoreError};

/// Where the roster is remembered. Every call waits for the store, for at most twenty seconds: not for a data core and
/// not for an asynchronous thread, which hands it to its blocking pool. Without a connection it fails at once.
pub trait RosterStore: Send + Sync {
    /// Writes rows down, where the store has no newer ones.
    fn save(&self, rows: Vec<ReplicaRow>) -> Result<(), StoreError>;
    /// All of them, removed replicas too.
    fn load(&self) -> Result<Vec<ReplicaRow>, StoreError>;
}

impl RosterStore for Followed {
    fn save(&self, rows: Vec<ReplicaRow>) -> Result<(), StoreError> {
        self.ask(|reply| Ask::SaveReplicas { rows, reply })
    }

    fn load(&self) -> Result<Vec<ReplicaRow>, StoreError> {
        self.ask(|reply| Ask::LoadReplicas { reply })
    }
}

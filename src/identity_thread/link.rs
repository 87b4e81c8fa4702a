//! What the identity thread needs of its store, and Postgres as such a store.

use std::future::Future;

use io::postgres::{DOORBELL, Dsn, KeyRow, KeysRead, PgError, ReplicaRow, Session};
use shards::units::WallMs;

use crate::keys::Key;

/// Where keys are kept for all replicas.
pub trait Store: Send + 'static {
    /// A connection to it.
    type Link: Link;
    /// Connects.
    fn open(&self) -> impl Future<Output = Result<Self::Link, PgError>>;
}

/// One connection. Any of its futures may be dropped; then the connection is not used again, except by [`Link::rung`].
pub trait Link {
    /// From now on a change rings.
    fn listen(&mut self) -> impl Future<Output = Result<(), PgError>>;
    /// Waits for a ring. May be dropped at any time without losing one.
    fn rung(&mut self) -> impl Future<Output = Result<(), PgError>>;
    /// Makes the tables where they are missing and that is allowed.
    fn prepare(&mut self, may_create: bool) -> impl Future<Output = Result<(), PgError>>;
    /// Another number whenever the keys changed.
    fn version(&mut self) -> impl Future<Output = Result<i64, PgError>>;
    /// All keys.
    fn keys(&mut self) -> impl Future<Output = Result<KeysRead, PgError>>;
    /// Keeps a new key.
    fn insert(&mut self, key: &Key, by: &str) -> impl Future<Output = Result<(), PgError>>;
    /// Revokes one. `None`: no such id.
    fn revoke(&mut self, id: &str, now: WallMs, by: &str) -> impl Future<Output = Result<Option<Key>, PgError>>;
    /// Writes words about replicas down, where none is newer.
    fn save_replicas(&mut self, rows: &[ReplicaRow]) -> impl Future<Output = Result<(), PgError>>;
    /// The roster.
    fn replicas(&mut self) -> impl Future<Output = Result<Vec<ReplicaRow>, PgError>>;
}

/// The real one.
pub struct Postgres(pub Dsn);

impl Store for Postgres {
    type Link = Session;

    async fn open(&self) -> Result<Session, PgError> {
        Session::open(&self.0).await
    }
}

impl Link for Session {
    async fn listen(&mut self) -> Result<(), PgError> {
        Session::listen(self, DOORBELL).await
    }

    async fn rung(&mut self) -> Result<(), PgError> {
        Session::rung(self).await
    }

    async fn prepare(&mut self, may_create: bool) -> Result<(), PgError> {
        self.migrate(may_create).await
    }

    async fn version(&mut self) -> Result<i64, PgError> {
        self.keys_version().await
    }

    async fn keys(&mut self) -> Result<KeysRead, PgError> {
        Session::keys(self).await
    }

    async fn insert(&mut self, key: &Key, by: &str) -> Result<(), PgError> {
        self.insert_key(&KeyRow::from(key), by).await
    }

    async fn revoke(&mut self, id: &str, now: WallMs, by: &str) -> Result<Option<Key>, PgError> {
        Ok(self.revoke_key(id, now.0, by).await?.map(Key::from))
    }

    async fn save_replicas(&mut self, rows: &[ReplicaRow]) -> Result<(), PgError> {
        for row in rows {
            self.save_replica(row).await?;
        }
        Ok(())
    }

    async fn replicas(&mut self) -> Result<Vec<ReplicaRow>, PgError> {
        Session::replicas(self).await
    }
}

impl From<KeyRow> for Key {
    fn from(row: KeyRow) -> Self {
        let KeyRow { id, hash, node, name, created_ms, expires_ms, revoked_ms } = row;
        Key { id, hash, node, name, created_ms, expires_ms, revoked_ms }
    }
}

impl From<&Key> for KeyRow {
    fn from(key: &Key) -> Self {
        let Key { id, hash, node, name, created_ms, expires_ms, revoked_ms } = key.clone();
        KeyRow { id, hash, node, name, created_ms, expires_ms, revoked_ms }
    }
}

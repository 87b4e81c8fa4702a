//! Our tables: what they hold, how they come to be, and every statement that touches them.
//!
//! Statements are sent unprepared and with their parameter types, one round trip each, so that a connection pooler in
//! between does not matter. Migrations run in one transaction under an advisory lock: of two replicas that start
//! together one makes the tables and the other finds them. A database that is newer than this binary is used as it is:
//! migrations only ever add.

use std::pin::pin;

use futures_util::TryStreamExt;
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, ToSql, Type};

use super::{PgError, Session};

/// The channel that the trigger on the key table notifies.
pub const DOORBELL: &str = "tokentriage_keys";
/// More keys than this are refused: 1,000,000 x about 300 B in memory is 300 MB.
pub const KEYS_MAX: usize = 1_000_000;
/// Replicas that are read back; a fleet has a few.
const REPLICAS_MAX: usize = 10_000;
/// What the newest migration makes.
pub const SCHEMA_VERSION: i32 = 1;
const MIGRATIONS: [&str; 1] = [include_str!("schema_1.sql")];
/// `tokentri` in ASCII: one lock for all of our migrations, and unlikely to be anybody else's.
const MIGRATION_LOCK: i64 = 0x746f_6b65_6e74_7269;
/// A migration that waits longer than this for the other one, or for a table somebody holds, is tried again later.
const LOCK_TIMEOUT_MS: u32 = 8_000;

/// A virtual key as the table holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRow {
    /// What operators name it by.
    pub id: String,
    /// SHA-256 of the secret.
    pub hash: [u8; 32],
    /// Whom its requests count for.
    pub node: String,
    /// What the operator calls it.
    pub name: Option<String>,
    /// Unix ms.
    pub created_ms: i64,
    /// Unix ms; `None` never expires.
    pub expires_ms: Option<i64>,
    /// Unix ms; `None` was not revoked.
    pub revoked_ms: Option<i64>,
}

/// All keys, as of one read.
#[derive(Debug)]
pub struct KeysRead {
    /// The oldest first.
    pub keys: Vec<KeyRow>,
    /// Of the table at the latest when the keys were read.
    pub version: i64,
}

/// One word about a replica, as the roster remembers it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaRow {
    /// Its name.
    pub id: String,
    /// When this was so, in microseconds of the clock that heartbeats are dated by.
    pub as_of_us: i64,
    /// What is known of it, as JSON; `None`: it was removed.
    pub entry: Option<String>,
}

const KEY_COLUMNS: &str = "id, hash, node, name, created_ms, expires_ms, revoked_ms";

impl Session {
    /// Makes the tables, or what is missing of them. With `may_create` false, a database without any is an error and
    /// stays as it is. Waits for a replica that is at it right now.
    pub async fn migrate(&self, may_create: bool) -> Result<(), PgError> {
        match self.schema_version().await? {
            Some(version) if version >= SCHEMA_VERSION => return Ok(()),
            None if !may_create => return Err(PgError::Emptied),
            _ => {}
        }
        let begin = format!(
            "BEGIN; SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}; SELECT pg_advisory_xact_lock({MIGRATION_LOCK})"
        );
        let done = match self.batch(&begin).await {
            Ok(()) => self.migrate_locked().await,
            Err(error) => Err(error),
        };
        if done.is_err() {
            let _ = self.batch("ROLLBACK").await; // a connection that is gone has rolled back
        }
        done
    }

    async fn migrate_locked(&self) -> Result<(), PgError> {
        // Made or found by one statement, because a look at the catalogue may be older than the lock: the session
        // remembers that there was no table, until something it locks tells it otherwise.
        let table = "CREATE TABLE IF NOT EXISTS tokentriage_schema (only_row boolean PRIMARY KEY DEFAULT true CHECK \
                     (only_row), version integer NOT NULL); \
                     INSERT INTO tokentriage_schema (version) VALUES (0) ON CONFLICT DO NOTHING";
        self.batch(table).await?;
        let from = self.schema_version().await?.unwrap_or(0);
        for migration in MIGRATIONS.iter().skip(usize::try_from(from).unwrap_or(0)) {
            self.batch(migration).await?;
        }
        let version = SCHEMA_VERSION.max(from);
        self.batch(&format!("UPDATE tokentriage_schema SET version = {version}; COMMIT")).await
    }

    async fn schema_version(&self) -> Result<Option<i32>, PgError> {
        let row = self.one("SELECT to_regclass('tokentriage_schema') IS NOT NULL", &[]).await?;
        if !self.column::<bool>(&row, 0)? {
            return Ok(None);
        }
        let row = self.one("SELECT version FROM tokentriage_schema", &[]).await?;
        self.column(&row, 0).map(Some)
    }

    /// Changes whenever the key table did.
    pub async fn keys_version(&self) -> Result<i64, PgError> {
        let row = self.one("SELECT version FROM tokentriage_keys_version", &[]).await?;
        self.column(&row, 0)
    }

    /// Every key, revoked ones too.
    pub async fn keys(&self) -> Result<KeysRead, PgError> {
        // The version first: what is read after it is at least as new.
        let version = self.keys_version().await?;
        // Sorted by whoever reads: the server's collation is its own affair.
        let select = format!("SELECT {KEY_COLUMNS} FROM tokentriage_keys");
        let rows = self.client.query_typed_raw(&select, std::iter::empty::<(&str, Type)>()).await;
        let mut rows = pin!(rows.map_err(|error| self.error(&error))?);
        let mut keys = Vec::new();
        while let Some(row) = rows.try_next().await.map_err(|error| self.error(&error))? {
            if keys.len() >= KEYS_MAX {
                return Err(PgError::Unexpected(format!("more than {KEYS_MAX} keys")));
            }
            keys.push(self.key(&row)?);
        }
        keys.sort_by(|a, b| (a.created_ms, &a.id).cmp(&(b.created_ms, &b.id)));
        Ok(KeysRead { keys, version })
    }

    /// Adds a key. The trigger rings.
    pub async fn insert_key(&self, key: &KeyRow, by: &str) -> Result<(), PgError> {
        let insert = "INSERT INTO tokentriage_keys (id, hash, node, name, created_ms, expires_ms, created_by) \
                      VALUES ($1, $2, $3, $4, $5, $6, $7)";
        let hash = &key.hash[..];
        let parameters: [(&(dyn ToSql + Sync), Type); 7] = [
            (&key.id, Type::TEXT),
            (&hash, Type::BYTEA),
            (&key.node, Type::TEXT),
            (&key.name, Type::TEXT),
            (&key.created_ms, Type::INT8),
            (&key.expires_ms, Type::INT8),
            (&by, Type::TEXT),
        ];
        self.run(insert, &parameters).await.map(drop)
    }

    /// Marks a key as revoked and gives it back; one that was revoked before keeps its instant. `None`: no such id.
    pub async fn revoke_key(&self, id: &str, now_ms: i64, by: &str) -> Result<Option<KeyRow>, PgError> {
        let update = format!(
            "UPDATE tokentriage_keys SET revoked_ms = coalesce(revoked_ms, $2), revoked_by = coalesce(revoked_by, $3) \
             WHERE id = $1 RETURNING {KEY_COLUMNS}"
        );
        let parameters: [(&(dyn ToSql + Sync), Type); 3] =
            [(&id, Type::TEXT), (&now_ms, Type::INT8), (&by, Type::TEXT)];
        let rows = self.client.query_typed(&update, &parameters).await.map_err(|error| self.error(&error))?;
        rows.first().map(|row| self.key(row)).transpose()
    }

    /// Writes a word about a replica down. A newer one about it stays.
    pub async fn save_replica(&self, replica: &ReplicaRow) -> Result<(), PgError> {
        let upsert = "INSERT INTO tokentriage_replicas AS known (id, as_of_us, entry) VALUES ($1, $2, $3) \
                      ON CONFLICT (id) DO UPDATE SET as_of_us = excluded.as_of_us, entry = excluded.entry \
                      WHERE known.as_of_us <= excluded.as_of_us";
        let parameters: [(&(dyn ToSql + Sync), Type); 3] =
            [(&replica.id, Type::TEXT), (&replica.as_of_us, Type::INT8), (&replica.entry, Type::TEXT)];
        self.run(upsert, &parameters).await.map(drop)
    }

    /// The whole roster, removed replicas too.
    pub async fn replicas(&self) -> Result<Vec<ReplicaRow>, PgError> {
        let select = format!("SELECT id, as_of_us, entry FROM tokentriage_replicas ORDER BY id LIMIT {REPLICAS_MAX}");
        let rows = self.client.query_typed(&select, &[]).await.map_err(|error| self.error(&error))?;
        let row = |row| {
            Ok(ReplicaRow { id: self.column(row, 0)?, as_of_us: self.column(row, 1)?, entry: self.column(row, 2)? })
        };
        rows.iter().map(row).collect()
    }

    fn key(&self, row: &Row) -> Result<KeyRow, PgError> {
        let hash: &[u8] = self.column(row, 1)?;
        Ok(KeyRow {
            id: self.column(row, 0)?,
            hash: hash.try_into().map_err(|_| PgError::Unexpected("a hash that is no SHA-256".to_owned()))?,
            node: self.column(row, 2)?,
            name: self.column(row, 3)?,
            created_ms: self.column(row, 4)?,
            expires_ms: self.column(row, 5)?,
            revoked_ms: self.column(row, 6)?,
        })
    }

    async fn one(&self, sql: &str, parameters: &[(&(dyn ToSql + Sync), Type)]) -> Result<Row, PgError> {
        self.client.query_typed_one(sql, parameters).await.map_err(|error| self.error(&error))
    }

    async fn run(&self, sql: &str, parameters: &[(&(dyn ToSql + Sync), Type)]) -> Result<u64, PgError> {
        self.client.execute_typed(sql, parameters).await.map_err(|error| self.error(&error))
    }

    fn column<'r, T: FromSql<'r>>(&self, row: &'r Row, at: usize) -> Result<T, PgError> {
        row.try_get(at).map_err(|error| PgError::Unexpected(super::words(&error, &self.dsn)))
    }
}

//! Virtual keys: their form, the snapshot the cores read, and the store they rest in.
//!
//! A key is `ttk_` + 32 base62 characters + a 6-character checksum. It is shown once; what is kept is its SHA-256.
//! A core looks a key up in an immutable snapshot, so a mint or revoke acts on every core with its next request. The
//! store is a file of this replica ([`FileStore`]), or a table that all replicas follow ([`Followed`]).

mod file;
mod followed;
mod last_good;
mod token;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use shards::scope::Node;
use shards::units::{MonoNs, WallMs};
use subtle::ConstantTimeEq;

pub use file::{FileStore, KeyFile, KeyFileError};
pub use followed::{Ask, Followed, Reply, Standing, StoreError, Trouble};
pub use last_good::{LastGood, LastGoodFile};
pub use token::{PREFIX, is_virtual};

/// SHA-256 of a key.
pub type Digest = [u8; 32];

/// One virtual key, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Key {
    /// `key_` + 16 hex digits: what operators name it by.
    pub id: String,
    /// SHA-256 of the secret, in hex.
    #[serde(with = "hex_digest")]
    pub hash: Digest,
    /// Whom its requests count for.
    pub node: String,
    /// What the operator calls it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Unix milliseconds.
    pub created_ms: i64,
    /// Refused from this instant on; `None` never expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_ms: Option<i64>,
    /// Refused since this instant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_ms: Option<i64>,
}

impl Key {
    /// A new key and its secret; nothing keeps it yet.
    pub fn mint(node: &Node, name: Option<String>, expires: Option<WallMs>, now: WallMs) -> Result<Minted, KeyError> {
        if node.is_global() {
            return Err(KeyError::GlobalNode);
        }
        let token = token::mint_token().map_err(KeyError::Randomness)?;
        let key = Key {
            id: token::mint_id().map_err(KeyError::Randomness)?,
            hash: token::digest(token.as_bytes()).expect("a token just minted is well formed"),
            node: node.as_str().to_owned(),
            name,
            created_ms: now.0,
            expires_ms: expires.map(|at| at.0),
            revoked_ms: None,
        };
        Ok(Minted { key, token })
    }

    /// Whether the key opens anything at this instant.
    pub fn is_live(&self, now: WallMs) -> bool {
        self.revoked_ms.is_none() && self.expires_ms.is_none_or(|expires| now.0 < expires)
    }
}

/// A live key's holder, resolved.
#[derive(Clone, Debug)]
pub struct Holder {
    /// The key's id.
    pub key_id: Arc<str>,
    /// The node it belongs to.
    pub node: Node,
    /// What the operator calls it.
    pub name: Option<Arc<str>>,
    /// When it ends.
    pub expires: Option<WallMs>,
    revoked: bool,
}

/// All keys at one instant, by the hash of their secret. The default is no snapshot of anything.
#[derive(Default)]
pub struct Snapshot {
    holders: HashMap<Digest, Holder>,
    is_seed: bool,
}

impl Snapshot {
    /// Builds the lookup. A key whose node is malformed (a hand-edited file) is left out.
    pub fn of(keys: &[Key]) -> Self {
        let holders = keys.iter().filter_map(|key| {
            let holder = Holder {
                key_id: Arc::from(key.id.as_str()),
                node: Node::parse(&key.node).ok()?,
                name: key.name.as_deref().map(Arc::from),
                expires: key.expires_ms.map(WallMs),
                revoked: key.revoked_ms.is_some(),
            };
            Some((key.hash, holder))
        });
        Snapshot { holders: holders.collect(), is_seed: true }
    }

    /// Whether a store ever said this, even if it said that there are no keys. Part of the snapshot, so that nobody looks
    /// for a key in an empty one and believes that it was read.
    pub fn is_seed(&self) -> bool {
        self.is_seed
    }

    /// Who presents this token, if the key exists and is neither revoked nor expired. One SHA-256; never waits.
    /// Unknown, revoked and expired are told apart by nobody outside.
    pub fn find(&self, token: &[u8], now: WallMs) -> Option<&Holder> {
        let digest = token::digest(token)?;
        let (kept, holder) = self.holders.get_key_value(&digest)?;
        // The map compared already; this comparison does not leak where two digests differ.
        let same: bool = kept.ct_eq(&digest).into();
        let live = !holder.revoked && holder.expires.is_none_or(|expires| now < expires);
        (same && live).then_some(holder)
    }

    /// Whether a token has the form of a key and is none of these, not even a revoked one.
    pub fn is_unheard_of(&self, token: &[u8]) -> bool {
        token::digest(token).is_some_and(|digest| !self.holders.contains_key(&digest))
    }
}

/// Why the keys could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// A node name no key can have.
    #[error("a key must belong to an org, team or user: `org:acme`, `org:acme/team:ml`, `org:acme/team:ml/user:dev1`")]
    GlobalNode,
    /// The system has no randomness.
    #[error("no randomness for a new key: {0}")]
    Randomness(std::io::Error),
    /// The key file's.
    #[error(transparent)]
    File(#[from] KeyFileError),
    /// Postgres'.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What a mint gives back: the secret is in it, this once.
#[derive(Debug)]
pub struct Minted {
    /// The key as stored.
    pub key: Key,
    /// The secret.
    pub token: String,
}

/// Where this replica's keys rest.
pub enum KeyStore {
    /// In a file of its own.
    File(FileStore),
    /// In Postgres, followed by the identity thread.
    Postgres(Arc<Followed>),
}

impl KeyStore {
    /// Opens the key file, creating it on first use. Reads and may write the disk.
    pub fn open(path: &Path) -> Result<Self, KeyFileError> {
        FileStore::open(path).map(KeyStore::File)
    }

    /// The keys as of now, to be kept while [`crate::shared::Shared::generation`] stands.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        match self {
            KeyStore::File(file) => file.snapshot(),
            KeyStore::Postgres(followed) => followed.snapshot(),
        }
    }

    /// The store that the identity thread follows, if that is where the keys are.
    pub fn followed(&self) -> Option<&Arc<Followed>> {
        match self {
            KeyStore::File(_) => None,
            KeyStore::Postgres(followed) => Some(followed),
        }
    }

    /// Whether the snapshot may be believed. A file's always may: nobody opens a port before it was read.
    pub fn standing(&self, now: MonoNs) -> Standing {
        self.followed().map_or(Standing::Fresh, |followed| followed.standing(now))
    }

    /// Reads the file again, for a change made by the command line while we run. `true` when something changed. What is
    /// followed needs no looking at.
    pub fn refresh(&self) -> Result<bool, KeyError> {
        match self {
            KeyStore::File(file) => Ok(file.refresh()?),
            KeyStore::Postgres(_) => Ok(false),
        }
    }

    /// When the keys were last known to be what the store says; `None`: never, in this process or before.
    pub fn refreshed(&self) -> Option<WallMs> {
        match self {
            KeyStore::File(file) => Some(file.refreshed()),
            KeyStore::Postgres(followed) => followed.refreshed(),
        }
    }

    /// Every key, revoked ones too, oldest first. Waits for the store.
    pub fn list(&self) -> Result<Vec<Key>, KeyError> {
        match self {
            KeyStore::File(file) => Ok(file.list()?),
            KeyStore::Postgres(followed) => Ok(followed.list()?),
        }
    }

    /// Makes a key, in the store and in force here before this returns; the cores learn of it from
    /// [`crate::shared::Shared::announce`]. Waits for the store; not for the request path. `by` is who asked, for a store
    /// that keeps it.
    pub fn mint(
        &self,
        node: &Node,
        name: Option<String>,
        expires: Option<WallMs>,
        now: WallMs,
        by: &str,
    ) -> Result<Minted, KeyError> {
        match self {
            KeyStore::File(file) => file.mint(node, name, expires, now),
            KeyStore::Postgres(followed) => {
                let minted = Key::mint(node, name, expires, now)?;
                followed.insert(minted.key.clone(), by.to_owned())?;
                Ok(minted)
            }
        }
    }

    /// Revokes a key, in the store and in force here before this returns. `None`: no such id. Revoking twice is no error.
    pub fn revoke(&self, id: &str, now: WallMs, by: &str) -> Result<Option<Key>, KeyError> {
        match self {
            KeyStore::File(file) => Ok(file.revoke(id, now)?),
            KeyStore::Postgres(followed) => Ok(followed.revoke(id.to_owned(), now, by.to_owned())?),
        }
    }
}

mod hex_digest {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(digest: &super::Digest, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&super::token::hex(digest))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<super::Digest, D::Error> {
        let text = String::deserialize(from)?;
        super::token::unhex(&text).ok_or_else(|| D::Error::custom("a hash is 64 hex digits"))
    }
}

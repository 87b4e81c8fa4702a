//! Virtual keys: their form, the snapshot the cores read, and the file they rest in.
//!
//! A key is `ttk_` + 32 base62 characters + a 6-character checksum. It is shown once; what is kept is its SHA-256.
//! A core looks a key up in an immutable snapshot, so a mint or revoke acts on every core with its next request.

mod file;
mod token;

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use arc_swap::ArcSwap;
use shards::scope::Node;
use shards::units::WallMs;
use subtle::ConstantTimeEq;

pub use file::{KeyFile, KeyFileError};
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

/// All keys at one instant, by the hash of their secret.
#[derive(Default)]
pub struct Snapshot(HashMap<Digest, Holder>);

impl Snapshot {
    /// Builds the lookup. A key whose node is malformed (a hand-edited file) is left out.
    fn of(keys: &[Key]) -> Self {
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
        Snapshot(holders.collect())
    }

    /// Who presents this token, if the key exists and is neither revoked nor expired. One SHA-256; never waits.
    /// Unknown, revoked and expired are told apart by nobody outside.
    pub fn find(&self, token: &[u8], now: WallMs) -> Option<&Holder> {
        let digest = token::digest(token)?;
        let (kept, holder) = self.0.get_key_value(&digest)?;
        // The map compared already; this comparison does not leak where two digests differ.
        let same: bool = kept.ct_eq(&digest).into();
        let live = !holder.revoked && holder.expires.is_none_or(|expires| now < expires);
        (same && live).then_some(holder)
    }
}

/// The keys of this replica and where they rest.
pub struct KeyStore {
    snapshot: ArcSwap<Snapshot>,
    file: Mutex<KeyFile>,
    /// Unix ms at which the snapshot was last known to be what the file says.
    refreshed_ms: AtomicI64,
}

/// What a mint gives back: the secret is in it, this once.
#[derive(Debug)]
pub struct Minted {
    /// The key as stored.
    pub key: Key,
    /// The secret.
    pub token: String,
}

impl KeyStore {
    /// Opens the key file, creating it on first use. Reads and may write the disk.
    pub fn open(path: &std::path::Path) -> Result<Self, KeyFileError> {
        let file = KeyFile::open(path)?;
        let snapshot = ArcSwap::from_pointee(Snapshot::of(&file.read_for_snapshot()?));
        Ok(KeyStore { snapshot, file: Mutex::new(file), refreshed_ms: AtomicI64::new(io::clock::wall_ms()) })
    }

    /// The keys as of now, to be kept while [`crate::shared::Shared::generation`] stands.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    /// Reads the file again, for a change made by the command line while we run. `true` when something changed.
    pub fn refresh(&self) -> Result<bool, KeyFileError> {
        let file = self.lock();
        let changed = file.changed_since_read()?;
        if changed {
            self.snapshot.store(Arc::new(Snapshot::of(&file.read_for_snapshot()?)));
        }
        self.refreshed_ms.store(io::clock::wall_ms(), Ordering::Relaxed); // a number to show, nothing hangs on it
        Ok(changed)
    }

    /// When the keys were last known to be what the store says.
    pub fn refreshed(&self) -> WallMs {
        WallMs(self.refreshed_ms.load(Ordering::Relaxed))
    }

    /// Every key, revoked ones too, oldest first.
    pub fn list(&self) -> Result<Vec<Key>, KeyFileError> {
        self.lock().read()
    }

    /// Makes a key, on disk before this returns. Waits for the disk; not for the request path.
    pub fn mint(
        &self,
        node: &Node,
        name: Option<String>,
        expires: Option<WallMs>,
        now: WallMs,
    ) -> Result<Minted, KeyFileError> {
        let file = self.lock();
        let (minted, keys) = file.mint(node, name, expires, now)?;
        self.snapshot.store(Arc::new(Snapshot::of(&keys)));
        Ok(minted)
    }

    /// Revokes a key, on disk before this returns. `None`: no such id. Revoking twice is no error.
    pub fn revoke(&self, id: &str, now: WallMs) -> Result<Option<Key>, KeyFileError> {
        let file = self.lock();
        let (revoked, keys) = file.revoke(id, now)?;
        self.snapshot.store(Arc::new(Snapshot::of(&keys)));
        Ok(revoked)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, KeyFile> {
        self.file.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
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

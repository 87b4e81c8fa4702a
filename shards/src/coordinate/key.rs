//! Under which keys the shared store keeps our counters: a fixed prefix and a hash, so that no tenant's name leaves
//! the process.

use std::fmt;

use sha2::{Digest, Sha256};

use crate::limit::LimitIdentity;
use crate::scope::Node;

/// All our keys begin with it.
pub const PREFIX: &str = "tt:";

/// A scope's name among replicas: the first 128 bits of SHA-256 over (limit identity, node). Two of a billion scopes
/// share one with a chance of 10⁻²¹.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ScopeHash(pub [u8; 16]);

impl ScopeHash {
    /// The same on every replica whose config spells the limit alike.
    pub fn of(identity: &LimitIdentity, node: &Node) -> ScopeHash {
        ScopeHash::named(identity.as_str().as_bytes(), node.as_str().as_bytes())
    }

    /// The same over any two texts without a line break.
    pub fn named(identity: &[u8], node: &[u8]) -> ScopeHash {
        let mut hash = Sha256::new();
        hash.update(identity);
        hash.update(b"\n"); // in neither of the two
        hash.update(node);
        let mut first = [0; 16];
        first.iter_mut().zip(hash.finalize()).for_each(|(ours, theirs)| *ours = theirs);
        ScopeHash(first)
    }

    /// 32 hex digits.
    pub fn hex(self) -> [u8; 32] {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut out = [0; 32];
        for (pair, byte) in out.chunks_exact_mut(2).zip(self.0) {
            pair.copy_from_slice(&[DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
        }
        out
    }

    /// From 32 hex digits; `None` for anything else.
    pub fn parse(text: &str) -> Option<ScopeHash> {
        let mut bytes = [0; 16];
        if text.len() != 32 {
            return None;
        }
        for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            let digit = |at: usize| digits.get(at).and_then(|digit| char::from(*digit).to_digit(16));
            *byte = u8::try_from(digit(0)? * 16 + digit(1)?).ok()?;
        }
        Some(ScopeHash(bytes))
    }

    /// `prefix` and the hash: `tt:rate:0123…`.
    pub fn key(self, prefix: &str) -> Vec<u8> {
        [prefix.as_bytes(), &self.hex()].concat()
    }
}

impl fmt::Display for ScopeHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::str::from_utf8(&self.hex()).unwrap_or_default()) // hex digits are text
    }
}

impl fmt::Debug for ScopeHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The keys of `rpm` counters.
pub const RATE_PREFIX: &str = "tt:rate:";

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_key_is_the_prefix_and_a_hash_and_names_nobody() {
        let identity = LimitIdentity(Arc::from("org_rpm|rpm|level:org|*|*|*|gcra|60000000000ns"));
        let acme = ScopeHash::of(&identity, &Node::parse("org:acme").expect("a node"));
        let beta = ScopeHash::of(&identity, &Node::parse("org:beta").expect("a node"));
        assert_ne!(acme, beta);
        let key = String::from_utf8(acme.key(RATE_PREFIX)).expect("hex digits");
        assert_eq!(key.len(), RATE_PREFIX.len() + 32);
        assert!(key.starts_with(PREFIX) && !key.contains("acme") && !key.contains("org_rpm"));
        // Pinned: another form of the hash starts every shared counter afresh.
        assert_eq!(key, "tt:rate:49b648c11f839eade4699585ab7cff19");
    }
}

//! The form of a virtual key: made from the system's randomness, checked before it is hashed.

use sha2::{Digest as _, Sha256};

use super::Digest;

/// What every virtual key begins with.
pub const PREFIX: &[u8] = b"ttk_";
/// 62^32 is 190 bits.
const SECRET_CHARS: usize = 32;
const CHECK_CHARS: usize = 6;
const TOKEN_BYTES: usize = PREFIX.len() + SECRET_CHARS + CHECK_CHARS;
const BASE62: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// Whether a credential claims to be one of ours. Such a token is never forwarded, valid or not.
pub fn is_virtual(token: &[u8]) -> bool {
    token.starts_with(PREFIX)
}

/// A new secret. Fails only where the system has no randomness.
pub(super) fn mint_token() -> std::io::Result<String> {
    let mut token = String::from_utf8_lossy(PREFIX).into_owned();
    while token.len() < PREFIX.len() + SECRET_CHARS {
        let mut random = [0_u8; 64];
        getrandom::fill(&mut random).map_err(std::io::Error::other)?;
        // 248 = 4 x 62: larger bytes are thrown away, so that every character is equally likely.
        let fair = random.iter().filter(|byte| **byte < 248).map(|byte| BASE62[usize::from(byte % 62)] as char);
        let missing = PREFIX.len() + SECRET_CHARS - token.len();
        token.extend(fair.take(missing));
    }
    token.push_str(&checksum(token.as_bytes()));
    Ok(token)
}

/// The hash a well-formed token is kept under; `None` when it cannot be a key, told without hashing a secret.
pub(super) fn digest(token: &[u8]) -> Option<Digest> {
    let (secret, check) = token.split_at_checked(TOKEN_BYTES - CHECK_CHARS)?;
    if token.len() != TOKEN_BYTES || !is_virtual(token) || checksum(secret).as_bytes() != check {
        return None;
    }
    Some(Sha256::digest(token).into())
}

/// Catches a key that was cut or mistyped. No secret: anyone may compute it.
fn checksum(secret: &[u8]) -> String {
    let mut sum = secret.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3) // FNV-1a
    });
    (0..CHECK_CHARS)
        .map(|_| {
            let digit = BASE62[usize::try_from(sum % 62).unwrap_or(0)] as char;
            sum /= 62;
            digit
        })
        .collect()
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(super) fn unhex(text: &str) -> Option<Digest> {
    let mut digest = Digest::default();
    if text.len() != 2 * digest.len() || !text.is_ascii() {
        return None;
    }
    for (byte, pair) in digest.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(digest)
}

/// A new key id.
pub(super) fn mint_id() -> std::io::Result<String> {
    let mut random = [0_u8; 8];
    getrandom::fill(&mut random).map_err(std::io::Error::other)?;
    Ok(format!("key_{}", hex(&random)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minted_token_has_the_form_it_is_recognised_by() {
        let token = mint_token().unwrap();
        assert_eq!(token.len(), 42);
        assert!(is_virtual(token.as_bytes()));
        assert!(digest(token.as_bytes()).is_some());
        assert_ne!(mint_token().unwrap(), token);
    }

    #[test]
    fn a_mistyped_token_is_not_even_hashed() {
        let mut token = mint_token().unwrap().into_bytes();
        token[10] = if token[10] == b'a' { b'b' } else { b'a' };
        assert_eq!(digest(&token), None);
        for bad in [&b""[..], b"ttk_", b"sk-1234", &[b't'; 42], &[0xff; 42]] {
            assert_eq!(digest(bad), None);
        }
    }

    #[test]
    fn a_hash_survives_its_spelling() {
        let digest: Digest = std::array::from_fn(|index| u8::try_from(index * 7).unwrap());
        assert_eq!(unhex(&hex(&digest)), Some(digest));
        assert_eq!(unhex("00"), None);
        assert_eq!(unhex(&"g".repeat(64)), None);
    }
}

//! What a header field is for, told by its name.
//!
//! A table for names as nearly all are spelled, a look at each byte for the others; which of the two is asked makes no
//! difference, as the tests hold.

use crate::stops::{self, NotOfUsualName};

/// What a field is for, as far as a gateway treats it differently from passing it on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldKind {
    /// Passed on.
    Plain,
    /// Ends at this connection: never passed on. So do those that name who stands in front of us (`X-Forwarded-For`, …):
    /// they are for our operator, and a provider outside has no business with addresses inside. Fields that `Connection` names are not marked so; ask
    /// [`super::Fields::is_connection_named`].
    HopByHop,
    /// Framing and addressing, which each side writes anew.
    Host,
    ContentLength,
    TransferEncoding,
    Connection,
    Expect,
    /// Could carry a caller's secret: must not reach an upstream that has a key of its own.
    Credential,
    /// `x-tt-…`: our own words, believed from nobody else.
    Ours,
    /// A provider's rate figures, which may contradict ours.
    RateLimit,
    AcceptEncoding,
    ContentEncoding,
    ContentType,
    Date,
    /// Passed on, and noted in the row.
    TraceParent,
}

/// What a field of this name is for. Any case; an underscore counts as a hyphen, because CGI-style servers fold the
/// two and would take `x_api_key` or `transfer_encoding` for the real thing: such a spelling of a special name is
/// [`FieldKind::HopByHop`], so it is neither believed nor passed on.
pub fn kind_of(name: &[u8]) -> FieldKind {
    let is_usual = stops::next::<NotOfUsualName>(name, 0) == name.len();
    if is_usual { kind_of_usual(name) } else { kind_of_unusual(name) }
}

/// Of a name of letters, digits and hyphens: one look into a table and one comparison.
#[inline(always)]
pub(super) fn kind_of_usual(name: &[u8]) -> FieldKind {
    let Some((first, last)) = outer_words(name) else {
        return if is_same(name, "te") { FieldKind::HopByHop } else { FieldKind::Plain };
    };
    if let Some((special, kind)) = SPECIALS.get(usize::from(SLOTS[slot_of(first, last, name.len(), FACTOR)]))
        && is_same(name, special)
    {
        return *kind;
    }
    if !PREFIX_WORDS.contains(&first) {
        return FieldKind::Plain;
    }
    let begins = |prefix: &str| name.get(..prefix.len()).is_some_and(|start| is_same(start, prefix));
    SPECIAL_PREFIXES.iter().find(|(prefix, _)| begins(prefix)).map_or(FieldKind::Plain, |(_, kind)| *kind)
}

/// Of a name with other characters, looked at one by one.
#[cold]
fn kind_of_unusual(name: &[u8]) -> FieldKind {
    let exact = SPECIALS.iter().find(|(special, _)| is_folded(name, special));
    let prefixed = || SPECIAL_PREFIXES.iter().find(|(prefix, _)| has_folded_prefix(name, prefix));
    match exact.or_else(prefixed) {
        None => FieldKind::Plain,
        Some(_) if memchr::memchr(b'_', name).is_some() => FieldKind::HopByHop,
        Some((_, kind)) => *kind,
    }
}

/// The first and the last four bytes of a name, without regard to case. Four, because no special prefix is shorter;
/// `None` when the name is.
#[inline(always)]
const fn outer_words(name: &[u8]) -> Option<(u32, u32)> {
    match (name.first_chunk(), name.last_chunk()) {
        (Some(first), Some(last)) => {
            Some((u32::from_le_bytes(*first) | 0x2020_2020, u32::from_le_bytes(*last) | 0x2020_2020))
        }
        _ => None,
    }
}

/// Where [`SLOTS`] has the special name that a name of these outer words and this length could be.
#[inline(always)]
const fn slot_of(first: u32, last: u32, length: usize, factor: u32) -> usize {
    // The slots are the top bits of the product.
    ((first ^ last.rotate_left(13) ^ length as u32).wrapping_mul(factor) >> (32 - SLOTS_LOG2)) as usize
}

const SLOTS_LOG2: u32 = 9;
const NO_SPECIAL: u8 = u8::MAX;

/// The index in [`SPECIALS`] of each special name, at its slot: most names of a head are plain, and comparing them with
/// each special one costs more than parsing them.
const SLOTS: [u8; 1 << SLOTS_LOG2] = match slots(FACTOR) {
    Some(slots) => slots,
    None => panic!("a factor that gives each special name a slot of its own"),
};

/// The first factor that gives each special name a slot of its own.
const FACTOR: u32 = {
    let mut factor = 0x9e37_79b1_u32;
    while slots(factor).is_none() {
        factor = factor.wrapping_add(2);
    }
    factor
};

const fn slots(factor: u32) -> Option<[u8; 1 << SLOTS_LOG2]> {
    let mut slots = [NO_SPECIAL; 1 << SLOTS_LOG2];
    let mut at = 0;
    while at < SPECIALS.len() {
        let name = SPECIALS[at].0.as_bytes();
        if let Some((first, last)) = outer_words(name) {
            let slot = slot_of(first, last, name.len(), factor);
            if slots[slot] != NO_SPECIAL {
                return None;
            }
            slots[slot] = at as u8; // fewer than 255 names, or the array would be no constant
        }
        at += 1;
    }
    Some(slots)
}

const PREFIX_WORDS: [u32; SPECIAL_PREFIXES.len()] = {
    let mut words = [0; SPECIAL_PREFIXES.len()];
    let mut at = 0;
    while at < words.len() {
        words[at] = match outer_words(SPECIAL_PREFIXES[at].0.as_bytes()) {
            Some((first, _)) => first,
            None => panic!("a prefix of at least four bytes"),
        };
        at += 1;
    }
    words
};

const SPECIAL_PREFIXES: [(&str, FieldKind); 4] = [
    ("x-tt-", FieldKind::Ours),
    ("x-ratelimit-", FieldKind::RateLimit),
    ("ratelimit-", FieldKind::RateLimit),
    ("anthropic-ratelimit-", FieldKind::RateLimit),
];

const SPECIALS: [(&str, FieldKind); 54] = [
    ("te", FieldKind::HopByHop),
    ("host", FieldKind::Host),
    ("date", FieldKind::Date),
    ("cookie", FieldKind::Credential),
    ("expect", FieldKind::Expect),
    ("apikey", FieldKind::Credential),
    ("api-key", FieldKind::Credential),
    ("cookie2", FieldKind::Credential),
    ("upgrade", FieldKind::HopByHop),
    ("trailer", FieldKind::HopByHop),
    ("x-tt-key", FieldKind::Credential),
    ("x-apikey", FieldKind::Credential),
    ("x-api-key", FieldKind::Credential),
    ("ratelimit", FieldKind::RateLimit),
    ("forwarded", FieldKind::HopByHop),
    ("x-real-ip", FieldKind::HopByHop),
    ("keep-alive", FieldKind::HopByHop),
    ("connection", FieldKind::Connection),
    ("x-auth-key", FieldKind::Credential),
    ("traceparent", FieldKind::TraceParent),
    ("content-type", FieldKind::ContentType),
    ("x-auth-token", FieldKind::Credential),
    ("authorization", FieldKind::Credential),
    ("x-goog-api-key", FieldKind::Credential),
    ("x-access-token", FieldKind::Credential),
    ("authentication", FieldKind::Credential),
    ("content-length", FieldKind::ContentLength),
    ("http2-settings", FieldKind::HopByHop),
    ("openai-api-key", FieldKind::Credential),
    ("true-client-ip", FieldKind::HopByHop),
    ("x-forwarded-for", FieldKind::HopByHop),
    ("accept-encoding", FieldKind::AcceptEncoding),
    ("x-authorization", FieldKind::Credential),
    ("x-functions-key", FieldKind::Credential),
    ("content-encoding", FieldKind::ContentEncoding),
    ("proxy-connection", FieldKind::HopByHop),
    ("x-openai-api-key", FieldKind::Credential),
    ("x-forwarded-host", FieldKind::HopByHop),
    ("x-forwarded-port", FieldKind::HopByHop),
    ("cf-connecting-ip", FieldKind::HopByHop),
    ("transfer-encoding", FieldKind::TransferEncoding),
    ("anthropic-api-key", FieldKind::Credential),
    ("x-forwarded-proto", FieldKind::HopByHop),
    ("proxy-authenticate", FieldKind::HopByHop),
    ("x-subscription-key", FieldKind::Credential),
    ("x-forwarded-server", FieldKind::HopByHop),
    ("proxy-authorization", FieldKind::HopByHop),
    ("x-anthropic-api-key", FieldKind::Credential),
    ("x-amz-security-token", FieldKind::Credential),
    ("x-forwarded-access-token", FieldKind::Credential),
    ("x-forwarded-authorization", FieldKind::Credential),
    ("ocp-apim-subscription-key", FieldKind::Credential),
    ("proxy-authentication-info", FieldKind::HopByHop),
    ("x-ms-authorization-auxiliary", FieldKind::Credential),
];

/// Whether `text` is `special` in any case, eight bytes at a time. Exact for what may stand in a name or a value: no
/// byte of those but a capital becomes a letter, a digit or a hyphen by `| 0x20`.
#[inline(always)]
pub(in super::super) fn is_same(text: &[u8], special: &str) -> bool {
    const LOWER: u64 = 0x2020_2020_2020_2020;
    let special = special.as_bytes();
    if text.len() != special.len() {
        return false;
    }
    let same =
        |(text, special): (&[u8; 8], &[u8; 8])| u64::from_le_bytes(*text) | LOWER == u64::from_le_bytes(*special);
    match (text.last_chunk::<8>(), special.last_chunk::<8>()) {
        (Some(end), Some(special_end)) => {
            same((end, special_end)) && text.as_chunks().0.iter().zip(special.as_chunks().0).all(same)
        }
        _ => text.iter().zip(special).all(|(byte, special)| byte | 0x20 == *special),
    }
}

/// Whether `name` is `special` in any case and with underscores for hyphens. `| 0x20` is exact here: of the bytes that
/// may stand in a name, only upper case becomes a letter, a digit or a hyphen by it.
fn is_folded(name: &[u8], special: &str) -> bool {
    let same = |(&is, &should): (&u8, &u8)| is | 0x20 == should || (is == b'_' && should == b'-');
    name.len() == special.len() && name.iter().zip(special.as_bytes()).all(same)
}

fn has_folded_prefix(name: &[u8], prefix: &str) -> bool {
    name.get(..prefix.len()).is_some_and(|start| is_folded(start, prefix))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_field_is_known_in_any_case() {
        for (name, kind) in [
            ("Host", FieldKind::Host),
            ("CONTENT-LENGTH", FieldKind::ContentLength),
            ("x-Api-Key", FieldKind::Credential),
            ("Cookie", FieldKind::Credential),
            ("Te", FieldKind::HopByHop),
            ("X-Forwarded-For", FieldKind::HopByHop),
            ("Forwarded", FieldKind::HopByHop),
            ("X-Real-IP", FieldKind::HopByHop),
            ("X-TT-Coordination", FieldKind::Ours),
            ("x-tt-key", FieldKind::Credential),
            ("RateLimit", FieldKind::RateLimit),
            ("RateLimit-Policy", FieldKind::RateLimit),
            ("Anthropic-RateLimit-Input-Tokens-Remaining", FieldKind::RateLimit),
            ("anthropic-version", FieldKind::Plain),
            ("x-stainless-retry-count", FieldKind::Plain),
            ("", FieldKind::Plain),
        ] {
            assert_eq!(kind_of(name.as_bytes()), kind, "{name}");
        }
    }

    #[test]
    fn every_special_name_is_known_by_both_readers_and_alone() {
        for (at, (name, kind)) in SPECIALS.iter().enumerate() {
            assert!(SPECIALS[..at].iter().all(|(other, _)| other != name), "{name} twice");
            assert_eq!((kind_of(name.as_bytes()), kind_of_unusual(name.as_bytes())), (*kind, *kind), "{name}");
            assert_eq!(kind_of(name.to_ascii_uppercase().as_bytes()), *kind, "{name}");
        }
    }

    #[test]
    fn an_underscored_spelling_of_a_special_name_goes_no_further() {
        for name in ["x_api_key", "Transfer_Encoding", "content_length", "x_tt_key"] {
            assert_eq!(kind_of(name.as_bytes()), FieldKind::HopByHop, "{name}");
        }
        assert_eq!(kind_of(b"my_own_field"), FieldKind::Plain);
    }

    proptest! {
        #[test]
        fn the_table_says_of_a_name_what_a_look_at_each_byte_says(
            near in any::<prop::sample::Index>(),
            change in proptest::option::of((any::<prop::sample::Index>(), "[a-zA-Z0-9-]")),
            tail in "[a-z-]{0,4}",
            any in "[A-Za-z0-9-]{0,30}",
        ) {
            let prefixes = SPECIAL_PREFIXES.iter().map(|(prefix, _)| *prefix);
            let known: Vec<&str> = SPECIALS.iter().map(|(name, _)| *name).chain(prefixes).collect();
            let mut name = near.get(&known).as_bytes().to_vec();
            if let Some((at, byte)) = change {
                let at = at.index(name.len());
                name[at] = byte.as_bytes()[0];
            }
            name.extend_from_slice(tail.as_bytes());
            prop_assert_eq!(kind_of_usual(&name), kind_of_unusual(&name));
            prop_assert_eq!(kind_of_usual(any.as_bytes()), kind_of_unusual(any.as_bytes()));
        }
    }
}

//! The one spelling of a request path, and query strings without secrets.
//!
//! Routes are matched exactly, after one normalisation: whatever a client writes (`//`, `/./`, `..`, `%63hat`, a
//! trailing slash) either becomes the plain path, which is then what is governed *and* forwarded, or it becomes
//! nothing and is a 404. Does not know the routes.

use super::byte_set::ByteSet;

/// The plain spelling of `path`: percent-encoded unreserved characters decoded, empty and dot segments resolved, no
/// trailing slash. `None` for a path that two servers could read differently: an encoded slash, backslash or
/// control character, a percent sign that is left after decoding, `..` above the root.
///
/// `scratch` is only used when something has to change; a plain path is returned as it is.
pub fn normalise<'a>(path: &'a [u8], scratch: &'a mut Vec<u8>) -> Option<&'a str> {
    if is_plain(path) {
        return std::str::from_utf8(path).ok();
    }
    scratch.clear();
    if path.first() != Some(&b'/') {
        return None;
    }
    let mut segment = Vec::new();
    for raw in path.split(|&b| b == b'/') {
        segment.clear();
        decode_segment(raw, &mut segment)?;
        match segment.as_slice() {
            b"" | b"." => {}
            b".." => {
                let parent = memchr::memrchr(b'/', scratch)?;
                scratch.truncate(parent);
            }
            plain => {
                scratch.push(b'/');
                scratch.extend_from_slice(plain);
            }
        }
    }
    if scratch.is_empty() {
        scratch.push(b'/');
    }
    std::str::from_utf8(scratch).ok()
}

/// Whether nothing has to be decoded, resolved or refused.
fn is_plain(path: &[u8]) -> bool {
    if path.first() != Some(&b'/') || (path.len() > 1 && path.last() == Some(&b'/')) {
        return false;
    }
    // "//" and "/." (of "/./", "/../", and harmlessly of "/.x") take the slow way.
    let mut before = 0;
    path.iter().all(|&b| {
        let before = std::mem::replace(&mut before, b);
        PATH_BYTES.has(b) && !(before == b'/' && matches!(b, b'/' | b'.'))
    })
}

/// Unreserved characters, and the few reserved ones that appear in API paths (`/models/m:generateContent`).
static PATH_BYTES: ByteSet = ByteSet::letters_digits_and(b"/-._~:@+,=");

fn decode_segment(raw: &[u8], out: &mut Vec<u8>) -> Option<()> {
    let mut rest = raw;
    while !rest.is_empty() {
        let (decoded, tail) = decode_first(rest)?;
        rest = tail;
        // A decoded slash or percent sign would mean something else to the next server that decodes.
        if decoded == b'/' || !PATH_BYTES.has(decoded) {
            return None;
        }
        out.push(decoded);
    }
    Some(())
}

/// What a percent-encoded name says, slashes and all. `None`: a percent sign without two hex digits, control characters, or
/// no UTF-8. What this gives is a name to look up; as a part of a path it would be read differently by the next server.
pub fn decode_name(raw: &[u8]) -> Option<String> {
    let mut name = Vec::with_capacity(raw.len());
    let mut rest = raw;
    while !rest.is_empty() {
        let (decoded, tail) = decode_first(rest)?;
        rest = tail;
        name.push(decoded);
    }
    String::from_utf8(name).ok().filter(|name| !name.contains(char::is_control))
}

/// The first byte, decoded, and what follows it. `None`: nothing, or a percent sign without two hex digits.
fn decode_first(raw: &[u8]) -> Option<(u8, &[u8])> {
    match raw {
        [b'%', high, low, rest @ ..] => Some((hex(*high)? << 4 | hex(*low)?, rest)),
        [b'%', ..] | [] => None,
        [plain, rest @ ..] => Some((*plain, rest)),
    }
}

fn hex(digit: u8) -> Option<u8> {
    (digit as char).to_digit(16).map(|value| value as u8)
}

/// Query parameters that carry a credential in one API or another.
const SECRET_PARAMETERS: [&[u8]; 8] =
    [b"key", b"api_key", b"api-key", b"apikey", b"access_token", b"token", b"subscription-key", b"auth"];

/// The `name` and raw value of each parameter of `query` (without the `?`).
pub fn parameters(query: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    // `;` separates parameters for some servers; treating it so here can only strip more.
    query.split(|&b| b == b'&' || b == b';').filter(|pair| !pair.is_empty()).map(|pair| {
        let eq = memchr::memchr(b'=', pair).unwrap_or(pair.len());
        (&pair[..eq], pair.get(eq + 1..).unwrap_or_default())
    })
}

/// The raw value of the first `key=` parameter, in any spelling of the name.
pub fn key_parameter(query: &[u8]) -> Option<&[u8]> {
    parameters(query).find(|(name, _)| is_named(name, b"key")).map(|(_, value)| value)
}

/// Appends `?` and what is left of `query` without the parameters that carry credentials; nothing when none is left.
pub fn append_query_without_secrets(query: &[u8], out: &mut Vec<u8>) {
    let mut separator = b'?';
    for pair in query.split(|&b| b == b'&') {
        if pair.is_empty() || parameters(pair).any(|(name, _)| is_secret_parameter(name)) {
            continue;
        }
        out.push(separator);
        out.extend_from_slice(pair);
        separator = b'&';
    }
}

fn is_secret_parameter(name: &[u8]) -> bool {
    SECRET_PARAMETERS.iter().any(|secret| is_named(name, secret))
}

/// Compares a raw parameter name, percent-decoded and without regard to case, with a lowercase one.
fn is_named(raw: &[u8], lowercase: &[u8]) -> bool {
    let mut rest = raw;
    for &expected in lowercase {
        // A percent sign that encodes nothing stands for itself.
        let Some((byte, after)) = decode_first(rest).or(rest.split_first().map(|(byte, tail)| (*byte, tail))) else {
            return false;
        };
        rest = after;
        if byte.to_ascii_lowercase() != expected {
            return false;
        }
    }
    rest.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn plain(path: &str) -> Option<String> {
        normalise(path.as_bytes(), &mut Vec::new()).map(str::to_owned)
    }

    #[test]
    fn every_spelling_of_a_route_becomes_the_plain_one() {
        for spelling in [
            "/v1/chat/completions",
            "/v1/chat/completions/",
            "//v1/chat/completions",
            "/v1//chat///completions//",
            "/v1/./chat/completions",
            "/v1/x/../chat/completions",
            "/v1/chat/completions/.",
            "/v1/chat/completions/x/..",
            "/v1/%63hat/completions",
            "/v1/chat/comple%74ions",
            "/%76%31/chat/completions",
            "/v1/%2e/chat/completions",
            "/v1/x/%2E%2e/chat/completions",
            "/./v1/chat/completions",
        ] {
            assert_eq!(plain(spelling).as_deref(), Some("/v1/chat/completions"), "{spelling}");
        }
    }

    #[test]
    fn a_path_that_two_servers_could_read_differently_is_nothing() {
        for spelling in [
            "",
            "v1/chat",
            "/v1%2fchat/completions",
            "/v1%2Fchat",
            "/v1%5cchat",
            "/v1\\chat",
            "/v1/chat%00",
            "/v1/%2563hat",
            "/v1/chat%",
            "/v1/chat%6",
            "/v1/chat%zz",
            "/..",
            "/../v1/chat",
            "/v1/../../v1/chat",
            "/v1/chat;x=1",
            "/v1/ch%C3%A4t",
            "/v1/chat completions",
        ] {
            assert_eq!(plain(spelling), None, "{spelling}");
        }
    }

    #[test]
    fn letters_keep_their_case_and_the_root_stays() {
        assert_eq!(plain("/V1/Chat").as_deref(), Some("/V1/Chat"));
        assert_eq!(plain("/").as_deref(), Some("/"));
        assert_eq!(plain("//").as_deref(), Some("/"));
        assert_eq!(plain("/v1beta/models/m:generateContent").as_deref(), Some("/v1beta/models/m:generateContent"));
        assert_eq!(plain("/.well-known/x").as_deref(), Some("/.well-known/x"));
    }

    #[test]
    fn a_name_is_decoded_once_and_only_whole() {
        for (raw, name) in [
            ("org%2Fmodel", Some("org/model")),
            ("org/model%3a7", Some("org/model:7")),
            ("a%252Fb", Some("a%2Fb")),
            ("m%C3%A4x%20x", Some("mäx x")),
            ("", Some("")),
            ("%", None),
            ("%2", None),
            ("%zz", None),
            ("%+1", None),
            ("%ff", None),
            ("a%00b", None),
            ("a%0d%0ab", None),
            ("a%c2%85", None),
        ] {
            assert_eq!(decode_name(raw.as_bytes()).as_deref(), name, "{raw}");
        }
    }

    #[test]
    fn the_key_parameter_is_found_and_taken_out_in_any_spelling() {
        assert_eq!(key_parameter(b"a=1&key=ttk_x&b=2"), Some(&b"ttk_x"[..]));
        assert_eq!(key_parameter(b"k%65Y=v"), Some(&b"v"[..]));
        assert_eq!(key_parameter(b"monkey=1&keys=2&key2"), None);
        for (query, left) in [
            ("key=s", ""),
            ("a=1&key=s&b=2", "?a=1&b=2"),
            ("KEY=s&%6bey=s&k%45y=s", ""),
            ("api_key=s&api-version=2", "?api-version=2"),
            ("a=1;key=s&b=2", "?b=2"),
            ("beta=true", "?beta=true"),
            ("&&a&&", "?a"),
            ("", ""),
        ] {
            let mut out = Vec::new();
            append_query_without_secrets(query.as_bytes(), &mut out);
            assert_eq!(std::str::from_utf8(&out), Ok(left), "{query}");
        }
    }

    proptest! {
        #[test]
        fn a_normal_path_is_plain_and_stays_as_it_is(path in "/[a-c./%2eEfF]{0,24}") {
            let mut scratch = Vec::new();
            if let Some(normal) = normalise(path.as_bytes(), &mut scratch) {
                prop_assert!(!normal.contains("//") && !normal.contains('%'));
                prop_assert!(normal.split('/').all(|segment| segment != "." && segment != ".."));
                prop_assert_eq!(plain(normal), Some(normal.to_owned()));
            }
        }

        #[test]
        fn no_path_or_query_panics(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = normalise(&bytes, &mut Vec::new());
            let _ = decode_name(&bytes);
            append_query_without_secrets(&bytes, &mut Vec::new());
            let _ = key_parameter(&bytes);
        }
    }
}

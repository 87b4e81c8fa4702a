//! Keeps a secret that was written into the file by mistake from being shown.
//!
//! Secrets do not belong into the file at all (`*_env` keys name variables), but the mistake to put one there must not
//! carry it on into a terminal, a CI log or a bug report. Works on text, because a file that does not parse is shown
//! as well. Used by the diagnostics alone.

use std::borrow::Cow;

use super::tree::Span;

/// Parts of a key that say its value may be a secret.
const SECRET_WORDS: [&str; 8] = ["key", "token", "password", "passwd", "secret", "dsn", "credential", "authorization"];
/// Keys of ours that contain such a word and hold none.
const PLAIN_KEYS: [&str; 3] = ["keys", "require_key", "key_file"];

/// Puts asterisks over what may be a secret in one line, keeping its length in bytes so that carets stay in place.
pub fn mask_secrets(line: &str) -> Cow<'_, str> {
    let mut secrets: Vec<Span> = Vec::new();
    for (colon, _) in line.match_indices(':') {
        let (before, after) = (line.get(..colon).unwrap_or(""), line.get(colon + 1..).unwrap_or(""));
        secrets.extend(secret_value(before, after).map(|(skip, len)| colon + 1 + skip..colon + 1 + skip + len));
    }
    secrets.extend(line.match_indices('@').filter_map(|(at, _)| userinfo(line, at)));
    if secrets.is_empty() {
        return Cow::Borrowed(line);
    }
    let mut masked = String::with_capacity(line.len());
    for (offset, c) in line.char_indices() {
        match secrets.iter().any(|secret| secret.contains(&offset)) {
            true => masked.extend(std::iter::repeat_n('*', c.len_utf8())),
            false => masked.push(c),
        }
    }
    Cow::Owned(masked)
}

/// `user:password` in front of an `@`, also without a scheme, and whatever stands there in a URL.
fn userinfo(line: &str, at: usize) -> Option<Span> {
    let before = line.get(..at)?;
    let start = before.rfind(|c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '/' | ',' | '{' | '['));
    let start = start
        .map_or(0, |start| start + before.get(start..).and_then(|rest| rest.chars().next()).map_or(1, char::len_utf8));
    let is_credential = before.get(start..)?.contains(':') || before.get(..start)?.ends_with("//");
    is_credential.then_some(start..at)
}

/// Where after the colon a secret starts and how long it is, if the key before the colon speaks of one.
fn secret_value(before: &str, after: &str) -> Option<(usize, usize)> {
    let key = before.trim_end_matches(['"', '\'', ' ']);
    let key = key.rsplit(|c: char| !(c.is_alphanumeric() || c == '_' || c == '-')).next()?.to_ascii_lowercase();
    if PLAIN_KEYS.contains(&key.as_str()) || !SECRET_WORDS.iter().any(|word| key.contains(word)) {
        return None;
    }
    let value = after.trim_start();
    let skip = after.len() - value.len();
    let len = match value.chars().next()? {
        '{' | '[' | '#' => return None,
        quote @ ('"' | '\'') => value.get(1..)?.find(quote).map_or(value.len(), |at| at + 2),
        _ if before.contains('{') => value.find([',', '}']).unwrap_or(value.len()),
        _ => value.find(" #").unwrap_or(value.len()),
    };
    let written = value.get(..len)?.trim_end();
    let names_a_variable = key.ends_with("_env") && is_env_name(env_name(written.trim_matches(['"', '\''])));
    (!names_a_variable).then_some((skip, written.len()))
}

/// `NAME` out of `NAME` or `${NAME}`: both spellings name the variable.
pub fn env_name(text: &str) -> &str {
    text.strip_prefix("${").map_or(text, |rest| rest.strip_suffix('}').unwrap_or(rest))
}

/// `OPENAI_API_KEY`: upper case only, so that a pasted secret is hardly ever taken for a name.
pub fn is_env_name(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 128
        && !text.starts_with(|c: char| c.is_ascii_digit())
        && text.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_may_be_a_secret_is_covered_and_nothing_else() {
        for (line, shown) in [
            ("    api_key: sk-live-1234", "    api_key: ************"),
            ("    api_key: a,b c # mine", "    api_key: ***** # mine"),
            ("  api_key_env: sk-live-1234", "  api_key_env: ************"),
            ("  api_key_env: OPENAI_API_KEY", "  api_key_env: OPENAI_API_KEY"),
            ("  api_key_env: ${OPENAI_API_KEY}", "  api_key_env: ${OPENAI_API_KEY}"),
            (
                "redis: { addr: \"h:1\", password: \"p,w\", tls: true }",
                "redis: { addr: \"h:1\", password: *****, tls: true }",
            ),
            ("redis: { password: hunter2, tls: true }", "redis: { password: *******, tls: true }"),
            ("  dsn: postgres://u:p@h/db", "  dsn: *******************"),
            ("  base_url: https://u:p@h/v1", "  base_url: https://***@h/v1"),
            ("  base_url: https://h/v1", "  base_url: https://h/v1"),
            ("  base_url: https://token@h/v1", "  base_url: https://*****@h/v1"),
            ("  addr: \"u:p@h:1\"", "  addr: \"***@h:1\""),
            ("  id: me@home", "  id: me@home"),
            ("  require_key: optionl", "  require_key: optionl"),
            ("  keys: { require_key: x }", "  keys: { require_key: x }"),
            ("  type: quota_tokens", "  type: quota_tokens"),
            ("  password: ", "  password: "),
        ] {
            assert_eq!(mask_secrets(line), shown);
        }
    }

    proptest! {
        #[test]
        fn masking_keeps_every_byte_in_its_place(line in "[a-zé:/@{},\"' _#$k]{0,40}") {
            prop_assert_eq!(mask_secrets(&line).len(), line.len());
        }
    }
}

//! Walks over JSON text without building anything: where a string, a value, a member ends.
//!
//! For text that is known or hoped to be well-formed. On text that is not, the walk ends early (`None`); it never
//! panics, never recurses and never reads beyond the slice. Used to read the small usage object of an
//! answer; what others send us is read by [`super::Inspector`].

use crate::stops::{self, QuoteOrBackslash};

/// The first byte at or after `at` that is not JSON whitespace.
#[inline(always)]
pub(crate) fn skip_space(text: &[u8], mut at: usize) -> usize {
    while let Some(b' ' | b'\n' | b'\r' | b'\t') = text.get(at) {
        at += 1;
    }
    at
}

/// The index behind the closing quote of the string whose content begins at `content`.
#[inline(always)]
pub(crate) fn string_end(text: &[u8], content: usize) -> Option<usize> {
    let mut at = content;
    loop {
        at = stops::next_far::<QuoteOrBackslash>(text, at);
        if *text.get(at)? == b'"' {
            return Some(at + 1);
        }
        at += 2;
    }
}

/// The index behind the value that begins at `at` (no leading space).
#[inline(always)]
pub(crate) fn value_end(text: &[u8], at: usize) -> Option<usize> {
    if let b'"' | b'{' | b'[' = text.get(at)? {
        return string_or_container_end(text, at);
    }
    let mut end = at;
    while text.get(end).is_some_and(|&byte| !ENDS_SCALAR[usize::from(byte)]) {
        end += 1;
    }
    Some(end)
}

/// What ends a number or a word.
const ENDS_SCALAR: [bool; 256] = {
    let mut ends = [false; 256];
    let bytes = b",}] \n\r\t";
    let mut at = 0;
    while at < bytes.len() {
        ends[bytes[at] as usize] = true;
        at += 1;
    }
    ends
};

fn string_or_container_end(text: &[u8], at: usize) -> Option<usize> {
    if text.get(at)? == &b'"' { string_end(text, at + 1) } else { container_end(text, at) }
}

fn container_end(text: &[u8], open: usize) -> Option<usize> {
    let (mut at, mut depth) = (open, 0usize);
    loop {
        match text.get(at)? {
            b'"' => {
                at = string_end(text, at + 1)?;
                continue;
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' => {
                depth -= 1;
                if depth == 0 {
                    return Some(at + 1);
                }
            }
            _ => {}
        }
        at += 1;
    }
}

/// The members of an object as `(key without quotes, value)`, both as written. Nothing for anything else.
pub(crate) fn members(object: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let mut at = inside(object, b'{');
    std::iter::from_fn(move || {
        let key_start = skip_space(object, at?);
        if object.get(key_start)? != &b'"' {
            return None;
        }
        let key_end = string_end(object, key_start + 1)?;
        let colon = skip_space(object, key_end);
        if object.get(colon)? != &b':' {
            return None;
        }
        let value_start = skip_space(object, colon + 1);
        let end = value_end(object, value_start)?;
        at = behind_comma(object, end);
        Some((&object[key_start + 1..key_end - 1], &object[value_start..end]))
    })
}

/// The elements of an array, as written. Nothing for anything else.
pub(crate) fn elements(array: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut at = inside(array, b'[');
    std::iter::from_fn(move || {
        let start = skip_space(array, at?);
        if array.get(start)? == &b']' {
            return None;
        }
        let end = value_end(array, start).filter(|&end| end > start)?;
        at = behind_comma(array, end);
        Some(&array[start..end])
    })
}

fn inside(text: &[u8], open: u8) -> Option<usize> {
    (text.first() == Some(&open)).then_some(1)
}

/// Where the next member begins; `None` when there is none.
fn behind_comma(text: &[u8], end: usize) -> Option<usize> {
    let at = skip_space(text, end);
    (text.get(at) == Some(&b',')).then_some(at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shown(object: &str) -> Vec<String> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        members(object.as_bytes()).map(|(key, value)| format!("{}={}", text(key), text(value))).collect()
    }

    #[test]
    fn members_come_as_written() {
        assert_eq!(
            shown(r#"{"a":1,"b" : "x\"}" , "c":{"d":[1,"]"]},"e":null}"#),
            ["a=1", r#"b="x\"}""#, r#"c={"d":[1,"]"]}"#, "e=null"]
        );
        for nothing in ["", "{}", "[1]", "1", "{ }", "{\"a\"", "{\"a\":", "{\"a\"}", "{a:1}"] {
            assert_eq!(shown(nothing), Vec::<String>::new(), "{nothing}");
        }
        assert_eq!(shown("{\"a\":1 \"b\":2}"), ["a=1"]);
    }

    #[test]
    fn elements_come_as_written() {
        let all: Vec<&[u8]> = elements(br#"[1, {"a":[2]} ,"x,]" ]"#).collect();
        assert_eq!(all, [&b"1"[..], br#"{"a":[2]}"#, br#""x,]""#]);
        assert_eq!(elements(b"[]").count() + elements(b"[,]").count() + elements(b"{}").count(), 0);
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[\\[\\]{}\",:\\\\a1 ]{0,40}") {
            let _ = members(text.as_bytes()).count() + elements(text.as_bytes()).count();
            for at in 0..=text.len() + 1 {
                let _ = value_end(text.as_bytes(), at);
                let _ = string_end(text.as_bytes(), at);
            }
        }
    }
}

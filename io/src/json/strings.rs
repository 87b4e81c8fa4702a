//! Strings of JSON text that is still arriving: where one ends, whether it is well-formed, how long it is unescaped.
//!
//! A scan looks at each byte once, however many pieces a string comes in. It stops before an escape or a character whose
//! rest has not come, at most eleven bytes back, and takes it from there with the next piece.

use crate::stops::{self, NotPlain, NotText};

/// A string that has begun.
#[derive(Clone, Copy, Debug)]
pub(super) struct Text {
    /// Where its content begins, behind the quote.
    pub start: usize,
    /// Bytes that escapes take beyond what they stand for.
    pub shrinks: usize,
}

/// How far a scan came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scan {
    /// The string ended; the index of its closing quote.
    End(usize),
    /// All there was; the scan goes on at this index.
    More(usize),
    /// Not JSON, from this index on.
    Bad(usize),
}

impl Text {
    /// Looks for the end of the string, from `at` on.
    #[inline(always)]
    pub(super) fn scan(&mut self, text: &[u8], at: usize) -> Scan {
        let stop = stops::next_far::<NotPlain>(text, at);
        if text.get(stop) == Some(&b'"') { Scan::End(stop) } else { self.scan_on(text, stop) }
    }

    /// The same, for a string that has more in it than plain ASCII. All before `at` is good.
    fn scan_on(&mut self, text: &[u8], mut at: usize) -> Scan {
        loop {
            let mut stop = stops::next_far::<NotPlain>(text, at);
            if text.get(stop).is_some_and(|byte| !byte.is_ascii()) {
                let other = stop;
                stop = stops::next_far::<NotText>(text, other);
                if let Err(error) = std::str::from_utf8(text.get(other..stop).unwrap_or_default()) {
                    let bad = other + error.valid_up_to();
                    let may_go_on = error.error_len().is_none() && stop == text.len();
                    return if may_go_on { Scan::More(bad) } else { Scan::Bad(bad) };
                }
            }
            match text.get(stop) {
                None => return Scan::More(stop),
                Some(b'"') => return Scan::End(stop),
                Some(b'\\') => match escape(text.get(stop..).unwrap_or_default()) {
                    Escape::Of { length, stands_for } => {
                        self.shrinks += length - stands_for;
                        at = stop + length;
                    }
                    Escape::Unfinished => return Scan::More(stop),
                    Escape::Bad => return Scan::Bad(stop),
                },
                Some(_) => return Scan::Bad(stop), // a control character
            }
        }
    }

    /// How many bytes the string that ends at `end` has, unescaped.
    pub(super) fn length(&self, end: usize) -> usize {
        end - self.start - self.shrinks
    }

    /// What the string that ends at `end` says, if that is at most `N` bytes: UTF-8, as the scan has seen. `room` is for a
    /// string that is written with escapes.
    #[inline(always)]
    pub(super) fn said<'t, const N: usize>(
        &self,
        text: &'t [u8],
        end: usize,
        room: &'t mut Option<[u8; N]>,
    ) -> Option<&'t [u8]> {
        if self.length(end) > N {
            return None;
        }
        let raw = text.get(self.start..end)?;
        if self.shrinks == 0 {
            return Some(raw);
        }
        let room = room.insert([0; N]);
        let length = unescape(raw, room);
        Some(&room[..length])
    }

    /// Its first bytes, unescaped, as many as fit into `room` without cutting a character that was escaped.
    pub(super) fn begin<'t>(&self, text: &'t [u8], end: usize, room: &'t mut [u8]) -> &'t [u8] {
        let raw = text.get(self.start..end).unwrap_or_default();
        if self.shrinks == 0 {
            return &raw[..raw.len().min(room.len())];
        }
        let length = unescape(raw, room);
        &room[..length]
    }
}

enum Escape {
    /// So many bytes that stand for so many.
    Of {
        length: usize,
        stands_for: usize,
    },
    /// Its rest has not come.
    Unfinished,
    Bad,
}

/// The escape at the beginning of `text`, a backslash.
fn escape(text: &[u8]) -> Escape {
    match text.get(1) {
        None => Escape::Unfinished,
        Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => Escape::Of { length: 2, stands_for: 1 },
        Some(b'u') => {
            let Some(digits) = text.get(2..6) else { return Escape::Unfinished };
            match hex(digits) {
                Some(0..0x80) => Escape::Of { length: 6, stands_for: 1 },
                Some(0x80..0x800) => Escape::Of { length: 6, stands_for: 2 },
                Some(0x800..0xd800 | 0xe000..) => Escape::Of { length: 6, stands_for: 3 },
                Some(0xd800..0xdc00) => match text.get(6..12) {
                    None => Escape::Unfinished,
                    Some([b'\\', b'u', low @ ..]) if matches!(hex(low), Some(0xdc00..0xe000)) => {
                        Escape::Of { length: 12, stands_for: 4 }
                    }
                    Some(_) => Escape::Bad,
                },
                Some(0xdc00..0xe000) | None => Escape::Bad,
            }
        }
        Some(_) => Escape::Bad,
    }
}

/// Four hexadecimal digits.
fn hex(digits: &[u8]) -> Option<u16> {
    digits.iter().try_fold(0_u16, |sum, digit| {
        let digit = char::from(*digit).to_digit(16)?;
        u16::try_from(digit).ok().map(|digit| sum << 4 | digit)
    })
}

/// Writes what well-formed content says into `out`, whole characters of it as far as there is room; returns how much.
fn unescape(mut raw: &[u8], out: &mut [u8]) -> usize {
    let mut length = 0;
    while let Some(&byte) = raw.first() {
        let (taken, char) = match (byte, raw.get(1)) {
            (b'\\', Some(b'u')) => {
                let high = u32::from(raw.get(2..6).and_then(hex).unwrap_or_default());
                if matches!(high, 0xd800..0xdc00) {
                    let low = u32::from(raw.get(8..12).and_then(hex).unwrap_or_default());
                    (12, char::from_u32(0x1_0000 + ((high & 0x3ff) << 10 | low & 0x3ff)))
                } else {
                    (6, char::from_u32(high))
                }
            }
            (b'\\', Some(letter)) => (
                2,
                Some(match letter {
                    b'b' => '\u{8}',
                    b'f' => '\u{c}',
                    b'n' => '\n',
                    b'r' => '\r',
                    b't' => '\t',
                    itself => char::from(*itself),
                }),
            ),
            _ => {
                let Some(place) = out.get_mut(length) else { break };
                *place = byte;
                length += 1;
                raw = &raw[1..];
                continue;
            }
        };
        let mut encoded = [0; 4];
        let encoded = char.unwrap_or(char::REPLACEMENT_CHARACTER).encode_utf8(&mut encoded).as_bytes();
        let Some(place) = out.get_mut(length..length + encoded.len()) else { break };
        place.copy_from_slice(encoded);
        length += encoded.len();
        raw = raw.get(taken..).unwrap_or_default();
    }
    length
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Scans a string's content and closing quote, in pieces of so many bytes.
    fn scan(content: &[u8], step: usize) -> (Scan, usize) {
        let mut text = Text { start: 0, shrinks: 0 };
        let (mut here, mut at) = (0, 0);
        loop {
            here = (here + step).min(content.len());
            match text.scan(&content[..here], at) {
                Scan::More(next) if here < content.len() => at = next,
                ended => return (ended, text.shrinks),
            }
        }
    }

    #[test]
    fn the_end_of_a_string_is_found_behind_any_number_of_bytes() {
        for length in 0..300 {
            for letter in ["x", "é", "漢", "😀", "\\n", "\\u00e9", "\\ud83d\\ude00"] {
                let content = letter.repeat(length);
                let whole = scan(format!("{content}\",\"more\"").as_bytes(), 1000);
                let said: String = serde_json::from_str(&format!("\"{content}\"")).unwrap();
                assert_eq!(whole, (Scan::End(content.len()), content.len() - said.len()), "{length} of {letter}");
            }
        }
    }

    #[test]
    fn what_is_no_string_is_told_where() {
        for (content, at) in [
            (&b"ab\x1fc\""[..], 2),
            (b"abcdefgh\n\"", 8),
            (b"\xff\"", 0),
            (b"ab\xe2\x82\"", 2),
            (b"abcdefghi\xc0\x80\"", 9),
            (b"\xed\xa0\x80\"", 0),
            (b"\\x\"", 0),
            (b"a\\u12g4\"", 1),
            (b"a\\ud800\\n\"     ", 1),
            (b"a\\ud800\\u0041\"", 1),
            (b"a\\udc00\"", 1),
        ] {
            for step in 1..content.len() + 1 {
                assert_eq!(scan(content, step).0, Scan::Bad(at), "{:?} by {step}", String::from_utf8_lossy(content));
            }
        }
    }

    proptest! {
        #[test]
        fn a_string_is_the_same_in_pieces_of_any_size(said in any::<String>(), escaped in any::<bool>(), step in 1_usize..9) {
            let mut json = serde_json::to_string(&said).unwrap();
            if escaped {
                json = said.encode_utf16().fold("\"".to_owned(), |json, unit| json + &format!("\\u{unit:04x}")) + "\"";
            }
            let content = &json.as_bytes()[1..];
            let end = content.len() - 1;
            prop_assert_eq!(scan(content, step), (Scan::End(end), end - said.len()));
            let text = Text { start: 0, shrinks: end - said.len() };
            let (mut room, mut short) = (None::<[u8; 1_000]>, None::<[u8; 4]>);
            prop_assert_eq!(text.said(content, end, &mut room), Some(said.as_bytes()));
            prop_assert_eq!(text.said(content, end, &mut short), (said.len() <= 4).then_some(said.as_bytes()));
            prop_assert!(said.as_bytes().starts_with(text.begin(content, end, &mut [0; 5])));
        }

        #[test]
        fn any_bytes_end_the_same_way_whatever_the_pieces(
            content in proptest::collection::vec(prop_oneof![Just(b'"'), Just(b'\\'), Just(b'u'), Just(b'd'), Just(b'8'), any::<u8>()], 0..40),
            step in 1_usize..9,
        ) {
            prop_assert_eq!(scan(&content, step), scan(&content, 1000));
        }
    }
}

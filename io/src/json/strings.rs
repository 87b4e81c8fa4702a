//! Strings of JSON text that is still arriving: where one ends, whether it is well-formed, how long it is unescaped.
//!
//! A scan looks at each byte once, however many pieces a string comes in. It stops before an escape or a character whose
//! rest has not come, at most eleven bytes back, and takes it from there with the next piece.

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
    pub(super) fn scan(&mut self, text: &[u8], mut at: usize) -> Scan {
        loop {
            let (stop, is_ascii) = plain_until(text, at);
            if !is_ascii && let Err(error) = std::str::from_utf8(text.get(at..stop).unwrap_or_default()) {
                let bad = at + error.valid_up_to();
                let may_go_on = error.error_len().is_none() && stop == text.len();
                return if may_go_on { Scan::More(bad) } else { Scan::Bad(bad) };
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

    /// What the string that ends at `end` says, if that is at most as long as `room`.
    pub(super) fn said<'t>(&self, text: &'t [u8], end: usize, room: &'t mut [u8]) -> Option<&'t str> {
        if self.length(end) > room.len() {
            return None;
        }
        let raw = text.get(self.start..end)?;
        if self.shrinks == 0 {
            return std::str::from_utf8(raw).ok();
        }
        let length = unescape(raw, room);
        std::str::from_utf8(&room[..length]).ok()
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

/// The first index at or after `from` of a quote, a backslash or a control character, or the end; and whether all before
/// it is ASCII. (`false` may be said of ASCII text as well: it only costs a closer look.)
fn plain_until(text: &[u8], from: usize) -> (usize, bool) {
    let (mut at, mut seen) = (from, 0_u64);
    let mut rest = text.get(from..).unwrap_or_default();
    // Short strings are most strings: a word at a time for the first ones, then blocks that the compiler turns into
    // vector instructions.
    let mut words = 0;
    while let Some((word, behind)) = rest.split_first_chunk::<8>() {
        let word = u64::from_le_bytes(*word);
        let found = specials(word);
        if found != 0 {
            let bytes = found.trailing_zeros() / 8;
            let before = if bytes == 0 { 0 } else { word << (64 - 8 * bytes) };
            return (at + bytes as usize, (seen | before) & HIGHS == 0);
        }
        seen |= word;
        at += 8;
        rest = behind;
        words += 1;
        if words >= 4 {
            let (blocks, high) = plain_blocks(rest);
            seen |= if high { HIGHS } else { 0 };
            at += blocks;
            rest = &rest[blocks..];
            words = 0;
        }
    }
    for byte in rest {
        if matches!(byte, b'"' | b'\\' | 0..0x20) {
            break;
        }
        seen |= u64::from(*byte);
        at += 1;
    }
    (at, seen & HIGHS == 0)
}

const BLOCK: usize = 64;
const ONES: u64 = 0x0101_0101_0101_0101;
const HIGHS: u64 = 0x8080_8080_8080_8080;

/// How many bytes of whole blocks without anything special there are, and whether one of them is not ASCII.
fn plain_blocks(text: &[u8]) -> (usize, bool) {
    let (mut length, mut seen) = (0, 0_u8);
    for block in text.as_chunks::<BLOCK>().0 {
        let (mut special, mut high) = (0_u8, 0_u8);
        for &byte in block {
            special |= u8::from(byte == b'"') | u8::from(byte == b'\\') | u8::from(byte < 0x20);
            high |= byte;
        }
        if special != 0 {
            break;
        }
        seen |= high;
        length += BLOCK;
    }
    (length, seen & 0x80 != 0)
}

/// The high bit of each byte that is a quote, a backslash or a control character. Only the lowest one is certain: above
/// it a borrow may have set others.
fn specials(word: u64) -> u64 {
    let zeros = |word: u64| word.wrapping_sub(ONES) & !word;
    let controls = word.wrapping_sub(ONES * 0x20) & !word;
    (zeros(word ^ (ONES * b'"' as u64)) | zeros(word ^ (ONES * b'\\' as u64)) | controls) & HIGHS
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
            let mut room = vec![0; said.len()];
            prop_assert_eq!(text.said(content, end, &mut room), Some(said.as_str()));
            if !said.is_empty() {
                let mut short = vec![0; said.len() - 1];
                prop_assert_eq!(text.said(content, end, &mut short), None);
            }
            prop_assert!(said.as_bytes().starts_with(text.begin(content, end, &mut [0; 5])));
        }

        #[test]
        fn any_bytes_end_the_same_way_whatever_the_pieces(
            content in proptest::collection::vec(prop_oneof![Just(b'"'), Just(b'\\'), Just(b'u'), Just(b'd'), Just(b'8'), any::<u8>()], 0..40),
            step in 1_usize..9,
        ) {
            prop_assert_eq!(scan(&content, step), scan(&content, 1000));
        }

        #[test]
        fn words_and_blocks_find_what_a_look_at_each_byte_finds(text in proptest::collection::vec(prop_oneof![20 => 0x20_u8..0x7f, 1 => any::<u8>()], 0..300)) {
            let plain = text.iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..0x20)).unwrap_or(text.len());
            let (found, is_ascii) = plain_until(&text, 0);
            prop_assert_eq!(found, plain);
            prop_assert!(!is_ascii || text[..plain].is_ascii());
        }
    }
}

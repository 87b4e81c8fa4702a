//! Reading one line of JSON from front to back, without building anything.
//!
//! A restart reads a million rows, and a derived serde reader took three times as long at it. Members are looked for
//! in the order they are written, strings are borrowed from the line, and what is rare (an escape, a field of a newer
//! version) is handed to serde_json. Accepts JSON and nothing else.

use std::borrow::Cow;

use serde::de::IgnoredAny;

/// Where a line stops being what was expected there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) at: usize,
    pub(super) expected: &'static str,
}

/// A member's name as it stands in a line, `"seq":`, and what it is.
pub(super) struct Name<N> {
    pub(super) is: N,
    pub(super) spelled: &'static str,
}

impl<N> Name<N> {
    fn text(&self) -> &str {
        self.spelled.trim_matches(['"', ':'])
    }
}

/// Declares the members of an object, in the order they are written, and their `NAMES`.
macro_rules! members {
    ($of:ident { $($member:ident = $text:literal),+ $(,)? }) => {
        #[derive(Clone, Copy)]
        enum $of { $($member),+ }
        impl $of {
            const NAMES: &[$crate::row::codec::scan::Name<$of>] = &[$(
                $crate::row::codec::scan::Name { is: $of::$member, spelled: concat!("\"", $text, "\":") }
            ),+];
        }
    };
}
pub(super) use members;

/// A member whose name is not known beforehand, and its value.
pub(super) type Pair<'a> = (Cow<'a, str>, Cow<'a, str>);

/// A position in a line.
pub(super) struct Scan<'a> {
    line: &'a str,
    at: usize,
}

impl<'a> Scan<'a> {
    pub(super) fn new(line: &'a [u8]) -> Result<Scan<'a>, Fault> {
        let line = std::str::from_utf8(line)
            .map_err(|error| Fault { at: error.valid_up_to(), expected: "a character of UTF-8" })?;
        Ok(Scan { line, at: 0 })
    }

    /// An object. `member` is called with what a name stands for (`None`: it is not among `names`), standing before
    /// its value, and has to read it. Quickest when the members come in the order of `names`.
    pub(super) fn object<N: Copy>(
        &mut self,
        names: &[Name<N>],
        mut member: impl FnMut(&mut Scan<'a>, Option<N>) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        self.token(b'{', "an object")?;
        if self.took(b'}') {
            return Ok(());
        }
        let mut next = 0;
        loop {
            let known = self.name(names, &mut next)?;
            member(self, known)?;
            if self.took(b'}') {
                return Ok(());
            }
            self.token(b',', "a comma or the end of an object")?;
        }
    }

    /// An object of strings, in its order.
    pub(super) fn pairs(&mut self) -> Result<Vec<Pair<'a>>, Fault> {
        let mut pairs = Vec::new();
        self.token(b'{', "an object")?;
        if self.took(b'}') {
            return Ok(pairs);
        }
        loop {
            let name = self.text()?;
            self.token(b':', "a colon")?;
            pairs.push((name, self.text()?));
            if self.took(b'}') {
                return Ok(pairs);
            }
            self.token(b',', "a comma or the end of an object")?;
        }
    }

    /// An array; `item` stands before a value and has to read it.
    pub(super) fn array(&mut self, mut item: impl FnMut(&mut Scan<'a>) -> Result<(), Fault>) -> Result<(), Fault> {
        self.token(b'[', "an array")?;
        if self.took(b']') {
            return Ok(());
        }
        loop {
            item(self)?;
            if self.took(b']') {
                return Ok(());
            }
            self.token(b',', "a comma or the end of an array")?;
        }
    }

    /// `None` for null, else what `read` reads.
    pub(super) fn maybe<T>(
        &mut self,
        read: impl FnOnce(&mut Scan<'a>) -> Result<T, Fault>,
    ) -> Result<Option<T>, Fault> {
        if self.word("null") { Ok(None) } else { read(self).map(Some) }
    }

    pub(super) fn flag(&mut self) -> Result<bool, Fault> {
        if self.word("true") {
            return Ok(true);
        }
        if self.word("false") { Ok(false) } else { Err(self.fault("true or false")) }
    }

    /// A whole number of at least 0 that fits `T`.
    pub(super) fn number<T: TryFrom<u64>>(&mut self) -> Result<T, Fault> {
        const EXPECTED: &str = "a whole number that fits";
        self.blanks();
        let rest = self.rest();
        let mut value = Some(0u64);
        let mut digits = 0;
        while let Some(digit @ b'0'..=b'9') = rest.get(digits) {
            value = value.and_then(|value| value.checked_mul(10)?.checked_add(u64::from(digit - b'0')));
            digits += 1;
        }
        let is_padded = digits > 1 && rest[0] == b'0';
        let goes_on = matches!(rest.get(digits), Some(b'.' | b'e' | b'E'));
        let fits = value.filter(|_| digits > 0 && !is_padded && !goes_on).and_then(|value| T::try_from(value).ok());
        let value = fits.ok_or(self.fault(EXPECTED))?;
        self.at += digits;
        Ok(value)
    }

    pub(super) fn text(&mut self) -> Result<Cow<'a, str>, Fault> {
        self.token(b'"', "a string")?;
        let from = self.at;
        let length = plain_length(self.rest());
        match self.rest().get(length) {
            Some(b'"') => {
                self.at = from + length + 1;
                Ok(Cow::Borrowed(&self.line[from..from + length])) // between two quotes: on character boundaries
            }
            Some(b'\\') => {
                self.at = from - 1; // back to the opening quote
                self.other::<String>("a string").map(Cow::Owned)
            }
            _ => Err(self.fault("the end of a string")),
        }
    }

    /// Any value at all.
    pub(super) fn skip(&mut self) -> Result<(), Fault> {
        self.other::<IgnoredAny>("a value").map(|_| ())
    }

    /// Nothing but blanks may follow.
    pub(super) fn end(&mut self) -> Result<(), Fault> {
        self.blanks();
        if self.at == self.line.len() { Ok(()) } else { Err(self.fault("the end of the line")) }
    }

    /// A member's name and its colon. `next` is where in `names` it is looked for first.
    fn name<N: Copy>(&mut self, names: &[Name<N>], next: &mut usize) -> Result<Option<N>, Fault> {
        self.blanks();
        if let Some(Name { is, spelled }) = names.get(*next)
            && self.rest().starts_with(spelled.as_bytes())
        {
            self.at += spelled.len();
            *next += 1;
            return Ok(Some(*is));
        }
        let name = self.text()?;
        self.token(b':', "a colon")?;
        let place = names.iter().position(|known| known.text() == name);
        *next = place.map_or(*next, |place| place + 1);
        Ok(place.map(|place| names[place].is))
    }

    /// The one value that begins here, by serde_json.
    fn other<T: serde::de::DeserializeOwned>(&mut self, expected: &'static str) -> Result<T, Fault> {
        let mut values = serde_json::Deserializer::from_str(&self.line[self.at..]).into_iter::<T>();
        let value = values.next().and_then(Result::ok).ok_or(self.fault(expected))?;
        self.at += values.byte_offset();
        Ok(value)
    }

    fn token(&mut self, token: u8, expected: &'static str) -> Result<(), Fault> {
        if self.took(token) { Ok(()) } else { Err(self.fault(expected)) }
    }

    fn took(&mut self, token: u8) -> bool {
        self.blanks();
        let found = self.line.as_bytes().get(self.at) == Some(&token);
        self.at += usize::from(found);
        found
    }

    fn word(&mut self, word: &str) -> bool {
        self.blanks();
        let found = self.rest().starts_with(word.as_bytes());
        self.at += if found { word.len() } else { 0 };
        found
    }

    fn blanks(&mut self) {
        while let Some(b' ' | b'\t' | b'\r' | b'\n') = self.line.as_bytes().get(self.at) {
            self.at += 1;
        }
    }

    fn rest(&self) -> &'a [u8] {
        &self.line.as_bytes()[self.at..] // never past the end
    }

    fn fault(&self, expected: &'static str) -> Fault {
        Fault { at: self.at, expected }
    }
}

/// How many bytes at the front are neither quote nor backslash nor control character. Eight at a time: a row is some
/// 750 bytes of short strings.
pub(super) fn plain_length(bytes: &[u8]) -> usize {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    const HIGH: u64 = ONES * 0x80;
    // Sets the high bit of each byte that is below `than`; above the lowest such byte it may err, and only the
    // lowest one is asked for.
    let below = |word: u64, than: u64| word.wrapping_sub(ONES * than) & !word & HIGH;
    let mut length = 0;
    for chunk in bytes.chunks_exact(8) {
        let word = chunk.try_into().map(u64::from_le_bytes).unwrap_or_default(); // a chunk has 8 bytes
        let (quote, backslash) = (word ^ (ONES * u64::from(b'"')), word ^ (ONES * u64::from(b'\\')));
        let special = below(quote, 1) | below(backslash, 1) | below(word, 0x20);
        if special != 0 {
            return length + (special.trailing_zeros() / 8) as usize;
        }
        length += 8;
    }
    let special = |byte: &u8| matches!(byte, b'"' | b'\\' | 0..0x20);
    length + bytes[length..].iter().position(special).unwrap_or(bytes.len() - length)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(text: &str) -> Option<u64> {
        let mut scan = Scan::new(text.as_bytes()).ok()?;
        let number = scan.number().ok()?;
        scan.end().ok().map(|()| number)
    }

    #[test]
    fn numbers_are_whole_and_fit() {
        assert_eq!((number("0"), number(" 7 "), number("18446744073709551615")), (Some(0), Some(7), Some(u64::MAX)));
        for text in ["", "-1", "1.0", "1e3", "01", "18446744073709551616", "1x", "null", "\"1\""] {
            assert_eq!(number(text), None, "{text}");
        }
        assert_eq!(Scan::new(b"65536").unwrap().number::<u16>().ok(), None);
    }

    #[test]
    fn strings_are_borrowed_unless_they_hold_an_escape() {
        let read = |line: &'static [u8]| Scan::new(line).and_then(|mut scan| scan.text());
        assert!(matches!(read("\"é🌍\"".as_bytes()), Ok(Cow::Borrowed("é🌍"))));
        assert!(matches!(read(br#""a\n\ud83c\udf0d""#), Ok(Cow::Owned(text)) if text == "a\n🌍"));
        for line in [&br#""open"#[..], br#""\x""#, br#""\ud83c""#, b"\"a\nb\"", b"\"\xff\"", b"7"] {
            assert!(read(line).is_err(), "{line:?}");
        }
    }

    #[test]
    fn plain_stretch_ends_at_the_first_special_byte_wherever_it_stands() {
        for length in 0..40 {
            let plain: Vec<u8> =
                (0..length).map(|at| [b'a', b' ', b'~', 0x7f, 0x80, 0xff, b'!', b'#'][at % 8]).collect();
            assert_eq!(plain_length(&plain), length);
            for special in [b'"', b'\\', 0, 0x1f, b'\n'] {
                assert_eq!(plain_length(&[&plain[..], &[special], b"more after it"].concat()), length, "{special}");
            }
        }
    }

    #[test]
    fn members_are_found_in_any_order() {
        members!(Letter { A = "a", B = "b", C = "c" });
        for (line, expected) in [
            (r#"{"a":1,"b":2,"c":3}"#, "abc"),
            (r#"{"c":1,"a":2,"b":3}"#, "cab"),
            (r#"{"a":1,"x":[],"b" :2, "c":3,"c":3}"#, "a?bcc"),
            (r#"{"\u0061":1}"#, "a"),
        ] {
            let mut seen = String::new();
            let read = Scan::new(line.as_bytes()).and_then(|mut scan| {
                scan.object(Letter::NAMES, |scan, letter| {
                    seen.push(match letter {
                        Some(Letter::A) => 'a',
                        Some(Letter::B) => 'b',
                        Some(Letter::C) => 'c',
                        None => '?',
                    });
                    scan.skip()
                })
            });
            assert_eq!((read, seen.as_str()), (Ok(()), expected), "{line}");
        }
    }

    #[test]
    fn structure_must_be_whole() {
        let count = |line: &str| {
            let mut scan = Scan::new(line.as_bytes())?;
            let mut members = 0;
            scan.object::<()>(&[], |scan, _| {
                members += 1;
                scan.skip()
            })?;
            scan.end().map(|()| members)
        };
        assert_eq!((count("{}"), count(r#" { "a" : [1,{"b":2}] , "c" : null } "#)), (Ok(0), Ok(2)));
        for line in ["", "{", "{\"a\"}", "{\"a\":}", "{\"a\":1,}", "{\"a\":1 \"b\":2}", "{}x", "[]", "{\"a\":[1,]}"] {
            assert!(count(line).is_err(), "{line}");
        }
        assert_eq!(count("{\"a\":1]").unwrap_err(), Fault { at: 6, expected: "a comma or the end of an object" });
    }
}

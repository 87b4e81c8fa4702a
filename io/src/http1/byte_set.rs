//! Which bytes may stand in one place of a head: letters, digits, and a few more. Looked up, because heads are read byte
//! by byte and a comparison with each of fifteen characters costs more than the load of an answer.

/// The answer for each of 256 bytes.
pub(super) struct ByteSet([bool; 256]);

impl ByteSet {
    /// ASCII letters and digits, and these.
    pub(super) const fn letters_digits_and(others: &[u8]) -> ByteSet {
        let mut has = [false; 256];
        let mut byte = 0;
        while byte < 128 {
            has[byte] = (byte as u8).is_ascii_alphanumeric(); // below 128
            byte += 1;
        }
        let mut at = 0;
        while at < others.len() {
            has[others[at] as usize] = true;
            at += 1;
        }
        ByteSet(has)
    }

    #[inline]
    pub(super) fn has(&self, byte: u8) -> bool {
        self.0[usize::from(byte)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_letters_digits_what_was_named_and_nothing_else() {
        let set = ByteSet::letters_digits_and(b"-\xff");
        let has: Vec<u8> = (0..=255).filter(|byte| set.has(*byte)).collect();
        let mut want: Vec<u8> = (b'0'..=b'9').chain(b'A'..=b'Z').chain(b'a'..=b'z').chain([b'-', 0xff]).collect();
        want.sort_unstable();
        assert_eq!(has, want);
    }
}

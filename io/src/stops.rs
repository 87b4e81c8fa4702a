//! Finds the next byte at which a reader has to stop, sixteen at a time.
//!
//! A head, a request body and an answer are mostly bytes that mean nothing to us: names, prose, numbers. Their readers
//! spent most of their instructions on finding the few that do. On x86-64 sixteen are compared at once (SSE2, which
//! every such processor has, so nothing is asked at run time), elsewhere eight in a word. Unlike a call of `memchr`,
//! which searches megabytes faster, this is inlined where it is used: most of what is searched ends within two steps.
//! What a byte means is for [`crate::http1`], [`crate::json`] and [`crate::usage`] to say; here are only the sets.

/// A set of bytes to stop at, spelled for one byte and for several.
pub(crate) trait Stops {
    /// The rule itself, which the others are tested against.
    fn has(byte: u8) -> bool;
    #[cfg(target_arch = "x86_64")]
    fn in_block(block: Block) -> Block;
    /// The top bit of each byte of `word` that is in the set. Of those set, only the lowest is certain.
    #[cfg(any(test, not(target_arch = "x86_64")))]
    fn in_word(word: u64) -> u64;
}

/// The index of the first byte from `from` on that is in `S`, or the length of `text` when there is none.
#[inline(always)]
pub(crate) fn next<S: Stops>(text: &[u8], from: usize) -> usize {
    #[cfg(target_arch = "x86_64")]
    return next_by_blocks::<S>(text, from);
    #[cfg(not(target_arch = "x86_64"))]
    next_by_words::<S>(text, from)
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn next_by_blocks<S: Stops>(text: &[u8], from: usize) -> usize {
    // The first one by itself: most searches end in it, before a loop is set up.
    let Some(rest) = text.get(from..) else { return text.len() };
    let Some((block, mut rest)) = rest.split_first_chunk() else { return next_behind_blocks::<S>(text, from) };
    let mut found = S::in_block(Block::load(block)).mask();
    let mut at = from;
    while found == 0 {
        at += Block::BYTES;
        let Some((block, behind)) = rest.split_first_chunk() else { return next_behind_blocks::<S>(text, at) };
        (found, rest) = (S::in_block(Block::load(block)).mask(), behind);
    }
    at + found.trailing_zeros() as usize
}

/// As [`next`], for texts of which some are long.
#[inline(always)]
pub(crate) fn next_far<S: Stops>(text: &[u8], from: usize) -> usize {
    #[cfg(target_arch = "x86_64")]
    if let Some((block, _)) = text.get(from..).and_then(|rest| rest.split_first_chunk()) {
        let found = S::in_block(Block::load(block)).mask();
        return if found != 0 {
            from + found.trailing_zeros() as usize
        } else {
            next_far_off::<S>(text, from + Block::BYTES)
        };
    }
    next::<S>(text, from)
}

/// Behind the first block, four at a time. Not inlined, to keep the code around the usual case small.
#[cfg(target_arch = "x86_64")]
#[inline(never)]
fn next_far_off<S: Stops>(text: &[u8], from: usize) -> usize {
    let (mut rest, mut at) = (text.get(from..).unwrap_or_default(), from);
    // One more by itself: most that do not end in the first end in the second.
    if let Some((block, behind)) = rest.split_first_chunk() {
        let found = S::in_block(Block::load(block)).mask();
        if found != 0 {
            return at + found.trailing_zeros() as usize;
        }
        (rest, at) = (behind, at + Block::BYTES);
    }
    while let Some((four, behind)) = rest.split_first_chunk::<{ 4 * Block::BYTES }>() {
        let in_block = |block: &[u8; Block::BYTES]| S::in_block(Block::load(block));
        let any = four.as_chunks().0.iter().map(in_block).reduce(Block::or);
        if any.is_some_and(|any| any.mask() != 0) {
            break;
        }
        (rest, at) = (behind, at + four.len());
    }
    while let Some((block, behind)) = rest.split_first_chunk() {
        let found = S::in_block(Block::load(block)).mask();
        if found != 0 {
            return at + found.trailing_zeros() as usize;
        }
        (rest, at) = (behind, at + Block::BYTES);
    }
    next_behind_blocks::<S>(text, at)
}

/// In the last bytes of `text`, fewer than a block, from `from` on.
#[cfg(target_arch = "x86_64")]
#[inline(never)]
fn next_behind_blocks<S: Stops>(text: &[u8], from: usize) -> usize {
    let length = text.len().saturating_sub(from);
    let at = text.len() - length;
    match text.last_chunk() {
        _ if length == 0 => text.len(),
        // The last sixteen, of which the first lie before `from`.
        Some(block) => {
            let found = S::in_block(Block::load(block)).mask() >> (Block::BYTES - length);
            if found == 0 { text.len() } else { at + found.trailing_zeros() as usize }
        }
        None => next_by_bytes::<S>(text, at),
    }
}

#[cfg(any(test, not(target_arch = "x86_64")))]
#[inline(always)]
fn next_by_words<S: Stops>(text: &[u8], from: usize) -> usize {
    let (words, behind) = text.get(from..).unwrap_or_default().as_chunks();
    for (index, word) in words.iter().enumerate() {
        let found = S::in_word(u64::from_le_bytes(*word));
        if found != 0 {
            return from + index * 8 + found.trailing_zeros() as usize / 8;
        }
    }
    next_by_bytes::<S>(text, text.len() - behind.len())
}

fn next_by_bytes<S: Stops>(text: &[u8], from: usize) -> usize {
    let rest = text.get(from..).unwrap_or_default();
    rest.iter().position(|&byte| S::has(byte)).map_or(text.len(), |found| from + found)
}

/// Whatever is no letter, digit or hyphen: nearly every name of a header field ends there.
pub(crate) enum NotOfUsualName {}

impl Stops for NotOfUsualName {
    #[inline(always)]
    fn has(byte: u8) -> bool {
        !byte.is_ascii_alphanumeric() && byte != b'-'
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn in_block(block: Block) -> Block {
        // Bit 5 makes a small letter of a capital and of nothing else.
        let other = block.with_bits(0x20).outside(b'a', b'z').and(block.outside(b'0', b'9'));
        other.and_not(block.is(b'-'))
    }

    #[cfg(any(test, not(target_arch = "x86_64")))]
    #[inline(always)]
    fn in_word(word: u64) -> u64 {
        let low = word & !HIGH;
        let usual = within(low | (EACH * 0x20), b'a', b'z') | within(low, b'0', b'9') | within(low, b'-', b'-');
        (!usual | word) & HIGH
    }
}

/// A control character, tabs and DEL among them: a line ends at one, or is wrong there.
pub(crate) enum Controls {}

impl Stops for Controls {
    #[inline(always)]
    fn has(byte: u8) -> bool {
        byte < b' ' || byte == 0x7f
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn in_block(block: Block) -> Block {
        block.up_to(0x1f).or(block.is(0x7f))
    }

    #[cfg(any(test, not(target_arch = "x86_64")))]
    #[inline(always)]
    fn in_word(word: u64) -> u64 {
        below_space(word) | is(word, 0x7f)
    }
}

/// The end of a line.
pub(crate) enum LineFeed {}

impl Stops for LineFeed {
    #[inline(always)]
    fn has(byte: u8) -> bool {
        byte == b'\n'
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn in_block(block: Block) -> Block {
        block.is(b'\n')
    }

    #[cfg(any(test, not(target_arch = "x86_64")))]
    #[inline(always)]
    fn in_word(word: u64) -> u64 {
        is(word, b'\n')
    }
}

/// Whatever is no letter, digit, hyphen, dot or colon: nearly every host and port ends there.
pub(crate) enum NotOfUsualHost {}

impl Stops for NotOfUsualHost {
    #[inline(always)]
    fn has(byte: u8) -> bool {
        !byte.is_ascii_alphanumeric() && !matches!(byte, b'-' | b'.' | b':')
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn in_block(block: Block) -> Block {
        let letter = block.with_bits(0x20).outside(b'a', b'z');
        letter.and(block.outside(b'0', b':')).and(block.outside(b'-', b'.'))
    }

    #[cfg(any(test, not(target_arch = "x86_64")))]
    #[inline(always)]
    fn in_word(word: u64) -> u64 {
        let low = word & !HIGH;
        let usual = within(low | (EACH * 0x20), b'a', b'z') | within(low, b'0', b':') | within(low, b'-', b'.');
        (!usual | word) & HIGH
    }
}

/// What may not stand in a JSON string as it is, and what is not ASCII.
pub(crate) enum NotPlain {}

impl Stops for NotPlain {
    #[inline(always)]
    fn has(byte: u8) -> bool {
        !matches!(byte, b' '..0x80) || matches!(byte, b'"' | b'\\')
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn in_block(block: Block) -> Block {
        // As a signed byte, what is not ASCII is below a space as well.
        block.below_signed(b' ').or(block.is(b'"')).or(block.is(b'\\'))
    }

    #[cfg(any(test, not(target_arch = "x86_64")))]
    #[inline(always)]
    fn in_word(word: u64) -> u64 {
        below_space(word) | is(word, b'"') | is(word, b'\\') | word & HIGH
    }
}

/// What may not stand in a JSON string as it is.
pub(crate) enum NotText {}

impl Stops for NotText {
    #[inline(always)]
    fn has(byte: u8) -> bool {
        byte < b' ' || matches!(byte, b'"' | b'\\')
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn in_block(block: Block) -> Block {
        block.up_to(0x1f).or(block.is(b'"')).or(block.is(b'\\'))
    }

    #[cfg(any(test, not(target_arch = "x86_64")))]
    #[inline(always)]
    fn in_word(word: u64) -> u64 {
        below_space(word) | is(word, b'"') | is(word, b'\\')
    }
}

/// The end of a JSON string that nobody validates, or an escape in it.
pub(crate) enum QuoteOrBackslash {}

impl Stops for QuoteOrBackslash {
    #[inline(always)]
    fn has(byte: u8) -> bool {
        matches!(byte, b'"' | b'\\')
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn in_block(block: Block) -> Block {
        block.is(b'"').or(block.is(b'\\'))
    }

    #[cfg(any(test, not(target_arch = "x86_64")))]
    #[inline(always)]
    fn in_word(word: u64) -> u64 {
        is(word, b'"') | is(word, b'\\')
    }
}

/// What may not stand in a request target, and the `?` in it.
pub(crate) enum NotOfPath {}

impl Stops for NotOfPath {
    #[inline(always)]
    fn has(byte: u8) -> bool {
        !matches!(byte, 0x21..=0x7e) || matches!(byte, b'#' | b'?')
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn in_block(block: Block) -> Block {
        block.outside(0x21, 0x7e).or(block.is(b'#')).or(block.is(b'?'))
    }

    #[cfg(any(test, not(target_arch = "x86_64")))]
    #[inline(always)]
    fn in_word(word: u64) -> u64 {
        below_space(word) | is(word, b' ') | is(word, 0x7f) | is(word, b'#') | is(word, b'?') | word & HIGH
    }
}

#[cfg(any(test, not(target_arch = "x86_64")))]
const EACH: u64 = 0x0101_0101_0101_0101;
#[cfg(any(test, not(target_arch = "x86_64")))]
const HIGH: u64 = EACH << 7;

/// The top bit of each byte that equals `byte`, and perhaps of some above the lowest of them.
#[cfg(any(test, not(target_arch = "x86_64")))]
#[inline(always)]
fn is(word: u64, byte: u8) -> u64 {
    let differs = word ^ (EACH * u64::from(byte));
    differs.wrapping_sub(EACH) & !differs & HIGH
}

/// The top bit of each byte within `first..=last`. The bytes have no top bits themselves, so that no sum carries into the
/// next one.
#[cfg(any(test, not(target_arch = "x86_64")))]
#[inline(always)]
fn within(bytes: u64, first: u8, last: u8) -> u64 {
    (bytes + EACH * u64::from(0x80 - first)) & !(bytes + EACH * u64::from(0x7f - last)) & HIGH
}

/// As [`is`], for bytes below a space.
#[cfg(any(test, not(target_arch = "x86_64")))]
#[inline(always)]
fn below_space(word: u64) -> u64 {
    word.wrapping_sub(EACH * 0x20) & !word & HIGH
}

#[cfg(target_arch = "x86_64")]
pub(crate) use block::Block;

#[cfg(target_arch = "x86_64")]
mod block {
    use std::arch::x86_64::{
        __m128i, _mm_add_epi8, _mm_and_si128, _mm_andnot_si128, _mm_cmpeq_epi8, _mm_cmpgt_epi8, _mm_loadu_si128,
        _mm_min_epu8, _mm_movemask_epi8, _mm_or_si128, _mm_set1_epi8,
    };

    /// Sixteen bytes; as the answer to a question, each is 0xff for yes and 0 for no.
    #[derive(Clone, Copy)]
    pub(crate) struct Block(__m128i);

    // SAFETY, for every block below: the instructions are those of SSE2, which is part of x86-64.
    impl Block {
        pub(crate) const BYTES: usize = 16;

        #[inline(always)]
        pub(super) fn load(bytes: &[u8; Block::BYTES]) -> Block {
            // SAFETY: reads the sixteen bytes of the array, wherever they lie.
            Block(unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) })
        }

        #[inline(always)]
        fn each(byte: u8) -> __m128i {
            // SAFETY: SSE2.
            unsafe { _mm_set1_epi8(byte.cast_signed()) }
        }

        #[inline(always)]
        pub(super) fn is(self, byte: u8) -> Block {
            // SAFETY: SSE2.
            Block(unsafe { _mm_cmpeq_epi8(self.0, Block::each(byte)) })
        }

        /// Which are at most `last`.
        #[inline(always)]
        pub(super) fn up_to(self, last: u8) -> Block {
            // SAFETY: SSE2. There is no comparison of unsigned bytes, but a minimum of them.
            Block(unsafe { _mm_cmpeq_epi8(_mm_min_epu8(self.0, Block::each(last)), self.0) })
        }

        /// Which are below `bound`, all taken as signed bytes.
        #[inline(always)]
        pub(super) fn below_signed(self, bound: u8) -> Block {
            // SAFETY: SSE2.
            Block(unsafe { _mm_cmpgt_epi8(Block::each(bound), self.0) })
        }

        /// Which are not within `first..=last`.
        #[inline(always)]
        pub(super) fn outside(self, first: u8, last: u8) -> Block {
            // Bytes are compared as signed ones: `first` moves to the least of those, what is below it to the top.
            let least = 0x80_u8;
            let last = least.wrapping_add(last - first);
            // SAFETY: SSE2.
            Block(unsafe {
                _mm_cmpgt_epi8(_mm_add_epi8(self.0, Block::each(least.wrapping_sub(first))), Block::each(last))
            })
        }

        #[inline(always)]
        pub(super) fn with_bits(self, bits: u8) -> Block {
            // SAFETY: SSE2.
            Block(unsafe { _mm_or_si128(self.0, Block::each(bits)) })
        }

        #[inline(always)]
        pub(super) fn or(self, other: Block) -> Block {
            // SAFETY: SSE2.
            Block(unsafe { _mm_or_si128(self.0, other.0) })
        }

        #[inline(always)]
        pub(super) fn and(self, other: Block) -> Block {
            // SAFETY: SSE2.
            Block(unsafe { _mm_and_si128(self.0, other.0) })
        }

        #[inline(always)]
        pub(super) fn and_not(self, other: Block) -> Block {
            // SAFETY: SSE2.
            Block(unsafe { _mm_andnot_si128(other.0, self.0) })
        }

        /// The top bit of each byte, the first byte's lowest.
        #[inline(always)]
        pub(super) fn mask(self) -> u32 {
            // SAFETY: SSE2.
            unsafe { _mm_movemask_epi8(self.0) }.cast_unsigned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Each way to search, from each index on.
    fn agrees_with_a_look_at_each_byte<S: Stops>(text: &[u8], from: usize) {
        let expected = (from..text.len()).find(|&at| S::has(text[at])).unwrap_or(text.len());
        assert_eq!(next::<S>(text, from), expected, "{text:?} from {from}");
        assert_eq!(next_far::<S>(text, from), expected, "{text:?} from {from}, far");
        assert_eq!(next_by_words::<S>(text, from), expected, "{text:?} from {from}, by words");
    }

    /// All bytes at all places of texts of all short lengths, at all alignments.
    fn stops_at_its_bytes_wherever_they_stand<S: Stops>() {
        let usual = (b'0'..=b'z').find(|&byte| !S::has(byte)).unwrap();
        let mut room = [usual; 120];
        for length in 0..=100 {
            let start = length % 17;
            agrees_with_a_look_at_each_byte::<S>(&room[start..start + length], 0);
            for at in 0..length {
                for byte in [b'"', b'\\', 0, 0x1f, b' ', 0x7f, 0x80, 0xff, b':', b'?', b'\n'] {
                    room[start + at] = byte;
                    agrees_with_a_look_at_each_byte::<S>(&room[start..start + length], 0);
                    agrees_with_a_look_at_each_byte::<S>(&room[start..start + length], length / 2);
                }
                room[start + at] = usual;
            }
        }
        for byte in 0..=u8::MAX {
            for other in [usual, byte.wrapping_add(1), byte ^ 0x80] {
                let mut text = [usual; 33];
                (text[5], text[6], text[32]) = (byte, other, byte);
                (0..=33).for_each(|from| agrees_with_a_look_at_each_byte::<S>(&text, from));
            }
        }
    }

    macro_rules! each_set {
        ($($test:ident: $set:ty,)*) => {$(
            mod $test {
                use super::*;

                #[test]
                fn is_found_wherever_it_stands() {
                    stops_at_its_bytes_wherever_they_stand::<$set>();
                }

                proptest! {
                    #[test]
                    fn is_found_in_any_text(
                        text in proptest::collection::vec(prop_oneof![9 => 0x20_u8..0x7f, 1 => any::<u8>()], 0..=100),
                        long in proptest::collection::vec(prop_oneof![200 => Just(b'a'), 1 => any::<u8>()], 0..=400),
                        bytes in proptest::collection::vec(any::<u8>(), 0..=40),
                        from in 0_usize..=100,
                    ) {
                        agrees_with_a_look_at_each_byte::<$set>(&text, from.min(text.len()));
                        agrees_with_a_look_at_each_byte::<$set>(&long, from.min(long.len()));
                        agrees_with_a_look_at_each_byte::<$set>(&bytes, from.min(bytes.len()));
                    }
                }
            }
        )*};
    }

    each_set! {
        the_end_of_a_usual_name: NotOfUsualName,
        a_control_character: Controls,
        a_line_feed: LineFeed,
        what_is_not_plain: NotPlain,
        what_is_not_text: NotText,
        a_quote_or_backslash: QuoteOrBackslash,
        the_end_of_a_usual_host: NotOfUsualHost,
        the_end_of_a_path: NotOfPath,
    }
}

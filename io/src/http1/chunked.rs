//! Takes the chunked framing off, in place and strictly.
//!
//! Sizes are one to sixteen hex digits and nothing else, line ends are CR LF and nothing else: a lenient reader in
//! front of a strict one is a smuggled request. Extensions and trailers are read, bounded and dropped; they mean
//! nothing to a provider and nothing to a client.

use super::body::Decoded;

/// Extension bytes accepted over a whole body. More is an attempt to make us read for nothing.
const EXTENSION_BYTES_MAX: u32 = 4096;
/// Trailer bytes accepted at the end of a body, line ends included.
const TRAILER_BYTES_MAX: u32 = 8192;
/// Hex digits of a size: sixteen hold every u64.
const SIZE_DIGITS_MAX: u8 = 16;

/// The framing is broken; what follows on this connection cannot be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadChunk {
    #[error("a chunk size is not one to sixteen hex digits")]
    Size,
    #[error("a chunk line does not end with CR LF")]
    LineEnd,
    #[error("a chunk is longer than its size says")]
    Overrun,
    #[error("more than 4096 bytes of chunk extensions")]
    ExtensionsTooLong,
    #[error("a chunk extension or trailer has a control character")]
    ControlCharacter,
    #[error("more than 8192 bytes of trailers")]
    TrailersTooLong,
}

#[derive(Clone, Debug, Default)]
pub struct ChunkedDecoder {
    state: State,
    /// Of the current chunk: its size while digits come, then what is left of it.
    size: u64,
    digits: u8,
    extension_bytes: u32,
    trailer_bytes: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Size,
    Extension,
    SizeLf,
    Data,
    DataCr,
    DataLf,
    TrailerStart,
    Trailer,
    TrailerLf,
    EndLf,
    Done,
}

impl ChunkedDecoder {
    /// Takes the next piece as it came from the socket; the payload is moved to the front of it. An error is final.
    pub fn decode(&mut self, piece: &mut [u8]) -> Result<Decoded, BadChunk> {
        let (mut read, mut payload) = (0, 0);
        while self.state != State::Done {
            let Some(&byte) = piece.get(read) else { break };
            if self.state == State::Data {
                let taken = (piece.len() - read).min(usize::try_from(self.size).unwrap_or(usize::MAX));
                if payload != read {
                    piece.copy_within(read..read + taken, payload);
                }
                payload += taken;
                read += taken;
                self.size -= taken as u64;
                if self.size == 0 {
                    self.state = State::DataCr;
                }
                continue;
            }
            read += 1;
            self.state = self.step(byte)?;
        }
        Ok(Decoded { payload, consumed: read, done: self.is_done() })
    }

    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// One byte of framing.
    fn step(&mut self, byte: u8) -> Result<State, BadChunk> {
        match self.state {
            State::Size => match byte {
                b'\r' if self.digits > 0 => Ok(State::SizeLf),
                b';' if self.digits > 0 => Ok(State::Extension),
                _ => {
                    let digit = (byte as char).to_digit(16).ok_or(BadChunk::Size)?;
                    if self.digits == SIZE_DIGITS_MAX {
                        return Err(BadChunk::Size);
                    }
                    self.digits += 1;
                    self.size = self.size << 4 | u64::from(digit);
                    Ok(State::Size)
                }
            },
            State::Extension => {
                if byte == b'\r' {
                    return Ok(State::SizeLf);
                }
                self.extension_bytes += 1;
                if self.extension_bytes > EXTENSION_BYTES_MAX {
                    return Err(BadChunk::ExtensionsTooLong);
                }
                printable(byte)?;
                Ok(State::Extension)
            }
            State::SizeLf => {
                line_feed(byte)?;
                self.digits = 0;
                Ok(if self.size == 0 { State::TrailerStart } else { State::Data })
            }
            State::DataCr if byte == b'\r' => Ok(State::DataLf),
            State::DataCr => Err(BadChunk::Overrun),
            State::DataLf => line_feed(byte).map(|()| State::Size),
            State::TrailerStart if byte == b'\r' => Ok(State::EndLf),
            State::TrailerStart | State::Trailer => {
                self.trailer_bytes += 1;
                if self.trailer_bytes > TRAILER_BYTES_MAX {
                    return Err(BadChunk::TrailersTooLong);
                }
                if byte == b'\r' {
                    return Ok(State::TrailerLf);
                }
                printable(byte)?;
                Ok(State::Trailer)
            }
            State::TrailerLf => line_feed(byte).map(|()| State::TrailerStart),
            State::EndLf => line_feed(byte).map(|()| State::Done),
            // `decode` moves data itself and stops at the end; neither reaches this.
            State::Data | State::Done => Ok(self.state),
        }
    }
}

fn line_feed(byte: u8) -> Result<(), BadChunk> {
    if byte == b'\n' { Ok(()) } else { Err(BadChunk::LineEnd) }
}

fn printable(byte: u8) -> Result<(), BadChunk> {
    match byte {
        b'\n' => Err(BadChunk::LineEnd),
        b'\t' | 0x20..=0x7e | 0x80.. => Ok(()),
        _ => Err(BadChunk::ControlCharacter),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Feeds `wire` in pieces of the given sizes (repeated); returns payload, bytes consumed and whether it ended.
    fn feed(wire: &[u8], sizes: &[usize]) -> Result<(Vec<u8>, usize, bool), BadChunk> {
        let (mut decoder, mut payload, mut consumed, mut sizes) =
            (ChunkedDecoder::default(), Vec::new(), 0, sizes.iter().cycle());
        while consumed < wire.len() && !decoder.is_done() {
            let size = sizes.next().copied().unwrap_or(1).max(1);
            let mut piece = wire[consumed..(consumed + size).min(wire.len())].to_vec();
            let decoded = decoder.decode(&mut piece)?;
            assert!(decoded.done || decoded.consumed == piece.len());
            payload.extend_from_slice(&piece[..decoded.payload]);
            consumed += decoded.consumed;
        }
        Ok((payload, consumed, decoder.is_done()))
    }

    #[test]
    fn payload_is_moved_to_the_front_and_the_next_message_left_alone() {
        let mut piece = b"3\r\nabc\r\n2;x=\"y\"\r\nde\r\n0\r\nx-t: 1\r\n\r\nGET /".to_vec();
        let decoded = ChunkedDecoder::default().decode(&mut piece).unwrap();
        assert_eq!(decoded, Decoded { payload: 5, consumed: piece.len() - 5, done: true });
        assert_eq!(&piece[..5], b"abcde");
        assert_eq!(&piece[decoded.consumed..], b"GET /");
    }

    #[test]
    fn every_split_gives_the_same_payload() {
        let wire = b"a\r\n0123456789\r\n0001\r\nX\r\n0\r\nt: u\r\nv: w\r\n\r\n";
        for size in 1..wire.len() {
            assert_eq!(feed(wire, &[size]), Ok((b"0123456789X".to_vec(), wire.len(), true)), "pieces of {size}");
        }
    }

    #[test]
    fn a_size_that_two_readers_could_take_differently_is_refused() {
        for wire in [
            "\r\n",
            " 5\r\n",
            "5 \r\n",
            "0x5\r\n",
            "+5\r\n",
            "-5\r\n",
            "5,5\r\n",
            "5g\r\n",
            ";x\r\n",
            "1_0\r\n",
            "5.\r\n",
            "00000000000000005\r\n",
            "fffffffffffffffff\r\n",
        ] {
            assert_eq!(feed(wire.as_bytes(), &[1]), Err(BadChunk::Size), "{wire:?}");
        }
        // The largest size there is does not overflow; it just never ends.
        assert_eq!(feed(b"ffffffffffffffff\r\nabc", &[4]), Ok((b"abc".to_vec(), 21, false)));
    }

    #[test]
    fn a_line_that_does_not_end_with_cr_lf_is_refused() {
        for (wire, fault) in [
            ("5\nhello", BadChunk::Size),
            ("5\rhello", BadChunk::LineEnd),
            ("5;x\nhello", BadChunk::LineEnd),
            ("5\r\nhello\n", BadChunk::Overrun),
            ("5\r\nhelloX\r\n", BadChunk::Overrun),
            ("5\r\nhello\rX", BadChunk::LineEnd),
            ("0\r\nt: u\nv: w\r\n\r\n", BadChunk::LineEnd),
            ("0\r\n\rX", BadChunk::LineEnd),
            ("0\r\nt: u\rv", BadChunk::LineEnd),
            ("0\r\nt: \0\r\n", BadChunk::ControlCharacter),
            ("5;\x01\r\n", BadChunk::ControlCharacter),
        ] {
            assert_eq!(feed(wire.as_bytes(), &[3]), Err(fault), "{wire:?}");
        }
    }

    #[test]
    fn extensions_and_trailers_are_bounded() {
        let one_long = format!("1;{}\r\n", "x".repeat(5000));
        assert_eq!(feed(one_long.as_bytes(), &[100]), Err(BadChunk::ExtensionsTooLong));
        let many_short = "1;xxxxxxxxx\r\na\r\n".repeat(500);
        assert_eq!(feed(many_short.as_bytes(), &[100]), Err(BadChunk::ExtensionsTooLong));
        let trailers = format!("0\r\n{}", "a: b\r\n".repeat(2000));
        assert_eq!(feed(trailers.as_bytes(), &[100]), Err(BadChunk::TrailersTooLong));
    }

    proptest! {
        #[test]
        fn what_was_chunked_comes_back_whatever_the_pieces(
            chunks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..40), 0..8),
            sizes in proptest::collection::vec(1usize..50, 1..6),
        ) {
            let (mut wire, mut all) = (Vec::new(), Vec::new());
            for chunk in &chunks {
                crate::http1::write::chunk(&mut wire, chunk);
                all.extend_from_slice(chunk);
            }
            wire.extend_from_slice(crate::http1::write::LAST_CHUNK);
            let length = wire.len();
            wire.extend_from_slice(b"POST /next");
            prop_assert_eq!(feed(&wire, &sizes), Ok((all, length, true)));
        }

        #[test]
        fn no_bytes_panic_and_every_split_agrees(
            wire in proptest::collection::vec(prop_oneof![Just(b'\r'), Just(b'\n'), Just(b'1'), Just(b'0'), any::<u8>()], 0..80),
            size in 1usize..20,
        ) {
            match (feed(&wire, &[wire.len().max(1)]), feed(&wire, &[size])) {
                (Ok(whole), Ok(split)) => prop_assert_eq!(whole, split),
                (whole, split) => prop_assert_eq!(whole.err(), split.err()),
            }
        }
    }
}

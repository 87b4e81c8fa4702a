//! Reads a copy of a compressed answer, for the tap alone: what the client gets is passed on as it came.
//!
//! A small answer can unpack to a huge one, so output is handed over in blocks of at most some 32 KB, never
//! collected, and an answer that unpacks far beyond what text does is given up: it still passes, only its usage goes
//! unread and is estimated. Other encodings than gzip and deflate are not read at all.

use flate2::write::{DeflateDecoder, MultiGzDecoder, ZlibDecoder};
use std::io::Write;

/// Unpacked bytes allowed per packed byte, beyond the first [`FREE_BYTES`]. Event streams reach about 30; a bomb
/// 1,000. At 100, a 64 KB read costs the tap 6.5 MB at most, some 10 ms of a core.
const RATIO_MAX: u64 = 100;
const FREE_BYTES: u64 = 1024 * 1024;

/// One per compressed answer. About 80 KB while it lives.
pub struct Decoder {
    inflate: Inflate,
    packed: u64,
    unpacked: u64,
}

enum Inflate {
    Gzip(MultiGzDecoder<Vec<u8>>),
    /// Servers do not agree whether `deflate` has a zlib wrapper; the first byte tells.
    DeflateStart,
    Zlib(ZlibDecoder<Vec<u8>>),
    Raw(DeflateDecoder<Vec<u8>>),
    /// Broken, at its end, or given up.
    Ended,
}

impl std::fmt::Debug for Decoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Decoder")
            .field("packed", &self.packed)
            .field("unpacked", &self.unpacked)
            .finish_non_exhaustive()
    }
}

impl Decoder {
    /// A decoder for one content coding; `None` for one we cannot read, a list of several included.
    pub fn of(coding: &[u8]) -> Option<Decoder> {
        let inflate = if coding.eq_ignore_ascii_case(b"gzip") || coding.eq_ignore_ascii_case(b"x-gzip") {
            Inflate::Gzip(MultiGzDecoder::new(Vec::new()))
        } else if coding.eq_ignore_ascii_case(b"deflate") {
            Inflate::DeflateStart
        } else {
            return None;
        };
        Some(Decoder { inflate, packed: 0, unpacked: 0 })
    }

    /// Takes the next piece and hands what it unpacks to, block by block, to `plain`. Never fails: of a broken
    /// stream, nothing more comes.
    pub fn push(&mut self, piece: &[u8], mut plain: impl FnMut(&mut [u8])) {
        self.packed += piece.len() as u64;
        let Some(&first) = piece.first() else { return };
        if matches!(self.inflate, Inflate::DeflateStart) {
            // The low half of the first byte of a zlib wrapper is 8, its method.
            self.inflate = if first & 0x0f == 8 {
                Inflate::Zlib(ZlibDecoder::new(Vec::new()))
            } else {
                Inflate::Raw(DeflateDecoder::new(Vec::new()))
            };
        }
        let (mut rest, mut flushed) = (piece, false);
        while !flushed {
            let step = if rest.is_empty() {
                flushed = true;
                self.inflate.flush()
            } else {
                self.inflate.write(rest)
            };
            let Some((taken, block)) = step else {
                self.inflate = Inflate::Ended;
                return;
            };
            rest = &rest[taken..];
            self.unpacked += block.len() as u64;
            if !block.is_empty() {
                plain(block);
                block.clear();
            }
            if self.unpacked > FREE_BYTES + RATIO_MAX * self.packed {
                self.inflate = Inflate::Ended;
                return;
            }
        }
    }
}

impl Inflate {
    /// Takes some of `input`; `None` when nothing more will come.
    fn write(&mut self, input: &[u8]) -> Option<(usize, &mut Vec<u8>)> {
        match self {
            Inflate::Gzip(inflate) => taken(inflate.write(input)).map(|taken| (taken, inflate.get_mut())),
            Inflate::Zlib(inflate) => taken(inflate.write(input)).map(|taken| (taken, inflate.get_mut())),
            Inflate::Raw(inflate) => taken(inflate.write(input)).map(|taken| (taken, inflate.get_mut())),
            Inflate::DeflateStart | Inflate::Ended => None,
        }
    }

    /// What the input so far has unpacked to and is still inside.
    fn flush(&mut self) -> Option<(usize, &mut Vec<u8>)> {
        match self {
            Inflate::Gzip(inflate) => inflate.flush().ok().map(|()| (0, inflate.get_mut())),
            Inflate::Zlib(inflate) => inflate.flush().ok().map(|()| (0, inflate.get_mut())),
            Inflate::Raw(inflate) => inflate.flush().ok().map(|()| (0, inflate.get_mut())),
            Inflate::DeflateStart | Inflate::Ended => None,
        }
    }
}

fn taken(written: std::io::Result<usize>) -> Option<usize> {
    written.ok().filter(|taken| *taken > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};
    use proptest::prelude::*;

    fn decoded(coding: &str, wire: &[u8], size: usize) -> Vec<u8> {
        let mut decoder = Decoder::of(coding.as_bytes()).unwrap();
        let mut out = Vec::new();
        for piece in wire.chunks(size) {
            decoder.push(piece, |plain| out.extend_from_slice(plain));
        }
        out
    }

    fn gzip(plain: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(plain).unwrap();
        encoder.finish().unwrap()
    }

    fn wires(plain: &[u8]) -> [(&'static str, Vec<u8>); 3] {
        let mut zlib = ZlibEncoder::new(Vec::new(), Compression::default());
        zlib.write_all(plain).unwrap();
        let mut raw = DeflateEncoder::new(Vec::new(), Compression::default());
        raw.write_all(plain).unwrap();
        [("gzip", gzip(plain)), ("deflate", zlib.finish().unwrap()), ("Deflate", raw.finish().unwrap())]
    }

    #[test]
    fn every_coding_unpacks_in_any_pieces() {
        let plain = r#"{"choices":[],"usage":{"prompt_tokens":100}} "#.repeat(200);
        for (coding, wire) in wires(plain.as_bytes()) {
            for size in [1, 2, 9, 100_000] {
                assert!(decoded(coding, &wire, size) == plain.as_bytes(), "{coding} in {size}");
            }
        }
        let two = [gzip(b"one "), gzip(b"two")].concat();
        assert_eq!(decoded("x-gzip", &two, 5), b"one two");
    }

    #[test]
    fn what_was_flushed_is_seen_at_once() {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(b"data: 1\n\n").unwrap();
        encoder.flush().unwrap();
        let wire = encoder.get_ref().clone();
        assert_eq!(decoded("gzip", &wire, wire.len()), b"data: 1\n\n");
    }

    #[test]
    fn a_bomb_is_given_up_and_comes_in_small_blocks() {
        let wire = gzip(&vec![0; 16 << 20]); // 16 MB in 16 KB
        assert!(wire.len() < 100_000);
        for size in [512, wire.len()] {
            let mut decoder = Decoder::of(b"gzip").unwrap();
            let (mut unpacked, mut largest) = (0, 0);
            for piece in wire.chunks(size) {
                decoder.push(piece, |plain| {
                    unpacked += plain.len();
                    largest = largest.max(plain.len());
                });
            }
            assert!(unpacked < 4 << 20, "{unpacked} bytes unpacked");
            assert!(largest <= 64 << 10, "a block of {largest}");
        }
    }

    #[test]
    fn other_codings_are_not_read() {
        for coding in ["br", "zstd", "identity", "gzip, gzip", ""] {
            assert!(Decoder::of(coding.as_bytes()).is_none(), "{coding}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(wire in proptest::collection::vec(any::<u8>(), 0..200), size in 1usize..50, valid in any::<bool>()) {
            for coding in ["gzip", "deflate"] {
                let _ = decoded(coding, &wire, size);
                if valid {
                    let mut broken = gzip(&wire);
                    let middle = broken.len() / 2;
                    broken[middle] ^= 0x55;
                    let _ = decoded(coding, &broken, size);
                }
            }
        }
    }
}

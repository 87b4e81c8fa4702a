//! Where a body ends, and its payload without the framing.
//!
//! The caller reads from a socket into a buffer and hands each piece over; the payload comes back at the front of
//! the same buffer. Does not limit the payload: the caller counts, because the limit is a configured one.

use super::chunked::{BadChunk, ChunkedDecoder};

/// How the end of a body is marked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Framing {
    /// No body.
    #[default]
    None,
    /// That many bytes, at least one.
    Length(u64),
    Chunked,
    /// Until the peer closes: replies only, and nobody can tell the end from a cut.
    UntilClose,
}

/// What one piece held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decoded {
    /// Payload bytes, now at the front of the piece.
    pub payload: usize,
    /// Bytes of the piece that belong to the body. Less than the piece only when `done`: the rest is the next
    /// message, untouched.
    pub consumed: usize,
    /// Whether the body is complete.
    pub done: bool,
}

/// The reading side of one body.
#[derive(Clone, Debug)]
pub struct BodyDecoder {
    state: State,
}

#[derive(Clone, Debug)]
enum State {
    Length(u64),
    Chunked(ChunkedDecoder),
    UntilClose,
}

impl BodyDecoder {
    pub fn new(framing: Framing) -> BodyDecoder {
        let state = match framing {
            Framing::None => State::Length(0),
            Framing::Length(length) => State::Length(length),
            Framing::Chunked => State::Chunked(ChunkedDecoder::default()),
            Framing::UntilClose => State::UntilClose,
        };
        BodyDecoder { state }
    }

    /// Takes the next piece as it came from the socket.
    pub fn decode(&mut self, piece: &mut [u8]) -> Result<Decoded, BadChunk> {
        match &mut self.state {
            State::Length(left) => {
                let taken = piece.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                *left -= taken as u64;
                Ok(Decoded { payload: taken, consumed: taken, done: *left == 0 })
            }
            State::Chunked(decoder) => decoder.decode(piece),
            State::UntilClose => Ok(Decoded { payload: piece.len(), consumed: piece.len(), done: false }),
        }
    }

    /// Whether the whole body was seen. A close-delimited one never is: its end is [`BodyDecoder::ends_at_close`].
    pub fn is_done(&self) -> bool {
        match &self.state {
            State::Length(left) => *left == 0,
            State::Chunked(decoder) => decoder.is_done(),
            State::UntilClose => false,
        }
    }

    /// Whether a close by the peer now is the regular end; otherwise the body was cut.
    pub fn ends_at_close(&self) -> bool {
        self.is_done() || matches!(self.state, State::UntilClose)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_of_known_length_ends_exactly_there() {
        let mut body = BodyDecoder::new(Framing::Length(5));
        assert_eq!(body.decode(&mut b"abc".to_vec()), Ok(Decoded { payload: 3, consumed: 3, done: false }));
        assert!(!body.is_done() && !body.ends_at_close());
        assert_eq!(body.decode(&mut b"deGET".to_vec()), Ok(Decoded { payload: 2, consumed: 2, done: true }));
        assert!(body.is_done());
    }

    #[test]
    fn no_body_is_done_at_once_and_a_close_delimited_one_never() {
        assert!(BodyDecoder::new(Framing::None).is_done());
        let mut body = BodyDecoder::new(Framing::UntilClose);
        assert_eq!(body.decode(&mut b"abc".to_vec()), Ok(Decoded { payload: 3, consumed: 3, done: false }));
        assert!(!body.is_done() && body.ends_at_close());
    }
}

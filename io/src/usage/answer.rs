//! The tap on one answer: JSON or a stream of events, plain or compressed, whatever its headers claim.
//!
//! Servers answer a stream with JSON, JSON with a stream, or leave the content type out, so the first byte decides.
//! Everything the client is to see goes through [`AnswerTap::push`]; only the usage chunk we asked for ourselves is
//! kept from it.

use super::{BodyScan, Shape, UsageSeen};
use crate::decode::Decoder;
use crate::sse::SseTap;

/// What a body is, by its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Looks {
    /// Nothing but space so far.
    Unknown,
    Json,
    Events,
    /// Neither: a page, a picture, an encoding we cannot read. Not metered; its bytes count as text.
    Opaque,
}

/// What may go to the client after a piece: `held` first, then the first `length` bytes of the piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passed<'t> {
    /// Bytes of earlier pieces that were kept back until it was clear that they are not the usage chunk. Empty
    /// nearly always.
    pub held: &'t [u8],
    pub length: usize,
}

/// One per answer.
#[derive(Debug)]
pub struct AnswerTap {
    looks: Looks,
    events: SseTap,
    decoder: Option<Box<Decoder>>,
}

impl AnswerTap {
    /// A tap on an answer of `shape`. `hide_usage_chunk`: we asked for usage where the caller did not.
    /// `content_encoding`: the value of that header, if there is one.
    pub fn new(shape: Shape, hide_usage_chunk: bool, content_encoding: Option<&[u8]>) -> AnswerTap {
        let (looks, decoder) = match content_encoding.map(<[u8]>::trim_ascii) {
            None | Some(b"") => (Looks::Unknown, None),
            Some(coding) if coding.eq_ignore_ascii_case(b"identity") => (Looks::Unknown, None),
            Some(coding) => match Decoder::of(coding) {
                Some(decoder) => (Looks::Unknown, Some(Box::new(decoder))),
                None => (Looks::Opaque, None),
            },
        };
        // A compressed stream is passed on as it is: nothing can be cut out of it.
        let events = SseTap::new(shape, hide_usage_chunk && decoder.is_none() && looks != Looks::Opaque);
        AnswerTap { looks, events, decoder }
    }

    /// Takes the next piece of the body, framing removed, and says what of it may go out now. May move the bytes of
    /// the piece together; those behind the returned length are of no further use.
    pub fn push(&mut self, piece: &mut [u8]) -> Passed<'_> {
        if self.decoder.is_none() {
            return self.push_plain(piece);
        }
        let length = piece.len();
        self.push_compressed(piece);
        Passed { held: b"", length }
    }

    /// The body has ended, or was cut: what was kept back and may still go out. After a cut it need not: what was
    /// kept back is a part of one event.
    pub fn finish(&mut self) -> &[u8] {
        if self.looks == Looks::Events { self.events.finish() } else { b"" }
    }

    /// What the provider reported so far; `None` when it reported nothing.
    pub fn usage(&self) -> Option<UsageSeen> {
        self.scan().usage()
    }

    /// Bytes of generated text so far.
    pub fn text_bytes(&self) -> u64 {
        self.scan().text_bytes()
    }

    pub fn model(&self) -> Option<&str> {
        self.scan().model()
    }

    pub fn error_seen(&self) -> bool {
        self.scan().error_seen()
    }

    /// Whether a stream has said that it is complete (`[DONE]`, `message_stop`, `response.completed` …).
    pub fn is_terminated(&self) -> bool {
        self.events.is_terminated()
    }

    /// Whether a choice of a chat has said why it ended: with it, a stream that ends without `[DONE]` is whole.
    pub fn has_finish_reason(&self) -> bool {
        self.scan().has_finish_reason()
    }

    pub fn looks(&self) -> Looks {
        self.looks
    }

    /// Appends the event that tells the client its stream was cut, so that it can be read behind what was sent so
    /// far. Nothing, and `false`, when the answer is not a plain stream of events.
    pub fn append_cut_event(&self, code: &str, message: &str, out: &mut Vec<u8>) -> bool {
        let is_stream = matches!(self.looks, Looks::Events | Looks::Unknown) && self.decoder.is_none();
        if is_stream {
            self.events.append_cut_event(code, message, out);
        }
        is_stream
    }

    fn scan(&self) -> &BodyScan {
        self.events.scan()
    }

    fn push_plain(&mut self, piece: &mut [u8]) -> Passed<'_> {
        let mut lead = 0;
        if self.looks == Looks::Unknown {
            let Some(first) = piece.iter().position(|&b| !is_lead(b)) else {
                return Passed { held: b"", length: piece.len() };
            };
            lead = first;
            self.looks = looks_like(piece[first]);
        }
        match self.looks {
            Looks::Events => {
                let passed = self.events.push(&mut piece[lead..]);
                Passed { held: passed.held, length: lead + passed.length }
            }
            Looks::Json => {
                self.events.scan_mut().feed(&piece[lead..]);
                Passed { held: b"", length: piece.len() }
            }
            Looks::Opaque | Looks::Unknown => {
                self.events.scan_mut().count_opaque(piece.len() - lead);
                Passed { held: b"", length: piece.len() }
            }
        }
    }

    fn push_compressed(&mut self, piece: &[u8]) {
        // Taken out for the call, because its output goes back into `self`.
        let Some(mut decoder) = self.decoder.take() else { return };
        decoder.push(piece, |plain| {
            self.push_plain(plain);
        });
        self.decoder = Some(decoder);
    }
}

/// Space, empty lines and a byte order mark say nothing about what follows.
fn is_lead(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n' | 0xef | 0xbb | 0xbf)
}

/// What a body is whose first byte, space aside, is `first`. An event stream begins with a field name or a comment.
fn looks_like(first: u8) -> Looks {
    match first {
        b'{' | b'[' => Looks::Json,
        b':' | b'a'..=b'z' => Looks::Events,
        _ => Looks::Opaque,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    const JSON: &str =
        r#"{"choices":[{"message":{"content":"12345"}}],"usage":{"prompt_tokens":100,"completion_tokens":40}}"#;
    const EVENTS: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"12345\"},\"finish_reason\":\"stop\"}]}\n\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":100,\"completion_tokens\":40}}\n\ndata: [DONE]\n\n";

    /// Pushes in pieces; gives back what went to the client.
    fn tapped(tap: &mut AnswerTap, body: &[u8], size: usize) -> Vec<u8> {
        let mut out = Vec::new();
        for piece in body.chunks(size) {
            let mut piece = piece.to_vec();
            let passed = tap.push(&mut piece);
            let length = passed.length;
            out.extend_from_slice(passed.held);
            out.extend_from_slice(&piece[..length]);
        }
        out.extend_from_slice(tap.finish());
        out
    }

    fn gzip(body: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(body).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn the_body_decides_what_it_is() {
        for (body, looks) in [
            (JSON.to_owned(), Looks::Json),
            (format!("\u{feff} \r\n{JSON}"), Looks::Json),
            (EVENTS.to_owned(), Looks::Events),
            (format!("\u{feff}{EVENTS}"), Looks::Events),
            (format!(": hi\n{EVENTS}"), Looks::Events),
            (format!("\n\nevent: x\n{EVENTS}"), Looks::Events),
        ] {
            for size in [1, 3, 10_000] {
                let mut tap = AnswerTap::new(Shape::OpenAi, false, None);
                assert_eq!(tapped(&mut tap, body.as_bytes(), size), body.as_bytes());
                let usage = tap.usage().unwrap();
                assert_eq!((tap.looks(), usage.input, usage.output, tap.text_bytes()), (looks, Some(100), Some(40), 5));
            }
        }
    }

    #[test]
    fn what_is_neither_passes_and_counts_as_text() {
        for (body, text_bytes, looks) in [
            ("<h1>oops</h1>", 13, Looks::Opaque),
            ("", 0, Looks::Unknown),
            ("\n\n", 0, Looks::Unknown),
            ("Not found", 9, Looks::Opaque),
        ] {
            let mut tap = AnswerTap::new(Shape::OpenAi, true, None);
            assert_eq!(tapped(&mut tap, body.as_bytes(), 4), body.as_bytes());
            assert_eq!((tap.usage(), tap.text_bytes(), tap.looks()), (None, text_bytes, looks), "{body}");
        }
    }

    #[test]
    fn a_compressed_answer_passes_as_it_is_and_is_read() {
        for body in [JSON, EVENTS] {
            let wire = gzip(body.as_bytes());
            for size in [1, 7, 10_000] {
                let mut tap = AnswerTap::new(Shape::OpenAi, true, Some(b" GZIP "));
                assert_eq!(tapped(&mut tap, &wire, size), wire);
                let usage = tap.usage().unwrap();
                assert_eq!((usage.input, usage.output, tap.text_bytes()), (Some(100), Some(40), 5));
                assert!(!tap.append_cut_event("upstream_cut", "x", &mut Vec::new()));
            }
        }
    }

    #[test]
    fn an_encoding_we_cannot_read_passes_unread() {
        for coding in ["br", "zstd", "gzip, br", "x"] {
            let mut tap = AnswerTap::new(Shape::OpenAi, true, Some(coding.as_bytes()));
            assert_eq!(tapped(&mut tap, EVENTS.as_bytes(), 10), EVENTS.as_bytes());
            assert_eq!((tap.usage(), tap.looks()), (None, Looks::Opaque));
        }
    }

    #[test]
    fn the_usage_chunk_we_asked_for_stays_here() {
        let shown =
            EVENTS.replace("data: {\"choices\":[],\"usage\":{\"prompt_tokens\":100,\"completion_tokens\":40}}\n\n", "");
        for lead in ["", "\u{feff}", "\n"] {
            for size in [1, 2, 13, 10_000] {
                let mut tap = AnswerTap::new(Shape::OpenAi, true, Some(b"identity"));
                let body = format!("{lead}{EVENTS}");
                assert_eq!(tapped(&mut tap, body.as_bytes(), size), format!("{lead}{shown}").as_bytes());
                assert_eq!(tap.usage().unwrap().output, Some(40));
                assert!(tap.is_terminated());
            }
        }
    }
}

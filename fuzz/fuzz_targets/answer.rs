//! Whole answers, plain and compressed: nothing panics, every byte passes, splits change nothing.
#![no_main]

use io::usage::{AnswerTap, Shape};
use libfuzzer_sys::fuzz_target;

const CODINGS: [Option<&[u8]>; 4] = [None, Some(b"gzip"), Some(b"deflate"), Some(b"br")];
const SHAPES: [Shape; 3] = [Shape::OpenAi, Shape::Responses, Shape::Anthropic];

fn tapped(body: &[u8], kind: u8, step: usize) -> AnswerTap {
    let shape = SHAPES[usize::from(kind >> 4) % SHAPES.len()];
    let mut tap = AnswerTap::new(shape, false, CODINGS[usize::from(kind) % CODINGS.len()]);
    for piece in body.chunks(step) {
        let mut copy = piece.to_vec();
        let passed = tap.push(&mut copy);
        assert!(passed.held.is_empty() && passed.length == piece.len());
        assert!(copy == piece);
    }
    tap
}

fuzz_target!(|data: &[u8]| {
    let &[step, kind, ref body @ ..] = data else { return };
    let (whole, split) = (tapped(body, kind, body.len().max(1)), tapped(body, kind, usize::from(step).max(1)));
    // A decoder gives up on a bomb between two pieces, so only plain answers must agree to the byte.
    if kind % 4 == 0 {
        assert_eq!(whole.usage(), split.usage());
        assert_eq!(whole.text_bytes(), split.text_bytes());
        assert_eq!(whole.looks(), split.looks());
    }
});

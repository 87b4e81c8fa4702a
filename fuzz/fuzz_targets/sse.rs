//! Event streams: nothing panics, every byte passes unless the usage chunk is hidden, splits change nothing.
#![no_main]

use io::sse::SseTap;
use io::usage::Shape;
use libfuzzer_sys::fuzz_target;

fn tapped(stream: &[u8], hide: bool, step: usize) -> (SseTap, Vec<u8>) {
    let (mut tap, mut out) = (SseTap::new(Shape::OpenAi, hide), Vec::new());
    for piece in stream.chunks(step) {
        let mut piece = piece.to_vec();
        let passed = tap.push(&mut piece);
        let length = passed.length;
        out.extend_from_slice(passed.held);
        out.extend_from_slice(&piece[..length]);
    }
    let mut cut = Vec::new();
    tap.append_cut_event("upstream_cut", "cut", &mut cut);
    assert!(cut.ends_with(b"}\n\n"));
    out.extend_from_slice(tap.finish());
    (tap, out)
}

fuzz_target!(|data: &[u8]| {
    let Some((&step, rest)) = data.split_first() else { return };
    let step = usize::from(step).max(1);
    // A choice has ended: from here on comments wait too, so the split cannot decide what is shown.
    let stream = [b"data: {\"choices\":[{\"finish_reason\":\"stop\"}]}\n\n", rest].concat();

    let (whole, out) = tapped(&stream, false, stream.len());
    assert!(out == stream);
    let (split, out) = tapped(&stream, false, step);
    assert!(out == stream);
    assert_eq!(whole.scan().usage(), split.scan().usage());
    assert_eq!(whole.is_terminated(), split.is_terminated());
    // Beyond this an event is let go although it could still be the usage chunk, and where depends on the split.
    if stream.len() < 32 * 1024 {
        assert!(tapped(&stream, true, stream.len()).1 == tapped(&stream, true, step).1);
    }
});

//! Chunked bodies: nothing panics, and the pieces they come in change neither payload nor verdict.
#![no_main]

use io::http1::{BodyDecoder, Framing};
use libfuzzer_sys::fuzz_target;

fn decode(wire: &[u8], step: usize) -> Option<(Vec<u8>, usize, bool)> {
    let (mut decoder, mut payload, mut consumed) = (BodyDecoder::new(Framing::Chunked), Vec::new(), 0);
    while consumed < wire.len() && !decoder.is_done() {
        let mut piece = wire[consumed..(consumed + step).min(wire.len())].to_vec();
        let decoded = decoder.decode(&mut piece).ok()?;
        assert!(decoded.payload <= decoded.consumed && decoded.consumed <= piece.len());
        assert!(decoded.done || decoded.consumed == piece.len());
        payload.extend_from_slice(&piece[..decoded.payload]);
        consumed += decoded.consumed;
    }
    Some((payload, consumed, decoder.is_done()))
}

fuzz_target!(|data: &[u8]| {
    let Some((&step, wire)) = data.split_first() else { return };
    assert_eq!(decode(wire, wire.len().max(1)), decode(wire, usize::from(step).max(1)));
});

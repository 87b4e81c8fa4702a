//! Heads: nothing panics, trickling changes nothing, and no accepted field can break out of its line.
#![no_main]

use io::http1::target::{append_query_without_secrets, normalise};
use io::http1::{HeadLimits, Method, RequestHead, ResponseHead};
use libfuzzer_sys::fuzz_target;

const LIMITS: HeadLimits = HeadLimits { head_bytes_max: 4096 };

fuzz_target!(|data: &[u8]| {
    let Some((&step, wire)) = data.split_first() else { return };
    let step = usize::from(step).max(1);

    let mut head = RequestHead::default();
    let whole = head.parse(wire, &LIMITS);
    if let Ok(Some(length)) = whole {
        assert!(length <= wire.len());
        for (_, name, value) in head.fields.iter(wire) {
            assert!(!name.is_empty() && !name.contains(&b':'));
            assert!(!value.iter().any(|b| matches!(b, b'\r' | b'\n' | 0)));
        }
        let mut scratch = Vec::new();
        if let Some(path) = normalise(head.path(wire), &mut scratch) {
            assert!(path.starts_with('/') && !path.contains("//") && !path.contains('%'));
        }
        let mut query = Vec::new();
        append_query_without_secrets(head.query(wire).unwrap_or_default(), &mut query);
    }
    let mut head = RequestHead::default();
    let mut trickled = Ok(None);
    for upto in (0..wire.len()).step_by(step).chain([wire.len()]) {
        trickled = head.parse(&wire[..upto], &LIMITS);
        if !matches!(trickled, Ok(None)) {
            break;
        }
    }
    match (whole, trickled) {
        // What is wrong in a head without its end may be told at once or when the end comes.
        (Err(_), Ok(None)) => {}
        // A head that is both too large and malformed may be refused for either.
        (Err(whole), Err(trickled)) if [whole.status, trickled.status].contains(&431) => {}
        (Err(whole), Err(trickled)) => assert_eq!(whole.status, trickled.status),
        (whole, trickled) => assert_eq!(whole, trickled),
    }

    let _ = ResponseHead::default().parse(wire, &LIMITS, Method::Post);
});

//! Replies of a store: nothing panics, a reply does not depend on what follows it, and no reply of a script makes the
//! arithmetic wrap.
#![no_main]

use io::redis::Reply;
use io::redis::resp::read;
use libfuzzer_sys::fuzz_target;
use shards::rate::{Algorithm, RateParams, RateSpec, Script, ScriptReply};

fuzz_target!(|data: &[u8]| {
    let mut rest = data;
    while let Ok(Some((reply, taken))) = read(rest) {
        assert!((1..=rest.len()).contains(&taken));
        assert_eq!(read(&rest[..taken]), Ok(Some((reply.clone(), taken))));
        assert!(!matches!(read(&rest[..taken - 1]), Ok(Some(_))), "it was read before its end came");
        tell(&reply);
        rest = &rest[taken..];
    }
});

/// What a gate makes of it.
fn tell(reply: &Reply) {
    let items = reply.array().unwrap_or(std::slice::from_ref(reply));
    for algorithm in [Algorithm::Gcra, Algorithm::FixedWindow, Algorithm::SlidingWindow] {
        let spec = RateSpec { amount: 600, period_ns: 60_000_000_000, burst: 600, algorithm, debt: false };
        let rate = RateParams::new(spec).expect("a plain rate");
        for script in Script::ALL {
            let words = items.iter().map(|item| item.integer().unwrap_or(-1));
            if let Some(told) = ScriptReply::of(script, words) {
                let (admitted, ..) = rate.read_script(&told, 1);
                assert_eq!(admitted, told.is_admitted());
            }
        }
    }
}

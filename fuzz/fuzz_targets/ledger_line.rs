//! Ledger lines: nothing panics, the quick reader and the full one agree, and what was read can be written again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use shards::row::{decode, decode_facts, encode};

fuzz_target!(|data: &[u8]| {
    let facts = decode_facts(data);
    let Ok(stored) = decode(data) else { return };
    let facts = facts.expect("what the full reader takes, the quick one takes");
    assert_eq!(facts, stored.row.facts());
    let mut line = Vec::new();
    encode(&stored.row, &stored.replica, &mut line);
    let again = decode(line.trim_ascii_end()).expect("what was written can be read");
    assert_eq!(again.row, stored.row);
});

//! Request bodies: nothing panics, pieces of any size give what the whole gives, what is accepted reads the same to another
//! parser, and asking for usage changes nothing else.
#![no_main]

use io::json::Inspector;
use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use std::cell::RefCell;

thread_local! {
    static INSPECTOR: RefCell<Inspector> = RefCell::default();
}

fuzz_target!(|body: &[u8]| {
    let asked = INSPECTOR.with_borrow_mut(|inspector| {
        let asked = inspector.inspect(body);
        // The first byte decides how large the pieces are.
        inspector.begin();
        let step = usize::from(body.first().copied().unwrap_or_default() % 8) + 1;
        (step..body.len()).step_by(step).for_each(|end| inspector.read(&body[..end]));
        inspector.read(body);
        assert_eq!(inspector.finish(body), asked);
        asked
    });
    let Ok(asked) = asked else { return };
    // Its parser does not nest as deep and refuses numbers beyond f64.
    let Ok(mut expected) = serde_json::from_slice::<Value>(body) else { return };
    assert_eq!(expected["model"].as_str(), Some(asked.model.as_str()));
    assert_eq!(expected["stream"].as_bool().unwrap_or(false), asked.stream);

    let mut out = Vec::new();
    asked.usage_splice.apply(body, &mut out);
    let changed: Value = serde_json::from_slice(&out).expect("asking for usage keeps a body valid");
    if expected["stream_options"].is_null() {
        expected["stream_options"] = Value::Object(Default::default());
    }
    expected["stream_options"]["include_usage"] = Value::Bool(true);
    assert_eq!(changed, expected);
});

//! Configuration files: nothing panics, a file that loads also compiles or says why, and no message shows a secret.
#![no_main]

use libfuzzer_sys::fuzz_target;
use shards::rate::Clock0;
use tokentriage::config;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match config::load_text("fuzz.yaml", text) {
        Ok(loaded) => {
            let effective = loaded.config.effective_json();
            assert!(config::load_text("effective.json", &effective).is_ok(), "{effective}");
            let _ = config::compile(&loaded, Clock0::default());
        }
        Err(errors) => {
            assert!(errors.error_count() > 0);
            let _ = errors.render(false);
        }
    }
});

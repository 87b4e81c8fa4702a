//! The scripts that count admissions. One key each, by the server's own clock; the key expires when it is full again, so
//! that nothing of ours lives for ever. They use what Redis 6.2, 7, 8 and Valkey have in common.

/// The first lines of each script: where its `now` comes from. Apart, so that a test can put a clock of its own there.
pub const NOW: &str = include_str!("now.lua");
/// `gcra` and `token_bucket`, without [`NOW`].
pub const BACKLOG: &str = include_str!("backlog.lua");
/// `fixed_window`, without [`NOW`].
pub const FIXED_WINDOW: &str = include_str!("fixed_window.lua");
/// `sliding_window`, without [`NOW`].
pub const SLIDING_WINDOW: &str = include_str!("sliding_window.lua");

/// The whole script, as it is loaded.
pub fn whole(body: &str) -> String {
    [NOW, body].concat()
}

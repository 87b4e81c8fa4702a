//! The fixed numbers of coordination, in one place. They are promises, so no config key changes them.

/// How long a gate pass may wait for the shared store, however many of its limits ask it.
pub const OPERATION_DEADLINE_NS: u64 = 5_000_000;
/// Consecutive failures after which nobody asks any more.
pub const BREAKER_FAILURES: u32 = 5;
/// How long an open breaker waits before one call probes.
pub const BREAKER_PROBE_NS: u64 = 5_000_000_000;
/// Calls that find no connection are one failure for the breaker in this time: they cost nobody 5 ms, and a server that
/// restarts within 400 ms does not open it.
pub const UNREACHABLE_COUNTS_NS: u64 = 100_000_000;
/// How long a call on the background connection may take: convergence and heartbeats wait for nobody's request.
pub const BACKGROUND_DEADLINE_NS: u64 = 1_000_000_000;
/// How long resolving, connecting, shaking hands and loading scripts may take.
pub const DIAL_NS: u64 = 1_000_000_000;
/// Between two attempts to connect while calls wait for one: a quick restart costs one verdict, a dead server 100 attempts a
/// second until the breaker opens.
pub const DIAL_AGAIN_NS: u64 = 10_000_000;
/// Between two attempts that nobody waits for; doubled after each failure.
pub const DIAL_PAUSE_NS: u64 = 100_000_000;
/// The longest such pause: a store that is back is found within a second or two.
pub const DIAL_PAUSE_MAX_NS: u64 = 1_000_000_000;

/// A scope is published at most this often.
pub const CONVERGENCE_FLUSH_NS: u64 = 1_000_000_000;
/// Without a complete round for this long, what peers burn is not known well enough.
pub const CONVERGENCE_STALE_NS: u64 = 30_000_000_000;
/// A cell without a beat for this long is shown as `departed`; it counts on.
pub const CELL_DEPARTED_US: u64 = 600 * 1_000_000;
/// Scripts in one batch; one batch is under way at a time, so an admission waits for at most this many.
pub const CONVERGENCE_BATCH: usize = 32;
/// Scripts a second at most: 10,000 scopes fit in a flush. More stretch it, which shows as lag.
pub const CONVERGENCE_SCRIPTS_PER_S: u64 = 10_000;
/// How often peers' changes are looked for. Twice a flush: own burn reaches a peer's gate within two seconds.
pub const CONVERGENCE_LOOK_NS: u64 = 500_000_000;

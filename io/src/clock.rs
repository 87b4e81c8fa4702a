//! The two clocks of the process, read once per request and passed on as plain numbers.
//!
//! Monotonic time counts nanoseconds since the process started; it never steps back. Wall time is Unix
//! milliseconds from the kernel's coarse clock (one tick, 4 ms at HZ=250, is finer than any period here).

use std::sync::OnceLock;

/// The kernel's monotonic clock when the process first asked. One per process, so that cores agree.
static ORIGIN_NS: OnceLock<u64> = OnceLock::new();

fn origin_ns() -> u64 {
    *ORIGIN_NS.get_or_init(kernel_ns)
}

/// Nanoseconds since the first call in this process. Never waits.
pub fn mono_ns() -> u64 {
    // Asked of the kernel directly: `Instant` takes seconds and nanoseconds apart and puts them together again (60
    // instructions a reading).
    let origin_ns = origin_ns(); // first: the first reading would be before it otherwise
    kernel_ns().saturating_sub(origin_ns)
}

/// [`mono_ns`] as of the kernel's last tick (1 to 10 ms ago), for deadlines that are far away: of its readings most are
/// such, and this one does not ask the processor's counter (5 ns instead of 25). Never waits.
pub fn tick_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC_COARSE).saturating_sub(origin_ns())
}

/// The kernel's monotonic clock.
fn kernel_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}

fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a live timespec; the call only writes to it. It cannot fail for a clock that exists; the
    // coarse one does since Linux 2.6.32.
    unsafe { libc::clock_gettime(clock, &mut now) };
    // The clock counts from the machine's start, so both parts are positive.
    (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
}

/// Unix time in milliseconds, from the coarse real-time clock. Never waits.
pub fn wall_ms() -> i64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a live timespec; the call only writes to it.
    let rc = unsafe { libc::clock_gettime(libc::CLOCK_REALTIME_COARSE, &mut now) };
    if rc != 0 {
        // Kernels without the coarse clock: the precise one always exists.
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        return since.map_or(0, |age| i64::try_from(age.as_millis()).unwrap_or(i64::MAX));
    }
    now.tv_sec.saturating_mul(1000).saturating_add(now.tv_nsec / 1_000_000)
}

/// Wall time minus monotonic time in nanoseconds at this instant: what aligns windows to the Unix epoch.
pub fn wall_offset_ns() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let wall_ns = since.map_or(0, |age| i64::try_from(age.as_nanos()).unwrap_or(i64::MAX));
    wall_ns.saturating_sub(i64::try_from(mono_ns()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_coarse_clock_is_within_a_tick_of_the_precise_one() {
        let precise = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as i64;
        let coarse = wall_ms();
        assert!((coarse - precise).abs() < 1_000, "coarse {coarse}, precise {precise}");
        assert!(mono_ns() <= mono_ns());
    }
}

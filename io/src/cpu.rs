//! Where a thread runs, and when: CPUs and scheduling, asked of the kernel.

use std::io;

/// The CPUs this process may run on: a container's set need not begin at 0. Empty when the kernel does not say.
pub fn allowed() -> Vec<usize> {
    // SAFETY: a zeroed cpu_set_t is an empty set; the call fills it and CPU_ISSET reads it within its size.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) != 0 {
            return Vec::new();
        }
        (0..libc::CPU_SETSIZE as usize).filter(|cpu| libc::CPU_ISSET(*cpu, &set)).collect()
    }
}

/// Keeps this thread on one CPU.
pub fn stay_on(cpu: usize) -> io::Result<()> {
    if cpu >= libc::CPU_SETSIZE as usize {
        return Err(io::ErrorKind::InvalidInput.into()); // the set has no bit for it
    }
    // SAFETY: a zeroed cpu_set_t is an empty set; the calls only read and write that set.
    let rc = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set)
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Has this thread take its turn when others pause, instead of interrupting them when it wakes. Its share of the CPU stays
/// the same.
pub fn wait_for_a_turn() -> io::Result<()> {
    // SAFETY: the parameter is read during the call. Any thread may become a batch thread of the same priority.
    let rc = unsafe {
        let same = libc::sched_param { sched_priority: 0 };
        libc::sched_setscheduler(0, libc::SCHED_BATCH, &same)
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_stays_where_it_was_put_and_a_cpu_that_is_none_is_an_error() {
        let cpu = *allowed().last().unwrap();
        std::thread::spawn(move || {
            stay_on(cpu).unwrap();
            assert_eq!(allowed(), [cpu]);
            assert!(stay_on(1_000_000).is_err());
            assert_eq!(allowed(), [cpu], "nothing changed");
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_thread_that_waits_for_its_turn_is_a_batch_thread() {
        std::thread::spawn(|| {
            wait_for_a_turn().unwrap();
            // SAFETY: a plain call that reads this thread's own policy.
            assert_eq!(unsafe { libc::sched_getscheduler(0) }, libc::SCHED_BATCH);
        })
        .join()
        .unwrap();
    }
}

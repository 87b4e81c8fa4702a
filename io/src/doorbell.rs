//! Waking a core, or a plain thread, from another thread. Rings are coalesced: a bell that already rings is free.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::runtime::Watch;

/// The outside end: rings a core's bell from any thread.
#[derive(Clone)]
pub struct Doorbell(Arc<Rope>);

struct Rope {
    rung: AtomicBool,
    /// An eventfd(2).
    wire: OwnedFd,
}

/// The core's end, waited on by an ordinary task of that core.
pub struct Bell(Arc<Rope>);

/// A bell and its rope. Ringing never blocks.
pub fn doorbell() -> io::Result<(Doorbell, Bell)> {
    // SAFETY: a plain call.
    let wire = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if wire < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: opened for us by the call above.
    let wire = unsafe { OwnedFd::from_raw_fd(wire) };
    let rope = Arc::new(Rope { rung: AtomicBool::new(false), wire });
    Ok((Doorbell(rope.clone()), Bell(rope)))
}

impl Doorbell {
    /// Wakes the core, unless it has been woken already and has not looked yet. Never waits.
    pub fn ring(&self) {
        // AcqRel: what the ringer wrote before is seen by the core after it took the flag down.
        if !self.0.rung.swap(true, Ordering::AcqRel) {
            let one = 1_u64.to_ne_bytes();
            // SAFETY: the kernel reads eight bytes during the call. It fails only where the core has wakes in plenty already.
            unsafe { libc::write(self.0.wire.as_raw_fd(), one.as_ptr().cast(), one.len()) };
        }
    }
}

impl Bell {
    /// Calls `on_ring` each time the bell rings, for ever. Runs as a task of the core.
    pub async fn listen(self, mut on_ring: impl FnMut()) -> io::Result<()> {
        let mut watch = Watch::new(self.0.wire.try_clone()?)?;
        loop {
            watch.readable().await;
            let mut count = [0_u8; 8];
            // SAFETY: the kernel writes at most eight bytes. One read takes all rings; nothing there is no harm.
            unsafe { libc::read(self.0.wire.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
            // Before the work: a ring during it is a new one. A swap, not a store: it reads the flag of whoever rang last,
            // so that the work sees what was left before that ring, which wrote nothing because ours was still there.
            self.0.rung.swap(false, Ordering::AcqRel);
            on_ring();
        }
    }
}

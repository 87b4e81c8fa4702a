//! Waking a core, or a plain thread, from another thread. Rings are coalesced: a bell that already rings is free.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The outside end: rings a core's bell from any thread.
#[derive(Clone)]
pub struct Doorbell(Arc<Rope>);

struct Rope {
    rung: AtomicBool,
    wire: UnixStream,
}

/// The core's end, waited on by an ordinary task of that core.
pub struct Bell {
    rope: Arc<Rope>,
    wire: UnixStream,
}

/// A bell and its rope. Neither end blocks.
pub fn doorbell() -> io::Result<(Doorbell, Bell)> {
    let (outside, inside) = UnixStream::pair()?;
    outside.set_nonblocking(true)?;
    inside.set_nonblocking(true)?;
    let rope = Arc::new(Rope { rung: AtomicBool::new(false), wire: outside });
    Ok((Doorbell(rope.clone()), Bell { rope, wire: inside }))
}

impl Doorbell {
    /// Wakes the core, unless it has been woken already and has not looked yet. Never waits.
    pub fn ring(&self) {
        // AcqRel: what the ringer wrote before is seen by the core after it took the flag down.
        if !self.0.rung.swap(true, Ordering::AcqRel) {
            // A full wire means that the core has wakes in plenty already.
            let _ = (&self.0.wire).write(&[1]);
        }
    }
}

impl Bell {
    /// Calls `on_ring` each time the bell rings, for ever. Runs as a task of the core.
    pub async fn listen(self, mut on_ring: impl FnMut()) -> io::Result<()> {
        let stream = monoio::net::UnixStream::from_std(self.wire.try_clone()?)?;
        loop {
            stream.readable(false).await?;
            // One small read empties the wire: at most one byte is written per take-down of the flag.
            let mut wakes = [0_u8; 16];
            match (&self.wire).read(&mut wakes) {
                Ok(0) => return Ok(()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            // Before the work: a ring during it is a new one. A swap, not a store: it reads the flag of whoever rang last,
            // so that the work sees what was left before that ring, which wrote no byte because ours was still there.
            self.rope.rung.swap(false, Ordering::AcqRel);
            on_ring();
        }
    }
}

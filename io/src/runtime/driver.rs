//! Which kernel interface a core runs on, tried from the fastest to the one that always works.
//!
//! `single_issuer + defer_taskrun` costs 31 % less CPU than the default flags; a seccomp profile, a small memlock limit or
//! an old kernel may refuse any of the steps.

use std::future::Future;
use std::rc::Rc;

use super::epoll::Reactor;
use super::executor;
use super::uring::Ring;

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
    /// epoll.
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

/// The driver of one core.
#[derive(Clone)]
pub(super) enum Driver {
    Uring(Rc<Ring>),
    Epoll(Rc<Reactor>),
}

impl Driver {
    /// Hands over what was begun, waits until something happened or until `until_ns` (monotonic; 0 does not wait,
    /// `u64::MAX` has no end), and wakes whom it concerns.
    pub(super) fn turn(&self, until_ns: u64) {
        match self {
            Driver::Uring(ring) => ring.turn(until_ns),
            Driver::Epoll(reactor) => reactor.turn(until_ns),
        }
    }

    /// Nobody waits any more.
    pub(super) fn forget_waiting(&self) {
        match self {
            Driver::Uring(ring) => ring.forget_waiting(),
            Driver::Epoll(reactor) => reactor.forget_waiting(),
        }
    }

    /// The runtime is over: nothing stays in the kernel.
    pub(super) fn end(&self) {
        match self {
            Driver::Uring(ring) => ring.end(),
            Driver::Epoll(_) => {}
        }
    }
}

/// Whether this core runs on epoll.
pub(super) fn on_epoll() -> bool {
    matches!(executor::driver(), Driver::Epoll(_))
}

/// One way to set a driver up.
struct Step {
    setup: &'static str,
    entries: u32,
    flags: fn(&mut io_uring::Builder),
    /// What the flags ask for takes Linux 6.0, and there receives may wait first or go on.
    is_single_issuer: bool,
}

const RING_ENTRIES: u32 = 1024;
/// Fits a memlock limit of 64 KiB.
const RING_ENTRIES_SMALL: u32 = 256;

/// From the fastest on; epoll comes after them.
const LADDER: [Step; 5] = [
    Step { setup: "single_issuer+defer_taskrun", entries: RING_ENTRIES, flags: defer, is_single_issuer: true },
    Step { setup: "single_issuer+coop_taskrun", entries: RING_ENTRIES, flags: cooperate, is_single_issuer: true },
    Step { setup: PLAIN, entries: RING_ENTRIES, flags: |_| (), is_single_issuer: false },
    Step {
        setup: "single_issuer+defer_taskrun, small ring",
        entries: RING_ENTRIES_SMALL,
        flags: defer,
        is_single_issuer: true,
    },
    Step { setup: "plain, small ring", entries: RING_ENTRIES_SMALL, flags: |_| (), is_single_issuer: false },
];

/// The step for kernels that know none of the flags.
pub const PLAIN: &str = "plain";

// The flag of the queue says when the kernel has work for us that it has not done.

fn defer(ring: &mut io_uring::Builder) {
    ring.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
}

fn cooperate(ring: &mut io_uring::Builder) {
    ring.setup_single_issuer().setup_coop_taskrun().setup_taskrun_flag();
}

/// Runs `main` on this thread until it ends, on the best driver that `choice` allows. Tasks it spawned and did not
/// wait for end with it.
pub fn run_core<T, Fut>(choice: DriverChoice, main: impl FnOnce(DriverInUse) -> Fut) -> Result<T, DriverError>
where
    Fut: Future<Output = T>,
{
    let mut refused = Vec::new();
    if choice != DriverChoice::Epoll {
        for step in &LADDER {
            match set_up(step) {
                Ok(driver) => {
                    let in_use = DriverInUse { kind: DriverKind::IoUring, setup: step.setup, refused };
                    return Ok(executor::run(driver, || main(in_use)));
                }
                Err(reason) => refused.push(reason),
            }
        }
        if choice == DriverChoice::IoUring {
            return Err(DriverError::IoUringRefused(refused));
        }
    }
    let reactor = Reactor::new().map_err(DriverError::Epoll)?;
    let in_use = DriverInUse { kind: DriverKind::Epoll, setup: "epoll", refused };
    Ok(executor::run(Driver::Epoll(reactor), || main(in_use)))
}

/// [`run_core`] on one step of the ladder and no other, by its name in the log: what is promised must hold on each, and a
/// machine takes the first that it knows.
pub fn run_core_on<T, Fut>(setup: &str, main: impl FnOnce(DriverInUse) -> Fut) -> Result<T, DriverError>
where
    Fut: Future<Output = T>,
{
    let step = LADDER.iter().find(|step| step.setup == setup);
    let set_up =
        step.ok_or_else(|| format!("there is no step {setup}")).and_then(|step| Ok((set_up(step)?, step.setup)));
    let (driver, setup) = set_up.map_err(|reason| DriverError::IoUringRefused(vec![reason]))?;
    let in_use = DriverInUse { kind: DriverKind::IoUring, setup, refused: Vec::new() };
    Ok(executor::run(driver, || main(in_use)))
}

/// The driver of a step, or why there is none.
fn set_up(step: &Step) -> Result<Driver, String> {
    let mut builder = io_uring::IoUring::builder();
    (step.flags)(&mut builder);
    let ring = Ring::new(&builder, step.entries, step.is_single_issuer);
    ring.map(Driver::Uring).map_err(|reason| format!("{}: {reason}", step.setup))
}

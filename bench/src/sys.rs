//! The system calls that the standard library lacks: epoll, CPU clocks, affinity, limits, signals, a network namespace.
//!
//! The only file of this crate with `unsafe`. Nothing here knows what is measured.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Readiness of many sockets, level-triggered, with timeouts of nanosecond precision.
pub struct Poller {
    epoll: OwnedFd,
    events: Vec<libc::epoll_event>,
}

/// What a socket is watched for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Interest {
    Read,
    Write,
}

impl Interest {
    fn bits(self) -> u32 {
        let bits = match self {
            Interest::Read => libc::EPOLLIN | libc::EPOLLRDHUP,
            Interest::Write => libc::EPOLLOUT,
        };
        bits.cast_unsigned()
    }
}

impl Poller {
    pub fn new() -> io::Result<Self> {
        // SAFETY: no pointers; the result is checked before it is owned.
        let fd = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: the kernel just gave us this descriptor; nobody else owns it.
        let epoll = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { epoll, events: vec![libc::epoll_event { events: 0, u64: 0 }; 1024] })
    }

    /// Starts to watch; closing the descriptor ends it.
    pub fn add(&self, fd: &impl AsRawFd, token: u64, interest: Interest) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd.as_raw_fd(), token, interest)
    }

    pub fn change(&self, fd: &impl AsRawFd, token: u64, interest: Interest) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd.as_raw_fd(), token, interest)
    }

    fn control(&self, operation: i32, fd: RawFd, token: u64, interest: Interest) -> io::Result<()> {
        let mut event = libc::epoll_event { events: interest.bits(), u64: token };
        // SAFETY: the event outlives the call, which only reads it.
        check(unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), operation, fd, &raw mut event) }).map(drop)
    }

    /// Waits until something is ready or the time is over, and gives the tokens of what is ready.
    pub fn wait(&mut self, timeout: Duration, ready: &mut Vec<u64>) -> io::Result<()> {
        ready.clear();
        let timeout = timespec(timeout);
        let room = i32::try_from(self.events.len()).unwrap_or(i32::MAX);
        // SAFETY: `events` has room for `room` events and outlives the call; no signal mask is given.
        let count = check(unsafe {
            libc::epoll_pwait2(
                self.epoll.as_raw_fd(),
                self.events.as_mut_ptr(),
                room,
                &raw const timeout,
                std::ptr::null(),
            )
        });
        let count = match count {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            other => other?,
        };
        ready.extend(self.events[..usize::try_from(count).unwrap_or(0)].iter().map(|event| event.u64));
        Ok(())
    }
}

fn check(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// CPU time a process has used so far, all its threads, the ended ones too, in ns. `None` when it is gone.
pub fn process_cpu_ns(pid: u32) -> Option<u64> {
    let mut clock: libc::clockid_t = 0;
    // SAFETY: the pointer is to a live integer that the call writes.
    let failed = unsafe { libc::clock_getcpuclockid(i32::try_from(pid).ok()?, &raw mut clock) };
    if failed != 0 { None } else { clock_ns(clock) }
}

fn clock_ns(clock: libc::clockid_t) -> Option<u64> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a live struct that the call writes.
    let failed = unsafe { libc::clock_gettime(clock, &raw mut time) };
    if failed != 0 {
        return None;
    }
    Some(u64::try_from(time.tv_sec).ok()? * 1_000_000_000 + u64::try_from(time.tv_nsec).ok()?)
}

/// The unit of the kernel's tables of CPU time.
pub fn tick_ns() -> u64 {
    // SAFETY: no pointers.
    let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    1_000_000_000 / u64::try_from(per_second).ok().filter(|count| *count > 0).unwrap_or(100)
}

/// The CPUs this process may use.
pub fn usable_cpus() -> Vec<usize> {
    // SAFETY: a cpu_set_t is plain bits; all zero is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set outlives the call, and its size is passed.
    let failed = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) };
    if failed != 0 {
        return vec![0];
    }
    // SAFETY: every index is below CPU_SETSIZE.
    (0..libc::CPU_SETSIZE.cast_unsigned() as usize).filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &set) }).collect()
}

/// Keeps the calling thread, and what it starts, on these CPUs. Refusal is reported, not fatal.
pub fn pin_this_thread(cpus: &[usize]) -> io::Result<()> {
    let set = cpu_set(cpus);
    // SAFETY: the set outlives the call, and its size is passed.
    check(unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) }).map(drop)
}

fn cpu_set(cpus: &[usize]) -> libc::cpu_set_t {
    // SAFETY: a cpu_set_t is plain bits; all zero is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for cpu in cpus.iter().filter(|cpu| **cpu < libc::CPU_SETSIZE.cast_unsigned() as usize) {
        // SAFETY: the index is below CPU_SETSIZE.
        unsafe { libc::CPU_SET(*cpu, &mut set) };
    }
    set
}

/// Lets timers of the calling thread fire on time: the kernel's default is up to 50 us late.
pub fn tighten_timers() {
    // SAFETY: no pointers. Where it is refused, timers are a little later, and equally so for every target.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_u64) };
}

/// Lets every other thread on the calling thread's CPUs go first, at once, whenever it has something to do.
pub fn step_back() {
    let priority = libc::sched_param { sched_priority: 0 };
    // SAFETY: the struct outlives the call, which only reads it. Where it is refused, the report's `direct` cells show.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const priority) };
}

/// Makes a child run on these CPUs, with all descriptors we may open, and end when this process does.
pub fn prepare_child(command: &mut Command, cpus: &[usize]) {
    let set = cpu_set(cpus);
    // SAFETY: between fork and exec only async-signal-safe system calls are made, on values copied into the closure.
    unsafe {
        command.pre_exec(move || {
            check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM))?;
            check(libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set))?;
            Ok(())
        });
    }
}

/// Lets this process open as many descriptors as it is allowed to; gives the number.
pub fn raise_descriptor_limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer is to a live struct; the calls read or write only that.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) != 0 {
            return 1024;
        }
        limit.rlim_cur = limit.rlim_max;
        libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
    }
    limit.rlim_cur
}

/// Sends a signal to a process we started.
pub fn signal(pid: u32, signal: i32) {
    let Ok(pid) = i32::try_from(pid) else { return };
    // SAFETY: no pointers. A process that is gone is no error worth hearing of.
    unsafe { libc::kill(pid, signal) };
}

/// The signal that asked this process to stop; 0 as long as none has.
static STOP_SIGNAL: AtomicI32 = AtomicI32::new(0);
/// When the first one came, in ns of the monotonic clock; 0 as long as none has. Set before all else: it tells the first from
/// the second, also where both are handled at once.
static STOPPED_NS: AtomicU64 = AtomicU64::new(0);
/// An eventfd that becomes readable then; -1 as long as no signal is caught.
static STOP_EVENT: AtomicI32 = AtomicI32::new(-1);

/// `timeout` and some supervisors send one stop as two signals, to the process and to its group.
const ONE_STOP_NS: u64 = 100_000_000;

extern "C" fn on_stop(signal: libc::c_int) {
    // SAFETY: the location of the calling thread's errno is always valid.
    let errno = unsafe { *libc::__errno_location() };
    let now = clock_ns(libc::CLOCK_MONOTONIC).unwrap_or(0).max(1);
    // SeqCst, as it happens at most a few times in the life of a process.
    match STOPPED_NS.compare_exchange(0, now, Ordering::SeqCst, Ordering::SeqCst) {
        Ok(_) => {
            STOP_SIGNAL.store(signal, Ordering::SeqCst);
            let one = 1_u64;
            // SAFETY: the pointer is to eight live bytes, which is what an eventfd takes; write may be called in a handler.
            unsafe { libc::write(STOP_EVENT.load(Ordering::SeqCst), (&raw const one).cast(), size_of::<u64>()) };
        }
        Err(first) if now.saturating_sub(first) > ONE_STOP_NS => {
            // SAFETY: no pointers; it may be called in a handler. Children end because this process does.
            unsafe { libc::_exit(128 + signal) };
        }
        Err(_) => {}
    }
    // SAFETY: as above. The interrupted code must not see our errno.
    unsafe { *libc::__errno_location() = errno };
}

/// From now on SIGINT and SIGTERM only ask for a stop, and end the process when they come again. What was caught is not
/// inherited by programs that this process starts.
pub fn catch_stop_signals() -> io::Result<()> {
    if STOP_EVENT.load(Ordering::SeqCst) >= 0 {
        return Ok(());
    }
    // SAFETY: no pointers; the result is checked.
    let event = check(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
    STOP_EVENT.store(event, Ordering::SeqCst); // it stays open as long as the process lives
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: a sigaction is plain data; all zero is the empty mask and no flags.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = on_stop as extern "C" fn(libc::c_int) as libc::sighandler_t;
        action.sa_flags = libc::SA_RESTART;
        // SAFETY: the struct outlives the call; the handler calls only what may be called in one.
        check(unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) })?;
    }
    Ok(())
}

/// The signal that asked for a stop.
pub fn stop_signal() -> Option<i32> {
    // Relaxed: the load looks at it in each turn, and a turn later is soon enough.
    Some(STOP_SIGNAL.load(Ordering::Relaxed)).filter(|signal| *signal != 0)
}

/// Sleeps, but not beyond a stop that is asked for.
pub fn sleep_until_stop(duration: Duration) {
    let began = Instant::now();
    while stop_signal().is_none() {
        let left = duration.saturating_sub(began.elapsed());
        if left.is_zero() {
            return;
        }
        let mut watched = libc::pollfd { fd: STOP_EVENT.load(Ordering::SeqCst), events: libc::POLLIN, revents: 0 };
        let timeout = timespec(left);
        // SAFETY: both structs outlive the call; a descriptor of -1 is not watched; no signal mask is given. However it
        // ends, the loop looks at the clock and at the signal.
        unsafe { libc::ppoll(&raw mut watched, 1, &raw const timeout, std::ptr::null()) };
    }
}

fn timespec(duration: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}

/// Whether a process has this number, of whatever user.
pub fn is_alive(pid: u32) -> bool {
    let Ok(pid) = i32::try_from(pid) else { return false };
    // SAFETY: no pointers; signal 0 only asks.
    let asked = check(unsafe { libc::kill(pid, 0) });
    !asked.is_err_and(|error| error.raw_os_error() == Some(libc::ESRCH))
}

/// The user whose rights this process has.
pub fn user() -> u32 {
    // SAFETY: no pointers, and it cannot fail.
    unsafe { libc::geteuid() }
}

/// Moves this process into a network of its own that has nothing but a loopback interface. Must be called before any
/// thread is started.
pub fn enter_private_network() -> io::Result<()> {
    // SAFETY: no pointers; only the calling thread is moved, and there is no other yet.
    check(unsafe { libc::unshare(libc::CLONE_NEWNET) })?;
    let socket = std::net::UdpSocket::bind("0.0.0.0:0")?;
    // SAFETY: an ifreq is plain data; all zero is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_flags = i16::try_from(libc::IFF_UP | libc::IFF_RUNNING).unwrap_or(i16::MAX);
    // SAFETY: the request is a complete ifreq that outlives the call.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw mut request) }).map(drop)
}

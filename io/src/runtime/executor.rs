//! The loop of a core: polls the tasks that were woken, rings the alarms that are due, hands over what was begun and
//! waits for the kernel.
//!
//! A turn polls every task that was ready when it began, once. Whom they wake waits for the next turn, after the driver
//! has looked for events: a task that wakes itself again and again keeps nobody waiting.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use async_task::Runnable;

use super::alarm;
use super::driver::Driver;
use crate::clock;

thread_local! {
    /// The tasks of this core that were woken.
    static READY: RefCell<VecDeque<Runnable>> = const { RefCell::new(VecDeque::new()) };
    /// The driver of the runtime that runs on this thread.
    static DRIVER: RefCell<Option<Driver>> = const { RefCell::new(None) };
}

/// The driver of this core. Only inside a runtime.
pub(super) fn driver() -> Driver {
    DRIVER.with_borrow(Clone::clone).expect("sockets and alarms are made inside a runtime")
}

/// Begins a task of this core. Never waits; the task is polled in the next turn.
pub(super) fn start(task: impl Future<Output = ()> + 'static) {
    // Wakers of it stay on this thread, and a poll on another one would panic instead of racing.
    let (runnable, task) =
        async_task::spawn_local(task, |runnable| READY.with_borrow_mut(|ready| ready.push_back(runnable)));
    runnable.schedule();
    task.detach();
}

/// Runs what `main` makes, and the tasks it spawns, until that ends. Tasks that wait for something then are dropped, as
/// far as nobody but those they wait for knows of them.
pub(super) fn run<T, Fut: Future<Output = T>>(driver: Driver, main: impl FnOnce() -> Fut) -> T {
    assert!(DRIVER.replace(Some(driver.clone())).is_none(), "a thread has one runtime at a time");
    let _ended = Ended;
    turns(&driver, main())
}

/// Takes the runtime down, also when a task's panic ends the thread.
struct Ended;

impl Drop for Ended {
    fn drop(&mut self) {
        let Some(driver) = DRIVER.with_borrow(Clone::clone) else { return };
        alarm::forget_all();
        driver.forget_waiting();
        // A task whose last waker is gone comes here to be dropped; what it held may wake others.
        while let Some(runnable) = READY.with_borrow_mut(VecDeque::pop_front) {
            drop(runnable);
        }
        driver.end();
        DRIVER.set(None);
    }
}

fn turns<T>(driver: &Driver, main: impl Future<Output = T>) -> T {
    let mut main = pin!(main);
    let woken = Arc::new(MainWaker(AtomicBool::new(true)));
    let waker = Waker::from(woken.clone());
    loop {
        // Relaxed, here and below: set and read on this thread.
        if woken.0.swap(false, Ordering::Relaxed)
            && let Poll::Ready(result) = main.as_mut().poll(&mut Context::from_waker(&waker))
        {
            return result;
        }
        for _ in 0..READY.with_borrow(VecDeque::len) {
            let Some(runnable) = READY.with_borrow_mut(VecDeque::pop_front) else { break };
            runnable.run();
        }
        let is_ready = || woken.0.load(Ordering::Relaxed) || !READY.with_borrow(VecDeque::is_empty);
        driver.turn(if is_ready() { 0 } else { alarm::next_ns() });
        alarm::ring(clock::mono_ns());
    }
}

struct MainWaker(AtomicBool);

impl Wake for MainWaker {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

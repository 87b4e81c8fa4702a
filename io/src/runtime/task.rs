//! Tasks of one core, and events between them.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use pin_project_lite::pin_project;

use super::driver::on_epoll;
use super::executor;

/// Runs a task on this core. A panic ends the task alone: it is caught, told to `on_panic`, and the core lives on.
/// Whatever the task held is given back by `Drop` while it unwinds.
pub fn spawn(task: impl Future<Output = ()> + 'static, on_panic: impl FnOnce() + 'static) {
    executor::start(Guarded { task, on_panic: Some(on_panic) });
}

pin_project! {
    /// A task whose panics are caught. A type of its own, because an `async` block would hold the task twice: where it
    /// came from and where it is polled (128 bytes of an idle connection's).
    struct Guarded<T, P> {
        #[pin]
        task: T,
        on_panic: Option<P>,
    }
}

impl<T: Future<Output = ()>, P: FnOnce()> Future for Guarded<T, P> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        catch_unwind(AssertUnwindSafe(|| this.task.poll(cx))).unwrap_or_else(|_| {
            if let Some(on_panic) = this.on_panic.take() {
                on_panic();
            }
            Poll::Ready(())
        })
    }
}

/// Goes on once others had their turn, for a task that never seems to wait: on epoll a peer that sends as fast as we
/// read keeps a socket readable. Under io_uring a task goes on with what came in this turn, at most one buffer, and then
/// waits for the next, so that this returns at once.
pub async fn let_others_run() {
    let mut has_waited = !on_epoll();
    poll_fn(|cx| {
        if std::mem::replace(&mut has_waited, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref(); // runs in the next turn
        Poll::Pending
    })
    .await;
}

/// A one-way switch that many tasks of one core may wait for, such as "this core drains".
#[derive(Default)]
pub struct Event {
    set: Cell<bool>,
    waiting: RefCell<Vec<Option<Waker>>>,
    free: RefCell<Vec<usize>>,
}

impl Event {
    /// Whether the event has happened.
    pub fn is_set(&self) -> bool {
        self.set.get()
    }

    /// Makes the event happen and wakes everyone who waits.
    pub fn set(&self) {
        self.set.set(true);
        for waker in self.waiting.borrow_mut().iter_mut().filter_map(Option::take) {
            waker.wake();
        }
    }

    /// A place in the waiting room; giving it up costs nothing.
    pub fn waiter(&self) -> Waiter<'_> {
        let seat = self.free.borrow_mut().pop().unwrap_or_else(|| {
            let mut waiting = self.waiting.borrow_mut();
            waiting.push(None);
            waiting.len() - 1
        });
        Waiter { event: self, seat }
    }

    /// Waits until the event has happened.
    pub async fn wait(&self) {
        let waiter = self.waiter();
        poll_fn(|cx| waiter.poll(cx)).await;
    }
}

/// One waiting task's seat at an [`Event`].
pub struct Waiter<'e> {
    event: &'e Event,
    seat: usize,
}

impl Waiter<'_> {
    /// Ready once the event has happened.
    pub fn poll(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.event.set.get() {
            return Poll::Ready(());
        }
        let mut waiting = self.event.waiting.borrow_mut();
        match &mut waiting[self.seat] {
            Some(waker) => waker.clone_from(cx.waker()),
            empty => *empty = Some(cx.waker().clone()),
        }
        Poll::Pending
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.event.waiting.borrow_mut()[self.seat] = None;
        self.event.free.borrow_mut().push(self.seat);
    }
}

//! One lazy timer per waiter.
//!
//! Arming and dropping a timer costs about 80 ns, and nearly every wait ends before its deadline. An alarm
//! therefore keeps the timer it armed last: when a later deadline is asked for, the old timer simply fires early
//! and is moved then. A request that meets its deadlines touches the timer wheel once or not at all.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::clock;

/// A timer that is armed as rarely as possible. Deadlines are monotonic nanoseconds ([`clock::mono_ns`]).
#[derive(Default)]
pub struct Alarm {
    sleep: Option<Pin<Box<monoio::time::Sleep>>>,
    armed_for_ns: u64,
}

impl Alarm {
    /// Ready once `deadline_ns` has passed by the clock; otherwise wakes the task then, at most 1 ms late
    /// (the wheel's grain).
    pub fn poll_at(&mut self, cx: &mut Context<'_>, deadline_ns: u64) -> Poll<()> {
        if deadline_ns == u64::MAX {
            return Poll::Pending;
        }
        if self.sleep.is_none() || self.armed_for_ns > deadline_ns {
            self.arm(deadline_ns);
        }
        loop {
            let sleep = self.sleep.as_mut().expect("armed three lines up");
            if sleep.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            if clock::mono_ns() >= deadline_ns {
                self.sleep = None;
                return Poll::Ready(());
            }
            self.arm(deadline_ns);
        }
    }

    fn arm(&mut self, deadline_ns: u64) {
        let at = monoio::time::Instant::from_std(clock::instant_at(deadline_ns));
        match self.sleep.as_mut() {
            Some(sleep) => sleep.as_mut().reset(at),
            None => self.sleep = Some(Box::pin(monoio::time::sleep_until(at))),
        }
        self.armed_for_ns = deadline_ns;
    }
}

/// Waits for `duration`, at most 1 ms longer.
pub async fn sleep(duration: Duration) {
    let mut alarm = Alarm::default();
    let deadline_ns = clock::mono_ns().saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX));
    poll_fn(|cx| alarm.poll_at(cx, deadline_ns)).await;
}

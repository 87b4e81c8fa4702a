//! A data core's desk at the shared store: it takes calls, hands them to the coordinator, and waits for each at most as
//! long as its gate pass has left.
//!
//! The core never waits for a socket here: a call is an item in a ring, an answer is an item in another, and the doorbell
//! says that there are some. A request that ends meanwhile gives its ticket up by `Drop`.
//!
//! Calls of one turn of the core go out together: the coordinator is woken when everybody who was ready has asked.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};

use io::clock;
use io::errand::Asker;
use io::runtime::Alarm;
use shards::coordinate::breaker::Pass;
use shards::coordinate::deadline::Budget;
use shards::coordinate::eval::EvalCall;
use shards::coordinate::ticket::{TicketId, Tickets};
use shards::gate::{BeforeBody, Passed, Step, Verdict};
use shards::plan::{Armed, NodePlan};
use shards::rate::ScriptReply;
use shards::suspend::Reason;
use shards::units::{MonoNs, Now};

use super::Coordination;

/// How long a call may wait for others of its turn, in ns: a twenty-fifth of its deadline.
const GATHER_NS: u64 = 200_000;

/// What a store answers, or why there is no answer.
pub type Outcome = Result<ScriptReply, Reason>;

/// A call on its way to the coordinator.
pub struct Question {
    /// Whom the answer is for.
    pub ticket: TicketId,
    /// The call.
    pub call: EvalCall,
    /// Until when anybody waits.
    pub deadline: MonoNs,
}

/// An outcome on its way back.
pub struct Answer {
    /// Whom it is for.
    pub ticket: TicketId,
    /// What it says.
    pub outcome: Outcome,
}

/// One core's.
pub struct Desk {
    coordination: Arc<Coordination>,
    asker: RefCell<Asker<Question, Answer>>,
    tickets: RefCell<Tickets<Outcome>>,
    /// Since when calls lie in the ring that the coordinator was not woken for.
    unrung: Cell<Option<MonoNs>>,
    ringer: Cell<Option<Waker>>,
}

impl Desk {
    /// Made on the core's own thread.
    pub fn new(coordination: Arc<Coordination>, asker: Asker<Question, Answer>) -> Self {
        Desk {
            coordination,
            asker: RefCell::new(asker),
            tickets: RefCell::default(),
            unrung: Cell::default(),
            ringer: Cell::default(),
        }
    }

    /// Wakes the coordinator once per turn of the core. Runs as a task of the core, for ever.
    pub async fn ring(&self) -> Infallible {
        poll_fn(|cx| {
            if self.unrung.take().is_some() {
                self.asker.borrow().ring();
            }
            self.ringer.set(Some(cx.waker().clone()));
            Poll::Pending
        })
        .await
    }

    /// Gate A of a plan that asks the store. Waits for the store at most 5 ms in all.
    pub async fn before_body(&self, plan: &NodePlan, now: Now, n_live: u32, passed: &mut Passed) -> Verdict {
        let mut budget = None;
        let mut gate = BeforeBody::new(plan, now, n_live);
        let mut step = gate.walk(passed);
        loop {
            match step {
                Step::Done(verdict) => return verdict,
                Step::Ask(call) => {
                    let budget = *budget.get_or_insert_with(|| Budget::starting(mono()));
                    let outcome = self.eval(call, budget).await;
                    step = gate.answered(outcome, passed);
                }
            }
        }
    }

    /// How a limit stands in the store, without counting; `None` for one that is not counted there. The budget starts with
    /// the first that is.
    pub async fn look(&self, armed: &Armed, budget: &mut Option<Budget>) -> Option<Outcome> {
        let (scope, rate) = (armed.shared?, armed.limit.rate.as_ref()?);
        let budget = *budget.get_or_insert_with(|| Budget::starting(mono()));
        Some(self.eval(EvalCall::new(scope, rate, 0), budget).await)
    }

    /// Makes a call, unless the breaker is open or the time is over.
    async fn eval(&self, call: EvalCall, budget: Budget) -> Outcome {
        let now = mono();
        if budget.is_over(now) {
            return Err(Reason::RedisDeadlineExceeded);
        }
        let pass = self.coordination.breaker.pass(now, self.coordination.is_reachable());
        if pass == Pass::Open {
            return Err(Reason::RedisBreakerOpen);
        }
        let Some(asking) = self.ask(call, budget, now) else {
            // More calls out than there are tickets, or a coordinator that does not come round: it will not be in time.
            if pass == Pass::Probe {
                let _ = self.coordination.breaker.record(Err(Reason::RedisDeadlineExceeded), now);
            }
            return Err(Reason::RedisDeadlineExceeded);
        };
        let mut alarm = Alarm::default();
        poll_fn(|cx| {
            if let Some(outcome) = asking.take(cx.waker()) {
                return Poll::Ready(outcome);
            }
            if alarm.poll_at(cx, budget.deadline().0).is_pending() {
                return Poll::Pending;
            }
            // What has come is heard before the miss is declared.
            self.collect();
            Poll::Ready(asking.take(cx.waker()).unwrap_or_else(|| {
                // The coordinator counts it; until then the panel says what this verdict says.
                self.coordination.breaker.note(Reason::RedisDeadlineExceeded);
                Err(Reason::RedisDeadlineExceeded)
            }))
        })
        .await
    }

    fn ask(&self, call: EvalCall, budget: Budget, now: MonoNs) -> Option<Asking<'_>> {
        let ticket = self.tickets.borrow_mut().issue()?;
        let asking = Asking { desk: self, ticket };
        let question = Question { ticket, call, deadline: budget.deadline() };
        let is_asked = self.asker.borrow_mut().ask(question);
        self.ring_soon(now);
        is_asked.then_some(asking)
    }

    /// Behind everybody who is ready now, who may have something to ask as well; at once when that takes long.
    fn ring_soon(&self, now: MonoNs) {
        match self.unrung.get() {
            None => {
                self.unrung.set(Some(now));
                // None when it is in line already.
                self.ringer.take().into_iter().for_each(Waker::wake);
            }
            Some(since) if now.0.saturating_sub(since.0) < GATHER_NS => {}
            Some(_) => {
                self.unrung.set(None);
                self.asker.borrow().ring();
            }
        }
    }

    /// Takes the answers that have come and wakes whoever waits for them. Called when the core's doorbell rang.
    pub fn collect(&self) {
        let (mut asker, mut tickets) = (self.asker.borrow_mut(), self.tickets.borrow_mut());
        let mut late = 0;
        while let Some(Answer { ticket, outcome }) = asker.next_answer() {
            // That the store said nothing is told as well, and is no reply.
            let (before, is_reply) = (tickets.late(), outcome.is_ok());
            // Waking only puts a task in line: nobody looks at the tickets before this is over.
            if let Some(waker) = tickets.answer(ticket, outcome) {
                waker.wake();
            }
            late += if is_reply { tickets.late() - before } else { 0 };
        }
        self.coordination.late_replies(late);
    }
}

/// A call that is out. Dropping it gives its ticket up.
struct Asking<'d> {
    desk: &'d Desk,
    ticket: TicketId,
}

impl Asking<'_> {
    fn take(&self, waker: &Waker) -> Option<Outcome> {
        self.desk.tickets.borrow_mut().take(self.ticket, waker)
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.desk.tickets.borrow_mut().give_up(self.ticket);
    }
}

fn mono() -> MonoNs {
    MonoNs(clock::mono_ns())
}

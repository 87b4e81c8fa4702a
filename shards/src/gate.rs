//! The two decisions. Gate A ([`before_body`]) runs before the body is read and knows the endpoint; gate B
//! ([`after_parse`]) runs when model and prompt are known.
//!
//! A gate walks the limits of a [`NodePlan`](crate::plan::NodePlan) in order and stops at the first enforcing one that
//! is over. Neither waits, hashes, reads a clock or allocates on the way to an admission. Where a limit is counted
//! in the shared store, gate A stops at it ([`BeforeBody`]) and goes on with the store's answer, or with the reason why there
//! is none. What was taken is in [`Held`]
//! and comes back on every way out. `request.rs` is the caller.

mod after_parse;
mod before_body;
mod held;

use std::rc::Rc;
use std::sync::Arc;

pub use after_parse::{Ask, after_failover, after_parse};
pub use before_body::{BeforeBody, Step, before_body};
pub use held::Held;
use smallvec::SmallVec;

use crate::limit::{Limit, Store};
use crate::plan::Armed;
use crate::rate::{RateParams, Standing};
use crate::refusal::Refusal;
use crate::suspend::{Reason, Suspensions};

/// A refusal is a normal answer.
#[derive(Debug)]
#[must_use = "an ignored verdict admits everyone"]
pub enum Verdict {
    Admitted,
    /// [`Passed::held`] is empty again: leases and reserves taken on the way are returned. An rpm count stays.
    Refused(Box<Refusal>),
}

/// What the gates must know of the fleet, read once per request. The default is a node on its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FleetSeen {
    /// Why the number of live replicas cannot be relied on.
    pub share_suspended: Option<Reason>,
    /// Burn is exchanged with peers.
    pub converging: Option<Converging>,
}

/// How the exchange of burn stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Converging {
    /// Why peers' burn cannot be relied on.
    pub suspended: Option<Reason>,
}

/// What both gates leave behind for one request. Reused from request to request: [`Passed::clear`].
#[derive(Debug, Default)]
pub struct Passed {
    pub held: Held,
    /// Shadow limits that would have refused. Also filled when another limit refused.
    pub shadow: SmallVec<[Arc<str>; 2]>,
    pub suspended: Suspensions,
    /// Enforcing rate limits as they stood after this request was counted, for the response headers.
    pub facts: SmallVec<[RateFact; 6]>,
    /// The largest tpm reserve held, for the row.
    pub reserved_tokens: u64,
    /// Not left behind but brought along: set before gate A.
    pub fleet: FleetSeen,
}

impl Passed {
    /// Ready for the next request. Whatever is still held goes back.
    pub fn clear(&mut self) {
        self.held.give_back();
        self.shadow.clear();
        self.suspended.clear();
        self.facts.clear();
        self.reserved_tokens = 0;
        self.fleet = FleetSeen::default();
    }

    /// A share of a number that may be wrong: enforced all the same, and disclosed.
    #[inline]
    fn note_share(&mut self, limit: &Limit) {
        if let Some(reason) = self.fleet.share_suspended.filter(|_| limit.store == Store::Share) {
            self.suspended.push((limit.id.clone(), reason));
        }
    }

    /// Callers are told about limits that can refuse them; a shadow limit must not slow anyone down.
    #[inline]
    fn note(&mut self, armed: &Rc<Armed>, rate: &RateParams, standing: Standing) {
        if armed.limit.is_enforcing() {
            self.facts.push(RateFact::new(armed, rate, standing));
        }
    }

    #[cold]
    fn refuse(&mut self, mut refusal: Box<Refusal>) -> Verdict {
        self.held.give_back();
        self.reserved_tokens = 0;
        if !self.suspended.is_empty() {
            refusal.suspended = self.suspended.clone(); // a refusal is made with none, and copying none takes a while
        }
        Verdict::Refused(refusal)
    }
}

/// What one limit says. Two words, so that an admission goes from limit to limit in registers.
enum Answer {
    Under,
    OverInShadow,
    Over(Box<Refusal>),
}

impl Answer {
    /// The limit is over; only an enforcing one has anything to tell a caller.
    #[cold]
    fn over(armed: &Armed, refusal: impl FnOnce() -> Refusal) -> Answer {
        if armed.limit.is_enforcing() { Answer::Over(Box::new(refusal())) } else { Answer::OverInShadow }
    }
}

/// The walk of both gates: the first enforcing limit that is over answers, shadow limits that are over are noted, and
/// amounts are never compared.
#[inline]
fn walk(armed: &[Rc<Armed>], passed: &mut Passed, mut ask: impl FnMut(&Rc<Armed>, &mut Passed) -> Answer) -> Verdict {
    for armed in armed {
        let answer = ask(armed, passed);
        if let Some(refused) = conclude(armed, answer, passed) {
            return refused;
        }
    }
    Verdict::Admitted
}

/// What one limit's answer means for the walk; `None`: it goes on.
#[inline(always)]
fn conclude(armed: &Armed, answer: Answer, passed: &mut Passed) -> Option<Verdict> {
    match answer {
        Answer::Under => None,
        Answer::Over(refusal) => Some(passed.refuse(refusal)),
        Answer::OverInShadow => {
            passed.shadow.push(armed.limit.id.clone());
            None
        }
    }
}

/// One rate limit as a caller may see it. Frozen when it was counted: headers and row show this, never a later look.
#[derive(Clone, Debug)]
pub struct RateFact {
    armed: Rc<Armed>,
    /// The amount as enforced now: this replica's share under `store: share`.
    pub limit_amount: u64,
    pub burst: u64,
    pub remaining: u64,
    /// Until everything is there again.
    pub reset_ms: u64,
    /// Until one unit more than `remaining`; 0 when nothing is missing.
    pub next_ms: u64,
}

impl RateFact {
    /// Rounds up, so that nobody is told to come too early.
    #[inline]
    pub fn new(armed: &Rc<Armed>, rate: &RateParams, standing: Standing) -> RateFact {
        RateFact {
            armed: armed.clone(),
            limit_amount: rate.amount(),
            burst: rate.burst(),
            remaining: standing.remaining,
            reset_ms: standing.reset_ns.div_ceil(1_000_000),
            next_ms: standing.next_ns.div_ceil(1_000_000),
        }
    }

    pub fn limit(&self) -> &Limit {
        &self.armed.limit
    }

    /// As `RateLimit-Policy` spells it at its full amount.
    pub(crate) fn policy(&self) -> &[u8] {
        &self.armed.policy
    }
}

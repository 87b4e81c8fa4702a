//! One rate at one instant: the interface every algorithm's arithmetic has, and the choice between them.
//!
//! What does not depend on the word is worked out when the moment is made, once a call and not once a lost race.
//! [`crate::cell`] asks it inside its loop, [`super::step`] once.

use super::fixed_window::FixedNow;
use super::gcra::BacklogNow;
use super::sliding_window::SlidingNow;
use super::{Retry, Standing, Ticket};

/// Answers about any word, at the instant the moment was made for.
pub(crate) trait Moment {
    /// Whether `cost`, which is not zero, is admitted, and the word after that: the same one when there is nothing to
    /// write.
    fn take(&self, word: u64, cost: u64) -> (bool, u64);

    /// When the `cost` that was refused would be admitted.
    fn retry(&self, word: u64, cost: u64) -> Retry;

    fn standing(&self, word: u64) -> Standing;

    /// The word after `units`, which is not zero, were taken whatever is left. What does not fit the cell's bound is
    /// forgotten (*over-admits* later, by that excess).
    fn debit(&self, word: u64, units: u64) -> u64;

    /// The word after `refund` tokens of a reserve were given back: never more than was reserved, never to before
    /// now.
    fn credit(&self, word: u64, ticket: &Ticket, refund: u64) -> u64;
}

/// The [`Moment`] of whichever algorithm a rate names.
pub(crate) enum RateNow<'p> {
    Backlog(BacklogNow<'p>),
    FixedWindow(FixedNow<'p>),
    SlidingWindow(SlidingNow<'p>),
}

impl Moment for RateNow<'_> {
    #[inline]
    fn take(&self, word: u64, cost: u64) -> (bool, u64) {
        match self {
            RateNow::Backlog(moment) => moment.take(word, cost),
            RateNow::FixedWindow(moment) => moment.take(word, cost),
            RateNow::SlidingWindow(moment) => moment.take(word, cost),
        }
    }

    #[inline]
    fn retry(&self, word: u64, cost: u64) -> Retry {
        match self {
            RateNow::Backlog(moment) => moment.retry(word, cost),
            RateNow::FixedWindow(moment) => moment.retry(word, cost),
            RateNow::SlidingWindow(moment) => moment.retry(word, cost),
        }
    }

    #[inline]
    fn standing(&self, word: u64) -> Standing {
        match self {
            RateNow::Backlog(moment) => moment.standing(word),
            RateNow::FixedWindow(moment) => moment.standing(word),
            RateNow::SlidingWindow(moment) => moment.standing(word),
        }
    }

    #[inline]
    fn debit(&self, word: u64, units: u64) -> u64 {
        match self {
            RateNow::Backlog(moment) => moment.debit(word, units),
            RateNow::FixedWindow(moment) => moment.debit(word, units),
            RateNow::SlidingWindow(moment) => moment.debit(word, units),
        }
    }

    #[inline]
    fn credit(&self, word: u64, ticket: &Ticket, refund: u64) -> u64 {
        match self {
            RateNow::Backlog(moment) => moment.credit(word, ticket, refund),
            RateNow::FixedWindow(moment) => moment.credit(word, ticket, refund),
            RateNow::SlidingWindow(moment) => moment.credit(word, ticket, refund),
        }
    }
}

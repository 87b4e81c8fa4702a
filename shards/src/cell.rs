//! The cell: one scope's count against one rate. All of it is one 64-bit word, and every change to it goes
//! through one compare-and-swap loop, `Cell::swap` (whose first turn [`Cell::acquire`] takes inline).
//!
//! Within this replica a rate is never passed: whoever loses a race steps again from the winner's word, with the
//! `now` it came with. What a caller is told is read off the very word that was swapped in, so no two callers
//! are told of the same last unit. Lock-free: a step is repeated only because another one succeeded.
//!
//! Decides nothing about limits or nodes: the gate passes the parameters in, at every call, because a reload or
//! `store: share` changes them between two requests while the word stays. The arithmetic is [`crate::rate`]'s.

use crate::rate::{Moment, RateNow, RateParams, RestRule, Retry, Standing, Ticket};
use crate::units::MonoNs;
use crossbeam_utils::CachePadded;

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, Ordering};

/// The word is the whole state and nothing else is published through it, so every access is relaxed: all
/// changes to one word have one order anyway, and that is all a step relies on.
const WORD_ALONE: Ordering = Ordering::Relaxed;

/// One scope's count against one rate. On its own cache line: two hot scopes on one line cost each other 15 ns
/// a step where a private line costs 3.
#[derive(Debug)]
pub struct Cell(CachePadded<State>);

#[derive(Debug)]
struct State {
    word: AtomicU64,
    rest: RestRule,
}

/// An acquire that was refused, with what the word said at that moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denied {
    /// [`Retry::After`] or [`Retry::Never`].
    pub retry: Retry,
    pub standing: Standing,
}

impl Cell {
    /// An untouched cell: a whole burst is there. `params` fix the algorithm and the period it will count with,
    /// which are part of a limit's identity; amount, burst and N may differ at every call.
    pub fn new(params: &RateParams) -> Cell {
        Cell(CachePadded::new(State { word: AtomicU64::new(0), rest: params.rest_rule() }))
    }

    /// Takes `cost` units, or says why not and when. A refusal counts nothing. Cost 0 is a [`Cell::peek`].
    #[inline]
    pub fn acquire(&self, params: &RateParams, now: MonoNs, cost: u64) -> Result<Standing, Denied> {
        // The first turn of the loop for a backlog, inlined: admitted and no race lost is what nearly every call is,
        // and alone it fits in registers (6 ns a step instead of 9 on a 2.45 GHz EPYC).
        if let Some(moment) = params.backlog_at(now) {
            let word = self.0.word.load(WORD_ALONE);
            if let Some(after) = moment.take_at_a_glance(word, cost)
                && self.0.word.compare_exchange(word, after, WORD_ALONE, WORD_ALONE).is_ok()
            {
                return Ok(moment.standing_just_taken(after));
            }
        }
        self.acquire_in_loop(params, now, cost)
    }

    #[inline(never)]
    fn acquire_in_loop(&self, params: &RateParams, now: MonoNs, cost: u64) -> Result<Standing, Denied> {
        if cost == 0 {
            return Ok(self.peek(params, now));
        }
        match params.at(now) {
            RateNow::Backlog(moment) => self.take(&moment, cost),
            RateNow::FixedWindow(moment) => self.take(&moment, cost),
            RateNow::SlidingWindow(moment) => self.take(&moment, cost),
        }
    }

    #[inline]
    fn take(&self, moment: &impl Moment, cost: u64) -> Result<Standing, Denied> {
        let (admitted, word) = self.swap(|word| moment.take(word, cost));
        // Read off the word after the swap, outside the loop: the one division is not in the race.
        let standing = moment.standing(word);
        if admitted { Ok(standing) } else { Err(Denied { retry: moment.retry(word, cost), standing }) }
    }

    /// As [`Cell::acquire`], for tokens that are settled later: the ticket is what settling gives back or adds to.
    #[inline]
    pub fn reserve(&self, params: &RateParams, now: MonoNs, tokens: u64) -> Result<(Ticket, Standing), Denied> {
        let standing = self.acquire(params, now, tokens)?;
        Ok((params.ticket(tokens), standing))
    }

    /// What an acquire would find. Writes nothing and is never refused.
    #[inline]
    pub fn peek(&self, params: &RateParams, now: MonoNs) -> Standing {
        params.at(now).standing(self.0.word.load(WORD_ALONE))
    }

    /// Corrects a reserve to what was used: the signed difference, once (the ticket is consumed).
    #[inline]
    pub fn settle(&self, params: &RateParams, now: MonoNs, ticket: Ticket, used: u64) {
        match ticket.tokens().checked_sub(used) {
            Some(unused) => self.credit(params, now, ticket, unused),
            None => self.debit(params, now, used - ticket.tokens()),
        }
    }

    /// Takes `units` whatever is left, from now or from the end of the backlog: use beyond a reserve, or what a
    /// shared store admitted and this cell should be warm with. Saturates at the cell's bound (a tpm cell holds
    /// a debt of ten bursts, an rpm cell none).
    #[inline]
    pub fn debit(&self, params: &RateParams, now: MonoNs, units: u64) {
        if units == 0 {
            return;
        }
        let moment = params.at(now);
        self.swap(|word| ((), moment.debit(word, units)));
    }

    /// Gives back `refund` of the ticket's tokens, at most all of them, in the ticks they were reserved in.
    #[inline]
    pub fn credit(&self, params: &RateParams, now: MonoNs, ticket: Ticket, refund: u64) {
        let moment = params.at(now);
        self.swap(|word| ((), moment.credit(word, &ticket, refund)));
    }

    /// Takes a whole reserve back where no clock is at hand: a request that was dropped, or refused by a later limit.
    pub fn give_back(&self, params: &RateParams, ticket: Ticket) {
        self.swap(|word| ((), params.given_back(word, &ticket)));
    }

    /// Whether this cell answers as a new one would, so that dropping it forgets nothing. True for the word as
    /// it is read; the caller sees to it that nobody else holds the cell.
    pub fn at_rest(&self, now: MonoNs) -> bool {
        self.0.rest.at_rest(self.0.word.load(WORD_ALONE), now)
    }

    /// The one loop. `change` is pure: from a word, an answer and the word to follow it; it is asked again, from
    /// the word that won, when another core was faster. The answer comes back with the word it left.
    #[inline]
    fn swap<T>(&self, change: impl Fn(u64) -> (T, u64)) -> (T, u64) {
        let mut word = self.0.word.load(WORD_ALONE);
        loop {
            let (answer, after) = change(word);
            if after == word {
                return (answer, after); // nothing to write: a refusal or a peek takes no line from its neighbours
            }
            match self.0.word.compare_exchange_weak(word, after, WORD_ALONE, WORD_ALONE) {
                Ok(_) => return (answer, after),
                Err(winner) => word = winner,
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::rate::{Algorithm, RateSpec};

    const SECOND: u64 = 1_000_000_000;

    fn params(amount: u64, algorithm: Algorithm) -> RateParams {
        let debt = algorithm == Algorithm::Gcra;
        RateParams::new(RateSpec { amount, period_ns: 60 * SECOND, burst: amount, algorithm, debt }).unwrap()
    }

    #[test]
    fn two_units_are_given_and_a_third_is_denied_without_being_counted() {
        for algorithm in [Algorithm::Gcra, Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::SlidingWindow] {
            let two = params(2, algorithm);
            let cell = Cell::new(&two);
            assert_eq!(cell.peek(&two, MonoNs(0)).remaining, 2);
            assert_eq!(cell.acquire(&two, MonoNs(0), 1).unwrap().remaining, 1);
            assert_eq!(cell.acquire(&two, MonoNs(0), 1).unwrap().remaining, 0);
            let denied = cell.acquire(&two, MonoNs(0), 1).unwrap_err();
            assert!(matches!(denied.retry, Retry::After { ns } if ns >= 30 * SECOND), "{denied:?}");
            assert_eq!(cell.acquire(&two, MonoNs(0), 3).unwrap_err().retry, Retry::Never);
            assert_eq!(cell.acquire(&two, MonoNs(0), 0).unwrap().remaining, 0);
            assert_eq!(cell.peek(&two, MonoNs(120 * SECOND)).remaining, 2);
        }
    }

    #[test]
    fn a_reserve_taken_back_without_a_clock_leaves_what_others_took() {
        let sixty = params(60, Algorithm::Gcra);
        let cell = Cell::new(&sixty);
        let (long, _) = cell.reserve(&sixty, MonoNs(0), 40).unwrap();
        cell.give_back(&sixty, cell.reserve(&sixty, MonoNs(0), 20).unwrap().0);
        assert_eq!(cell.peek(&sixty, MonoNs(0)).remaining, 20);
        cell.debit(&sixty, MonoNs(0), 600); // ten minutes of debt: further ahead than anything an acquire could write
        cell.give_back(&sixty, long);
        assert_eq!(cell.peek(&sixty, MonoNs(590 * SECOND)).remaining, 50, "600 taken, 590 earned");
        let (drained, _) = cell.reserve(&sixty, MonoNs(3_600 * SECOND), 60).unwrap();
        cell.acquire(&sixty, MonoNs(3_700 * SECOND), 10).unwrap();
        cell.give_back(&sixty, drained);
        assert_eq!(cell.peek(&sixty, MonoNs(3_700 * SECOND)).remaining, 60, "never more than a full cell");
    }

    #[test]
    fn a_cell_rests_when_what_it_counted_is_over() {
        for (algorithm, rests_at_s) in
            [(Algorithm::Gcra, 30), (Algorithm::FixedWindow, 60), (Algorithm::SlidingWindow, 120)]
        {
            let two = params(2, algorithm);
            let cell = Cell::new(&two);
            assert!(cell.at_rest(MonoNs(0)));
            cell.acquire(&two, MonoNs(0), 1).unwrap();
            assert!(!cell.at_rest(MonoNs(rests_at_s * SECOND - 1)), "{algorithm:?}");
            assert!(cell.at_rest(MonoNs(rests_at_s * SECOND)), "{algorithm:?}");
        }
    }

    #[test]
    fn unused_tokens_return_and_extra_ones_are_charged() {
        let tpm = params(20_000, Algorithm::Gcra);
        let cell = Cell::new(&tpm);
        let (ticket, standing) = cell.reserve(&tpm, MonoNs(0), 16_391).unwrap();
        assert_eq!(standing.remaining, 3_609);
        cell.settle(&tpm, MonoNs(0), ticket, 1_265);
        assert_eq!(cell.peek(&tpm, MonoNs(0)).remaining, 18_735);
        let (ticket, _) = cell.reserve(&tpm, MonoNs(0), 100).unwrap();
        cell.settle(&tpm, MonoNs(0), ticket, 735);
        assert_eq!(cell.peek(&tpm, MonoNs(0)).remaining, 18_000);
        let (ticket, _) = cell.reserve(&tpm, MonoNs(0), 8_000).unwrap();
        cell.settle(&tpm, MonoNs(0), ticket, 8_000);
        assert_eq!(cell.peek(&tpm, MonoNs(0)).remaining, 10_000);
    }

    #[test]
    fn a_cell_kept_warm_answers_as_if_it_had_counted() {
        for algorithm in [Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::SlidingWindow] {
            let ten = params(10, algorithm);
            let (warm, counted) = (Cell::new(&ten), Cell::new(&ten));
            for _ in 0..7 {
                warm.debit(&ten, MonoNs(SECOND), 1);
                counted.acquire(&ten, MonoNs(SECOND), 1).unwrap();
            }
            assert_eq!(warm.peek(&ten, MonoNs(SECOND)), counted.peek(&ten, MonoNs(SECOND)));
        }
    }

    #[test]
    fn a_cell_is_one_padded_line() {
        assert_eq!(size_of::<Cell>(), align_of::<Cell>());
    }
}

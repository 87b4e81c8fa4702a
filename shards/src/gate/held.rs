//! What an admitted request holds: leases of in-flight slots and reserves of tokens.
//!
//! Decides when they go back: once, on every way out. Settling is the ordinary way; dropping is the way of panics and
//! of code that forgot, and gives back everything. How much a settlement books is [`crate::settle`]'s.

use std::rc::Rc;

use smallvec::SmallVec;

use crate::gauge::Slot;
use crate::plan::{Armed, Counter};
use crate::rate::Ticket;
use crate::settle::Settlement;
use crate::units::MonoNs;

/// Four levels deep with one limit each fits inline: admitting allocates nothing.
#[derive(Debug, Default)]
#[must_use = "dropping it returns every lease and reserve at once"]
pub struct Held {
    leases: SmallVec<[Lease; 4]>,
    reserves: SmallVec<[Reserve; 4]>,
}

#[derive(Debug)]
struct Lease {
    armed: Rc<Armed>,
    slot: Slot,
}

#[derive(Debug)]
struct Reserve {
    armed: Rc<Armed>,
    ticket: Ticket,
}

impl Held {
    /// Corrects every reserve to what was used, or returns it whole. A second call finds nothing left to settle. The
    /// slots stay in use until the request is over, that is until this is dropped.
    pub fn settle(&mut self, now: MonoNs, n_live: u32, settlement: Settlement) {
        while let Some(Reserve { armed, ticket }) = self.reserves.pop() {
            let Counter::Cell(cell) = &armed.counter else { continue }; // a reserve is only taken from a cell
            let Some(rate) = armed.limit.effective_rate(n_live) else { continue }; // which only comes with a rate
            match settlement {
                Settlement::Used { tokens } => cell.settle(&rate, now, ticket, tokens),
                Settlement::Returned => cell.credit(&rate, now, ticket, u64::MAX),
            }
        }
    }

    /// Returns every lease and the whole of every reserve. What [`Drop`] does too.
    pub fn give_back(&mut self) {
        while let Some(Reserve { armed, ticket }) = self.reserves.pop() {
            // A reserve is only taken from a cell, which only comes with a rate.
            if let (Counter::Cell(cell), Some(rate)) = (&armed.counter, &armed.limit.rate) {
                cell.give_back(rate, ticket);
            }
        }
        while let Some(Lease { armed, slot }) = self.leases.pop() {
            if let Counter::Gauge(gauge) = &armed.counter {
                gauge.free(slot); // a slot is only taken from a gauge
            }
        }
    }

    /// Slots in use.
    pub fn leases(&self) -> usize {
        self.leases.len()
    }

    /// Reserves not settled yet.
    pub fn reserves(&self) -> usize {
        self.reserves.len()
    }

    #[inline]
    pub(super) fn keep_lease(&mut self, armed: &Rc<Armed>, slot: Slot) {
        self.leases.push(Lease { armed: armed.clone(), slot });
    }

    #[inline]
    pub(super) fn keep_reserve(&mut self, armed: &Rc<Armed>, ticket: Ticket) {
        self.reserves.push(Reserve { armed: armed.clone(), ticket });
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.give_back();
    }
}

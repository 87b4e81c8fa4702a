//! What an admitted request holds: leases of in-flight slots and reserves of tokens.
//!
//! Decides when they go back: once, on every way out. Settling is the ordinary way; dropping is the way of panics and
//! of code that forgot, and gives back everything. How much a settlement books is [`crate::settle`]'s.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::cell::Cell;
use crate::gauge::Lease;
use crate::limit::Limit;
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
struct Reserve {
    limit: Arc<Limit>,
    cell: Arc<Cell>,
    ticket: Ticket,
}

impl Held {
    /// Corrects every reserve to what was used, or returns it whole. A second call finds nothing left to settle. The
    /// slots stay in use until the request is over, that is until this is dropped.
    pub fn settle(&mut self, now: MonoNs, n_live: u32, settlement: Settlement) {
        for Reserve { limit, cell, ticket } in self.reserves.drain(..) {
            let Some(rate) = limit.effective_rate(n_live) else { continue }; // a reserve is only taken from a rate
            match settlement {
                Settlement::Used { tokens } => cell.settle(&rate, now, ticket, tokens),
                Settlement::Returned => cell.credit(&rate, now, ticket, u64::MAX),
            }
        }
    }

    /// Returns every lease and the whole of every reserve. What [`Drop`] does too.
    pub fn give_back(&mut self) {
        for Reserve { limit, cell, ticket } in self.reserves.drain(..) {
            let Some(rate) = &limit.rate else { continue }; // a reserve is only taken from a rate
            cell.give_back(rate, ticket);
        }
        self.leases.clear();
    }

    /// Slots in use.
    pub fn leases(&self) -> usize {
        self.leases.len()
    }

    /// Reserves not settled yet.
    pub fn reserves(&self) -> usize {
        self.reserves.len()
    }

    pub(super) fn keep_lease(&mut self, lease: Lease) {
        self.leases.push(lease);
    }

    pub(super) fn keep_reserve(&mut self, limit: &Arc<Limit>, cell: &Arc<Cell>, ticket: Ticket) {
        self.reserves.push(Reserve { limit: limit.clone(), cell: cell.clone(), ticket });
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.give_back();
    }
}

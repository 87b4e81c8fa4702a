//! How one limit stands at one node, for a caller's `/tt/v1/me` and the admin pages. Looks, takes nothing.

use super::{Armed, Counter};
use crate::units::{Now, WallMs};

/// What can be said of a limit right now. Which fields are there follows from its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitState {
    /// As enforced: this replica's share under `store: share`.
    pub amount: u64,
    /// Burn of the running period, or requests in flight.
    pub used: Option<u64>,
    /// What a rate would admit at once.
    pub remaining: Option<u64>,
    /// Until a rate is full again.
    pub reset_ms: Option<u64>,
    /// When the running period ends; `None` also while nothing was burned in it yet.
    pub resets_at: Option<WallMs>,
}

impl Armed {
    pub fn look(&self, now: Now, n_live: u32) -> LimitState {
        let amount = self.limit.effective_amount(n_live);
        let nothing = LimitState { amount, used: None, remaining: None, reset_ms: None, resets_at: None };
        match &self.counter {
            Counter::Cell(cell) => {
                // A cell only comes with a rate.
                let Some(rate) = self.limit.effective_rate(n_live) else { return nothing };
                let standing = cell.peek(&rate, now.mono);
                let reset_ms = Some(standing.reset_ns.div_ceil(1_000_000));
                LimitState { remaining: Some(standing.remaining), reset_ms, ..nothing }
            }
            Counter::Gauge(gauge) => LimitState { used: Some(gauge.in_flight().into()), ..nothing },
            Counter::Meter(meter) => {
                let reading = meter.read(now.wall);
                LimitState { used: Some(reading.observed), resets_at: reading.resets_at, ..nothing }
            }
        }
    }
}

//! The sums a cell, a group and an answer are made of.

use serde::{Deserialize, Serialize};

use crate::row::{Decision, RowFacts};

/// Sums over rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Totals {
    pub requests: u64,
    pub refusals: u64,
    /// Rows that got no whole, good answer, and neither a refusal nor the caller is why: [`RowFacts::is_error`].
    pub errors: u64,
    /// Rows that reached an upstream: what a request quota counts.
    pub forwarded: u64,
    pub input_tokens: u64,
    pub output_tokens: u64,
    pub cached_input_tokens: u64,
    pub cache_write_tokens: u64,
    pub reasoning_tokens: u64,
    pub cost_nanousd: u64,
    /// Forwarded rows whose cost is not known and therefore not in `cost_nanousd`.
    pub unpriced: u64,
    pub latency_us: u64,
}

impl Totals {
    /// Adds up; a sum that would overflow stays at its largest value.
    pub fn add(&mut self, more: &Totals) {
        let more = more.to_numbers();
        let mut sums = self.to_numbers();
        sums.iter_mut().zip(more).for_each(|(sum, more)| *sum = sum.saturating_add(more));
        *self = Totals::from_numbers(sums);
    }

    pub(super) fn of(row: &RowFacts<'_>) -> Totals {
        Totals {
            requests: 1,
            refusals: u64::from(row.decision == Decision::Refused),
            errors: u64::from(row.is_error()),
            forwarded: u64::from(row.forwarded),
            input_tokens: row.usage.input,
            output_tokens: row.usage.output,
            cached_input_tokens: row.usage.cached_input,
            cache_write_tokens: row.usage.cache_write,
            reasoning_tokens: row.usage.reasoning,
            cost_nanousd: row.cost.map_or(0, |cost| cost.0),
            unpriced: u64::from(row.forwarded && row.cost.is_none()),
            latency_us: row.latency_us,
        }
    }

    pub(super) fn to_numbers(self) -> Numbers {
        [
            self.requests,
            self.refusals,
            self.errors,
            self.forwarded,
            self.input_tokens,
            self.output_tokens,
            self.cached_input_tokens,
            self.cache_write_tokens,
            self.reasoning_tokens,
            self.cost_nanousd,
            self.unpriced,
            self.latency_us,
        ]
    }

    pub(super) fn from_numbers(numbers: Numbers) -> Totals {
        let [
            requests,
            refusals,
            errors,
            forwarded,
            input_tokens,
            output_tokens,
            cached_input_tokens,
            cache_write_tokens,
            reasoning_tokens,
            cost_nanousd,
            unpriced,
            latency_us,
        ] = numbers;
        Totals {
            requests,
            refusals,
            errors,
            forwarded,
            input_tokens,
            output_tokens,
            cached_input_tokens,
            cache_write_tokens,
            reasoning_tokens,
            cost_nanousd,
            unpriced,
            latency_us,
        }
    }
}

/// [`Totals`] in the order of a rollup file.
pub(super) type Numbers = [u64; 12];

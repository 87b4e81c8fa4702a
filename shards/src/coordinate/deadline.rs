//! How long one gate pass may wait for the shared store: 5 ms in all, however many of its limits ask.

use super::numbers::OPERATION_DEADLINE_NS;
use crate::units::MonoNs;

/// The time one gate pass has. Judged by the clock alone: a timer that fires late or early changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    deadline: MonoNs,
}

impl Budget {
    /// Starts when the first limit asks.
    pub fn starting(now: MonoNs) -> Budget {
        Budget { deadline: now.plus_ns(OPERATION_DEADLINE_NS) }
    }

    pub fn deadline(self) -> MonoNs {
        self.deadline
    }

    pub fn is_over(self, now: MonoNs) -> bool {
        now >= self.deadline
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_has_five_milliseconds_from_its_first_call() {
        let budget = Budget::starting(MonoNs(1_000));
        assert_eq!(budget.deadline(), MonoNs(5_001_000));
        assert!(!budget.is_over(MonoNs(5_000_999)));
        assert!(budget.is_over(MonoNs(5_001_000)));
    }
}

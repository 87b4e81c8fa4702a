//! What a load saw: histograms in ns, counts, and every failure by its words.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;

/// No latency above this is told apart: 2 min.
const HIGHEST_NS: u64 = 120_000_000_000;

/// Sums of one thread, or of all.
#[derive(Clone, Debug)]
pub struct Tally {
    /// From due (open loop) or sent (closed loop) to the last byte.
    pub latency: Histogram<u64>,
    /// To the first byte of the body.
    pub first_byte: Histogram<u64>,
    /// Between two frames of a stream as they arrive.
    pub gap: Histogram<u64>,
    /// Complete and right, inside the window.
    pub completed: u64,
    pub frames: u64,
    pub failures: BTreeMap<&'static str, u64>,
    /// Failures before the window: named in the report, and no reason to throw the window away.
    pub early_failures: BTreeMap<&'static str, u64>,
    pub connects: u64,
    /// The most requests that were due and waited for a connection.
    pub backlog_max: usize,
}

impl Default for Tally {
    fn default() -> Self {
        // 3 digits: a percentile is right to 0.1 %. The bounds are constants, valid by construction.
        let histogram = || Histogram::new_with_bounds(1, HIGHEST_NS, 3).expect("1 to 2 min with 3 digits is valid");
        Self {
            latency: histogram(),
            first_byte: histogram(),
            gap: histogram(),
            completed: 0,
            frames: 0,
            failures: BTreeMap::new(),
            early_failures: BTreeMap::new(),
            connects: 0,
            backlog_max: 0,
        }
    }
}

impl Tally {
    pub fn add(&mut self, other: &Tally) {
        for (ours, theirs) in [
            (&mut self.latency, &other.latency),
            (&mut self.first_byte, &other.first_byte),
            (&mut self.gap, &other.gap),
        ] {
            ours.add(theirs).expect("all histograms have the same bounds");
        }
        self.completed += other.completed;
        self.frames += other.frames;
        other.failures.iter().for_each(|(why, count)| *self.failures.entry(why).or_default() += count);
        other.early_failures.iter().for_each(|(why, count)| *self.early_failures.entry(why).or_default() += count);
        self.connects += other.connects;
        self.backlog_max = self.backlog_max.max(other.backlog_max);
    }

    #[cfg(test)]
    pub fn failed(&self) -> u64 {
        self.failures.values().sum()
    }

    /// A window is a result only if nothing failed in it and something was done.
    pub fn is_valid(&self) -> bool {
        self.failures.is_empty() && self.completed > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_failure_makes_a_window_invalid_and_an_early_one_does_not() {
        let mut tally = Tally { completed: 1_000_000, ..Tally::default() };
        tally.early_failures.insert("status 429: refused", 3);
        assert!(tally.is_valid());
        let mut other = Tally::default();
        other.failures.insert("a lost frame", 1);
        tally.add(&other);
        assert!(!tally.is_valid());
        assert_eq!(tally.failed(), 1);
    }

    #[test]
    fn a_window_in_which_nothing_was_done_is_no_result() {
        assert!(!Tally::default().is_valid());
    }

    #[test]
    fn sums_of_threads_keep_their_percentiles() {
        let (mut one, mut two) = (Tally::default(), Tally::default());
        (1..=500).for_each(|value| one.latency.record(value * 1_000).unwrap());
        (501..=1000).for_each(|value| two.latency.record(value * 1_000).unwrap());
        one.add(&two);
        let p99 = one.latency.value_at_quantile(0.99) as f64;
        assert!((p99 / 990_000.0 - 1.0).abs() < 0.002, "{p99}");
    }
}

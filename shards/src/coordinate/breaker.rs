//! The breaker: whether the shared store is asked at all.
//!
//! Five failures in a row open it. While it is open every gate answers from its local cells at once; after the probe
//! interval exactly one call is let through, and what becomes of it closes the breaker or opens it for another interval.
//! Nothing is needed from the operator. The state is one word: cores read it per call, one of them takes the probe by
//! compare-and-swap, and only the coordinator records outcomes.
//!
//! What counts as one failure is decided by the coordinator's lane: calls that miss together are one.

use std::sync::atomic::{AtomicU64, Ordering};

use super::numbers::{BREAKER_FAILURES, BREAKER_PROBE_NS};
use crate::suspend::Reason;
use crate::units::MonoNs;

/// The word is the whole state and publishes nothing else, so every access is relaxed.
const WORD_ALONE: Ordering = Ordering::Relaxed;

/// When to open and how often to probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    pub failures: u32,
    pub probe_ns: u64,
}

impl Default for Rules {
    fn default() -> Rules {
        Rules { failures: BREAKER_FAILURES, probe_ns: BREAKER_PROBE_NS }
    }
}

/// Shared by all cores and the coordinator.
#[derive(Debug)]
pub struct Breaker {
    word: AtomicU64,
    rules: Rules,
}

/// Whether a call may be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Pass {
    Call,
    /// The one call that finds out whether the store is back.
    Probe,
    /// Not now: the local cell answers.
    Open,
}

/// What recording an outcome changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    None,
    /// It opened, or a probe failed and it stays open for another interval.
    Opened,
    Closed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Closed { failures: u32 },
    Open { until_ms: u64 },
    HalfOpen { since_ms: u64 },
}

impl State {
    pub const fn as_str(self) -> &'static str {
        match self {
            State::Closed { .. } => "closed",
            State::Open { .. } => "open",
            State::HalfOpen { .. } => "half_open",
        }
    }
}

/// The state and why it is not a clean one. As one word: two bits of state, eight of reason, 54 of count or time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Word {
    state: State,
    reason: Option<Reason>,
}

const VALUE_BITS: u32 = 54;
const VALUE_MAX: u64 = (1 << VALUE_BITS) - 1;

impl Word {
    const CLEAN: Word = Word { state: State::Closed { failures: 0 }, reason: None };

    fn pack(self) -> u64 {
        let (tag, value) = match self.state {
            State::Closed { failures } => (0, u64::from(failures)),
            State::Open { until_ms } => (1, until_ms),
            State::HalfOpen { since_ms } => (2, since_ms),
        };
        let reason = self.reason.and_then(|reason| Reason::ALL.iter().position(|known| *known == reason));
        let reason = reason.map_or(0, |at| at as u64 + 1); // ten reasons
        (tag << 62) | (reason << VALUE_BITS) | value.min(VALUE_MAX)
    }

    fn unpack(word: u64) -> Word {
        let value = word & VALUE_MAX;
        let state = match word >> 62 {
            0 => State::Closed { failures: value as u32 }, // a count of five
            1 => State::Open { until_ms: value },
            _ => State::HalfOpen { since_ms: value },
        };
        let reason = ((word >> VALUE_BITS) & 0xff).checked_sub(1);
        Word { state, reason: reason.and_then(|at| Reason::ALL.get(at as usize).copied()) }
    }
}

impl Default for Breaker {
    fn default() -> Breaker {
        Breaker::new(Rules::default())
    }
}

impl Breaker {
    /// Closed.
    pub fn new(rules: Rules) -> Breaker {
        Breaker { word: AtomicU64::new(Word::CLEAN.pack()), rules }
    }

    /// Whether a core may ask now. `reachable`: a connection stands, so that a probe would not just find out what is
    /// known already.
    pub fn pass(&self, now: MonoNs, reachable: bool) -> Pass {
        let seen = self.word.load(WORD_ALONE);
        let Word { state, reason } = Word::unpack(seen);
        let now_ms = ms(now.0);
        let is_due = match state {
            State::Closed { .. } => return Pass::Call,
            State::Open { until_ms } => now_ms >= until_ms,
            // Whoever took the probe is long gone without an outcome.
            State::HalfOpen { since_ms } => now_ms.saturating_sub(since_ms) > ms(self.rules.probe_ns),
        };
        if !is_due || !reachable {
            return Pass::Open;
        }
        let probing = Word { state: State::HalfOpen { since_ms: now_ms }, reason }.pack();
        match self.word.compare_exchange(seen, probing, WORD_ALONE, WORD_ALONE) {
            Ok(_) => Pass::Probe,
            Err(_) => Pass::Open, // somebody else took it
        }
    }

    /// What became of a call, or of calls that share one fate.
    pub fn record(&self, outcome: Result<(), Reason>, now: MonoNs) -> Turn {
        let mut seen = self.word.load(WORD_ALONE);
        loop {
            let before = Word::unpack(seen);
            let (after, turn) = self.after(before, outcome, now);
            match self.word.compare_exchange_weak(seen, after.pack(), WORD_ALONE, WORD_ALONE) {
                Ok(_) => return turn,
                Err(winner) => seen = winner, // a core took the probe meanwhile
            }
        }
    }

    fn after(&self, before: Word, outcome: Result<(), Reason>, now: MonoNs) -> (Word, Turn) {
        let open = |reason| {
            let until_ms = ms(now.0.saturating_add(self.rules.probe_ns));
            (Word { state: State::Open { until_ms }, reason: Some(reason) }, Turn::Opened)
        };
        match (before.state, outcome) {
            (State::Closed { .. }, Ok(())) => (Word::CLEAN, Turn::None),
            (State::HalfOpen { .. }, Ok(())) => (Word::CLEAN, Turn::Closed),
            (State::Closed { failures }, Err(reason)) if failures + 1 < self.rules.failures => {
                (Word { state: State::Closed { failures: failures + 1 }, reason: Some(reason) }, Turn::None)
            }
            (State::Closed { .. } | State::HalfOpen { .. }, Err(reason)) => open(reason),
            // A straggler from before it opened: only a probe closes it.
            (State::Open { .. }, _) => (before, Turn::None),
        }
    }

    /// A failure that counts for none, because it is part of one that did: it shows in [`Breaker::suspended`] all the same.
    pub fn note(&self, reason: Reason) {
        // Fails only when a core took the probe meanwhile, and then the word says enough.
        let seen = self.word.load(WORD_ALONE);
        let before = Word::unpack(seen);
        if matches!(before.state, State::Closed { .. }) {
            let noted = Word { reason: Some(reason), ..before }.pack();
            let _ = self.word.compare_exchange(seen, noted, WORD_ALONE, WORD_ALONE);
        }
    }

    /// What an attempt to connect met. While it is open nobody calls, and this is the last failure; it moves nothing else.
    /// `false` while it is not.
    pub fn not_connected(&self, reason: Reason) -> bool {
        let seen = self.word.load(WORD_ALONE);
        let before = Word::unpack(seen);
        let met = Word { reason: Some(reason), ..before }.pack();
        // Fails only when a core took the probe meanwhile, and then that is about to say more.
        matches!(before.state, State::Open { .. })
            && self.word.compare_exchange(seen, met, WORD_ALONE, WORD_ALONE).is_ok()
    }

    pub fn state(&self) -> State {
        Word::unpack(self.word.load(WORD_ALONE)).state
    }

    /// What the last failure was; `None` after a success.
    pub fn last_failure(&self) -> Option<Reason> {
        Word::unpack(self.word.load(WORD_ALONE)).reason
    }

    /// Why verdicts of the shared store are not to be had right now, as far as anybody has tried.
    pub fn suspended(&self) -> Option<Reason> {
        match Word::unpack(self.word.load(WORD_ALONE)) {
            Word { state: State::Closed { .. }, reason } => reason,
            Word { state: State::Open { .. } | State::HalfOpen { .. }, .. } => Some(Reason::RedisBreakerOpen),
        }
    }
}

fn ms(ns: u64) -> u64 {
    ns / 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const MISSED: Result<(), Reason> = Err(Reason::RedisDeadlineExceeded);

    fn opened() -> Breaker {
        let breaker = Breaker::default();
        for _ in 0..4 {
            assert_eq!(breaker.record(MISSED, MonoNs(0)), Turn::None);
        }
        assert_eq!(breaker.record(MISSED, MonoNs(0)), Turn::Opened);
        breaker
    }

    #[test]
    fn five_failures_in_a_row_open_it_and_a_success_between_starts_the_count_again() {
        let breaker = Breaker::default();
        for _ in 0..3 {
            for _ in 0..4 {
                assert_eq!(breaker.record(MISSED, MonoNs(0)), Turn::None);
            }
            assert_eq!(breaker.suspended(), Some(Reason::RedisDeadlineExceeded));
            assert_eq!(breaker.record(Ok(()), MonoNs(0)), Turn::None);
            assert_eq!(breaker.suspended(), None);
        }
        assert_eq!(breaker.pass(MonoNs(0), true), Pass::Call);
        let breaker = opened();
        assert_eq!(breaker.pass(MonoNs(0), true), Pass::Open);
        assert_eq!(breaker.suspended(), Some(Reason::RedisBreakerOpen));
        assert_eq!(breaker.last_failure(), Some(Reason::RedisDeadlineExceeded));
    }

    #[test]
    fn exactly_one_call_probes_and_its_success_closes() {
        let breaker = opened();
        assert_eq!(breaker.pass(MonoNs(5 * SECOND - 1_000_000), true), Pass::Open);
        assert_eq!(breaker.pass(MonoNs(5 * SECOND), false), Pass::Open, "nothing to probe without a connection");
        assert_eq!(breaker.pass(MonoNs(5 * SECOND), true), Pass::Probe);
        assert_eq!(breaker.pass(MonoNs(5 * SECOND), true), Pass::Open);
        assert_eq!(breaker.suspended(), Some(Reason::RedisBreakerOpen), "half open is still open to everyone else");
        assert_eq!(breaker.record(Ok(()), MonoNs(5 * SECOND)), Turn::Closed);
        assert_eq!(breaker.pass(MonoNs(5 * SECOND), true), Pass::Call);
        assert_eq!((breaker.suspended(), breaker.state()), (None, State::Closed { failures: 0 }));
    }

    #[test]
    fn a_failed_probe_waits_the_whole_interval_again() {
        let breaker = opened();
        assert_eq!(breaker.pass(MonoNs(7 * SECOND), true), Pass::Probe);
        assert_eq!(breaker.record(Err(Reason::RedisEvalError), MonoNs(7 * SECOND)), Turn::Opened);
        assert_eq!(breaker.pass(MonoNs(12 * SECOND - 1_000_000), true), Pass::Open);
        assert_eq!(breaker.pass(MonoNs(12 * SECOND), true), Pass::Probe);
    }

    #[test]
    fn a_prober_that_vanished_does_not_keep_it_open_for_ever() {
        let breaker = opened();
        assert_eq!(breaker.pass(MonoNs(5 * SECOND), true), Pass::Probe);
        assert_eq!(breaker.pass(MonoNs(10 * SECOND), true), Pass::Open);
        assert_eq!(breaker.pass(MonoNs(10 * SECOND + 1_000_000), true), Pass::Probe);
    }

    #[test]
    fn a_failure_that_does_not_count_still_shows() {
        let breaker = Breaker::default();
        breaker.note(Reason::RedisEvalError);
        assert_eq!(
            (breaker.suspended(), breaker.state()),
            (Some(Reason::RedisEvalError), State::Closed { failures: 0 })
        );
        assert_eq!(breaker.record(Ok(()), MonoNs(0)), Turn::None);
        assert_eq!(breaker.suspended(), None);
        let breaker = opened();
        breaker.note(Reason::RedisEvalError);
        assert_eq!(breaker.last_failure(), Some(Reason::RedisDeadlineExceeded));
    }

    #[test]
    fn while_it_is_open_the_last_attempt_to_connect_is_the_last_failure_and_moves_nothing() {
        let breaker = Breaker::default();
        assert!(!breaker.not_connected(Reason::RedisEvalError), "calls find that out");
        assert_eq!((breaker.last_failure(), breaker.suspended()), (None, None));
        let breaker = opened();
        let state = breaker.state();
        assert!(breaker.not_connected(Reason::RedisEvalError));
        assert_eq!((breaker.last_failure(), breaker.state()), (Some(Reason::RedisEvalError), state));
        assert_eq!(breaker.suspended(), Some(Reason::RedisBreakerOpen));
        assert_eq!(breaker.pass(MonoNs(5 * SECOND), true), Pass::Probe);
        assert!(!breaker.not_connected(Reason::RedisDeadlineExceeded), "the probe says what it met");
    }

    #[test]
    fn a_straggler_neither_closes_nor_prolongs_it() {
        let breaker = opened();
        assert_eq!(breaker.record(Ok(()), MonoNs(SECOND)), Turn::None);
        assert_eq!(breaker.record(MISSED, MonoNs(SECOND)), Turn::None);
        assert_eq!(breaker.pass(MonoNs(5 * SECOND), true), Pass::Probe);
    }

    #[test]
    fn many_cores_take_one_probe() {
        let breaker = opened();
        let probes = std::sync::atomic::AtomicU32::new(0);
        std::thread::scope(|threads| {
            for _ in 0..4 {
                threads.spawn(|| {
                    for at_ms in 0..1_000 {
                        if breaker.pass(MonoNs(4_500_000_000 + at_ms * 1_000_000), true) == Pass::Probe {
                            probes.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        assert_eq!(probes.into_inner(), 1);
    }

    #[test]
    fn every_word_is_read_back_as_it_was_written() {
        for reason in Reason::ALL.into_iter().map(Some).chain([None]) {
            for state in
                [State::Closed { failures: 4 }, State::Open { until_ms: 1 << 50 }, State::HalfOpen { since_ms: 7 }]
            {
                let word = Word { state, reason };
                assert_eq!(Word::unpack(word.pack()), word);
            }
        }
    }
}

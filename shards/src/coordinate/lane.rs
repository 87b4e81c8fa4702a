//! The admissions lane: calls on their way to the store and back over one connection, whoever asked them.
//!
//! Replies come in the order of the commands, so a call is its place in line. The lane never sends a call twice (but for
//! one that the store answered with NOSCRIPT, which counted nothing), gives each call exactly one outcome, and keeps the
//! place of a call that missed its deadline, so that its late reply is dropped and taken for nobody else's.
//!
//! Calls that wait together and are alike (the same scope, the same arguments) go out as one command, whose reply has a
//! verdict for each, in the order of asking: the store counts one after the other within one run of the script. No call
//! overtakes another on its scope.
//!
//! It also decides what the breaker hears. A success is a success. A failure counts only if its call was taken after the
//! last failure that counted: calls that were under way together and fail together are one failure, so that a hiccup of
//! some milliseconds does not open the breaker because many were unlucky at once. Calls that find no connection cost nobody
//! any waiting and count once in 100 ms.
//!
//! Moves no bytes and reads no clock: the coordinator does, and calls in this order: [`Lane::said`] for all replies that are
//! there, then [`Lane::tick`], then [`Lane::write`], then [`Lane::outcomes`].

use std::collections::{HashMap, VecDeque};

use foldhash::fast::RandomState;

use super::breaker::{Breaker, Turn};
use super::eval::EvalCall;
use super::key::ScopeHash;
use super::numbers::UNREACHABLE_COUNTS_NS;
use crate::rate::{Script, ScriptReply};
use crate::suspend::Reason;
use crate::units::MonoNs;

/// Replies one connection may owe. A store that owes more is not keeping up, and its connection is given up.
pub const OWED_MAX: usize = 65_536;
/// Calls that one command may carry: so many take a store three to four times as long as one.
pub const TOGETHER_MAX: u32 = 64;

/// A call and who waits for it.
#[derive(Clone, Copy, Debug)]
pub struct Asked<K> {
    pub to: K,
    pub call: EvalCall,
    pub deadline: MonoNs,
}

/// What to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    Load(Script),
    /// So many calls alike, at least one.
    Eval(EvalCall, u32),
}

/// One reply of the store, as far as the protocol goes.
#[derive(Clone, Copy, Debug)]
pub enum Said<'w> {
    /// An integer, or an array of them: the words of each call, one after the other.
    Words(&'w [i64]),
    /// The server has not got the script.
    NoScript,
    /// Any other error.
    Error,
    /// Well-formed, and nothing a script of ours replies.
    Other,
}

/// The store replied to nothing that was asked: the connection can no longer be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfLine;

/// Verdicts of one reply that came in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answered {
    pub calls: u32,
    /// From writing to reply.
    pub rtt_ns: u64,
}

/// One connection's calls. `K` says who asked.
#[derive(Debug)]
pub struct Lane<K> {
    /// Taken and not written.
    waiting: VecDeque<Taken<K>>,
    /// Written, in the order of their replies.
    owed: VecDeque<Owed<K>>,
    outcomes: Vec<(K, Result<ScriptReply, Reason>)>,
    to_load: [bool; Script::ALL.len()],
    /// Of the calls about to be written, the last run on each scope.
    last_runs: HashMap<ScopeHash, Run, RandomState>,
    /// No call's deadline is earlier.
    earliest: MonoNs,
    last_failure: Option<MonoNs>,
    /// Of the last call that failed since this was asked for.
    why: Option<Reason>,
    turn: Turn,
    late: u64,
}

#[derive(Clone, Copy, Debug)]
struct Taken<K> {
    asked: Asked<K>,
    at: MonoNs,
    written: MonoNs,
    has_reloaded: bool,
    /// Calls of one number go out as one command.
    run: u32,
}

/// Calls alike that go out as one command.
#[derive(Clone, Copy, Debug)]
struct Run {
    number: u32,
    call: EvalCall,
    length: u32,
}

#[derive(Debug)]
struct Owed<K> {
    whom: Whom<K>,
    /// The next in line is told by another reply.
    ends_reply: bool,
}

#[derive(Debug)]
enum Whom<K> {
    Load,
    Call(Taken<K>),
    /// Its call has missed its deadline.
    Nobody,
}

impl<K: Copy> Default for Lane<K> {
    fn default() -> Lane<K> {
        Lane {
            waiting: VecDeque::new(),
            owed: VecDeque::new(),
            outcomes: Vec::new(),
            to_load: [false; Script::ALL.len()],
            last_runs: HashMap::default(),
            earliest: MonoNs(u64::MAX),
            last_failure: None,
            why: None,
            turn: Turn::None,
            late: 0,
        }
    }
}

impl<K: Copy> Lane<K> {
    /// Takes a call. Its outcome will be among [`Lane::outcomes`], by its deadline.
    pub fn ask(&mut self, asked: Asked<K>, now: MonoNs) {
        self.earliest = self.earliest.min(asked.deadline);
        self.waiting.push_back(Taken { asked, at: now, written: now, has_reloaded: false, run: 0 });
    }

    /// Whether calls wait to be written.
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Hands out everything that waits, to be written at once.
    pub fn write(&mut self, now: MonoNs, mut write: impl FnMut(Command)) {
        for (script, to_load) in Script::ALL.into_iter().zip(&mut self.to_load) {
            if std::mem::take(to_load) {
                write(Command::Load(script));
                self.owed.push_back(Owed { whom: Whom::Load, ends_reply: true });
            }
        }
        self.put_together();
        for alike in self.waiting.make_contiguous().chunk_by(|one, next| one.run == next.run) {
            let [first, ..] = alike else { continue };
            write(Command::Eval(first.asked.call, alike.len() as u32)); // TOGETHER_MAX at most
            let followers = (0..alike.len()).rev();
            self.owed.extend(alike.iter().zip(followers).map(|(taken, followers)| Owed {
                whom: Whom::Call(Taken { written: now, ..*taken }),
                ends_reply: followers == 0,
            }));
        }
        self.waiting.clear();
    }

    /// Calls alike behind the first of them, unless another call on their scope is in between.
    fn put_together(&mut self) {
        self.last_runs.clear();
        for (nth, taken) in self.waiting.iter_mut().enumerate() {
            let call = taken.asked.call;
            let new = Run { number: nth as u32, call, length: 0 }; // OWED_MAX bounds what waits
            let run = self.last_runs.entry(call.scope).or_insert(new);
            if run.call != call || run.length == TOGETHER_MAX {
                *run = new;
            }
            run.length += 1;
            taken.run = run.number;
        }
        self.waiting.make_contiguous().sort_by_key(|taken| taken.run); // keeps the order of those alike
    }

    /// The next reply in line. `None` when no verdict of it came in time.
    pub fn said(&mut self, said: Said<'_>, now: MonoNs, breaker: &Breaker) -> Result<Option<Answered>, OutOfLine> {
        let last = self.owed.iter().position(|owed| owed.ends_reply).ok_or(OutOfLine)?;
        let mut answered: Option<Answered> = None;
        for nth in 0..=last {
            let taken = match self.owed.pop_front().map(|owed| owed.whom) {
                Some(Whom::Call(taken)) => taken,
                Some(Whom::Nobody) => {
                    self.late += 1;
                    continue;
                }
                // What the load said shows in the call behind it.
                Some(Whom::Load) | None => continue,
            };
            let outcome = match said {
                Said::Words(words) => verdict(words, nth, last + 1, taken.asked.call.script),
                Said::NoScript if !taken.has_reloaded => {
                    self.to_load[taken.asked.call.script as usize] = true;
                    self.waiting.push_back(Taken { has_reloaded: true, ..taken });
                    continue;
                }
                Said::NoScript | Said::Error => Err(Reason::RedisEvalError),
                Said::Other => Err(Reason::RedisReplyMalformed),
            };
            match outcome {
                Ok(_) => {
                    self.turned(breaker.record(Ok(()), now));
                    answered = Some(Answered {
                        calls: answered.map_or(1, |answered| answered.calls + 1),
                        rtt_ns: now.0.saturating_sub(taken.written.0),
                    });
                }
                Err(reason) => self.failed(&taken, reason, now, breaker),
            }
            self.outcomes.push((taken.asked.to, outcome));
        }
        Ok(answered)
    }

    /// Declares misses. Everything that has arrived must have been [`Lane::said`] before.
    pub fn tick(&mut self, now: MonoNs, breaker: &Breaker) {
        if now < self.earliest {
            return;
        }
        let mut earliest = MonoNs(u64::MAX);
        let mut missed = Vec::new();
        for owed in &mut self.owed {
            if let Whom::Call(taken) = &owed.whom {
                if taken.asked.deadline <= now {
                    missed.push(*taken);
                    owed.whom = Whom::Nobody;
                } else {
                    earliest = earliest.min(taken.asked.deadline);
                }
            }
        }
        self.waiting.retain(|taken| {
            let is_missed = taken.asked.deadline <= now;
            if is_missed {
                missed.push(*taken);
            } else {
                earliest = earliest.min(taken.asked.deadline);
            }
            !is_missed
        });
        self.earliest = earliest;
        self.all_failed(missed, Reason::RedisDeadlineExceeded, now, breaker);
    }

    /// The connection is gone: nothing that was written will be answered, and nothing of it is written again.
    pub fn broke(&mut self, reason: Reason, now: MonoNs, breaker: &Breaker) {
        let owed = std::mem::take(&mut self.owed);
        let calls = owed.into_iter().filter_map(|owed| match owed.whom {
            Whom::Call(taken) => Some(taken),
            Whom::Load | Whom::Nobody => None,
        });
        self.all_failed(calls.collect(), reason, now, breaker);
        self.to_load = [false; Script::ALL.len()];
    }

    /// There is no connection, and none is about to be: whoever waits is told at once. One failure in 100 ms.
    pub fn unreachable(&mut self, reason: Reason, now: MonoNs, breaker: &Breaker) {
        if self.waiting.is_empty() {
            return;
        }
        if self.last_failure.is_none_or(|counted| now.0 - counted.0.min(now.0) >= UNREACHABLE_COUNTS_NS) {
            self.last_failure = Some(now);
            self.turned(breaker.record(Err(reason), now));
        } else {
            breaker.note(reason);
        }
        self.why = Some(reason);
        let told = self.waiting.drain(..).map(|taken| (taken.asked.to, Err(reason)));
        self.outcomes.extend(told);
    }

    /// What became of calls since the last time.
    pub fn outcomes(&mut self) -> impl Iterator<Item = (K, Result<ScriptReply, Reason>)> + '_ {
        self.outcomes.drain(..)
    }

    /// What the breaker did since the last time.
    pub fn take_turn(&mut self) -> Turn {
        std::mem::replace(&mut self.turn, Turn::None)
    }

    /// Why the last call failed, if one did since the last time. Asked after each step, it tells what the step did.
    pub fn take_failure(&mut self) -> Option<Reason> {
        self.why.take()
    }

    /// When [`Lane::tick`] has something to do; `None` while nobody waits.
    pub fn next_deadline(&self) -> Option<MonoNs> {
        (self.earliest.0 < u64::MAX).then_some(self.earliest)
    }

    /// Whether the store owes more replies than a healthy one would.
    pub fn is_overdue(&self) -> bool {
        self.owed.len() > OWED_MAX
    }

    /// Replies that came after their call had missed its deadline.
    pub fn late(&self) -> u64 {
        self.late
    }

    fn all_failed(&mut self, calls: Vec<Taken<K>>, reason: Reason, now: MonoNs, breaker: &Breaker) {
        for taken in calls {
            self.failed(&taken, reason, now, breaker);
            self.outcomes.push((taken.asked.to, Err(reason)));
        }
    }

    fn failed(&mut self, taken: &Taken<K>, reason: Reason, now: MonoNs, breaker: &Breaker) {
        if self.last_failure.is_none_or(|counted| taken.at >= counted) {
            self.last_failure = Some(now);
            self.turned(breaker.record(Err(reason), now));
        } else {
            breaker.note(reason);
        }
        self.why = Some(reason);
    }

    fn turned(&mut self, turn: Turn) {
        if turn != Turn::None {
            self.turn = turn;
        }
    }
}

/// The words of one call among those of all that its reply is for.
fn verdict(words: &[i64], nth: usize, calls: usize, script: Script) -> Result<ScriptReply, Reason> {
    let each = words.len() / calls;
    let own = words.get(nth * each..(nth + 1) * each).filter(|_| words.len().is_multiple_of(calls));
    own.and_then(|own| ScriptReply::of(script, own.iter().copied())).ok_or(Reason::RedisReplyMalformed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordinate::breaker::{Pass, State};
    use crate::coordinate::key::ScopeHash;
    use crate::limit::LimitIdentity;
    use crate::scope::Node;

    const MS: u64 = 1_000_000;

    struct Bench {
        lane: Lane<u32>,
        breaker: Breaker,
    }

    impl Bench {
        fn new() -> Bench {
            Bench { lane: Lane::default(), breaker: Breaker::default() }
        }

        /// A call on a scope of its own.
        fn ask(&mut self, to: u32, at_ms: u64) {
            self.ask_for(&to.to_string(), 1, to, at_ms);
        }

        fn ask_for(&mut self, limit: &str, cost: u64, to: u32, at_ms: u64) {
            let scope = ScopeHash::of(&LimitIdentity(limit.into()), &Node::global());
            let call = EvalCall { scope, script: Script::Backlog, args: [cost, 60, 119] };
            let now = MonoNs(at_ms * MS);
            self.lane.ask(Asked { to, call, deadline: now.plus_ns(5 * MS) }, now);
        }

        fn write(&mut self, at_ms: u64) -> usize {
            let mut count = 0;
            self.lane.write(MonoNs(at_ms * MS), |_| count += 1);
            count
        }

        fn said(&mut self, said: Said<'_>, at_ms: u64) {
            self.lane.said(said, MonoNs(at_ms * MS), &self.breaker).expect("something was asked");
        }

        fn tick(&mut self, at_ms: u64) {
            self.lane.tick(MonoNs(at_ms * MS), &self.breaker);
        }

        fn outcomes(&mut self) -> Vec<(u32, Result<bool, Reason>)> {
            self.lane.outcomes().map(|(to, outcome)| (to, outcome.map(|reply| reply.is_admitted()))).collect()
        }

        fn failures(&self) -> u32 {
            match self.breaker.state() {
                State::Closed { failures } => failures,
                other => panic!("{other:?}"),
            }
        }
    }

    const MISSED: Result<bool, Reason> = Err(Reason::RedisDeadlineExceeded);

    #[test]
    fn replies_go_to_their_calls_in_the_order_of_asking() {
        let mut bench = Bench::new();
        bench.ask(1, 0);
        bench.ask(2, 0);
        assert_eq!(bench.write(0), 2);
        bench.said(Said::Words(&[1]), 1);
        bench.said(Said::Words(&[-61]), 1);
        assert_eq!(bench.outcomes(), [(1, Ok(true)), (2, Ok(false))]);
        assert_eq!(bench.lane.said(Said::Words(&[1]), MonoNs(MS), &bench.breaker), Err(OutOfLine));
    }

    #[test]
    fn each_step_tells_why_a_call_failed_in_it_and_nothing_of_the_step_before() {
        let mut bench = Bench::new();
        (1..=3).for_each(|to| bench.ask(to, 0));
        bench.write(0);
        bench.said(Said::Error, 1);
        assert_eq!(bench.lane.take_failure(), Some(Reason::RedisEvalError));
        bench.said(Said::Words(&[1]), 1);
        assert_eq!(bench.lane.take_failure(), None);
        bench.tick(5);
        assert_eq!(bench.lane.take_failure(), Some(Reason::RedisDeadlineExceeded));
        bench.lane.broke(Reason::RedisReplyMalformed, MonoNs(6 * MS), &bench.breaker);
        assert_eq!(bench.lane.take_failure(), None, "nobody waited for it");
        bench.ask(4, 7);
        bench.lane.unreachable(Reason::RedisEvalError, MonoNs(7 * MS), &bench.breaker);
        assert_eq!(bench.lane.take_failure(), Some(Reason::RedisEvalError));
    }

    #[test]
    fn calls_alike_go_out_as_one_command_and_none_overtakes_another_on_its_scope() {
        let mut bench = Bench::new();
        let asked = [("a", 1), ("b", 1), ("a", 1), ("a", 2), ("b", 1), ("a", 1), ("c", 1), ("b", 1)];
        for (to, (limit, cost)) in (0..).zip(asked) {
            bench.ask_for(limit, cost, to, 0);
        }
        let mut sent = Vec::new();
        bench.lane.write(MonoNs(0), |command| match command {
            Command::Eval(call, calls) => sent.push((call.args[0], calls)),
            Command::Load(_) => panic!("nothing is missing"),
        });
        assert_eq!(sent, [(1, 2), (1, 3), (2, 1), (1, 1), (1, 1)], "a a, b b b, a for two, a, c");
        bench.said(Said::Words(&[1, 2]), 1);
        bench.said(Said::Words(&[1, 2, -3]), 1);
        bench.said(Said::Words(&[4]), 1);
        bench.said(Said::Words(&[-5]), 1);
        bench.said(Said::Words(&[1]), 1);
        let told = |to, admitted| (to, Ok(admitted));
        assert_eq!(
            bench.outcomes(),
            [
                told(0, true),
                told(2, true),
                told(1, true),
                told(4, true),
                told(7, false),
                told(3, true),
                told(5, false),
                told(6, true)
            ]
        );
        (0..TOGETHER_MAX + 1).for_each(|to| bench.ask_for("a", 1, to, 2));
        assert_eq!(bench.write(2), 2, "so many and no more");
    }

    #[test]
    fn what_befalls_a_reply_befalls_all_its_calls_and_each_keeps_its_own_deadline() {
        let mut bench = Bench::new();
        let ask_two = |bench: &mut Bench, at_ms| (1..=2).for_each(|to| bench.ask_for("a", 1, to, at_ms));
        for (said, reason) in [
            (Said::Error, Reason::RedisEvalError),
            (Said::Words(&[1]), Reason::RedisReplyMalformed),
            (Said::Words(&[1, 1, 1]), Reason::RedisReplyMalformed),
        ] {
            ask_two(&mut bench, 0);
            assert_eq!(bench.write(0), 1);
            bench.said(said, 1);
            assert_eq!(bench.outcomes(), [(1, Err(reason)), (2, Err(reason))]);
        }
        ask_two(&mut bench, 10);
        bench.write(10);
        bench.said(Said::NoScript, 11);
        assert_eq!(bench.write(11), 2, "one load, and both again");
        bench.said(Said::Other, 12);
        bench.said(Said::Words(&[1, -2]), 12);
        assert_eq!((bench.outcomes(), bench.failures()), (vec![(1, Ok(true)), (2, Ok(false))], 0));
        bench.ask_for("a", 1, 1, 20);
        bench.ask_for("a", 1, 2, 22);
        assert_eq!(bench.write(22), 1);
        bench.tick(25);
        assert_eq!(bench.outcomes(), [(1, MISSED)]);
        bench.said(Said::Words(&[-1, 7]), 26);
        assert_eq!((bench.outcomes(), bench.lane.late()), (vec![(2, Ok(true))], 1));
    }

    #[test]
    fn a_late_reply_is_dropped_and_the_next_call_gets_its_own() {
        let mut bench = Bench::new();
        bench.ask(1, 0);
        bench.write(0);
        bench.tick(4);
        assert_eq!(bench.outcomes(), []);
        bench.tick(5);
        assert_eq!(bench.outcomes(), [(1, MISSED)]);
        bench.ask(2, 6);
        bench.write(6);
        bench.said(Said::Words(&[1]), 7); // the first call's
        assert_eq!((bench.outcomes(), bench.lane.late()), (vec![], 1));
        bench.said(Said::Words(&[-61]), 7);
        assert_eq!(bench.outcomes(), [(2, Ok(false))]);
    }

    #[test]
    fn a_reply_that_arrived_is_heard_before_a_miss_is_declared() {
        let mut bench = Bench::new();
        bench.ask(1, 0);
        bench.write(0);
        bench.said(Said::Words(&[1]), 6); // read at 6 ms, and nobody has declared anything yet
        bench.tick(6);
        assert_eq!(bench.outcomes(), [(1, Ok(true))]);
    }

    #[test]
    fn a_batch_that_misses_together_is_one_failure_and_five_calls_in_a_row_are_five() {
        let mut bench = Bench::new();
        (0..5).for_each(|to| bench.ask(to, 0));
        bench.write(0);
        bench.ask(9, 3); // under way when the others miss, and part of the same trouble
        bench.write(3);
        bench.tick(5);
        bench.tick(8);
        assert_eq!((bench.outcomes().len(), bench.failures()), (6, 1));
        for round in 1..5 {
            bench.ask(0, round * 10);
            bench.write(round * 10);
            bench.tick(round * 10 + 5);
        }
        assert_eq!(bench.breaker.pass(MonoNs(50 * MS), true), Pass::Open);
        assert_eq!((bench.lane.take_turn(), bench.lane.take_turn()), (Turn::Opened, Turn::None));
    }

    #[test]
    fn a_missing_script_is_loaded_and_the_call_sent_once_more_within_its_deadline() {
        let mut bench = Bench::new();
        bench.ask(1, 0);
        bench.ask(2, 0);
        bench.write(0);
        bench.said(Said::NoScript, 1);
        bench.said(Said::NoScript, 1);
        assert_eq!(bench.write(1), 3, "one load, two calls");
        bench.said(Said::Other, 2); // the load's
        bench.said(Said::Words(&[1]), 2);
        bench.said(Said::NoScript, 2); // flushed again: enough
        assert_eq!(bench.outcomes(), [(1, Ok(true)), (2, Err(Reason::RedisEvalError))]);
        bench.ask(3, 3);
        bench.write(3);
        bench.said(Said::NoScript, 4);
        bench.tick(8);
        assert_eq!(bench.outcomes(), [(3, MISSED)]);
        assert_eq!(bench.write(8), 1, "only the load: a call that missed is not sent");
    }

    #[test]
    fn errors_and_nonsense_each_have_their_reason() {
        let mut bench = Bench::new();
        for (said, reason) in [
            (Said::Error, Reason::RedisEvalError),
            (Said::Other, Reason::RedisReplyMalformed),
            (Said::Words(&[]), Reason::RedisReplyMalformed),
            (Said::Words(&[7, 1]), Reason::RedisReplyMalformed),
        ] {
            bench.ask(1, 0);
            bench.write(0);
            bench.said(said, 1);
            assert_eq!(bench.outcomes(), [(1, Err(reason))]);
            assert_eq!(bench.breaker.suspended(), Some(reason));
        }
    }

    #[test]
    fn a_broken_connection_fails_what_was_written_and_keeps_what_was_not() {
        let mut bench = Bench::new();
        bench.ask(1, 0);
        bench.write(0);
        bench.ask(2, 1);
        bench.lane.broke(Reason::RedisEvalError, MonoNs(2 * MS), &bench.breaker);
        assert_eq!(bench.outcomes(), [(1, Err(Reason::RedisEvalError))]);
        assert_eq!(bench.write(2), 1, "the second was never sent, so it may go over the next connection");
        bench.ask(3, 3);
        bench.lane.unreachable(Reason::RedisEvalError, MonoNs(3 * MS), &bench.breaker);
        assert_eq!(bench.outcomes(), [(3, Err(Reason::RedisEvalError))]);
    }

    #[test]
    fn a_store_that_is_gone_for_a_moment_does_not_open_the_breaker() {
        let mut bench = Bench::new();
        for at_ms in 0..400 {
            bench.ask(1, at_ms);
            bench.lane.unreachable(Reason::RedisEvalError, MonoNs(at_ms * MS), &bench.breaker);
        }
        assert_eq!((bench.outcomes().len(), bench.failures()), (400, 4));
        bench.ask(1, 400);
        bench.lane.unreachable(Reason::RedisEvalError, MonoNs(400 * MS), &bench.breaker);
        assert_eq!(bench.breaker.suspended(), Some(Reason::RedisBreakerOpen));
    }
}

//! Rate arithmetic: how one configured rate becomes a few integers, and what one step on a cell's word answers.
//!
//! Pure functions on one 64-bit word. Nothing here is shared or atomic (that is [`crate::cell`]), and nothing
//! here knows limits, nodes or replicas: the gate passes in the compiled [`RateParams`] and the time. The
//! config validator calls [`RateParams::new`], whose error names the largest value that fits.
//!
//! A step never panics and never wraps, whatever the word, the clock or the cost say.

mod fixed_window;
mod gcra;
mod moment;
mod script;
mod sliding_window;
mod token_bucket;
mod window;

use crate::units::{MonoNs, Now};
use fixed_window::FixedNow;
use gcra::{Backlog, BacklogNow};
use sliding_window::SlidingNow;
use token_bucket::Bucket;
use window::Window;

pub(crate) use moment::{Moment, RateNow};
pub use script::{Script, ScriptReply};

/// The most output tokens one tpm reserve holds for a caller who bounded nothing or too much. A share of a
/// tpm burst is never cut below it, or an ordinary request could fit on no replica.
pub const RESERVE_CAP_TOKENS: u64 = 16_384;

/// Largest period: one unit per period still fits a cell's arithmetic. 2^61 ns are 73 years.
pub const PERIOD_NS_MAX: u64 = 1 << 61;

/// How a rate counts. `rpm` may name any of them; `tpm` is always `Gcra`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Algorithm {
    Gcra,
    TokenBucket,
    FixedWindow,
    SlidingWindow,
}

impl Algorithm {
    /// As the config file and the wire spell it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Algorithm::Gcra => "gcra",
            Algorithm::TokenBucket => "token_bucket",
            Algorithm::FixedWindow => "fixed_window",
            Algorithm::SlidingWindow => "sliding_window",
        }
    }
}

/// One rate as configured: `amount` units per `period_ns`, at most `burst` of them at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RateSpec {
    pub amount: u64,
    pub period_ns: u64,
    /// The windows have no burst of their own and read `amount` instead.
    pub burst: u64,
    pub algorithm: Algorithm,
    /// `tpm`: a settlement may push the cell into debt, past what an acquire could.
    pub debt: bool,
}

/// Why a rate cannot be compiled: the operator's mistake, with the value that would do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RateSpecError {
    #[error("amount must be at least 1")]
    AmountZero,
    #[error("burst must be at least 1")]
    BurstZero,
    #[error("period must be longer than nothing")]
    PeriodZero,
    #[error("period {period_ns} ns is too long; the maximum is {max_ns} ns (73 years)")]
    PeriodTooLong { period_ns: u64, max_ns: u64 },
    #[error("amount {amount} does not fit {}; the maximum is {max}", algorithm.as_str())]
    AmountTooLarge { algorithm: Algorithm, amount: u64, max: u64 },
    #[error("burst {burst} would take too long to drain at this rate; the maximum is {max}")]
    BurstTooLarge { burst: u64, max: u64 },
    #[error("a limit that is settled afterwards (tpm) counts with gcra, not with {}", algorithm.as_str())]
    DebtNeedsGcra { algorithm: Algorithm },
}

/// What ties the monotonic clock to the Unix epoch, fixed at boot: windows are aligned to the epoch so that
/// replicas agree on them, and a wall clock that steps later moves none of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Clock0 {
    /// Wall time minus monotonic time.
    pub wall_offset_ns: i64,
}

impl Clock0 {
    /// From both clocks read together, once, at boot.
    pub const fn at_boot(now: Now) -> Clock0 {
        let wall_ns = now.wall.0 as i128 * 1_000_000;
        let offset = wall_ns - now.mono.0 as i128;
        // i64 nanoseconds reach the year 2262; beyond, the windows are misaligned but still count.
        let held = if offset > i64::MAX as i128 {
            i64::MAX
        } else if offset < i64::MIN as i128 {
            i64::MIN
        } else {
            offset as i64
        };
        Clock0 { wall_offset_ns: held }
    }
}

/// A compiled rate: what a step needs, and nothing it would have to divide for. Immutable and `Copy`; a reload
/// or another N makes new ones and the cells' words stay, so nobody gets a fresh burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateParams {
    spec: RateSpec,
    form: Form,
}

/// The algorithm with what it needs compiled in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Gcra(Backlog),
    TokenBucket(Bucket),
    FixedWindow(Window),
    SlidingWindow(Window),
}

/// What a caller is told about a cell, frozen at the step that produced it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Whole units that could be taken right now.
    pub remaining: u64,
    /// Until the cell is as if never used. Zero when it is.
    pub reset_ns: u64,
    /// Until one unit more than `remaining`. Zero when nothing is missing.
    pub next_ns: u64,
}

/// When a step would be admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// It was.
    Now,
    /// After this long, if nobody else comes first. At least 1 ns.
    After { ns: u64 },
    /// The cost is more than can ever be there at once.
    Never,
}

/// The answer of one step on one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The word to swap in. `None`: nothing to write. A refusal writes only to repair a backlog that no clock
    /// that runs forward can explain.
    pub new_word: Option<u64>,
    pub admitted: bool,
    pub retry: Retry,
    /// After the step: of `new_word` if there is one, of the word read otherwise.
    pub standing: Standing,
}

/// A reserve taken from a tpm cell, in the ticks it was taken in: a reload or another N may change what a token
/// costs before it is settled, and converting the old reserve would credit more than was taken.
///
/// Neither `Clone` nor `Copy`: settling consumes it, so it is settled once.
#[must_use = "a reserve that is never settled stays spent"]
#[derive(Debug, PartialEq, Eq)]
pub struct Ticket {
    tokens: u64,
    interval_ticks: u64,
    tick_shift: u32,
}

impl Ticket {
    /// Tokens reserved.
    pub const fn tokens(&self) -> u64 {
        self.tokens
    }

    /// What they took from the cell, in its ticks of that moment.
    pub const fn ticks(&self) -> u64 {
        self.tokens.saturating_mul(self.interval_ticks)
    }
}

/// One replica's part of `amount`: ceil(amount / N). N = 0 reads as 1, a replica always counts itself.
pub const fn share_of(amount: u64, n_live: u32) -> u64 {
    if n_live <= 1 { amount } else { amount.div_ceil(n_live as u64) }
}

impl RateParams {
    /// Compiles a rate. The error names the largest value that fits. Windows count from the monotonic clock's
    /// zero until [`RateParams::anchored`] ties them to the epoch.
    pub fn new(spec: RateSpec) -> Result<RateParams, RateSpecError> {
        if spec.amount == 0 {
            return Err(RateSpecError::AmountZero);
        }
        if spec.burst == 0 {
            return Err(RateSpecError::BurstZero);
        }
        if spec.period_ns == 0 {
            return Err(RateSpecError::PeriodZero);
        }
        if spec.period_ns > PERIOD_NS_MAX {
            return Err(RateSpecError::PeriodTooLong { period_ns: spec.period_ns, max_ns: PERIOD_NS_MAX });
        }
        if spec.debt && spec.algorithm != Algorithm::Gcra {
            return Err(RateSpecError::DebtNeedsGcra { algorithm: spec.algorithm });
        }
        let amount_max = match spec.algorithm {
            // More than one unit per nanosecond is beyond what 1/64 ns ticks resolve to within 2 %.
            Algorithm::Gcra | Algorithm::TokenBucket => spec.period_ns,
            Algorithm::FixedWindow => fixed_window::AMOUNT_MAX,
            Algorithm::SlidingWindow => sliding_window::AMOUNT_MAX,
        };
        if spec.amount > amount_max {
            let RateSpec { algorithm, amount, .. } = spec;
            return Err(RateSpecError::AmountTooLarge { algorithm, amount, max: amount_max });
        }
        let window = Window::aligned(spec.period_ns, Clock0::default());
        let whole = RateSpec { burst: spec.amount, ..spec };
        match spec.algorithm {
            Algorithm::FixedWindow => Ok(RateParams { spec: whole, form: Form::FixedWindow(window) }),
            Algorithm::SlidingWindow => Ok(RateParams { spec: whole, form: Form::SlidingWindow(window) }),
            Algorithm::Gcra | Algorithm::TokenBucket => {
                let max = Backlog::compile(&spec).burst_max();
                if spec.burst > max {
                    return Err(RateSpecError::BurstTooLarge { burst: spec.burst, max });
                }
                Ok(RateParams::with_backlog(spec))
            }
        }
    }

    /// The same rate with its windows aligned to the Unix epoch. Backlogs have no windows and stay as they are.
    pub fn anchored(mut self, clock0: Clock0) -> RateParams {
        if let Form::FixedWindow(window) | Form::SlidingWindow(window) = &mut self.form {
            *window = Window::aligned(self.spec.period_ns, clock0);
        }
        self
    }

    /// What this replica enforces while `n_live` replicas share the rate: ceil of amount and burst by N, a tpm
    /// burst no lower than [`RESERVE_CAP_TOKENS`]. That floor widens no sustained rate. Cheap enough for every
    /// decision: a copy at N = 1, a few 64-bit divisions above.
    pub fn effective(&self, n_live: u32) -> RateParams {
        if n_live <= 1 {
            return *self;
        }
        let mut spec = self.spec;
        spec.amount = share_of(spec.amount, n_live);
        spec.burst = share_of(spec.burst, n_live);
        if spec.debt {
            // Floored by the whole burst too, so that a share is never more than what was configured.
            spec.burst = spec.burst.max(RESERVE_CAP_TOKENS.min(self.spec.burst));
        }
        match self.form {
            Form::Gcra(_) | Form::TokenBucket(_) => RateParams::with_backlog(spec),
            // The windows themselves are the fleet's, only the count in them is shared out.
            form @ (Form::FixedWindow(_) | Form::SlidingWindow(_)) => RateParams { spec, form },
        }
    }

    fn with_backlog(mut spec: RateSpec) -> RateParams {
        // A share of a rate near the edge can drain more slowly than a cell can hold. `new` refuses such a rate, a
        // share of one holds less (*over-refuses* a burst that would have taken 73 years to drain).
        let (backlog, held) = Backlog::compile(&spec).holding(spec.burst, spec.debt);
        spec.burst = held;
        let form = match spec.algorithm {
            Algorithm::TokenBucket => Form::TokenBucket(backlog),
            _ => Form::Gcra(backlog),
        };
        RateParams { spec, form }
    }

    pub const fn amount(&self) -> u64 {
        self.spec.amount
    }

    /// The most that can be taken at once; `amount` for the windows.
    pub const fn burst(&self) -> u64 {
        self.spec.burst
    }

    pub const fn period_ns(&self) -> u64 {
        self.spec.period_ns
    }

    pub const fn algorithm(&self) -> Algorithm {
        self.spec.algorithm
    }

    /// Whether settlements may push the cell into debt (`tpm`).
    pub const fn debt(&self) -> bool {
        self.spec.debt
    }

    /// The arithmetic of this rate at one instant.
    #[inline]
    pub(crate) fn at(&self, now: MonoNs) -> RateNow<'_> {
        let RateSpec { amount, burst, .. } = self.spec;
        match &self.form {
            Form::Gcra(backlog) | Form::TokenBucket(backlog) => RateNow::Backlog(BacklogNow::new(backlog, burst, now)),
            Form::FixedWindow(window) => RateNow::FixedWindow(FixedNow::new(window, amount, now)),
            Form::SlidingWindow(window) => RateNow::SlidingWindow(SlidingNow::new(window, amount, now)),
        }
    }

    /// As [`RateParams::at`], for the algorithms whose word is a backlog.
    #[inline]
    pub(crate) fn backlog_at(&self, now: MonoNs) -> Option<BacklogNow<'_>> {
        match &self.form {
            Form::Gcra(backlog) | Form::TokenBucket(backlog) => Some(BacklogNow::new(backlog, self.spec.burst, now)),
            Form::FixedWindow(_) | Form::SlidingWindow(_) => None,
        }
    }

    /// How to tell that a cell counting this rate is at rest, under any amount and burst it may be given later.
    pub(crate) fn rest_rule(&self) -> RestRule {
        match self.form {
            Form::Gcra(_) | Form::TokenBucket(_) => RestRule::Backlog,
            Form::FixedWindow(window) => RestRule::FixedWindow(window),
            Form::SlidingWindow(window) => RestRule::SlidingWindow(window),
        }
    }

    /// The word after a whole reserve was taken back, without a clock. Windows keep what they counted.
    pub(crate) fn given_back(&self, word: u64, ticket: &Ticket) -> u64 {
        match &self.form {
            Form::Gcra(backlog) | Form::TokenBucket(backlog) => backlog.given_back(word, ticket),
            Form::FixedWindow(_) | Form::SlidingWindow(_) => word,
        }
    }

    /// The ticket of a reserve of `tokens` just taken under these parameters.
    pub(crate) fn ticket(&self, tokens: u64) -> Ticket {
        match &self.form {
            Form::Gcra(backlog) | Form::TokenBucket(backlog) => backlog.ticket(tokens),
            Form::FixedWindow(_) | Form::SlidingWindow(_) => Ticket { tokens, interval_ticks: 0, tick_shift: 0 },
        }
    }
}

/// The part of a rate that no reload changes: algorithm and period belong to a limit's identity.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RestRule {
    Backlog,
    FixedWindow(Window),
    SlidingWindow(Window),
}

impl RestRule {
    /// Whether the word answers as an untouched one would, whatever the amount: it may be dropped.
    pub(crate) fn at_rest(&self, word: u64, now: MonoNs) -> bool {
        match self {
            RestRule::Backlog => gcra::at_rest(word, now),
            RestRule::FixedWindow(window) => fixed_window::at_rest(window, word, now),
            RestRule::SlidingWindow(window) => sliding_window::at_rest(window, word, now),
        }
    }
}

/// One step on a word, as [`crate::cell::Cell::acquire`] takes it: `cost` units, or when they could be had. Cost 0
/// is a peek: it writes nothing and is never refused.
pub fn step(params: &RateParams, word: u64, now: MonoNs, cost: u64) -> Step {
    let moment = params.at(now);
    let (admitted, after) = if cost == 0 { (true, word) } else { moment.take(word, cost) };
    let retry = if admitted { Retry::Now } else { moment.retry(after, cost) };
    Step { new_word: changed(word, after), admitted, retry, standing: moment.standing(after) }
}

/// The word after `units` more, whatever is left; `None` when nothing changes.
pub fn debit(params: &RateParams, word: u64, now: MonoNs, units: u64) -> Option<u64> {
    if units == 0 { None } else { changed(word, params.at(now).debit(word, units)) }
}

/// The word after `refund` of the ticket's tokens came back; `None` when nothing changes.
pub fn credit(params: &RateParams, word: u64, now: MonoNs, ticket: &Ticket, refund: u64) -> Option<u64> {
    changed(word, params.at(now).credit(word, ticket, refund))
}

fn changed(before: u64, after: u64) -> Option<u64> {
    (after != before).then_some(after)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60_000_000_000;

    fn spec(amount: u64, algorithm: Algorithm) -> RateSpec {
        RateSpec { amount, period_ns: MINUTE, burst: amount, algorithm, debt: false }
    }

    #[test]
    fn a_third_replica_shrinks_the_share_without_a_reset() {
        let hundred = RateParams::new(spec(100, Algorithm::Gcra)).unwrap();
        let third = hundred.effective(3);
        assert_eq!((third.amount(), third.burst()), (34, 34));
        // Drained alone, still drained among three: one of 34 a minute comes back after 1.76 s.
        let word = step(&hundred, 0, MonoNs(0), 100).new_word.unwrap();
        assert_eq!(step(&third, word, MonoNs(0), 1).retry, Retry::After { ns: 1_764_705_883 });
        assert_eq!(hundred.effective(1), hundred);
        assert_eq!(hundred.effective(0), hundred);
    }

    #[test]
    fn a_tpm_share_keeps_room_for_one_reserve() {
        let tpm = RateSpec { debt: true, ..spec(40_000, Algorithm::Gcra) };
        let tenth = RateParams::new(tpm).unwrap().effective(10);
        assert_eq!((tenth.amount(), tenth.burst()), (4_000, RESERVE_CAP_TOKENS));
        // Never more than was configured, should that be less.
        let small = RateParams::new(RateSpec { burst: 500, ..tpm }).unwrap().effective(10);
        assert_eq!(small.burst(), 500);
    }

    #[test]
    fn what_does_not_fit_is_refused_with_the_maximum() {
        let error = |spec| RateParams::new(spec).unwrap_err();
        let gcra = spec(60, Algorithm::Gcra);
        assert_eq!(error(spec(0, Algorithm::Gcra)), RateSpecError::AmountZero);
        assert_eq!(error(RateSpec { burst: 0, ..gcra }), RateSpecError::BurstZero);
        assert_eq!(error(RateSpec { period_ns: 0, ..gcra }), RateSpecError::PeriodZero);
        assert_eq!(
            error(spec(1_048_576, Algorithm::SlidingWindow)).to_string(),
            "amount 1048576 does not fit sliding_window; the maximum is 1048575"
        );
        assert_eq!(
            error(spec(1 << 36, Algorithm::FixedWindow)).to_string(),
            "amount 68719476736 does not fit fixed_window; the maximum is 68719476735"
        );
        // 2^61 ns at one a second.
        assert_eq!(
            error(RateSpec { burst: u64::MAX, ..gcra }).to_string(),
            "burst 18446744073709551615 would take too long to drain at this rate; the maximum is 2305843009"
        );
        let beyond = error(spec(MINUTE + 1, Algorithm::TokenBucket));
        assert!(matches!(beyond, RateSpecError::AmountTooLarge { max: MINUTE, .. }), "one a nanosecond");
        let debt = RateSpec { debt: true, ..spec(60, Algorithm::FixedWindow) };
        assert_eq!(
            error(debt).to_string(),
            "a limit that is settled afterwards (tpm) counts with gcra, not with fixed_window"
        );
    }

    #[test]
    fn a_clock_read_at_boot_ties_both_clocks() {
        let now = Now { mono: MonoNs(7), wall: crate::units::WallMs(1_000) };
        assert_eq!(Clock0::at_boot(now).wall_offset_ns, 999_999_993);
        let far = Now { mono: MonoNs(0), wall: crate::units::WallMs(i64::MAX) };
        assert_eq!(Clock0::at_boot(far).wall_offset_ns, i64::MAX);
    }
}

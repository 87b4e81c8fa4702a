//! One configured rule: as the file spells it ([`LimitDecl`]) and compiled ([`Limit`]).
//!
//! Holds the words a limit is made of and what follows from them alone: class, unit, which gate asks it, what a share
//! of it amounts to. What makes a rule valid is decided in [`crate::plan`]; counters live in [`crate::registry`].

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

pub use crate::rate::Algorithm;
use crate::rate::{RateParams, share_of};
use crate::refusal::Wording;
use crate::scope::{Endpoint, Glob, Level, Node};

/// Gives an enum whose words stand in the config file `ALL`, `as_str` and `parse`, so that the three cannot disagree.
macro_rules! words {
    ($name:ident { $($variant:ident = $word:literal),+ $(,)? }) => {
        impl $name {
            pub const ALL: &'static [$name] = &[$($name::$variant),+];

            /// The spelling in the config file, in rows and in refusals.
            pub const fn as_str(self) -> &'static str {
                match self { $($name::$variant => $word),+ }
            }

            /// `None` for any other word.
            pub fn parse(word: &str) -> Option<$name> {
                match word { $($word => Some($name::$variant),)+ _ => None }
            }
        }
    };
}

/// What a limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LimitType {
    BudgetUsd,
    QuotaTokens,
    QuotaRequests,
    Rpm,
    Tpm,
    Concurrency,
}

words!(LimitType {
    BudgetUsd = "budget_usd",
    QuotaTokens = "quota_tokens",
    QuotaRequests = "quota_requests",
    Rpm = "rpm",
    Tpm = "tpm",
    Concurrency = "concurrency",
});

/// When a limit's counter is written, and with that whether its cap can be passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// After the row is folded: can be passed by what was admitted since the last fold.
    LedgerSettled,
    /// At gate A, one way, never refunded.
    AdmissionCounted,
    /// At gate B as an estimate, corrected at settlement.
    ReserveReconcile,
    /// At gate A as a lease, returned at settlement.
    InflightLease,
}

impl Class {
    pub const fn as_str(self) -> &'static str {
        match self {
            Class::LedgerSettled => "LedgerSettled",
            Class::AdmissionCounted => "AdmissionCounted",
            Class::ReserveReconcile => "ReserveReconcile",
            Class::InflightLease => "InflightLease",
        }
    }

    /// Gate A runs before the body is read; the other two classes need the model or the prompt.
    pub const fn is_before_body(self) -> bool {
        matches!(self, Class::AdmissionCounted | Class::InflightLease)
    }
}

impl LimitType {
    pub const fn class(self) -> Class {
        match self {
            LimitType::BudgetUsd | LimitType::QuotaTokens | LimitType::QuotaRequests => Class::LedgerSettled,
            LimitType::Rpm => Class::AdmissionCounted,
            LimitType::Tpm => Class::ReserveReconcile,
            LimitType::Concurrency => Class::InflightLease,
        }
    }

    /// What the amount is counted in, as refusals spell it.
    pub const fn unit(self) -> &'static str {
        match self {
            LimitType::BudgetUsd => "usd",
            LimitType::QuotaTokens | LimitType::Tpm => "tokens",
            LimitType::QuotaRequests | LimitType::Rpm => "requests",
            LimitType::Concurrency => "concurrent-requests",
        }
    }

    pub const fn is_rate(self) -> bool {
        matches!(self, LimitType::Rpm | LimitType::Tpm)
    }
}

/// Where a counter is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Store {
    Local,
    Redis,
    Share,
}

words!(Store { Local = "local", Redis = "redis", Share = "share" });

/// Whether a limit that is over refuses, or only says so in the row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Posture {
    Enforcing,
    Shadow,
}

words!(Posture { Enforcing = "enforcing", Shadow = "shadow" });

/// A calendar period in UTC; weeks start on Monday.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Calendar {
    Hour,
    Day,
    Week,
    Month,
    Year,
}

words!(Calendar { Hour = "hour", Day = "day", Week = "week", Month = "month", Year = "year" });

impl Calendar {
    /// The longest this period gets, in ms: a month of 31 days, a year of 366.
    pub const fn longest_ms(self) -> u64 {
        const DAY_MS: u64 = 86_400_000;
        match self {
            Calendar::Hour => 3_600_000,
            Calendar::Day => DAY_MS,
            Calendar::Week => 7 * DAY_MS,
            Calendar::Month => 31 * DAY_MS,
            Calendar::Year => 366 * DAY_MS,
        }
    }
}

/// A calendar period (LedgerSettled) or a duration (rpm, tpm).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Period {
    Calendar(Calendar),
    Every { ns: u64 },
}

/// A Go duration for rates (`1m0s`), the calendar word otherwise: as the wire spells it.
impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Period::Calendar(calendar) => f.write_str(calendar.as_str()),
            Period::Every { ns } => {
                let mut text = Vec::with_capacity(24);
                crate::refusal::go_duration(ns, &mut text);
                f.write_str(std::str::from_utf8(&text).unwrap_or_default()) // go_duration writes UTF-8 only
            }
        }
    }
}

/// The node a limit hangs on, or the level of which each node has a counter of its own.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Attach {
    Node(Node),
    Level(Level),
}

impl Attach {
    /// The node whose counter this limit uses for a caller at `caller`; `None` when it does not apply there.
    pub fn node_for(&self, caller: &Node) -> Option<Node> {
        match self {
            Attach::Node(node) => caller.is_within(node).then(|| node.clone()),
            Attach::Level(level) => caller.at(*level),
        }
    }
}

/// Which requests a limit selects. An empty list selects all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Match {
    pub model: Vec<Glob>,
    pub upstream: Vec<Arc<str>>,
    pub endpoint: Vec<Endpoint>,
}

impl Match {
    /// What gate B and the accountant ask: the whole match.
    pub fn selects(&self, model: &str, upstream: &str, endpoint: Endpoint) -> bool {
        self.selects_endpoint(endpoint) && self.selects_target(model, upstream)
    }

    /// What can be asked before the body is read.
    pub fn selects_endpoint(&self, endpoint: Endpoint) -> bool {
        self.endpoint.is_empty() || self.endpoint.contains(&endpoint)
    }

    /// The part that needs the parsed body.
    pub fn selects_target(&self, model: &str, upstream: &str) -> bool {
        (self.model.is_empty() || self.model.iter().any(|glob| glob.matches(model)))
            && (self.upstream.is_empty() || self.upstream.iter().any(|id| &**id == upstream))
    }
}

/// Canonical text of (id, type, attach, match, effective algorithm, period): what a counter is kept under. Amount,
/// burst, store and posture are not in it, so changing them keeps the count.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LimitIdentity(pub(crate) Arc<str>);

impl LimitIdentity {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// One compiled rule. Immutable; a reload makes new ones and counters follow by identity.
#[derive(Clone, Debug)]
pub struct Limit {
    pub id: Arc<str>,
    pub kind: LimitType,
    pub attach: Attach,
    pub matches: Match,
    /// Nano-USD, tokens, requests or slots.
    pub amount: u64,
    /// For rpm and tpm; equals `amount` where the file names none, and for the types that have no burst.
    pub burst: u64,
    /// `None` for concurrency alone.
    pub period: Option<Period>,
    /// `Gcra` where the type has no choice or no algorithm.
    pub algorithm: Algorithm,
    pub store: Store,
    pub posture: Posture,
    pub identity: LimitIdentity,
    /// Ticks of the full amount; `Some` for rpm and tpm. A share of it is derived per decision.
    pub rate: Option<RateParams>,
    /// What its refusals say.
    pub(crate) wording: Wording,
}

impl Limit {
    #[inline]
    pub fn is_enforcing(&self) -> bool {
        self.posture == Posture::Enforcing
    }

    /// How many ways the amount is split: the live replicas for `store: share`, else 1.
    #[inline]
    pub fn parts(&self, n_live: u32) -> u32 {
        if self.store == Store::Share { n_live.max(1) } else { 1 }
    }

    /// The amount this replica enforces: ceil(amount / N_live) for `store: share`.
    #[inline]
    pub fn effective_amount(&self, n_live: u32) -> u64 {
        share_of(self.amount, self.parts(n_live))
    }

    /// The rate this replica enforces, for rpm and tpm. A shared `tpm` burst stays at the reserve cap or above: the
    /// fleet's burst ceiling widens by that, its sustained rate does not. Borrowed where nothing is shared.
    #[inline]
    pub fn effective_rate(&self, n_live: u32) -> Option<Cow<'_, RateParams>> {
        let rate = self.rate.as_ref()?;
        Some(match self.parts(n_live) {
            1 => Cow::Borrowed(rate),
            parts => Cow::Owned(rate.effective(parts)),
        })
    }
}

/// A number as the file writes it. Kept as text, so that `0.1` USD is exactly 100,000,000 nano-USD.
pub type DecimalText = String;

/// One entry of `governance.limits`, key for key and unchecked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimitDecl {
    /// Where it stands in the file: `governance.limits[0]`.
    pub path: String,
    pub id: Option<String>,
    pub attach: Option<AttachDecl>,
    pub match_: Option<MatchDecl>,
    pub kind: Option<String>,
    pub amount_usd: Option<DecimalText>,
    pub amount: Option<DecimalText>,
    pub period: Option<String>,
    pub algorithm: Option<String>,
    pub burst: Option<DecimalText>,
    pub store: Option<String>,
    pub posture: Option<String>,
}

/// `attach: { node: … }` or `attach: { level: … }`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AttachDecl {
    pub node: Option<String>,
    pub level: Option<String>,
}

/// `match: { model: […], upstream: […], endpoint: […] }`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MatchDecl {
    pub model: Option<Vec<String>>,
    pub upstream: Option<Vec<String>>,
    pub endpoint: Option<Vec<String>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_read_back_as_it_is_written() {
        assert!(LimitType::ALL.iter().all(|kind| LimitType::parse(kind.as_str()) == Some(*kind)));
        assert!(Store::ALL.iter().all(|store| Store::parse(store.as_str()) == Some(*store)));
        assert!(Posture::ALL.iter().all(|posture| Posture::parse(posture.as_str()) == Some(*posture)));
        assert!(Calendar::ALL.iter().all(|calendar| Calendar::parse(calendar.as_str()) == Some(*calendar)));
        assert_eq!((LimitType::parse("RPM"), Store::parse("")), (None, None));
    }

    #[test]
    fn a_node_limit_reaches_everyone_below_it_and_a_level_limit_the_one_node_of_that_level() {
        let node = |text: &str| Node::parse(text).expect("a well-formed node");
        let caller = node("org:acme/team:ml/user:dev1");
        assert_eq!(Attach::Node(node("org:acme")).node_for(&caller), Some(node("org:acme")));
        assert_eq!(Attach::Node(node("org:beta")).node_for(&caller), None);
        assert_eq!(Attach::Node(Node::global()).node_for(&Node::global()), Some(Node::global()));
        assert_eq!(Attach::Level(Level::Team).node_for(&caller), Some(node("org:acme/team:ml")));
        assert_eq!(Attach::Level(Level::Team).node_for(&node("org:acme")), None);
    }

    #[test]
    fn an_empty_match_selects_all_and_a_full_one_needs_every_part() {
        assert!(Match::default().selects("any", "any", Endpoint::Passthrough));
        let full = Match {
            model: vec![Glob::new("gpt-*"), Glob::new("o1")],
            upstream: vec![Arc::from("openai")],
            endpoint: vec![Endpoint::ChatCompletions],
        };
        assert!(full.selects("o1", "openai", Endpoint::ChatCompletions));
        assert!(!full.selects("o3", "openai", Endpoint::ChatCompletions));
        assert!(!full.selects("o1", "azure", Endpoint::ChatCompletions));
        assert!(!full.selects("o1", "openai", Endpoint::Responses));
    }
}

//! Compiles one entry of `governance.limits`, or says everything that is wrong with it.
//!
//! Decides what a single limit may be made of. What two limits may not be to each other, and what depends on the rest
//! of the file, is decided in `compile`, the only caller.

use std::sync::Arc;

use super::compile::{CompileInput, Findings};
use super::nearest::nearest;
use super::number::{NotANumber, positive};
use super::{Problem, identity};
use crate::duration::parse_duration_ns;
use crate::limit::{
    Algorithm, Attach, Calendar, Class, DecimalText, Limit, LimitDecl, LimitType, Match, Period, Posture, Store,
};
use crate::rate::{RESERVE_CAP_TOKENS, RateParams, RateSpec, RateSpecError};
use crate::refusal::Wording;
use crate::scope::{Endpoint, Glob, Level, Node};

/// The longest limit id: it goes out in a response header on every refusal.
const ID_BYTES_MAX: usize = 64;

const LEVELS: [&str; 3] = ["org", "team", "user"];

const ALGORITHMS: [Algorithm; 4] =
    [Algorithm::Gcra, Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::SlidingWindow];

/// Reads the keys in the order the documentation lists them, so that problems come out in that order too. Each reader
/// returns `None` when it has reported why the key cannot be used.
struct Rule<'a> {
    decl: &'a LimitDecl,
    input: &'a CompileInput<'a>,
    found: &'a mut Findings,
}

/// `None` when at least one problem was reported; warnings alone do not stop a limit.
pub(super) fn compile(decl: &LimitDecl, input: &CompileInput<'_>, found: &mut Findings) -> Option<Limit> {
    let mut rule = Rule { decl, input, found };
    let id = rule.id();
    let attach = rule.attach();
    let kind = rule.kind();
    let matches = rule.matches(kind);
    let posture = rule.posture();
    let Some(kind) = kind else {
        rule.store_word(); // the one other key whose words do not depend on the type
        return None;
    };
    let amount = rule.amount(kind);
    let period = rule.period(kind);
    let algorithm = rule.algorithm(kind);
    let burst = rule.burst(kind, amount, algorithm);
    let store = rule.store(kind, algorithm);
    let (id, attach, matches, posture) = (id?, attach?, matches?, posture?);
    let (amount, period, algorithm, burst, store) = (amount?, period?, algorithm?, burst?, store?);
    let rate = match period {
        Some(Period::Every { ns }) => {
            let spec = RateSpec { amount, period_ns: ns, burst, algorithm, debt: kind == LimitType::Tpm };
            Some(rule.rate(kind, spec, store)?)
        }
        _ => None,
    };
    let identity = identity::of(&id, kind, &attach, &matches, algorithm, period);
    let wording = Wording::of(&id, kind, period, posture);
    Some(Limit { id, kind, attach, matches, amount, burst, period, algorithm, store, posture, identity, rate, wording })
}

impl Rule<'_> {
    fn problem(&mut self, key: &str, message: impl Into<String>, remedy: impl Into<String>) {
        self.found.problems.push(at(self.decl, key, message, remedy));
    }

    fn warn(&mut self, key: &str, message: impl Into<String>, remedy: impl Into<String>) {
        self.found.warnings.push(at(self.decl, key, message, remedy));
    }

    fn id(&mut self) -> Option<Arc<str>> {
        let Some(id) = self.decl.id.as_deref() else {
            self.problem("id", "the limit has no id", "add an id such as team_rpm: 1 to 64 of a-z 0-9 _ -");
            return None;
        };
        let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'_' | b'-');
        if id.is_empty() || id.len() > ID_BYTES_MAX || !id.bytes().all(fits) {
            let message = format!("id {} is not 1 to {ID_BYTES_MAX} of a-z 0-9 _ -", quoted(id));
            self.problem("id", message, "rename it to something like team_rpm");
            return None;
        }
        Some(Arc::from(id))
    }

    fn kind(&mut self) -> Option<LimitType> {
        let words: Vec<&str> = LimitType::ALL.iter().map(|kind| kind.as_str()).collect();
        let Some(word) = self.decl.kind.as_deref() else {
            self.problem("type", "the limit has no type", format!("add type: one of {}", words.join(", ")));
            return None;
        };
        LimitType::parse(word).or_else(|| self.unknown_word("type", "type", word, &words))
    }

    fn attach(&mut self) -> Option<Attach> {
        let attach = self.decl.attach.as_ref();
        match attach.map(|attach| (attach.node.as_deref(), attach.level.as_deref())) {
            None | Some((None, None)) => {
                let remedy = "add attach: { node: __global }, { node: \"org:acme\" } or { level: team }";
                self.problem("attach", "the limit is attached to nothing", remedy);
                None
            }
            Some((Some(_), Some(_))) => {
                let message = "attach names a node and a level, and a limit hangs on one of them";
                self.problem("attach", message, "remove node or level");
                None
            }
            Some((Some(node), None)) => match Node::parse(node) {
                Ok(node) => Some(Attach::Node(node)),
                Err(error) => {
                    let remedy = "write __global or org:NAME, org:NAME/team:NAME, org:NAME/team:NAME/user:NAME";
                    self.problem("attach.node", format!("node {} {error}", quoted(node)), remedy);
                    None
                }
            },
            Some((None, Some("global"))) => {
                let message = "level global has one node only";
                self.problem("attach.level", message, "write attach: { node: __global }");
                None
            }
            Some((None, Some(word))) => match Level::parse(word) {
                Some(level) => Some(Attach::Level(level)),
                None => self.unknown_word("attach.level", "level", word, &LEVELS),
            },
        }
    }

    fn matches(&mut self, kind: Option<LimitType>) -> Option<Match> {
        let Some(decl) = self.decl.match_.as_ref() else { return Some(Match::default()) };
        let before = self.found.problems.len();
        let mut matches = Match::default();
        for (key, words) in [("model", &decl.model), ("upstream", &decl.upstream), ("endpoint", &decl.endpoint)] {
            let Some(words) = words else { continue };
            let path = format!("match.{key}");
            if let Some(kind) = kind.filter(|kind| key != "endpoint" && kind.class().is_before_body()) {
                let message = format!("{} is decided before the body is read, when no {key} is known", kind.as_str());
                let remedy = format!("remove {path}, or use tpm, budget_usd or a quota, which know the {key}");
                self.problem(&path, message, remedy);
                continue;
            }
            if words.is_empty() {
                self.problem(
                    &path,
                    format!("{path} is empty"),
                    format!("list what to select, or remove {path} to select all"),
                );
            }
            for (at, word) in words.iter().enumerate() {
                let path = format!("{path}[{at}]");
                match key {
                    "model" => matches.model.extend(self.model_glob(&path, word)),
                    "upstream" => matches.upstream.extend(self.upstream_id(&path, word)),
                    _ => matches.endpoint.extend(self.endpoint(&path, word)),
                }
            }
        }
        if matches.model.iter().any(|glob| glob.as_str() == "*") {
            matches.model.clear(); // says what leaving it out says, so it must be the same limit
        }
        (self.found.problems.len() == before).then_some(matches)
    }

    fn model_glob(&mut self, path: &str, word: &str) -> Option<Glob> {
        let glob = Glob::new(word);
        let served = &self.input.upstream_model_globs;
        if !served.is_empty() && !served.iter().any(|(_, serves)| Glob::new(serves).overlaps(&glob)) {
            let mut globs: Vec<&str> = served.iter().map(|(_, glob)| glob.as_str()).collect();
            globs.dedup();
            let remedy = format!("correct the glob, or serve such a model: upstreams serve {}", globs.join(", "));
            self.problem(path, format!("no upstream serves a model that fits {}", quoted(word)), remedy);
            return None;
        }
        Some(glob)
    }

    fn upstream_id(&mut self, path: &str, word: &str) -> Option<Arc<str>> {
        let ids: Vec<&str> = self.input.upstream_ids.iter().map(String::as_str).collect();
        if ids.contains(&word) {
            return Some(Arc::from(word));
        }
        self.unknown_word(path, "upstream", word, &ids)
    }

    fn endpoint(&mut self, path: &str, word: &str) -> Option<Endpoint> {
        let words: Vec<&str> = Endpoint::ALL.iter().map(|endpoint| endpoint.as_str()).collect();
        Endpoint::parse(word).or_else(|| self.unknown_word(path, "endpoint", word, &words))
    }

    fn amount(&mut self, kind: LimitType) -> Option<u64> {
        let is_money = kind == LimitType::BudgetUsd;
        let (key, text, other_key, other) = if is_money {
            ("amount_usd", &self.decl.amount_usd, "amount", &self.decl.amount)
        } else {
            ("amount", &self.decl.amount, "amount_usd", &self.decl.amount_usd)
        };
        if let Some(other) = other {
            let counted_in = if is_money { "US dollars" } else { kind.unit() };
            let message = format!("{} is counted in {counted_in}, so {other_key} does not apply", kind.as_str());
            let remedy = match text {
                Some(_) => format!("remove {other_key}"),
                None => format!("write {key}: {other}"),
            };
            self.problem(other_key, message, remedy);
            if text.is_none() {
                return None;
            }
        }
        let Some(text) = text else {
            let example = if is_money { "amount_usd: 500".to_owned() } else { format!("{key}: {}", example(kind)) };
            self.problem(key, format!("the limit has no {key}"), format!("add it, such as {example}"));
            return None;
        };
        self.number(kind, key, text).filter(|_| other.is_none())
    }

    /// A number above 0 in the unit of the type; slots have to fit the gauge's 32 bits.
    fn number(&mut self, kind: LimitType, key: &str, text: &DecimalText) -> Option<u64> {
        let is_money = kind == LimitType::BudgetUsd;
        let value = positive(text, if is_money { 9 } else { 0 });
        let fault = match value {
            Ok(slots) if kind == LimitType::Concurrency && slots > u64::from(u32::MAX) => {
                format!("{text} is more than {}, which is all a gauge can count", u32::MAX)
            }
            Ok(value) => return Some(value),
            Err(NotANumber::Malformed) => format!("{} is not a number", quoted(text)),
            Err(NotANumber::NotFinite) => format!("{text} is not a finite number"),
            Err(NotANumber::Negative) => format!("{text} is negative"),
            Err(NotANumber::Zero) => format!("{text} is zero"),
            Err(NotANumber::TooFine) if is_money => format!("{text} is finer than a nano-dollar (9 decimal places)"),
            Err(NotANumber::TooFine) => format!("{text} is not a whole number"),
            Err(NotANumber::TooLarge) if is_money => format!("{text} is more than 18446744073 US dollars"),
            Err(NotANumber::TooLarge) => format!("{text} is more than {}", u64::MAX),
        };
        let remedy = match kind {
            LimitType::BudgetUsd => "write US dollars above 0, such as 500 or 0.25".to_owned(),
            _ => format!("write a whole number of {} above 0, such as {}", kind.unit(), example(kind)),
        };
        self.problem(key, format!("{key} {fault}"), remedy);
        None
    }

    /// The outer `None` is a problem; the inner one is concurrency, which has no period.
    fn period(&mut self, kind: LimitType) -> Option<Option<Period>> {
        let words: Vec<&str> = Calendar::ALL.iter().map(|calendar| calendar.as_str()).collect();
        let name = kind.as_str();
        match (kind.class(), self.decl.period.as_deref()) {
            (Class::InflightLease, None) => Some(None),
            (Class::InflightLease, Some(_)) => {
                let message = "concurrency counts what is in flight now, so it has no period";
                self.problem("period", message, "remove period");
                None
            }
            (Class::LedgerSettled, None) => {
                let remedy = format!("add period: one of {}", words.join(", "));
                self.problem("period", format!("{name} has no period"), remedy);
                None
            }
            (Class::LedgerSettled, Some(word)) => {
                if let Some(calendar) = Calendar::parse(word) {
                    return Some(Some(Period::Calendar(calendar)));
                }
                if parse_duration_ns(word).is_ok() {
                    let message = format!("{name} counts by the calendar, and {word} is a duration");
                    self.problem("period", message, format!("use one of {}", words.join(", ")));
                    return None;
                }
                self.unknown_word("period", "period", word, &words)
            }
            (Class::AdmissionCounted | Class::ReserveReconcile, None) => {
                self.problem("period", format!("{name} has no period"), "add a duration, such as period: 1m");
                None
            }
            (Class::AdmissionCounted | Class::ReserveReconcile, Some(word)) => match parse_duration_ns(word).ok() {
                Some(0) => {
                    self.problem("period", format!("period {word} is zero"), "write a duration, such as period: 1m");
                    None
                }
                Some(ns) => Some(Some(Period::Every { ns })),
                None => {
                    let message = if Calendar::parse(word).is_some() {
                        format!("{name} counts over a duration, and {word} is a calendar period")
                    } else {
                        format!("period {} is not a duration", quoted(word))
                    };
                    self.problem("period", message, "write a duration, such as 500ms, 1m or 24h");
                    None
                }
            },
        }
    }

    fn algorithm(&mut self, kind: LimitType) -> Option<Algorithm> {
        let Some(word) = self.decl.algorithm.as_deref() else { return Some(Algorithm::Gcra) };
        let words = ALGORITHMS.map(Algorithm::as_str);
        let algorithm = match ALGORITHMS.into_iter().find(|algorithm| algorithm.as_str() == word) {
            Some(algorithm) => algorithm,
            None => return self.unknown_word("algorithm", "algorithm", word, &words),
        };
        match kind {
            LimitType::Rpm => Some(algorithm),
            LimitType::Tpm if algorithm == Algorithm::Gcra => Some(algorithm),
            LimitType::Tpm => {
                let message = format!("tpm counts by gcra alone: {word} cannot take a reserve back");
                self.problem("algorithm", message, "remove algorithm, or write algorithm: gcra");
                None
            }
            _ => {
                let message = format!("{} has no rate algorithm", kind.as_str());
                self.problem("algorithm", message, "remove algorithm");
                None
            }
        }
    }

    fn burst(&mut self, kind: LimitType, amount: Option<u64>, algorithm: Option<Algorithm>) -> Option<u64> {
        let text = self.decl.burst.as_ref();
        if let (false, Some(_)) = (kind.is_rate(), text) {
            let message = format!("burst is read by nothing on {}", kind.as_str());
            self.warn("burst", message, "remove burst");
            return amount;
        }
        let windowed =
            algorithm.filter(|algorithm| matches!(algorithm, Algorithm::FixedWindow | Algorithm::SlidingWindow));
        if let (Some(algorithm), Some(_)) = (windowed, text) {
            let message = format!("burst is read by nothing under algorithm {}", algorithm.as_str());
            self.warn("burst", message, "remove burst, or use algorithm: gcra");
            return amount;
        }
        let burst = match text {
            Some(text) => self.number(kind, "burst", text)?,
            None => amount?,
        };
        if kind == LimitType::Tpm && burst < RESERVE_CAP_TOKENS {
            let (key, from) = match text {
                Some(_) => ("burst", String::new()),
                None => ("amount", " (burst defaults to amount)".to_owned()),
            };
            let message = format!(
                "tpm burst {burst}{from} is below {RESERVE_CAP_TOKENS}, the reserve of a call that bounds no output: \
                 such a call could never fit"
            );
            self.problem(key, message, format!("set burst: {RESERVE_CAP_TOKENS} or more; amount can stay as it is"));
            return None;
        }
        Some(burst)
    }

    fn store_word(&mut self) -> Option<Store> {
        let Some(word) = self.decl.store.as_deref() else { return Some(Store::Local) };
        let words: Vec<&str> = Store::ALL.iter().map(|store| store.as_str()).collect();
        Store::parse(word).or_else(|| self.unknown_word("store", "store", word, &words))
    }

    fn store(&mut self, kind: LimitType, algorithm: Option<Algorithm>) -> Option<Store> {
        if self.decl.store.is_some() && kind.class() == Class::LedgerSettled {
            let message = format!(
                "{} takes no store: it is settled from the ledger, and converges by itself once shared_state.redis is \
                 configured",
                kind.as_str()
            );
            self.problem("store", message, "remove store");
            return None;
        }
        let store = self.store_word()?;
        match (store, kind) {
            (Store::Redis, LimitType::Tpm) => {
                let message =
                    "tpm cannot use store redis: the script only acquires, so a signed settlement cannot be kept";
                self.problem("store", message, "use store: local or store: share");
                None
            }
            (Store::Redis, LimitType::Concurrency) => {
                let message =
                    "concurrency cannot use store redis: what is in flight is counted in each replica's memory";
                self.problem(
                    "store",
                    message,
                    "use store: share, which caps each replica at ceil(amount / live replicas)",
                );
                None
            }
            (Store::Redis, _) if !self.input.redis => {
                let message = "store redis needs shared_state.redis, which is not configured";
                let remedy = "add shared_state.redis with external: allow and an addr, or use store: local";
                self.problem("store", message, remedy);
                None
            }
            (Store::Share, _) => {
                if let Some(other) = algorithm.filter(|algorithm| *algorithm != Algorithm::Gcra) {
                    let message =
                        format!("store share divides a gcra rate, and this limit counts by {}", other.as_str());
                    self.problem("store", message, "use algorithm: gcra, or store: local");
                    return None;
                }
                if !self.input.redis {
                    let message = "store share has no membership without shared_state.redis: N stays 1, so each replica \
                                   enforces the full amount, same as store local";
                    let remedy = "add shared_state.redis with external: allow and an addr, or use store: local";
                    self.warn("store", message, remedy);
                }
                Some(store)
            }
            _ => Some(store),
        }
    }

    fn posture(&mut self) -> Option<Posture> {
        let Some(word) = self.decl.posture.as_deref() else { return Some(Posture::Enforcing) };
        let words: Vec<&str> = Posture::ALL.iter().map(|posture| posture.as_str()).collect();
        Posture::parse(word).or_else(|| self.unknown_word("posture.mode", "mode", word, &words))
    }

    /// Refuses a rate whose arithmetic would not fit its 64-bit cell, or the doubles of a script.
    fn rate(&mut self, kind: LimitType, spec: RateSpec, store: Store) -> Option<RateParams> {
        let fits = |rate: &RateParams| if store == Store::Redis { rate.fits_script() } else { Ok(()) };
        let error = match RateParams::new(spec).and_then(|rate| fits(&rate).map(|()| rate)) {
            Ok(rate) => return Some(rate.anchored(self.input.clock0)),
            Err(error) => error,
        };
        let (key, remedy) = match error {
            RateSpecError::AmountTooLarge { max, .. }
                if kind == LimitType::Rpm && spec.algorithm != Algorithm::Gcra =>
            {
                ("amount", format!("lower amount to {max} or less, or use algorithm: gcra"))
            }
            RateSpecError::AmountTooLarge { max, .. } => ("amount", format!("lower amount to {max} or less")),
            RateSpecError::BurstTooLarge { max, .. } => ("burst", format!("lower burst to {max} or less")),
            RateSpecError::PeriodTooLong { .. } | RateSpecError::PeriodZero => ("period", "shorten period".to_owned()),
            RateSpecError::AmountZero => ("amount", "raise amount".to_owned()),
            RateSpecError::BurstZero => ("burst", "raise burst".to_owned()),
            RateSpecError::DebtNeedsGcra { .. } => ("algorithm", "use algorithm: gcra".to_owned()),
        };
        self.problem(key, error.to_string(), remedy);
        None
    }

    /// Reports a word that is none of `allowed` and gives the `None` every reader then returns.
    fn unknown_word<T>(&mut self, key: &str, what: &str, word: &str, allowed: &[&str]) -> Option<T> {
        let list = allowed.join(", ");
        let remedy = match nearest(word, allowed) {
            Some(near) => format!("did you mean {near}? use one of {list}"),
            None if allowed.is_empty() => format!("there is no {what} to choose from"),
            None => format!("use one of {list}"),
        };
        self.problem(key, format!("{} is no {what}", quoted(word)), remedy);
        None
    }
}

fn at(decl: &LimitDecl, key: &str, message: impl Into<String>, remedy: impl Into<String>) -> Problem {
    Problem { path: format!("{}.{key}", decl.path), message: message.into(), remedy: remedy.into() }
}

/// A usual amount, for remedies.
fn example(kind: LimitType) -> &'static str {
    match kind {
        LimitType::BudgetUsd => "500",
        LimitType::QuotaTokens => "10000000",
        LimitType::QuotaRequests => "50000",
        LimitType::Rpm => "600",
        LimitType::Tpm => "200000",
        LimitType::Concurrency => "20",
    }
}

/// A value from the file in quotes, cut so that one pasted blob cannot fill the screen.
fn quoted(text: &str) -> String {
    let short: String = text.chars().take(80).collect();
    if short.len() == text.len() { format!("{text:?}") } else { format!("{short:?}…") }
}

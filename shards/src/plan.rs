//! From what was configured to what a request is asked: the compiled limits, and for one caller and endpoint the two
//! lists the gates walk.
//!
//! Decides which limits apply to a caller and in which order they are asked. Does not count and does not refuse. The
//! config loader calls [`compile`]; each core resolves a [`NodePlan`] once per (key, endpoint) and keeps it, so that
//! a request in the steady state looks nothing up.

mod compile;
mod identity;
mod look;
mod nearest;
mod number;
mod order;
mod rule;

use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

pub use compile::{CompileInput, Compiled, compile};
pub use look::LimitState;
pub use nearest::nearest;

use crate::cell::Cell;
use crate::coordinate::key::ScopeHash;
use crate::gauge::Gauge;
use crate::limit::{Class, Limit, LimitType, Store};
use crate::meter::Meter;
use crate::refusal::policy;
use crate::registry::Registry;
use crate::scope::{Endpoint, Node};

/// One thing an operator should know about the file: an error or a warning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// `governance.limits[0].store`
    pub path: String,
    /// What is wrong.
    pub message: String,
    /// What to type instead.
    pub remedy: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.path, self.message, self.remedy)
    }
}

/// Every compiled limit of one configuration, by id.
#[derive(Clone, Debug, Default)]
pub struct LimitSet {
    pub limits: Vec<Arc<Limit>>,
}

/// A limit with the one counter it has for this caller.
#[derive(Clone, Debug)]
pub struct Armed {
    pub limit: Arc<Limit>,
    /// The node whose counter it is: where the limit hangs, or the caller's node of its level.
    pub node: Node,
    pub counter: Counter,
    /// What the shared store keeps this scope's count under; `Some` for `store: redis` alone.
    pub shared: Option<ScopeHash>,
    /// How `RateLimit-Policy` spells it at its full amount; empty where it has no rate.
    pub(crate) policy: Box<[u8]>,
}

/// A live counter, shared by every core and every plan that uses it.
#[derive(Clone, Debug)]
pub enum Counter {
    /// rpm, tpm
    Cell(Arc<Cell>),
    /// concurrency
    Gauge(Arc<Gauge>),
    /// budget_usd, quota_tokens, quota_requests
    Meter(Arc<Meter>),
}

/// What one caller is asked on one endpoint, in walk order. Holding it holds its counters: a counter in use by a plan
/// is never evicted, so a plan that is no longer needed should be dropped. One core's own: what a request holds counts
/// references to its parts, and such a count shared by cores would cost more than the decision.
#[derive(Clone, Debug, Default)]
pub struct NodePlan {
    /// rpm and concurrency.
    pub before_body: Vec<Rc<Armed>>,
    /// budget_usd, quota_tokens, quota_requests and tpm; their model and upstream match is asked per request.
    pub after_parse: Vec<Rc<Armed>>,
    /// Some limit of gate A is counted in the shared store.
    pub asks_store: bool,
    /// Some enforcing `budget_usd` may apply, so a model without a price needs a look.
    pub has_enforcing_budget: bool,
}

impl LimitSet {
    fn new(mut limits: Vec<Arc<Limit>>) -> LimitSet {
        limits.sort_by(|left, right| left.id.cmp(&right.id));
        LimitSet { limits }
    }

    /// The same limits in memory of its own. Each core keeps such a copy: refusals and rows count references to limits, and
    /// those counts must not share a cache line with another core's.
    pub fn copy_for_core(&self) -> LimitSet {
        LimitSet { limits: self.limits.iter().map(|limit| Arc::new(Limit::clone(limit))).collect() }
    }

    /// `None` when no limit has that id.
    pub fn get(&self, id: &str) -> Option<&Arc<Limit>> {
        let at = self.limits.binary_search_by(|limit| (*limit.id).cmp(id)).ok()?;
        self.limits.get(at)
    }

    /// The lists for a caller at `node` (anonymous callers stand at `__global`). Creates counters that do not exist yet.
    pub fn plan_for(&self, node: &Node, endpoint: Endpoint, registry: &Registry) -> NodePlan {
        let mut plan = NodePlan::default();
        for limit in self.applying_to(endpoint) {
            let Some(node) = limit.attach.node_for(node) else { continue };
            let counter = registry.counter(limit, &node);
            let gate = if limit.kind.class().is_before_body() { &mut plan.before_body } else { &mut plan.after_parse };
            let armed = Armed::new(limit.clone(), node, counter);
            plan.asks_store |= armed.shared.is_some();
            gate.push(Rc::new(armed));
            plan.has_enforcing_budget |= limit.kind == LimitType::BudgetUsd && limit.is_enforcing();
        }
        plan.before_body.sort_by(|left, right| order::walk(left, right));
        plan.after_parse.sort_by(|left, right| order::walk(left, right));
        plan
    }

    /// The meters a finished request counts in, shadow limits included: what the accountant folds a row into.
    pub fn settled_for(
        &self,
        node: &Node,
        model: &str,
        upstream: &str,
        endpoint: Endpoint,
        registry: &Registry,
    ) -> Vec<(Arc<Limit>, Node, Arc<Meter>)> {
        self.applying_to(endpoint)
            .filter(|limit| limit.kind.class() == Class::LedgerSettled && limit.matches.selects_target(model, upstream))
            .filter_map(|limit| {
                let node = limit.attach.node_for(node)?;
                let meter = registry.meter(limit, &node)?;
                Some((limit.clone(), node, meter))
            })
            .collect()
    }

    /// Counting tokens is free: it costs no money and uses no tokens, so only what counts requests applies to it.
    fn applying_to(&self, endpoint: Endpoint) -> impl Iterator<Item = &Arc<Limit>> {
        self.limits.iter().filter(move |limit| {
            let is_metered = matches!(limit.kind, LimitType::BudgetUsd | LimitType::QuotaTokens | LimitType::Tpm);
            limit.matches.selects_endpoint(endpoint) && !(is_metered && endpoint == Endpoint::CountTokens)
        })
    }
}

impl Armed {
    /// A limit with its counter at `node`.
    pub fn new(limit: Arc<Limit>, node: Node, counter: Counter) -> Armed {
        let shared = (limit.store == Store::Redis).then(|| ScopeHash::of(&limit.identity, &node));
        let policy = limit.rate.as_ref().map(|rate| policy(&limit, rate.amount())).unwrap_or_default();
        Armed { limit, node, counter, shared, policy: policy.into() }
    }
}

impl NodePlan {
    /// The enforcing budget that cannot hold for a model without a price; `None` when none selects the request. Its
    /// caller decides between serving and refusing by `governance.unpriced_models`.
    pub fn enforcing_budget_for(&self, model: &str, upstream: &str) -> Option<&Armed> {
        self.after_parse.iter().map(|armed| &**armed).find(|armed| {
            armed.limit.kind == LimitType::BudgetUsd
                && armed.limit.is_enforcing()
                && armed.limit.matches.selects_target(model, upstream)
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::limit::{AttachDecl, LimitDecl, MatchDecl};

    fn decl(id: &str, kind: &str, attach: &str) -> LimitDecl {
        let (node, level) = match attach.strip_prefix("level:") {
            Some(level) => (None, Some(level.to_owned())),
            None => (Some(attach.to_owned()), None),
        };
        let (period, amount) = match kind {
            "rpm" => (Some("1m"), "600"),
            "tpm" => (Some("1m"), "20000"),
            "concurrency" => (None, "4"),
            _ => (Some("month"), "5"),
        };
        let is_money = kind == "budget_usd";
        LimitDecl {
            path: format!("governance.limits[{id}]"),
            id: Some(id.to_owned()),
            kind: Some(kind.to_owned()),
            attach: Some(AttachDecl { node, level }),
            amount: (!is_money).then(|| amount.to_owned()),
            amount_usd: is_money.then(|| amount.to_owned()),
            period: period.map(str::to_owned),
            ..LimitDecl::default()
        }
    }

    fn set(decls: &[LimitDecl]) -> LimitSet {
        let input = CompileInput { limits: decls, retain_ms: u64::MAX, ..CompileInput::default() };
        compile(input).limits.expect("these limits are valid")
    }

    fn node(text: &str) -> Node {
        Node::parse(text).expect("a well-formed node")
    }

    fn walk(list: &[Rc<Armed>]) -> Vec<String> {
        list.iter().map(|armed| format!("{} {}", armed.limit.id, armed.node)).collect()
    }

    #[test]
    fn a_gate_walks_the_deepest_node_first_then_by_limit_id() {
        let set = set(&[
            decl("z", "rpm", "org:acme/team:ml/user:dev1"),
            decl("b", "rpm", "level:team"),
            decl("a", "concurrency", "org:acme/team:ml"),
            decl("0", "rpm", "__global"),
            decl("other", "rpm", "org:beta"),
        ]);
        let registry = Registry::new();
        let plan = set.plan_for(&node("org:acme/team:ml/user:dev1"), Endpoint::Responses, &registry);
        let want = ["z org:acme/team:ml/user:dev1", "a org:acme/team:ml", "b org:acme/team:ml", "0 __global"];
        assert_eq!(walk(&plan.before_body), want);
        assert!(plan.after_parse.is_empty() && !plan.has_enforcing_budget);
    }

    #[test]
    fn each_type_is_asked_at_the_gate_that_knows_what_it_needs() {
        let kinds = ["rpm", "tpm", "concurrency", "budget_usd", "quota_tokens", "quota_requests"];
        let decls: Vec<_> = kinds.iter().map(|kind| decl(kind, kind, "__global")).collect();
        let set = set(&decls);
        let registry = Registry::new();
        let plan = set.plan_for(&Node::global(), Endpoint::ChatCompletions, &registry);
        assert_eq!(walk(&plan.before_body), ["concurrency __global", "rpm __global"]);
        let after = ["budget_usd __global", "quota_requests __global", "quota_tokens __global", "tpm __global"];
        assert_eq!(walk(&plan.after_parse), after);
        assert!(plan.has_enforcing_budget);
        let plan = set.plan_for(&Node::global(), Endpoint::CountTokens, &registry);
        assert_eq!(walk(&plan.before_body), ["concurrency __global", "rpm __global"]);
        assert_eq!(walk(&plan.after_parse), ["quota_requests __global"], "counting is free, but it is a request");
    }

    #[test]
    fn two_callers_of_one_team_share_its_counter_and_another_team_has_its_own() {
        let set = set(&[decl("team", "rpm", "level:team")]);
        let registry = Registry::new();
        let cell = |caller: &str| {
            let plan = set.plan_for(&node(caller), Endpoint::Messages, &registry);
            match &plan.before_body[0].counter {
                Counter::Cell(cell) if plan.before_body.len() == 1 => Arc::as_ptr(cell),
                other => panic!("one cell expected, got {other:?}"),
            }
        };
        assert_eq!(cell("org:acme/team:ml/user:dev1"), cell("org:acme/team:ml/user:dev2"));
        assert_ne!(cell("org:acme/team:ml/user:dev1"), cell("org:acme/team:web/user:dev1"));
        let above = set.plan_for(&node("org:acme"), Endpoint::Messages, &registry);
        assert!(above.before_body.is_empty(), "an org is no team");
    }

    #[test]
    fn a_row_counts_in_the_meters_that_select_it() {
        let gpt = MatchDecl { model: Some(vec!["gpt-*".to_owned()]), ..MatchDecl::default() };
        let set = set(&[
            LimitDecl { match_: Some(gpt), ..decl("gpt", "budget_usd", "__global") },
            decl("all", "quota_requests", "level:org"),
            decl("rate", "rpm", "__global"),
        ]);
        let registry = Registry::new();
        let meters = |model: &str, endpoint| {
            let rows = set.settled_for(&node("org:acme/team:ml"), model, "openai", endpoint, &registry);
            rows.iter().map(|(limit, node, _)| format!("{} {node}", limit.id)).collect::<Vec<_>>()
        };
        assert_eq!(meters("gpt-4o", Endpoint::ChatCompletions), ["all org:acme", "gpt __global"]);
        assert_eq!(meters("o1", Endpoint::ChatCompletions), ["all org:acme"]);
        assert_eq!(meters("gpt-4o", Endpoint::CountTokens), ["all org:acme"]);
    }

    #[test]
    fn a_reload_that_keeps_the_identity_keeps_the_counter() {
        let registry = Registry::new();
        let before = set(&[decl("team", "rpm", "__global")]);
        let changed =
            LimitDecl { amount: Some("9".into()), burst: Some("2".into()), ..decl("team", "rpm", "__global") };
        let after = set(&[changed]);
        let cell = |set: &LimitSet| {
            let plan = set.plan_for(&Node::global(), Endpoint::Messages, &registry);
            match &plan.before_body[0].counter {
                Counter::Cell(cell) => cell.clone(),
                other => panic!("a cell expected, got {other:?}"),
            }
        };
        assert!(Arc::ptr_eq(&cell(&before), &cell(&after)));
    }

    #[test]
    fn a_cores_copy_shares_counters_but_no_reference_counts() {
        let registry = Registry::new();
        let shared = set(&[decl("team", "rpm", "__global")]);
        let own = shared.copy_for_core();
        let arm = |set: &LimitSet| set.plan_for(&Node::global(), Endpoint::Messages, &registry).before_body.remove(0);
        let (shared, own) = (arm(&shared), arm(&own));
        assert!(!Arc::ptr_eq(&shared.limit, &own.limit));
        assert!(matches!((&shared.counter, &own.counter), (Counter::Cell(a), Counter::Cell(b)) if Arc::ptr_eq(a, b)));
    }

    #[test]
    fn a_model_without_a_price_is_blocked_only_by_an_enforcing_budget_that_selects_it() {
        let gpt = MatchDecl { model: Some(vec!["gpt-*".to_owned()]), ..MatchDecl::default() };
        let shadow = LimitDecl { posture: Some("shadow".into()), ..decl("shadow", "budget_usd", "__global") };
        let set = set(&[LimitDecl { match_: Some(gpt), ..decl("gpt", "budget_usd", "__global") }, shadow]);
        let plan = set.plan_for(&Node::global(), Endpoint::Messages, &Registry::new());
        assert_eq!(plan.enforcing_budget_for("gpt-5", "openai").map(|armed| &*armed.limit.id), Some("gpt"));
        assert!(plan.enforcing_budget_for("mystery-1", "openai").is_none());
    }
}

//! A small gateway without I/O for the tests: limits, counters, a clock that is moved by hand.
#![allow(dead_code)] // each test file uses its own part of it

pub mod dice;

use std::sync::Arc;

use shards::gate::{Ask, Passed, Verdict, after_parse, before_body};
use shards::limit::{AttachDecl, Limit, LimitDecl, MatchDecl};
use shards::meter::{Meter, MeterBeat, PeriodSpan};
use shards::plan::{CompileInput, LimitSet, NodePlan, compile};
use shards::refusal::Refusal;
use shards::registry::Registry;
use shards::scope::{Endpoint, Node};
use shards::settle::OutputBound;
use shards::units::{MonoNs, Now, WallMs};

pub const SECOND_NS: u64 = 1_000_000_000;

/// 2026-08-09T20:44:50Z: 1,912,510 s before September, as in the documented refusal.
pub const BOOT: WallMs = WallMs(1_786_308_290_000);
pub const AUGUST: PeriodSpan = PeriodSpan { start: WallMs(1_785_542_400_000), end: WallMs(1_788_220_800_000) };

pub const DEV: &str = "org:acme/team:ml/user:dev1";

pub fn node(text: &str) -> Node {
    Node::parse(text).expect("a well-formed node")
}

/// `after` seconds past boot, on both clocks.
pub fn at(after: f64) -> Now {
    let ns = (after * 1e9) as u64;
    Now { mono: MonoNs(1_000 * SECOND_NS + ns), wall: WallMs(BOOT.0 + (ns / 1_000_000) as i64) }
}

/// A limit from `id type node-or-level amount`, with the usual period, for [`LimitDecl`]'s update syntax.
pub fn decl(id: &str, kind: &str, attach: &str, amount: &str) -> LimitDecl {
    let (node, level) = match attach.strip_prefix("level:") {
        Some(level) => (None, Some(level.to_owned())),
        None => (Some(attach.to_owned()), None),
    };
    let period = match kind {
        "rpm" | "tpm" => Some("1m"),
        "concurrency" => None,
        _ => Some("month"),
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

pub fn shadow(decl: LimitDecl) -> LimitDecl {
    LimitDecl { posture: Some("shadow".to_owned()), ..decl }
}

pub fn share(decl: LimitDecl) -> LimitDecl {
    LimitDecl { store: Some("share".to_owned()), ..decl }
}

pub fn on_models(decl: LimitDecl, globs: &[&str]) -> LimitDecl {
    let model = Some(globs.iter().map(|glob| (*glob).to_owned()).collect());
    LimitDecl { match_: Some(MatchDecl { model, ..MatchDecl::default() }), ..decl }
}

pub fn limits(decls: &[LimitDecl]) -> LimitSet {
    let input = CompileInput { limits: decls, redis: true, retain_ms: u64::MAX, ..CompileInput::default() };
    compile(input).limits.expect("the test's limits are valid")
}

pub struct Gateway {
    pub set: LimitSet,
    pub registry: Registry,
    pub beat: MeterBeat,
    pub n_live: u32,
}

/// A chat request: 31 bytes of question, nothing bounded.
pub fn chat<'a>() -> Ask<'a> {
    let output = Some(OutputBound { cap: None, choices: 1 });
    Ask { model: "gpt-4o-mini", upstream: "openai", input_tokens: 7, output, free_price: false }
}

impl Gateway {
    pub fn new(decls: &[LimitDecl]) -> Gateway {
        let beat = MeterBeat::new();
        beat.beat(at(0.0).mono);
        Gateway { set: limits(decls), registry: Registry::new(), beat, n_live: 1 }
    }

    pub fn plan(&self, caller: &str) -> NodePlan {
        self.set.plan_for(&node(caller), Endpoint::ChatCompletions, &self.registry)
    }

    /// Both gates, as `request.rs` runs them.
    pub fn ask(&self, caller: &str, now: Now, ask: &Ask<'_>, passed: &mut Passed) -> Result<(), Box<Refusal>> {
        let plan = self.plan(caller);
        if let Verdict::Refused(refusal) = before_body(&plan, now, self.n_live, passed) {
            return Err(refusal);
        }
        match after_parse(&plan, now, self.n_live, &self.beat, ask, passed) {
            Verdict::Admitted => Ok(()),
            Verdict::Refused(refusal) => Err(refusal),
        }
    }

    /// An admitted chat request and what it holds.
    #[track_caller]
    pub fn admit(&self, caller: &str, now: Now) -> Passed {
        let mut passed = Passed::default();
        match self.ask(caller, now, &chat(), &mut passed) {
            Ok(()) => passed,
            Err(refusal) => panic!("admission expected, refused by {}", refusal.limit.id),
        }
    }

    /// The refusal of a chat request, which holds nothing.
    #[track_caller]
    pub fn refuse(&self, caller: &str, now: Now) -> Box<Refusal> {
        let mut passed = Passed::default();
        match self.ask(caller, now, &chat(), &mut passed) {
            Ok(()) => panic!("a refusal expected"),
            Err(refusal) => {
                assert_eq!((passed.held.leases(), passed.held.reserves(), passed.reserved_tokens), (0, 0, 0));
                refusal
            }
        }
    }

    pub fn limit(&self, id: &str) -> &Arc<Limit> {
        self.set.get(id).expect("the test names a limit it has")
    }

    pub fn meter(&self, id: &str, at: &str) -> Arc<Meter> {
        self.registry.meter(self.limit(id), &node(at)).expect("a LedgerSettled limit")
    }
}

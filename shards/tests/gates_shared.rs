//! Gate A of plans that ask the shared store: the same walk as ever, stopped at each limit that is counted there, and what
//! happens without an answer.

mod support;

use proptest::prelude::*;
use shards::coordinate::eval::EvalCall;
use shards::gate::{BeforeBody, Passed, Step, Verdict, before_body};
use shards::limit::LimitDecl;
use shards::plan::{Counter, NodePlan};
use shards::rate::{Script, ScriptReply};
use shards::suspend::Reason;
use support::{DEV, Gateway, at, decl, node, shadow};

const TEAM: &str = "org:acme/team:ml";

fn shared(decl: LimitDecl) -> LimitDecl {
    LimitDecl { store: Some("redis".to_owned()), ..decl }
}

/// A backlog of so many µs behind the verdict.
fn backlog(admitted: bool, us: i64) -> ScriptReply {
    ScriptReply::of(Script::Backlog, [if admitted { us } else { !us }]).expect("what the script says")
}

/// Walks to the end, with these answers in the order of asking. Gives the calls that were made.
fn walk(
    plan: &NodePlan,
    passed: &mut Passed,
    answers: impl IntoIterator<Item = Result<ScriptReply, Reason>>,
) -> (Verdict, Vec<EvalCall>) {
    let mut gate = BeforeBody::new(plan, at(0.0), 1);
    let (mut step, mut calls, mut answers) = (gate.walk(passed), Vec::new(), answers.into_iter());
    loop {
        match step {
            Step::Done(verdict) => return (verdict, calls),
            Step::Ask(call) => {
                calls.push(call);
                step = gate.answered(answers.next().expect("an answer for each call"), passed);
            }
        }
    }
}

/// What the local cell has left.
fn left(gateway: &Gateway, id: &str, at_node: &str) -> u64 {
    let limit = gateway.limit(id);
    match gateway.registry.counter(limit, &node(at_node)) {
        Counter::Cell(cell) => cell.peek(&limit.rate.expect("a rate"), at(0.0).mono).remaining,
        other => panic!("a cell expected, got {other:?}"),
    }
}

#[test]
fn the_store_decides_and_the_local_cell_counts_along() {
    let gateway = Gateway::new(&[shared(decl("rpm", "rpm", TEAM, "60"))]);
    let plan = gateway.plan(DEV);
    assert!(plan.asks_store);
    let mut passed = Passed::default();
    let (verdict, calls) = walk(&plan, &mut passed, [Ok(backlog(true, 12_000_000))]);
    assert!(matches!(verdict, Verdict::Admitted));
    assert_eq!((calls[0].script, calls[0].args), (Script::Backlog, [1_000_000, 60_000_000, 119_000_000]));
    assert_eq!(passed.facts[0].remaining, 48, "what the fleet has left, not this replica");
    assert!(passed.suspended.is_empty());
    assert_eq!(left(&gateway, "rpm", TEAM), 59);
    let (verdict, _) = walk(&plan, &mut Passed::default(), [Ok(backlog(false, 60_000_000))]);
    let Verdict::Refused(refusal) = verdict else { panic!("the store refused") };
    assert_eq!((&*refusal.limit.id, refusal.wait.seconds(), refusal.suspended.len()), ("rpm", Some(1), 0));
    assert_eq!(left(&gateway, "rpm", TEAM), 59, "a refusal is not counted");
}

#[test]
fn without_an_answer_the_local_cell_decides_with_the_full_amount_and_says_so() {
    let gateway = Gateway::new(&[shared(decl("rpm", "rpm", TEAM, "2"))]);
    let plan = gateway.plan(DEV);
    assert!(matches!(walk(&plan, &mut Passed::default(), [Ok(backlog(true, 30_000_000))]).0, Verdict::Admitted));
    let mut passed = Passed::default();
    let (verdict, _) = walk(&plan, &mut passed, [Err(Reason::RedisDeadlineExceeded)]);
    assert!(matches!(verdict, Verdict::Admitted), "one of two was seen here");
    assert_eq!(passed.suspended.as_slice(), [("rpm".into(), Reason::RedisDeadlineExceeded)]);
    let mut passed = Passed::default();
    let (verdict, _) = walk(&plan, &mut passed, [Err(Reason::RedisBreakerOpen)]);
    let Verdict::Refused(refusal) = verdict else { panic!("two of two are used") };
    assert_eq!(refusal.suspended.as_slice(), [("rpm".into(), Reason::RedisBreakerOpen)]);
    assert_eq!(refusal.suspended, passed.suspended, "row and body say the same");
}

#[test]
fn the_walk_keeps_its_order_and_stops_at_the_first_that_refuses() {
    let gateway = Gateway::new(&[
        decl("a_slots", "concurrency", DEV, "9"),
        shared(decl("b_user", "rpm", DEV, "10")),
        decl("c_team", "rpm", TEAM, "10"),
        shared(decl("d_all", "rpm", "__global", "10")),
    ]);
    let plan = gateway.plan(DEV);
    let mut passed = Passed::default();
    let answers = [Ok(backlog(true, 6_000_000)), Ok(backlog(false, 60_000_000))];
    let (verdict, calls) = walk(&plan, &mut passed, answers);
    let Verdict::Refused(refusal) = verdict else { panic!("the store refused") };
    assert_eq!((&*refusal.limit.id, calls.len()), ("d_all", 2));
    assert_ne!(calls[0].scope, calls[1].scope);
    assert_eq!(passed.held.leases(), 0, "the slot taken on the way is returned");
    assert_eq!((left(&gateway, "b_user", DEV), left(&gateway, "c_team", TEAM)), (9, 9), "arrivals stay counted");
    let (verdict, calls) = walk(&plan, &mut Passed::default(), [Ok(backlog(false, 60_000_000))]);
    let Verdict::Refused(refusal) = verdict else { panic!("the store refused") };
    assert_eq!((&*refusal.limit.id, calls.len()), ("b_user", 1));
    assert_eq!(left(&gateway, "c_team", TEAM), 9, "nothing behind it is asked");
}

#[test]
fn a_shadow_limit_is_asked_and_noted_and_never_refuses() {
    let gateway = Gateway::new(&[shadow(shared(decl("rpm", "rpm", DEV, "1"))), decl("wide", "rpm", "__global", "5")]);
    let plan = gateway.plan(DEV);
    let mut passed = Passed::default();
    let (verdict, calls) = walk(&plan, &mut passed, [Ok(backlog(false, 60_000_000))]);
    assert!(matches!(verdict, Verdict::Admitted));
    assert_eq!((calls.len(), passed.shadow.as_slice()), (1, &["rpm".into()][..]));
    assert_eq!(passed.facts.len(), 1, "callers hear of the limit that can refuse them");
    assert_eq!(left(&gateway, "wide", "__global"), 4);
}

#[test]
fn a_plan_without_a_shared_limit_asks_nobody() {
    let gateway = Gateway::new(&[decl("rpm", "rpm", DEV, "5"), decl("slots", "concurrency", DEV, "5")]);
    let plan = gateway.plan(DEV);
    assert!(!plan.asks_store);
    assert!(matches!(walk(&plan, &mut Passed::default(), []).0, Verdict::Admitted));
}

fn any_limit() -> impl Strategy<Value = LimitDecl> {
    let node = prop_oneof![Just(DEV), Just(TEAM), Just("org:acme"), Just("__global")];
    (node, 1..4_u8, any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
        |(node, amount, is_rate, is_shadow, is_shared)| {
            let limit = decl("", if is_rate { "rpm" } else { "concurrency" }, node, &amount.to_string());
            let limit = if is_rate && is_shared { shared(limit) } else { limit };
            if is_shadow { shadow(limit) } else { limit }
        },
    )
}

proptest! {
    /// A store that never answers changes no verdict and no count of a replica: only what is disclosed.
    #[test]
    fn a_store_that_never_answers_leaves_every_verdict_as_it_was(limits in proptest::collection::vec(any_limit(), 1..6)) {
        let decls: Vec<_> = limits
            .into_iter()
            .enumerate()
            .map(|(nth, limit)| LimitDecl {
                id: Some(format!("l{nth}")),
                path: format!("governance.limits[{nth}]"),
                ..limit
            })
            .collect();
        let (asking, alone) = (Gateway::new(&decls), Gateway::new(&decls));
        for _ in 0..6 {
            let (mut asked, mut local) = (Passed::default(), Passed::default());
            let silence = std::iter::repeat(Err(Reason::RedisDeadlineExceeded));
            let (verdict, calls) = walk(&asking.plan(DEV), &mut asked, silence);
            let there = before_body(&alone.plan(DEV), at(0.0), 1, &mut local);
            match (verdict, there) {
                (Verdict::Admitted, Verdict::Admitted) => {}
                (Verdict::Refused(one), Verdict::Refused(other)) => {
                    prop_assert_eq!((&one.limit.id, one.wait), (&other.limit.id, other.wait));
                }
                (one, other) => prop_assert!(false, "{:?} and {:?}", one, other),
            }
            prop_assert_eq!(&asked.shadow, &local.shadow);
            prop_assert_eq!(asked.held.leases(), local.held.leases());
            prop_assert_eq!(asked.suspended.len(), calls.len(), "each call that went unanswered is told");
        }
    }
}

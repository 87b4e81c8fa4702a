//! The two gates on hand-countable examples: what is counted, what comes back, who answers.

mod support;

use shards::gate::{Ask, Converging, FleetSeen, Passed, Verdict, after_parse, before_body};
use shards::limit::{Limit, LimitDecl};
use shards::meter::PeerLag;
use shards::plan::{Armed, Counter};
use shards::refusal::Wait;
use shards::scope::{Endpoint, Node};
use shards::settle::{OutputBound, Settlement};
use shards::suspend::Reason;
use support::{AUGUST, DEV, Gateway, SECOND_NS, at, chat, decl, limits, node, on_models, shadow, share};

const TEAM: &str = "org:acme/team:ml";

/// What is left of a rate at `node`, on a plan of its own.
fn remaining(gateway: &Gateway, id: &str, at_node: &str, now: shards::units::Now) -> u64 {
    let limit: &Limit = gateway.limit(id);
    match gateway.registry.counter(limit, &node(at_node)) {
        Counter::Cell(cell) => cell.peek(&limit.effective_rate(gateway.n_live).expect("a rate"), now.mono).remaining,
        other => panic!("a cell expected, got {other:?}"),
    }
}

fn in_flight(gateway: &Gateway, id: &str, at_node: &str) -> u32 {
    match gateway.registry.counter(gateway.limit(id), &node(at_node)) {
        Counter::Gauge(gauge) => gauge.in_flight(),
        other => panic!("a gauge expected, got {other:?}"),
    }
}

#[test]
fn rpm_admits_its_burst_and_then_one_request_each_interval() {
    let gateway = Gateway::new(&[decl("team_rpm", "rpm", TEAM, "3")]);
    for left in [2, 1, 0] {
        assert_eq!(gateway.admit(DEV, at(0.0)).facts[0].remaining, left);
    }
    let refusal = gateway.refuse(DEV, at(0.0));
    assert_eq!((refusal.wait, refusal.node.as_str()), (Wait::After { ms: 20_000 }, TEAM));
    assert_eq!(gateway.refuse(DEV, at(19.5)).wait, Wait::After { ms: 500 });
    gateway.admit(DEV, at(20.0));
}

#[test]
fn concurrency_never_passes_its_cap_and_a_refusal_shows_the_live_count() {
    let gateway = Gateway::new(&[decl("user_slots", "concurrency", "level:user", "2")]);
    let (first, second) = (gateway.admit(DEV, at(0.0)), gateway.admit(DEV, at(0.0)));
    let refusal = gateway.refuse(DEV, at(0.0));
    assert_eq!((refusal.observed, refusal.amount, refusal.wait), (Some(2), 2, Wait::Unknown));
    gateway.admit("org:acme/team:ml/user:dev2", at(0.0));
    drop(first);
    drop(gateway.admit(DEV, at(0.0)));
    drop(second);
    assert_eq!(in_flight(&gateway, "user_slots", DEV), 0);
}

#[test]
fn the_deepest_limit_that_is_over_answers_and_nothing_behind_it_is_counted() {
    let gateway = Gateway::new(&[
        decl("wide", "rpm", "__global", "1"),
        decl("narrow", "rpm", DEV, "1"),
        decl("middle", "rpm", TEAM, "5"),
    ]);
    gateway.admit(DEV, at(0.0));
    assert_eq!(&*gateway.refuse(DEV, at(0.0)).limit.id, "narrow", "both narrow and wide are over");
    assert_eq!(remaining(&gateway, "middle", TEAM, at(0.0)), 4, "the walk stopped before it");
}

#[test]
fn a_refusal_at_gate_a_returns_the_slots_taken_on_the_way() {
    let gateway = Gateway::new(&[decl("slots", "concurrency", DEV, "9"), decl("one", "rpm", "__global", "1")]);
    let running = gateway.admit(DEV, at(0.0));
    gateway.refuse(DEV, at(0.0));
    assert_eq!(in_flight(&gateway, "slots", DEV), 1);
    drop(running);
    assert_eq!(in_flight(&gateway, "slots", DEV), 0);
}

#[test]
fn a_refusal_at_gate_b_returns_leases_and_reserves_while_the_rpm_count_stays() {
    let gateway = Gateway::new(&[
        decl("rpm", "rpm", DEV, "10"),
        decl("slots", "concurrency", DEV, "5"),
        decl("tpm", "tpm", DEV, "40000"),
        decl("budget", "budget_usd", "__global", "1"),
    ]);
    gateway.meter("budget", "__global").publish(AUGUST, 1_000_000_000);
    let refusal = gateway.refuse(DEV, at(0.0));
    assert_eq!((&*refusal.limit.id, refusal.observed), ("budget", Some(1_000_000_000)));
    assert_eq!(remaining(&gateway, "rpm", DEV, at(0.0)), 9);
    assert_eq!(remaining(&gateway, "tpm", DEV, at(0.0)), 40_000);
    assert_eq!(in_flight(&gateway, "slots", DEV), 0);
}

#[test]
fn a_shadow_limit_counts_and_is_noted_but_never_refuses() {
    let gateway = Gateway::new(&[
        shadow(decl("rpm", "rpm", DEV, "1")),
        shadow(decl("slots", "concurrency", DEV, "1")),
        shadow(decl("tpm", "tpm", DEV, "20000")),
        shadow(decl("budget", "budget_usd", DEV, "1")),
    ]);
    gateway.meter("budget", DEV).publish(AUGUST, 1_000_000_000);
    let first = gateway.admit(DEV, at(0.0));
    assert_eq!(first.shadow.as_slice(), ["budget".into()]);
    assert!(first.facts.is_empty(), "callers are not told of limits that cannot refuse them");
    let second = gateway.admit(DEV, at(0.0));
    assert_eq!(second.shadow.as_slice(), ["rpm", "slots", "budget", "tpm"].map(Into::into));
    assert_eq!((second.held.leases(), second.held.reserves()), (1, 0), "the lease is held, the reserve is not taken");
    assert_eq!(in_flight(&gateway, "slots", DEV), 2, "over its cap, and it says so");
    assert_eq!(remaining(&gateway, "tpm", DEV, at(0.0)), 20_000 - 16_391);
    let mut second = second;
    second.held.settle(at(0.0).mono, 1, Settlement::Used { tokens: 9_000 });
    assert_eq!(remaining(&gateway, "tpm", DEV, at(0.0)), 20_000 - 16_391, "a reserve not taken settles nothing");
    drop((first, second));
    assert_eq!(in_flight(&gateway, "slots", DEV), 0);
    assert_eq!(remaining(&gateway, "tpm", DEV, at(0.0)), 20_000);
}

#[test]
fn an_enforcing_limit_behind_a_shadow_one_still_refuses_and_the_note_stays() {
    let gateway = Gateway::new(&[shadow(decl("trial", "rpm", DEV, "1")), decl("real", "rpm", "__global", "1")]);
    gateway.admit(DEV, at(0.0));
    let mut passed = Passed::default();
    let refusal = gateway.ask(DEV, at(0.0), &chat(), &mut passed).expect_err("over");
    assert_eq!((&*refusal.limit.id, passed.shadow.as_slice()), ("real", ["trial".into()].as_slice()));
}

#[test]
fn a_budget_is_spent_at_its_amount_and_fresh_the_instant_the_month_ends() {
    let gateway = Gateway::new(&[decl("budget", "budget_usd", "level:org", "0.000001")]);
    let meter = gateway.meter("budget", "org:acme");
    meter.publish(AUGUST, 999);
    gateway.admit(DEV, at(0.0));
    meter.publish(AUGUST, 1_000);
    let refusal = gateway.refuse(DEV, at(0.0));
    assert_eq!((refusal.wait, refusal.resets_at), (Wait::After { ms: 1_912_510_000 }, Some(AUGUST.end)));
    let end = at(1_912_510.0);
    gateway.beat.beat(end.mono);
    gateway.refuse(DEV, at(1_912_509.9));
    gateway.admit(DEV, end);
}

#[test]
fn a_stale_meter_admits_and_is_disclosed() {
    let gateway =
        Gateway::new(&[decl("budget", "budget_usd", "__global", "1"), decl("quota", "quota_tokens", TEAM, "1")]);
    gateway.meter("budget", "__global").publish(AUGUST, u64::MAX);
    gateway.refuse(DEV, at(30.0));
    let passed = gateway.admit(DEV, at(30.001));
    let want = [("quota".into(), Reason::MeterStale), ("budget".into(), Reason::MeterStale)];
    assert_eq!(passed.suspended.as_slice(), want);
}

#[test]
fn a_model_that_costs_nothing_is_served_when_the_budget_is_spent_but_not_past_a_quota() {
    let gateway =
        Gateway::new(&[decl("budget", "budget_usd", "__global", "1"), decl("quota", "quota_tokens", "__global", "10")]);
    gateway.meter("budget", "__global").publish(AUGUST, u64::MAX);
    let free = Ask { free_price: true, ..chat() };
    let mut passed = Passed::default();
    assert!(gateway.ask(DEV, at(0.0), &free, &mut passed).is_ok());
    gateway.refuse(DEV, at(0.0));
    gateway.meter("quota", "__global").publish(AUGUST, 10);
    let refusal = gateway.ask(DEV, at(0.0), &free, &mut passed).expect_err("the quota is spent");
    assert_eq!(&*refusal.limit.id, "quota");
}

#[test]
fn a_limit_on_some_models_leaves_the_others_alone() {
    let gateway = Gateway::new(&[on_models(decl("gpt", "quota_requests", "__global", "1"), &["gpt-*"])]);
    gateway.meter("gpt", "__global").publish(AUGUST, 1);
    gateway.refuse(DEV, at(0.0));
    let other = Ask { model: "o1", ..chat() };
    assert!(gateway.ask(DEV, at(0.0), &other, &mut Passed::default()).is_ok());
}

#[test]
fn an_unbounded_question_reserves_16_391_tokens_and_gives_back_what_it_did_not_use() {
    let gateway = Gateway::new(&[decl("tpm", "tpm", TEAM, "20000")]);
    let mut passed = gateway.admit(DEV, at(0.0));
    assert_eq!((passed.reserved_tokens, passed.facts[0].remaining), (16_391, 3_609));
    passed.held.settle(at(0.0).mono, 1, Settlement::Used { tokens: 140 });
    assert_eq!(remaining(&gateway, "tpm", TEAM, at(0.0)), 20_000 - 140);
    passed.held.settle(at(0.0).mono, 1, Settlement::Returned);
    drop(passed);
    assert_eq!(remaining(&gateway, "tpm", TEAM, at(0.0)), 20_000 - 140, "settled once");
}

#[test]
fn use_beyond_the_reserve_is_debited_and_a_failed_request_books_nothing() {
    let gateway = Gateway::new(&[decl("tpm", "tpm", TEAM, "60000")]);
    let bounded = Ask { output: Some(OutputBound { cap: Some(93), choices: 1 }), ..chat() };
    let mut passed = Passed::default();
    assert!(gateway.ask(DEV, at(0.0), &bounded, &mut passed).is_ok());
    assert_eq!(passed.reserved_tokens, 100);
    passed.held.settle(at(0.0).mono, 1, Settlement::Used { tokens: 1_000 });
    assert_eq!(remaining(&gateway, "tpm", TEAM, at(0.0)), 59_000);
    passed.clear();
    assert!(gateway.ask(DEV, at(0.0), &bounded, &mut passed).is_ok());
    passed.held.settle(at(0.0).mono, 1, Settlement::Returned);
    assert_eq!(remaining(&gateway, "tpm", TEAM, at(0.0)), 59_000);
}

#[test]
fn a_dropped_request_returns_everything_also_long_after_it_began() {
    let gateway = Gateway::new(&[decl("tpm", "tpm", TEAM, "20000"), decl("slots", "concurrency", DEV, "1")]);
    let passed = gateway.admit(DEV, at(0.0));
    assert_eq!(remaining(&gateway, "tpm", TEAM, at(10.0)), 3_609 + 3_333, "20,000 a minute are 3,333 in 10 s");
    drop(passed);
    assert_eq!(remaining(&gateway, "tpm", TEAM, at(10.0)), 20_000);
    assert_eq!(in_flight(&gateway, "slots", DEV), 0);
}

#[test]
fn a_panicking_request_returns_everything() {
    let gateway = Gateway::new(&[decl("tpm", "tpm", TEAM, "20000"), decl("slots", "concurrency", DEV, "1")]);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _passed = gateway.admit(DEV, at(0.0));
        std::panic::resume_unwind(Box::new("a task died"));
    }));
    assert!(panicked.is_err());
    assert_eq!(in_flight(&gateway, "slots", DEV), 0);
    assert_eq!(remaining(&gateway, "tpm", TEAM, at(0.0)), 20_000);
}

#[test]
fn a_prompt_larger_than_the_burst_is_never_admitted() {
    let gateway = Gateway::new(&[decl("tpm", "tpm", TEAM, "20000")]);
    let huge = Ask { input_tokens: 20_001, ..chat() };
    let refusal = gateway.ask(DEV, at(0.0), &huge, &mut Passed::default()).expect_err("it cannot fit");
    assert_eq!(refusal.wait, Wait::Never);
    let full = Ask { input_tokens: 20_000, ..chat() };
    assert!(gateway.ask(DEV, at(0.0), &full, &mut Passed::default()).is_ok());
}

#[test]
fn a_share_is_enforced_and_reported_and_moves_with_n_without_a_reset() {
    let mut gateway = Gateway::new(&[
        share(decl("rpm", "rpm", TEAM, "600")),
        share(decl("slots", "concurrency", TEAM, "4")),
        share(decl("tpm", "tpm", TEAM, "30000")),
    ]);
    gateway.n_live = 3;
    let running = gateway.admit(DEV, at(0.0));
    let rpm = &running.facts[0];
    assert_eq!((rpm.limit_amount, rpm.burst, rpm.remaining), (200, 200, 199));
    let tpm = &running.facts[1];
    assert_eq!((tpm.limit_amount, tpm.burst, tpm.remaining), (10_000, 16_384, 0), "the burst stays at the reserve cap");
    drop(running);
    let running = [gateway.admit(DEV, at(0.0)), gateway.admit(DEV, at(120.0))];
    assert_eq!(gateway.refuse(DEV, at(240.0)).amount, 2, "ceil(4 / 3) slots here");
    gateway.n_live = 1;
    let third = gateway.admit(DEV, at(240.0));
    assert_eq!(third.facts[0].limit_amount, 600);
    drop((running, third));
}

#[test]
fn looking_shows_every_class_as_it_is_enforced_and_takes_nothing() {
    let mut gateway = Gateway::new(&[
        share(decl("rpm", "rpm", DEV, "60")),
        decl("slots", "concurrency", DEV, "5"),
        decl("quota", "quota_tokens", DEV, "1000"),
    ]);
    gateway.n_live = 2;
    gateway.meter("quota", DEV).publish(AUGUST, 140);
    let _running = gateway.admit(DEV, at(0.0));
    for _ in 0..2 {
        let plan = gateway.plan(DEV);
        let state = |armed: &Armed| armed.look(at(0.0), 2);
        let (rpm, slots, quota) =
            (state(&plan.before_body[0]), state(&plan.before_body[1]), state(&plan.after_parse[0]));
        assert_eq!((rpm.amount, rpm.remaining, rpm.reset_ms, rpm.used), (30, Some(29), Some(2_000), None));
        assert_eq!((slots.amount, slots.used, slots.remaining), (5, Some(1), None));
        assert_eq!((quota.amount, quota.used, quota.resets_at), (1_000, Some(140), Some(AUGUST.end)));
    }
}

#[test]
fn counting_tokens_is_free_but_it_is_a_request() {
    let gateway = Gateway::new(&[
        decl("rpm", "rpm", DEV, "9"),
        decl("tpm", "tpm", DEV, "20000"),
        decl("budget", "budget_usd", DEV, "1"),
        decl("requests", "quota_requests", DEV, "1"),
    ]);
    gateway.meter("budget", DEV).publish(AUGUST, u64::MAX);
    let plan = gateway.set.plan_for(&node(DEV), Endpoint::CountTokens, &gateway.registry);
    let mut passed = Passed::default();
    let asked = |passed: &mut Passed| {
        let ask = Ask { output: None, ..chat() };
        assert!(matches!(before_body(&plan, at(0.0), 1, passed), Verdict::Admitted));
        after_parse(&plan, at(0.0), 1, &gateway.beat, &ask, passed)
    };
    assert!(matches!(asked(&mut passed), Verdict::Admitted));
    assert_eq!((passed.reserved_tokens, passed.facts[0].remaining), (0, 8));
    gateway.meter("requests", DEV).publish(AUGUST, 1);
    assert!(matches!(asked(&mut passed), Verdict::Refused(refusal) if &*refusal.limit.id == "requests"));
}

#[test]
fn a_cleared_record_is_as_new_and_keeps_its_room() {
    let gateway = Gateway::new(&[decl("tpm", "tpm", DEV, "20000"), decl("slots", "concurrency", DEV, "1")]);
    let mut passed = gateway.admit(DEV, at(0.0));
    passed.clear();
    assert_eq!((in_flight(&gateway, "slots", DEV), remaining(&gateway, "tpm", DEV, at(0.0))), (0, 20_000));
    assert!(passed.facts.is_empty() && passed.shadow.is_empty() && passed.suspended.is_empty());
    assert_eq!(passed.reserved_tokens, 0);
}

#[test]
fn a_reload_keeps_what_was_counted_and_settles_what_was_reserved_before_it() {
    let mut gateway = Gateway::new(&[decl("tpm", "tpm", DEV, "20000"), decl("slots", "concurrency", DEV, "5")]);
    let mut running = gateway.admit(DEV, at(0.0));
    gateway.set = limits(&[decl("tpm", "tpm", DEV, "40000"), decl("slots", "concurrency", DEV, "1")]);
    assert_eq!(gateway.refuse(DEV, at(0.0)).observed, Some(1), "the running request still counts");
    let left = remaining(&gateway, "tpm", DEV, at(0.0));
    assert_eq!(left, 40_000 - 2 * 16_391, "the used part stays the same part of twice the rate");
    running.held.settle(at(0.0).mono, 1, Settlement::Returned);
    assert_eq!(remaining(&gateway, "tpm", DEV, at(0.0)), 40_000);
}

#[test]
fn any_number_of_threads_pass_neither_cap() {
    let gateway = Gateway::new(&[decl("rpm", "rpm", "__global", "600"), decl("slots", "concurrency", "__global", "3")]);
    let gateway = &gateway;
    let asked = &std::sync::atomic::AtomicU64::new(0);
    let admitted: u64 = std::thread::scope(|scope| {
        let cores = (0..4).map(|_| {
            scope.spawn(move || {
                let plan = gateway.set.plan_for(&Node::global(), Endpoint::Responses, &gateway.registry);
                let (mut passed, mut admitted) = (Passed::default(), 0);
                for _ in 0..5_000 {
                    // 20,000 requests in one second of virtual time: 600 at once and 10 that time re-earned.
                    let tick = asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    let mut now = at(0.0);
                    now.mono.0 += tick * SECOND_NS / 20_000;
                    if let Verdict::Admitted = before_body(&plan, now, 1, &mut passed) {
                        admitted += 1;
                        assert!(in_flight(gateway, "slots", "__global") <= 3);
                    }
                    passed.clear();
                }
                admitted
            })
        });
        let cores: Vec<_> = cores.collect();
        cores.into_iter().map(|core| core.join().expect("no core panics")).sum()
    });
    assert!(admitted <= 610, "{admitted} admitted");
    assert_eq!(in_flight(gateway, "slots", "__global"), 0);
}

#[test]
fn a_share_of_an_unsure_number_is_enforced_and_disclosed_at_both_gates() {
    let gateway = Gateway::new(&[
        share(decl("shared_rpm", "rpm", TEAM, "2")),
        share(decl("shared_slots", "concurrency", TEAM, "5")),
        share(LimitDecl { burst: Some("20000".to_owned()), ..decl("shared_tpm", "tpm", TEAM, "20000") }),
        decl("local_rpm", "rpm", TEAM, "9"),
    ]);
    let stale = FleetSeen { share_suspended: Some(Reason::MembershipStale), converging: None };
    let mut passed = Passed { fleet: stale, ..Passed::default() };
    gateway.ask(DEV, at(0.0), &chat(), &mut passed).expect("room for two");
    let mut suspended: Vec<_> = passed.suspended.iter().map(|(id, reason)| (id.to_string(), *reason)).collect();
    suspended.sort();
    let shared = ["shared_rpm", "shared_slots", "shared_tpm"].map(|id| (id.to_owned(), Reason::MembershipStale));
    assert_eq!(suspended, shared);
    passed.clear();
    assert_eq!(passed.fleet, FleetSeen::default());
    passed.fleet = stale;
    gateway.ask(DEV, at(0.0), &chat(), &mut passed).expect("what was held came back, but for one of two arrivals");
    passed.clear();
    passed.fleet = stale;
    let refusal = gateway.ask(DEV, at(0.0), &chat(), &mut passed).expect_err("two of two are spent");
    assert_eq!((&*refusal.limit.id, refusal.suspended.len()), ("shared_rpm", 1));
}

#[test]
fn peers_burn_that_cannot_be_relied_on_still_counts_and_is_disclosed_with_its_lag() {
    let gateway = Gateway::new(&[decl("quota", "quota_requests", TEAM, "5")]);
    let meter = gateway.meter("quota", TEAM);
    meter.publish(AUGUST, 1);
    meter.publish_remote(AUGUST, 3);
    meter.publish_unsent(1);
    let as_of = at(0.0).mono;
    meter.publish_lag(PeerLag { row_ms: 1_500, rows_per_s: 2, as_of });
    let converging = |suspended| FleetSeen { share_suspended: None, converging: Some(Converging { suspended }) };
    let mut passed = Passed { fleet: converging(Some(Reason::NeverSynced)), ..Passed::default() };
    gateway.ask(DEV, at(0.0), &chat(), &mut passed).expect("four of five");
    assert_eq!(passed.suspended.to_vec(), [(gateway.limit("quota").id.clone(), Reason::NeverSynced)]);
    meter.publish_remote(AUGUST, 4);
    let mut passed = Passed { fleet: converging(None), ..Passed::default() };
    let refusal = gateway.ask(DEV, at(2.0), &chat(), &mut passed).expect_err("five of five");
    assert!(refusal.suspended.is_empty());
    // Own: one. Peers: 1.5 at first, two a second for two seconds: 5.5, rounded up.
    assert_eq!(refusal.bound.convergence_lag_rows, Some(7));
    let mut alone = Passed::default();
    let refusal = gateway.ask(DEV, at(2.0), &chat(), &mut alone).expect_err("five of five");
    assert_eq!(refusal.bound.convergence_lag_rows, None, "a node on its own lags behind nobody");
}

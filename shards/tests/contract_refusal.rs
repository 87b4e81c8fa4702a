//! The bytes a caller sees: bodies and headers of refusals for every limit type in both envelopes, and the rate headers
//! of served responses. Also the promise behind them: who waits as told is admitted.

mod support;

use proptest::prelude::*;
use shards::gate::{Ask, Passed};
use shards::limit::LimitDecl;
use shards::refusal::{Enforcement, Family, LedgerBound, Refusal, Wait, enforcement, rate_headers};
use shards::suspend::Reason;
use shards::units::{MonoNs, Now, WallMs};
use support::{AUGUST, DEV, Gateway, at, chat, decl, share};

const ID: &str = "tt_i3f2naenug5aanctu6pcjrofcy";
const TEAM: &str = "org:acme/team:ml";

fn body(refusal: &Refusal, family: Family) -> String {
    let mut out = Vec::new();
    refusal.body(family, ID.as_bytes(), &mut out);
    String::from_utf8(out).expect("a body is UTF-8")
}

fn headers(refusal: &Refusal) -> String {
    let mut out = Vec::new();
    refusal.headers(&mut out);
    String::from_utf8(out).expect("headers are ASCII")
}

fn served(passed: &Passed, family: Family, now: Now) -> String {
    let mut out = Vec::new();
    rate_headers(&passed.facts, family, now, &mut out);
    String::from_utf8(out).expect("headers are ASCII")
}

fn spent_budget() -> Box<Refusal> {
    let gateway = Gateway::new(&[decl("org_monthly_budget", "budget_usd", "org:acme", "0.000001")]);
    gateway.meter("org_monthly_budget", "org:acme").publish(AUGUST, 12_600);
    gateway.refuse(DEV, at(0.0))
}

#[test]
fn a_spent_budget_in_openais_envelope() {
    let refusal = spent_budget();
    assert_eq!(
        body(&refusal, Family::OpenAi),
        concat!(
            r#"{"error":{"type":"budget_exceeded","message":"request refused by limit org_monthly_budget","#,
            r#""param":null,"code":"budget_exceeded","#,
            r#""refused_by":{"limit_id":"org_monthly_budget","limit_type":"budget_usd","unit":"usd","node":"org:acme","#,
            r#""period":"month","resets_at":"2026-09-01T00:00:00Z","retry_after_s":1912510,"#,
            r#""observed":0.0000126,"limit":0.000001},"#,
            r#""enforcement":{"posture":"enforcing","approximate":true,"bound":{"tee_lag_rows":0,"dropped_rows":0},"#,
            r#""note":"spend from in-flight and streaming requests admitted before this refusal may not yet be reflected"}}}"#,
        )
    );
    assert_eq!(
        headers(&refusal),
        "Retry-After: 1912510\r\nx-should-retry: false\r\nRateLimit: \"org_monthly_budget\";r=0;t=1912510\r\n\
         x-tt-refusal-type: budget_exceeded\r\nx-tt-refused-by: org_monthly_budget\r\n"
    );
}

#[test]
fn the_same_facts_in_anthropics_envelope() {
    let refusal = spent_budget();
    assert_eq!(
        body(&refusal, Family::Anthropic),
        concat!(
            r#"{"type":"error","error":{"type":"rate_limit_error","message":"request refused by limit org_monthly_budget","#,
            r#""code":"budget_exceeded","#,
            r#""refused_by":{"limit_id":"org_monthly_budget","limit_type":"budget_usd","unit":"usd","node":"org:acme","#,
            r#""period":"month","resets_at":"2026-09-01T00:00:00Z","retry_after_s":1912510,"#,
            r#""observed":0.0000126,"limit":0.000001},"#,
            r#""enforcement":{"posture":"enforcing","approximate":true,"bound":{"tee_lag_rows":0,"dropped_rows":0},"#,
            r#""note":"spend from in-flight and streaming requests admitted before this refusal may not yet be reflected"}},"#,
            r#""request_id":"tt_i3f2naenug5aanctu6pcjrofcy"}"#,
        )
    );
}

#[test]
fn spent_quotas_are_told_in_their_own_unit() {
    for (kind, unit, note) in [
        (
            "quota_tokens",
            "tokens",
            "tokens of in-flight and streaming requests admitted before this refusal may not yet be reflected",
        ),
        (
            "quota_requests",
            "requests",
            "requests admitted before this refusal and still in flight may not yet be reflected",
        ),
    ] {
        let gateway = Gateway::new(&[decl("quota", kind, "level:team", "1000")]);
        gateway.meter("quota", TEAM).publish(AUGUST, 1_265);
        let soon = at(1_912_449.5); // 60.5 s before the month ends
        gateway.beat.beat(soon.mono);
        let mut refusal = gateway.refuse(DEV, soon);
        refusal.bound = LedgerBound {
            tee_lag_rows: 3,
            dropped_rows: 1,
            convergence_lag_rows: Some(7),
            convergence_age_ms: Some(640),
        };
        let want = format!(
            concat!(
                r#"{{"error":{{"type":"quota_exceeded","message":"request refused by limit quota","#,
                r#""param":null,"code":"quota_exceeded","#,
                r#""refused_by":{{"limit_id":"quota","limit_type":"{kind}","unit":"{unit}","node":"org:acme/team:ml","#,
                r#""period":"month","resets_at":"2026-09-01T00:00:00Z","retry_after_s":61,"observed":1265,"limit":1000}},"#,
                r#""enforcement":{{"posture":"enforcing","approximate":true,"#,
                r#""bound":{{"tee_lag_rows":3,"dropped_rows":1,"convergence_lag_rows":7,"convergence_age_ms":640}},"#,
                r#""note":"{note}"}}}}}}"#,
            ),
            kind = kind,
            unit = unit,
            note = note,
        );
        assert_eq!(body(&refusal, Family::OpenAi), want);
        refusal.bound.convergence_age_ms = Some(12_345);
        let late = body(&refusal, Family::OpenAi);
        let want =
            format!(r#""convergence_age_ms":12345}},"note":"{note}; peers' burn of the last 12 s is missing"}}}}}}"#);
        assert!(late.ends_with(&want), "{late}");
        let sooner = gateway.refuse(DEV, at(1_912_470.0));
        let lines = "Retry-After: 40\r\nx-should-retry: false\r\nRateLimit: \"quota\";r=0;t=40\r\n";
        assert!(headers(&sooner).starts_with(lines), "never a retry, however soon the period ends");
    }
}

#[test]
fn a_short_rate_refusal_may_be_retried_and_says_when_to_the_millisecond() {
    let gateway = Gateway::new(&[decl("team_rpm", "rpm", TEAM, "3")]);
    for _ in 0..3 {
        drop(gateway.admit(DEV, at(0.0)));
    }
    let refusal = gateway.refuse(DEV, at(0.1234));
    assert_eq!(
        body(&refusal, Family::OpenAi),
        concat!(
            r#"{"error":{"type":"rate_limited","message":"request refused by limit team_rpm","#,
            r#""param":null,"code":"rate_limited","#,
            r#""refused_by":{"limit_id":"team_rpm","limit_type":"rpm","unit":"requests","node":"org:acme/team:ml","#,
            r#""period":"1m0s","retry_after_s":20},"enforcement":{"posture":"enforcing","approximate":false}}}"#,
        )
    );
    assert_eq!(
        headers(&refusal),
        "Retry-After: 20\r\nretry-after-ms: 19877\r\nRateLimit: \"team_rpm\";r=0;t=20\r\n\
         x-tt-refusal-type: rate_limited\r\nx-tt-refused-by: team_rpm\r\n"
    );
}

#[test]
fn a_rate_refusal_of_more_than_a_minute_tells_the_sdk_to_give_up() {
    let hourly = LimitDecl { period: Some("1h".to_owned()), ..decl("hourly", "rpm", TEAM, "59") };
    let gateway = Gateway::new(&[LimitDecl { burst: Some("1".to_owned()), ..hourly }]);
    gateway.admit(DEV, at(0.0));
    assert_eq!(
        headers(&gateway.refuse(DEV, at(0.0))),
        "Retry-After: 62\r\nx-should-retry: false\r\nRateLimit: \"hourly\";r=0;t=62\r\n\
         x-tt-refusal-type: rate_limited\r\nx-tt-refused-by: hourly\r\n"
    );
    assert!(headers(&gateway.refuse(DEV, at(1.1))).starts_with("Retry-After: 60\r\nretry-after-ms: 59917\r\n"));
}

#[test]
fn a_tpm_refusal_is_approximate_and_has_no_bound() {
    let gateway = Gateway::new(&[decl("team_tpm", "tpm", TEAM, "20000")]);
    let _running = gateway.admit(DEV, at(0.0));
    let refusal = gateway.refuse(DEV, at(0.0)); // 12,782 tokens are missing, at 3 ms each
    assert_eq!(
        body(&refusal, Family::OpenAi),
        concat!(
            r#"{"error":{"type":"rate_limited","message":"request refused by limit team_tpm","#,
            r#""param":null,"code":"rate_limited","#,
            r#""refused_by":{"limit_id":"team_tpm","limit_type":"tpm","unit":"tokens","node":"org:acme/team:ml","#,
            r#""period":"1m0s","retry_after_s":39},"enforcement":{"posture":"enforcing","approximate":true}}}"#,
        )
    );
    assert!(
        headers(&refusal)
            .starts_with("Retry-After: 39\r\nretry-after-ms: 38346\r\nRateLimit: \"team_tpm\";r=0;t=39\r\n")
    );
}

#[test]
fn what_can_never_fit_is_told_so_and_never_to_wait() {
    let gateway = Gateway::new(&[decl("team_tpm", "tpm", TEAM, "20000")]);
    let huge = Ask { input_tokens: 20_001, ..chat() };
    let refusal = gateway.ask(DEV, at(0.0), &huge, &mut Passed::default()).expect_err("it cannot fit");
    assert_eq!(
        headers(&refusal),
        "x-should-retry: false\r\nRateLimit: \"team_tpm\";r=0\r\n\
         x-tt-refusal-type: rate_limited\r\nx-tt-refused-by: team_tpm\r\n"
    );
    let body = body(&refusal, Family::OpenAi);
    assert!(!body.contains("retry_after_s"));
    assert!(body.contains(
        r#""message":"request refused by limit team_tpm: it asks for more tokens at once than the 20000 the limit can ever hold""#
    ));
}

#[test]
fn a_full_gauge_shows_what_is_in_flight_and_no_time() {
    let gateway = Gateway::new(&[decl("user_concurrency", "concurrency", "level:user", "2")]);
    let _running = [gateway.admit(DEV, at(0.0)), gateway.admit(DEV, at(0.0))];
    let refusal = gateway.refuse(DEV, at(0.0));
    assert_eq!(
        body(&refusal, Family::OpenAi),
        concat!(
            r#"{"error":{"type":"concurrency_exceeded","message":"request refused by limit user_concurrency","#,
            r#""param":null,"code":"concurrency_exceeded","#,
            r#""refused_by":{"limit_id":"user_concurrency","limit_type":"concurrency","unit":"concurrent-requests","#,
            r#""node":"org:acme/team:ml/user:dev1","observed":2,"limit":2},"#,
            r#""enforcement":{"posture":"enforcing","approximate":false}}}"#,
        )
    );
    assert_eq!(
        headers(&refusal),
        "RateLimit: \"user_concurrency\";r=0\r\n\
         x-tt-refusal-type: concurrency_exceeded\r\nx-tt-refused-by: user_concurrency\r\n"
    );
}

#[test]
fn a_suspended_guarantee_is_named_with_the_bound_that_holds_meanwhile() {
    let gateway = Gateway::new(&[decl("org_rpm", "rpm", "__global", "1")]);
    gateway.admit(DEV, at(0.0));
    let mut refusal = gateway.refuse(DEV, at(0.0));
    refusal.suspended.push(("org_rpm".into(), Reason::RedisBreakerOpen));
    let json = body(&refusal, Family::OpenAi);
    let want = concat!(
        r#""enforcement":{"posture":"enforcing","approximate":false,"#,
        r#""note":"suspended: fleet ≤ N×limit until the coordination store recovers","#,
        r#""suspended":[{"limit_id":"org_rpm","reason":"redis breaker open"}]}}}"#,
    );
    assert!(json.ends_with(want), "{json}");
}

#[test]
fn a_refusal_names_what_else_could_not_be_checked() {
    let gateway = Gateway::new(&[decl("budget", "budget_usd", DEV, "1"), decl("tpm", "tpm", TEAM, "20000")]);
    let _running = gateway.admit(DEV, at(0.0));
    let refusal = gateway.refuse(DEV, at(30.5)); // 20,000 a minute: 10,166 re-earned, 2,616 are missing
    let json = body(&refusal, Family::OpenAi);
    let want = concat!(
        r#""retry_after_s":8},"enforcement":{"posture":"enforcing","approximate":true,"#,
        r#""note":"not held for this request: budget (meter_stale)","#,
        r#""suspended":[{"limit_id":"budget","reason":"meter_stale"}]}}}"#,
    );
    assert!(json.ends_with(want), "{json}");
}

/// A rate adds up no burn, so what the exchange with peers lacks is none of its business.
#[test]
fn a_note_speaks_of_what_the_limit_that_refused_has_lost() {
    let gateway = Gateway::new(&[decl("org_rpm", "rpm", "__global", "1")]);
    gateway.admit(DEV, at(0.0));
    let mut refusal = gateway.refuse(DEV, at(0.0));
    let note = |refusal: &Refusal| {
        let json: serde_json::Value = serde_json::from_str(&body(refusal, Family::OpenAi)).expect("JSON");
        json["error"]["enforcement"]["note"].as_str().map(str::to_owned)
    };
    refusal.bound = LedgerBound { convergence_lag_rows: Some(9), convergence_age_ms: Some(12_345), ..refusal.bound };
    assert_eq!(note(&refusal), None);
    refusal.suspended.push(("usd".into(), Reason::ConvergenceStale));
    refusal.suspended.push(("__identity".into(), Reason::IdentityStale));
    let others = "not held for this request: usd (convergence_stale), __identity (identity_stale)";
    assert_eq!(note(&refusal).as_deref(), Some(others));
    refusal.suspended.push(("org_rpm".into(), Reason::RedisEvalError));
    let own = "suspended: fleet ≤ N×limit until the coordination store recovers";
    assert_eq!(note(&refusal).as_deref(), Some(own));
    let mut refusal = spent_budget();
    refusal.bound.convergence_age_ms = Some(40_000);
    refusal.suspended.push(("org_monthly_budget".into(), Reason::ConvergenceStale));
    let lag = "spend from in-flight and streaming requests admitted before this refusal may not yet be reflected";
    let stale =
        "convergence_stale: peers' newer burn is missing — fleet ≤ N×limit until the coordination store recovers";
    let want = format!("{lag}; peers' burn of the last 40 s is missing; {stale}");
    assert_eq!(note(&refusal), Some(want));
}

#[test]
fn every_body_is_json_with_the_type_where_the_sdk_looks_for_it() {
    let refusal = spent_budget();
    let openai: serde_json::Value = serde_json::from_str(&body(&refusal, Family::OpenAi)).expect("JSON");
    assert_eq!(openai["error"]["code"], openai["error"]["type"]);
    assert!(openai["error"]["param"].is_null());
    let anthropic: serde_json::Value = serde_json::from_str(&body(&refusal, Family::Anthropic)).expect("JSON");
    assert_eq!((&anthropic["type"], &anthropic["error"]["type"]), (&"error".into(), &"rate_limit_error".into()));
    assert_eq!(anthropic["error"]["refused_by"], openai["error"]["refused_by"]);
    assert_eq!(anthropic["error"]["enforcement"], openai["error"]["enforcement"]);
}

#[test]
fn a_served_chat_under_a_tpm_limit() {
    let gateway = Gateway::new(&[decl("team_tpm", "tpm", TEAM, "20000")]);
    let passed = gateway.admit(DEV, at(0.0)); // 16,391 reserved at 3 ms each
    assert_eq!(
        served(&passed, Family::OpenAi, at(0.0)),
        "RateLimit-Policy: \"team_tpm\";q=20000;w=60\r\nRateLimit: \"team_tpm\";r=3609;t=1\r\n\
         x-ratelimit-limit-tokens: 20000\r\nx-ratelimit-remaining-tokens: 3609\r\nx-ratelimit-reset-tokens: 49.173s\r\n"
    );
}

#[test]
fn a_served_message_has_anthropics_names_as_well() {
    let gateway = Gateway::new(&[decl("team_rpm", "rpm", TEAM, "60"), decl("team_tpm", "tpm", TEAM, "20000")]);
    let passed = gateway.admit(DEV, at(0.0));
    assert_eq!(
        served(&passed, Family::Anthropic, at(0.0)),
        "RateLimit-Policy: \"team_tpm\";q=20000;w=60, \"team_rpm\";q=60;w=60\r\n\
         RateLimit: \"team_tpm\";r=3609;t=1, \"team_rpm\";r=59;t=1\r\n\
         x-ratelimit-limit-requests: 60\r\nx-ratelimit-remaining-requests: 59\r\nx-ratelimit-reset-requests: 1s\r\n\
         anthropic-ratelimit-requests-limit: 60\r\nanthropic-ratelimit-requests-remaining: 59\r\n\
         anthropic-ratelimit-requests-reset: 2026-08-09T20:44:51Z\r\n\
         x-ratelimit-limit-tokens: 20000\r\nx-ratelimit-remaining-tokens: 3609\r\nx-ratelimit-reset-tokens: 49.173s\r\n\
         anthropic-ratelimit-tokens-limit: 20000\r\nanthropic-ratelimit-tokens-remaining: 3609\r\n\
         anthropic-ratelimit-tokens-reset: 2026-08-09T20:45:40Z\r\n"
    );
}

#[test]
fn the_four_tightest_are_named_tightest_first() {
    let rpm = |id: &str, amount: &str| decl(id, "rpm", "__global", amount);
    let gateway = Gateway::new(&[rpm("a", "10"), rpm("b", "2"), rpm("c", "100"), rpm("d", "5"), rpm("e", "4")]);
    let passed = gateway.admit(DEV, at(0.0));
    let headers = served(&passed, Family::OpenAi, at(0.0));
    let line = headers.lines().nth(1).expect("a RateLimit line");
    assert_eq!(line, "RateLimit: \"b\";r=1;t=30, \"e\";r=3;t=15, \"d\";r=4;t=12, \"a\";r=9;t=6");
    assert!(headers.contains("x-ratelimit-limit-requests: 2\r\n"));
}

#[test]
fn remaining_is_never_more_than_the_limit_beside_it() {
    let burst = |text: &str| LimitDecl { burst: Some(text.to_owned()), ..decl("rate", "rpm", "__global", "60") };
    for (decl, limit, left) in
        [(burst("600"), 600, 599), (burst("5"), 5, 4), (decl("rate", "rpm", "__global", "60"), 60, 59)]
    {
        let gateway = Gateway::new(&[decl]);
        let headers = served(&gateway.admit(DEV, at(0.0)), Family::OpenAi, at(0.0));
        assert!(headers.contains(&format!("x-ratelimit-limit-requests: {limit}\r\n")), "{headers}");
        assert!(headers.contains(&format!("x-ratelimit-remaining-requests: {left}\r\n")), "{headers}");
        assert!(headers.contains(";q=60;w=60\r\n"), "{headers}");
    }
}

#[test]
fn a_share_is_what_the_caller_sees() {
    let mut gateway = Gateway::new(&[share(decl("org_rpm", "rpm", "__global", "600"))]);
    gateway.n_live = 3;
    let passed = gateway.admit(DEV, at(0.0));
    let headers = served(&passed, Family::OpenAi, at(0.0));
    assert!(headers.starts_with("RateLimit-Policy: \"org_rpm\";q=200;w=60\r\nRateLimit: \"org_rpm\";r=199;t=1\r\n"));
}

#[test]
fn a_window_of_half_a_second_has_no_w_and_no_limit_means_no_header() {
    let fast = LimitDecl { period: Some("500ms".to_owned()), ..decl("fast", "rpm", "__global", "10") };
    let gateway = Gateway::new(&[fast]);
    let passed = gateway.admit(DEV, at(0.0));
    assert!(served(&passed, Family::OpenAi, at(0.0)).starts_with("RateLimit-Policy: \"fast\";q=10\r\n"));
    assert_eq!(served(&Passed::default(), Family::Anthropic, at(0.0)), "");
}

#[test]
fn a_limit_is_published_with_the_bound_that_holds_now() {
    let store = |kind: &str, amount: &str, store: &str| {
        let store = Some(store.to_owned());
        let gateway = Gateway::new(&[LimitDecl { store, ..decl("x", kind, "__global", amount) }]);
        gateway.limit("x").clone()
    };
    let says = |limit, n_live, suspended| {
        let Enforcement { mode, bound, live } = enforcement(limit, n_live, true, suspended);
        let n_live = live.n_live.map_or("-".to_owned(), |n_live| n_live.to_string());
        format!("{mode} | {bound} | {n_live} {}", live.suspended.unwrap_or("-"))
    };
    let (local, redis) = (store("rpm", "600", "local"), store("rpm", "600", "redis"));
    let (shared, slots) = (store("tpm", "60000", "share"), store("concurrency", "9", "share"));
    assert_eq!(says(&local, 3, None), "per-replica | per-replica only: fleet ≤ N×limit | - -");
    assert_eq!(says(&redis, 3, None), "exact-fleet | exact; ≤ N×limit during store outage | - -");
    assert_eq!(
        says(&redis, 3, Some(Reason::RedisBreakerOpen)),
        "exact-fleet | suspended: fleet ≤ N×limit until the coordination store recovers | - redis breaker open"
    );
    assert_eq!(
        says(&shared, 3, None),
        "share | fleet ≤ N×ceil(limit/N_live) ≈ limit (over-admission ≤ N−1 from ÷N rounding, + joiners×share per \
         liveness window on scale-up); under-service under LB skew | 3 -"
    );
    assert_eq!(
        says(&slots, 3, None),
        "share | per-replica cap = ceil(C/N_live); fleet in-flight ≤ N×ceil(C/N_live) ≈ C (over-admission ≤ N−1 from ÷N \
         rounding) | 3 -"
    );
    assert_eq!(
        says(&shared, 1, Some(Reason::MembershipStale)),
        "share | membership_stale: N decayed to self — fleet ≤ N×limit until the coordination store recovers | 1 \
         membership_stale"
    );
    let budget = Gateway::new(&[decl("b", "budget_usd", "__global", "5")]).limit("b").clone();
    assert_eq!(enforcement(&budget, 3, false, None).bound, "per-replica only: fleet ≤ N×limit");
    assert_eq!(enforcement(&budget, 3, true, None).mode, "converging");
    // One reason, and each class says what it loses by it.
    assert_eq!(
        says(&budget, 3, Some(Reason::ReplicaIdConflict)),
        "converging | replica_id_conflict: two processes publish under one id — fleet ≤ limit + the burn of one of them | \
         - replica_id_conflict"
    );
    assert_eq!(
        says(&slots, 3, Some(Reason::ReplicaIdConflict)),
        "share | replica_id_conflict: two processes count as one of N_live — fleet ≤ limit + the share of one of them | 3 \
         replica_id_conflict"
    );
    let json = serde_json::to_string(&enforcement(&local, 1, false, None)).expect("plain data");
    assert_eq!(
        json,
        r#"{"mode":"per-replica","bound":"per-replica only: fleet ≤ N×limit","live":{"n_live":null,"suspended":null}}"#
    );
}

proptest! {
    /// Whatever the rate, a lone client that is refused and waits as long as the answer says is admitted, whether it
    /// reads seconds or milliseconds.
    #[test]
    fn who_waits_as_told_is_admitted(
        algorithm in 0usize..4,
        amount in 1u64..1_000,
        period_ms in 1u64..600_000,
        burst in 1u64..50,
        start_ms in 0u64..10_000_000,
        gap_ms in 0u64..400,
        reads_ms: bool,
    ) {
        let algorithm = ["gcra", "token_bucket", "fixed_window", "sliding_window"][algorithm];
        let decl = LimitDecl {
            period: Some(format!("{period_ms}ms")),
            algorithm: Some(algorithm.to_owned()),
            burst: algorithm.ends_with("a").then(|| burst.to_string()),
            ..decl("rate", "rpm", "__global", &amount.to_string())
        };
        let gateway = Gateway::new(&[decl]);
        let mut now = Now { mono: MonoNs(start_ms * 1_000_000 + 77), wall: WallMs(start_ms as i64) };
        for _ in 0..1_200 {
            let mut passed = Passed::default();
            let Err(refusal) = gateway.ask(DEV, now, &chat(), &mut passed) else {
                now.mono.0 += gap_ms * 1_000;
                continue;
            };
            let Wait::After { ms } = refusal.wait else { panic!("one request always fits some time") };
            let seconds = refusal.wait.seconds().expect("a wait");
            prop_assert!(seconds >= 1 && seconds * 1_000 >= ms && (seconds - 1) * 1_000 < ms.max(1));
            now.mono.0 += if reads_ms { ms * 1_000_000 } else { seconds * 1_000_000_000 };
            prop_assert!(gateway.ask(DEV, now, &chat(), &mut passed).is_ok(), "waited {ms} ms, refused again");
            return Ok(());
        }
    }

    /// The same for a token reserve behind running requests of its own.
    #[test]
    fn who_waits_as_told_finds_room_for_its_tokens(amount in 1u64..200_000, input in 0u64..16_384, extra in 0u64..9) {
        let decl = LimitDecl {
            burst: Some((16_384 + extra * 1_000).to_string()),
            ..decl("tpm", "tpm", "__global", &amount.to_string())
        };
        let gateway = Gateway::new(&[decl]);
        let ask = Ask { input_tokens: input, ..chat() };
        let (mut now, mut running) = (at(0.0), Vec::new());
        loop {
            let mut passed = Passed::default();
            match gateway.ask(DEV, now, &ask, &mut passed) {
                Ok(()) => running.push(passed),
                Err(refusal) => {
                    let seconds = refusal.wait.seconds().expect("the input fits the burst");
                    now.mono.0 += seconds * 1_000_000_000;
                    break;
                }
            }
        }
        prop_assert!(gateway.ask(DEV, now, &ask, &mut Passed::default()).is_ok());
    }
}

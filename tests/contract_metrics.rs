//! `/metrics` count what happened: requests, refusals, money, shadow limits, unknown callers, and how full limits are.

mod common;

use common::*;

#[test]
fn the_documented_metrics_count_what_happened() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).limit("team_rpm", "rpm", "amount: 3, period: 100h").start();
    let key = gateway.mint(DEV1);
    for _ in 0..2 {
        gateway.post(&key, CHAT, &chat("mock")).expect(200);
    }
    gateway.post(&key, MESSAGES, &message("mock")).expect(200);
    gateway.post(&key, CHAT, &chat("mock")).expect(429);
    gateway.wait_rows(4, SOON);
    let cost_usd = (2 * OPENAI_REPLY_NANOUSD + ANTHROPIC_REPLY_NANOUSD) as f64 / 1e9;
    until("the cost to be counted", SOON, || {
        (gateway.metrics().sum("tokentriage_cost_usd_total").unwrap_or(0.0) - cost_usd).abs() < 1e-12
    });
    let metrics = gateway.metrics();
    let sum = |name: &str, label: &str| metrics.sum_where(&format!("tokentriage_{name}"), &[label]);
    assert_eq!(sum("requests_total", "code=\"200\""), Some(3.0));
    assert_eq!(sum("requests_total", "code=\"429\""), Some(1.0));
    assert_eq!(sum("requests_total", "endpoint=\"messages\""), Some(1.0));
    assert_eq!(sum("refusals_total", "limit=\"team_rpm\""), Some(1.0));
    assert_eq!(sum("dropped_rows_total", "").unwrap_or(0.0), 0.0);
    assert_eq!(sum("request_duration_seconds_count", ""), Some(4.0));
    assert_eq!(sum("upstream_first_byte_seconds_count", ""), Some(3.0));
    metrics.assert_in_order(&["acme", "dev1", &key.id]);
    gateway.idle_check();
}

#[test]
fn a_limit_shows_how_full_its_fullest_scope_is_and_a_shadow_one_how_often_it_would_have_refused() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock)
        .limit_on("__global", "all_usd", "budget_usd", "amount_usd: 0.004460, period: year")
        .limit("team_rpm", "rpm", "amount: 8, period: 100h")
        .limit("trial_rpm", "rpm", "amount: 1, period: 100h, posture: { mode: shadow }")
        .limit("team_slots", "concurrency", "amount: 4")
        .start();
    let key = gateway.mint(DEV1);
    let ratio = |limit: &str| {
        let label = format!("limit=\"{limit}\"");
        gateway.metrics().sum_where("tokentriage_limit_used_ratio", &[&label]).expect("every limit has one")
    };
    assert_eq!(["all_usd", "team_rpm", "trial_rpm", "team_slots"].map(ratio), [0.0; 4], "untouched");
    for _ in 0..2 {
        gateway.post(&key, CHAT, &chat("mock")).expect(200);
    }
    gateway.wait_rows(2, SOON);
    // 2 of 8; 1 of 1; 2 x 446 micro-USD of 4,460.
    assert_eq!((ratio("team_rpm"), ratio("trial_rpm")), (0.25, 1.0));
    until("the money to be folded", SOON, || (ratio("all_usd") - 0.2).abs() < 1e-9);
    let mut stream = gateway.stream(&key, CHAT, &chat_stream("mock+slow300")).expect(200);
    stream.events(1);
    assert_eq!(ratio("team_slots"), 0.25);
    stream.finish();
    gateway.wait_rows(3, SOON);
    let breaches = |limit: &str| gateway.metrics().sum_where("tokentriage_shadow_breaches_total", &[limit]);
    assert_eq!(breaches("limit=\"trial_rpm\""), Some(2.0));
    assert_eq!(breaches("limit=\"team_rpm\""), None);
    gateway.idle_check();
}

/// A 401 leaves no row: it is nobody's. It is counted all the same, by reason and without a word about the key.
#[test]
fn unknown_callers_leave_no_row_and_are_counted_by_reason() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).require_key().start();
    let key = gateway.mint(DEV1);
    let ask = |request: Request| gateway.send(&request.json(&chat("mock"))).expect(401);
    ask(Request::post(CHAT));
    ask(Request::post(CHAT).key("ttk_nobodys"));
    ask(Request::post(CHAT).key("ttk_nobodys"));
    ask(Request::post(CHAT).key(&key.secret).header("x-api-key", "ttk_another"));
    let metrics = gateway.metrics();
    let count = |reason: &str| {
        let label = format!("reason=\"{reason}\"");
        metrics.sum_where("tokentriage_unauthenticated_requests_total", &[&label])
    };
    assert_eq!(["no_key", "bad_key", "two_keys"].map(count), [Some(1.0), Some(2.0), Some(1.0)]);
    assert_eq!(metrics.sum_where("tokentriage_unjudged_requests_total", &["code=\"401\""]), Some(4.0));
    assert_eq!(gateway.row_count(), 0);
    gateway.idle_check();
}

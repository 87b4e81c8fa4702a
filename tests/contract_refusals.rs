//! The bytes of a refusal: body, headers and row for each of the six limit types, in both vendors' envelopes.

mod common;

use std::time::{Duration, Instant};

use common::*;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};
use serde_json::{Value, json};

/// One limit type as it refuses.
struct Case {
    org: &'static str,
    kind: &'static str,
    rest: &'static str,
    error_type: &'static str,
    unit: &'static str,
    /// Of the members that differ by class, what is expected.
    period: Option<&'static str>,
    observed: Option<Value>,
    limit: Option<Value>,
    approximate: bool,
}

const fn case(
    org: &'static str,
    kind: &'static str,
    rest: &'static str,
    error_type: &'static str,
    unit: &'static str,
) -> Case {
    Case { org, kind, rest, error_type, unit, period: None, observed: None, limit: None, approximate: true }
}

fn cases() -> Vec<Case> {
    vec![
        Case {
            period: Some("month"),
            observed: Some(json!(0.000446)),
            limit: Some(json!(0.0001)),
            ..case("org:budget", "budget_usd", "amount_usd: 0.0001, period: month", "budget_exceeded", "usd")
        },
        Case {
            period: Some("day"),
            observed: Some(json!(140)),
            limit: Some(json!(100)),
            ..case("org:tokens", "quota_tokens", "amount: 100, period: day", "quota_exceeded", "tokens")
        },
        Case {
            period: Some("year"),
            observed: Some(json!(1)),
            limit: Some(json!(1)),
            ..case("org:requests", "quota_requests", "amount: 1, period: year", "quota_exceeded", "requests")
        },
        Case {
            period: Some("1m0s"),
            approximate: false,
            ..case("org:rpm", "rpm", "amount: 1, period: 1m", "rate_limited", "requests")
        },
        Case { period: Some("1m0s"), ..case("org:tpm", "tpm", "amount: 20000, period: 1m", "rate_limited", "tokens") },
        Case {
            observed: Some(json!(1)),
            limit: Some(json!(1)),
            approximate: false,
            ..case("org:slots", "concurrency", "amount: 1", "concurrency_exceeded", "concurrent-requests")
        },
    ]
}

impl Case {
    fn id(&self) -> String {
        format!("the_{}", self.kind)
    }

    fn is_settled(&self) -> bool {
        matches!(self.kind, "budget_usd" | "quota_tokens" | "quota_requests")
    }

    /// Brings the limit to where it refuses; what is returned must be kept while it should.
    fn exhaust(&self, gateway: &Gateway, key: &Key) -> Option<Stream> {
        if self.is_settled() {
            gateway.exhaust(key, &self.id());
            return None;
        }
        let mut held = gateway.stream(key, CHAT, &chat_stream("mock+slow500")).expect(200);
        held.events(1);
        Some(held)
    }
}

/// The first instant after this calendar period, in UTC.
fn next_period(period: &str) -> Timestamp {
    let today = Timestamp::now().to_zoned_datetime(TimeZone::UTC).start_of_day().expect("a day has a start");
    let next = match period {
        "day" => today.checked_add(1.day()),
        "month" => today.first_of_month().and_then(|first| first.checked_add(1.month())),
        _ => today.first_of_year().and_then(|first| first.checked_add(1.year())),
    };
    next.expect("the next period is a date").timestamp()
}

/// Takes a member out of an object.
fn take(object: &mut Value, member: &str) -> Value {
    object.as_object_mut().and_then(|members| members.remove(member)).unwrap_or(Value::Null)
}

#[test]
fn each_limit_type_refuses_with_the_same_body_and_headers() {
    let mock = Mock::start();
    let mut setup = Setup::with_mock(&mock);
    for case in cases() {
        setup = setup.limit_on(case.org, &case.id(), case.kind, case.rest);
    }
    let gateway = setup.start();
    for case in cases() {
        let key = gateway.mint(case.org);
        let _held = case.exhaust(&gateway, &key);
        for path in [CHAT, COMPLETIONS, RESPONSES, EMBEDDINGS, MESSAGES] {
            let (is_tpm, has_output) = (case.kind == "tpm", path != EMBEDDINGS);
            if is_tpm && !has_output {
                continue; // two bytes of input and no output part: there is room for that
            }
            let body = json!({"model": "mock", "prompt": "hi", "input": "hi", "max_tokens": 16000,
                "messages": [{"role": "user", "content": "hi"}]});
            let answer = gateway.post(&key, path, &body).expect(429);
            check(&case, path, &answer);
            check_row(&case, &gateway.row(&answer));
        }
    }
    gateway.idle_check();
}

#[track_caller]
fn check(case: &Case, path: &str, answer: &Response) {
    let raw = answer.text();
    let mut envelope = answer.json();
    assert_eq!(answer.header("content-type"), Some("application/json"), "{path}");
    let facts = if path == MESSAGES {
        // Anthropic's envelope, so that its SDK raises the right exception; the facts stand in it or beside it.
        assert_eq!(take(&mut envelope, "type"), "error", "{raw}");
        let mut error = take(&mut envelope, "error");
        assert_eq!(take(&mut error, "type"), "rate_limit_error", "{raw}");
        if error.get("refused_by").is_some() { error } else { [envelope, error].into_iter().fold(json!({}), merge) }
    } else {
        let mut error = take(&mut envelope, "error");
        assert_eq!(envelope, json!({}), "nothing beside the error: {raw}");
        assert_eq!(take(&mut error, "type"), case.error_type, "{raw}");
        assert_eq!(take(&mut error, "code"), case.error_type, "the SDK's field is filled: {raw}");
        assert_eq!(take(&mut error, "param"), Value::Null, "{raw}");
        error
    };
    assert_eq!(facts["message"], format!("request refused by limit {}", case.id()), "{raw}");
    let retry_after = check_refused_by(case, facts["refused_by"].clone(), &raw);
    check_enforcement(case, facts["enforcement"].clone(), &raw);
    check_headers(case, answer, retry_after);
    check_spelling(case, &raw);
}

fn merge(mut into: Value, from: Value) -> Value {
    if let (Some(into), Value::Object(from)) = (into.as_object_mut(), from) {
        into.extend(from);
    }
    into
}

/// Gives `retry_after_s`, which concurrency has not.
#[track_caller]
fn check_refused_by(case: &Case, mut refused_by: Value, raw: &str) -> Option<u64> {
    let retry_after = take(&mut refused_by, "retry_after_s").as_u64();
    let resets_at = take(&mut refused_by, "resets_at");
    if case.is_settled() {
        let expected = next_period(case.period.unwrap_or_default());
        assert_eq!(resets_at, expected.to_string(), "{raw}");
        let distance = expected.as_second() - Timestamp::now().as_second();
        let off = retry_after.map_or(i64::MAX, |seconds| (seconds as i64 - distance).abs());
        assert!(off <= 2, "retry_after_s is the distance to resets_at, about {distance}: {raw}");
    } else if case.kind == "concurrency" {
        assert_eq!(retry_after, None, "nobody knows when a slot comes free: {raw}");
    } else {
        assert!(retry_after.is_some_and(|seconds| (1..=60).contains(&seconds)), "{raw}");
        // a rate needs no observed and no limit; if it tells them, they are checked by nobody else
        take(&mut refused_by, "observed");
        take(&mut refused_by, "limit");
    }
    let mut expected = json!({"limit_id": case.id(), "limit_type": case.kind, "unit": case.unit, "node": case.org});
    for (member, value) in [("observed", &case.observed), ("limit", &case.limit)] {
        if let Some(value) = value {
            expected[member] = value.clone();
        }
    }
    if let Some(period) = case.period {
        expected["period"] = json!(period);
    }
    assert_eq!(refused_by, expected, "{raw}");
    retry_after
}

#[track_caller]
fn check_enforcement(case: &Case, mut enforcement: Value, raw: &str) {
    let note = take(&mut enforcement, "note");
    let bound = take(&mut enforcement, "bound");
    assert_eq!(enforcement, json!({"posture": "enforcing", "approximate": case.approximate}), "{raw}");
    if case.is_settled() {
        let keys: Vec<&String> = bound.as_object().map(|members| members.keys().collect()).unwrap_or_default();
        assert_eq!(keys, ["dropped_rows", "tee_lag_rows"], "{raw}");
        assert_eq!(bound["dropped_rows"], 0, "{raw}");
        assert!(note.as_str().is_some_and(|note| !note.is_empty()), "the note says what lags behind: {raw}");
    } else {
        assert_eq!((bound, note), (Value::Null, Value::Null), "{raw}");
    }
}

#[track_caller]
fn check_headers(case: &Case, answer: &Response, retry_after: Option<u64>) {
    let all = &answer.headers;
    let id = case.id();
    assert_eq!(answer.header("x-tt-refusal-type"), Some(case.error_type), "{all:?}");
    assert_eq!(answer.header("x-tt-refused-by"), Some(id.as_str()), "{all:?}");
    assert_eq!(answer.header("x-tt-coordination"), None, "a single node suspends nothing: {all:?}");
    answer.request_id();
    let seconds = retry_after.map(|seconds| seconds.to_string());
    assert_eq!(answer.header("retry-after"), seconds.as_deref(), "header and body agree: {all:?}");
    let rate_limit = match retry_after {
        Some(seconds) => format!("\"{id}\";r=0;t={seconds}"),
        None => format!("\"{id}\";r=0"),
    };
    assert_eq!(answer.header("ratelimit"), Some(rate_limit.as_str()), "{all:?}");
    let never_retry = case.is_settled();
    assert_eq!(answer.header("x-should-retry"), never_retry.then_some("false"), "{all:?}");
    let short = retry_after.is_some() && !never_retry;
    assert_eq!(answer.header("retry-after-ms").is_some(), short, "{all:?}");
}

/// Money is spelled out, and the members stand in the order of the documentation.
#[track_caller]
fn check_spelling(case: &Case, raw: &str) {
    assert!(!raw.contains("e-"), "no exponents: {raw}");
    if case.kind == "budget_usd" {
        assert!(raw.contains(r#""observed":0.000446"#) && raw.contains(r#""limit":0.0001"#), "{raw}");
    }
    let members =
        ["message", "refused_by", "limit_id", "limit_type", "unit", "node", "enforcement", "posture", "approximate"];
    let places: Vec<Option<usize>> = members.iter().map(|member| raw.find(&format!("\"{member}\":"))).collect();
    assert!(places.is_sorted() && places.iter().all(Option::is_some), "{members:?} at {places:?}: {raw}");
}

#[track_caller]
fn check_row(case: &Case, row: &Row) {
    assert_eq!(
        (row.decision(), &row["status"], &row["forwarded"]),
        ("refused", &json!(429), &json!(false)),
        "{}",
        row.0
    );
    let refused_by = json!({"limit_id": case.id(), "node": case.org, "limit_type": case.kind});
    assert_eq!(row["refused_by"], refused_by, "{}", row.0);
    assert_eq!((row.tokens(), row.cost().unwrap_or(0)), (0, 0), "{}", row.0);
}

#[test]
fn a_single_client_that_waits_exactly_retry_after_is_admitted() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).limit("team_rpm", "rpm", "amount: 60, period: 1m, burst: 1").start();
    let key = gateway.mint(DEV1);
    for _ in 0..3 {
        let refused = until_some("a refusal", SOON, || {
            Some(gateway.post(&key, CHAT, &chat("mock"))).filter(|answer| answer.status == 429)
        });
        let answered = Instant::now();
        let wait_ms: u64 = refused.header("retry-after-ms").and_then(|ms| ms.parse().ok()).expect("retry-after-ms");
        std::thread::sleep(Duration::from_millis(wait_ms).saturating_sub(answered.elapsed())); // the promise under test
        gateway.post(&key, CHAT, &chat("mock")).expect(200);
    }
    gateway.idle_check();
}

#[test]
fn a_prompt_larger_than_the_burst_is_refused_for_ever_and_says_so() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).limit("team_tpm", "tpm", "amount: 20000, period: 1m").start();
    let key = gateway.mint(DEV1);
    let mut body = chat("mock");
    body["messages"][0]["content"] = json!("word".repeat(20_001));
    let refused = gateway.post(&key, CHAT, &body).expect(429);
    assert_eq!(refused.header("retry-after"), None, "{:?}", refused.headers);
    assert_eq!(refused.header("x-should-retry"), Some("false"), "{:?}", refused.headers);
    body["messages"][0]["content"] = json!("word".repeat(20_000));
    gateway.post(&key, CHAT, &body).expect(200);
    gateway.idle_check();
}

#[test]
fn a_shadow_limit_is_counted_and_never_refuses() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock)
        .limit("shadow_rpm", "rpm", "amount: 1, period: 100h, posture: { mode: shadow }")
        .limit("shadow_slots", "concurrency", "amount: 1, posture: { mode: shadow }")
        .limit("shadow_budget", "budget_usd", "amount_usd: 0.0001, period: year, posture: { mode: shadow }")
        .start();
    let key = gateway.mint(DEV1);
    gateway.exhaust(&key, "shadow_budget");
    let mut held = gateway.stream(&key, CHAT, &chat_stream("mock+slow500")).expect(200);
    held.events(1);
    assert_eq!(gateway.me(&key).limit("shadow_slots").live(), 1);
    let second = gateway.post(&key, CHAT, &chat("mock")).expect(200);
    let row = gateway.row(&second);
    assert_eq!(row.decision(), "admitted");
    let mut shadow: Vec<&str> = row["shadow"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    shadow.sort_unstable();
    assert_eq!(shadow, ["shadow_budget", "shadow_rpm", "shadow_slots"], "{}", row.0);
    drop(held);
    gateway.idle_check();
}

#[test]
fn the_deepest_node_answers_first_and_then_the_limit_id() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock)
        .limit_on("__global", "a_global", "rpm", "amount: 1, period: 100h")
        .limit_on("org:acme", "a_org", "rpm", "amount: 1, period: 100h")
        .limit_on(DEV1, "z_user", "rpm", "amount: 1, period: 100h")
        .limit_on(DEV1, "b_user", "rpm", "amount: 1, period: 100h")
        .start();
    let key = gateway.mint(DEV1);
    gateway.post(&key, CHAT, &chat("mock")).expect(200);
    for _ in 0..3 {
        let refused = gateway.post(&key, CHAT, &chat("mock")).expect(429);
        assert_eq!(refused.header("x-tt-refused-by"), Some("b_user"));
    }
    let neighbour = gateway.mint("org:acme/team:ml/user:dev2");
    let refused = gateway.post(&neighbour, CHAT, &chat("mock")).expect(429);
    assert_eq!(refused.header("x-tt-refused-by"), Some("a_org"), "above the user, the organisation is the deepest");
    assert_eq!(gateway.row(&refused)["refused_by"]["node"], "org:acme");
    // no idle check: the global limit refuses every further call, as it should
}

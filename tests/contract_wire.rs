//! What callers see on the data port: headers of served answers, `/tt/v1/me`, `/v1/models`, request ids, the
//! envelopes of errors, and the row that is left behind.

mod common;

use std::time::Duration;

use common::scripted::{chat_reply, raw_answer};
use common::*;
use serde_json::{Value, json};

/// A Go duration such as `1m0s`, `49.173s` or `12ms`, in seconds.
#[track_caller]
fn go_duration_s(text: &str) -> f64 {
    let units = [("ms", 0.001), ("us", 1e-6), ("µs", 1e-6), ("ns", 1e-9), ("h", 3600.0), ("m", 60.0), ("s", 1.0)];
    let (mut rest, mut seconds) = (text, 0.0);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let number: f64 = rest[..digits].parse().unwrap_or_else(|_| panic!("`{text}` is no Go duration"));
        rest = &rest[digits..];
        let unit = units.iter().find(|(unit, _)| rest.starts_with(unit));
        let (unit, size) = unit.unwrap_or_else(|| panic!("`{text}` is no Go duration"));
        seconds += number * size;
        rest = &rest[unit.len()..];
    }
    seconds
}

#[track_caller]
fn number(head: &http::Head, name: &str) -> u64 {
    let value = head.header(name).unwrap_or_else(|| panic!("no {name} in {:?}", head.headers));
    value.parse().unwrap_or_else(|_| panic!("{name}: {value}"))
}

#[test]
fn served_answers_disclose_their_rate_limits() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock)
        .limit("team_tpm", "tpm", "amount: 20000, period: 1m")
        .limit("team_rpm", "rpm", "amount: 10, period: 1m")
        .start();
    let key = gateway.mint(DEV1);
    let answer = gateway.post(&key, CHAT, &question("mock")).expect(200);
    let policy = answer.header("ratelimit-policy").expect("RateLimit-Policy");
    for policy_of in [r#""team_tpm";q=20000;w=60"#, r#""team_rpm";q=10;w=60"#] {
        assert!(policy.contains(policy_of), "{policy}");
    }
    // 31 bytes are 7 tokens; 7 + 16,384 = 16,391 are reserved while the answer is written: 3,609 are left.
    let rate_limit = answer.header("ratelimit").expect("RateLimit");
    assert!(
        rate_limit.contains(r#""team_tpm";r=3609;t="#) && rate_limit.contains(r#""team_rpm";r=9;t="#),
        "{rate_limit}"
    );
    assert_eq!(number(&answer, "x-ratelimit-limit-tokens"), 20_000);
    assert_eq!(number(&answer, "x-ratelimit-remaining-tokens"), 3_609);
    assert_eq!(number(&answer, "x-ratelimit-limit-requests"), 10);
    assert_eq!(number(&answer, "x-ratelimit-remaining-requests"), 9);
    // 16,391 tokens at 20,000 a minute, and one request at 10 a minute
    let reset_tokens = go_duration_s(answer.header("x-ratelimit-reset-tokens").expect("a reset"));
    assert!((49.0..=49.2).contains(&reset_tokens), "{reset_tokens}");
    let reset_requests = go_duration_s(answer.header("x-ratelimit-reset-requests").expect("a reset"));
    assert!((5.9..=6.1).contains(&reset_requests), "{reset_requests}");
    assert_eq!(gateway.row(&answer).number("reserved_tokens"), 16_391);
    assert_eq!(answer.header("x-tt-coordination"), None, "a single node coordinates nothing");

    let answer = gateway.post(&key, MESSAGES, &message("mock")).expect(200);
    assert_eq!(number(&answer, "anthropic-ratelimit-requests-limit"), 10);
    assert_eq!(number(&answer, "anthropic-ratelimit-requests-remaining"), 8);
    assert_eq!(number(&answer, "anthropic-ratelimit-tokens-limit"), 20_000);
    for name in ["anthropic-ratelimit-requests-reset", "anthropic-ratelimit-tokens-reset"] {
        let at: jiff::Timestamp = answer.header(name).and_then(|at| at.parse().ok()).expect("RFC 3339");
        let ahead = at.as_second() - jiff::Timestamp::now().as_second();
        assert!((-1..=61).contains(&ahead), "{name} is {ahead} s ahead");
    }
    gateway.idle_check();
}

#[test]
fn the_four_tightest_limits_are_named_and_one_of_each_kind_in_the_vendor_headers() {
    let mock = Mock::start();
    let mut setup = Setup::with_mock(&mock);
    for (id, amount) in [("r50", 50), ("r10", 10), ("r40", 40), ("r20", 20), ("r30", 30)] {
        setup = setup.limit(id, "rpm", &format!("amount: {amount}, period: 1m"));
    }
    let gateway = setup.start();
    let answer = gateway.post(&gateway.mint(DEV1), CHAT, &chat("mock")).expect(200);
    let named = answer.header("ratelimit").expect("RateLimit");
    assert_eq!(named.split(", ").count(), 4, "{named}");
    assert!(!named.contains("r50"), "{named}");
    assert_eq!(number(&answer, "x-ratelimit-limit-requests"), 10);
    gateway.idle_check();
}

#[test]
fn nothing_is_disclosed_when_the_operator_said_so() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock)
        .keys("disclose_limits", "false")
        .limit("team_rpm", "rpm", "amount: 10, period: 1m")
        .start();
    let answer = gateway.post(&gateway.mint(DEV1), CHAT, &chat("mock")).expect(200);
    let telling = |name: &str| name.to_ascii_lowercase().contains("ratelimit");
    assert!(!answer.headers.iter().any(|(name, _)| telling(name)), "{:?}", answer.headers);
    gateway.idle_check();
}

/// A dashboard divides one by the other: remaining is what is left of the limit beside it, whatever the burst is.
#[test]
fn the_limit_beside_a_remaining_is_what_it_remains_of() {
    let mock = Mock::start();
    for (burst, left) in [(600, 599), (5, 4)] {
        let gateway = Setup::with_mock(&mock)
            .limit("team_rpm", "rpm", &format!("amount: 60, period: 1h, burst: {burst}"))
            .start();
        let answer = gateway.post(&gateway.mint(DEV1), MESSAGES, &message("mock")).expect(200);
        assert_eq!(number(&answer, "x-ratelimit-limit-requests"), burst);
        assert_eq!(number(&answer, "x-ratelimit-remaining-requests"), left);
        assert_eq!(number(&answer, "anthropic-ratelimit-requests-limit"), burst);
        assert_eq!(number(&answer, "anthropic-ratelimit-requests-remaining"), left);
        assert_eq!(answer.header("ratelimit-policy"), Some("\"team_rpm\";q=60;w=3600"), "the rate, as configured");
        gateway.idle_check();
    }
}

#[test]
fn a_providers_rate_headers_do_not_contradict_ours() {
    let upstream = Scripted::start(|asked| {
        let headers =
            "Content-Type: application/json\r\nx-ratelimit-remaining-requests: 4711\r\nx-request-id: req_provider\r\n";
        let usage =
            json!({"prompt_tokens": 100, "completion_tokens": 40, "prompt_tokens_details": {"cached_tokens": 60}});
        Answer::Keep(raw_answer(200, headers, chat_reply(&asked.model(), &usage).to_string().as_bytes()))
    });
    let gateway = Setup::new()
        .upstream("provider", "openai", upstream.addr, r#"["mock*"]"#, "")
        .limit("team_rpm", "rpm", "amount: 10, period: 1m")
        .start();
    let answer = gateway.post(&gateway.mint(DEV1), CHAT, &chat("mock")).expect(200);
    assert_eq!(answer.count("x-ratelimit-remaining-requests"), 1, "{:?}", answer.headers);
    assert_eq!(number(&answer, "x-ratelimit-remaining-requests"), 9);
    let renamed = answer.headers.iter().find(|(_, value)| value == "4711");
    assert!(
        renamed.is_some_and(|(name, _)| name.to_ascii_lowercase().starts_with("x-upstream-")),
        "{:?}",
        answer.headers
    );
    assert_eq!(answer.header("x-request-id"), Some("req_provider"), "other headers pass");
    gateway.idle_check();
}

#[test]
fn provider_errors_pass_unchanged() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).start();
    let key = gateway.mint(DEV1);
    for status in [429, 500, 503, 529] {
        let model = format!("mock+status{status}");
        for (path, body) in [(CHAT, chat(&model)), (MESSAGES, message(&model)), (CHAT, chat_stream(&model))] {
            let direct = http::exchange(mock.addr, &Request::post(path).json(&body));
            let answer = gateway.post(&key, path, &body).expect(status);
            assert_eq!(answer.text(), direct.text());
            assert_eq!(answer.header("retry-after"), direct.header("retry-after"));
            assert_eq!(answer.header("x-tt-refusal-type"), None, "a provider's 429 is not ours");
            let row = gateway.row(&answer);
            assert_eq!((row.number("status"), &row["forwarded"]), (u64::from(status), &json!(true)), "{}", row.0);
        }
    }
    assert_eq!(mock.requests_for("mock+status500").len(), 6, "nothing was tried again");
    gateway.idle_check();
}

#[test]
fn me_tells_a_key_who_it_is_and_what_applies() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock)
        .limit_on("org:acme", "acme_budget", "budget_usd", "amount_usd: 500, period: month")
        .limit_on(DEV1, "dev_slots", "concurrency", "amount: 4, posture: { mode: shadow }")
        .limit("team_rpm", "rpm", "amount: 10, period: 1m")
        .limit_on("org:other", "other_rpm", "rpm", "amount: 10, period: 1m")
        .start();
    let key = gateway.mint_with(json!({"node": DEV1, "name": "laptop"}));
    let me = gateway.me(&key);
    assert_eq!((&me.0["node"], &me.0["name"]), (&json!(DEV1), &json!("laptop")), "{}", me.0);
    let mut ids: Vec<String> =
        me.limits().iter().filter_map(|limit| limit.0["id"].as_str().map(str::to_owned)).collect();
    ids.sort();
    assert_eq!(ids, ["acme_budget", "dev_slots", "team_rpm"], "{}", me.0);
    let budget = me.limit("acme_budget");
    assert_eq!(
        (budget.kind(), &budget.0["node"], &budget.0["period"]),
        ("budget_usd", &json!("org:acme"), &json!("month"))
    );
    assert_eq!((budget.amount(), budget.used()), (500.0, 0.0));
    assert!(budget.0["resets_at"].is_string() && budget.0["enforcement"].is_object(), "{}", budget.0);
    let slots = me.limit("dev_slots");
    assert_eq!((slots.live(), slots.amount()), (0, 4.0));
    assert!(slots.0["posture"].to_string().contains("shadow"), "{}", slots.0);
    assert_eq!((me.limit("team_rpm").remaining(), me.limit("team_rpm").amount()), (10.0, 10.0));
    assert_eq!(gateway.send(&Request::get("/tt/v1/me").key("ttk_nobody")).status, 401);
    gateway.idle_check();
}

#[test]
fn models_are_listed_once_each() {
    let mock = Mock::start();
    let gateway = Setup::new().mock(&mock, r#"["mock", "mock+*"]"#).require_key().start();
    let list = gateway.get(&gateway.mint(DEV1), "/v1/models").expect(200).json();
    assert_eq!(list["object"], "list");
    let data = list["data"].as_array().expect("a list of models");
    assert!(data.iter().all(|model| model["id"].is_string() && model["object"] == "model"), "{list}");
    // What Anthropic's SDK looks for in the same list.
    assert!(data.iter().all(|model| model["type"] == "model" && model["display_name"] == model["id"]), "{list}");
    assert_eq!((&list["has_more"], &list["first_id"]), (&false.into(), &data[0]["id"]), "{list}");
    assert_eq!(data.iter().filter(|model| model["id"] == "mock").count(), 1, "{list}");
    assert_eq!(gateway.send(&Request::get("/v1/models")).status, 401, "the list is no way around the key");
    gateway.idle_check();
}

/// SDKs look a model up by its name. What a pattern of an upstream fits is served, so it is found.
#[test]
fn a_model_is_found_by_its_name_where_it_is_served() {
    let mock = Mock::start();
    let gateway = Setup::new().mock(&mock, r#"["mock", "team/*"]"#).require_key().start();
    let key = gateway.mint(DEV1);
    for name in ["mock", "team/fine-tune:7"] {
        let model = gateway.get(&key, &format!("/v1/models/{name}")).expect(200).json();
        assert_eq!((&model["id"], &model["object"], &model["type"]), (&name.into(), &"model".into(), &"model".into()));
        assert_eq!((&model["owned_by"], &model["display_name"]), (&"mock-openai".into(), &name.into()));
    }
    // The SDKs encode what they put into a path.
    for (sent, name) in [
        ("team%2Ffine-tune:7", "team/fine-tune:7"),
        ("team%2ffine-tune%3A7", "team/fine-tune:7"),
        ("team/a%20b%C3%A4%25", "team/a bä%"),
        ("%6dock", "mock"),
    ] {
        let model = gateway.get(&key, &format!("/v1/models/{sent}")).expect(200).json();
        assert_eq!((&model["id"], &model["owned_by"]), (&name.into(), &"mock-openai".into()), "{sent}");
    }
    for sent in ["team%2", "team%zz", "team%2Fa%FF", "team%2F%00", "%0D%0Ax:%20y"] {
        let refused = gateway.get(&key, &format!("/v1/models/{sent}")).expect(400).json();
        assert_eq!(refused["error"]["type"], "invalid_request", "{refused}");
        let message = refused["error"]["message"].as_str().unwrap_or_default();
        assert!(message.contains(sent) && message.contains("percent-encoded UTF-8"), "{refused}");
    }
    for sent in ["nobody%2Fs", "..%2Fchat%2Fcompletions", "%2F", "team%252Fx"] {
        let unknown = gateway.get(&key, &format!("/v1/models/{sent}")).expect(404).json();
        assert_eq!(unknown["error"]["type"], "model_not_found", "{unknown}");
    }
    assert_eq!(
        gateway.send(&Request::get("/v1/models/team%2Fx")).status,
        401,
        "encoded or not, who asks is asked first"
    );
    assert_eq!(gateway.post(&key, "/v1/models/..%2Fchat%2Fcompletions", &chat("mock")).status, 405);
    assert!(mock.requests().is_empty(), "none of this is a provider's business");
    let unknown = gateway.get(&key, "/v1/models/gpt-9").expect(404).json();
    assert_eq!(unknown["error"]["type"], "model_not_found", "{unknown}");
    assert_eq!(gateway.send(&Request::get("/v1/models/mock")).status, 401);
    assert_eq!(gateway.send(&Request::new("DELETE", "/v1/models/mock").key(&key.secret)).status, 405);
    gateway.idle_check();
}

/// A client that lists models before it asks (Open WebUI, LibreChat) must find some behind `models: ["*"]`.
#[test]
fn a_bare_star_lists_what_the_maker_of_the_api_sells() {
    let mock = Mock::start();
    let gateway =
        Setup::new().mock(&mock, r#"["*"]"#).price("{ model: \"own-finetune\", input_usd_per_mtok: 1 }").start();
    let list = gateway.get(&gateway.mint(DEV1), "/v1/models").expect(200).json();
    let data = list["data"].as_array().expect("a list of models").clone();
    let owner = |name: &str| {
        let found: Vec<_> = data.iter().filter(|model| model["id"] == name).collect();
        assert!(found.len() <= 1, "{name} stands there twice");
        found.first().map(|model| model["owned_by"].clone())
    };
    assert_eq!(owner("gpt-4o-mini"), Some("mock-openai".into()));
    assert_eq!(owner("own-finetune"), Some("mock-openai".into()), "the operator's own price makes a name known");
    let claude = data.iter().find(|model| model["id"].as_str().is_some_and(|id| id.starts_with("claude-")));
    assert_eq!(claude.expect("Claude is there")["owned_by"], "mock-anthropic");
    assert!(data.iter().all(|model| model["id"] != "mistral-large-latest"), "another maker's API");
    gateway.idle_check();
}

#[test]
fn every_answer_has_a_request_id_of_its_own() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).start();
    let key = gateway.mint(DEV1);
    let answers = [
        gateway.post(&key, CHAT, &chat("mock")).expect(200),
        gateway.post(&key, CHAT, &chat("mock+status500")).expect(500),
        gateway.post(&key, CHAT, &chat("no-such-model")).expect(404),
        gateway.get(&key, "/v1/nothing").expect(404),
        gateway.get(&key, "/tt/v1/me").expect(200),
        gateway.get(&key, "/v1/models").expect(200),
        gateway.send(&Request::post(CHAT).key("ttk_wrong").json(&chat("mock"))).expect(401),
        gateway.send(&Request::new("BREW", CHAT)).expect(501),
    ];
    let mut ids: Vec<String> = answers.iter().map(|answer| answer.request_id()).collect();
    for id in &ids {
        let rest = id.strip_prefix("tt_").unwrap_or_else(|| panic!("{id}"));
        assert!(rest.len() == 26 && rest.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{id}");
    }
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), answers.len());
    assert_eq!(gateway.row(&answers[0]).request_id(), answers[0].request_id());
    gateway.idle_check();
}

/// What an error's type is called, from either envelope.
fn error_type(answer: &Response) -> String {
    answer.json()["error"]["type"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn errors_come_in_the_callers_envelope() {
    let mock = Mock::start();
    let dead = mock::dead_port();
    let gateway = Setup::new()
        .upstream("openai", "openai", mock.addr, r#"["mock*"]"#, "")
        .upstream("anthropic", "anthropic", mock.addr, r#"["claude*"]"#, "")
        .upstream("dead-openai", "openai", dead, r#"["dead-o"]"#, "")
        .upstream("dead-anthropic", "anthropic", dead, r#"["dead-a"]"#, "")
        .upstream("slow", "openai", mock.addr, r#"["slow*"]"#, "first_byte_timeout: 200ms")
        .start();
    let key = gateway.mint(DEV1);
    let both = |answer: &Response, path: &str| {
        let body = answer.json();
        assert!(body["error"]["message"].is_string(), "{body}");
        match path {
            MESSAGES => assert_eq!(body["type"], "error", "{body}"),
            _ => assert!(body.get("type").is_none() && body["error"].get("code").is_some(), "{body}"),
        }
    };
    for path in [CHAT, COMPLETIONS, EMBEDDINGS, RESPONSES, MESSAGES] {
        let wrong_key = gateway.send(&Request::post(path).key("ttk_wrong").json(&chat("mock"))).expect(401);
        assert_eq!(error_type(&wrong_key), "authentication_error");
        both(&wrong_key, path);
        let unknown_model = gateway.post(&key, path, &message("gemini-x")).expect(404);
        assert!(unknown_model.text().contains("gemini-x"), "{}", unknown_model.text());
        both(&unknown_model, path);
        for broken in ["{", "[]", "\"model\"", r#"{"messages":[]}"#, r#"{"model":7,"messages":[]}"#, ""] {
            both(&gateway.post_text(&key, path, broken).expect(400), path);
        }
    }
    assert!(gateway.post(&key, CHAT, &chat("gemini-x")).text().contains("model_not_found"));
    // a model whose upstream speaks the other API
    for (path, model) in [(CHAT, "claude"), (MESSAGES, "mock")] {
        let other = gateway.post(&key, path, &message(model)).expect(400);
        both(&other, path);
        assert!(
            other.text().to_lowercase().contains("anthropic") || other.text().to_lowercase().contains("openai"),
            "{}",
            other.text()
        );
    }
    for (path, model) in [(CHAT, "dead-o"), (MESSAGES, "dead-a")] {
        let unreachable = gateway.post(&key, path, &message(model)).expect(502);
        both(&unreachable, path);
        assert!(unreachable.text().contains("upstream_unreachable") || path == MESSAGES, "{}", unreachable.text());
    }
    let timeout = gateway.post(&key, CHAT, &chat("slow+hang")).expect(504);
    both(&timeout, CHAT);
    assert!(timeout.text().contains("upstream_timeout"), "{}", timeout.text());
    assert_eq!(timeout.header("x-should-retry"), Some("false"), "it may have been billed");
    gateway.idle_check();
}

#[test]
fn the_next_matching_upstream_answers_when_the_first_refuses_the_connection() {
    let mock = Mock::start();
    let gateway = Setup::new()
        .upstream("dead", "openai", mock::dead_port(), r#"["mock*"]"#, "")
        .upstream("alive", "openai", mock.addr, r#"["mock*"]"#, "")
        .start();
    let key = gateway.mint(DEV1);
    for _ in 0..10 {
        let row = gateway.row(&gateway.post(&key, CHAT, &chat("mock")).expect(200));
        row.assert_healthy_openai();
        assert_eq!(row["upstream"], "alive");
    }
    gateway.idle_check();
}

#[test]
fn a_trace_id_is_forwarded_and_recorded() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).start();
    let key = gateway.mint(DEV1);
    let traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let request = Request::post(CHAT).key(&key.secret).header("traceparent", traceparent).json(&chat("mock"));
    let answer = gateway.send(&request).expect(200);
    let trace = |text: &str| text.split('-').nth(1).map(str::to_owned);
    assert_eq!(mock.last_request().header("traceparent").and_then(trace), trace(traceparent));
    let row = gateway.row(&answer);
    assert_eq!(row["traceparent"].as_str().and_then(trace), trace(traceparent), "{}", row.0);
    gateway.idle_check();
}

#[test]
fn a_row_has_its_fields_in_the_documented_order() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).limit("team_rpm", "rpm", "amount: 10, period: 1m").start();
    let key = gateway.mint(DEV1);
    let answer = gateway.post(&key, CHAT, &chat("mock")).expect(200);
    let row = gateway.row(&answer);
    let line = std::fs::read_to_string(&ledger::segments(&gateway.ledger_dir())[0]).expect("a segment");
    let fields = [
        "v",
        "seq",
        "ts",
        "end",
        "request_id",
        "replica",
        "node",
        "key_id",
        "endpoint",
        "model",
        "upstream",
        "decision",
        "outcome",
        "attempts",
        "refused_by",
        "shadow",
        "suspended",
        "suspended_reasons",
        "status",
        "forwarded",
        "stream",
        "usage",
        "input",
        "output",
        "cached_input",
        "cache_write",
        "reasoning",
        "source",
        "cost_nanousd",
        "price",
        "reserved_tokens",
        "latency_us",
        "first_byte_us",
        "overhead_us",
        "traceparent",
    ];
    let places: Vec<Option<usize>> = fields.iter().map(|field| line.find(&format!("\"{field}\":"))).collect();
    let missing: Vec<&&str> = fields.iter().zip(&places).filter(|(_, place)| place.is_none()).map(|(f, _)| f).collect();
    assert!(missing.is_empty(), "missing {missing:?} in {line}");
    assert!(places.is_sorted(), "{line}");
    assert_eq!((&row["replica"], &row["node"], &row["key_id"]), (&json!("tt-test"), &json!(DEV1), &json!(key.id)));
    assert_eq!((&row["upstream"], row.number("attempts"), row.number("status")), (&json!("mock-openai"), 1, 200));
    assert_eq!(row.usage("reasoning"), 10);
    assert_eq!(row["refused_by"], Value::Null);
    let (latency, overhead) = (row.number("latency_us"), row.number("overhead_us"));
    assert!(latency > 0 && overhead <= latency, "{}", row.0);
    assert!(latency < Duration::from_secs(10).as_micros() as u64);
    gateway.idle_check();
}

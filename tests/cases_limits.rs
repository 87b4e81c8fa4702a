//! Cases C24 to C31: leases, reserves and refusals, from public bug reports of other gateways.
//!
//! Each test bears the number of its case and ends with the idle check. Rates have a period of 100 h, so that
//! what refills during a test is a fraction of a token.

mod common;

use std::thread;

use common::mock::dead_port;
use common::*;
use serde_json::{Value, json};

/// 40,000 tokens; 0.11 of them refill in a second.
const TPM_40K: &str = "amount: 40000, period: 100h";
/// The output part of a reserve for a call that bounds nothing.
const RESERVE_CAP: u64 = 16_384;

/// Waits until exactly this much is left of a tpm limit (and not more than a minute's refill above it).
#[track_caller]
fn wait_tpm(gateway: &Gateway, key: &Key, limit_id: &str, remaining: u64) {
    let mut seen = 0.0;
    let what = format!("{remaining} tokens to remain of {limit_id}");
    until(&what, PROMPTLY, || {
        seen = gateway.me(key).limit(limit_id).remaining();
        (0.0..7.0).contains(&(seen - remaining as f64))
    });
}

#[test]
fn c24_cancelled_streams_give_their_slots_back() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).limit("team_slots", "concurrency", "amount: 2").start();
    let key = gateway.mint(DEV1);
    let request = Request::post(CHAT).key(&key.secret).json(&chat_stream("mock+slow100"));
    // Two callers at once, a hundred aborts each. A new call may meet the slot its own last abort has not freed
    // yet, so a 429 is tried again; what counts is that 200 streams were admitted and aborted.
    let admitted = || {
        until_some("a free slot", SOON, || {
            let stream = Stream::open(gateway.addr, &request);
            (stream.head.status == 200).then_some(stream)
        })
    };
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for abort in 0..100 {
                    match abort % 3 {
                        0 => {
                            let mut stream = admitted();
                            stream.events(1);
                            stream.hang_up();
                        }
                        1 => {
                            let mut stream = admitted();
                            stream.events(1);
                            stream.reset();
                        }
                        _ => {
                            let mut caller = Conn::open(gateway.addr);
                            caller.send(&request);
                            drop(caller); // before any byte of an answer
                        }
                    }
                }
            });
        }
    });
    until("the gauge to rest", PROMPTLY, || gateway.me(&key).limit("team_slots").live() == 0);
    let mut held: Vec<Stream> =
        (0..2).map(|_| gateway.stream(&key, CHAT, &chat_stream("mock+slow500")).expect(200)).collect();
    held.iter_mut().for_each(|stream| drop(stream.events(1)));
    let refused = gateway.post(&key, CHAT, &chat("mock")).expect(429).json();
    assert_eq!(refused["error"]["type"], "concurrency_exceeded");
    assert_eq!(refused["error"]["refused_by"]["observed"], 2);
    drop(held);
    gateway.idle_check();
}

#[test]
fn c25_upstream_trouble_gives_slots_back() {
    let mock = Mock::start();
    // The case waits 1 s for a hanging upstream; a quarter of that takes the same path in less time.
    let gateway = Setup::new()
        .mock(&mock, r#"["mock", "mock+*"]"#)
        .upstream("hanging", "openai", mock.addr, r#"["hanging*"]"#, "first_byte_timeout: 250ms")
        .upstream("dead", "openai", dead_port(), r#"["dead"]"#, "connect_timeout: 1s")
        .price(r#"{ model: "*", input_usd_per_mtok: 1, output_usd_per_mtok: 10 }"#)
        .limit("team_slots", "concurrency", "amount: 2")
        .limit("team_tpm", "tpm", TPM_40K)
        .start();
    let key = gateway.mint(DEV1);
    let batches = [
        (chat("mock+closenow"), 502, true),
        (chat("hanging+hang"), 504, true),
        (chat("mock+status500"), 500, false),
        (chat_stream("mock+cut"), 200, false),
        (chat("mock+empty200"), 200, false),
        (chat("dead"), 502, false),
    ];
    for (body, status, may_be_billed) in batches {
        for _ in 0..20 {
            let answer = gateway.post(&key, CHAT, &body).expect(status);
            // sent whole and not answered: it may have been billed, and must not just be sent again
            assert_eq!(answer.header("x-should-retry"), may_be_billed.then_some("false"), "{body}");
        }
        until(&format!("the gauge to rest after {body}"), PROMPTLY, || {
            gateway.me(&key).limit("team_slots").live() == 0
        });
    }
    for row in gateway.wait_rows(120, SOON) {
        match row.model() {
            "hanging+hang" => assert_eq!(row.outcome(), "timeout", "{}", row.0),
            "mock+cut" => assert_eq!(row.outcome(), "upstream_cut", "{}", row.0),
            "mock+empty200" => assert_eq!(row.outcome(), "completed", "{}", row.0),
            _ => assert_ne!(row.outcome(), "completed", "{}", row.0),
        }
        assert_eq!(row["forwarded"], row.model() != "dead", "a head was written, or no connection came: {}", row.0);
    }
    gateway.idle_check();
}

#[test]
fn c26_a_refused_request_takes_nothing_but_its_rpm_count() {
    let mock = Mock::start();
    // A gate is walked by limit id. `a_rpm` counts before the slots refuse, `z_rpm` is never reached.
    for (rpm, counted) in [("a_rpm", 2.0), ("z_rpm", 1.0)] {
        let gateway = Setup::with_mock(&mock)
            .limit(rpm, "rpm", "amount: 10, period: 100h")
            .limit("m_slots", "concurrency", "amount: 1")
            .limit("m_tpm", "tpm", TPM_40K)
            .start();
        let key = gateway.mint(DEV1);
        let mut held = gateway.stream(&key, CHAT, &chat_stream("mock+slow200")).expect(200);
        held.events(1);
        let reserved = 40_000 - RESERVE_CAP;
        wait_tpm(&gateway, &key, "m_tpm", reserved);
        let refused = gateway.post(&key, CHAT, &chat("mock")).expect(429);
        assert_eq!(refused.json()["error"]["type"], "concurrency_exceeded");
        wait_tpm(&gateway, &key, "m_tpm", reserved);
        assert_eq!(gateway.me(&key).limit("m_slots").live(), 1, "the refused request holds no slot");
        assert!(held.finish().complete);
        wait_tpm(&gateway, &key, "m_tpm", 40_000 - OPENAI_REPLY_TOKENS);
        assert_eq!(gateway.me(&key).limit(rpm).remaining(), 10.0 - counted, "rpm counts one way, at gate A");
        gateway.idle_check();
    }
}

#[test]
fn c26_a_refusal_at_gate_b_returns_the_lease_and_the_reserves_taken_so_far() {
    let mock = Mock::start();
    // The team's reserve is taken first, then the organisation has no room for a second one.
    let gateway = Setup::with_mock(&mock)
        .limit("team_slots", "concurrency", "amount: 5")
        .limit("team_tpm", "tpm", TPM_40K)
        .limit_on("org:acme", "acme_tpm", "tpm", "amount: 17000, period: 100h")
        .start();
    let key = gateway.mint(DEV1);
    let mut held = gateway.stream(&key, CHAT, &chat_stream("mock+slow200")).expect(200);
    held.events(1);
    let refused = gateway.post(&key, CHAT, &chat("mock")).expect(429).json();
    assert_eq!(refused["error"]["refused_by"]["limit_id"], "acme_tpm");
    wait_tpm(&gateway, &key, "team_tpm", 40_000 - RESERVE_CAP);
    wait_tpm(&gateway, &key, "acme_tpm", 17_000 - RESERVE_CAP);
    until("the refused request's lease", PROMPTLY, || gateway.me(&key).limit("team_slots").live() == 1);
    assert!(held.finish().complete);
    wait_tpm(&gateway, &key, "acme_tpm", 17_000 - OPENAI_REPLY_TOKENS);
    gateway.idle_check();
}

#[test]
fn c27_unused_reserve_comes_back_however_the_request_ends() {
    let mock = Mock::start();
    let gateway = Setup::new()
        .mock(&mock, r#"["mock*"]"#)
        .upstream("dead", "openai", dead_port(), r#"["dead"]"#, "")
        .price(r#"{ model: "dead", input_usd_per_mtok: 1, output_usd_per_mtok: 10 }"#)
        .limit("team_tpm", "tpm", TPM_40K)
        .start();
    let key = gateway.mint(DEV1);
    let capped = |body: Value| with(body, "max_tokens", json!(16_000));
    let mut remaining = 40_000;

    let stream = gateway.stream(&key, CHAT, &capped(chat_stream("mock"))).expect(200).finish();
    remaining -= OPENAI_REPLY_TOKENS;
    wait_tpm(&gateway, &key, "team_tpm", remaining);
    assert_eq!(gateway.row(&stream.head).number("reserved_tokens"), 16_000, "two bytes of prompt are no token");

    let body = capped(with(question("mock+slow200"), "stream", json!(true)));
    let mut aborted = gateway.stream(&key, CHAT, &body).expect(200);
    aborted.events(1);
    let head = aborted.head.clone();
    aborted.hang_up();
    let row = gateway.row(&head);
    row.assert_estimated();
    remaining -= row.tokens(); // leaving early is not free
    wait_tpm(&gateway, &key, "team_tpm", remaining);

    // An error status of the provider and a failed connect book nothing.
    for (model, status) in [("mock+status429", 429), ("mock+status500", 500), ("mock+status529", 529), ("dead", 502)] {
        for body in [chat(model), chat_stream(model)] {
            let answer = gateway.post(&key, CHAT, &capped(body)).expect(status);
            wait_tpm(&gateway, &key, "team_tpm", remaining);
            let row = gateway.row(&answer);
            assert_eq!((row.tokens(), row.source(), row.cost().unwrap_or(0)), (0, "none", 0), "{}", row.0);
        }
    }
    gateway.idle_check();
}

#[test]
fn c28_the_largest_of_several_caps_is_reserved() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).limit("team_tpm", "tpm", TPM_40K).start();
    let key = gateway.mint(DEV1);
    let messages = r#""messages":[{"role":"user","content":"hi"}]"#;
    let bodies = [
        (CHAT, format!(r#"{{"model":"mock","max_tokens":1,"max_completion_tokens":4000,{messages}}}"#)),
        (CHAT, format!(r#"{{"model":"mock","max_completion_tokens":4000,"max_tokens":1,{messages}}}"#)),
        (CHAT, format!(r#"{{"model":"mock","max_tokens":4000,{messages},"max_completion_tokens":1}}"#)),
        (RESPONSES, r#"{"model":"mock","max_output_tokens":4000,"input":"hi"}"#.to_owned()),
        (RESPONSES, r#"{"model":"mock","max_tokens":4000,"max_output_tokens":2,"input":"hi"}"#.to_owned()),
    ];
    for (path, body) in bodies {
        let answer = gateway.post_text(&key, path, &body).expect(200);
        assert_eq!(gateway.row(&answer).number("reserved_tokens"), 4000, "{body}");
    }
    gateway.idle_check();
}

#[test]
fn c28_choices_multiply_the_reserve_up_to_the_burst() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).limit("team_tpm", "tpm", TPM_40K).start();
    let key = gateway.mint(DEV1);
    // 100 x 4000 is cut to the burst, which is all there at first; otherwise it would be refused for ever.
    for (n, reserved) in [(100, 40_000), (3, 12_000)] {
        let body = with(with(chat("mock"), "max_tokens", json!(4000)), "n", json!(n));
        let answer = gateway.post(&key, CHAT, &body).expect(200);
        assert_eq!(gateway.row(&answer).number("reserved_tokens"), reserved);
    }
    // Each prompt of a list has an answer, or `n` of them.
    for (prompt, reserved) in [(json!(["a", "b", "c"]), 3_000), (json!([[1, 2], [3]]), 2_003), (json!([1, 2]), 1_002)] {
        let body = json!({"model": "mock", "max_tokens": 500, "n": 2, "prompt": prompt});
        let answer = gateway.post(&key, COMPLETIONS, &body).expect(200);
        assert_eq!(gateway.row(&answer).number("reserved_tokens"), reserved, "{prompt}");
    }
    gateway.idle_check();
}

#[test]
fn c29_an_odd_cap_never_credits_the_bucket() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).limit("team_tpm", "tpm", TPM_40K).start();
    let key = gateway.mint(DEV1);
    let send = |cap: &str| {
        let body = format!(r#"{{"model":"mock","max_tokens":{cap},"messages":[{{"role":"user","content":"hi"}}]}}"#);
        let answer = gateway.post_text(&key, CHAT, &body);
        if answer.status == 200 {
            let sent = mock.last_request();
            assert_eq!(sent.body_bytes, body.len() as u64, "the bytes go upstream untouched");
        }
        answer
    };
    for (cap, reserved) in [("null", RESERVE_CAP), ("0", 0), ("1", 1), ("1000000000000000000", RESERVE_CAP)] {
        let answer = send(cap).expect(200);
        assert_eq!(gateway.row(&answer).number("reserved_tokens"), reserved, "max_tokens {cap}");
    }
    // A whole number spelled with an exponent may be read or refused, but never reserve more than the cap.
    let exponent = send("1e18");
    match exponent.status {
        200 => assert_eq!(gateway.row(&exponent).number("reserved_tokens"), RESERVE_CAP),
        status => assert_eq!(status, 400, "{}", exponent.text()),
    }
    let asked = mock.requests().len();
    for cap in ["-1", "1.5", r#""100""#, "true", "[]", "-0.5", "{}"] {
        let refused = send(cap).expect(400);
        assert!(refused.text().contains("max_tokens"), "the message names the member: {}", refused.text());
    }
    assert_eq!(mock.requests().len(), asked, "an odd cap reaches no provider");
    until("what the rows say to be what is gone", PROMPTLY, || {
        let used: u64 = gateway.rows().iter().map(Row::tokens).sum(); // the last one may still be on its way to the file
        let seen = gateway.me(&key).limit("team_tpm").remaining();
        (0.0..7.0).contains(&(seen - (40_000 - used) as f64))
    });
    gateway.idle_check();
}

#[test]
fn c30_a_picture_reserves_a_constant_and_not_its_bytes() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).limit("team_tpm", "tpm", "amount: 50000, period: 100h").start();
    let key = gateway.mint(DEV1);
    let picture = "iVBORw0K".repeat(256 * 1024); // 2 MiB of base64
    let url = format!("data:image/png;base64,{picture}");
    let chat_body = json!({"model": "mock", "max_tokens": 100, "messages": [{"role": "user", "content": [
        {"type": "text", "text": "hi"}, {"type": "image_url", "image_url": {"url": url}}]}]});
    let two_pictures = json!({"model": "mock", "max_tokens": 100, "messages": [{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}]}]});
    let responses_body = json!({"model": "mock", "max_output_tokens": 100, "input": [{"role": "user", "content": [
        {"type": "input_text", "text": "hi"}, {"type": "input_image", "image_url": url}]}]});
    let message_body = json!({"model": "mock", "max_tokens": 100, "messages": [{"role": "user", "content": [
        {"type": "text", "text": "hi"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": picture}}]}]});
    // 1,600 for each picture, 100 for the answer, and for a link the few bytes it is spelled with, at most
    let cases = [
        (CHAT, chat_body, 1_700..=1_700),
        (CHAT, two_pictures, 3_300..=3_307),
        (RESPONSES, responses_body, 1_700..=1_700),
        (MESSAGES, message_body, 1_700..=1_700),
    ];
    let mut used = 0;
    for (path, body, reserved) in cases {
        let answer = gateway.post(&key, path, &body).expect(200);
        let row = gateway.row(&answer);
        assert!(reserved.contains(&row.number("reserved_tokens")), "{path} reserved {}", row["reserved_tokens"]);
        used += row.tokens();
        wait_tpm(&gateway, &key, "team_tpm", 50_000 - used);
    }
    gateway.idle_check_allowing(128); // bodies of 2 MiB and their scratch copies stay in the pools
}

#[test]
fn c31_long_refusals_say_do_not_retry_and_short_ones_say_when() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock)
        .limit_on("org:budget", "spent_budget", "budget_usd", "amount_usd: 0.0001, period: year")
        .limit_on("org:quota", "spent_quota", "quota_requests", "amount: 1, period: year")
        .limit_on("org:rate", "short_rpm", "rpm", "amount: 1, period: 30s")
        .limit_on("org:long", "long_rpm", "rpm", "amount: 1, period: 10m")
        .start();
    for (org, limit) in [("org:budget", "spent_budget"), ("org:quota", "spent_quota")] {
        let key = gateway.mint(org);
        gateway.exhaust(&key, limit);
        for (path, body) in [(CHAT, chat("mock")), (MESSAGES, message("mock"))] {
            let refused = gateway.post(&key, path, &body).expect(429);
            assert!(refused.header("retry-after").is_some(), "{:?}", refused.headers);
            assert_eq!(refused.header("x-should-retry"), Some("false"), "{:?}", refused.headers);
        }
    }
    let key = gateway.mint("org:rate");
    gateway.post(&key, CHAT, &chat("mock")).expect(200);
    let refused = gateway.post(&key, CHAT, &chat("mock")).expect(429);
    assert_eq!(refused.header("x-should-retry"), None, "{:?}", refused.headers);
    let wait_ms: u64 = refused.header("retry-after-ms").and_then(|ms| ms.parse().ok()).expect("retry-after-ms");
    assert!((1..=30_000).contains(&wait_ms), "{wait_ms}");

    let key = gateway.mint("org:long");
    gateway.post(&key, CHAT, &chat("mock")).expect(200);
    let refused = gateway.post(&key, CHAT, &chat("mock")).expect(429);
    assert_eq!(refused.header("x-should-retry"), Some("false"), "longer than a minute: {:?}", refused.headers);
    gateway.idle_check();
}

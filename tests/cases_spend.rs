//! Cases C01 to C23 (without C08): what is booked for a request, from public bug reports of other gateways.
//!
//! Each test bears the number of its case and ends with the idle check. C16, C17 and C18 need a calendar that a
//! test can move; they are tests of the `shards` crate, on a virtual clock.

mod common;

use std::io::Read;
use std::net::TcpListener;
use std::thread;

use common::scripted::{chat_reply, json_answer, sse_answer};
use common::*;
use serde_json::{Value, json};

#[test]
fn c01_a_client_that_hangs_up_mid_stream_leaves_one_estimated_row() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).start();
    let key = gateway.mint(DEV1);
    thread::scope(|scope| {
        for _ in 0..10 {
            scope.spawn(|| {
                for _ in 0..5 {
                    let mut stream = gateway.stream(&key, CHAT, &chat_stream("mock+slow200")).expect(200);
                    stream.events(2);
                    stream.hang_up();
                }
            });
        }
    });
    for row in gateway.wait_rows(50, PROMPTLY) {
        assert_eq!((row.decision(), row.outcome()), ("admitted", "client_gone"), "{}", row.0);
        row.assert_estimated();
    }
    until("the upstream to notice 50 times", SOON, || mock.peers_gone() == 50);
    gateway.idle_check();
}

#[test]
fn c02_a_client_that_leaves_before_its_answer_pays_for_its_prompt() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).limit("team_slots", "concurrency", "amount: 2").start();
    let key = gateway.mint(DEV1);
    let mut caller = Conn::open(gateway.addr);
    caller.send(&Request::post(CHAT).key(&key.secret).json(&question("mock+delay3000")));
    mock.wait_requests(1);
    assert_eq!(gateway.me(&key).limit("team_slots").live(), 1);
    drop(caller);
    // The contract cancels the upstream at once: the lease is back long before the mock would have answered.
    until("the lease to return", PROMPTLY, || gateway.me(&key).limit("team_slots").live() == 0);
    let row = gateway.wait_rows(1, PROMPTLY).remove(0);
    assert_eq!(row.outcome(), "client_gone");
    row.assert_estimated();
    // 31 bytes / 4 = 7 tokens x 1.00 USD per million; nothing was relayed
    assert_eq!((row.usage("input"), row.usage("output"), row.cost()), (7, 0, Some(7_000)));
    gateway.idle_check();
}

#[test]
fn c02_a_client_that_leaves_while_its_large_body_is_being_forwarded_is_noticed_at_once() {
    // A provider that takes the connection and then nothing: 8 MiB do not fit into the sockets between.
    let provider = TcpListener::bind("127.0.0.1:0").unwrap();
    let mock = Mock::start();
    let setup = Setup::new().mock(&mock, r#"["mock"]"#);
    let setup = setup.upstream("slow", "openai", provider.local_addr().unwrap(), r#"["mock-slow"]"#, "");
    let gateway = setup.limit("team_slots", "concurrency", "amount: 2").start();
    let key = gateway.mint(DEV1);
    let body = json!({"model": "mock-slow", "messages": [{"role": "user", "content": "x".repeat(8 << 20)}]});
    let mut caller = Conn::open(gateway.addr);
    caller.send(&Request::post(CHAT).key(&key.secret).json(&body));
    let (mut forwarded, _) = provider.accept().unwrap();
    forwarded.read_exact(&mut [0; 1024]).expect("the head is forwarded");
    assert_eq!(gateway.me(&key).limit("team_slots").live(), 1);
    drop(caller);
    until("the lease to return", PROMPTLY, || gateway.me(&key).limit("team_slots").live() == 0);
    let row = gateway.wait_rows(1, PROMPTLY).remove(0);
    assert_eq!((row.decision(), row.outcome()), ("admitted", "client_gone"));
    let mut rest = Vec::new();
    let _ = forwarded.read_to_end(&mut rest); // ends, because the gateway closed the connection to the provider
    assert!(rest.len() < 8 << 20, "the provider got all of it");
    gateway.idle_check();
}

#[test]
fn c03_usage_is_asked_for_on_streams_and_hidden_from_who_did_not_ask() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).start();
    let key = gateway.mint(DEV1);
    let stream = gateway.stream(&key, CHAT, &chat_stream("mock")).expect(200).finish();
    assert!(stream.complete && stream.is_done());
    for chunk in stream.chunks() {
        assert_eq!(chunk["choices"].as_array().map(Vec::len), Some(1), "{chunk}");
        // The case wants no `usage` member at all; the contract lets the `usage: null` of these chunks pass.
        assert!(chunk["usage"].is_null(), "{chunk}");
    }
    assert_eq!(mock.last_request().body["stream_options"], json!({"include_usage": true}));
    let row = gateway.row(&stream.head);
    row.assert_healthy_openai();
    assert_eq!(row["stream"], true);
    gateway.idle_check();
}

#[test]
fn c04_every_spelling_of_stream_options_is_metered_alike() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).start();
    let key = gateway.mint(DEV1);
    let spellings = [
        (json!({"include_usage": true}), true),
        (json!({"include_usage": false}), false),
        (json!(null), false),
        (json!({}), false),
        (json!({"include_obfuscation": false}), false),
        (json!({"continuous_usage_stats": true}), false),
    ];
    for (options, sees_usage) in spellings {
        let body = with(chat_stream("mock"), "stream_options", options.clone());
        let stream = gateway.stream(&key, CHAT, &body).expect(200).finish();
        assert!(stream.complete && stream.is_done(), "{options}");
        let usage_chunks: Vec<Value> = stream.chunks().into_iter().filter(|c| c["choices"] == json!([])).collect();
        assert_eq!(usage_chunks.len(), usize::from(sees_usage), "{options}: {usage_chunks:?}");
        gateway.row(&stream.head).assert_healthy_openai();
        let mut upstream = if options.is_null() { json!({}) } else { options };
        upstream["include_usage"] = json!(true);
        assert_eq!(mock.last_request().body["stream_options"], upstream, "other members arrive unchanged");
    }
    gateway.idle_check();
}

#[test]
fn c04_a_large_body_asks_for_usage_wherever_its_options_stand() {
    let scripted = Scripted::start(|asked| scripted::healthy_chat(&asked.model()));
    let gateway = Setup::new().upstream("scripted", "openai", scripted.addr, r#"["mock*"]"#, "").start();
    let key = gateway.mint(DEV1);
    let text = "x".repeat(300_000);
    let messages = format!(r#""messages":[{{"role":"user","content":"{text}"}}]"#);
    for body in [
        format!(r#"{{"model":"mock","stream":true,{messages}}}"#),
        format!(r#"{{"model":"mock","stream":true,"stream_options":{{"include_usage":false}},{messages}}}"#),
        format!(r#"{{"model":"mock",{messages},"stream":true,"stream_options":null}}"#),
        format!(r#"{{"model":"mock",{messages},"stream":true,"stream_options":{{"include_usage":false}}}}"#),
    ] {
        gateway.post_text(&key, CHAT, &body).expect(200);
        let mut expected: Value = serde_json::from_str(&body).unwrap();
        expected["stream_options"] = json!({"include_usage": true});
        let arrived = scripted.asked().pop().unwrap().json();
        assert!(arrived == expected, "{} ... {}", &body[..60], &body[body.len() - 60..]);
    }
    for row in gateway.wait_rows(4, PROMPTLY) {
        assert_eq!(row.source(), "reported", "{}", row.0);
    }
    gateway.idle_check();
}

#[test]
fn c05_an_upstream_that_rejects_stream_options_is_asked_once_more_without_and_remembered() {
    let mock = Mock::start();
    // One core: what is learned may be remembered by each core for itself.
    let gateway = Setup::with_mock(&mock).limit("team_rpm", "rpm", "amount: 100, period: 100h").cores(1).start();
    let key = gateway.mint(DEV1);
    for attempts in [2, 1, 1] {
        let stream = gateway.stream(&key, CHAT, &chat_stream("mock+reject_so")).expect(200).finish();
        assert!(stream.complete && stream.is_done());
        let row = gateway.row(&stream.head);
        row.assert_estimated();
        assert_eq!(row.number("attempts"), attempts);
    }
    let asked: Vec<bool> = mock.requests().iter().map(|seen| seen.body.get("stream_options").is_some()).collect();
    assert_eq!(asked, [true, false, false, false]);
    assert_eq!(gateway.wait_rows(3, SOON).len(), 3);
    assert_eq!(gateway.me(&key).limit("team_rpm").remaining(), 97.0, "the second try is no second request");
    // A caller who asks for it gets the upstream's own answer.
    let body = with(chat_stream("mock+reject_so"), "stream_options", json!({"include_usage": true}));
    assert!(gateway.post(&key, CHAT, &body).expect(400).text().contains("Unknown parameter"));
    gateway.idle_check();
}

#[test]
fn c05_stream_usage_never_leaves_stream_options_alone() {
    let mock = Mock::start();
    let setup = Setup::new().upstream("mock", "openai", mock.addr, r#"["mock*"]"#, "stream_usage: never");
    let gateway = setup.start();
    let key = gateway.mint(DEV1);
    let stream = gateway.stream(&key, CHAT, &chat_stream("mock")).expect(200).finish();
    assert_eq!(mock.last_request().body.get("stream_options"), None);
    gateway.row(&stream.head).assert_estimated();
    gateway.idle_check();
}

#[test]
fn c06_cumulative_anthropic_usage_is_not_added_up() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).start();
    let key = gateway.mint(DEV1);
    let stream = gateway.stream(&key, MESSAGES, &message_stream("mock")).expect(200).finish();
    gateway.row(&stream.head).assert_healthy_anthropic();
    let plain = gateway.post(&key, MESSAGES, &message("mock")).expect(200);
    gateway.row(&plain).assert_healthy_anthropic();
    gateway.idle_check();
}

#[test]
fn c07_anthropic_input_that_comes_only_with_the_last_event_is_read() {
    let upstream = Scripted::start(|asked| {
        if asked.path.ends_with("/chat/completions") {
            return scripted::healthy_chat(&asked.model());
        }
        let tokens = |input: u64, written: u64, output: u64| {
            json!({"input_tokens": input, "output_tokens": output, "cache_creation_input_tokens": written,
                "cache_read_input_tokens": 0})
        };
        let start = json!({"id": "msg_1", "type": "message", "role": "assistant", "model": asked.model(), "content": [],
            "stop_reason": null, "stop_sequence": null, "usage": tokens(0, 0, 0)});
        let delta =
            json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": tokens(4522, 4511, 5)});
        Answer::Keep(sse_answer(&[
            ("message_start", json!({"type": "message_start", "message": start}).to_string()),
            ("message_delta", delta.to_string()),
            ("message_stop", json!({"type": "message_stop"}).to_string()),
        ]))
    });
    let gateway = Setup::new()
        .upstream("anthropic", "anthropic", upstream.addr, r#"["mock*"]"#, "")
        .upstream("openai", "openai", upstream.addr, r#"["mock*"]"#, "")
        .start();
    let key = gateway.mint(DEV1);
    let stream = gateway.stream(&key, MESSAGES, &message_stream("mock")).expect(200).finish();
    let row = gateway.row(&stream.head);
    // The whole prompt is 4522 + 4511 written; 4522 x 1.00 + 4511 x 1.25 + 5 x 10.00 = 10,210.75 micro-USD.
    row.assert_reported(9033, 5, 0, 4511);
    assert_eq!(row.cost(), Some(10_210_750));
    gateway.idle_check();
}

#[test]
fn c09_running_totals_on_every_chunk_are_not_summed() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).start();
    let key = gateway.mint(DEV1);
    let stream = gateway.stream(&key, CHAT, &chat_stream("mock+contusage+forceusage")).expect(200).finish();
    gateway.row(&stream.head).assert_healthy_openai();
    gateway.idle_check();
}

#[test]
fn c10_a_reported_zero_is_a_zero_and_silence_is_an_estimate() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).start();
    let key = gateway.mint(DEV1);
    let zero = gateway.stream(&key, CHAT, &chat_stream("mock+forceusage+zerousage")).expect(200).finish();
    let row = gateway.row(&zero.head);
    assert_eq!((row.source(), row.tokens(), row.cost()), ("reported", 0, Some(0)), "{}", row.0);
    let silent = gateway.stream(&key, CHAT, &chat_stream("mock+noinclude")).expect(200).finish();
    gateway.row(&silent.head).assert_estimated();
    gateway.idle_check();
}

#[test]
fn c11_hostile_numbers_never_lower_the_spend() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).limit("team_budget", "budget_usd", "amount_usd: 100, period: year").start();
    let key = gateway.mint(DEV1);
    let mut spent = 0;
    let mut book = |head: &http::Head| {
        let row = gateway.row(head);
        row.assert_estimated();
        spent += row.cost().expect("an estimate has a cost");
        until("the meter to rise by the row", SOON, || gateway.me(&key).limit("team_budget").used_nanousd() == spent);
    };
    for fault in ["usage_neg", "usage_null", "usage_str", "usage_float", "usage_huge"] {
        let model = format!("mock+{fault}");
        let direct = http::exchange(mock.addr, &Request::post(CHAT).json(&chat(&model)));
        let plain = gateway.post(&key, CHAT, &chat(&model)).expect(200);
        assert_eq!(plain.text(), direct.text(), "the caller gets the upstream's bytes");
        book(&plain);

        let asked = with(chat_stream(&model), "stream_options", json!({"include_usage": true}));
        let direct = Stream::open(mock.addr, &Request::post(CHAT).json(&asked)).finish();
        let stream = gateway.stream(&key, CHAT, &chat_stream(&model)).expect(200).finish();
        assert!(stream.complete);
        assert_eq!(stream.raw, sse::without_usage_chunk(&direct.raw), "{fault}: only our own question is hidden");
        book(&stream.head);
    }
    gateway.idle_check();
}

#[test]
fn c12_more_cached_than_prompt_is_clamped_to_the_prompt() {
    let upstream = Scripted::start(|asked| {
        if asked.model() == "mock" {
            return scripted::healthy_chat("mock");
        }
        let usage = json!({"prompt_tokens": 100, "completion_tokens": 0, "total_tokens": 100,
            "prompt_tokens_details": {"cached_tokens": 500}});
        Answer::Keep(json_answer(200, &chat_reply("mock-odd", &usage)))
    });
    let gateway = Setup::new().upstream("odd", "openai", upstream.addr, r#"["mock*"]"#, "").start();
    let key = gateway.mint(DEV1);
    let anomalies = || gateway.metrics().count("tokentriage_usage_anomalies_total");
    let before = anomalies();
    let answer = gateway.post(&key, CHAT, &chat("mock-odd")).expect(200);
    let row = gateway.row(&answer);
    row.assert_reported(100, 0, 100, 0);
    assert_eq!(row.cost(), Some(10_000), "100 x 0.10 = 10 micro-USD");
    until("the anomaly to be counted", SOON, || anomalies() == before + 1);
    gateway.idle_check();
}

#[test]
fn c13_an_unpriced_model_is_refused_under_a_budget_and_served_without_one() {
    let mock = Mock::start();
    let setup = Setup::new()
        .mock(&mock, r#"["mock*", "unpriced-*"]"#)
        .limit_on("org:acme", "acme_budget", "budget_usd", "amount_usd: 100, period: month")
        .limit_on("org:other", "other_rpm", "rpm", "amount: 100, period: 1m");
    let gateway = setup.start();
    let budgeted = gateway.mint(DEV1);
    let refused = gateway.post(&budgeted, CHAT, &chat("unpriced-1")).expect(400);
    for word in ["model_unpriced", "unpriced-1", "pricing"] {
        assert!(refused.text().contains(word), "no {word} in {}", refused.text());
    }
    let row = gateway.row(&refused);
    assert_ne!(row.decision(), "admitted");
    assert_eq!((row.price(), row.cost(), &row["forwarded"]), ("unpriced", None, &json!(false)));
    mock.assert_untouched();

    let unbudgeted = gateway.mint("org:other/team:t/user:u");
    let served = gateway.post(&unbudgeted, CHAT, &chat("unpriced-1")).expect(200);
    let row = gateway.row(&served);
    row.assert_reported(100, 40, 60, 0);
    assert_eq!((row.price(), row.cost(), &row["cost_nanousd"]), ("unpriced", None, &Value::Null), "not 0");
    until("the unpriced row to be counted", SOON, || gateway.metrics().count("tokentriage_unpriced_rows_total") >= 1);
    gateway.idle_check();
}

#[test]
fn c13_unpriced_models_admit_serves_under_a_budget_and_says_so() {
    let mock = Mock::start();
    let gateway = Setup::new()
        .mock(&mock, r#"["mock*", "unpriced-*"]"#)
        .limit("team_budget", "budget_usd", "amount_usd: 100, period: month")
        .governance("unpriced_models", "admit")
        .start();
    let key = gateway.mint(DEV1);
    let served = gateway.post(&key, CHAT, &chat("unpriced-1")).expect(200);
    let row = gateway.row(&served);
    assert_eq!((row.decision(), row.price(), row.cost()), ("admitted", "unpriced", None));
    gateway.idle_check();
}

#[test]
fn c14_a_dated_name_in_the_reply_does_not_change_the_price() {
    let mock = Mock::start();
    // The reply says mock-2026-01-01, which would cost fifty times as much.
    let gateway = Setup::with_mock(&mock)
        .only_prices(&[
            r#"{ model: "mock-2026-01-01", input_usd_per_mtok: 50, output_usd_per_mtok: 500 }"#,
            r#"{ model: "mock+*", input_usd_per_mtok: 1, output_usd_per_mtok: 10, cache_read_usd_per_mtok: 0.1 }"#,
            r#"{ model: "mock", input_usd_per_mtok: 1, output_usd_per_mtok: 10, cache_read_usd_per_mtok: 0.1 }"#,
        ])
        .start();
    let key = gateway.mint(DEV1);
    let plain = gateway.post(&key, CHAT, &chat("mock+dated")).expect(200);
    assert_eq!(plain.json()["model"], "mock-2026-01-01");
    let stream = gateway.stream(&key, CHAT, &chat_stream("mock+dated")).expect(200).finish();
    for head in [&plain.head, &stream.head] {
        let row = gateway.row(head);
        row.assert_healthy_openai();
        assert_eq!((row.model(), row.price()), ("mock+dated", "config"));
    }
    gateway.idle_check();
}

#[test]
fn c15_a_burst_passes_a_budget_by_no_more_than_was_in_flight() {
    let mock = Mock::start();
    let setup = Setup::with_mock(&mock).limit("team_budget", "budget_usd", "amount_usd: 0.0005, period: month");
    let gateway = setup.start();
    let key = gateway.mint(DEV1); // brand-new: its first request is part of the burst
    let statuses: Vec<u16> = thread::scope(|scope| {
        let callers: Vec<_> =
            (0..50).map(|_| scope.spawn(|| gateway.post(&key, CHAT, &chat("mock+delay300")).status)).collect();
        callers.into_iter().map(|caller| caller.join().expect("a caller does not panic")).collect()
    });
    let admitted = statuses.iter().filter(|status| **status == 200).count() as u64;
    assert!(statuses.iter().all(|status| matches!(status, 200 | 429)), "{statuses:?}");
    assert!(admitted >= 2, "one call fits the budget of 500 micro-USD, the second crosses it");
    let rows = gateway.wait_rows(50, SOON);
    let spent = ledger::cost(&rows);
    assert_eq!(spent, admitted * OPENAI_REPLY_NANOUSD, "every admitted call is booked, and only those");
    until("the meter to hold it all", SOON, || gateway.me(&key).limit("team_budget").used_nanousd() == spent);
    for _ in 0..10 {
        let refused = gateway.post(&key, CHAT, &chat("mock")).expect(429).json();
        let facts = &refused["error"]["refused_by"];
        assert_eq!(facts["limit"], json!(0.0005), "{refused}");
        assert_eq!((facts["observed"].as_f64().unwrap_or(0.0) * 1e9).round() as u64, spent, "{refused}");
    }
    gateway.idle_check();
}

#[test]
fn c19_a_token_limit_counts_tokens_and_not_calls() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock)
        .limit("team_quota", "quota_tokens", "amount: 1000, period: month")
        .limit("team_tpm", "tpm", "amount: 20000, period: 100h")
        .start();
    let key = gateway.mint(DEV1);
    // 8 x 140 = 1120: the eighth call crosses the quota of 1000, the ninth and tenth are refused.
    for call in 1..=10 {
        let (path, body) = (CHAT, if call <= 5 { chat("mock") } else { chat_stream("mock") });
        if call > 8 {
            let refused = gateway.post(&key, path, &body).expect(429).json();
            assert_eq!(refused["error"]["type"], "quota_exceeded");
            assert_eq!(refused["error"]["refused_by"]["observed"], 1120);
            continue;
        }
        let answer = gateway.post(&key, path, &body).expect(200);
        gateway.row(&answer).assert_healthy_openai();
        let used = f64::from(call * 140);
        until(&format!("{used} tokens after call {call}"), SOON, || {
            gateway.me(&key).limit("team_quota").used() == used
        });
        let remaining = gateway.me(&key).limit("team_tpm").remaining();
        assert!((0.0..5.0).contains(&(remaining - (20_000.0 - used))), "{remaining} after call {call}");
    }
    gateway.idle_check();
}

#[test]
fn c19_messages_debit_their_own_number_of_tokens() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).limit("team_quota", "quota_tokens", "amount: 100000, period: month").start();
    let key = gateway.mint(DEV1);
    for (call, body) in [(1, message("mock")), (2, message_stream("mock"))] {
        gateway.post(&key, MESSAGES, &body).expect(200);
        let used = (call * ANTHROPIC_REPLY_TOKENS) as f64;
        until(&format!("{used} tokens"), SOON, || gateway.me(&key).limit("team_quota").used() == used);
    }
    gateway.idle_check();
}

#[test]
fn c20_a_free_model_is_served_behind_an_empty_budget_and_rates_still_apply() {
    let mock = Mock::start();
    let gateway = Setup::new()
        .mock(&mock, r#"["mock*", "local*"]"#)
        .price(r#"{ model: "local*", input_usd_per_mtok: 0, output_usd_per_mtok: 0 }"#)
        .limit("team_budget", "budget_usd", "amount_usd: 0.0001, period: month")
        .limit("team_rpm", "rpm", "amount: 4, period: 100h")
        .start();
    let key = gateway.mint(DEV1);
    gateway.exhaust(&key, "team_budget");
    assert_eq!(gateway.post(&key, CHAT, &chat("mock")).expect(429).json()["error"]["type"], "budget_exceeded");
    for body in [chat("local"), chat_stream("local")] {
        let served = gateway.post(&key, CHAT, &body).expect(200);
        let row = gateway.row(&served);
        assert_eq!((row.cost(), row.price()), (Some(0), "config"), "a price of 0 is a price");
    }
    // exhausting, the refusal and two free calls are four
    assert_eq!(gateway.post(&key, CHAT, &chat("local")).expect(429).json()["error"]["type"], "rate_limited");
    gateway.idle_check();
}

#[test]
fn c21_no_side_door_passes_an_empty_budget() {
    let mock = Mock::start();
    let gateway = Setup::new()
        .upstream("openai", "openai", mock.addr, r#"["mock*"]"#, r#"passthrough: ["/v1/images/generations"]"#)
        .upstream("anthropic", "anthropic", mock.addr, r#"["mock*"]"#, "")
        .limit("team_budget", "budget_usd", "amount_usd: 0.0001, period: month")
        .start();
    let key = gateway.mint(DEV1);
    gateway.exhaust(&key, "team_budget");
    let paths = [
        "/v1/images/generations",
        "/v1/audio/speech",
        "/v1/batches",
        "/v1/files",
        "/v1/responses/compact",
        "/anthropic/v1/messages",
        "/v1/foo",
        "/v1/chat/completions/",
        "//v1/chat/completions",
        "/v1/./chat/completions",
        "/v1/foo/../chat/completions",
        "/v1/%63hat/completions",
        "/V1/chat/completions",
        "/v1/chat/completions?x=1",
        "/chat/completions",
        CHAT,
        COMPLETIONS,
        RESPONSES,
        EMBEDDINGS,
        MESSAGES,
    ];
    for path in paths {
        let body = with(with(message("mock"), "prompt", json!("hi")), "input", json!("hi"));
        let answer = gateway.post(&key, path, &body);
        // a passthrough path may have no price, which an enforcing budget refuses with 400 whatever is left of it
        let refused =
            matches!(answer.status, 404 | 429) || (answer.status == 400 && answer.text().contains("unpriced"));
        assert!(refused, "{path} gave {}: {}", answer.status, answer.text());
    }
    assert_eq!(mock.requests().len(), 1, "only the call that spent the budget reached the upstream");
    gateway.idle_check();
}

#[test]
fn c21_a_passthrough_path_is_governed_and_its_model_needs_a_price() {
    let mock = Mock::start();
    let passthrough = r#"passthrough: ["/v1/images/generations"]"#;
    let setup = Setup::new().upstream("openai", "openai", mock.addr, r#"["mock*", "painter"]"#, passthrough).limit(
        "team_budget",
        "budget_usd",
        "amount_usd: 100, period: month",
    );
    let body = json!({"model": "painter", "prompt": "a fox"});
    let gateway = setup.start();
    let refused = gateway.post(&gateway.mint(DEV1), "/v1/images/generations", &body).expect(400);
    assert!(refused.text().contains("model_unpriced"), "{}", refused.text());
    mock.assert_untouched();
    gateway.idle_check();

    let gateway = setup.governance("unpriced_models", "admit").start();
    // The mock has no such path; that the gateway relays its 404 and writes a row is what counts.
    let relayed = gateway.post(&gateway.mint(DEV1), "/v1/images/generations", &body).expect(404);
    assert!(relayed.text().contains("no route"), "{}", relayed.text());
    let row = gateway.row(&relayed);
    assert_eq!((row.endpoint(), &row["forwarded"]), ("passthrough", &json!(true)));
    gateway.idle_check();
}

#[test]
fn c22_every_endpoint_is_metered_under_its_name() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).start();
    let key = gateway.mint(DEV1);
    let embedded = gateway.post(&key, EMBEDDINGS, &embedding("mock")).expect(200);
    let row = gateway.row(&embedded);
    row.assert_reported(8, 0, 0, 0);
    assert_eq!((row.endpoint(), row.cost()), ("embeddings", Some(8_000)));
    let metered = [
        (CHAT, chat("mock"), "chat.completions"),
        (COMPLETIONS, completion("mock"), "completions"),
        (RESPONSES, responses("mock"), "responses"),
        (RESPONSES, with(responses("mock"), "stream", json!(true)), "responses"),
    ];
    for (path, body, endpoint) in metered {
        let answer = gateway.post(&key, path, &body).expect(200);
        let row = gateway.row(&answer);
        row.assert_healthy_openai();
        assert_eq!(row.endpoint(), endpoint);
    }
    let messages = gateway.post(&key, MESSAGES, &message("mock")).expect(200);
    assert_eq!(gateway.row(&messages).endpoint(), "messages");
    // Counting is free: a row, no tokens, no money.
    let counted = gateway.post(&key, COUNT_TOKENS, &message("mock")).expect(200);
    let row = gateway.row(&counted);
    assert_eq!((row.endpoint(), row.tokens()), ("messages.count_tokens", 0));
    assert_eq!(row.cost().unwrap_or(0), 0);
    gateway.idle_check();
}

#[test]
fn c23_a_legacy_completion_streams_and_is_booked() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).start();
    let key = gateway.mint(DEV1);
    let body = with(completion("mock"), "stream", json!(true));
    let stream = gateway.stream(&key, COMPLETIONS, &body).expect(200).finish();
    assert!(stream.head.header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream")));
    assert!(stream.complete && stream.is_done());
    let text: String = stream.chunks().iter().filter_map(|chunk| chunk["choices"][0]["text"].as_str()).collect();
    assert_eq!(text, "Hello, wörld 北京🌍!");
    let row = gateway.row(&stream.head);
    row.assert_healthy_openai();
    assert_eq!(row.endpoint(), "completions");
    gateway.idle_check();
}

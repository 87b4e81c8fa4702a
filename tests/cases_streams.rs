//! Cases C39 to C45: streams and encodings, from public bug reports of other gateways.
//!
//! Each test bears the number of its case and ends with the idle check. What a caller should see is what the
//! mock itself answers when it is asked directly.

mod common;

use std::io::Read;
use std::time::{Duration, Instant, UNIX_EPOCH};

use common::http::Framing;
use common::scripted::raw_answer;
use common::sse::Finished;
use common::*;
use serde_json::{Value, json};

fn asking_for_usage(body: Value) -> Value {
    with(body, "stream_options", json!({"include_usage": true}))
}

#[track_caller]
fn direct(mock: &Mock, path: &str, body: &Value) -> Finished {
    Stream::open(mock.addr, &Request::post(path).json(body)).finish()
}

fn texts(stream: &Finished) -> String {
    stream.chunks().iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect()
}

/// The bytes with the digits of `id:` lines, which are times, replaced.
fn without_ids(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let lines = text.split_inclusive('\n');
    lines.map(|line| if line.starts_with("id:") { "id: time\n".to_owned() } else { line.to_owned() }).collect()
}

#[test]
fn c39_characters_cut_in_half_arrive_whole() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).start();
    let key = gateway.mint(DEV1);
    let expected = direct(&mock, CHAT, &asking_for_usage(chat_stream("mock+byte1")));
    let chat = gateway.stream(&key, CHAT, &chat_stream("mock+byte1")).expect(200).finish();
    assert!(chat.complete);
    assert_eq!(chat.raw, sse::without_usage_chunk(&expected.raw), "byte for byte, without our usage chunk");
    gateway.row(&chat.head).assert_healthy_openai();

    let expected = direct(&mock, MESSAGES, &message_stream("mock+byte1"));
    let message = gateway.stream(&key, MESSAGES, &message_stream("mock+byte1")).expect(200).finish();
    assert!(message.complete);
    assert_eq!(message.raw, expected.raw, "byte for byte");
    gateway.row(&message.head).assert_healthy_anthropic();
    gateway.idle_check();
}

#[test]
fn c40_every_legal_spelling_of_a_stream_is_metered_and_left_alone() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).start();
    let key = gateway.mint(DEV1);
    for spelling in ["crlf", "cr", "nospace", "comment", "bom", "multiline", "ids", "te_trailers", "azure"] {
        for byte1 in ["", "+byte1"] {
            let model = format!("mock+{spelling}{byte1}");
            // Who asks for usage gets every byte of the upstream's.
            let body = asking_for_usage(chat_stream(&model));
            let expected = direct(&mock, CHAT, &body);
            let asked = gateway.stream(&key, CHAT, &body).expect(200).finish();
            assert!(asked.complete, "{model}");
            assert_eq!(without_ids(&asked.raw), without_ids(&expected.raw), "{model}");
            gateway.row(&asked.head).assert_healthy_openai();
            // Who does not gets the same text, without the usage chunk.
            let plain = gateway.stream(&key, CHAT, &chat_stream(&model)).expect(200).finish();
            assert!(plain.complete && plain.is_done(), "{model}");
            assert_eq!(texts(&plain), "Hello, wörld 北京🌍!", "{model}");
            assert_eq!(plain.events.len() + 1, asked.events.len(), "{model}: one event is hidden");
            gateway.row(&plain.head).assert_healthy_openai();
        }
    }
    for spelling in ["crlf", "cr", "nospace", "comment", "multiline", "ids"] {
        let body = message_stream(&format!("mock+{spelling}+byte1"));
        let expected = direct(&mock, MESSAGES, &body);
        let stream = gateway.stream(&key, MESSAGES, &body).expect(200).finish();
        assert_eq!(without_ids(&stream.raw), without_ids(&expected.raw), "{spelling}");
        gateway.row(&stream.head).assert_healthy_anthropic();
    }
    gateway.idle_check();
}

#[test]
fn c40_a_line_of_three_megabytes_and_a_missing_done_are_metered() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).start();
    let key = gateway.mint(DEV1);
    for model in ["mock+bigline", "mock+nodone"] {
        let expected = direct(&mock, CHAT, &asking_for_usage(chat_stream(model)));
        let stream = gateway.stream(&key, CHAT, &chat_stream(model)).expect(200).finish();
        assert!(stream.complete, "{model}");
        assert!(
            stream.raw == sse::without_usage_chunk(&expected.raw),
            "{model}: byte for byte, and no invented [DONE]"
        );
        gateway.row(&stream.head).assert_healthy_openai();
    }
    gateway.idle_check();
}

#[test]
fn c41_comments_stay_comments_and_none_are_invented() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).start();
    let key = gateway.mint(DEV1);
    // The gateway has no heartbeat of its own, so a slow stream with ids must come out as it went in.
    for model in ["mock+comment", "mock+pingblank", "mock+ids+slow500"] {
        let body = asking_for_usage(chat_stream(model));
        let expected = direct(&mock, CHAT, &body);
        let stream = gateway.stream(&key, CHAT, &body).expect(200).finish();
        assert!(stream.complete, "{model}");
        assert_eq!(without_ids(&stream.raw), without_ids(&expected.raw), "{model}");
    }
    gateway.idle_check();
}

#[test]
fn c42_half_an_answer_never_looks_whole() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).start();
    let key = gateway.mint(DEV1);
    let streams = [
        (CHAT, chat_stream("mock+cut")),
        (MESSAGES, message_stream("mock+cut")),
        (RESPONSES, with(responses("mock+cut"), "stream", json!(true))),
    ];
    for (path, body) in streams {
        let stream = gateway.stream(&key, path, &body).expect(200).finish();
        assert_eq!(stream.framing, Framing::Chunked, "{path}: the end of a close-delimited body passes for success");
        assert!(!stream.complete, "{path}: the final chunk is withheld");
        let last = stream.events.last().expect("an error event");
        let error = last.json();
        match path {
            CHAT => assert!(error["error"]["message"].is_string(), "{error}"),
            MESSAGES => {
                assert_eq!((last.event.as_deref(), &error["type"]), (Some("error"), &json!("error")), "{error}");
                assert!(error["error"]["type"].is_string() && error["error"]["message"].is_string(), "{error}");
            }
            // in-band failure of the Responses API: the members are at the top
            _ => {
                assert_eq!((last.event.as_deref(), &error["type"]), (Some("error"), &json!("error")), "{error}");
                assert!(error["message"].is_string() && error.get("code").is_some(), "{error}");
            }
        }
        let raw = String::from_utf8_lossy(&stream.raw);
        for end in ["[DONE]", "message_stop", "response.completed"] {
            assert!(!raw.contains(end), "{path}: an invented {end}");
        }
        let row = gateway.row(&stream.head);
        assert_eq!(row.outcome(), "upstream_cut", "{}", row.0);
        if path == MESSAGES {
            // its first event had reported the prompt, so only the rest is an estimate
            assert!(row.usage("input") == 1225 && row.usage("output") > 0, "{}", row.0);
        } else {
            row.assert_estimated();
        }
    }
    gateway.idle_check();
}

#[test]
fn c42_an_error_event_of_the_upstream_is_relayed_as_it_is() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).start();
    let key = gateway.mint(DEV1);
    for (path, body) in [(CHAT, chat_stream("mock+errmid")), (MESSAGES, message_stream("mock+errmid"))] {
        let expected = direct(&mock, path, &if path == CHAT { asking_for_usage(body.clone()) } else { body.clone() });
        let stream = gateway.stream(&key, path, &body).expect(200).finish();
        assert!(stream.complete, "{path}: the upstream ended its stream properly");
        assert_eq!(String::from_utf8_lossy(&stream.raw), String::from_utf8_lossy(&expected.raw), "{path}");
        let row = gateway.row(&stream.head);
        assert_eq!(
            (row.decision(), row.outcome()),
            ("admitted", "upstream_error"),
            "{path}: it did not come whole and good"
        );
    }
    gateway.idle_check();
}

#[test]
fn c43_each_event_leaves_when_it_arrives() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).start();
    let key = gateway.mint(DEV1);
    // The mock writes the time of each event into its id, by the clock of this machine.
    for body in [chat_stream("mock+slow500+ids"), asking_for_usage(chat_stream("mock+slow500+ids"))] {
        let began = Instant::now();
        let stream = gateway.stream(&key, CHAT, &body).expect(200).finish();
        let mut delays: Vec<Duration> = Vec::new();
        for event in &stream.events {
            let written: u64 = event.id.as_deref().and_then(|id| id.parse().ok()).expect("the id is a time");
            let read = event.wall.duration_since(UNIX_EPOCH).expect("the clock is past 1970");
            delays.push(read.saturating_sub(Duration::from_nanos(written)));
        }
        delays.sort();
        let (median, worst) = (delays[delays.len() / 2], delays[delays.len() - 1]);
        // The promise is 20 ms. A busy machine may hold up one event; a lump would hold up most, for 500 ms.
        assert!(median < Duration::from_millis(20), "{delays:?}");
        assert!(worst < Duration::from_millis(250), "{delays:?}");
        assert!(began.elapsed() > Duration::from_millis(2900), "six pauses of 500 ms were really there");
    }
    gateway.idle_check();
}

#[test]
fn c44_usage_is_found_whatever_the_framing_says() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).start();
    let key = gateway.mint(DEV1);
    // JSON where a stream was asked for, a stream where JSON was, and no content type at all
    let found = [
        chat_stream("mock+jsonnotsse"),
        chat("mock+ssenotjson+forceusage"),
        chat("mock+noct"),
        chat_stream("mock+noct"),
    ];
    for body in found {
        let answer = gateway.post(&key, CHAT, &body).expect(200);
        assert!(answer.complete && answer.text().contains("Hel"), "{body}: {}", answer.text());
        gateway.row(&answer).assert_healthy_openai();
    }
    let json = gateway.post(&key, CHAT, &chat_stream("mock+jsonnotsse")).expect(200);
    let expected = http::exchange(mock.addr, &Request::post(CHAT).json(&chat("mock+jsonnotsse")));
    assert_eq!(json.text(), expected.text());
    gateway.idle_check();
}

#[test]
fn c44_an_answer_without_usage_is_passed_on_and_estimated() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).start();
    let key = gateway.mint(DEV1);
    for body in [question("mock+html200"), question("mock+ssenotjson"), question("mock+empty200")] {
        for body in [with(body.clone(), "stream", json!(true)), body] {
            let expected = http::exchange(mock.addr, &Request::post(CHAT).json(&body));
            let answer = gateway.post(&key, CHAT, &body).expect(200);
            assert!(answer.complete, "{body}");
            let row = gateway.row(&answer);
            if row.source() == "reported" {
                // ssenotjson with `stream: true` is a plain healthy stream, whose usage was asked for
                assert!(body["model"] == "mock+ssenotjson" && body["stream"] == true, "{}", row.0);
                continue;
            }
            assert_eq!(answer.text(), expected.text(), "{body}");
            row.assert_estimated();
            assert_eq!(row.usage("input"), 7, "31 bytes / 4");
        }
    }
    gateway.idle_check();
}

#[test]
fn c45_a_compressed_answer_is_passed_on_and_metered() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).start();
    let key = gateway.mint(DEV1);
    for (path, body) in
        [(CHAT, chat("mock+gzip")), (MESSAGES, message("mock+gzip")), (EMBEDDINGS, embedding("mock+gzip"))]
    {
        let request = Request::post(path).key(&key.secret).header("Accept-Encoding", "gzip, deflate").json(&body);
        let answer = gateway.send(&request).expect(200);
        assert_eq!(mock.last_request().header("accept-encoding"), Some("identity"), "{path}");
        assert_eq!(answer.header("content-encoding"), Some("gzip"), "{path}");
        let mut text = String::new();
        flate2::read::GzDecoder::new(&answer.body[..]).read_to_string(&mut text).expect("what says gzip is gzip");
        assert!(serde_json::from_str::<Value>(&text).is_ok_and(|reply| reply["usage"].is_object()), "{text}");
        let row = gateway.row(&answer);
        match path {
            CHAT => row.assert_healthy_openai(),
            MESSAGES => row.assert_healthy_anthropic(),
            _ => row.assert_reported(8, 0, 0, 0),
        }
    }
    gateway.idle_check();
}

#[test]
fn c45_an_encoding_we_cannot_read_is_passed_on_and_estimated() {
    let upstream = Scripted::start(|asked| match asked.model().strip_prefix("mock-") {
        Some(encoding) => {
            let headers = format!("Content-Type: application/json\r\nContent-Encoding: {encoding}\r\n");
            Answer::Keep(raw_answer(
                200,
                &headers,
                &[0x8b, 0x02, 0x80, 0xff, 0x00, 0x9c, 0x41, 0x03, 0x11, 0x22, 0x33, 0x44],
            ))
        }
        None => scripted::healthy_chat("mock"),
    });
    let gateway = Setup::new().upstream("encoded", "openai", upstream.addr, r#"["mock*"]"#, "").start();
    let key = gateway.mint(DEV1);
    // labelled br and zstd, and gzip that is none
    for encoding in ["br", "zstd", "gzip"] {
        let answer = gateway.post(&key, CHAT, &question(&format!("mock-{encoding}"))).expect(200);
        assert_eq!(answer.header("content-encoding"), Some(encoding));
        assert_eq!((answer.body.len(), answer.complete), (12, true), "{encoding}");
        gateway.row(&answer).assert_estimated();
    }
    gateway.idle_check();
}

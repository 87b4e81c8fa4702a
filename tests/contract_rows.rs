//! What a row says of a request that did not go as asked: its tokens, its price, whose time it took.

mod common;

use std::time::Duration;

use common::http::chunk_frame;
use common::mock::full_port;
use common::scripted::{chat_reply, healthy_chat, json_answer};
use common::*;
use serde_json::{Value, json};

/// 1,556 bytes: 389 tokens by the four-bytes rule.
fn text_of_389_tokens() -> String {
    "x".repeat(1_556)
}

/// The beginning of a stream: its head and one event that holds the whole text, but neither usage nor an end.
fn begun_stream(path: &str) -> Vec<u8> {
    let text = text_of_389_tokens();
    let event = match path {
        MESSAGES => json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}),
        RESPONSES => json!({"type": "response.output_text.delta", "delta": text}),
        COMPLETIONS => json!({"choices": [{"index": 2, "text": text}]}),
        _ => json!({"choices": [{"index": 0, "delta": {"content": text}}]}),
    };
    let name = event["type"].as_str().map_or(String::new(), |name| format!("event: {name}\n"));
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
    [head.as_bytes(), &chunk_frame(format!("{name}data: {event}\n\n").as_bytes())].concat()
}

/// How an answer of 389 tokens is booked that was asked for with these members and did not come to its end: output tokens
/// and money.
fn booked(gateway: &Gateway, key: &Key, path: &str, members: &Value) -> (u64, u64) {
    let mut body = if path == RESPONSES { responses("mock") } else { chat("mock") };
    body["stream"] = json!(true);
    members.as_object().expect("members").iter().for_each(|(name, value)| body[name] = value.clone());
    let mut stream = gateway.stream(key, path, &body).expect(200);
    stream.events(1);
    let head = stream.head.clone();
    stream.hang_up();
    let row = gateway.row(&head);
    row.assert_estimated();
    (row.usage("output"), row.cost().expect("a price is known"))
}

#[test]
fn an_estimated_answer_is_no_longer_than_the_request_allowed() {
    // A caller that leaves, and a provider that breaks off: what was relayed is all there is to go by.
    for cuts in [false, true] {
        let provider = Scripted::start(move |asked| match asked.json()["stream"] == true {
            true if cuts => Answer::Close(begun_stream(&asked.path)),
            true => Answer::Keep(begun_stream(&asked.path)),
            false => healthy_chat("mock"), // who looks afterwards whether anything was left behind
        });
        let setup = Setup::new().upstream("openai", "openai", provider.addr, r#"["mock"]"#, "");
        let setup = setup.upstream("anthropic", "anthropic", provider.addr, r#"["mock"]"#, "");
        let gateway = setup.limit("team_tpm", "tpm", "amount: 20000, period: 100h").start();
        let key = gateway.mint(DEV1);
        for (path, members, output) in [
            (CHAT, json!({}), 389),
            (CHAT, json!({"max_tokens": 300}), 300),
            (CHAT, json!({"max_completion_tokens": 300}), 300),
            (CHAT, json!({"max_tokens": 150, "n": 2}), 300),
            (CHAT, json!({"max_tokens": 300, "n": 2}), 389),
            (CHAT, json!({"max_tokens": 400}), 389),
            (RESPONSES, json!({"max_output_tokens": 300}), 300),
            (MESSAGES, json!({"max_tokens": 300}), 300),
            // Three answers, of which each may be that long.
            (COMPLETIONS, json!({"max_tokens": 200, "prompt": ["a", "b", "c"]}), 389),
            (COMPLETIONS, json!({"max_tokens": 100, "prompt": ["a", "b", "c"]}), 300),
        ] {
            // A prompt of two bytes is one token, at 1 USD a million; output costs 10.
            let cost = 1_000 + output * 10_000;
            assert_eq!(booked(&gateway, &key, path, &members), (output, cost), "{path} {members}, cut: {cuts}");
        }
        // Reserves are corrected to the same numbers: 10 × 1 + 6 × 300 + 4 × 389.
        let remaining = gateway.me(&key).limit("team_tpm").remaining();
        assert!((0.0..5.0).contains(&(remaining - (20_000.0 - 3_366.0))), "{remaining}");
        gateway.idle_check();
    }
}

#[test]
fn what_a_provider_reports_is_booked_even_above_what_the_request_allowed() {
    let usage = json!({"prompt_tokens": 1, "completion_tokens": 389, "total_tokens": 390});
    let provider = Scripted::start(move |_| Answer::Keep(json_answer(200, &chat_reply("mock", &usage))));
    let gateway = Setup::new().upstream("openai", "openai", provider.addr, r#"["mock"]"#, "").start();
    let key = gateway.mint(DEV1);
    let answer = gateway.post(&key, CHAT, &with(chat("mock"), "max_tokens", json!(300))).expect(200);
    gateway.row(&answer).assert_reported(1, 389, 0, 0);
    gateway.idle_check();
}

/// Whoever is waited for in vain: the time is not the gateway's.
#[test]
fn overhead_holds_no_wait_for_a_caller_that_leaves_or_a_provider_that_gives_no_answer() {
    const WAIT: Duration = Duration::from_millis(300);
    let mock = Mock::start();
    let setup = Setup::new().upstream("slow", "openai", mock.addr, r#"["slow+*"]"#, "first_byte_timeout: 300ms");
    let gateway = setup.mock(&mock, r#"["mock*"]"#).start();
    let key = gateway.mint(DEV1);
    let post = || Request::post(CHAT).key(&key.secret);
    let wait_row = |rows: usize, outcome: &str| {
        let row = gateway.wait_rows(rows, SOON).pop().expect("a row");
        let (latency_us, overhead_us) = (row.number("latency_us"), row.number("overhead_us"));
        assert_eq!(row.outcome(), outcome, "{}", row.0);
        assert!(latency_us >= 250_000, "it was waited for: {}", row.0);
        assert!(overhead_us < latency_us / 3, "{}", row.0);
    };

    gateway.post(&key, CHAT, &chat("slow+delay30000")).expect(504);
    wait_row(1, "timeout");

    let mut leaves = Conn::open(gateway.addr);
    leaves.send(&post().json(&chat("mock+delay30000")));
    mock.wait_requests(2);
    std::thread::sleep(WAIT); // the time that must not count
    drop(leaves);
    wait_row(2, "client_gone");

    let mut aborts = Conn::open(gateway.addr);
    aborts.send_raw(&post().header("Content-Length", "1000").head("x"));
    until("its head to be judged", SOON, || gateway.metrics().sum("tokentriage_inflight") == Some(1.0));
    std::thread::sleep(WAIT);
    drop(aborts);
    wait_row(3, "client_gone");
    gateway.idle_check();
}

#[test]
fn overhead_holds_no_wait_for_an_upstream_that_takes_no_connection() {
    let mock = Mock::start();
    let setup = Setup::new().upstream("full", "openai", full_port(), r#"["mock", "full"]"#, "connect_timeout: 300ms");
    let gateway = setup.mock(&mock, r#"["mock"]"#).start();
    let key = gateway.mint(DEV1);

    gateway.post(&key, CHAT, &chat("full")).expect(504);
    gateway.post(&key, CHAT, &chat("mock")).expect(200); // by the next that serves it
    let rows = gateway.wait_rows(2, SOON);
    let said: Vec<_> = rows.iter().map(|row| (row.model(), row.outcome(), row["forwarded"] == true)).collect();
    assert_eq!(said, [("full", "timeout", false), ("mock", "completed", true)]);
    for row in &rows {
        assert!(row.number("latency_us") >= 250_000, "it was waited for: {}", row.0);
        assert!(row.number("overhead_us") < row.number("latency_us") / 3, "{}", row.0);
    }
    gateway.idle_check();
}

//! Cases C46 to C50: the edges of HTTP, from public bug reports of other gateways.
//!
//! Each test bears the number of its case and ends with the idle check.

mod common;

use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use common::http::{Body, chunk_frame};
use common::*;
use serde_json::json;

const MIB: usize = 1024 * 1024;

#[test]
fn c46_ambiguous_framing_is_refused_and_reaches_no_provider() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).start();
    let key = gateway.mint(DEV1);
    let body = chat("mock").to_string();
    let length = body.len();
    let chunked = format!("{length:x}\r\n{body}\r\n0\r\n\r\n");
    // Header lines in place of the framing, and the body that follows the head.
    let forms: Vec<(&str, String, &str)> = vec![
        ("CL then TE", format!("Content-Length: {length}\r\nTransfer-Encoding: chunked\r\n"), &chunked),
        ("TE then CL", format!("Transfer-Encoding: chunked\r\nContent-Length: {length}\r\n"), &chunked),
        ("two differing CL", format!("Content-Length: {length}\r\nContent-Length: 5\r\n"), &body),
        ("two equal CL", format!("Content-Length: {length}\r\nContent-Length: {length}\r\n"), &body),
        ("CL as a list", format!("Content-Length: {length}, {length}\r\n"), &body),
        ("CL with a sign", format!("Content-Length: +{length}\r\n"), &body),
        ("CL in hex", format!("Content-Length: 0x{length:x}\r\n"), &body),
        ("negative CL", "Content-Length: -5\r\n".to_owned(), &body),
        ("overflowing CL", "Content-Length: 18446744073709551617\r\n".to_owned(), &body),
        ("empty CL", "Content-Length: \r\n".to_owned(), &body),
        ("TE with a space before its colon", "Transfer-Encoding : chunked\r\n".to_owned(), &chunked),
        ("TE xchunked", "Transfer-Encoding: xchunked\r\n".to_owned(), &chunked),
        ("TE gzip, chunked", "Transfer-Encoding: gzip, chunked\r\n".to_owned(), &chunked),
        ("TE chunked twice", "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n".to_owned(), &chunked),
        ("TE chunked, chunked", "Transfer-Encoding: chunked, chunked\r\n".to_owned(), &chunked),
        ("TE identity", "Transfer-Encoding: identity\r\n".to_owned(), &body),
        ("TE with a vertical tab", "Transfer-Encoding: \x0bchunked\r\n".to_owned(), &chunked),
        ("a folded header", format!("X-Folded: a\r\n b\r\nContent-Length: {length}\r\n"), &body),
        ("a bare LF", format!("X-Bare: a\nContent-Length: {length}\r\n"), &body),
        ("a bare CR", format!("X-Bare: a\rb\r\nContent-Length: {length}\r\n"), &body),
        ("a NUL in a value", format!("X-Nul: a\0b\r\nContent-Length: {length}\r\n"), &body),
        ("a space before a colon", format!("X-Space : a\r\nContent-Length: {length}\r\n"), &body),
        ("a space in a name", format!("X Space: a\r\nContent-Length: {length}\r\n"), &body),
        ("a name without a colon", format!("X-Nothing\r\nContent-Length: {length}\r\n"), &body),
        ("two Hosts", format!("Host: other\r\nContent-Length: {length}\r\n"), &body),
    ];
    for (what, framing, body) in forms {
        let mut caller = Conn::open(gateway.addr);
        let head = format!("POST {CHAT} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\n", caller.host, key.secret);
        // A second request rides behind: a server that loses the framing would run it.
        let hidden = format!("GET /v1/models HTTP/1.1\r\nHost: {}\r\n\r\n", caller.host);
        let _ = caller.try_send_raw(format!("{head}{framing}\r\n{body}{hidden}").as_bytes());
        let answer = caller.read_response();
        assert_eq!(answer.status, 400, "{what}: {}", answer.text());
        assert!(answer.header("x-tt-request-id").is_some(), "{what}");
        assert!(caller.is_closed(SOON), "{what}: the connection is closed");
    }
    mock.assert_untouched();
    gateway.idle_check();
}

#[test]
fn c46_bad_chunks_are_refused_and_reach_no_provider() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).start();
    let key = gateway.mint(DEV1);
    let body = chat("mock").to_string();
    let whole = format!("{:x}\r\n{body}\r\n", body.len());
    let forms = [
        ("a size that is no number", format!("xyz\r\n{body}\r\n0\r\n\r\n")),
        ("a negative size", format!("-5\r\n{body}\r\n0\r\n\r\n")),
        ("a size with a sign", format!("+{whole}0\r\n\r\n")),
        ("a size in 0x form", format!("0x{whole}0\r\n\r\n")),
        ("an overflowing size", format!("1{:0>16}\r\n{body}\r\n0\r\n\r\n", "0")),
        ("an empty size", format!("\r\n{body}\r\n0\r\n\r\n")),
        ("a chunk without its line end", format!("{:x}\r\n{body}0\r\n\r\n", body.len())),
        ("a size ended by a bare LF", format!("{:x}\n{body}\r\n0\r\n\r\n", body.len())),
    ];
    for (what, chunks) in forms {
        let mut caller = Conn::open(gateway.addr);
        let head = format!(
            "POST {CHAT} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\nTransfer-Encoding: chunked\r\n\r\n",
            caller.host, key.secret
        );
        let _ = caller.try_send_raw(format!("{head}{chunks}").as_bytes());
        let answer = caller.read_response();
        assert_eq!(answer.status, 400, "{what}: {}", answer.text());
        assert!(caller.is_closed(SOON), "{what}: the connection is closed");
    }
    mock.assert_untouched();
    // The same body in proper chunks, with an extension and a trailer, is fine.
    let mut caller = Conn::open(gateway.addr);
    let (first, rest) = body.split_at(7);
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nHost: {}\r\nx-api-key: {}\r\nTransfer-Encoding: chunked\r\n\r\n",
        caller.host, key.secret
    );
    caller.send_raw(
        format!("{head}7;name=\"value\"\r\n{first}\r\n{:X}\r\n{rest}\r\n0\r\nX-Trailer: 1\r\n\r\n", rest.len())
            .as_bytes(),
    );
    caller.read_response().expect(200);
    gateway.idle_check();
}

#[test]
fn c47_expect_continue_gets_a_100_or_its_refusal_at_once() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock)
        .limit_on("org:once", "once_rpm", "rpm", "amount: 1, period: 100h")
        .require_key()
        .start();
    let body = with(chat("mock"), "padding", json!("p".repeat(2 * MIB))).to_string();
    let request = |key: &str| Request::post(CHAT).key(key).header("Expect", "100-continue").json_text(&body);

    let key = gateway.mint(DEV1);
    let mut caller = Conn::open(gateway.addr);
    let head = request(&key.secret).head(&caller.host);
    caller.send_raw(&head);
    assert!(caller.has_bytes(SOON), "a 100 comes before the body is sent");
    caller.send_raw(body.as_bytes());
    let answer = caller.read_response().expect(200);
    assert_eq!(answer.interim, [100]);

    let spent = gateway.mint("org:once");
    gateway.post(&spent, CHAT, &chat("mock")).expect(200);
    for (secret, status) in [("ttk_unknown", 401), (spent.secret.as_str(), 429)] {
        let mut caller = Conn::open(gateway.addr);
        let head = request(secret).head(&caller.host);
        caller.send_raw(&head);
        let answer = caller.read_response().expect(status);
        assert!(answer.interim.is_empty(), "no 100 before a {status}");
        assert!(answer.json()["error"].is_object());
        assert!(caller.is_closed(SOON), "a body of 2 MiB that nobody wants is not waited for");
    }
    gateway.idle_check_allowing(128);
}

#[test]
fn c47_curl_prints_the_refusal_and_not_a_reset() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).require_key().start();
    let key = gateway.mint(DEV1);
    let folder = folder::Folder::new();
    let file = folder.path().join("body.json");
    std::fs::write(&file, with(chat("mock"), "padding", json!("p".repeat(2 * MIB))).to_string()).unwrap();
    for (secret, status) in [(key.secret.as_str(), "200"), ("ttk_unknown", "401")] {
        for expect in ["Expect: 100-continue", "Expect:"] {
            let mut curl = Command::new("curl");
            curl.args([
                "--silent",
                "--show-error",
                "--noproxy",
                "*",
                "--max-time",
                "30",
                "--write-out",
                "\n%{http_code}",
            ])
            .args(["--header", &format!("Authorization: Bearer {secret}"), "--header", expect])
            .args(["--header", "Content-Type: application/json"])
            .arg("--data-binary")
            .arg(format!("@{}", file.display()))
            .arg(format!("http://{}{CHAT}", gateway.addr));
            let (exit, stdout, stderr) = process::run(&mut curl, Duration::from_secs(40));
            assert!(exit.success(), "curl with `{expect}` ended with {exit}: {stderr}");
            let (text, code) = stdout.rsplit_once('\n').expect("the status is on the last line");
            assert_eq!(code, status, "{text}");
            assert!(serde_json::from_str::<serde_json::Value>(text).is_ok(), "{text}");
        }
    }
    gateway.idle_check_allowing(128);
}

/// A chat body of exactly `bytes` bytes.
fn body_of(bytes: usize) -> Vec<u8> {
    let frame = with(chat("mock"), "padding", json!("")).to_string().len();
    let body = with(chat("mock"), "padding", json!("p".repeat(bytes - frame))).to_string().into_bytes();
    assert_eq!(body.len(), bytes);
    body
}

/// Sends as much as the peer takes, and reads what it says.
#[track_caller]
fn send_all_and_read(gateway: &Gateway, request: &Request) -> Response {
    let mut caller = Conn::open(gateway.addr);
    let head = request.head(&caller.host);
    let mut sent = caller.try_send_raw(&head);
    match &request.body {
        Body::None => {}
        Body::Sized(body) => {
            for block in body.chunks(64 * 1024) {
                sent = sent.and_then(|()| caller.try_send_raw(block));
            }
        }
        Body::Chunked(chunks) => {
            for chunk in chunks {
                sent = sent.and_then(|()| caller.try_send_raw(&chunk_frame(chunk)));
            }
            let _ = sent.and_then(|()| caller.try_send_raw(b"0\r\n\r\n"));
        }
    }
    caller.read_response()
}

#[test]
fn c48_ten_megabytes_pass_and_more_than_the_cap_is_a_413_that_names_it() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).cores(1).start();
    let key = gateway.mint(DEV1);
    let post = || Request::post(CHAT).key(&key.secret);
    let sized = |bytes: usize| post().json_text(std::str::from_utf8(&body_of(bytes)).unwrap());
    let chunked =
        |bytes: usize| post().chunked(body_of(bytes).chunks(64 * 1024).map(<[u8]>::to_vec).collect::<Vec<_>>());

    let peak_before = gateway.process.memory_kib("VmHWM");
    for request in [sized(10 * MIB), chunked(10 * MIB)] {
        send_all_and_read(&gateway, &request).expect(200);
        assert_eq!(mock.last_request().body_bytes, 10 * MIB as u64);
    }
    // The body, the scratch copy that is parsed and the parser's own buffer, and what the allocator still keeps of the
    // request before.
    let peak_kib = gateway.process.memory_kib("VmHWM").saturating_sub(peak_before);
    assert!(peak_kib <= 64 * 1024, "two bodies of 10 MiB, one after the other, took {peak_kib} KiB at the peak");

    let asked = mock.requests().len();
    for request in [sized(33 * MIB), sized(32 * MIB + 1), chunked(33 * MIB), chunked(32 * MIB + 1)] {
        let refused = send_all_and_read(&gateway, &request).expect(413);
        let text = refused.json()["error"]["message"].as_str().unwrap_or_default().to_owned();
        assert!(["32MiB", "32 MiB", "33554432"].iter().any(|cap| text.contains(cap)), "it names the cap: {text}");
    }
    assert_eq!(mock.requests().len(), asked);
    send_all_and_read(&gateway, &sized(32 * MIB)).expect(200);
    // What was free after that went back to the system, though no request has come since.
    until("the memory of large bodies to be given back", SOON, || {
        gateway.process.memory_kib("VmRSS").saturating_sub(gateway.rss_at_start_kib) <= 24 * 1024
    });
    gateway.idle_check();
}

#[test]
fn c48_a_known_length_over_the_cap_is_refused_before_the_body() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).server("max_body_bytes", "256KiB").start();
    let key = gateway.mint(DEV1);
    let mut caller = Conn::open(gateway.addr);
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\nContent-Length: 262145\r\n\r\n",
        caller.host, key.secret
    );
    caller.send_raw(head.as_bytes());
    caller.read_response().expect(413);
    // A trickle of 64 KB a second is slow, not dead: this pace is the case's, not a wait for something.
    let body = body_of(128 * 1024);
    let mut caller = Conn::open(gateway.addr);
    let head = Request::post(CHAT).key(&key.secret).json_text(std::str::from_utf8(&body).unwrap()).head(&caller.host);
    caller.send_raw(&head);
    for block in body.chunks(16 * 1024) {
        caller.send_raw(block);
        thread::sleep(Duration::from_millis(250));
    }
    caller.read_response().expect(200);
    gateway.idle_check();
}

#[test]
fn c49_a_preflight_is_answered_without_a_key_a_charge_or_a_row() {
    let mock = Mock::start();
    let setup =
        Setup::with_mock(&mock).limit_on("__global", "all_rpm", "rpm", "amount: 100, period: 100h").require_key();
    let origin = "https://app.example";
    let preflight = Request::new("OPTIONS", CHAT)
        .header("Origin", origin)
        .header("Access-Control-Request-Method", "POST")
        .header("Access-Control-Request-Headers", "authorization, content-type");

    let gateway = setup.clone().server("cors", &format!("{{ allow_origins: [\"{origin}\"] }}")).start();
    let key = gateway.mint(DEV1);
    let answer = gateway.send(&preflight).expect(204);
    assert_eq!(answer.header("access-control-allow-origin"), Some(origin));
    let allows =
        |name: &str, word: &str| answer.header(name).is_some_and(|value| value.to_ascii_lowercase().contains(word));
    assert!(allows("access-control-allow-methods", "post"), "{:?}", answer.headers);
    assert!(allows("access-control-allow-headers", "authorization"), "{:?}", answer.headers);
    // Errors and answers carry the header too, or the browser would hide them from the page.
    let refused = gateway.send(&Request::get("/v1/models").key("ttk_wrong").header("Origin", origin)).expect(401);
    assert_eq!(refused.header("access-control-allow-origin"), Some(origin));
    // An origin that is not listed gets no permission.
    let other = preflight.clone();
    let other =
        Request { headers: vec![("Origin".into(), "https://evil.example".into()), other.headers[1].clone()], ..other };
    assert_eq!(gateway.send(&other).header("access-control-allow-origin"), None);
    assert_eq!(gateway.me(&key).limit("all_rpm").remaining(), 100.0, "no charge");
    let served =
        gateway.send(&Request::post(CHAT).key(&key.secret).header("Origin", origin).json(&chat("mock"))).expect(200);
    assert_eq!(served.header("access-control-allow-origin"), Some(origin));
    gateway.row(&served);
    assert_eq!(gateway.rows().iter().filter(|row| row["status"] != 401).count(), 1, "no row for a preflight");
    gateway.idle_check();

    // Off, which is the default: an answer without any permission, and no way around the key.
    let gateway = setup.start();
    let answer = gateway.send(&preflight);
    assert!(matches!(answer.status, 200 | 204 | 403 | 404 | 405), "{}", answer.status);
    assert_eq!(answer.header("access-control-allow-origin"), None);
    let asked = mock.requests().len();
    let plain = gateway.send(&Request::new("OPTIONS", CHAT).json(&chat("mock")));
    assert!(plain.status < 500, "{}", plain.status);
    assert_eq!(mock.requests().len(), asked, "plain OPTIONS is no bypass");
    assert_eq!(gateway.rows().len(), 0);
    gateway.idle_check();
}

#[test]
fn c50_a_pooled_connection_that_went_stale_costs_no_request() {
    const CALLS: usize = 2_000;
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock)
        .limit("team_rpm", "rpm", "amount: 10, period: 100h, burst: 10000")
        .limit("team_slots", "concurrency", "amount: 40")
        .limit("team_quota", "quota_requests", "amount: 1000000, period: year")
        .start();
    let key = gateway.mint(DEV1);
    let request = Request::post(CHAT).key(&key.secret).json(&chat("mock+silentclose"));
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| {
                let mut caller = Conn::open(gateway.addr);
                while next.fetch_add(1, Ordering::Relaxed) < CALLS {
                    caller.send(&request);
                    caller.read_response().expect(200);
                }
            });
        }
    });
    let rows = gateway.wait_rows(CALLS, SOON);
    ledger::assert_no_doubles(&rows);
    assert_eq!(ledger::cost(&rows), CALLS as u64 * OPENAI_REPLY_NANOUSD, "spend is booked once");
    assert!(rows.iter().all(|row| (1..=2).contains(&row.number("attempts"))), "one try more at most");
    assert_eq!(gateway.me(&key).limit("team_rpm").remaining(), 10_000.0 - CALLS as f64, "rpm is counted once");
    until("the quota to be counted once", SOON, || gateway.me(&key).limit("team_quota").used() == CALLS as f64);
    gateway.idle_check();
}

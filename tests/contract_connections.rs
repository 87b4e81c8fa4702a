//! HTTP/1.1 as callers meet it: statuses of what is not served, slow callers, kept and pipelined connections.

mod common;

use common::*;

#[test]
fn unknown_paths_methods_and_versions_have_their_statuses() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).server("max_head_bytes", "8KiB").start();
    let key = gateway.mint(DEV1);
    for path in
        ["/", "/v1", "/v1/", "/v1/files", "/v1/fine_tuning/jobs", "/admin", "/metrics", "/tt/api/v1/keys", "/ui/"]
    {
        assert_eq!(gateway.get(&key, path).status, 404, "{path}");
        assert_eq!(gateway.post(&key, path, &chat("mock")).status, 404, "{path}");
    }
    let raw = |text: &str| {
        let mut caller = Conn::open(gateway.addr);
        caller.send_raw(text.as_bytes());
        caller.read_response()
    };
    for method in ["BREW", "PROPFIND", "get"] {
        assert_eq!(gateway.send(&Request::new(method, CHAT)).status, 501, "{method}");
    }
    for version in ["HTTP/2.0", "HTTP/3.0", "HTTP/1.2"] {
        let status = raw(&format!("GET /v1/models {version}\r\nHost: x\r\n\r\n")).status;
        assert!(status == 505 || (version == "HTTP/1.2" && status == 400), "{version} gave {status}");
    }
    for nonsense in [
        "GET\r\n\r\n",
        "GET /v1/models\r\n\r\n",
        "GET /v1/models FTP/1.1\r\nHost: x\r\n\r\n",
        "\x16\x03\x01\x02\r\n\r\n",
    ] {
        assert!(matches!(raw(nonsense).status, 400 | 505), "{nonsense:?}");
    }
    assert_eq!(raw("GET /v1/models HTTP/1.1\r\n\r\n").status, 400, "HTTP/1.1 without a Host");
    let long = gateway.send(&Request::get("/v1/models").key(&key.secret).header("X-Long", &"x".repeat(9 * 1024)));
    assert_eq!(long.status, 431);
    assert_eq!(raw(&format!("GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", "x".repeat(9 * 1024))).status, 431);
    mock.assert_untouched();
    gateway.idle_check();
}

#[test]
fn slow_heads_and_bodies_get_a_408_and_idle_connections_are_closed() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock)
        .server("head_timeout", "400ms")
        .server("body_timeout", "400ms")
        .server("idle_timeout", "600ms")
        .limit("team_slots", "concurrency", "amount: 1")
        .start();
    let key = gateway.mint(DEV1);
    let mut slow_head = Conn::open(gateway.addr);
    slow_head.send_raw(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n");
    slow_head.read_response().expect(408);
    assert!(slow_head.is_closed(SOON));

    let mut slow_body = Conn::open(gateway.addr);
    let request = Request::post(CHAT).key(&key.secret).json(&chat("mock"));
    let bytes = request.bytes(&slow_body.host);
    slow_body.send_raw(&bytes[..bytes.len() - 5]);
    slow_body.read_response().expect(408);
    assert!(slow_body.is_closed(SOON));
    until("the lease of the slow body", PROMPTLY, || gateway.me(&key).limit("team_slots").live() == 0);

    let mut idle = Conn::open(gateway.addr);
    idle.send(&request);
    idle.read_response().expect(200);
    assert!(idle.is_closed(SOON), "an idle connection is closed, without a word");
    assert_eq!(mock.requests().len(), 1);
    gateway.idle_check();
}

#[test]
fn a_connection_is_kept_for_the_next_request() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).start();
    let key = gateway.mint(DEV1);
    let mut caller = Conn::open(gateway.addr);
    let bodies = [chat("mock"), chat_stream("mock"), chat("mock+status500"), chat("no-such-model"), chat("mock+gzip")];
    for at in 0..50 {
        caller.send(&Request::post(CHAT).key(&key.secret).json(&bodies[at % bodies.len()]));
        let status = caller.read_response().status;
        assert_eq!(status, [200, 200, 500, 404, 200][at % bodies.len()]);
    }
    // a body of no known length, in chunks
    caller.send(&Request::post(CHAT).key(&key.secret).chunked([chat("mock").to_string().into_bytes()]));
    caller.read_response().expect(200);
    // and the caller's wish to close
    caller.send(&Request::post(CHAT).key(&key.secret).header("Connection", "close").json(&chat("mock")));
    let last = caller.read_response().expect(200);
    assert!(last.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close")));
    assert!(caller.is_closed(SOON));
    gateway.idle_check();
}

#[test]
fn http_1_0_is_answered_and_closed() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).start();
    let key = gateway.mint(DEV1);
    let mut caller = Conn::open(gateway.addr);
    let body = chat("mock").to_string();
    caller.send_raw(
        format!(
            "POST {CHAT} HTTP/1.0\r\nAuthorization: Bearer {}\r\nContent-Length: {}\r\n\r\n{body}",
            key.secret,
            body.len()
        )
        .as_bytes(),
    );
    let answer = caller.read_response().expect(200);
    assert_eq!(answer.header("transfer-encoding"), None, "HTTP/1.0 knows no chunks");
    assert!(caller.is_closed(SOON));
    gateway.row(&answer).assert_healthy_openai();
    gateway.idle_check();
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).start();
    let key = gateway.mint(DEV1);
    let models = ["mock+delay300", "mock", "mock+delay100", "mock+status500", "mock"];
    let mut caller = Conn::open(gateway.addr);
    let host = caller.host.clone();
    let request = |model: &str| Request::post(CHAT).key(&key.secret).json(&chat(model)).bytes(&host);
    let all: Vec<u8> = models.iter().flat_map(|model| request(model)).collect();
    caller.send_raw(&all);
    for model in models {
        let answer = caller.read_response();
        match model {
            "mock+status500" => assert_eq!(answer.status, 500),
            _ => assert_eq!(answer.expect(200).json()["model"], model),
        }
    }
    assert_eq!(gateway.wait_rows(models.len(), SOON).len(), models.len());
    gateway.idle_check();
}

/// A stream lets go of its request's bytes, and of no other's.
#[test]
fn a_request_behind_a_stream_is_served_after_it_whether_it_came_with_it_or_meanwhile() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).start();
    let key = gateway.mint(DEV1);
    let mut caller = Conn::open(gateway.addr);
    let host = caller.host.clone();
    let bytes = |body: &serde_json::Value| Request::post(CHAT).key(&key.secret).json(body).bytes(&host);
    let streamed = bytes(&chat_stream("mock+slow30"));
    for follows_at_once in [true, false] {
        let next = bytes(&chat("mock"));
        let first = if follows_at_once { [&streamed[..], &next[..]].concat() } else { streamed.clone() };
        caller.send_raw(&first);
        if !follows_at_once {
            mock.wait_requests(3);
            caller.send_raw(&next);
        }
        let stream = caller.read_response().expect(200);
        assert!(String::from_utf8_lossy(&stream.body).contains("[DONE]"));
        assert_eq!(caller.read_response().expect(200).json()["model"], "mock");
    }
    assert_eq!(gateway.wait_rows(4, SOON).len(), 4);
    gateway.idle_check();
}

#[test]
fn head_and_options_are_answered_without_a_body_and_in_sync() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).start();
    let key = gateway.mint(DEV1);
    let mut caller = Conn::open(gateway.addr);
    caller.send(&Request::new("HEAD", "/v1/models").key(&key.secret));
    assert_eq!(caller.read_response_to("HEAD").status, 200);
    caller.send(&Request::new("HEAD", CHAT).key(&key.secret));
    let head = caller.read_response_to("HEAD");
    assert!(matches!(head.status, 404 | 405), "{}", head.status);
    caller.send(&Request::new("OPTIONS", CHAT).key(&key.secret));
    assert!(caller.read_response_to("OPTIONS").status < 500);
    caller.send(&Request::post(CHAT).key(&key.secret).json(&chat("mock")));
    caller.read_response().expect(200);
    assert_eq!(mock.requests().len(), 1);
    gateway.idle_check();
}

//! What hostile or careless callers try: credentials in every corner, paths in disguise, JSON that says two
//! things, readers that stop reading. None of it reaches a provider ungoverned.

mod common;

use std::time::{Duration, Instant};

use common::http::{Decoder, Progress};
use common::scripted::raw_answer;
use common::setup::UPSTREAM_KEY;
use common::*;
use serde_json::{Value, json};

#[test]
fn the_callers_credentials_never_reach_an_upstream_that_has_its_own_key() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).start();
    let key = gateway.mint(DEV1);
    let secret = "sk-caller-3b1f";
    let carriers = [
        ("Authorization", format!("Bearer {secret}")),
        ("x-api-key", secret.to_owned()),
        ("api-key", secret.to_owned()),
        ("x-goog-api-key", secret.to_owned()),
        ("Proxy-Authorization", format!("Basic {secret}")),
        ("Cookie", format!("session={secret}")),
    ];
    for (path, body) in [(CHAT, chat("mock")), (MESSAGES, message("mock"))] {
        for (name, value) in &carriers {
            let request = Request::post(path).header("x-tt-key", &key.secret).header(name, value).json(&body);
            gateway.send(&request).expect(200);
        }
        let asked = format!("{path}?key={secret}&beta=true");
        let answer = gateway.send(&Request::post(&asked).key(&key.secret).json(&body));
        assert!(matches!(answer.status, 200 | 400 | 404), "{}", answer.status);
    }
    let log = mock.log_text();
    assert!(!log.contains(secret), "{log}");
    assert!(!log.contains("ttk_"), "{log}");
    for seen in mock.requests() {
        let ours = [seen.header("authorization"), seen.header("x-api-key")];
        assert!(ours.iter().flatten().any(|value| value.contains(UPSTREAM_KEY)), "{seen:?}");
        assert_eq!(seen.header("x-tt-key"), None);
    }
    gateway.idle_check();
}

#[test]
fn two_different_keys_on_one_request_are_a_401() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).start();
    let (one, other) = (gateway.mint(DEV1), gateway.mint("org:acme/team:ml/user:dev2"));
    for (first, second) in
        [("Authorization", "x-api-key"), ("x-tt-key", "x-api-key"), ("Authorization", "Authorization")]
    {
        let value = |name: &str, secret: &str| {
            if name == "Authorization" { format!("Bearer {secret}") } else { secret.to_owned() }
        };
        let request = Request::post(CHAT)
            .header(first, &value(first, &one.secret))
            .header(second, &value(second, &other.secret))
            .json(&chat("mock"));
        gateway.send(&request).expect(401);
    }
    mock.assert_untouched();
    // the same key twice is one key
    let twice = Request::post(CHAT).key(&one.secret).header("x-api-key", &one.secret).json(&chat("mock"));
    gateway.send(&twice).expect(200);
    gateway.idle_check();
}

#[test]
fn an_anonymous_caller_spends_only_its_own_credential() {
    let mock = Mock::start();
    let gateway = Setup::new()
        .upstream("ours", "openai", mock.addr, r#"["mock-ours*"]"#, "")
        .keyless_upstream("theirs", "openai", mock.addr, r#"["mock"]"#, "")
        .keyless_upstream("theirs-too", "anthropic", mock.addr, r#"["mock"]"#, "")
        .start();
    // Without a virtual key: upstreams that have a key of ours are out of reach.
    for request in [Request::post(CHAT), Request::post(CHAT).key("sk-own")] {
        let answer = gateway.send(&request.json(&chat("mock-ours")));
        assert!(matches!(answer.status, 401 | 403), "{}: {}", answer.status, answer.text());
    }
    mock.assert_untouched();
    // The own credential passes through to the others, under either name.
    let served = gateway.send(&Request::post(CHAT).key("sk-own").json(&chat("mock"))).expect(200);
    assert_eq!(mock.last_request().header("authorization"), Some("Bearer sk-own"));
    assert_eq!(gateway.row(&served)["node"], "__global");
    gateway.send(&Request::post(MESSAGES).header("x-api-key", "sk-own").json(&message("mock"))).expect(200);
    assert_eq!(mock.last_request().header("x-api-key"), Some("sk-own"));
    // A virtual key beside it says who is asking, and stays here.
    let key = gateway.mint(DEV1);
    let both = Request::post(CHAT).header("x-tt-key", &key.secret).key("sk-own").json(&chat("mock"));
    assert_eq!(gateway.row(&gateway.send(&both).expect(200))["node"], DEV1);
    assert_eq!(mock.last_request().header("authorization"), Some("Bearer sk-own"));
    // A virtual key alone is not a credential for a provider.
    gateway.post(&key, CHAT, &chat("mock"));
    assert!(!mock.log_text().contains("ttk_"), "{}", mock.log_text());
    // A ttk_ key that is none is a 401 always, never anonymous.
    gateway.send(&Request::post(CHAT).key("ttk_nobody").json(&chat("mock"))).expect(401);
    assert!(gateway.process.exited().is_none());
}

#[test]
fn hop_by_hop_headers_stay_on_their_hop() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).start();
    let key = gateway.mint(DEV1);
    let request = Request::post(CHAT)
        .key(&key.secret)
        .header("Connection", "keep-alive, X-Drop-Me")
        .header("X-Drop-Me", "1")
        .header("Keep-Alive", "timeout=5")
        .header("TE", "trailers")
        .header("Upgrade", "websocket")
        .header("Proxy-Connection", "keep-alive")
        // Who stands in front of us, and at which address, is our operator's business.
        .header("X-Forwarded-For", "10.1.2.3")
        .header("X-Forwarded-Host", "llm.internal")
        .header("X-Forwarded-Proto", "http")
        .header("Forwarded", "for=10.1.2.3;host=llm.internal")
        .header("X-Real-IP", "10.1.2.3")
        .header("X-Keep-Me", "2")
        .header("openai-organization", "org-1")
        .json(&chat("mock"));
    gateway.send(&request).expect(200);
    let seen = mock.last_request();
    for name in ["x-drop-me", "keep-alive", "te", "upgrade", "proxy-connection", "transfer-encoding"] {
        assert_eq!(seen.header(name), None, "{name} in {:?}", seen.headers);
    }
    assert!(
        !seen.headers.iter().any(|(_, value)| value.contains("10.1.2.3") || value.contains("internal")),
        "{seen:?}"
    );
    assert_eq!((seen.header("x-keep-me"), seen.header("openai-organization")), (Some("2"), Some("org-1")));
    assert_eq!(seen.header("accept-encoding"), Some("identity"));
    let host = mock.addr.to_string();
    assert_eq!(seen.header("host"), Some(host.as_str()), "the upstream's own name");
    let count = |name: &str| seen.headers.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name)).count();
    assert_eq!((count("content-length"), count("host")), (1, 1));
    // A Connection header cannot talk the gateway out of the framing or of its key.
    for named in ["content-length", "authorization", "host", "x-tt-key"] {
        let request = Request::post(CHAT).key(&key.secret).header("Connection", named).json(&chat("mock"));
        gateway.send(&request).expect(200);
        let seen = mock.last_request();
        assert_eq!((seen.header("host"), seen.model()), (Some(host.as_str()), "mock"), "{named}");
        assert!(seen.headers.iter().any(|(_, value)| value.contains(UPSTREAM_KEY)), "{named}: {seen:?}");
    }
    gateway.idle_check();
}

#[test]
fn a_path_in_disguise_is_governed_like_the_plain_one_or_404() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).limit("team_rpm", "rpm", "amount: 1000, period: 1000h").start();
    let key = gateway.mint(DEV1);
    let disguises = [
        "//v1/chat/completions",
        "/v1//chat/completions",
        "/v1/chat//completions",
        "/v1/./chat/completions",
        "/./v1/chat/completions",
        "/v1/models/../chat/completions",
        "/v1/chat/completions/.",
        "/v1/chat/completions/",
        "/v1/%63hat/completions",
        "/v1/chat%2Fcompletions",
        "/v1/chat/completions%00",
        "/v1/chat/completions%20",
        "/%2e%2e/v1/chat/completions",
        "/v1/..%2fv1/chat/completions",
        "/v1/chat/completions;x=1",
        "/v1\\chat\\completions",
        "/v1/chat/completions#f",
        "/V1/Chat/Completions",
        "/v1/chat/completions?",
        "/v1/chat/completions?model=other",
        "http://127.0.0.1/v1/chat/completions",
        "/v1/engines/mock/completions",
        "/openai/v1/chat/completions",
    ];
    for path in disguises {
        let before = mock.requests().len();
        let answer = gateway.post(&key, path, &chat("mock"));
        assert!(matches!(answer.status, 200 | 400 | 404), "{path} gave {}", answer.status);
        let reached = mock.requests().len() - before;
        assert_eq!(reached, usize::from(answer.status == 200), "{path}");
        if answer.status == 200 {
            assert_eq!(mock.last_request().path.split('?').next(), Some(CHAT), "the upstream sees the plain path");
            let row = gateway.row(&answer);
            assert_eq!((row.endpoint(), row.cost()), ("chat.completions", Some(OPENAI_REPLY_NANOUSD)), "{path}");
        }
    }
    let counted = 1000.0 - gateway.me(&key).limit("team_rpm").remaining();
    assert!(counted >= mock.requests().len() as f64, "{counted} counted of {} forwarded", mock.requests().len());
    gateway.idle_check();
}

#[test]
fn a_body_that_says_a_governed_member_twice_is_a_400() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).start();
    let key = gateway.mint(DEV1);
    let messages = r#""messages":[{"role":"user","content":"hi"}]"#;
    let bodies = [
        format!(r#"{{"model":"mock","model":"mock+x",{messages}}}"#),
        format!(r#"{{"model":"mock",{messages},"model":"mock"}}"#),
        format!(r#"{{"model":"mock","mod\u0065l":"mock+x",{messages}}}"#),
        format!(r#"{{"model":"mock","\u006dodel":"mock+x",{messages}}}"#),
        format!(r#"{{"model":"mock","stream":false,"stream":true,{messages}}}"#),
        format!(r#"{{"model":"mock","str\u0065am":true,"stream":false,{messages}}}"#),
        format!(r#"{{"model":"mock","max_tokens":1,"max_tokens":9999,{messages}}}"#),
        format!(r#"{{"model":"mock","max_completion_tokens":1,"max_completion_tokens":2,{messages}}}"#),
        format!(r#"{{"model":"mock","n":1,"n":100,{messages}}}"#),
        format!(r#"{{"model":"mock","stream_options":null,"stream_options":{{}},{messages}}}"#),
        format!(r#"{{"model":"mock",{messages},{messages}}}"#),
    ];
    for body in &bodies {
        let answer = gateway.post_text(&key, CHAT, body).expect(400);
        assert!(answer.json()["error"]["message"].is_string(), "{}", answer.text());
    }
    mock.assert_untouched();
    // Spelled with an escape once, it is the member it spells.
    let escaped = format!(r#"{{"mod\u0065l":"mock",{messages}}}"#);
    let answer = gateway.post_text(&key, CHAT, &escaped).expect(200);
    assert_eq!(gateway.row(&answer).model(), "mock");
    // Members of nested objects are nobody's concern.
    let nested = r#"{"model":"mock","messages":[{"role":"user","content":"hi"}],"metadata":{"model":"x","model":"y"}}"#;
    gateway.post_text(&key, CHAT, nested).expect(200);
    gateway.idle_check();
}

#[test]
fn json_that_is_none_and_compressed_bodies_reach_no_provider() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).start();
    let key = gateway.mint(DEV1);
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let deep_body = format!(r#"{{"model":"mock","messages":{deep}}}"#);
    let broken = [
        r#"{"model":"mock","messages":[]"#.to_owned(),
        r#"{"model":"mock","messages":[]}}"#.to_owned(),
        r#"{"model":"mock"} {"model":"mock"}"#.to_owned(),
        r#"{"model":"mock\ud800","messages":[]}"#.to_owned(),
        r#"{'model':'mock'}"#.to_owned(),
        "\u{feff}".to_owned() + &chat("mock").to_string(),
    ];
    for body in &broken {
        let answer = gateway.post_text(&key, CHAT, body);
        assert!(matches!(answer.status, 200 | 400), "{body} gave {}", answer.status);
    }
    assert!(matches!(gateway.post_text(&key, CHAT, &deep_body).status, 200 | 400), "100,000 brackets crash nothing");
    let reached = mock.requests().len();
    let compressed = Request::post(CHAT).key(&key.secret).header("Content-Encoding", "gzip").json(&chat("mock"));
    assert!(matches!(gateway.send(&compressed).status, 400 | 415));
    let mut invalid = Request::post(CHAT).key(&key.secret).json(&chat("mock"));
    invalid.body = http::Body::Sized(b"{\"model\":\"mock\xff\xfe\",\"messages\":[]}".to_vec());
    gateway.send(&invalid).expect(400);
    assert_eq!(mock.requests().len(), reached);
    gateway.idle_check();
}

#[test]
fn odd_answers_of_an_upstream_harm_nobody() {
    let upstream = Scripted::start(|asked| {
        let answer = match asked.model().strip_prefix("mock-") {
            None => return scripted::healthy_chat("mock"),
            Some("garbage") => b"\x00\x01\x02 what\r\n\r\n".to_vec(),
            Some("both") => b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}".to_vec(),
            Some("badchunk") => b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n".to_vec(),
            Some("hugehead") => raw_answer(200, &format!("X-Huge: {}\r\n", "h".repeat(4 << 20)), b"{}"),
            Some("negative") => b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n{}".to_vec(),
            Some("injection") => raw_answer(200, "X-Bad: a\rSet-Cookie: b\r\n", b"{}"),
            Some("switch") => b"HTTP/1.1 101 Switching Protocols\r\n\r\n".to_vec(),
            Some(_) => b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{}".to_vec(),
        };
        Answer::Close(answer)
    });
    let gateway = Setup::new().upstream("odd", "openai", upstream.addr, r#"["mock*"]"#, "").start();
    let key = gateway.mint(DEV1);
    for model in ["garbage", "both", "badchunk", "hugehead", "negative", "injection", "switch", "short"] {
        let answer = gateway.post(&key, CHAT, &chat(&format!("mock-{model}")));
        assert!(
            answer.status == 502 || (answer.status == 200 && !answer.complete),
            "{model} gave {}: {}",
            answer.status,
            answer.text()
        );
        assert_eq!(answer.header("set-cookie"), None, "{model}");
        let row = gateway.row(&answer);
        assert_ne!(row.outcome(), "completed", "{}", row.0);
    }
    gateway.idle_check();
}

#[test]
fn a_reader_that_stops_reading_slows_its_upstream_and_does_not_fill_memory() {
    const ANSWER_BYTES: usize = 32 * 1024 * 1024;
    let upstream = Scripted::start(|asked| match asked.model().as_str() {
        "mock-long" => Answer::Keep(raw_answer(200, "Content-Type: application/json\r\n", &vec![b' '; ANSWER_BYTES])),
        _ => scripted::healthy_chat("mock"),
    });
    let gateway = Setup::new().upstream("long", "openai", upstream.addr, r#"["mock*"]"#, "").start();
    let key = gateway.mint(DEV1);
    let request = Request::post(CHAT).key(&key.secret).json(&chat("mock-long"));
    let mut readers: Vec<Conn> = (0..8)
        .map(|_| {
            let mut reader = Conn::open(gateway.addr);
            reader.shrink_receive_buffer(64 * 1024);
            reader.send(&request);
            assert!(reader.has_bytes(SOON));
            reader
        })
        .collect();
    // For a second and a half nobody reads: 256 MiB wait at the upstream, not here.
    let watched = Instant::now();
    while watched.elapsed() < Duration::from_millis(1500) {
        let growth_kib = gateway.process.memory_kib("VmRSS").saturating_sub(gateway.rss_at_start_kib);
        assert!(growth_kib < 32 * 1024, "memory grew by {growth_kib} KiB");
        std::thread::yield_now();
    }
    let mut reader = readers.pop().expect("eight readers");
    drop(readers);
    let head = reader.read_head();
    let (mut decoder, mut body) = (Decoder::of(&head, "POST"), Vec::new());
    while reader.read_body(&mut decoder, &mut body) == Progress::More {}
    assert_eq!(body.len(), ANSWER_BYTES);
    gateway.idle_check();
}

#[test]
fn a_storm_of_connections_that_say_nothing_leaves_nothing_behind() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).server("head_timeout", "1s").start();
    let key = gateway.mint(DEV1);
    gateway.post(&key, CHAT, &chat("mock")).expect(200);
    let files_before = gateway.process.open_files();
    for round in 0..5 {
        let silent: Vec<Conn> = (0..100).map(|_| Conn::open(gateway.addr)).collect();
        gateway.post(&key, CHAT, &chat("mock")).expect(200);
        for (at, mut conn) in silent.into_iter().enumerate() {
            match (at + round) % 3 {
                0 => conn.reset(),
                1 => drop(conn.try_send_raw(b"POST /v1/chat")),
                _ => drop(conn),
            }
        }
    }
    until("the connections to be gone", SOON, || gateway.process.open_files() <= files_before + 4);
    gateway.idle_check();
}

#[test]
fn the_admin_port_refuses_what_a_browser_could_be_tricked_into() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).start();
    let mint = json!({"node": DEV1, "name": "stolen"});
    let posts = [
        Request::post("/tt/api/v1/keys").json(&mint).header("Origin", "https://evil.example"),
        Request::post("/tt/api/v1/keys").json(&mint).header("Sec-Fetch-Site", "cross-site"),
    ];
    for request in posts {
        let answer = http::exchange(gateway.admin, &request);
        assert_eq!(answer.status, 403, "{:?}: {}", request.headers, answer.text());
    }
    let mut text = Request::post("/tt/api/v1/keys").header("Content-Type", "text/plain");
    text.body = http::Body::Sized(mint.to_string().into_bytes());
    assert!(matches!(http::exchange(gateway.admin, &text).status, 400 | 403 | 415));
    // DNS rebinding: a foreign name that resolves to us
    let mut conn = Conn::open(gateway.admin);
    conn.send_raw(b"GET /tt/api/v1/keys HTTP/1.1\r\nHost: evil.example\r\n\r\n");
    let answer = conn.read_response();
    assert!(matches!(answer.status, 400 | 403 | 421), "{}", answer.status);
    let keys = gateway.admin_get("/tt/api/v1/keys").expect(200).json();
    let listed = keys["keys"].as_array().map(Vec::len);
    assert_eq!(listed, Some(0), "nothing was minted: {keys}");
    let minted = gateway.mint(DEV1);
    let keys: Value = gateway.admin_get("/tt/api/v1/keys").expect(200).json();
    assert_eq!(keys["keys"][0]["id"], minted.id.as_str());
    assert!(!keys.to_string().contains(&minted.secret), "a key is shown once");
    gateway.idle_check();
}

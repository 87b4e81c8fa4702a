//! One replica as its operator lives with it: reload, revocation, failover, TLS, a full disk, hostile neighbours.

mod common;

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use common::*;
use serde_json::{Value, json};

#[test]
fn a_reload_changes_amounts_and_keeps_what_was_counted() {
    let mock = Mock::start();
    let setup = |amount: u64| {
        Setup::with_mock(&mock).limit("team_rpm", "rpm", &format!("amount: {amount}, period: 1h")).limit(
            "team_requests",
            "quota_requests",
            &format!("amount: {amount}, period: year"),
        )
    };
    let gateway = setup(10).start();
    let key = gateway.mint(DEV1);
    for _ in 0..3 {
        gateway.post(&key, CHAT, &chat("mock")).expect(200);
    }
    until("three rows to be folded", SOON, || gateway.me(&key).limit("team_requests").used() == 3.0);
    gateway.reconfigure(&setup(20));
    gateway.process.signal(libc::SIGHUP);
    until("the new amount", SOON, || gateway.me(&key).limit("team_rpm").amount() == 20.0);
    let me = gateway.me(&key);
    assert_eq!(me.limit("team_requests").used(), 3.0, "a meter survives a reload");
    // 10 of an hour's 10 were 3 used; in time that is 3/10 of the hour, or 6 of 20.
    assert_eq!(me.limit("team_rpm").remaining(), 14.0, "used time is kept, not a count");
    gateway.idle_check();
}

#[test]
fn a_config_that_does_not_compile_changes_nothing_and_says_why() {
    let mock = Mock::start();
    let good = Setup::with_mock(&mock).limit("team_rpm", "rpm", "amount: 10, period: 1h");
    let gateway = good.start();
    let key = gateway.mint(DEV1);
    gateway.reconfigure(&good.clone().limit("team_rpm", "rpm", "amount: 0, period: 1h"));
    let answer = gateway.admin_post("/tt/api/v1/config/reload", &json!({}));
    assert!(answer.status >= 400 && answer.text().contains("amount"), "{}", answer.text());
    gateway.process.signal(libc::SIGHUP);
    until("the refusal in the log", SOON, || gateway.log_text().contains("not reloaded"));
    assert_eq!(gateway.me(&key).limit("team_rpm").amount(), 10.0);
    gateway.post(&key, CHAT, &chat("mock")).expect(200);
    gateway.idle_check();
}

#[test]
fn a_limit_added_by_a_reload_counts_what_the_period_already_burned() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).start();
    let key = gateway.mint(DEV1);
    gateway.post(&key, CHAT, &chat("mock")).expect(200);
    gateway.wait_rows(1, SOON);
    gateway.reconfigure(&Setup::with_mock(&mock).limit("team_budget", "budget_usd", "amount_usd: 1, period: year"));
    gateway.admin_post("/tt/api/v1/config/reload", &json!({})).expect(200);
    until("the earlier row to be folded", SOON, || {
        let me = gateway.me(&key);
        me.limits().iter().any(|limit| limit.0["id"] == "team_budget")
            && me.limit("team_budget").used_nanousd() == OPENAI_REPLY_NANOUSD
    });
    gateway.idle_check();
}

#[test]
fn a_revoked_key_opens_nothing_on_any_core_with_the_next_request() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).cores(4).start();
    let key = gateway.mint(DEV1);
    // Many connections, so that each core holds some and remembers the key on them.
    let mut callers: Vec<Conn> = (0..16).map(|_| Conn::open(gateway.addr)).collect();
    let ask = Request::post(CHAT).key(&key.secret).json(&chat("mock"));
    for caller in &mut callers {
        caller.send(&ask);
        caller.read_response().expect(200);
    }
    gateway.revoke(&key);
    for caller in &mut callers {
        caller.send(&ask);
        caller.read_response().expect(401);
    }
    gateway.idle_check();
}

#[test]
fn an_upstream_that_cannot_be_reached_gives_way_to_the_next() {
    let mock = Mock::start();
    let gateway = Setup::new()
        .upstream("dead", "openai", common::mock::dead_port(), r#"["mock*"]"#, "weight: 1000")
        .upstream("alive", "openai", mock.addr, r#"["mock*"]"#, "weight: 1")
        .start();
    let key = gateway.mint(DEV1);
    for _ in 0..10 {
        let answer = gateway.post(&key, CHAT, &chat("mock")).expect(200);
        let row = gateway.row(&answer);
        assert_eq!(row["upstream"], "alive");
        row.assert_healthy_openai();
    }
    assert_eq!(mock.requests().len(), 10);
    gateway.idle_check();
}

#[test]
fn weights_are_kept_smoothly() {
    let (one, three) = (Mock::start(), Mock::start());
    let gateway = Setup::new()
        .cores(1)
        .upstream("one", "openai", one.addr, r#"["mock*"]"#, "weight: 1")
        .upstream("three", "openai", three.addr, r#"["mock*"]"#, "weight: 3")
        .start();
    let key = gateway.mint(DEV1);
    for _ in 0..40 {
        gateway.post(&key, CHAT, &chat("mock")).expect(200);
    }
    assert_eq!((one.requests().len(), three.requests().len()), (10, 30));
    gateway.idle_check();
}

#[test]
fn with_sync_always_the_row_is_on_disk_before_the_answer_ends() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).ledger("sync", "always").start();
    let key = gateway.mint(DEV1);
    for count in 1..=20 {
        gateway.post(&key, CHAT, &chat("mock")).expect(200);
        assert_eq!(gateway.row_count(), count);
    }
    gateway.idle_check();
}

type Tls = rustls::StreamOwned<rustls::ClientConnection, std::net::TcpStream>;

/// A connection that trusts this certificate and no other.
fn tls_to(addr: std::net::SocketAddr, trusted: &rcgen::Certificate) -> Tls {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(trusted.der().clone()).unwrap();
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let session = rustls::ClientConnection::new(std::sync::Arc::new(config), "localhost".try_into().unwrap()).unwrap();
    rustls::StreamOwned::new(session, std::net::TcpStream::connect(addr).unwrap())
}

/// A certificate for `localhost` in the folder, and `server.tls` that names it.
fn certificate(folder: &common::folder::Folder) -> (rcgen::Certificate, String) {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let (cert_file, key_file) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    std::fs::write(&cert_file, made.cert.pem()).unwrap();
    std::fs::write(&key_file, made.signing_key.serialize_pem()).unwrap();
    (made.cert, format!("{{ cert_file: {cert_file:?}, key_file: {key_file:?} }}"))
}

#[test]
fn callers_can_speak_tls() {
    let mock = Mock::start();
    let folder = common::folder::Folder::new();
    let (cert, tls) = certificate(&folder);
    let gateway = Setup::with_mock(&mock).server("tls", &tls).start();
    let key = gateway.mint(DEV1);

    let mut tls = tls_to(gateway.addr, &cert);
    for body in [chat("mock"), chat_stream("mock+slow20")] {
        let request = Request::post(CHAT).key(&key.secret).json(&body).bytes("localhost");
        tls.write_all(&request).unwrap();
        let mut answer = Vec::new();
        let mut piece = [0; 4096];
        while !answer.ends_with(b"0\r\n\r\n") && !answer.ends_with(b"}}") && !answer.ends_with(b"}") {
            let count = tls.read(&mut piece).unwrap();
            assert!(count > 0, "{}", String::from_utf8_lossy(&answer));
            answer.extend_from_slice(&piece[..count]);
        }
        assert!(answer.starts_with(b"HTTP/1.1 200 OK"), "{}", String::from_utf8_lossy(&answer));
    }
    gateway.wait_rows(2, SOON);
}

/// A refusal is said before the body is there. What comes in one TLS record with the rest of that body is the next request.
#[test]
fn a_request_right_behind_a_refused_body_is_served_over_tls() {
    let mock = Mock::start();
    let folder = common::folder::Folder::new();
    let (cert, tls) = certificate(&folder);
    let gateway = Setup::with_mock(&mock).server("tls", &tls).start();
    let key = gateway.mint(DEV1);

    let body = chat("mock");
    let refused = Request::post(CHAT).key("ttk_nobody").json(&body).bytes("localhost");
    let served = Request::post(CHAT).key(&key.secret).json(&body).bytes("localhost");
    let head_len = refused.windows(4).position(|end| end == b"\r\n\r\n").unwrap() + 4;

    let mut tls = tls_to(gateway.addr, &cert);
    let answer = |tls: &mut Tls| {
        let (mut answer, mut piece) = (Vec::new(), [0; 4096]);
        while !answer.ends_with(b"}") {
            let count = tls.read(&mut piece).unwrap();
            assert!(count > 0, "{}", String::from_utf8_lossy(&answer));
            answer.extend_from_slice(&piece[..count]);
        }
        String::from_utf8(answer).unwrap()
    };
    tls.write_all(&refused[..head_len]).unwrap();
    let said = answer(&mut tls);
    assert!(said.starts_with("HTTP/1.1 401 "), "{said}");
    tls.write_all(&[&refused[head_len..], &served].concat()).unwrap();
    let said = answer(&mut tls);
    assert!(said.starts_with("HTTP/1.1 200 OK"), "{said}");
    gateway.wait_rows(1, SOON);
}

/// Turning TLS on or off waits for a restart, as the reload says: until then callers are served as they were.
#[test]
fn a_reload_that_turns_tls_on_or_off_changes_no_connection() {
    let mock = Mock::start();
    let folder = common::folder::Folder::new();
    let (cert, tls) = certificate(&folder);
    let with_tls = || Setup::with_mock(&mock).server("tls", &tls);
    let reload = |gateway: &Gateway, to: &Setup| {
        gateway.reconfigure(to);
        let reloaded = gateway.admin_post("/tt/api/v1/config/reload", &json!({})).expect(200).json();
        assert_eq!(reloaded["needs_restart"], json!(["server.tls"]));
    };

    let plain = Setup::with_mock(&mock).start();
    let key = plain.mint(DEV1);
    reload(&plain, &with_tls());
    for _ in 0..6 {
        plain.post(&key, CHAT, &chat("mock")).expect(200); // a connection each, so every core is asked
    }
    assert_eq!(plain.admin_get("/tt/api/v1/config").json()["config"]["server"]["tls"], Value::Null);

    let gateway = with_tls().start();
    let key = gateway.mint(DEV1);
    reload(&gateway, &Setup::with_mock(&mock));
    for _ in 0..6 {
        let mut tls = tls_to(gateway.addr, &cert);
        tls.write_all(&Request::post(CHAT).key(&key.secret).json(&chat("mock")).bytes("localhost")).unwrap();
        let mut begin = [0; 15];
        tls.read_exact(&mut begin).unwrap();
        assert_eq!(String::from_utf8_lossy(&begin), "HTTP/1.1 200 OK");
    }
}

#[test]
fn a_renewed_certificate_is_taken_by_a_reload_and_a_broken_one_is_not() {
    let mock = Mock::start();
    let folder = common::folder::Folder::new();
    let (cert_file, key_file) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    let renew = || {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        std::fs::write(&cert_file, made.cert.pem()).unwrap();
        std::fs::write(&key_file, made.signing_key.serialize_pem()).unwrap();
        made.cert
    };
    let first = renew();
    let tls = format!("{{ cert_file: {cert_file:?}, key_file: {key_file:?} }}");
    let gateway = Setup::with_mock(&mock).server("tls", &tls).start();
    let key = gateway.mint(DEV1);
    // A status line, or why there is none.
    let ask = |tls: &mut Tls| {
        let request = Request::get("/tt/v1/me").key(&key.secret).bytes("localhost");
        let mut line = [0; 15];
        tls.write_all(&request)
            .and_then(|()| tls.read_exact(&mut line))
            .map(|()| String::from_utf8_lossy(&line).into_owned())
    };
    let is_trusted =
        |cert: &rcgen::Certificate| ask(&mut tls_to(gateway.addr, cert)).is_ok_and(|line| line == "HTTP/1.1 200 OK");
    let reload = || gateway.admin_post("/tt/api/v1/config/reload", &json!({}));
    assert!(is_trusted(&first));
    let mut open = tls_to(gateway.addr, &first);
    open.conn.complete_io(&mut open.sock).unwrap();
    let second = renew();
    assert!(is_trusted(&first) && !is_trusted(&second), "files alone change nothing");
    reload().expect(200);
    until("the new certificate", SOON, || is_trusted(&second) && !is_trusted(&first));
    assert_eq!(ask(&mut open).unwrap(), "HTTP/1.1 200 OK", "an open connection stays");
    std::fs::write(&key_file, "no key").unwrap();
    let refused = reload().text();
    assert!(refused.contains("server.tls") && refused.contains("key.pem"), "{refused}");
    assert!(is_trusted(&second), "what worked stays in force");
    let mut plain = std::net::TcpStream::connect(gateway.addr).unwrap();
    plain.write_all(&Request::get("/tt/v1/me").key(&key.secret).bytes("localhost")).unwrap();
    let mut said = Vec::new();
    let _ = plain.read_to_end(&mut said); // it may be reset
    assert!(!said.starts_with(b"HTTP"), "{}", String::from_utf8_lossy(&said));
}

#[test]
fn providers_can_speak_tls_and_a_stranger_gets_no_request() {
    let folder = common::folder::Folder::new();
    let cert = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let cert_file = folder.path().join("cert.pem");
    std::fs::write(&cert_file, cert.cert.pem()).unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let key_der = rustls::pki_types::PrivateKeyDer::try_from(cert.signing_key.serialize_der()).unwrap();
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![cert.cert.der().clone()], key_der)
        .unwrap();
    let config = std::sync::Arc::new(config);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(stream) = stream else { return };
            let mut tls = rustls::StreamOwned::new(rustls::ServerConnection::new(config.clone()).unwrap(), stream);
            let mut seen = Vec::new();
            let mut piece = [0; 4096];
            while !seen.ends_with(b"}") {
                match tls.read(&mut piece) {
                    Ok(count) if count > 0 => seen.extend_from_slice(&piece[..count]),
                    _ => break,
                }
            }
            let body = r#"{"usage":{"prompt_tokens":3,"completion_tokens":2}}"#;
            let _ = write!(tls, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
            let _ = tls.flush();
        }
    });
    let setup = Setup::new().raw_upstream(&format!(
        "{{ id: safe, api: openai, base_url: \"https://localhost:{port}/v1\", models: [\"mock*\"] }}"
    ));
    for (trusted, status) in [(true, 200), (false, 502)] {
        let file = if trusted { cert_file.to_str() } else { None };
        let gateway = setup.clone().env("SSL_CERT_FILE", file).start();
        let key = gateway.mint(DEV1);
        // The name resolves in the background, soon.
        until("the provider's name to resolve", SOON, || {
            let answer = gateway.post(&key, CHAT, &chat("mock"));
            answer.status == status && !answer.text().contains("did not resolve")
        });
    }
}

#[test]
fn a_full_disk_stops_no_request_and_forgets_no_row() {
    let Some(disk) = SmallDisk::mount(512) else { return };
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock)
        .limit("team_budget", "budget_usd", "amount_usd: 1000, period: year")
        .data_dir(disk.path().join("data"))
        .start();
    let key = gateway.mint(DEV1);
    gateway.post(&key, CHAT, &chat("mock")).expect(200);
    gateway.wait_rows(1, SOON);
    disk.fill();
    let mut sent = 1;
    let health = || gateway.admin_get("/tt/api/v1/governance/health").json()["ledger"].clone();
    until("the disk to be full", SOON, || {
        gateway.post(&key, CHAT, &chat("mock")).expect(200);
        sent += 1;
        !health()["trouble"].is_null()
    });
    let used = |gateway: &Gateway| gateway.me(&key).limit("team_budget").used_nanousd();
    until("spend to be counted all the same", SOON, || used(&gateway) == sent * OPENAI_REPLY_NANOUSD);
    disk.empty();
    until("the ledger to recover", SOON, || health()["trouble"].is_null() && gateway.row_count() as u64 == sent);
    common::ledger::assert_no_doubles(&gateway.rows());
    assert_eq!(common::ledger::cost(&gateway.rows()), sent * OPENAI_REPLY_NANOUSD);
    gateway.idle_check();
    drop(gateway);
}

#[test]
fn a_stop_on_a_full_disk_says_what_is_lost() {
    let Some(disk) = SmallDisk::mount(512) else { return };
    let mock = Mock::start();
    let setup = Setup::with_mock(&mock).ledger("sync", "always").data_dir(disk.path().join("data"));
    let gateway = setup.start();
    let key = gateway.mint(DEV1);
    disk.fill();
    let health = |gateway: &Gateway| gateway.admin_get("/tt/api/v1/governance/health").expect(200).json();
    until("the disk to be full", SOON, || {
        gateway.post(&key, CHAT, &chat("mock")).expect(200); // held by no disk, under `always` either
        health(&gateway)["ledger"]["state"] == "disk_full"
    });
    let waiting = health(&gateway)["ledger"]["waiting_rows"].as_u64().expect("a number");
    assert!(waiting > 0);
    assert_eq!(gateway.stop(SOON).code(), Some(2));
    until("it to say so", SOON, || gateway.log_text().contains("rows are lost: the ledger took none to the end"));

    disk.empty();
    let gateway = setup.start();
    let last_stop = health(&gateway)["ledger"]["last_stop"].clone();
    assert!(last_stop["note"].as_str().is_some_and(|note| note.contains("a full disk did not take")), "{last_stop}");
    assert_eq!((last_stop["clean"].clone(), gateway.stop(SOON).success()), (json!(false), true));
    assert_eq!(health(&setup.start())["ledger"]["last_stop"]["clean"], true);
}

#[test]
fn slow_heads_and_stalled_readers_leave_other_callers_alone() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).cores(1).server("head_timeout", "60s").start();
    let key = gateway.mint(DEV1);
    let typical = |count: usize| {
        let mut times: Vec<Duration> = (0..count)
            .map(|_| {
                let began = Instant::now();
                gateway.post(&key, CHAT, &chat("mock")).expect(200);
                began.elapsed()
            })
            .collect();
        times.sort();
        times[count / 2]
    };
    let alone = typical(50);
    // 500 callers that send half a head and stop, and 20 that ask for a stream of 3 MB lines and never read it.
    let half = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-slow: ";
    let mut slow: Vec<Conn> = (0..500).map(|_| Conn::open(gateway.addr)).collect();
    slow.iter_mut().for_each(|caller| caller.send_raw(half));
    let stalled: Vec<Conn> = (0..20)
        .map(|_| {
            let mut caller = Conn::open(gateway.addr);
            caller.shrink_receive_buffer(4096);
            caller.send(&Request::post(CHAT).key(&key.secret).json(&chat_stream("mock+bigline")));
            caller
        })
        .collect();
    let beside = typical(50);
    // Not a benchmark: a core that waits for either kind would take seconds here, not a few milliseconds.
    assert!(beside < alone * 20 + Duration::from_millis(200), "alone {alone:?}, beside them {beside:?}");
    assert!(gateway.process.memory_kib("VmRSS") < gateway.rss_at_start_kib + 200 * 1024, "nobody's answer is hoarded");
    drop((slow, stalled));
    gateway.idle_check_allowing(64);
}

/// A tmpfs of its own, gone with the value.
struct SmallDisk(common::folder::Folder);

impl SmallDisk {
    fn mount(kib: u32) -> Option<Self> {
        let folder = common::folder::Folder::new();
        let options = format!("size={kib}k");
        let status = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", &options, "tmpfs"])
            .arg(folder.path())
            .status();
        if status.is_ok_and(|status| status.success()) {
            return Some(SmallDisk(folder));
        }
        // Mounting needs root; the same is tested below the process by the ledger's own tests.
        eprintln!("not root: a small disk cannot be mounted, so this machine does not run this test's subject");
        None
    }

    fn path(&self) -> &std::path::Path {
        self.0.path()
    }

    /// Takes all that is left.
    fn fill(&self) {
        let mut file = std::fs::File::create(self.path().join("ballast")).unwrap();
        for size in [65_536, 4_096, 512, 1] {
            while file.write_all(&vec![0; size]).is_ok() {}
        }
    }

    fn empty(&self) {
        std::fs::remove_file(self.path().join("ballast")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily, so that a process that is just ending does not keep it.
        let _ = std::process::Command::new("umount").arg("-l").arg(self.path()).status();
    }
}

#[test]
fn failing_over_asks_the_limits_of_the_upstream_it_fails_over_to() {
    let mock = Mock::start();
    let gateway = Setup::new()
        .cores(1)
        .upstream("dead", "openai", common::mock::dead_port(), r#"["mock*"]"#, "")
        .upstream("alive", "openai", mock.addr, r#"["mock*"]"#, "")
        .limit("alive_only", "quota_requests", "amount: 1, period: year, match: { upstream: [alive] }")
        .start();
    let key = gateway.mint(DEV1);
    gateway.post(&key, CHAT, &chat("mock")).expect(200);
    until("the row to be folded", SOON, || gateway.me(&key).limit("alive_only").used() == 1.0);
    for _ in 0..6 {
        gateway.post(&key, CHAT, &chat("mock")).expect(429);
    }
    assert_eq!(mock.requests().len(), 1);
    gateway.idle_check();
}

#[test]
fn governance_that_is_off_refuses_nothing_and_still_writes_rows() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock)
        .governance("enabled", "false")
        .limit("team_rpm", "rpm", "amount: 1, period: 1h")
        .start();
    let key = gateway.mint(DEV1);
    for _ in 0..3 {
        gateway.post(&key, CHAT, &chat("mock")).expect(200);
    }
    gateway.wait_rows(3, SOON);
}

#[test]
fn one_callers_odd_option_does_not_end_everybodys_metering() {
    let upstream = Scripted::start(|asked| {
        let body = asked.json();
        if body["stream_options"].get("poison").is_some() {
            let error = json!({"error": {"message": "unknown stream_options.poison", "type": "invalid_request_error"}});
            return Answer::Keep(common::scripted::json_answer(400, &error));
        }
        Answer::Keep(common::scripted::json_answer(
            200,
            &json!({"usage": {"prompt_tokens": 1, "completion_tokens": 1}}),
        ))
    });
    let gateway = Setup::new().upstream("one", "openai", upstream.addr, r#"["mock*"]"#, "").start();
    let key = gateway.mint(DEV1);
    let poisoned = bodies::with(chat_stream("mock"), "stream_options", json!({"poison": 1}));
    gateway.post(&key, CHAT, &poisoned).expect(400);
    gateway.post(&key, CHAT, &chat_stream("mock")).expect(200);
    let last = upstream.asked().pop().expect("it was asked").json();
    assert_eq!(last["stream_options"]["include_usage"], json!(true), "usage is still asked for");
}

#[test]
fn a_key_of_ours_is_forwarded_in_no_spelling() {
    let mock = Mock::start();
    let gateway = Setup::new().keyless_upstream("own", "openai", mock.addr, r#"["mock*"]"#, "").start();
    let key = gateway.mint(DEV1);
    let secret = &key.secret;
    let encoded = secret.replace("ttk_", "ttk%5f");
    let spellings = [
        Request::post(&format!("{CHAT}?api_key={secret}")),
        Request::post(&format!("{CHAT}?key=1&key={encoded}")),
        Request::post(CHAT).header("x-key", secret),
        Request::post(CHAT).header("authorization", &format!("Bearer\t{secret}")),
        Request::post(CHAT).header("authorization", &format!("Token {secret}")),
        Request::post(CHAT).header("cookie", &format!("a={secret}")),
    ];
    for request in spellings {
        gateway.send(&request.json(&chat("mock")));
    }
    let seen = mock.log_text();
    assert!(!seen.contains(&secret[8..]), "{seen}");
}

#[test]
fn an_answer_given_before_the_body_was_read_is_passed_on_and_timed_from_its_request() {
    // Reads the head alone, answers, and closes on the rest of a body that no socket buffer holds.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let _ = stream.read(&mut [0; 1024]);
            let body = r#"{"error":{"message":"too large for me"}}"#;
            let _ = write!(stream, "HTTP/1.1 413 X\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        }
    });
    let gateway = Setup::new().upstream("picky", "openai", addr, r#"["mock*"]"#, "").start();
    let key = gateway.mint(DEV1);
    let body = json!({"model": "mock", "messages": [{"role": "user", "content": "x".repeat(20 << 20)}]});
    let answer = gateway.post(&key, CHAT, &body);
    let row = gateway.row(&answer);
    // A reset may overtake the answer on its way to us; then it is our 502. What is never right is a made-up time.
    assert!(matches!(answer.status, 413 | 502), "{}", answer.text());
    assert!(row["first_byte_us"].as_u64().unwrap_or(0) <= row.number("latency_us"), "{:?}", row.0);
}

//! How a gateway leaves: SIGTERM finishes what runs, writes its rows and ends; and how it refuses to start twice.

mod common;

use std::time::{Duration, Instant};

use common::*;
use serde_json::{Value, json};

/// Far less than the drain timeout of 5 s: nothing was left to wait for.
const AT_ONCE: Duration = Duration::from_secs(3);

#[test]
fn sigterm_finishes_the_open_stream_and_takes_no_new_connection() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).start();
    let key = gateway.mint(DEV1);
    let mut stream = gateway.stream(&key, CHAT, &chat_stream("mock+slow200")).expect(200);
    stream.events(2);
    gateway.process.terminate();
    let request = Request::post(CHAT).key(&key.secret).json(&chat("mock"));
    until("new connections to be refused", SOON, || http::try_exchange(gateway.addr, &request).is_none());
    let finished = stream.finish();
    assert!(finished.complete && finished.is_done(), "the stream that ran is served to its end");
    let status = gateway.process.wait_exit(AT_ONCE);
    assert!(status.success(), "{status}: {}", gateway.log_text());
    gateway.row(&finished.head).assert_healthy_openai();
    ledger::assert_no_doubles(&gateway.rows());
}

#[test]
fn an_idle_gateway_leaves_at_once_even_with_connections_kept_alive() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).server("drain_timeout", "60s").start();
    let key = gateway.mint(DEV1);
    let mut kept = Conn::open(gateway.addr);
    kept.send(&Request::post(CHAT).key(&key.secret).json(&chat("mock")));
    kept.read_response().expect(200);
    let status = gateway.stop(AT_ONCE);
    assert!(status.success(), "{status}");
    assert!(kept.is_closed(SOON));
    assert_eq!(gateway.rows().len(), 1);
}

#[test]
fn a_stream_longer_than_the_drain_timeout_is_cut_and_still_has_its_row() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).server("drain_timeout", "1s").start();
    let key = gateway.mint(DEV1);
    let body = with(question("mock+slow2000"), "stream", true.into());
    let mut stream = gateway.stream(&key, CHAT, &body).expect(200);
    stream.events(1);
    let began = Instant::now();
    gateway.stop(Duration::from_secs(6));
    assert!(began.elapsed() >= Duration::from_millis(900), "the timeout was used");
    let finished = stream.finish();
    assert!(!finished.complete, "half an answer does not look whole");
    let row = gateway.row(&finished.head);
    assert_eq!((row.decision(), &row["outcome"], &row["status"]), ("error", &Value::Null, &json!(200)), "{}", row.0);
    row.assert_estimated();
}

/// An operator who asks twice does not want to wait: the stream ends now, and everything else is as in a drain.
#[test]
fn a_second_signal_ends_the_drain_at_once_and_writes_the_rows() {
    for second in [libc::SIGTERM, libc::SIGINT] {
        let mock = Mock::start();
        let gateway = Setup::with_mock(&mock).server("drain_timeout", "60s").start();
        let key = gateway.mint(DEV1);
        let body = with(question("mock+slow2000"), "stream", true.into());
        let mut stream = gateway.stream(&key, CHAT, &body).expect(200);
        stream.events(1);
        gateway.process.terminate();
        until("the drain to begin", SOON, || gateway.log_text().contains("draining"));
        gateway.process.signal(second);
        let status = gateway.process.wait_exit(AT_ONCE);
        assert_eq!(status.code(), Some(0), "it was told to stop, and nothing was lost: {}", gateway.log_text());
        assert!(gateway.log_text().contains("told to stop again"), "{}", gateway.log_text());
        let finished = stream.finish();
        assert!(!finished.complete, "half an answer does not look whole");
        let row = gateway.row(&finished.head);
        // Nothing timed out, and neither the caller nor the provider ended it: an error of ours, whose tokens are booked.
        assert_eq!(
            (row.decision(), &row["outcome"], &row["status"]),
            ("error", &Value::Null, &json!(200)),
            "{}",
            row.0
        );
        row.assert_estimated();
        assert!(!gateway.data_dir.join("running").exists(), "a clean stop");
    }
}

#[test]
fn a_kill_leaves_a_mark_that_the_next_start_tells_of_and_a_stop_leaves_none() {
    let mock = Mock::start();
    let folder = folder::Folder::new();
    let setup = Setup::with_mock(&mock).data_dir(folder.path().join("data"));
    let last_stop = |gateway: &Gateway| {
        let health = gateway.admin_get("/tt/api/v1/governance/health").expect(200).json();
        let unclean = gateway.metrics().sum("tokentriage_unclean_start").expect("the metric is there");
        assert_eq!(health["ledger"]["last_stop"]["clean"] == false, unclean == 1.0);
        assert_eq!(gateway.log_text().contains("did not stop cleanly"), unclean == 1.0);
        health["ledger"]["last_stop"].clone()
    };
    let gateway = setup.start();
    assert_eq!(last_stop(&gateway), json!({"clean": true, "started": null, "note": null}));
    assert!(gateway.data_dir.join("running").exists());
    gateway.process.kill();
    let gateway = setup.start();
    let killed = last_stop(&gateway);
    assert!(killed["started"].as_str().is_some_and(|at| at.ends_with('Z')), "{killed}");
    assert!(killed["note"].as_str().is_some_and(|note| note.contains("no row")), "{killed}");
    assert!(gateway.stop(AT_ONCE).success());
    assert!(!gateway.data_dir.join("running").exists());
    assert_eq!(last_stop(&setup.start())["clean"], true);
}

#[test]
fn a_restart_keeps_the_keys_and_what_was_spent() {
    let mock = Mock::start();
    let folder = folder::Folder::new();
    let setup = Setup::with_mock(&mock)
        .limit("team_budget", "budget_usd", "amount_usd: 0.001, period: year")
        .data_dir(folder.path().join("data"));
    let gateway = setup.start();
    let key = gateway.mint(DEV1);
    gateway.post(&key, CHAT, &chat("mock")).expect(200);
    assert!(gateway.stop(AT_ONCE).success());
    let gateway = setup.start();
    assert_eq!(gateway.me(&key).limit("team_budget").used_nanousd(), OPENAI_REPLY_NANOUSD);
    gateway.post(&key, CHAT, &chat("mock")).expect(200);
    gateway.post(&key, CHAT, &chat("mock")).expect(200);
    gateway.wait_exhausted(&key, "team_budget");
    gateway.post(&key, CHAT, &chat("mock")).expect(429);
    ledger::assert_no_doubles(&gateway.wait_rows(4, SOON));
    gateway.idle_check();
}

#[test]
fn the_first_log_line_says_who_the_replica_is() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).start();
    let log = gateway.process.stderr.all();
    let first: Value = serde_json::from_str(&log[0]).expect("a log line is JSON");
    assert_eq!(first["msg"], "replica identity resolved");
    assert_eq!((&first["name"], &first["source"]), (&"tt-test".into(), &"config".into()));
    assert_eq!(first["stable"], true);
    for line in &log {
        let line: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert!(line["time"].is_string() && line["level"].is_string() && line["msg"].is_string(), "{line}");
    }
    let wanted = std::env::var("TT_TEST_DRIVER").unwrap_or_default();
    if matches!(wanted.as_str(), "io_uring" | "epoll") {
        assert!(gateway.log_text().contains(&wanted), "the driver in use is logged: {}", gateway.log_text());
    }
}

#[test]
fn health_answers_without_a_token() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock)
        .server("admin_token_env", "TT_TEST_ADMIN_TOKEN")
        .env("TT_TEST_ADMIN_TOKEN", Some("admin-secret"))
        .start();
    for path in ["/livez", "/readyz", "/healthz"] {
        assert_eq!(gateway.admin_get(path).status, 200, "{path}");
    }
    let keys = Request::get("/tt/api/v1/keys");
    assert_eq!(http::exchange(gateway.admin, &keys).status, 401);
    assert_eq!(http::exchange(gateway.admin, &keys.clone().key("wrong")).status, 401);
    assert_eq!(http::exchange(gateway.admin, &keys.key("admin-secret")).status, 200);
}

//! The official OpenAI and Anthropic SDKs, as an application uses them, against the gateway and the built-in mock.

mod common;

use std::process::Command;

use common::python::run_sdk;
use common::*;

/// Callers must bring a key, so that a wrong one is an error and not an anonymous call. The `mock-broke` models
/// stand behind budgets of next to nothing.
fn setup(mock: &Mock) -> Setup {
    Setup::with_mock(mock)
        .require_key()
        .limit("broke_budget", "budget_usd", "amount_usd: 0.0000001, period: year, match: { model: [\"mock-broke*\"] }")
        .limit("team_rpm", "rpm", "amount: 1000, period: 1m")
        .limit("team_tpm", "tpm", "amount: 1000000, period: 1m")
}

/// Spends the budget of `mock-broke`.
#[track_caller]
fn go_broke(gateway: &Gateway, key: &Key) {
    gateway.post(key, CHAT, &chat("mock-broke")).expect(200);
    gateway.wait_exhausted(key, "broke_budget");
}

#[test]
fn the_openai_sdk_gets_whole_answers_streams_and_prompt_errors() {
    let mock = Mock::start();
    let gateway = setup(&mock).start();
    let key = gateway.mint(DEV1);
    go_broke(&gateway, &key);
    let base = format!("http://{}/v1", gateway.addr);
    let env = [
        ("BASE_URL", base.as_str()),
        ("KEY", key.secret.as_str()),
        ("CHECK_REPLY", "1"),
        ("ONE_MODEL", "1"),
        ("BAD_KEY", "1"),
        ("REFUSE_MODEL", "mock-broke"),
    ];
    let checks = run_sdk("sdk_openai.py", &env);
    assert_waited_less_than_a_second(&checks);
    gateway.idle_check();
}

#[test]
fn c31_the_anthropic_sdk_raises_a_spent_budget_at_once() {
    let mock = Mock::start();
    let gateway = setup(&mock).start();
    let key = gateway.mint(DEV1);
    go_broke(&gateway, &key);
    let base = format!("http://{}", gateway.addr);
    // however the key travels: as this SDK sends it, as a bearer token, as x-api-key
    for auth in ["sdk", "bearer", "xapikey"] {
        let env = [
            ("BASE_URL", base.as_str()),
            ("KEY", key.secret.as_str()),
            ("AUTH", auth),
            ("CHECK_REPLY", "1"),
            ("ONE_MODEL", "1"),
            ("BAD_KEY", "1"),
            ("REFUSE_MODEL", "mock-broke"),
        ];
        let checks = run_sdk("sdk_anthropic.py", &env);
        assert_waited_less_than_a_second(&checks);
    }
    gateway.idle_check();
}

/// The `refused` check tells how long the SDK took to give up: with retries left, it must not have used them.
#[track_caller]
fn assert_waited_less_than_a_second(checks: &str) {
    let refused = checks.lines().find(|line| line.contains(r#""check": "refused""#)).expect("the check ran");
    let refused: serde_json::Value = serde_json::from_str(refused).expect("a check prints JSON");
    assert!(refused["info"]["waited_s"].as_f64().is_some_and(|waited| waited < 1.0), "{refused}");
}

#[test]
fn an_sdk_that_hangs_up_mid_stream_leaves_nothing_behind() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).limit("team_slots", "concurrency", "amount: 1").start();
    let key = gateway.mint(DEV1);
    let (openai, anthropic) = (format!("http://{}/v1", gateway.addr), format!("http://{}", gateway.addr));
    for round in 1..=2 {
        let env = |base| [("BASE_URL", base), ("KEY", key.secret.as_str()), ("MODEL", "mock+slow100")];
        run_sdk("sdk_openai.py", &[env(openai.as_str()).as_slice(), &[("ONLY", "chat_stream_abort")]].concat());
        until("the slot", PROMPTLY, || gateway.me(&key).limit("team_slots").live() == 0);
        run_sdk(
            "sdk_anthropic.py",
            &[env(anthropic.as_str()).as_slice(), &[("ONLY", "message_stream_abort")]].concat(),
        );
        until("the slot", PROMPTLY, || gateway.me(&key).limit("team_slots").live() == 0);
        let rows = gateway.wait_rows(2 * round, SOON);
        assert!(rows.iter().all(|row| row.outcome() == "client_gone"), "{rows:?}");
    }
    gateway.idle_check();
}

#[test]
fn both_sdks_understand_the_built_in_mock() {
    let mut command = Command::new(gateway::binary());
    command.args(["mock", "--listen", "127.0.0.1:0", "--latency", "0ms", "--chunk-delay", "1ms"]);
    let mock = process::Process::spawn(&mut command);
    let base = until_some("the built-in mock to listen", SOON, || {
        assert!(mock.exited().is_none(), "{}", mock.stderr.text());
        mock.stdout.all().iter().find_map(|line| line.split_once("http://").map(|(_, rest)| format!("http://{rest}")))
    });
    run_sdk("sdk_openai.py", &[("BASE_URL", base.as_str())]);
    run_sdk("sdk_anthropic.py", &[("BASE_URL", base.trim_end_matches("/v1"))]);
}

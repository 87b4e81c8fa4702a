//! `keys` and `query` on the command line: on the files, and through a running replica.

mod admin;
mod common;

use std::process::Command;

use admin::*;
use common::scripted::json_answer;
use common::*;
use serde_json::{Value, json};

/// Runs the command line and gives its exit code, stdout and stderr.
fn cli(gateway: &Gateway, args: &[&str]) -> (Option<i32>, String, String) {
    let folder = gateway.data_dir.parent().expect("the data folder is in the test's folder");
    let mut command = Command::new(gateway::binary());
    command.args(args).current_dir(folder).env_remove("TT_ADMIN_TOKEN").env("TT_TEST_ADMIN", "hunter2");
    let (status, stdout, stderr) = process::run(&mut command, SOON);
    (status.code(), stdout, stderr)
}

#[test]
fn the_command_line_changes_keys_on_the_files_and_a_running_replica_follows() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).require_key().start();
    let (code, minted, _) =
        cli(&gateway, &["keys", "mint", "--node", DEV1, "--name", "ci", "--expires", "30d", "--json"]);
    assert_eq!(code, Some(0));
    let minted: Value = serde_json::from_str(&minted).expect("--json prints JSON");
    let text = |member: &str| minted[member].as_str().expect("a text").to_owned();
    let key = Key { id: text("id"), secret: text("key") };
    until("the replica to know the key", PROMPTLY, || gateway.get(&key, "/tt/v1/me").status == 200);

    let (code, listed, _) = cli(&gateway, &["keys", "list"]);
    assert_eq!(code, Some(0));
    let lines: Vec<&str> = listed.lines().collect();
    assert!(lines[0].starts_with("ID ") && lines[0].ends_with("EXPIRES"), "{listed}");
    assert!(lines[1].contains(&key.id) && lines[1].contains(DEV1) && lines[1].contains(" live "), "{listed}");
    assert!(!listed.contains(&key.secret));

    let (code, revoked, _) = cli(&gateway, &["keys", "revoke", &key.id]);
    assert_eq!((code, revoked), (Some(0), format!("revoked {} ({DEV1})", key.id)));
    until("the replica to refuse the key", PROMPTLY, || gateway.get(&key, "/tt/v1/me").status == 401);
    let audit = gateway.admin_get("/tt/api/v1/audit").expect(200).json();
    assert_eq!(
        (&audit["entries"][1]["action"], &audit["entries"][1]["who"]["through"]),
        (&json!("keys.mint"), &json!("command_line"))
    );

    let (code, _, why) = cli(&gateway, &["keys", "revoke", "key_0"]);
    assert!(code == Some(1) && why.contains("tokentriage keys list"), "{why}");
    let (code, _, why) = cli(&gateway, &["keys", "mint", "--node", "__global"]);
    assert!(code == Some(1) && why.contains("org:acme/team:ml"), "{why}");
}

#[test]
fn the_command_line_drives_a_running_replica_with_the_token_of_the_configuration() {
    let mock = Mock::start();
    let gateway = guarded(&mock).start();
    let url = format!("http://{}/", gateway.admin);
    let (code, minted, why) = cli(&gateway, &["keys", "mint", "--node", DEV1, "--json", "--admin", &url]);
    assert_eq!(code, Some(0), "{why}");
    let minted: Value = serde_json::from_str(&minted).expect("--json prints JSON");
    let key =
        Key { id: minted["id"].as_str().expect("an id").into(), secret: minted["key"].as_str().expect("a key").into() };
    gateway.post(&key, CHAT, &chat("mock")).expect(200); // at once
    gateway.wait_rows(1, SOON);
    let (_, listed, _) = cli(&gateway, &["keys", "list", "--json", "--admin", &url]);
    assert_eq!(serde_json::from_str::<Value>(&listed).expect("JSON")["keys"][0]["id"], json!(key.id));
    let (code, _, notes) = cli(&gateway, &["query", "--since", "1h", "--fleet", "--json", "--admin", &url]);
    assert!(code == Some(0) && notes.contains("1 of 1 replicas (fleet_of_one)"), "{notes}");
    assert_eq!(cli(&gateway, &["keys", "revoke", &key.id, "--admin", &url]).0, Some(0));
    gateway.post(&key, CHAT, &chat("mock")).expect(401);

    let (code, _, why) = cli(&gateway, &["keys", "list", "--admin", &url, "--admin-token-env", "TT_TEST_NOT_SET"]);
    assert!(code == Some(1) && why.contains("TT_TEST_NOT_SET is not set"), "{why}");
    let (code, _, why) = cli(&gateway, &["keys", "list", "--admin", &url, "--admin-token-env", "PATH"]);
    assert!(code == Some(1) && why.contains("the token is not valid"), "{why}");
    let (code, _, why) = cli(&gateway, &["keys", "list", "--admin", &format!("http://{}", mock::dead_port())]);
    assert!(code == Some(2) && why.contains("refused"), "{why}");
    assert!(!gateway.log_text().contains("hunter2"));
}

#[test]
fn the_command_line_and_the_port_give_the_same_answer() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).start();
    let key = gateway.mint(DEV1);
    for _ in 0..3 {
        gateway.post(&key, CHAT, &chat("mock")).expect(200);
    }
    gateway.wait_rows(3, SOON);
    let over_http = gateway.admin_get("/tt/api/v1/query?since=24h&group_by=node,model").expect(200).json();
    let (code, json, _) = cli(&gateway, &["query", "--since", "24h", "--group-by", "node,model", "--json"]);
    assert_eq!(code, Some(0));
    let from_files: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!((&from_files["groups"], &from_files["total"]), (&over_http["groups"], &over_http["total"]));
    assert_eq!(from_files["basis"], "ledger_files");

    let (_, csv, _) = cli(&gateway, &["query", "--group-by", "node,model", "--csv"]);
    let lines: Vec<&str> = csv.lines().collect();
    assert!(lines[0].starts_with("node,model,requests,refusals,"), "{csv}");
    assert_eq!(lines[1], format!("{DEV1},mock,3,0,0,3,300,120,180,0,30,0.001338,0"));
    let (_, table, notes) = cli(&gateway, &["query", "--group-by", "node,model"]);
    let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["NODE", "MODEL", "REQUESTS", "REFUSED", "ERRORS", "INPUT", "CACHED", "OUTPUT", "USD"]);
    assert_eq!(lines[1], [DEV1, "mock", "3", "0", "0", "300", "180", "120", "0.001338"]);
    assert_eq!(lines[2][0], "total");
    assert!(notes.contains("1 of 1 replicas (ledger_files)"), "{notes}");
    let (code, _, why) = cli(&gateway, &["query", "--fleet"]);
    assert!(code == Some(1) && why.contains("--admin"), "{why}");
    gateway.idle_check();
}

#[test]
fn an_amount_that_lacks_unpriced_calls_says_so_beside_itself() {
    let mock = Mock::start();
    let gateway = Setup::new().mock(&mock, r#"["mock*", "unpriced-*"]"#).start();
    let key = gateway.mint(DEV1);
    for model in ["mock", "unpriced-1", "unpriced-1"] {
        gateway.post(&key, CHAT, &chat(model)).expect(200);
    }
    gateway.wait_rows(3, SOON);
    let (_, table, _) = cli(&gateway, &["query", "--group-by", "model"]);
    let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    let ends = |line: usize| (lines[line][0], lines[line][1], lines[line][7], lines[line].get(8).copied());
    assert_eq!(ends(0), ("MODEL", "REQUESTS", "USD", Some("UNPRICED")), "{table}");
    let groups = [ends(1), ends(2)];
    assert!(groups.contains(&("unpriced-1", "2", "0", Some("2"))), "{table}");
    assert!(groups.contains(&("mock", "1", "0.000446", Some("0"))), "{table}");
    assert_eq!(ends(3), ("total", "3", "0.000446", Some("2")), "{table}");
}

/// What failed is an error wherever it failed; a refusal and a caller that left are none.
#[test]
fn an_answer_that_was_cut_is_an_error_of_the_query() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).limit("team_rpm", "rpm", "amount: 6, period: 24h").start();
    let key = gateway.mint(DEV1);
    gateway.post(&key, CHAT, &chat("mock")).expect(200);
    assert!(!gateway.stream(&key, CHAT, &chat_stream("mock+cut")).expect(200).finish().complete);
    gateway.post(&key, CHAT, &chat("mock+closenow")).expect(502);
    gateway.post(&key, CHAT, &chat("mock+status500")).expect(500);
    gateway.post(&key, CHAT, &chat("nobody-serves-it")).expect(404);
    drop(gateway.stream(&key, CHAT, &chat_stream("mock+slow500")).expect(200));
    gateway.post(&key, CHAT, &chat("mock")).expect(429);
    let mut outcomes: Vec<Value> = gateway.wait_rows(7, SOON).iter().map(|row| row.0["outcome"].clone()).collect();
    outcomes.sort_by_key(Value::to_string);
    let quoted = ["client_gone", "completed", "upstream_cut", "upstream_cut", "upstream_error"].map(Value::from);
    assert_eq!(outcomes, [quoted.as_slice(), &[Value::Null, Value::Null]].concat());
    let total = gateway.admin_get("/tt/api/v1/query?since=1h").expect(200).json()["total"].clone();
    assert_eq!(
        (&total["requests"], &total["refusals"], &total["errors"]),
        (&json!(7), &json!(1), &json!(4)),
        "{total}"
    );
    let (_, table, _) = cli(&gateway, &["query", "--since", "1h"]);
    let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!((lines[0][3], &lines[1][1..4]), ("ERRORS", &["7", "1", "4"][..]), "{table}");
    gateway.idle_check();
}

/// What a command ends with is what its caller acts upon: correct the command, or try again.
#[test]
fn what_an_admin_port_refuses_ends_with_1_and_what_fails_behind_it_with_2() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).start();
    let (statuses, next) = ([503, 500, 502, 409, 404, 401], std::sync::atomic::AtomicUsize::new(0));
    let commands: [&[&str]; 6] = [
        &["keys", "mint", "--node", DEV1],
        &["keys", "list"],
        &["keys", "revoke", "key_1"],
        &["fleet", "list"],
        &["fleet", "decommission", "tt-b"],
        &["query"],
    ];
    let port = Scripted::start(move |_| {
        let status = statuses[next.fetch_add(1, std::sync::atomic::Ordering::Relaxed) % statuses.len()];
        let error = json!({"type": "t", "message": format!("said {status}"), "remedy": "do this"});
        Answer::Keep(json_answer(status, &json!({"error": error})))
    });
    let url = format!("http://{}", port.addr);
    for command in commands {
        for status in statuses {
            let (code, stdout, stderr) = cli(&gateway, &[command, &["--admin", &url]].concat());
            let expected = if status >= 500 { 2 } else { 1 };
            assert_eq!((code, stdout.as_str()), (Some(expected), ""), "{command:?} on {status}: {stderr}");
            assert_eq!(stderr, format!("error: {url}: said {status}; do this"), "{command:?}");
        }
    }
}

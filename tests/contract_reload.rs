//! What a reload promises: no gate reads a new limit before the ledger is in it, and whoever asked is on record.

mod common;

use common::*;
use serde_json::json;

const RELOAD: &str = "/tt/api/v1/config/reload";

/// A budget that one healthy reply of the mock passes.
fn with_budget(setup: Setup, id: &str, period: &str) -> Setup {
    setup.limit(id, "budget_usd", &format!("amount_usd: 0.0004, period: {period}"))
}

/// Every round adds a budget that is spent already: the very first request after the answer to the reload is refused.
#[test]
fn a_budget_added_by_a_reload_knows_what_was_spent_before_its_first_request() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).start();
    let key = gateway.mint(DEV1);
    gateway.post(&key, CHAT, &chat("mock")).expect(200);
    gateway.wait_rows(1, SOON);
    for round in 0..20 {
        let id = format!("budget_{round}");
        gateway.reconfigure(&with_budget(Setup::with_mock(&mock), &id, ["day", "month", "year"][round % 3]));
        gateway.admin_post(RELOAD, &json!({})).expect(200);
        let refused = gateway.post(&key, CHAT, &chat("mock")).expect(429);
        let refused_by = refused.json()["error"]["refused_by"].clone();
        assert_eq!((&refused_by["limit_id"], &refused_by["observed"]), (&json!(id), &json!(0.000446)));
        // Without it, the same caller is served again.
        gateway.reconfigure(&Setup::with_mock(&mock));
        gateway.admin_post(RELOAD, &json!({})).expect(200);
    }
    gateway.post(&key, CHAT, &chat("mock")).expect(200);
    gateway.idle_check();
}

/// The rows lie in segments that were closed long ago, in a period that began before the process did.
#[test]
fn a_budget_added_by_a_reload_counts_closed_segments_too() {
    let mock = Mock::start();
    let folder = folder::Folder::new();
    let setup = Setup::with_mock(&mock).ledger("segment_bytes", "64KiB").data_dir(folder.path().join("data"));
    let gateway = setup.start();
    let key = gateway.mint(DEV1);
    let mut rows = 0;
    until("three segments", SOON, || {
        for _ in 0..40 {
            gateway.post(&key, CHAT, &chat("mock")).expect(200);
        }
        rows += 40;
        ledger::segments(&gateway.ledger_dir()).len() >= 3
    });
    assert!(gateway.stop(SOON).success());
    let gateway = setup.start();
    let budget = setup.clone().limit("late_budget", "budget_usd", "amount_usd: 0.0004, period: year");
    gateway.reconfigure(&budget);
    gateway.admin_post(RELOAD, &json!({})).expect(200);
    gateway.post(&key, CHAT, &chat("mock")).expect(429);
    assert_eq!(gateway.me(&key).limit("late_budget").used_nanousd(), rows * OPENAI_REPLY_NANOUSD);
    gateway.idle_check();
}

/// `kill -HUP` is a change like any other: it is in the audit, and so is the one that was refused.
#[test]
fn a_reload_by_signal_is_audited_and_a_new_budget_is_complete_with_it() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).start();
    let key = gateway.mint(DEV1);
    gateway.post(&key, CHAT, &chat("mock")).expect(200);
    gateway.wait_rows(1, SOON);
    let entries = || gateway.admin_get("/tt/api/v1/audit").expect(200).json()["entries"].clone();
    let reloads = || {
        let entries = entries();
        let list = entries.as_array().expect("entries").clone();
        list.into_iter().filter(|entry| entry["action"] == "config.reload").collect::<Vec<_>>()
    };
    gateway.reconfigure(&with_budget(Setup::with_mock(&mock), "team_budget", "year"));
    gateway.process.signal(libc::SIGHUP);
    until("the first verdict of the new budget", SOON, || {
        // No request between the old rules and the new ones finds an empty budget: once the limit is there, it refuses.
        let me = gateway.get(&key, "/tt/v1/me").expect(200).json();
        me["limits"].as_array().is_some_and(|limits| !limits.is_empty())
    });
    gateway.post(&key, CHAT, &chat("mock")).expect(429);
    until("the audit entry", SOON, || reloads().len() == 1);
    let first = reloads().remove(0);
    assert_eq!(first["who"], json!({"through": "signal", "name": "SIGHUP"}));
    assert_eq!((&first["outcome"], &first["what"]["warnings"]), (&json!("done"), &json!(0)));

    gateway.reconfigure(&Setup::with_mock(&mock).limit("team_rpm", "rpm", "amount: 0, period: 1h"));
    gateway.process.signal(libc::SIGHUP);
    until("the refused reload in the audit", SOON, || reloads().len() == 2);
    assert_eq!(reloads()[0]["outcome"], "refused");
    gateway.post(&key, CHAT, &chat("mock")).expect(429); // the running one stays in force
    gateway.idle_check();
}

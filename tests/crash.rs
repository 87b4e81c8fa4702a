//! kill -9 under load, again and again on one data folder: no torn row, no double row, no forgotten budget.

mod common;

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::folder::Folder;
use common::*;

const ROUNDS: usize = 20;
const CALLERS: usize = 8;

/// Every line of every segment, torn or not.
fn raw_lines(gateway: &Gateway) -> Vec<String> {
    let segments = ledger::segments(&gateway.ledger_dir());
    let texts = segments.iter().map(|path| String::from_utf8_lossy(&std::fs::read(path).unwrap()).into_owned());
    texts.flat_map(|text| text.split_inclusive('\n').map(str::to_owned).collect::<Vec<_>>()).collect()
}

/// Calls until the gateway is killed; gives the ids of answers that were read to their end, with their times, and when it
/// was killed.
fn load(gateway: &Gateway, key: &Key, stop: &AtomicBool) -> (Vec<(String, Instant)>, Instant) {
    let answered = Mutex::new(Vec::new());
    let killed = thread::scope(|scope| {
        for caller in 0..CALLERS {
            let answered = &answered;
            scope.spawn(move || {
                let body = if caller % 2 == 0 { chat("mock") } else { chat_stream("mock") };
                let request = Request::post(CHAT).key(&key.secret).json(&body);
                while !stop.load(Ordering::Relaxed) {
                    let Some(answer) = http::try_exchange(gateway.addr, &request) else { continue };
                    if answer.status == 200 {
                        answered.lock().unwrap().push((answer.request_id(), Instant::now()));
                    }
                }
            });
        }
        // enough rows to be in the middle of something
        let before = gateway.row_count();
        until("rows under load", SOON, || gateway.row_count() > before + 40);
        let killed = Instant::now();
        gateway.process.kill();
        stop.store(true, Ordering::Relaxed);
        killed
    });
    (answered.into_inner().unwrap(), killed)
}

fn survive(sync: &str, lost_at_most: Duration) {
    let mock = Mock::start();
    let folder = Folder::new();
    let setup = Setup::with_mock(&mock)
        .limit("team_budget", "budget_usd", "amount_usd: 1000, period: year")
        .limit("team_slots", "concurrency", "amount: 100")
        .ledger("sync", sync)
        .data_dir(folder.path().join("data"));
    let mut gateway = setup.start();
    let key = gateway.mint(DEV1);
    for round in 1..=ROUNDS {
        let (answered, killed) = load(&gateway, &key, &AtomicBool::new(false));
        // Only the very last line may be torn.
        let lines = raw_lines(&gateway);
        let torn = lines.iter().filter(|line| serde_json::from_str::<serde_json::Value>(line).is_err()).count();
        assert!(torn <= 1 && lines[..lines.len() - torn].iter().all(|line| line.ends_with('\n')), "round {round}");

        gateway = setup.start();
        let rows = gateway.rows();
        ledger::assert_no_doubles(&rows);
        let after = raw_lines(&gateway);
        assert!(after.iter().all(|line| line.ends_with('\n')), "round {round}: the torn line is cut off at boot");
        let me = gateway.me(&key);
        assert_eq!(
            me.limit("team_budget").used_nanousd(),
            ledger::cost(&rows),
            "round {round}: the budget is what the rows say"
        );
        assert_eq!(me.limit("team_slots").live(), 0, "round {round}: a gauge never persists");
        let booked: HashSet<&str> = rows.iter().map(Row::request_id).collect();
        for (id, at) in &answered {
            let safe = lost_at_most.is_zero() || killed.saturating_duration_since(*at) > lost_at_most;
            assert!(!safe || booked.contains(id.as_str()), "round {round}: {id} was answered and has no row");
        }
    }
    gateway.idle_check();
}

#[test]
fn kill_nine_with_group_commit_loses_at_most_what_the_kernel_did_not_have() {
    // Rows are handed to the kernel within milliseconds; half a second is far beyond it on a busy machine.
    survive("interval", Duration::from_millis(500));
}

#[test]
fn kill_nine_with_sync_always_loses_no_answered_request() {
    survive("always", Duration::ZERO);
}

#[test]
fn a_second_process_on_one_data_folder_refuses_to_start() {
    let mock = Mock::start();
    let folder = Folder::new();
    let setup = Setup::with_mock(&mock).data_dir(folder.path().join("data"));
    let first = setup.start();
    let key = first.mint(DEV1);
    let second_folder = Folder::new();
    let (second, _) = gateway::spawn(&setup, second_folder.path());
    let status = second.wait_exit(SOON);
    assert_eq!(status.code(), Some(2), "a runtime failure: {}", second.stderr.text());
    let log = second.stderr.text().to_lowercase();
    assert!(log.contains("lock") || log.contains("another process") || log.contains("in use"), "it says why: {log}");
    first.post(&key, CHAT, &chat("mock")).expect(200);
    first.idle_check();
    // and with the first one gone, the folder is free again
    first.process.kill();
    let third = setup.start();
    third.post(&key, CHAT, &chat("mock")).expect(200);
}

//! What must be true when it is over: nothing held, nothing leaked, every answer in a ledger, every count the sum of them.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::cluster::{fleet, health, in_touch};
use crate::common::*;

use super::{REPLICAS, Running, World, keys};

/// Files of the process, apart from the connections that it keeps to the provider: two more than before is no leak, a
/// store's connection may be on its way.
const MORE_FILES: usize = 2;
/// Blocking calls that wait for a store have threads of their own for some seconds.
const MORE_THREADS: usize = 4;
/// A quarter into a soak, buffers and pools are as large as they get; then memory grows by no more than this.
const GROWTH_PERCENT: u64 = 5;
const GROWTH_KIB: u64 = 6 << 10;
/// For all that takes a while to settle once everything is healed: a breaker's probe, a roster's window, a retry.
const SETTLED: Duration = Duration::from_secs(40);
/// Rows that a killed process had not handed to the system.
const UNWRITTEN: Duration = Duration::from_secs(2);

/// What the replica that is never touched had at first.
pub struct Leaks {
    files: usize,
    threads: usize,
    rss_kib: Option<u64>,
    rss_end_kib: u64,
}

impl Leaks {
    pub fn before(world: &World) -> Self {
        let first = world.running(0).expect("it runs");
        let request = Request::post(CHAT).key(&keys::usable(world).key.secret).json(&chat("mock"));
        for replica in world.all_running() {
            replica.gateway.send(&request).expect(200); // opens what is opened when it is needed
        }
        let rss_end_kib = first.gateway.process.memory_kib("VmRSS");
        Self { files: files(world, &first), threads: threads(&first), rss_kib: None, rss_end_kib }
    }

    /// Looks at it now and then for so long.
    pub fn watch(&mut self, world: &World, length: Duration) {
        let first = world.running(0).expect("it runs");
        let began = Instant::now();
        let mut shown = began;
        while began.elapsed() < length && world.pause(Duration::from_millis(200)) {
            self.rss_end_kib = first.gateway.process.memory_kib("VmRSS");
            if began.elapsed() > length / 4 {
                self.rss_kib.get_or_insert(self.rss_end_kib);
            }
            if shown.elapsed() > Duration::from_secs(30) {
                shown = Instant::now();
                world.tell(&format!(
                    "{} answers; the first replica has {} KiB, {} threads, {} files",
                    world.answers.lock().unwrap().len(),
                    self.rss_end_kib,
                    threads(&first),
                    first.gateway.process.open_files()
                ));
            }
        }
    }
}

/// Without the connections to the provider, which are kept for reuse.
fn files(world: &World, replica: &Running) -> usize {
    let process = &replica.gateway.process;
    let to_provider = process.peers().iter().filter(|(_, peer)| *peer == world.mock.addr).count();
    process.open_files().saturating_sub(to_provider)
}

fn threads(replica: &Running) -> usize {
    std::fs::read_dir(format!("/proc/{}/task", replica.gateway.process.pid)).map_or(0, Iterator::count)
}

pub fn assert_no_panic(replica: &Running) {
    let log = replica.gateway.log_text();
    assert!(!log.contains("panicked"), "a task of replica {} panicked:\n{log}", replica.nth);
}

pub fn all(world: &World, leaks: &Leaks) {
    let replicas = world.all_running();
    assert_eq!(replicas.len(), REPLICAS);
    replicas.iter().for_each(|replica| assert_no_panic(replica));
    for replica in &replicas {
        let gateway = &replica.gateway;
        until("nothing to be in flight", SETTLED, || gateway.metrics().sum("tokentriage_inflight") == Some(0.0));
        until("all leases to be back", SETTLED, || leases(gateway) == 0);
        until("nothing to be suspended", SETTLED, || {
            // An open breaker closes by a call that probes.
            let _ = gateway.post(&keys::usable(world).key, CHAT, &chat("mock"));
            health(gateway)["suspensions"] == json!([])
        });
        until("three live replicas", SETTLED, || fleet(gateway)["n_live"] == REPLICAS);
        assert_eq!(health(gateway)["breaker"]["state"], "closed");
    }
    keys::assert_known_everywhere(world);
    for replica in &replicas {
        // A scope that a replica has not met has no counter there.
        for user in super::USERS {
            let key = keys::usable_of(world, user);
            let status = replica.gateway.post(&key.key, CHAT, &chat("mock")).status;
            assert!(matches!(status, 200 | 429), "{status}");
        }
    }
    nothing_is_counted_twice(world);
    bring_abandoned_ledgers_back(world);
    sums(world);
    answers(world);
    for key in world.redis.keys() {
        let ttl_ms = world.redis.ask(&["PTTL", &key]).integer().unwrap();
        assert!(key.starts_with("tt:") && ttl_ms != -1, "{key}: {ttl_ms} ms");
    }
    let first = world.running(0).expect("it was never touched");
    until(&format!("no more files than the {} of the beginning", leaks.files), SETTLED, || {
        files(world, &first) <= leaks.files + MORE_FILES
    });
    let more = threads(&first).saturating_sub(leaks.threads);
    assert!(more <= MORE_THREADS, "{more} threads more than at first");
    let (before, after) = (leaks.rss_kib.unwrap_or(leaks.rss_end_kib), leaks.rss_end_kib);
    world.tell(&format!("memory of the first replica: {before} KiB after a quarter, {after} KiB at the end"));
    assert!(after <= before + before * GROWTH_PERCENT / 100 + GROWTH_KIB, "{before} KiB became {after} KiB");
}

/// In flight in all scopes of all limits.
fn leases(gateway: &Gateway) -> u64 {
    let limits = gateway.admin_get("/tt/api/v1/governance/limits").expect(200).json();
    let scopes = limits["limits"].as_array().expect("a list").iter().flat_map(|limit| limit["scopes"].as_array());
    scopes.flatten().filter_map(|scope| scope["live"].as_u64()).sum()
}

type Meters = BTreeMap<(String, String), u64>;

/// What the limits API of a replica shows as used, in whole units: nano-USD, tokens, requests.
fn meters(gateway: &Gateway) -> Meters {
    let limits = gateway.admin_get("/tt/api/v1/governance/limits").expect(200).json();
    let mut meters = Meters::new();
    for limit in limits["limits"].as_array().expect("a list") {
        let scale = if limit["type"] == "budget_usd" { 1e9 } else { 1.0 };
        for scope in limit["scopes"].as_array().expect("a list") {
            let Some(used) = scope["used"].as_f64() else { continue };
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            meters.insert((text(&limit["id"]), text(&scope["node"])), (used * scale).round() as u64);
        }
    }
    meters
}

fn told(world: &World) -> Vec<Meters> {
    world.all_running().iter().map(|replica| meters(&replica.gateway)).collect()
}

fn all_rows(world: &World) -> Vec<Row> {
    let ledgers = world.ledgers.lock().unwrap().clone();
    ledgers.values().flat_map(|data_dir| ledger::rows(&data_dir.join("ledger"))).collect()
}

/// What all ledgers there ever were add up to.
fn spent(world: &World) -> Meters {
    let mut sums = Meters::new();
    for row in all_rows(world) {
        let node = row["node"].as_str().unwrap_or_default().to_owned();
        let parents = node.match_indices('/').map(|(at, _)| node[..at].to_owned()).chain([node.clone()]);
        let mut add = |limit: &str, node: String, amount: u64| {
            *sums.entry((limit.to_owned(), node)).or_default() += amount;
        };
        for at in parents {
            match at.as_str() {
                "org:acme" => add("acme_tokens", at, row.tokens()),
                "org:acme/team:ml" => add("ml_usd", at, row.cost().unwrap_or(0)),
                user if user.contains("user:") => add("user_requests", at, u64::from(row.decision() == "admitted")),
                _ => {}
            }
        }
    }
    sums
}

/// Whatever was killed, restarted under another name, or lost by the store.
fn nothing_is_counted_twice(world: &World) {
    let (told, spent) = (told(world), spent(world));
    for (replica, meters) in world.all_running().iter().zip(told) {
        for (scope, used) in meters {
            let most = spent.get(&scope).copied().unwrap_or(0);
            assert!(used <= most, "seed {}: replica {} counts {used} of {most} in {scope:?}", world.seed, replica.nth);
        }
    }
}

/// A ledger that nobody runs on is known as far as it was published to a store that has not lost it since: what was burned
/// in the last second before a kill, or during an outage, comes to light when its ledger does.
fn bring_abandoned_ledgers_back(world: &World) {
    let in_use: Vec<String> = world.all_running().iter().map(|replica| replica.ledger.clone()).collect();
    let abandoned: Vec<String> =
        world.ledgers.lock().unwrap().keys().filter(|ledger| !in_use.contains(ledger)).cloned().collect();
    for ledger in &abandoned {
        let replica = world.launch(&format!("tt-back-{ledger}"), ledger);
        in_touch(&replica.gateway);
        assert!(replica.gateway.stop(SOON).success());
        assert_no_panic(&replica);
    }
    world.tell(&format!("{} abandoned ledgers were brought back", abandoned.len()));
}

/// Every replica's meters are the sum of all ledgers.
fn sums(world: &World) {
    let mut seen = (told(world), spent(world));
    let until = Instant::now() + SETTLED;
    while seen.0.iter().any(|meters| *meters != seen.1) {
        assert!(
            Instant::now() < until,
            "seed {}: the ledgers' sums {:#?}\nthe meters {:#?}",
            world.seed,
            seen.1,
            seen.0
        );
        std::thread::sleep(Duration::from_millis(200)); // the pause between two looks
        seen = (told(world), spent(world));
    }
    world.tell(&format!("every replica's meters are the ledgers' sums: {:?}", seen.1));
}

/// Every answer has its row, and the row says what the caller was told.
fn answers(world: &World) {
    let mut rows = HashMap::new();
    let (mut reasons, mut latest) = (BTreeMap::<String, u64>::new(), Vec::new());
    for row in all_rows(world) {
        for reason in row["suspended_reasons"].as_object().into_iter().flat_map(|reasons| reasons.values()) {
            *reasons.entry(reason.as_str().unwrap_or_default().to_owned()).or_default() += 1;
        }
        latest.push(row.number("overhead_us"));
        let id = row.request_id().to_owned();
        assert!(rows.insert(id.clone(), row).is_none(), "two rows of {id}");
    }
    let answers = world.answers.lock().unwrap();
    let (mut by_status, mut lost) = (BTreeMap::<u16, u64>::new(), 0);
    for answer in answers.iter() {
        *by_status.entry(answer.status).or_default() += 1;
        let Some(row) = rows.get(&answer.request_id) else {
            let is_excused = killed_after(world, answer.nth).is_some_and(|killed| killed - answer.at < UNWRITTEN);
            assert!(is_excused, "seed {}: no row of {} (replica {})", world.seed, answer.request_id, answer.nth);
            lost += 1;
            continue;
        };
        assert_eq!(row.number("status"), u64::from(answer.status), "{}", row.0);
        let is_suspended = row["suspended"].as_array().is_some_and(|limits| !limits.is_empty());
        assert_eq!(is_suspended, answer.is_suspended, "{}", row.0);
    }
    latest.sort_unstable();
    let at = |percent: usize| latest.get(latest.len() * percent / 100).copied().unwrap_or(0);
    world.tell(&format!(
        "{} rows; answers {by_status:?}, {lost} of them without a row because their replica was killed; suspended for \
         {reasons:?}; the gateway's own time p50 {} µs, p99 {} µs, at most {} µs",
        rows.len(),
        at(50),
        at(99),
        latest.last().copied().unwrap_or(0)
    ));
    assert!(!reasons.contains_key("replica_id_conflict"), "no two processes had one name at a time: {reasons:?}");
    assert!(world.faults_are_over.load(Ordering::Acquire));
}

/// When the process was killed.
fn killed_after(world: &World, nth: usize) -> Option<Instant> {
    world.killed.lock().unwrap().get(&nth).copied()
}

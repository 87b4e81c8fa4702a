//! How a replica leaves: it tells Redis what it burned last and says goodbye, and waits for one that gives no answer no longer
//! than it said it would, or than an operator wants. Needs redis-server.

mod common;

use std::net::TcpStream;
use std::time::{Duration, Instant};

use common::cluster::{health, in_touch};
use common::*;

const BUDGET: &str = "amount: 100, period: month";
/// A stop waits 1 s for a Redis that gives no answer; the rest is what a busy machine needs to end a process.
const SILENT: Duration = Duration::from_millis(2_000);
/// As long as it waits for nothing.
const AT_ONCE: Duration = Duration::from_millis(700);
const UNHEARD: &str = "burn that peers did not hear of; it is in the ledger";
const NO_GOODBYE: &str = "peers did not hear the goodbye";

/// A replica that beats once a minute: what became of Redis since, it does not know.
fn unaware(cluster: &Cluster) -> (Gateway, Key) {
    let replica = cluster.seldom_beating("tt-a").start();
    in_touch(&replica);
    let key = cluster.mint(&replica, DEV1);
    (replica, key)
}

/// Burns something that Redis, which is away, cannot hear of.
fn burn(replica: &Gateway, key: &Key) {
    let answer = replica.post(key, CHAT, &chat("mock")).expect(200);
    replica.row(&answer.head);
}

/// Waits for the end of a stop that began at `told`; how long it took.
#[track_caller]
fn ended(replica: &Gateway, told: Instant) -> Duration {
    let status = replica.process.wait_exit(SOON);
    let took = told.elapsed();
    assert_eq!(status.code(), Some(0), "{}", replica.log_text());
    assert!(!replica.data_dir.join("running").exists(), "a clean stop");
    let log = replica.log_text();
    assert!(log.lines().last().is_some_and(|line| line.contains("\"stopped\"")), "{log}");
    took
}

#[test]
fn a_stop_waits_for_a_frozen_redis_no_longer_than_a_second_and_loses_nothing() {
    let cluster = Cluster::start(|setup| setup.limit("team_requests", "quota_requests", BUDGET));
    let (a, key) = unaware(&cluster);
    cluster.redis.freeze();
    burn(&a, &key);
    let told = Instant::now();
    a.process.terminate();
    let took = ended(&a, told);
    assert!(took < SILENT, "{took:?}: {}", a.log_text());
    assert!(a.log_text().contains(UNHEARD) && a.log_text().contains(NO_GOODBYE), "{}", a.log_text());
    // The next start tells it.
    cluster.redis.thaw();
    let (again, peer) = (cluster.replica("tt-a"), cluster.replica("tt-b"));
    assert_eq!(health(&again)["ledger"]["last_stop"]["clean"], true);
    until("a peer to hear of it", SOON, || peer.me(&key).limit("team_requests").used() == 1.0);
}

#[test]
fn a_second_signal_ends_the_goodbye_at_once() {
    let cluster = Cluster::start(|setup| setup.limit("team_requests", "quota_requests", BUDGET));
    for second in [libc::SIGTERM, libc::SIGINT] {
        let (a, key) = unaware(&cluster);
        cluster.redis.freeze();
        burn(&a, &key);
        a.process.terminate();
        // The admin port ends with the drain; a signal before would cut connections.
        until("the drain to be over", SOON, || TcpStream::connect(a.admin).is_err());
        let told = Instant::now();
        a.process.signal(second);
        let took = ended(&a, told);
        let log = a.log_text();
        assert!(log.contains("told to stop again: the goodbye to the shared store is cut short"), "{log}");
        assert!(took < AT_ONCE, "{took:?}: {log}");
        assert!(log.contains(UNHEARD), "{log}");
        cluster.redis.thaw();
    }
}

/// Nobody has to find out again what everybody knows.
#[test]
fn a_stop_hardly_waits_for_a_redis_that_is_known_to_be_away() {
    let cluster = Cluster::start(|setup| setup.limit("team_requests", "quota_requests", BUDGET));
    for is_dead in [false, true] {
        let a = cluster.replica("tt-a");
        let key = cluster.mint(&a, DEV1);
        if is_dead {
            cluster.redis.kill()
        } else {
            cluster.redis.freeze()
        }
        burn(&a, &key);
        until("it to be known", SOON, || !health(&a)["exchange"]["trouble"].is_null());
        let told = Instant::now();
        a.process.terminate();
        let took = ended(&a, told);
        assert!(took < AT_ONCE, "{took:?}: {}", a.log_text());
        assert!(a.log_text().contains(UNHEARD) && a.log_text().contains(NO_GOODBYE), "{}", a.log_text());
        cluster.redis.thaw();
    }
}

/// Each answer takes 150 ms: thirty times what an admission waits, and what a Redis on another continent takes.
#[test]
fn a_redis_that_is_slow_hears_the_last_burn_and_the_goodbye() {
    let (mock, redis) = (Mock::start(), RedisServer::start());
    let proxy = TcpProxy::to(redis.addr);
    let setup = Setup::with_mock(&mock).redis(&proxy.address()).limit("team_requests", "quota_requests", BUDGET);
    let setup = setup.limit("team_rpm", "rpm", "amount: 100, period: 1h, store: redis");
    let a = setup.replica("tt-slow").start();
    in_touch(&a);
    let key = a.mint(DEV1);
    proxy.set(Mood::Slow(Duration::from_millis(150)));
    // The breaker opens, and says nothing of what heartbeats and burn have time for.
    until("the breaker to open", SOON, || {
        burn(&a, &key);
        health(&a)["breaker"]["state"] == "open"
    });
    burn(&a, &key);
    let rows = a.row_count();
    let told = Instant::now();
    a.process.terminate();
    let took = ended(&a, told);
    println!("with 150 ms a round trip it took {took:?}");
    let log = a.log_text();
    assert!(!log.contains(UNHEARD) && !log.contains(NO_GOODBYE), "{log}");
    let cells = redis.keys().into_iter().find(|key| key.starts_with("tt:{burn}:cells:")).expect("burn");
    let cell = redis.ask(&["HVALS", &cells]);
    let text = format!("{:?}", cell.array().and_then(|cells| cells.first()?.bytes().map(String::from_utf8_lossy)));
    assert!(text.contains(&format!("{rows} {rows} ")), "{rows} rows: {text}");
    let beat = redis.ask(&["HGET", "tt:{fleet}:roster", "tt-slow"]);
    assert!(String::from_utf8_lossy(beat.bytes().unwrap_or_default()).contains(" drained "), "{beat:?}");
}

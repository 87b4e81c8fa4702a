//! Postgres fails under running replicas: restarted, frozen, cut off, its notifications lost.
//!
//! The promises are in real seconds (a second with the doorbell, 30 without, stale after 60), so these tests take that
//! long; what can go wrong at the same time goes wrong in the same test. The rest is in `fleet_identity` and, on a virtual
//! clock, in the unit tests of the identity thread.

mod common;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::*;
use serde_json::{Value, json};

/// The published bounds.
const REVOCATION_BOUND: Duration = Duration::from_secs(30);
const STALENESS_BOUND: Duration = Duration::from_secs(60);

fn replica(mock: &Mock, name: &str, dsn: &str) -> Gateway {
    let gateway = Setup::with_mock(mock).require_key().replica(name).postgres(dsn).start();
    until("the replica to be ready", SOON, || gateway.admin_get("/readyz").status == 200);
    gateway
}

fn status(gateway: &Gateway, key: &Key) -> u16 {
    gateway.get(key, "/tt/v1/me").status
}

fn is_stale(gateway: &Gateway) -> bool {
    identity(gateway)["stale"] == true
}

fn identity(gateway: &Gateway) -> Value {
    gateway.admin_get("/tt/api/v1/governance/health").expect(200).json()["identity"].clone()
}

/// Asks with a good key all the time, until it is told to stop, and counts what was not answered with 200.
fn hammer(gateway: &Gateway, key: &Key, stop: &AtomicBool, failed: &AtomicUsize, served: &AtomicUsize) {
    while !stop.load(Ordering::Acquire) {
        match gateway.post(key, CHAT, &chat("mock")).status {
            200 => served.fetch_add(1, Ordering::AcqRel),
            _ => failed.fetch_add(1, Ordering::AcqRel),
        };
        std::thread::sleep(Duration::from_millis(20)); // a caller's pace, not an order of events
    }
}

/// Cases C37 and C38: the doorbell is lost in every way it can be, under load.
#[test]
fn c38_a_revocation_holds_however_the_doorbell_was_lost() {
    let (mock, mut postgres) = (Mock::start(), PostgresServer::start());
    let proxy = PgProxy::start(postgres.port);
    let a = replica(&mock, "tt-a", &postgres.dsn());
    let deaf = replica(&mock, "tt-deaf", &postgres.dsn_through(&proxy));
    let keys: Vec<Key> = (0..4).map(|_| a.mint(DEV1)).collect();
    let [good, unheard, in_the_gap, later] = keys.as_slice() else { unreachable!("four were minted") };
    for gateway in [&a, &deaf] {
        until("the keys to be known", PROMPTLY, || keys.iter().all(|key| status(gateway, key) == 200));
    }
    let (stop, failed, served) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for gateway in [&a, &deaf] {
            scope.spawn(|| hammer(gateway, good, &stop, &failed, &served));
        }

        // Swallowed on the way, on a connection that works otherwise.
        proxy.lose_notifications();
        a.revoke(unheard);
        assert_eq!(status(&a, unheard), 401, "at once where it was revoked");
        let began = Instant::now();
        until("the revocation to be noticed", REVOCATION_BOUND, || status(&deaf, unheard) == 401);
        println!("notification swallowed: refused after {:?}", began.elapsed());
        assert!(proxy.lost() > 0, "there was something to lose");

        // The listener is killed, and the key is revoked while nobody listens.
        postgres.sql(&format!(
            "BEGIN; SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'tokentriage/%'; \
             UPDATE tokentriage_keys SET revoked_ms = 1 WHERE id = '{}'; COMMIT",
            in_the_gap.id
        ));
        let began = Instant::now();
        for gateway in [&a, &deaf] {
            until("the gap to be closed", PROMPTLY, || status(gateway, in_the_gap) == 401);
        }
        println!("listener terminated: refused after {:?}", began.elapsed());

        // The server is restarted. Nobody hears of it, and nobody is refused meanwhile.
        postgres.stop();
        assert_eq!((status(&a, good), status(&deaf, good)), (200, 200));
        postgres.boot();
        let began = Instant::now();
        for gateway in [&a, &deaf] {
            until("the keys to be followed again", SOON, || identity(gateway)["trouble"].is_null());
        }
        println!("restarted: followed again after {:?}", began.elapsed());
        a.revoke(later);
        until("the revocation to be noticed", REVOCATION_BOUND, || status(&deaf, later) == 401);
        stop.store(true, Ordering::Release);
    });
    let (failed, served) = (failed.into_inner(), served.into_inner());
    assert!(failed == 0 && served > 100, "{failed} of {served} requests with a good key failed");
    assert!(!is_stale(&a) && !is_stale(&deaf));
}

/// The server is frozen for one replica, the network gone for another, and a hole for a third: all serve what they know, say so after a minute,
/// and recover by themselves.
#[test]
fn a_frozen_or_unreachable_postgres_costs_promptness_and_no_request() {
    let mock = Mock::start();
    let (frozen_server, reachable_server) = (PostgresServer::start(), PostgresServer::start());
    let proxy = PgProxy::start(reachable_server.port);
    let hole = PgProxy::start(reachable_server.port);
    let frozen = replica(&mock, "tt-frozen", &frozen_server.dsn());
    let swallowed = replica(&mock, "tt-swallowed", &reachable_server.dsn_through(&hole));
    let cut = replica(&mock, "tt-cut", &reachable_server.dsn_through(&proxy));
    let other = replica(&mock, "tt-other", &reachable_server.dsn());
    let (key, on_cut, doomed) = (frozen.mint(DEV1), other.mint(DEV1), other.mint(DEV1));
    until("the keys to be known", PROMPTLY, || {
        [&cut, &swallowed].iter().all(|gateway| status(gateway, &on_cut) == 200 && status(gateway, &doomed) == 200)
    });

    let (stop, failed, served) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    let threads =
        |gateway: &Gateway| std::fs::read_dir(format!("/proc/{}/task", gateway.process.pid)).map_or(0, Iterator::count);
    let threads_before = threads(&frozen);
    std::thread::scope(|scope| {
        scope.spawn(|| hammer(&frozen, &key, &stop, &failed, &served));
        scope.spawn(|| hammer(&cut, &on_cut, &stop, &failed, &served));
        scope.spawn(|| hammer(&swallowed, &on_cut, &stop, &failed, &served));
        frozen_server.freeze();
        proxy.cut();
        hole.swallow();
        let began = Instant::now();

        // An administrator learns that nothing can be changed, and does not wait for ever.
        let mint = frozen.admin_post("/tt/api/v1/keys", &json!({"node": DEV1}));
        assert!(matches!(mint.status, 503 | 504), "{}", mint.text());
        assert!(began.elapsed() < Duration::from_secs(25), "{:?}", began.elapsed());
        let mint = cut.admin_post("/tt/api/v1/keys", &json!({"node": DEV1}));
        assert_eq!(mint.json()["error"]["type"], "store_unavailable", "{}", mint.text());
        // What happens elsewhere meanwhile cannot be known here.
        other.revoke(&doomed);
        let minted_elsewhere = other.mint(DEV1);

        let fresh = |gateway: &Gateway, key: &Key| {
            let answer = gateway.post(key, CHAT, &chat("mock")).expect(200);
            answer.header("x-tt-coordination").is_none()
        };
        assert!(fresh(&frozen, &key) && fresh(&cut, &on_cut), "not said before it is so");
        for (gateway, key) in [(&frozen, &key), (&cut, &on_cut), (&swallowed, &on_cut)] {
            until("the keys to be called stale", STALENESS_BOUND + Duration::from_secs(5), || is_stale(gateway));
            // The last look was at most a retry (3.75 s) before the fault.
            let age = began.elapsed();
            assert!(age > STALENESS_BOUND - Duration::from_secs(5), "stale after {age:?}");
            let answer = gateway.post(key, CHAT, &chat("mock")).expect(200);
            assert_eq!(answer.header("x-tt-coordination"), Some("suspended"));
            let row = gateway.row(&answer);
            assert_eq!(row["suspended"], json!(["__identity"]), "{}", row.0);
            let health = gateway.admin_get("/tt/api/v1/governance/health").expect(200).json();
            assert_eq!(health["suspensions"][0]["limit_id"], "__identity", "{health}");
            assert_eq!(health["identity"]["seeded"], true);
            let metrics = gateway.metrics();
            assert_eq!(metrics.sum_where("tokentriage_suspended", &["limit=\"__identity\""]), Some(1.0));
            assert!(metrics.sum("tokentriage_identity_age_seconds").is_some_and(|age| age >= 60.0));
            assert_eq!(gateway.admin_get("/readyz").status, 200, "it serves, so traffic may come");
        }
        println!("said to be stale after {:?}", began.elapsed());
        assert_eq!(status(&cut, &doomed), 200, "not known to be revoked, and disclosed");
        let unknown = cut.post(&minted_elsewhere, CHAT, &chat("mock")).expect(503);
        assert_eq!(unknown.json()["error"]["code"], "identity_unavailable", "nobody knows that it is bad");
        assert!(threads(&frozen) <= threads_before + 2, "{} threads, before {threads_before}", threads(&frozen));

        frozen_server.thaw();
        proxy.mend();
        hole.mend();
        let began = Instant::now();
        for gateway in [&frozen, &cut, &swallowed] {
            until("the keys to be fresh again", SOON, || !is_stale(gateway));
        }
        println!("fresh again after {:?}", began.elapsed());
        assert_eq!((status(&cut, &doomed), status(&cut, &minted_elsewhere)), (401, 200));
        assert!(fresh(&frozen, &key) && fresh(&cut, &on_cut));
        stop.store(true, Ordering::Release);
    });
    let (failed, served) = (failed.into_inner(), served.into_inner());
    assert!(failed == 0 && served > 1_000, "{failed} of {served} requests with a good key failed");
    frozen.revoke(&key);
    assert_eq!(status(&frozen, &key), 401);
}

/// A replica starts while nothing comes back from Postgres' address, not even a connection: it says that it knows nobody,
/// an operator is not kept waiting for ever, and it follows the keys as soon as it can.
#[test]
fn a_postgres_that_cannot_even_be_connected_to_is_waited_for_and_found() {
    let (mock, postgres) = (Mock::start(), PostgresServer::start());
    let hole = TcpProxy::unreachable(([127, 0, 0, 1], postgres.port).into());
    let dsn = format!("{}?sslmode=disable", postgres.dsn_on(hole.addr.port()));
    let known = replica(&mock, "tt-well", &postgres.dsn()).mint(DEV1);
    let gateway = Setup::with_mock(&mock).require_key().replica("tt-deaf").postgres(&dsn).start();
    let refused = gateway.post(&known, CHAT, &chat("mock")).expect(503);
    assert_eq!(refused.json()["error"]["code"], "identity_unavailable");
    let began = Instant::now();
    let mint = gateway.admin_post("/tt/api/v1/keys", &json!({"node": DEV1}));
    assert!(matches!(mint.status, 503 | 504), "{}", mint.text());
    assert!(began.elapsed() < Duration::from_secs(25), "{:?}", began.elapsed());
    hole.hear();
    until("the key to be known", Duration::from_secs(20), || status(&gateway, &known) == 200);
    gateway.mint(DEV1);
}

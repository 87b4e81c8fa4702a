//! `store: share`: a limit split over the live replicas of one real Redis. Needs redis-server.

mod common;

use std::sync::atomic::{AtomicUsize, Ordering};

use common::cluster::{WINDOW, fleet, in_touch, wait_state};
use common::*;

const SHARE: &str = "amount: 600, period: 1h, store: share";

/// How many of `attempts` a replica admits.
fn admitted(replica: &Gateway, key: &Key, attempts: usize) -> usize {
    let admitted = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..attempts / 4 {
                    let status = replica.post(key, CHAT, &chat("mock")).status;
                    assert!(matches!(status, 200 | 429), "{status}");
                    admitted.fetch_add(usize::from(status == 200), Ordering::Relaxed);
                }
            });
        }
    });
    admitted.load(Ordering::Relaxed)
}

#[test]
fn six_hundred_over_three_replicas_are_two_hundred_each_and_no_more_than_two_over() {
    let cluster = Cluster::start(|setup| setup.limit("team_share", "rpm", SHARE));
    let a = cluster.replica("tt-a");
    let key = cluster.mint(&a, DEV1);
    let (b, c) = (cluster.replica("tt-b"), cluster.replica("tt-c"));
    let all = [&a, &b, &c];
    cluster.wait_live(&all, 3, SOON);
    for replica in all {
        let limit = replica.me(&key).limit("team_share");
        assert_eq!((limit.amount(), &limit.0["enforcement"]["live"]["n_live"]), (200.0, &3.into()), "{}", limit.0);
        assert_eq!(limit.0["enforcement"]["mode"], "share");
        let limits = replica.admin_get("/tt/api/v1/governance/limits").expect(200).json();
        assert_eq!((&limits["n_live"], &limits["limits"][0]["effective_amount"]), (&3.into(), &200.into()));
        assert_eq!(replica.metrics().sum("tokentriage_fleet_live"), Some(3.0));
    }
    let served = a.post(&key, CHAT, &chat("mock")).expect(200);
    assert_eq!(served.header("x-ratelimit-limit-requests"), Some("200"));
    assert_eq!(served.header("x-tt-coordination"), None);
    let sums: usize = std::thread::scope(|scope| {
        let threads = all.map(|replica| {
            let key = &key;
            scope.spawn(move || admitted(replica, key, 240))
        });
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    // 200 an hour come back at one in 18 s; the run takes a few.
    let total = sums + 1;
    assert!((598..=606).contains(&total), "{total} of 600 over three replicas");
}

#[test]
fn a_replica_that_joins_or_leaves_changes_the_share_without_a_reset() {
    let cluster = Cluster::start(|setup| {
        let setup = setup.limit("team_share", "rpm", SHARE);
        setup.limit("team_slots", "concurrency", "amount: 5, store: share")
    });
    let a = cluster.replica("tt-a");
    let key = cluster.mint(&a, DEV1);
    cluster.wait_live(&[&a], 1, SOON);
    for _ in 0..100 {
        a.post(&key, CHAT, &chat("mock")).expect(200);
    }
    let remaining = |replica: &Gateway| replica.me(&key).limit("team_share").remaining();
    assert!((500.0..=502.0).contains(&remaining(&a)));
    let b = cluster.replica("tt-b");
    cluster.wait_live(&[&a, &b], 2, SOON);
    // What was used stays used: 100 of 600 an hour is 600 s of backlog, which is 50 of 300.
    assert!((248.0..=253.0).contains(&remaining(&a)), "{}", remaining(&a));
    assert_eq!(a.me(&key).limit("team_slots").amount(), 3.0, "five slots over two, rounded up");
    assert!(b.stop(SOON).success());
    // A clean stop leaves at once, not after the window.
    wait_state(&a, "tt-b", "drained");
    cluster.wait_live(&[&a], 1, WINDOW);
    assert!((499.0..=505.0).contains(&remaining(&a)), "{}", remaining(&a));
    assert_eq!(fleet(&a)["n_total"], 2);
}

#[test]
fn killing_one_of_three_widens_the_others_share_within_the_liveness_window() {
    let cluster = Cluster::start(|setup| setup.limit("team_share", "rpm", SHARE));
    let a = cluster.replica("tt-a");
    let key = cluster.mint(&a, DEV1);
    let (b, c) = (cluster.replica("tt-b"), cluster.replica("tt-c"));
    cluster.wait_live(&[&a, &b, &c], 3, SOON);
    c.process.kill();
    // The window, one heartbeat, and a second for the machine.
    cluster.wait_live(&[&a, &b], 2, WINDOW + std::time::Duration::from_millis(1_500));
    for replica in [&a, &b] {
        assert_eq!(replica.me(&key).limit("team_share").amount(), 300.0);
    }
}

#[test]
fn a_stale_membership_widens_to_the_full_amount_says_so_and_recovers_by_itself() {
    let cluster = Cluster::start(|setup| setup.limit("team_share", "rpm", SHARE));
    let a = cluster.replica("tt-a");
    let key = cluster.mint(&a, DEV1);
    let b = cluster.replica("tt-b");
    cluster.wait_live(&[&a, &b], 2, SOON);
    cluster.redis.freeze();
    until("the membership to be stale", SOON, || a.me(&key).limit("team_share").amount() == 600.0);
    let served = a.post(&key, CHAT, &chat("mock")).expect(200);
    assert_eq!(served.header("x-tt-coordination"), Some("suspended"));
    assert_eq!(served.header("x-ratelimit-limit-requests"), Some("600"));
    assert_eq!(a.row(&served.head).0["suspended_reasons"]["team_share"], "membership_stale");
    let limit = a.me(&key).limit("team_share").0;
    assert!(
        limit["enforcement"]["bound"].as_str().unwrap().starts_with("membership_stale: N decayed to self"),
        "{limit}"
    );
    let roster = fleet(&a);
    assert_eq!((&roster["degraded"], &roster["n_live"], &roster["n_total"]), (&true.into(), &1.into(), &2.into()));
    assert!(roster["as_of"].is_string());
    cluster.redis.thaw();
    in_touch(&a);
    cluster.wait_live(&[&a, &b], 2, SOON);
    assert_eq!(a.post(&key, CHAT, &chat("mock")).expect(200).header("x-tt-coordination"), None);
}

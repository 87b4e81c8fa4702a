//! Budgets and quotas of several replicas on one real Redis: what one burned, the others refuse on. Needs redis-server.

mod common;

use std::time::{Duration, Instant};

use common::cluster::{fleet, health, in_touch, standing, wait_state};
use common::*;
use serde_json::{Value, json};

/// Own burn is published within a second and looked for twice a second.
const WITHIN: Duration = Duration::from_secs(2);

#[test]
fn a_replica_that_burned_nothing_refuses_on_its_peers_burn_within_two_seconds() {
    let cluster = Cluster::start(|setup| {
        setup
            .limit_on("org:a", "a_usd", "budget_usd", "amount_usd: 0.0008, period: month")
            .limit_on("org:b", "b_tokens", "quota_tokens", "amount: 200, period: day")
            .limit_on("org:c", "c_requests", "quota_requests", "amount: 2, period: week")
    });
    let a = cluster.replica("tt-a");
    let keys = ["org:a", "org:b", "org:c"].map(|node| cluster.mint(&a, node));
    let b = cluster.replica("tt-b");
    for key in &keys {
        a.post(key, CHAT, &chat("mock")).expect(200);
        a.post(key, CHAT, &chat("mock")).expect(200);
    }
    let began = Instant::now();
    for (key, (limit, kind)) in keys.iter().zip([
        ("a_usd", "budget_exceeded"),
        ("b_tokens", "quota_exceeded"),
        ("c_requests", "quota_exceeded"),
    ]) {
        b.wait_exhausted(key, limit);
        let refused = b.post(key, CHAT, &chat("mock")).expect(429);
        assert_eq!(refused.header("x-tt-refused-by"), Some(limit));
        assert_eq!(refused.header("x-tt-coordination"), None, "nothing is suspended");
        let error = &refused.json()["error"];
        assert_eq!(error["type"], kind);
        let bound = &error["enforcement"]["bound"];
        assert!(bound["convergence_lag_rows"].is_u64() && bound["convergence_age_ms"].is_u64(), "{bound}");
        assert!(error["enforcement"]["suspended"].is_null(), "{error}");
    }
    assert!(began.elapsed() < WITHIN, "it took {:?}", began.elapsed());
    assert_eq!(b.me(&keys[0]).limit("a_usd").used_nanousd(), 2 * OPENAI_REPLY_NANOUSD);
    let enforcement = &b.me(&keys[0]).limit("a_usd").0["enforcement"];
    assert_eq!(enforcement["mode"], "converging", "{enforcement}");
    // Nothing that a tenant would recognise is in the shared store, and nothing lives for ever.
    for key in cluster.redis.keys() {
        assert!(key.starts_with("tt:") && !key.contains("org"), "{key}");
        let ttl_ms = cluster.redis.ask(&["PTTL", &key]).integer().unwrap();
        assert!(ttl_ms > 0, "{key} has PTTL {ttl_ms}");
    }
    for replica in [&a, &b] {
        let health = health(replica);
        assert_eq!(health["capability"]["shared_state_enabled"], true);
        assert!(health["exchange"]["age_ms"].as_u64().unwrap() < 5_000, "{health}");
    }
    let seen = health(&b);
    let peers = seen["convergence"].as_array().unwrap();
    let of_budget = peers.iter().find(|peer| peer["limit_id"] == "a_usd").unwrap();
    assert_eq!((&of_budget["replica"], &of_budget["state"]), (&json!("tt-a"), &json!("live")), "{of_budget}");
    assert_eq!(of_budget["burn"].as_f64(), Some(0.000892), "{of_budget}");
    assert!(b.metrics().sum("tokentriage_convergence_age_seconds").is_some_and(|age| age < 5.0));
}

#[test]
fn the_very_first_request_of_a_user_nobody_met_here_is_refused_on_what_peers_know() {
    let level = "{ id: each_user, attach: { level: user }, type: quota_requests, amount: 1, period: month }";
    let cluster = Cluster::start(|setup| setup.governance("limits", &format!("[{level}]")));
    let a = cluster.replica("tt-a");
    let key = cluster.mint(&a, DEV1);
    let b = cluster.replica("tt-b");
    a.post(&key, CHAT, &chat("mock")).expect(200);
    until("the burn to be known to the other replica", SOON, || health(&b)["exchange"]["unmet_scopes"] == 1);
    b.post(&key, CHAT, &chat("mock")).expect(429);
    b.wait_rows(1, SOON);
}

#[test]
fn two_replicas_pass_a_quota_by_no_more_than_two_seconds_and_what_is_in_flight() {
    let cluster = Cluster::start(|setup| setup.limit("team_requests", "quota_requests", "amount: 150, period: month"));
    let a = cluster.replica("tt-a");
    let key = cluster.mint(&a, DEV1);
    let b = cluster.replica("tt-b");
    std::thread::scope(|scope| {
        for replica in [&a, &b] {
            let key = &key;
            scope.spawn(move || while replica.post(key, CHAT, &chat("mock")).status == 200 {});
        }
    });
    let mut admitted: Vec<(i64, i64)> = [&a, &b]
        .iter()
        .flat_map(|replica| replica.rows())
        .filter(|row| row.decision() == "admitted")
        .map(|row| (instant(&row, "ts"), instant(&row, "end")))
        .collect();
    admitted.sort_by_key(|(_, end)| *end);
    let full = admitted[149].1;
    let last = admitted.iter().map(|(start, _)| *start).max().unwrap();
    assert!(last - full < 2_500, "{} admitted, the last one {} ms after the 150th ended", admitted.len(), last - full);
    // Once all of it is published, both agree on all of it.
    let count = || {
        let rows = [&a, &b].into_iter().flat_map(|replica| replica.rows());
        rows.filter(|row| row.decision() == "admitted").count() as f64 // the last rows were still on their way above
    };
    until("both to agree", SOON, || {
        let admitted = count();
        [&a, &b].iter().all(|replica| replica.me(&key).limit("team_requests").used() == admitted)
    });
}

fn instant(row: &Row, field: &str) -> i64 {
    let text = row.0[field].as_str().unwrap_or_default();
    text.parse::<jiff::Timestamp>().unwrap_or_else(|_| panic!("{field} of {}", row.0)).as_millisecond()
}

#[test]
fn a_restart_counts_nothing_twice_under_the_same_name_and_under_another() {
    let cluster = Cluster::start(|setup| setup.limit("team_requests", "quota_requests", "amount: 100, period: month"));
    let a = cluster.replica("tt-a");
    let key = cluster.mint(&a, DEV1);
    let b = cluster.replica("tt-b");
    let used = |replica: &Gateway| replica.me(&key).limit("team_requests").used();
    a.post(&key, CHAT, &chat("mock")).expect(200);
    a.post(&key, CHAT, &chat("mock")).expect(200);
    until("the peer to know", SOON, || used(&b) == 2.0);
    a.process.kill();
    drop(a);
    for name in ["tt-a", "tt-renamed"] {
        let again = cluster.setup(name, "tt-a").start();
        in_touch(&again);
        assert_eq!(used(&again), 2.0, "{name}");
        let looks = cluster.redis.calls("evalsha");
        until("a few more exchanges", SOON, || cluster.redis.calls("evalsha") > looks + 12);
        assert_eq!((used(&again), used(&b)), (2.0, 2.0), "{name}");
        assert!(fleet(&again)["suspended"].is_null(), "a successor is no conflict: {}", fleet(&again));
        again.process.kill();
    }
    let last = cluster.setup("tt-renamed", "tt-a").start();
    last.post(&key, CHAT, &chat("mock")).expect(200);
    b.post(&key, CHAT, &chat("mock")).expect(200);
    until("both to know of four", SOON, || used(&last) == 4.0 && used(&b) == 4.0);
}

#[test]
fn a_dead_replicas_burn_counts_until_it_is_decommissioned_by_name() {
    let cluster = Cluster::start(|setup| {
        let setup = setup.limit("team_requests", "quota_requests", "amount: 3, period: month");
        setup.limit("team_usd", "budget_usd", "amount_usd: 5, period: month")
    });
    let a = cluster.replica("tt-a");
    let key = cluster.mint(&a, DEV1);
    let b = cluster.replica("tt-b");
    for _ in 0..3 {
        a.post(&key, CHAT, &chat("mock")).expect(200);
    }
    b.wait_exhausted(&key, "team_requests");
    let decommission = |replica: &str, force: bool| {
        b.admin_post("/tt/api/v1/fleet/decommission", &json!({"replica": replica, "force": force}))
    };
    let refused = decommission("tt-a", false).expect(409);
    assert_eq!(refused.json()["error"]["type"], "replica_is_live");
    decommission("tt-nobody", false).expect(404);
    decommission("tt-b", false).expect(409);

    a.process.kill();
    wait_state(&b, "tt-a", "unreachable");
    b.post(&key, CHAT, &chat("mock")).expect(429);
    let removed = decommission("tt-a", false).expect(200).json();
    assert_eq!(removed["state"], "unreachable", "{removed}");
    let dropped = removed["dropped"].as_array().unwrap();
    let burn = |id: &str| dropped.iter().find(|line| line["limit_id"] == id).unwrap_or_else(|| panic!("{removed}"));
    assert_eq!(
        (&burn("team_requests")["burn"], &burn("team_requests")["node"]),
        (&json!(3), &json!("org:acme/team:ml"))
    );
    assert_eq!(burn("team_usd")["burn"], json!(0.001338));
    assert!(standing(&b, "tt-a").is_null(), "and it is off the roster");
    until("the dropped burn to be out of the sums", SOON, || b.me(&key).limit("team_requests").used() == 0.0);
    b.post(&key, CHAT, &chat("mock")).expect(200);
    let audit = b.admin_get("/tt/api/v1/audit").expect(200).json().to_string();
    assert!(audit.contains("fleet.decommission") && audit.contains("tt-a"), "{audit}");
}

#[test]
fn a_store_that_restarts_empty_unspends_nothing_and_hears_it_all_again() {
    let cluster = Cluster::start(|setup| setup.limit("team_requests", "quota_requests", "amount: 100, period: month"));
    let a = cluster.replica("tt-a");
    let key = cluster.mint(&a, DEV1);
    let (b, c) = (cluster.replica("tt-b"), cluster.replica("tt-c"));
    let used = |replica: &Gateway| replica.me(&key).limit("team_requests").used();
    a.post(&key, CHAT, &chat("mock")).expect(200);
    c.post(&key, CHAT, &chat("mock")).expect(200);
    until("both to know", SOON, || used(&b) == 2.0 && used(&a) == 2.0);
    c.process.kill(); // nobody publishes its burn again
    cluster.redis.restart();
    in_touch(&b);
    b.post(&key, CHAT, &chat("mock")).expect(200);
    until("all three to be known", SOON, || used(&a) == 3.0 && used(&b) == 3.0);
    assert_eq!(fleet(&b)["n_total"], 3, "a store that forgot everybody makes no replica forget one");
    let fresh = cluster.setup("tt-d", "tt-d").start();
    until("a newcomer to know what all three burned", SOON, || used(&fresh) == 3.0);
}

/// Who heard it brings it back, and then need not be there any more.
#[test]
fn a_dead_replicas_burn_outlives_a_store_that_lost_everything() {
    let cluster = Cluster::start(|setup| setup.limit("team_requests", "quota_requests", "amount: 3, period: month"));
    let a = cluster.replica("tt-a");
    let key = cluster.mint(&a, DEV1);
    let b = cluster.replica("tt-b");
    let used = |replica: &Gateway| replica.me(&key).limit("team_requests").used();
    (0..3).for_each(|_| drop(a.post(&key, CHAT, &chat("mock")).expect(200)));
    until("the peer to know", SOON, || used(&b) == 3.0);
    a.process.kill();
    wait_state(&b, "tt-a", "unreachable");
    for restarts in [false, true] {
        if restarts {
            cluster.redis.restart();
        } else {
            cluster.redis.tell(&["FLUSHALL"]);
        }
        let is_back = || cluster.redis.keys().iter().any(|key| key.contains(":cells:"));
        until("the dead one's cell to be back", SOON, is_back);
    }
    assert_eq!(used(&b), 3.0, "once");
    assert!(b.stop(SOON).success(), "nobody is left who heard it");
    let fresh = cluster.setup("tt-c", "tt-c").start();
    until("a newcomer to know", SOON, || used(&fresh) == 3.0);
    fresh.post(&key, CHAT, &chat("mock")).expect(429);
    // It comes back itself and says the same again.
    let again = cluster.setup("tt-a", "tt-a").start();
    in_touch(&again);
    assert_eq!((used(&again), used(&fresh)), (3.0, 3.0));
    again.process.kill();
    wait_state(&fresh, "tt-a", "unreachable");
    fresh.admin_post("/tt/api/v1/fleet/decommission", &json!({"replica": "tt-a"})).expect(200);
    until("the dropped burn to be out of the sums", SOON, || used(&fresh) == 0.0);
    fresh.post(&key, CHAT, &chat("mock")).expect(200);
}

#[test]
fn burn_is_published_again_to_a_store_that_lost_everything_also_by_replicas_at_rest() {
    let cluster = Cluster::start(|setup| {
        let setup = setup.limit("team_requests", "quota_requests", "amount: 3, period: month");
        setup.limit("team_usd", "budget_usd", "amount_usd: 5000, period: month")
    });
    let a = cluster.replica("tt-a");
    let key = cluster.mint(&a, DEV1);
    let b = cluster.replica("tt-b");
    let used = |replica: &Gateway, limit: &str| replica.me(&key).limit(limit).used();
    (0..3).for_each(|_| drop(a.post(&key, CHAT, &chat("mock")).expect(200)));
    until("the peer to know", SOON, || used(&b, "team_requests") == 3.0);
    // A cell is "<burn> <rows> <rows new in it> …": at rest nothing is new, and nobody has a reason to write it.
    let is_at_rest = |key: &String| {
        let cells = cluster.redis.ask(&["HVALS", key]);
        let cells = cells.array().unwrap_or_default();
        cells
            .iter()
            .all(|cell| String::from_utf8_lossy(cell.bytes().unwrap_or_default()).split(' ').nth(2) == Some("0"))
    };
    for round in 0..3 {
        until("burn to be at rest", SOON, || {
            cluster.redis.keys().iter().filter(|key| key.contains("cells")).all(is_at_rest)
        });
        if round == 1 {
            cluster.redis.restart();
        } else {
            cluster.redis.tell(&["FLUSHALL"]);
        }
        let cells = || cluster.redis.keys().iter().filter(|key| key.contains("cells")).count();
        until("both limits' burn to be published again", SOON, || cells() == 2);
        let is_said = |replica: &Gateway| replica.log_text().matches("the shared store began from nothing").count();
        until("both to say so, once for each time", SOON, || {
            [&a, &b].into_iter().all(|each| is_said(each) == round + 1)
        });
        let name = format!("tt-new-{round}");
        let fresh = cluster.setup(&name, &name).start();
        until("a newcomer to know", SOON, || used(&fresh, "team_requests") == 3.0);
        fresh.post(&key, CHAT, &chat("mock")).expect(429);
    }
}

#[test]
fn a_store_that_was_never_there_fails_no_request_and_is_disclosed_everywhere() {
    let cluster = Cluster::start(|setup| {
        let setup = setup.limit("team_usd", "budget_usd", "amount_usd: 0.0008, period: month");
        setup.limit("team_share", "rpm", "amount: 600, period: 1h, store: share")
    });
    let a = cluster.replica("tt-a");
    let key = cluster.mint(&a, DEV1);
    cluster.redis.kill();
    let b = cluster.setup("tt-b", "tt-b").start();
    let served = b.post(&key, CHAT, &chat("mock")).expect(200);
    assert_eq!(served.header("x-tt-coordination"), Some("suspended"));
    let row = b.row(&served.head);
    assert_eq!(
        row.0["suspended_reasons"],
        json!({"team_usd": "never_synced", "team_share": "membership_stale"}),
        "{}",
        row.0
    );
    let me = b.me(&key);
    assert_eq!(me.limit("team_usd").0["enforcement"]["live"]["suspended"], "never_synced");
    assert_eq!(
        (&me.limit("team_usd").0["basis"], &me.limit("team_usd").0["exchange_age_ms"]),
        (&json!("own_count"), &Value::Null)
    );
    assert_eq!(me.limit("team_share").amount(), 600.0, "alone, it enforces the full amount");
    assert_eq!(me.limit("team_share").0["enforcement"]["live"]["suspended"], "membership_stale");
    b.post(&key, CHAT, &chat("mock")).expect(200);
    b.wait_exhausted(&key, "team_usd");
    let refused = b.post(&key, CHAT, &chat("mock")).expect(429);
    assert_eq!(refused.header("x-tt-coordination"), Some("suspended"));
    let enforcement = refused.json()["error"]["enforcement"].clone();
    let reasons = enforcement["suspended"].as_array().unwrap();
    assert!(reasons.contains(&json!({"limit_id": "team_usd", "reason": "never_synced"})), "{enforcement}");
    assert!(enforcement["note"].as_str().unwrap().contains("N×limit until the coordination store"), "{enforcement}");
    assert_eq!(enforcement["bound"]["convergence_lag_rows"], 2, "two own rows that nobody has heard of");
    assert!(enforcement["bound"].get("convergence_age_ms").is_none(), "there was no exchange: {enforcement}");
    let health = health(&b);
    assert!(health["exchange"]["trouble"]["error"].as_str().is_some_and(|error| error.contains("refused")), "{health}");
    let suspended: Vec<_> = health["suspensions"].as_array().unwrap().iter().map(|s| s["limit_id"].clone()).collect();
    assert_eq!(suspended, [json!("team_share"), json!("team_usd")], "{health}");
    assert_eq!(b.metrics().sum_where("tokentriage_suspended", &["limit=\"team_usd\""]), Some(1.0));
    let roster = fleet(&b);
    assert_eq!((&roster["degraded"], &roster["suspended"]), (&json!(true), &json!("membership_stale")), "{roster}");
    // It needs no operator: the store comes back, and with it what the other replica burned.
    cluster.redis.restart();
    in_touch(&b);
    let healthy = b.post(&key, CHAT, &chat("mock")).expect(429);
    assert_eq!(healthy.header("x-tt-coordination"), None);
}

/// Takes half a minute: that is how long burn is trusted.
#[test]
fn a_store_that_froze_suspends_the_exchange_after_thirty_seconds_and_fails_nothing() {
    let cluster = Cluster::start(|setup| {
        let setup = setup.limit("team_usd", "budget_usd", "amount_usd: 5000, period: month");
        setup.limit_on("org:spent", "spent", "quota_requests", "amount: 1, period: month")
    });
    let a = cluster.replica("tt-a");
    let (key, spent) = (cluster.mint(&a, DEV1), cluster.mint(&a, "org:spent"));
    let b = cluster.replica("tt-b");
    a.post(&key, CHAT, &chat("mock")).expect(200);
    b.post(&spent, CHAT, &chat("mock")).expect(200);
    b.wait_exhausted(&spent, "spent");
    until("the peer to know", SOON, || b.me(&key).limit("team_usd").used_nanousd() == OPENAI_REPLY_NANOUSD);
    cluster.redis.freeze();
    let frozen = Instant::now();
    // Long before it is given up, a refusal says what it cannot know.
    until("a refusal to say that peers are not heard", Duration::from_secs(10), || {
        let refused = b.post(&spent, CHAT, &chat("mock")).expect(429);
        assert_eq!(refused.header("x-tt-coordination"), None);
        let enforcement = refused.json()["error"]["enforcement"].clone();
        let age_ms = enforcement["bound"]["convergence_age_ms"].as_u64().expect("an age");
        let is_said = enforcement["note"].as_str().unwrap().contains("; peers' burn of the last ");
        assert_eq!(is_said, age_ms > 2_000, "{enforcement}");
        is_said
    });
    let mut slowest = Duration::ZERO;
    until("the exchange to be suspended", Duration::from_secs(40), || {
        let began = Instant::now();
        let served = b.post(&key, CHAT, &chat("mock")).expect(200);
        slowest = slowest.max(began.elapsed());
        served.header("x-tt-coordination").is_some()
    });
    assert!(frozen.elapsed() > Duration::from_secs(25), "it was suspended after {:?}", frozen.elapsed());
    assert!(slowest < Duration::from_secs(1), "no request waits for the store: {slowest:?}");
    let served = b.post(&key, CHAT, &chat("mock")).expect(200);
    assert_eq!(b.row(&served.head).0["suspended_reasons"], json!({"team_usd": "convergence_stale"}));
    assert!(b.me(&key).limit("team_usd").0["enforcement"]["bound"].as_str().unwrap().starts_with("convergence_stale"));
    cluster.redis.thaw();
    in_touch(&b);
    let served = b.post(&key, CHAT, &chat("mock")).expect(200);
    assert_eq!(served.header("x-tt-coordination"), None);
    // Counted again at each look: the last rows may still be on their way to the file.
    let total = || {
        let rows = [a.rows(), b.rows()].concat();
        rows.iter().filter(|row| row.0["node"] == DEV1).count() as u64 * OPENAI_REPLY_NANOUSD
    };
    let used = |replica: &Gateway| replica.me(&key).limit("team_usd").used_nanousd();
    until_equal("both to agree on all of it", SOON, || ([used(&a), used(&b)], [total(); 2]));
}

#[test]
fn what_was_burned_last_is_published_before_a_replica_ends() {
    let cluster = Cluster::start(|setup| setup.limit("team_requests", "quota_requests", "amount: 100, period: month"));
    let a = cluster.replica("tt-a");
    let key = cluster.mint(&a, DEV1);
    let b = cluster.replica("tt-b");
    a.post(&key, CHAT, &chat("mock")).expect(200);
    assert!(a.stop(SOON).success());
    until("the last row's burn to be known", SOON, || b.me(&key).limit("team_requests").used() == 1.0);
    assert_eq!(standing(&b, "tt-a")["state"], "drained");
}

#[test]
fn a_store_that_lies_or_hangs_up_fails_no_request_refuses_nobody_and_is_forgiven() {
    let cluster = Cluster::start(|setup| setup.limit("team_usd", "budget_usd", "amount_usd: 5000, period: month"));
    let a = cluster.replica("tt-a");
    let key = cluster.mint(&a, DEV1);
    let proxy = TcpProxy::to(cluster.redis.addr);
    let b = cluster.setup("tt-b", "tt-b").redis(&proxy.address()).start();
    in_touch(&b);
    a.post(&key, CHAT, &chat("mock")).expect(200);
    let used = |replica: &Gateway| replica.me(&key).limit("team_usd").used_nanousd();
    until("the peer to know", SOON, || used(&b) == OPENAI_REPLY_NANOUSD);
    for mood in [
        Mood::Answer(b"-ERR no such thing\r\n"),
        Mood::Answer(b"*-7\r\n"),
        Mood::Answer(b"$3\r\nabc\r\n"),
        Mood::Answer(b":99999999999999999999999\r\n"),
        Mood::Answer(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
        Mood::CutMidReply,
        Mood::Refuse,
    ] {
        proxy.set(mood);
        let began = Instant::now();
        until("a while under it", SOON, || {
            b.post(&key, CHAT, &chat("mock")).expect(200);
            began.elapsed() > Duration::from_millis(1_200)
        });
        assert!(used(&b) >= OPENAI_REPLY_NANOUSD, "{mood:?}: what was known stays known");
        assert!(b.process.exited().is_none(), "{mood:?}");
    }
    proxy.set(Mood::Pass);
    in_touch(&b);
    let total = || (a.rows().len() + b.rows().len()) as u64 * OPENAI_REPLY_NANOUSD;
    until_equal("both to agree on all of it", SOON, || ([used(&a), used(&b)], [total(); 2]));
}

#[test]
fn an_error_of_a_provider_discloses_a_suspended_limit_too() {
    let cluster = Cluster::start(|setup| {
        let setup = setup.upstream("dead", "openai", common::mock::dead_port(), r#"["dead*"]"#, "");
        setup.price("{ model: \"dead*\", input_usd_per_mtok: 1, output_usd_per_mtok: 1 }").limit(
            "team_share",
            "rpm",
            "amount: 600, period: 1h, store: share",
        )
    });
    let a = cluster.replica("tt-a");
    let key = cluster.mint(&a, DEV1);
    cluster.redis.kill();
    until("the membership to be stale", SOON, || fleet(&a)["degraded"] == true);
    let failed = a.post(&key, CHAT, &chat("dead")).expect(502);
    assert_eq!(failed.header("x-tt-coordination"), Some("suspended"));
}

#[test]
fn c35_no_key_of_burn_or_heartbeats_outlives_its_use_however_often_replicas_die() {
    let cluster = Cluster::start(|setup| {
        let setup = setup.limit("team_usd", "budget_usd", "amount_usd: 5000, period: hour");
        setup.limit("team_requests", "quota_requests", "amount: 100000, period: day")
    });
    let first = cluster.replica("tt-a");
    let key = cluster.mint(&first, DEV1);
    drop(first);
    for _ in 0..5 {
        let replica = cluster.setup("tt-a", "tt-a").start();
        let rows = replica.row_count();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| while replica.send_gently(&key) {});
            }
            until("some requests", SOON, || replica.row_count() > rows + 20);
            until("their burn to be published", SOON, || cluster.redis.keys().iter().any(|key| key.contains("cells")));
            replica.process.kill();
        });
    }
    let keys = cluster.redis.keys();
    assert!(keys.iter().any(|key| key.contains("cells")) && keys.iter().any(|key| key.contains("roster")), "{keys:?}");
    for key in keys {
        let ttl_ms = cluster.redis.ask(&["PTTL", &key]).integer().unwrap();
        assert!(ttl_ms > 0 && ttl_ms <= 2 * 86_400_000, "{key} has PTTL {ttl_ms}");
    }
}

//! Who is in the fleet, what the fleet spent, and what happens when two processes say that they are the same one. Needs
//! redis-server.

mod common;

use std::process::Command;

use common::cluster::{fleet, health, in_touch, standing, wait_state};
use common::gateway::binary;
use common::process::run;
use common::*;
use serde_json::{Value, json};

fn query(replica: &Gateway, params: &str) -> Value {
    replica.admin_get(&format!("/tt/api/v1/query?since=1h&{params}")).expect(200).json()
}

#[test]
fn the_roster_shows_everybody_by_state_and_survives_a_store_that_forgot() {
    let cluster = Cluster::start(|setup| setup);
    let (a, b, c) = (cluster.replica("tt-a"), cluster.replica("tt-b"), cluster.replica("tt-c"));
    cluster.wait_live(&[&a, &b, &c], 3, SOON);
    let roster = fleet(&a);
    assert_eq!((&roster["summary"], &roster["n_total"]), (&json!("3 of 3"), &json!(3)));
    assert_eq!((&roster["liveness_window_ms"], &roster["degraded"]), (&json!(3_000), &json!(false)));
    assert!(roster["max_abs_skew_ms"].as_u64().unwrap() < 1_000, "one machine, one clock: {roster}");
    let seen = standing(&a, "tt-b");
    assert_eq!((&seen["source"], &seen["stable"], &seen["state"]), (&json!("config"), &json!(true), &json!("live")));
    assert_eq!(seen["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(seen["advertise_url"], format!("http://{}", b.admin));
    assert!(seen["age_ms"].as_u64().unwrap() < 3_000);
    c.process.kill();
    assert!(b.stop(SOON).success());
    wait_state(&a, "tt-b", "drained");
    wait_state(&a, "tt-c", "unreachable");
    assert_eq!((&fleet(&a)["summary"], standing(&a, "tt-a")["state"].as_str()), (&json!("1 of 3"), Some("live")));
    // Everything forgotten but the local copy: a restart of both still knows who there was.
    cluster.redis.restart();
    a.process.kill();
    let again = cluster.setup("tt-a", "tt-a").start();
    in_touch(&again);
    assert_eq!((&fleet(&again)["n_live"], &fleet(&again)["n_total"]), (&json!(1), &json!(3)));
    assert_eq!(standing(&again, "tt-b")["state"], "drained");
}

#[test]
fn a_roster_in_postgres_outlives_redis_and_the_local_copy() {
    let (cluster, postgres) = (Cluster::start(|setup| setup), PostgresServer::start());
    let start = |name: &str| cluster.setup(name, name).postgres(&postgres.dsn()).start();
    let (a, b, c) = (start("tt-a"), start("tt-b"), start("tt-c"));
    cluster.wait_live(&[&a, &b, &c], 3, SOON);
    let kept = "select count(*) from tokentriage_replicas where entry is not null";
    until("the roster to be in Postgres", SOON, || postgres.sql(kept).trim() == "3");
    b.process.kill();
    c.process.kill();
    wait_state(&a, "tt-c", "unreachable");
    a.admin_post("/tt/api/v1/fleet/decommission", &json!({"replica": "tt-c"})).expect(200);
    until("the removal to be in Postgres", SOON, || postgres.sql(kept).trim() == "2");
    a.process.kill();
    cluster.redis.restart();
    std::fs::remove_file(a.data_dir.join("roster.json")).expect("the local copy was there");
    let again = start("tt-a");
    until("the dead replica to be known again", SOON, || standing(&again, "tt-b")["state"] == "unreachable");
    assert!(standing(&again, "tt-c").is_null(), "removed is removed");
}

#[test]
fn the_health_page_warns_of_a_store_that_may_evict_our_keys() {
    let cluster = Cluster::start(|setup| setup);
    cluster.redis.tell(&["CONFIG", "SET", "maxmemory", "100mb"]);
    cluster.redis.tell(&["CONFIG", "SET", "maxmemory-policy", "volatile-lru"]);
    let a = cluster.replica("tt-a");
    until("the warning", SOON, || health(&a)["warnings"].to_string().contains("maxmemory-policy is volatile-lru"));
}

#[test]
fn two_live_processes_of_one_name_are_told_apart_and_disclosed() {
    let cluster = Cluster::start(|setup| {
        let setup = setup.limit("team_requests", "quota_requests", "amount: 100, period: month");
        setup.limit("team_share", "rpm", "amount: 600, period: 1h, store: share")
    });
    let a = cluster.replica("tt-twin");
    let key = cluster.mint(&a, DEV1);
    let twin = cluster.setup("tt-twin", "another-ledger").start();
    for replica in [&a, &twin] {
        until("the conflict to be found", SOON, || fleet(replica)["suspended"] == "replica_id_conflict");
        let served = replica.post(&key, CHAT, &chat("mock")).expect(200);
        assert_eq!(served.header("x-tt-coordination"), Some("suspended"));
        let row = replica.row(&served.head);
        let reasons = &row.0["suspended_reasons"];
        assert_eq!(reasons, &json!({"team_requests": "replica_id_conflict", "team_share": "replica_id_conflict"}));
        let suspensions = health(replica)["suspensions"].clone();
        let bound = |id: &str| {
            let found = suspensions.as_array().unwrap().iter().find(|suspension| suspension["limit_id"] == id);
            found.and_then(|suspension| suspension["bound"].as_str()).unwrap_or_default().to_owned()
        };
        assert!(bound("team_requests").ends_with("fleet ≤ limit + the burn of one of them"), "{suspensions}");
        assert!(bound("team_share").ends_with("fleet ≤ limit + the share of one of them"), "{suspensions}");
    }
    assert!(a.log_text().contains("another live process uses this replica's name"));
    twin.process.kill();
    until("the conflict to be over", SOON, || fleet(&a)["suspended"].is_null());
}

#[test]
fn a_fleet_query_adds_up_what_answers_and_names_what_does_not() {
    let cluster = Cluster::start(|setup| setup);
    let a = cluster.replica("tt-a");
    let key = cluster.mint(&a, DEV1);
    let (b, c) = (cluster.replica("tt-b"), cluster.replica("tt-c"));
    cluster.wait_live(&[&a, &b, &c], 3, SOON);
    for (replica, times) in [(&a, 1), (&b, 2), (&c, 3)] {
        for _ in 0..times {
            let answer = replica.post(&key, CHAT, &chat("mock")).expect(200);
            replica.row(&answer.head);
        }
    }
    let own = query(&a, "group_by=node");
    assert_eq!((&own["total"]["requests"], &own["basis"]), (&json!(1), &json!("own_ledger")));
    let all = query(&a, "group_by=node,model&fleet=true");
    assert_eq!((&all["total"]["requests"], &all["groups"][0]["requests"]), (&json!(6), &json!(6)), "{all}");
    assert_eq!(all["total"]["cost_nanousd"], 6 * OPENAI_REPLY_NANOUSD);
    assert_eq!(all["total"]["cost_usd"], json!(0.002676));
    let coverage = |answer: &Value| {
        (answer["replicas_total"].clone(), answer["replicas_answered"].clone(), answer["is_partial"].clone())
    };
    assert_eq!(coverage(&all), (json!(3), json!(3), json!(false)), "{all}");
    assert_eq!(all["basis"], "roster");
    // One is gone: it stays in the denominator, with the reason.
    c.process.kill();
    let partial = query(&a, "fleet=true");
    assert_eq!(coverage(&partial), (json!(3), json!(2), json!(true)), "{partial}");
    assert_eq!(partial["total"]["requests"], 3);
    let gone = partial["replicas"].as_array().unwrap().iter().find(|read| read["id"] == "tt-c").unwrap().clone();
    assert!(gone["as_of"].is_null() && gone["error"].as_str().unwrap().starts_with("unreachable: "), "{gone}");
    // Its ledger comes back under another name: nothing is missing, and nothing is counted twice.
    let moved = cluster.setup("tt-moved", "tt-c").start();
    in_touch(&moved);
    until("the newcomer to be known", SOON, || standing(&a, "tt-moved")["state"] == "live");
    let whole = query(&a, "fleet=true");
    assert_eq!(coverage(&whole), (json!(4), json!(4), json!(false)), "{whole}");
    assert_eq!(whole["total"]["requests"], 6);
    let heir = whole["replicas"].as_array().unwrap().iter().find(|read| read["id"] == "tt-c").unwrap().clone();
    assert_eq!(heir["ledger_read_by"], "tt-moved", "{heir}");
}

#[test]
fn the_command_line_lists_the_fleet_asks_it_and_removes_who_is_gone() {
    let cluster = Cluster::start(|setup| setup);
    let (a, b) = (cluster.replica("tt-a"), cluster.replica("tt-b"));
    cluster.wait_live(&[&a, &b], 2, SOON);
    let url = format!("http://{}", a.admin);
    let cli = |args: &[&str]| {
        let mut command = Command::new(binary());
        command.args(args).args(["--admin", &url]).current_dir(cluster.folder()).env_remove("TT_ADMIN_TOKEN");
        let (status, stdout, stderr) = run(&mut command, SOON);
        (status.code(), stdout, stderr)
    };
    let (code, stdout, stderr) = cli(&["fleet", "list"]);
    assert_eq!(code, Some(0), "{stderr}");
    let first = stdout.lines().next().unwrap_or_default();
    assert_eq!(first.split_whitespace().collect::<Vec<_>>(), ["REPLICA", "STATE", "AGE", "VERSION", "STARTED", "URL"]);
    assert!(stdout.contains("tt-b") && stderr.contains("2 of 2 live"), "{stdout}{stderr}");
    let (code, _, stderr) = cli(&["fleet", "decommission", "tt-b"]);
    assert!(code == Some(1) && stderr.contains("is live"), "{stderr}");
    let (code, stdout, stderr) = cli(&["fleet", "decommission", "tt-b", "--force"]);
    assert!(code == Some(0) && stdout.contains("tt-b is removed; it was live\n"), "{stdout}{stderr}");
    assert!(
        stderr.contains("tt-b: it was live when it was removed: unless it is stopped, its next heartbeat"),
        "{stderr}"
    );
    cluster.wait_live(&[&a], 2, SOON);
    b.process.kill();
    wait_state(&a, "tt-b", "unreachable");
    let (code, stdout, stderr) = cli(&["query", "--since", "1h", "--fleet"]);
    assert!(code == Some(3) && stderr.contains("1 of 2 replicas (roster)"), "{stdout}{stderr}");
    assert!(stderr.contains("partial: tt-b is unreachable"), "{stderr}");
    assert!(stderr.ends_with("warning: the answer is partial: 1 of 2 replicas are in it"), "{stderr}");
    assert!(stdout.starts_with("NODE ") && stdout.contains("\ntotal"), "what answered is printed: {stdout}");
    let (code, stdout, _) = cli(&["query", "--since", "1h", "--fleet", "--json"]);
    let partial: Value = serde_json::from_str(&stdout).expect("the whole of it, and nothing else");
    assert_eq!((code, &partial["is_partial"]), (Some(3), &json!(true)));
    assert_eq!(cli(&["query", "--since", "1h"]).0, Some(0), "its own ledger is all there");
    // Without --admin, the admin port is that of the configuration; who listens everywhere is asked here.
    let file = cluster.folder().join("asks.yaml");
    let upstream = "{ id: mock, api: openai, base_url: \"builtin://mock\" }";
    let server = format!("{{ admin_listen: \"0.0.0.0:{}\", admin_token_env: TT_TEST_UNSET }}", a.admin.port());
    std::fs::write(&file, format!("upstreams: [{upstream}]\nserver: {server}\n")).unwrap();
    let mut configured = Command::new(binary());
    configured.args(["query", "--fleet", "-c"]).arg(&file).env_remove("TT_ADMIN_TOKEN");
    let (status, stdout, stderr) = run(&mut configured, SOON);
    assert!(status.code() == Some(3) && stderr.contains("1 of 2 replicas (roster)"), "{stdout}{stderr}");
    let (code, stdout, stderr) = cli(&["fleet", "decommission", "tt-b"]);
    assert!(code == Some(0) && stdout.contains("tt-b is removed; it was unreachable\n"), "{stdout}{stderr}");
    let (_, stdout, _) = cli(&["fleet", "list", "--json"]);
    let roster: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((&roster["n_total"], &roster["summary"]), (&json!(1), &json!("1 of 1")));
    assert_eq!(cli(&["query", "--since", "1h", "--fleet"]).0, Some(0), "all that are left");
    let (code, _, stderr) = cli(&["fleet", "decommission", "tt-b"]);
    assert!(code == Some(1) && stderr.contains("no replica \"tt-b\""), "{stderr}");
}

/// Two replicas that know each other, by their copies too, and a store that froze since.
fn acquainted_and_frozen() -> (Cluster, Gateway, Gateway) {
    let cluster = Cluster::start(|setup| setup);
    let (a, b) = (cluster.replica("tt-a"), cluster.replica("tt-b"));
    cluster.wait_live(&[&a, &b], 2, SOON);
    let copy = || std::fs::read_to_string(a.data_dir.join("roster.json")).unwrap_or_default();
    until("the copy to know both", SOON, || copy().contains("tt-b"));
    cluster.redis.freeze();
    (cluster, a, b)
}

/// A store that froze keeps the heartbeats of the living from each other; it kills nobody.
#[test]
fn while_the_store_is_frozen_replicas_are_what_they_were_and_the_roster_says_as_of_when() {
    let (cluster, a, b) = acquainted_and_frozen();
    until("the roster to be frozen", SOON, || fleet(&a)["degraded"] == true);
    let roster = fleet(&a);
    assert_eq!(standing(&a, "tt-b")["state"], "live", "{roster}");
    assert!(standing(&a, "tt-b")["age_ms"].as_u64().is_some_and(|age_ms| age_ms < 3_000), "{roster}");
    assert_eq!(
        (&roster["n_live"], &roster["n_total"]),
        (&json!(1), &json!(2)),
        "nobody splits a share by it: {roster}"
    );
    let note = "the shared store does not answer: states and ages are those of its last answer";
    assert!(roster["note"].as_str().is_some_and(|said| said.starts_with(note)), "{roster}");
    let list = |replica: &Gateway| {
        let mut command = Command::new(binary());
        let url = format!("http://{}", replica.admin);
        command.args(["fleet", "list", "--admin", &url]).current_dir(cluster.folder()).env_remove("TT_ADMIN_TOKEN");
        let (status, stdout, stderr) = run(&mut command, SOON);
        assert_eq!(status.code(), Some(0), "{stderr}");
        (stdout, stderr)
    };
    let state = |stdout: &str| {
        let line = stdout.lines().find(|line| line.starts_with("tt-b ")).expect("a line of tt-b").to_owned();
        line.split_whitespace().nth(1).unwrap_or_default().to_owned()
    };
    let (stdout, stderr) = list(&a);
    let as_of = roster["as_of"].as_str().expect("it answered once");
    assert_eq!(state(&stdout), "live", "{stdout}");
    assert!(stderr.starts_with("1 of 2 live (membership_stale), as of "), "{stderr}");
    assert!(stderr.contains(&as_of[..16]) && stderr.contains(note), "{stderr}, {as_of}");
    // One that starts now knows the other from its copy alone, and at once.
    a.process.kill();
    let again = cluster.setup("tt-a", "tt-a").start();
    assert_eq!(standing(&again, "tt-b")["state"], "unknown", "{}", fleet(&again));
    let (stdout, stderr) = list(&again);
    assert_eq!(state(&stdout), "unknown", "{stdout}");
    assert!(stderr.contains("the shared store has not answered since this process started"), "{stderr}");
    cluster.redis.thaw();
    cluster.wait_live(&[&again, &b], 2, SOON);
    assert_eq!(standing(&again, "tt-b")["state"], "live");
}

/// Without a store nobody knows who else there is: what those who are known say is no sum of the fleet.
#[test]
fn a_fleet_query_is_partial_while_the_store_does_not_say_who_there_is() {
    let (cluster, a, b) = acquainted_and_frozen();
    let may_miss = "other replicas may be missing";
    let ask = |replica: &Gateway| {
        let answer = query(replica, "fleet=true");
        let note = answer["note"].as_str().unwrap_or_default().to_owned();
        let known = (answer["replicas_answered"].clone(), answer["replicas_total"].clone());
        (known, answer["is_partial"] == true, answer["basis"].clone(), note)
    };
    let degraded = |(known, is_partial, basis, note): (_, bool, Value, String), wanted: (u32, u32)| {
        assert_eq!((known, is_partial, basis), ((json!(wanted.0), json!(wanted.1)), true, json!("roster_degraded")));
        assert!(note.ends_with(may_miss), "{note}");
    };
    // All that are known answer; one that came since the store froze would not be among them.
    until("the roster to be frozen", SOON, || fleet(&a)["degraded"] == true);
    degraded(ask(&a), (2, 2));
    // A restart knows the other from its copy, from the first answer on.
    a.process.kill();
    let again = cluster.setup("tt-a", "tt-a").start();
    degraded(ask(&again), (2, 2));
    // One that has no copy knows nobody, and that it does not.
    let stranger = cluster.setup("tt-c", "tt-c").start();
    degraded(ask(&stranger), (1, 1));
    let cli = |args: &[&str]| {
        let mut command = Command::new(binary());
        let url = format!("http://{}", stranger.admin);
        command.args(["query", "--fleet", "--admin", &url]).args(args).current_dir(cluster.folder());
        let (status, stdout, stderr) = run(command.env_remove("TT_ADMIN_TOKEN"), SOON);
        (status.code(), stdout, stderr)
    };
    let (code, stdout, stderr) = cli(&[]);
    assert!(code == Some(3) && stdout.contains("\ntotal"), "{stdout}{stderr}");
    assert!(stderr.contains("1 of 1 replicas (roster_degraded)") && stderr.contains(may_miss), "{stderr}");
    let last = "warning: the answer is partial: 1 of 1 replicas that are known are in it";
    assert!(stderr.ends_with(last), "{stderr}");
    let (code, stdout, _) = cli(&["--json"]);
    let answer: Value = serde_json::from_str(&stdout).expect("the whole of it, and nothing else");
    assert_eq!((code, &answer["is_partial"]), (Some(3), &json!(true)), "{answer}");
    // Redis says who there is: the sum is whole.
    cluster.redis.thaw();
    cluster.wait_live(&[&again, &b, &stranger], 3, SOON);
    until("the one that started anew to be known by its new address", SOON, || {
        let whole = query(&stranger, "fleet=true");
        whole["is_partial"] == false && whole["note"].is_null() && whole["replicas_answered"] == 3
    });
}

/// The roster of the replica that is asked is as old as its last heartbeat; here that may be a minute.
#[test]
fn a_replica_that_said_goodbye_a_moment_ago_is_removed_as_drained() {
    let cluster = Cluster::start(|setup| setup);
    let b = cluster.replica("tt-b");
    let a = cluster.seldom_beating("tt-a").start();
    until("tt-b to be known", SOON, || standing(&a, "tt-b")["state"] == "live");
    assert!(b.stop(SOON).success());
    let removed = a.admin_post("/tt/api/v1/fleet/decommission", &json!({"replica": "tt-b"})).expect(200).json();
    assert_eq!((&removed["removed"], &removed["state"]), (&json!(true), &json!("drained")), "{removed}");
    assert_eq!((&removed["note"], &removed["dropped"]), (&Value::Null, &json!([])), "{removed}");
    assert!(!a.log_text().contains("it was live"), "{}", a.log_text());
    let audit = a.admin_get("/tt/api/v1/audit").expect(200).json().to_string();
    assert!(audit.contains(r#""state":"drained""#), "{audit}");
}

/// A cell is "<burn> <rows> <rows new in it> …": at rest nothing is new, and nobody has a reason to write it.
fn wait_burn_at_rest(cluster: &Cluster) {
    let is_at_rest = |key: &String| {
        let cells = cluster.redis.ask(&["HVALS", key]);
        let is_still = |cell: &[u8]| String::from_utf8_lossy(cell).split(' ').nth(2) == Some("0");
        cells.array().unwrap_or_default().iter().all(|cell| is_still(cell.bytes().unwrap_or_default()))
    };
    until("burn to be at rest", SOON, || {
        cluster.redis.keys().iter().filter(|key| key.contains("cells")).all(is_at_rest)
    });
}

/// Three replicas under a budget and a quota, and a key that called them once, three times and twice.
fn three_that_burned() -> (Cluster, Key, [Gateway; 3]) {
    let cluster = Cluster::start(|setup| {
        let setup = setup.limit("team_usd", "budget_usd", "amount_usd: 5000, period: month");
        setup.limit("team_requests", "quota_requests", "amount: 100, period: day")
    });
    let a = cluster.replica("tt-a");
    let key = cluster.mint(&a, DEV1);
    let (b, c) = (cluster.replica("tt-b"), cluster.replica("tt-c"));
    cluster.wait_live(&[&a, &b, &c], 3, SOON);
    for (replica, times) in [(&a, 1), (&b, 3), (&c, 2)] {
        (0..times).for_each(|_| drop(replica.post(&key, CHAT, &chat("mock")).expect(200)));
    }
    (cluster, key, [a, b, c])
}

#[test]
fn a_live_replica_that_was_removed_by_force_tells_again_all_that_it_burned_without_traffic() {
    let (cluster, key, [a, b, c]) = three_that_burned();
    let sums = |replica: &Gateway| {
        let me = replica.me(&key);
        (me.limit("team_requests").used(), me.limit("team_usd").used_nanousd())
    };
    let all = (6.0, 6 * OPENAI_REPLY_NANOUSD);
    let agree = || [&a, &b, &c].map(sums) == [all; 3];
    until("all to agree", SOON, agree);
    for round in 1..=2 {
        wait_burn_at_rest(&cluster);
        let body = json!({"replica": "tt-b", "force": true});
        let removed = a.admin_post("/tt/api/v1/fleet/decommission", &body).expect(200).json();
        assert_eq!(
            (&removed["state"], removed["dropped"].as_array().map(Vec::len)),
            (&json!("live"), Some(2)),
            "{removed}"
        );
        let said = || b.log_text().matches("this replica was decommissioned while it runs").count();
        until("it to notice", SOON, || said() == round);
        until("all to agree again", std::time::Duration::from_secs(5), agree);
        wait_burn_at_rest(&cluster);
        assert!(agree(), "{:?}", [&a, &b, &c].map(sums));
        assert_eq!(said(), round, "once for each removal");
        cluster.wait_live(&[&a, &b, &c], 3, SOON);
    }
    let fresh = cluster.setup("tt-d", "tt-d").start();
    until("a newcomer to know all of it", SOON, || sums(&fresh) == all);
}

/// What the dead one burned is brought back to the store some seconds after it lost it; a removal waits for that.
#[test]
fn a_dead_replica_removed_just_after_the_store_lost_everything_has_its_burn_dropped_and_listed() {
    let (cluster, key, [a, b, c]) = three_that_burned();
    let used = |replica: &Gateway| replica.me(&key).limit("team_requests").used();
    until("all to agree", SOON, || [&a, &b, &c].map(used) == [6.0; 3]);
    for (dead, burn, left) in [(&b, 3, 3.0), (&c, 2, 1.0)] {
        let name = if burn == 3 { "tt-b" } else { "tt-c" };
        wait_burn_at_rest(&cluster);
        dead.process.kill();
        wait_state(&a, name, "unreachable");
        cluster.redis.tell(&["FLUSHALL"]);
        let removed = if burn == 3 {
            a.admin_post("/tt/api/v1/fleet/decommission", &json!({"replica": name})).expect(200).json()
        } else {
            let mut command = Command::new(binary());
            let url = format!("http://{}", a.admin);
            command.args(["fleet", "decommission", name, "--json", "--admin", &url]).env_remove("TT_ADMIN_TOKEN");
            let (status, stdout, stderr) = run(&mut command, SOON);
            assert_eq!(status.code(), Some(0), "{stderr}");
            serde_json::from_str(&stdout).expect("an answer")
        };
        let dropped = removed["dropped"].as_array().unwrap();
        let requests = dropped.iter().find(|line| line["limit_id"] == "team_requests");
        assert_eq!(requests.map(|line| &line["burn"]), Some(&json!(burn)), "{removed}");
        assert_eq!(dropped.len(), 2, "{removed}");
        let living: &[&Gateway] = if burn == 3 { &[&a, &c] } else { &[&a] };
        until("it to count no longer", SOON, || living.iter().all(|replica| used(replica) == left));
    }
    // Nobody brings it back afterwards.
    let fresh = cluster.setup("tt-d", "tt-d").start();
    in_touch(&fresh);
    until("a newcomer to know what is left", SOON, || used(&fresh) == 1.0);
    assert_eq!(used(&a), 1.0);
}

#[test]
fn a_removal_is_refused_and_changes_nothing_while_the_store_loses_everything_again_and_again() {
    let cluster = Cluster::start(|setup| setup.limit("team_requests", "quota_requests", "amount: 100, period: day"));
    let a = cluster.replica("tt-a");
    let key = cluster.mint(&a, DEV1);
    let b = cluster.replica("tt-b");
    (0..2).for_each(|_| drop(b.post(&key, CHAT, &chat("mock")).expect(200)));
    let used = || a.me(&key).limit("team_requests").used();
    until("the peer to know", SOON, || used() == 2.0);
    b.process.kill();
    wait_state(&a, "tt-b", "unreachable");
    let ask = || a.admin_post("/tt/api/v1/fleet/decommission", &json!({"replica": "tt-b"}));
    let refused = std::thread::scope(|scope| {
        let asked = scope.spawn(ask);
        while !asked.is_finished() {
            cluster.redis.tell(&["FLUSHALL"]);
            std::thread::sleep(std::time::Duration::from_secs(1));
        }
        asked.join().expect("an answer")
    });
    let error = refused.expect(503).json()["error"].clone();
    assert_eq!(error["type"], "store_refilling", "{error}");
    assert!(error["message"].as_str().is_some_and(|message| message.starts_with("Redis lost its data a moment ago")));
    assert_eq!((used(), standing(&a, "tt-b")["state"].as_str()), (2.0, Some("unreachable")));
    let removed = ask().expect(200).json();
    assert_eq!(removed["dropped"][0]["burn"], 2, "{removed}");
    until("it to count no longer", SOON, || used() == 0.0);
}

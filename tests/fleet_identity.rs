//! Virtual keys through Postgres: minted anywhere, known everywhere, revoked everywhere; starts with and without a store.
//!
//! Needs a Postgres server's programs and starts its own. What happens when the store fails under running replicas is in
//! `fleet_identity_faults`.

mod common;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use common::folder::Folder;
use common::postgres::{Certificate, PASSWORD};
use common::*;
use serde_json::{Value, json};

/// A replica that serves nobody without a key, with its keys in Postgres.
fn replica(mock: &Mock, name: &str, dsn: &str) -> Setup {
    Setup::with_mock(mock).require_key().replica(name).postgres(dsn)
}

fn is_served(gateway: &Gateway, key: &Key) -> bool {
    gateway.get(key, "/tt/v1/me").status == 200
}

fn is_ready(gateway: &Gateway) -> bool {
    gateway.admin_get("/readyz").status == 200
}

fn identity(gateway: &Gateway) -> Value {
    gateway.admin_get("/tt/api/v1/governance/health").expect(200).json()["identity"].clone()
}

/// The row of a request whose caller was told by keys that may be old.
#[track_caller]
fn assert_says_stale(row: &Row) {
    assert_eq!(row["suspended"], json!(["__identity"]), "{}", row.0);
    assert_eq!(row["suspended_reasons"], json!({"__identity": "identity_stale"}), "{}", row.0);
}

/// Runs the command line with a configuration file of its own, as an operator without a running replica would.
fn cli(setup: &Setup, folder: &Path, args: &[&str]) -> (Option<i32>, String, String) {
    let config = folder.join("tokentriage.yaml");
    std::fs::write(&config, setup.yaml(&folder.join("data"))).unwrap();
    let mut command = Command::new(gateway::binary());
    command.args(args).arg("-c").arg(&config).current_dir(folder).env_remove("TT_ADMIN_TOKEN");
    for (name, value) in &setup.env {
        if let Some(value) = value {
            command.env(name, value);
        }
    }
    let (status, stdout, stderr) = process::run(&mut command, Duration::from_secs(30));
    (status.code(), stdout, stderr)
}

/// Case C37: a key that was revoked, has expired or was deleted closes on every replica and every endpoint.
#[test]
fn c37_a_key_minted_on_one_replica_opens_on_all_and_closes_on_all_within_a_second() {
    let (mock, postgres) = (Mock::start(), PostgresServer::start());
    let replicas = ["tt-a", "tt-b", "tt-c"].map(|name| replica(&mock, name, &postgres.dsn()).start());
    let [a, b, c] = &replicas;
    replicas.iter().for_each(|replica| until("the replica to be ready", SOON, || is_ready(replica)));

    let (revoked, deleted, expiring) = (a.mint(DEV1), b.mint(DEV1), {
        let key = c.mint_with(json!({"node": DEV1, "expires": "4s"}));
        assert!(is_served(c, &key));
        key
    });
    assert!(is_served(a, &revoked) && is_served(b, &deleted), "at once where it was minted");
    for replica in &replicas {
        for key in [&revoked, &deleted] {
            until("the key to open everywhere", PROMPTLY, || is_served(replica, key));
        }
    }
    b.post(&revoked, CHAT, &chat("mock")).expect(200);

    a.revoke(&revoked);
    let began = std::time::Instant::now();
    until("the other replicas to refuse it", PROMPTLY, || !is_served(b, &revoked) && !is_served(c, &revoked));
    println!("revoked by doorbell: refused on both others after {:?}", began.elapsed());
    let endpoints = |gateway: &Gateway, key: &Key| {
        [
            gateway.get(key, "/tt/v1/me").status,
            gateway.get(key, "/v1/models").status,
            gateway.post(key, CHAT, &chat("mock")).status,
            gateway.post(key, MESSAGES, &message("mock")).status,
        ]
    };
    assert_eq!(endpoints(a, &revoked), [401; 4], "at once where it was revoked");
    postgres.sql(&format!("DELETE FROM tokentriage_keys WHERE id = '{}'", deleted.id));
    for replica in &replicas {
        for key in [&revoked, &deleted] {
            until("the key to close everywhere", PROMPTLY, || !is_served(replica, key));
            assert_eq!(endpoints(replica, key), [401; 4]);
        }
        until("the key to expire", SOON, || !is_served(replica, &expiring));
        assert!(is_ready(replica));
    }

    let listed = c.admin_get("/tt/api/v1/keys").expect(200).json();
    let states: Vec<_> = listed["keys"].as_array().unwrap().iter().map(|key| key["state"].clone()).collect();
    assert_eq!(states, ["revoked", "expired"], "every replica lists every key: {listed}");
    let by = postgres.sql(&format!("SELECT created_by, revoked_by FROM tokentriage_keys WHERE id = '{}'", revoked.id));
    assert!(by.contains(r#""replica":"tt-a""#) && by.contains("admin_api"), "{by}");
    let health = a.admin_get("/tt/api/v1/governance/health").expect(200).json();
    assert_eq!(health["capability"]["tiers"], json!(["postgres"]), "{health}");
    let (bound, stale_bound) = (&health["identity"]["revocation_bound"], &health["identity"]["staleness_bound"]);
    assert_eq!((bound, stale_bound), (&json!("30s"), &json!("1m0s")));
    assert_eq!((&health["identity"]["stale"], &health["identity"]["seeded"]), (&json!(false), &json!(true)));
    for row in b.rows() {
        assert_eq!(row["suspended"], json!([]), "nothing was suspended: {}", row.0);
    }
}

#[test]
fn replicas_that_start_together_make_the_tables_once() {
    let (mock, postgres) = (Mock::start(), PostgresServer::start());
    let setups = ["tt-a", "tt-b", "tt-c", "tt-d"].map(|name| replica(&mock, name, &postgres.dsn()));
    let replicas: Vec<Gateway> = std::thread::scope(|scope| {
        let starting: Vec<_> = setups.iter().map(|setup| scope.spawn(|| setup.start())).collect();
        starting.into_iter().map(|starting| starting.join().unwrap()).collect()
    });
    for replica in &replicas {
        until("the replica to be ready", SOON, || is_ready(replica));
        assert!(!replica.log_text().contains("cannot be followed"), "{}", replica.log_text());
    }
    assert_eq!(postgres.sql("SELECT version FROM tokentriage_schema"), "1");
    let tables = postgres.sql("SELECT count(*) FROM pg_tables WHERE tablename LIKE 'tokentriage_%'");
    assert_eq!(tables, "4");
}

#[test]
fn the_command_line_mints_and_revokes_in_postgres_with_and_without_a_running_replica() {
    let (mock, postgres) = (Mock::start(), PostgresServer::start());
    let folder = Folder::new();
    let setup = replica(&mock, "tt-a", &postgres.dsn());
    let mint = ["keys", "mint", "--node", DEV1, "--name", "laptop", "--json"];
    let minted = |output: &str| -> Key {
        let minted: Value = serde_json::from_str(output).expect("--json prints JSON");
        let text = |member: &str| minted[member].as_str().expect("a text").to_owned();
        Key { id: text("id"), secret: text("key") }
    };
    let (code, output, errors) = cli(&setup, folder.path(), &mint);
    assert_eq!(code, Some(0), "{errors}");
    let first = minted(&output);
    assert!(!folder.path().join("data").exists(), "nothing is made on this machine");

    let gateway = setup.start();
    until("the replica to be ready", SOON, || is_ready(&gateway));
    assert!(is_served(&gateway, &first), "known from the first request on");
    let second = minted(&cli(&setup, folder.path(), &mint).1);
    until("the replica to know the key", PROMPTLY, || is_served(&gateway, &second));

    let (code, listed, _) = cli(&setup, folder.path(), &["keys", "list"]);
    assert!(code == Some(0) && listed.contains(&first.id) && listed.contains(&second.id), "{listed}");
    assert!(!listed.contains(&first.secret));
    let (code, revoked, _) = cli(&setup, folder.path(), &["keys", "revoke", &first.id]);
    assert_eq!((code, revoked), (Some(0), format!("revoked {} ({DEV1})\n", first.id).trim_end().to_owned()));
    until("the replica to refuse the key", PROMPTLY, || !is_served(&gateway, &first));
    let by = postgres.sql(&format!("SELECT revoked_by FROM tokentriage_keys WHERE id = '{}'", first.id));
    assert!(by.contains("command_line"), "{by}");
    let (code, _, why) = cli(&setup, folder.path(), &["keys", "revoke", "key_0"]);
    assert!(code == Some(1) && why.contains("tokentriage keys list"), "{why}");

    drop(postgres);
    let (code, _, why) = cli(&setup, folder.path(), &mint);
    assert_eq!(code, Some(2), "{why}");
    assert!(why.contains("cannot connect to 127.0.0.1:") && !why.contains(PASSWORD), "{why}");
}

#[test]
fn without_postgres_nobody_is_told_that_a_good_key_is_bad() {
    let (mock, mut postgres) = (Mock::start(), PostgresServer::start());
    let known = {
        let gateway = replica(&mock, "tt-first", &postgres.dsn()).start();
        until("the replica to be ready", SOON, || is_ready(&gateway));
        gateway.mint(DEV1)
    };
    postgres.stop();

    // Never seeded: nobody can be told from anybody.
    let required = replica(&mock, "tt-required", &postgres.dsn()).start();
    let optional = Setup::with_mock(&mock)
        .keyless_upstream("theirs", "openai", mock.addr, r#"["theirs*"]"#, "")
        .replica("tt-optional")
        .postgres(&postgres.dsn())
        .start();
    let keyed =
        Setup::with_mock(&mock).keys("anonymous", "refuse").replica("tt-keyed").postgres(&postgres.dsn()).start();

    assert_eq!(required.admin_get("/livez").status, 200);
    let ready = required.admin_get("/readyz");
    assert_eq!((ready.status, ready.json()["status"].clone()), (503, json!("identity_unavailable")));
    assert!(is_ready(&optional), "who may come without a key is served");

    for gateway in [&required, &keyed] {
        let answer = gateway.post(&known, CHAT, &chat("mock")).expect(503);
        assert_eq!(answer.header("x-tt-coordination"), Some("suspended"));
        let error = &answer.json()["error"];
        assert_eq!((&error["type"], &error["code"]), (&json!("identity_unavailable"), &json!("identity_unavailable")));
        let answer = gateway.post(&known, MESSAGES, &message("mock")).expect(503);
        assert_eq!(answer.json()["type"], "error");
        assert_eq!(answer.json()["error"]["code"], "identity_unavailable");
        // No key at all, and what was never a key, need no store to be judged.
        gateway.send(&Request::post(CHAT).json(&chat("mock"))).expect(401);
        gateway.send(&Request::post(CHAT).key("ttk_mistyped").json(&chat("mock"))).expect(401);
    }
    // The operator's provider key is not spent on somebody who may not be who they say; that is still no 401.
    optional.post(&known, CHAT, &chat("mock")).expect(503);
    let theirs = Request::post(CHAT).header("x-tt-key", &known.secret).header("authorization", "Bearer sk-own");
    let answer = optional.send(&theirs.json(&chat("theirs"))).expect(200);
    assert_eq!(answer.header("x-tt-coordination"), Some("suspended"));
    let row = optional.row(&answer);
    assert_says_stale(&row);
    assert_eq!(row["node"], "__global");
    assert!(!mock.log_text().contains(&known.secret), "a key of ours is never forwarded");

    let health = required.admin_get("/tt/api/v1/governance/health").expect(200).json();
    let identity_now = &health["identity"];
    assert_eq!((&identity_now["seeded"], &identity_now["stale"]), (&json!(false), &json!(true)), "{identity_now}");
    assert!(identity_now["last_refresh"].is_null() && identity_now["trouble"]["error"].is_string(), "{identity_now}");
    assert_eq!(health["suspensions"][0]["limit_id"], "__identity");
    let metrics = required.metrics();
    assert_eq!(metrics.sum("tokentriage_identity_seeded"), Some(0.0));
    assert_eq!(metrics.sum_where("tokentriage_suspended", &["limit=\"__identity\""]), Some(1.0));
    let mint = required.admin_post("/tt/api/v1/keys", &json!({"node": DEV1}));
    assert_eq!((mint.status, mint.json()["error"]["type"].clone()), (503, json!("store_unavailable")));

    // And by itself, once it is there.
    postgres.boot();
    for gateway in [&required, &optional, &keyed] {
        // A connection each, so that every core is asked: each takes the keys up at its next request or bell.
        let is_fresh = |_| {
            let answer = gateway.post(&known, CHAT, &chat("mock"));
            answer.status == 200 && answer.header("x-tt-coordination").is_none()
        };
        until("the keys to be known to every core", SOON, || (0..8).all(is_fresh));
        assert!(is_ready(gateway));
        assert_eq!(identity(gateway)["trouble"], Value::Null);
    }
}

#[test]
fn a_restart_without_postgres_knows_the_keys_of_the_last_run_for_a_day() {
    let (mock, mut postgres) = (Mock::start(), PostgresServer::start());
    let folder = Folder::new();
    let setup = replica(&mock, "tt-a", &postgres.dsn()).data_dir(folder.path());
    let gateway = setup.start();
    until("the replica to be ready", SOON, || is_ready(&gateway));
    let (key, revoked) = (gateway.mint(DEV1), gateway.mint(DEV1));
    gateway.revoke(&revoked);
    let snapshot = folder.path().join("identity-snapshot.json");
    let kept = || -> Option<Value> { serde_json::from_slice(&std::fs::read(&snapshot).ok()?).ok() };
    // By id: keys made within one tick of the clock stand in no particular order.
    let stands = |keys: &[Value], of: &Key| keys.iter().find(|key| key["id"] == json!(of.id)).cloned();
    until("both keys to be kept, one of them as revoked", SOON, || {
        let Some(kept) = kept() else { return false };
        let keys = kept["keys"].as_array().expect("a list");
        let [opens, shut] = [&key, &revoked].map(|of| stands(keys, of));
        opens.is_some_and(|key| key["revoked_ms"].is_null()) && shut.is_some_and(|key| key["revoked_ms"].is_i64())
    });
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(std::fs::metadata(&snapshot).unwrap().permissions().mode() & 0o777, 0o600);
    let text = std::fs::read_to_string(&snapshot).unwrap();
    assert!(!text.contains(&key.secret) && !text.contains(PASSWORD), "hashes only");
    assert!(gateway.stop(SOON).success());
    postgres.stop();

    let gateway = setup.start();
    assert!(is_ready(&gateway), "it knows its keys");
    let answer = gateway.post(&key, CHAT, &chat("mock")).expect(200);
    assert_eq!(answer.header("x-tt-coordination"), Some("suspended"), "and says that they may be old");
    let row = gateway.row(&answer);
    assert_says_stale(&row);
    gateway.post(&revoked, CHAT, &chat("mock")).expect(401); // known as revoked, however old that is
    let health = identity(&gateway);
    assert_eq!((&health["seeded"], &health["stale"]), (&json!(true), &json!(true)), "{health}");
    postgres.boot();
    until("the keys to be fresh", SOON, || identity(&gateway)["stale"] == false);
    assert_eq!(gateway.post(&key, CHAT, &chat("mock")).expect(200).header("x-tt-coordination"), None);
    assert!(gateway.stop(SOON).success());

    // A day later nobody knows what happened meanwhile.
    postgres.stop();
    let mut old = kept().unwrap();
    old["refreshed_ms"] = json!(old["refreshed_ms"].as_i64().unwrap() - 25 * 3_600_000);
    std::fs::write(&snapshot, old.to_string()).unwrap();
    let gateway = setup.start();
    gateway.post(&key, CHAT, &chat("mock")).expect(503);
    assert!(!is_ready(&gateway));
}

#[test]
fn an_emptied_database_is_not_taken_for_the_end_of_all_keys() {
    let (mock, postgres) = (Mock::start(), PostgresServer::start());
    let gateway = replica(&mock, "tt-a", &postgres.dsn()).start();
    until("the replica to be ready", SOON, || is_ready(&gateway));
    let key = gateway.mint(DEV1);
    postgres.sql(
        "DROP TABLE tokentriage_schema, tokentriage_keys, tokentriage_keys_version, tokentriage_replicas; \
         DROP FUNCTION tokentriage_keys_changed",
    );
    postgres.terminate_gateways();
    until("the replica to say so", SOON, || {
        identity(&gateway)["trouble"]["error"].as_str().is_some_and(|error| error.contains("no tokentriage tables"))
    });
    assert!(is_served(&gateway, &key));
    assert_eq!(postgres.sql("SELECT to_regclass('tokentriage_keys') IS NULL"), "t", "nothing was made in it");
}

#[test]
fn sslmode_verify_full_talks_to_the_server_meant_and_to_no_other() {
    let mock = Mock::start();
    let folder = Folder::new();
    let pem = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let localhost = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let stranger = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let (ours, theirs) = (pem("ours.pem", &localhost.cert.pem()), pem("theirs.pem", &stranger.cert.pem()));
    let key = localhost.signing_key.serialize_pem();
    let postgres = PostgresServer::start_with_tls(&Certificate { chain: &localhost.cert.pem(), key: &key });
    let dsn = |host: &str, rest: &str| postgres.dsn().replace("127.0.0.1", host) + "?" + rest;

    let good = [
        dsn("localhost", &format!("sslmode=verify-full&sslrootcert={ours}")),
        dsn("127.0.0.1", &format!("sslmode=verify-ca&sslrootcert={ours}")),
        dsn("127.0.0.1", "sslmode=require"),
    ];
    for dsn in &good {
        let gateway = replica(&mock, "tt-good", dsn).start();
        until("the replica to be ready", SOON, || is_ready(&gateway));
        let tls = postgres.sql(
            "SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) \
             WHERE application_name = 'tokentriage/tt-good'",
        );
        assert_eq!(tls, "t", "{dsn}");
    }
    let bad = [
        dsn("localhost", &format!("sslmode=verify-full&sslrootcert={theirs}")),
        dsn("127.0.0.1", &format!("sslmode=verify-full&sslrootcert={ours}")),
        dsn("localhost", &format!("sslmode=verify-ca&sslrootcert={theirs}")),
        dsn("localhost", "sslmode=verify-full"),
    ];
    for dsn in &bad {
        let gateway = replica(&mock, "tt-bad", dsn).start();
        let error = until_some("the replica to say why", SOON, || {
            identity(&gateway)["trouble"]["error"].as_str().map(str::to_owned)
        });
        assert!(error.contains("certificate"), "{dsn}: {error}");
        assert!(!is_ready(&gateway) && !error.contains(PASSWORD));
    }
}

#[test]
fn a_connection_string_that_cannot_be_honoured_is_refused_at_the_start_without_being_shown() {
    let mock = Mock::start();
    for (dsn, why) in [
        ("postgres://u:hunter2@db/x?sslmode=verify-full&sslrootcert=/nowhere/ca.pem", "sslrootcert: /nowhere/ca.pem"),
        ("postgres://u:hunter2@db/x?sslmode=strict", "sslmode must be"),
        ("postgres://u:hunter2@db/x?sslcert=/c.pem", "sslcert, which is not supported"),
        ("u:hunter2@db", "is no connection string such as"),
    ] {
        let folder = Folder::new();
        let (process, _) = gateway::spawn(&replica(&mock, "tt-a", dsn), folder.path());
        let status = process.wait_exit(SOON);
        until("its last words", SOON, || process.stderr.text().contains("error: "));
        let words = process.stderr.text();
        assert_eq!(status.code(), Some(1), "{words}");
        assert!(words.contains("shared_state.postgres.dsn_env: the value of TT_TEST_PG_DSN"), "{words}");
        assert!(words.contains(why) && !words.contains("hunter2"), "{words}");
    }
}

#[test]
fn neither_keys_nor_hashes_nor_the_connection_string_are_told_to_anybody() {
    use sha2::{Digest, Sha256};
    let (mock, postgres) = (Mock::start(), PostgresServer::start());
    let (good, bad) = (postgres.dsn(), postgres.dsn().replace(PASSWORD, "wrong-0c52e9d1"));
    let gateway = replica(&mock, "tt-a", &good).env("RUST_LOG", Some("trace")).start();
    let refused = replica(&mock, "tt-b", &bad).env("RUST_LOG", Some("trace")).start();
    until("the replica to be ready", SOON, || is_ready(&gateway));
    let key = gateway.mint(DEV1);
    gateway.post(&key, CHAT, &chat("mock")).expect(200);
    refused.post(&key, CHAT, &chat("mock")).expect(503);
    gateway.revoke(&key);
    gateway.post(&key, CHAT, &chat("mock")).expect(401);
    let error = until_some("the refusal", SOON, || identity(&refused)["trouble"]["error"].as_str().map(str::to_owned));
    assert!(error.contains("password authentication failed"), "{error}");

    let hash: String = Sha256::digest(key.secret.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
    for gateway in [&gateway, &refused] {
        let mut told = vec![gateway.log_text(), gateway.process.stdout.text()];
        told.extend(gateway.rows().into_iter().map(|row| row.0.to_string()));
        for page in
            ["/metrics", "/tt/api/v1/keys", "/tt/api/v1/audit", "/tt/api/v1/config", "/tt/api/v1/governance/health"]
        {
            told.push(gateway.admin_get(page).text());
        }
        for text in told {
            for secret in [key.secret.as_str(), &hash, PASSWORD, "wrong-0c52e9d1", "tokentriage:"] {
                assert!(!text.contains(secret), "{secret} in {text}");
            }
        }
    }
    let log = postgres.log_text();
    assert!(!log.contains(&key.secret) && !log.contains(&hash), "{log}");
}

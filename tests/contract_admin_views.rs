//! What the admin port shows and changes: keys and their record, limits, the fleet of one, spend and decisions.

mod admin;
mod common;

use std::collections::BTreeMap;

use admin::*;
use common::http::exchange;
use common::*;
use serde_json::{Value, json};

// ---- keys and their record

#[test]
fn a_key_opens_from_its_mint_to_its_revocation_on_every_core() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).require_key().cores(4).start();
    let minted = gateway.admin_post("/tt/api/v1/keys", &json!({"node": DEV1, "name": "ci", "expires": "30d"}));
    assert_eq!(minted.header("cache-control"), Some("no-store"));
    let minted = minted.expect(201).json();
    let key = Key {
        id: minted["id"].as_str().expect("an id").to_owned(),
        secret: minted["key"].as_str().expect("a key").to_owned(),
    };
    for _ in 0..12 {
        gateway.get(&key, "/tt/v1/me").expect(200); // a connection each, so all cores are asked
    }
    let listed = gateway.admin_get("/tt/api/v1/keys").expect(200);
    assert!(!listed.text().contains(&key.secret));
    let entry = listed.json()["keys"][0].clone();
    assert_eq!((&entry["id"], &entry["node"], &entry["name"]), (&json!(key.id), &json!(DEV1), &json!("ci")));
    assert_eq!((&entry["state"], &entry["revoked_at"]), (&json!("live"), &Value::Null));
    assert!(entry["expires_at"].as_str() > entry["created_at"].as_str());

    let path = format!("/tt/api/v1/keys/{}", key.id);
    let revoked = ask(&gateway, "DELETE", &path, &[]).expect(200).json();
    assert_eq!(revoked["state"], "revoked");
    for _ in 0..12 {
        gateway.get(&key, "/tt/v1/me").expect(401);
    }
    let again = ask(&gateway, "DELETE", &path, &[]).expect(200).json();
    assert_eq!(again["revoked_at"], revoked["revoked_at"], "twice is once");
    assert_fault(ask(&gateway, "DELETE", "/tt/api/v1/keys/key_0", &[]), 404, "not_found");

    let audit = gateway.admin_get("/tt/api/v1/audit?limit=10").expect(200);
    assert!(!audit.text().contains(&key.secret));
    let audit = audit.json();
    let entries = audit["entries"].as_array().expect("a list");
    let actions: Vec<_> = entries.iter().map(|entry| (entry["action"].as_str(), entry["outcome"].as_str())).collect();
    assert_eq!(
        actions,
        [(Some("keys.revoke"), Some("done")), (Some("keys.revoke"), Some("done")), (Some("keys.mint"), Some("done")),]
    );
    let mint = &entries[2];
    assert_eq!((&mint["what"]["id"], &mint["what"]["node"]), (&json!(key.id), &json!(DEV1)));
    assert_eq!((&mint["who"]["through"], &mint["who"]["token"]), (&json!("admin_api"), &json!("none")));
    assert!(mint["who"]["peer"].as_str().is_some_and(|peer| peer.starts_with("127.0.0.1:")));
    assert!(mint["at"].as_str().is_some_and(|at| at.ends_with('Z')));
}

#[test]
fn a_key_that_cannot_be_put_on_record_is_not_given_out() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).start();
    std::fs::create_dir(gateway.data_dir.join("audit.jsonl")).expect("a folder where the file should be");
    let answer = gateway.admin_post("/tt/api/v1/keys", &json!({"node": DEV1}));
    assert!(!answer.text().contains("ttk_"));
    assert_fault(answer, 500, "storage_error");
    let keys = gateway.admin_get("/tt/api/v1/keys").expect(200).json();
    assert_eq!(keys["keys"][0]["state"], "revoked");
    std::fs::remove_dir(gateway.data_dir.join("audit.jsonl")).expect("the test made it");
    gateway.idle_check();
}

// ---- limits, fleet, ledger

#[test]
fn limits_show_their_config_what_is_enforced_and_their_fullest_scopes() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock)
        .limit("team_budget", "budget_usd", "amount_usd: 0.123456789, period: month")
        .limit_on("__global", "all_rpm", "rpm", "amount: 100, period: 1h, posture: { mode: shadow }")
        .limit_on("org:beta", "beta_slots", "concurrency", "amount: 3")
        .start();
    let key = gateway.mint(DEV1);
    gateway.post(&key, CHAT, &chat("mock")).expect(200);
    until("the row to be folded", SOON, || {
        gateway.me(&key).limit("team_budget").used_nanousd() == OPENAI_REPLY_NANOUSD
    });
    let page = gateway.admin_get("/tt/api/v1/governance/limits").expect(200);
    assert!(page.text().contains(r#""amount_usd":0.123456789"#), "the amount digit for digit");
    let limits = page.json()["limits"].as_array().cloned().expect("a list");
    let ids: Vec<&str> = limits.iter().filter_map(|limit| limit["id"].as_str()).collect();
    assert_eq!(ids, ["all_rpm", "beta_slots", "team_budget"]);
    let budget = &limits[2];
    assert_eq!((&budget["type"], &budget["class"]), (&json!("budget_usd"), &json!("LedgerSettled")));
    assert_eq!(budget["config"]["attach"], json!({"node": "org:acme/team:ml"}));
    assert_eq!((&budget["effective_amount"], &budget["scopes_total"]), (&json!(0.123456789), &json!(1)));
    assert_eq!(
        budget["enforcement"],
        json!({
            "mode": "per-replica",
            "bound": "per-replica only: fleet ≤ N×limit",
            "live": {"n_live": null, "suspended": null},
        })
    );
    let scope = &budget["scopes"][0];
    assert_eq!((&scope["node"], &scope["used"]), (&json!("org:acme/team:ml"), &json!(0.000446)));
    let rate = &limits[0];
    assert_eq!((&rate["posture"], &rate["period"], &rate["burst"]), (&json!("shadow"), &json!("1h0m0s"), &json!(100)));
    assert_eq!(rate["scopes"][0]["remaining"], 99);
    assert_eq!(limits[1]["scopes"], json!([]), "nobody of org:beta came");

    let of = |node: &str| {
        let page = gateway.admin_get(&format!("/tt/api/v1/governance/limits?node={node}")).expect(200).json();
        let limits = page["limits"].as_array().cloned().expect("a list");
        limits.iter().filter_map(|limit| limit["id"].as_str().map(str::to_owned)).collect::<Vec<_>>()
    };
    assert_eq!(of("org:beta"), ["all_rpm", "beta_slots"]);
    assert_eq!(of(DEV1), ["all_rpm", "team_budget"]);
    assert_eq!(of("__global").len(), 3);
    gateway.idle_check();
}

#[test]
fn the_fullest_of_many_scopes_are_shown_first() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock)
        .governance("limits", "[{ id: org_rpm, attach: { level: org }, type: rpm, amount: 100, period: 1h }]")
        .start();
    for org in 0..12 {
        let key = gateway.mint(&format!("org:o{org:02}"));
        for _ in 0..=org {
            gateway.post(&key, CHAT, &chat("mock")).expect(200);
        }
    }
    let limits = gateway.admin_get("/tt/api/v1/governance/limits").expect(200).json();
    let limit = &limits["limits"][0];
    assert_eq!(limit["scopes_total"], 12);
    let nodes: Vec<&str> =
        limit["scopes"].as_array().expect("a list").iter().filter_map(|s| s["node"].as_str()).collect();
    let expected: Vec<String> = (2..12).rev().map(|org| format!("org:o{org:02}")).collect();
    assert_eq!(nodes, expected);
}

#[test]
fn a_fleet_of_one_is_one_of_one() {
    let mock = Mock::start();
    let gateway = guarded(&mock).start();
    let fleet = ask(&gateway, "GET", "/tt/api/v1/fleet", &[PEER]).expect(200).json();
    assert_eq!((&fleet["n_live"], &fleet["n_total"], &fleet["summary"]), (&json!(1), &json!(1), &json!("1 of 1")));
    assert_eq!((&fleet["liveness_window_ms"], &fleet["max_abs_skew_ms"]), (&json!(15_000), &json!(0)));
    assert_eq!(fleet["degraded"], false);
    let replica = &fleet["replicas"][0];
    assert_eq!(
        (&replica["id"], &replica["source"], &replica["stable"]),
        (&json!("tt-test"), &json!("config"), &json!(true))
    );
    assert_eq!((&replica["state"], &replica["age_ms"]), (&json!("live"), &json!(0)));
    assert_eq!(replica["advertise_url"], "http://tt-a.tt.svc:9090");
    for body in [json!({"replica": "tt-b"}), json!({"replica": "tt-test", "force": true})] {
        let request = Request::post("/tt/api/v1/fleet/decommission").header(ADMIN.0, ADMIN.1).json(&body);
        assert_fault(exchange(gateway.admin, &request), 409, "no_fleet");
    }
    let empty = Request::post("/tt/api/v1/fleet/decommission").header(ADMIN.0, ADMIN.1).json(&json!({}));
    assert_fault(exchange(gateway.admin, &empty), 400, "invalid_request");
    assert_eq!(ask(&gateway, "GET", "/tt/api/v1/audit", &[ADMIN]).json(), json!({"entries": []}), "nothing was done");
}

#[test]
fn federation_is_a_preview_that_labels_what_it_cannot_reach() {
    let mock = Mock::start();
    let off = Setup::with_mock(&mock).start();
    let page = off.admin_get("/tt/api/v1/federation").expect(200).json();
    assert_eq!((&page["preview"], &page["enabled"], &page["cards"]), (&json!(true), &json!(false), &json!([])));
    let instances = format!(
        "interval\nexperimental:\n  federation: {{ enabled: true, instances: [ {{ name: us, url: \"http://{}\" }}, {{ name: eu, url: \"http://{}\" }} ] }}",
        off.admin,
        mock::dead_port(),
    );
    let on = Setup::with_mock(&mock).ledger("sync", &instances).start();
    let cards = on.admin_get("/tt/api/v1/federation").expect(200).json()["cards"].clone();
    assert_eq!(
        (&cards[0]["name"], &cards[0]["state"], &cards[0]["n_total"]),
        (&json!("us"), &json!("reachable"), &json!(1))
    );
    assert_eq!(
        (&cards[1]["name"], &cards[1]["state"], &cards[1]["n_total"]),
        (&json!("eu"), &json!("unreachable"), &Value::Null)
    );
    assert!(cards[1]["error"].as_str().is_some_and(|error| !error.is_empty()));
}

#[test]
fn a_query_adds_up_to_the_rows_and_says_whom_it_covers() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).limit("team_rpm", "rpm", "amount: 3, period: 100h").start();
    let (dev, other) = (gateway.mint(DEV1), gateway.mint("org:beta"));
    for _ in 0..2 {
        gateway.post(&dev, CHAT, &chat("mock")).expect(200);
    }
    gateway.post(&dev, MESSAGES, &message("mock")).expect(200);
    gateway.post(&dev, CHAT, &chat("mock")).expect(429);
    gateway.post(&other, CHAT, &chat("mock-2")).expect(200);
    gateway.wait_rows(5, SOON);
    let ask = |query: &str| gateway.admin_get(&format!("/tt/api/v1/query?{query}")).expect(200).json();

    let answer = ask("since=1h&group_by=node:org,model");
    let groups: BTreeMap<String, Value> = answer["groups"]
        .as_array()
        .expect("groups")
        .iter()
        .map(|group| (format!("{} {}", group["by"]["node:org"], group["by"]["model"]), group.clone()))
        .collect();
    let acme = &groups["\"org:acme\" \"mock\""];
    let cost = 2 * OPENAI_REPLY_NANOUSD + ANTHROPIC_REPLY_NANOUSD;
    assert_eq!((&acme["requests"], &acme["cost_nanousd"]), (&json!(3), &json!(cost)));
    assert_eq!(acme["cost_usd"].to_string(), "0.001667");
    let tokens = json!({"input": 1425, "output": 120, "cached_input": 1120, "cache_write": 200, "reasoning": 20});
    assert_eq!(acme["tokens"], tokens);
    assert_eq!(groups["\"org:beta\" \"mock-2\""]["cost_nanousd"], OPENAI_REPLY_NANOUSD);
    assert_eq!((&answer["total"]["requests"], &answer["total"]["refusals"]), (&json!(5), &json!(1)));
    assert_eq!(answer["total"]["cost_nanousd"], cost + OPENAI_REPLY_NANOUSD);

    assert_eq!(ask("group_by=limit&node=org:acme")["groups"][1]["by"]["limit"], "team_rpm");
    assert_eq!(ask("model=mock-?")["total"]["requests"], 1);
    assert_eq!(ask("until=2020-01-01T00:00:00Z&since=2019-01-01T00:00:00Z")["total"]["requests"], 0);
    for (query, basis) in [("since=1h", "own_ledger"), ("since=1h&fleet=true", "fleet_of_one")] {
        let answer = ask(query);
        assert_eq!((&answer["replicas_total"], &answer["replicas_answered"]), (&json!(1), &json!(1)));
        assert_eq!((&answer["is_partial"], &answer["basis"]), (&json!(false), &json!(basis)));
        let replica = &answer["replicas"][0];
        assert_eq!(
            (&replica["id"], &replica["state"], &replica["error"]),
            (&json!("tt-test"), &json!("live"), &Value::Null)
        );
        assert!(replica["as_of"].as_str().is_some_and(|at| at.ends_with('Z')));
    }
    gateway.idle_check();
}

#[test]
fn decisions_come_newest_first_page_by_page_also_after_a_restart() {
    let mock = Mock::start();
    let folder = folder::Folder::new();
    let setup = Setup::with_mock(&mock).data_dir(folder.path().join("data")).limit(
        "team_rpm",
        "rpm",
        "amount: 5, period: 100h",
    );
    let gateway = setup.start();
    let key = gateway.mint(DEV1);
    for _ in 0..7 {
        gateway.post(&key, CHAT, &chat("mock")); // five served, two refused
    }
    gateway.wait_rows(7, SOON);
    let seqs = |gateway: &Gateway, query: &str| {
        let page = gateway.admin_get(&format!("/tt/api/v1/decisions?{query}")).expect(200).json();
        let rows = page["rows"]
            .as_array()
            .expect("rows")
            .iter()
            .map(|row| row["seq"].as_u64().expect("a seq"))
            .collect::<Vec<_>>();
        (rows, page["next_after"].as_u64())
    };
    let check = |gateway: &Gateway| {
        assert_eq!(seqs(gateway, ""), (vec![7, 6, 5, 4, 3, 2, 1], None));
        assert_eq!(seqs(gateway, "limit=3"), (vec![7, 6, 5], Some(5)));
        assert_eq!(seqs(gateway, "limit=3&after=5"), (vec![4, 3, 2], Some(2)));
        assert_eq!(seqs(gateway, "limit=3&after=2"), (vec![1], None));
        // Rows of two cores may meet in another order than their requests.
        let refused = gateway
            .rows()
            .iter()
            .rev()
            .filter(|row| row.decision() == "refused")
            .map(|row| row.number("seq"))
            .collect::<Vec<_>>();
        assert_eq!((refused.len(), seqs(gateway, "decision=refused").0), (2, refused));
        assert_eq!(seqs(gateway, "node=org:acme/team:ml&limit=1").0, [7]);
        assert_eq!(seqs(gateway, "node=org:beta").0, [] as [u64; 0]);
    };
    check(&gateway);
    let on_disk = gateway.rows().last().expect("seven rows").0.to_string();
    let shown = gateway.admin_get("/tt/api/v1/decisions?limit=1").json()["rows"][0].to_string();
    assert_eq!(shown, on_disk, "the row as it stands in the ledger");
    drop(gateway);
    check(&setup.start());
}

//! The admin port: whom it answers, that it agrees with its OpenAPI document, health, configuration and metrics.

mod admin;
mod common;

use admin::*;
use common::http::exchange;
use common::*;
use serde_json::{Value, json};

const HEALTH: &str = "/tt/api/v1/governance/health";

// ---- health

#[test]
fn a_single_node_says_that_it_is_air_gapped() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).limit("team_budget", "budget_usd", "amount_usd: 1, period: month").start();
    let key = gateway.mint(DEV1);
    gateway.post(&key, CHAT, &chat("mock")).expect(200);
    gateway.wait_rows(1, SOON);
    let answer = gateway.admin_get(HEALTH).expect(200);
    let capability = r#"{"kind":"governance/distributed-health","capability":{"shared_state_enabled":false,"tiers":[],"note":"air-gapped: no shared-state tier configured — this is a single-node instance; distributed limits, cross-replica convergence, and reconcile are not active"},"#;
    assert!(answer.text().starts_with(capability), "{}", answer.text());
    let health = answer.json();
    assert_eq!(
        (&health["suspensions"], &health["convergence"], &health["breaker"]),
        (&json!([]), &json!([]), &Value::Null)
    );
    let identity = &health["identity"];
    assert_eq!((&identity["revocation_bound"], &identity["staleness_bound"]), (&json!("30s"), &json!("1m0s")));
    assert_eq!((&identity["stale"], &identity["seeded"]), (&json!(false), &json!(true)));
    assert!(identity["last_refresh"].as_str().is_some_and(|at| at.ends_with('Z')));
    let ledger = &health["ledger"];
    assert_eq!((&ledger["state"], &ledger["trouble"]), (&json!("healthy"), &Value::Null));
    assert_eq!((&ledger["dropped_rows"], &ledger["written_rows"]), (&json!(0), &json!(1)));
    let cores = health["cores"].as_array().expect("a list");
    assert_eq!(cores.len(), 2);
    for (index, core) in cores.iter().enumerate() {
        assert_eq!((&core["index"], &core["ring_lag_rows"]), (&json!(index), &json!(0)));
        assert!(["io_uring", "epoll"].contains(&core["driver"].as_str().expect("a core that runs has a driver")));
    }
    gateway.idle_check();
}

#[test]
fn readiness_ends_with_the_drain_and_liveness_does_not() {
    let mock = Mock::start();
    let gateway = guarded(&mock).server("drain_timeout", "60s").start();
    for path in ["/livez", "/readyz", "/healthz"] {
        gateway.admin_get(path).expect(200);
    }
    let key = mint(&gateway, json!({"node": DEV1}));
    let mut stream = gateway.stream(&key, CHAT, &chat_stream("mock+slow300")).expect(200);
    stream.events(1);
    gateway.process.terminate();
    until("readiness to end", SOON, || gateway.admin_get("/readyz").status == 503);
    assert_eq!(gateway.admin_get("/readyz").json(), json!({"status": "draining"}));
    assert_eq!(gateway.admin_get("/healthz").status, 503);
    assert_eq!(gateway.admin_get("/livez").json(), json!({"status": "live"}));
    assert_eq!(ask(&gateway, "GET", "/tt/api/v1/fleet", &[ADMIN]).json()["replicas"][0]["state"], "drained");
    assert!(stream.finish().complete);
}

// ---- who may

#[test]
fn everything_but_the_probes_needs_the_token_and_a_peer_only_reads() {
    let mock = Mock::start();
    let gateway = guarded(&mock).start();
    for path in ["/metrics", HEALTH, "/tt/api/v1/keys", "/tt/api/v1/openapi.json", "/nowhere"] {
        let answer = gateway.admin_get(path);
        assert_eq!(answer.header("www-authenticate"), Some("Bearer realm=\"tokentriage\""));
        assert_fault(answer, 401, "authentication_error");
        let wrong = ask(&gateway, "GET", path, &[("Authorization", "Bearer hunter3")]);
        assert!(wrong.header("www-authenticate").is_some_and(|challenge| challenge.contains("invalid_token")));
        assert_fault(wrong, 401, "authentication_error");
    }
    ask(&gateway, "GET", "/metrics", &[ADMIN]).expect(200);
    ask(&gateway, "GET", "/tt/api/v1/query", &[PEER]).expect(200);
    assert_fault(ask(&gateway, "GET", "/nowhere", &[PEER]), 404, "not_found");
    let by_peer = Request::post("/tt/api/v1/keys").header(PEER.0, PEER.1).json(&json!({"node": DEV1}));
    assert_fault(exchange(gateway.admin, &by_peer), 403, "forbidden");
    assert_fault(ask(&gateway, "DELETE", "/tt/api/v1/keys/key_1", &[PEER]), 403, "forbidden");
    mint(&gateway, json!({"node": DEV1}));
    let audit = ask(&gateway, "GET", "/tt/api/v1/audit", &[ADMIN]).expect(200);
    assert_eq!(audit.json()["entries"][0]["who"]["token"], "admin");
    for secret in ["hunter2", "peer3"] {
        assert!(!audit.text().contains(secret) && !gateway.log_text().contains(secret));
    }
}

#[test]
fn another_name_is_not_answered_and_another_sites_page_does_not_write() {
    let mock = Mock::start();
    let gateway = guarded(&mock).start();
    let named = |host: &str, path: &str| {
        let mut caller = Conn::open(gateway.admin);
        caller.host = host.to_owned();
        caller.send(&Request::get(path).header(ADMIN.0, ADMIN.1));
        caller.read_response()
    };
    for host in ["localhost:9090", "[::1]:9090", "10.1.2.3", "tt-a.tt.svc:9090", "tt-test"] {
        named(host, "/tt/api/v1/fleet").expect(200);
    }
    for host in ["evil.example", "127.0.0.1.evil.example:9090", "x@127.0.0.1", ""] {
        assert_fault(named(host, "/tt/api/v1/fleet"), 421, "unknown_host");
        assert_fault(named(host, "/nowhere"), 421, "unknown_host");
        named(host, "/livez").expect(200);
    }
    let write = |headers: &[(&str, &str)]| {
        let request = Request::post("/tt/api/v1/config/reload").header(ADMIN.0, ADMIN.1).json(&json!({}));
        exchange(gateway.admin, &headers.iter().fold(request, |request, (name, value)| request.header(name, value)))
    };
    write(&[("Origin", &format!("http://{}", gateway.admin)), ("Sec-Fetch-Site", "same-origin")]).expect(200);
    assert_fault(write(&[("Origin", "http://evil.example")]), 403, "cross_site");
    assert_fault(write(&[("Origin", "null")]), 403, "cross_site");
    assert_fault(write(&[("Sec-Fetch-Site", "cross-site")]), 403, "cross_site");
    assert_fault(write(&[("Sec-Fetch-Site", "same-site")]), 403, "cross_site");
    let form = ("Content-Type", "application/x-www-form-urlencoded");
    assert_fault(ask(&gateway, "POST", "/tt/api/v1/config/reload", &[ADMIN, form]), 415, "unsupported_media_type");
    assert_fault(ask(&gateway, "POST", "/tt/api/v1/config/reload", &[ADMIN]), 415, "unsupported_media_type");
}

#[test]
fn the_document_and_the_port_agree_on_every_path_and_method() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).start();
    let document = gateway.admin_get("/tt/api/v1/openapi.json").expect(200).json();
    assert_eq!(document["openapi"], "3.1.0");
    let paths = document["paths"].as_object().expect("paths");
    assert!(paths.len() > 15);
    for (path, item) in paths {
        let described: Vec<String> = item.as_object().expect("methods").keys().map(|m| m.to_uppercase()).collect();
        let path = path.replace("{id}", "key_0");
        for method in ["GET", "POST", "PUT", "PATCH", "DELETE"] {
            let answer = ask(&gateway, method, &path, &[JSON]);
            if described.iter().any(|known| known == method) {
                assert_ne!(answer.status, 405, "{method} {path}");
                let says_no_such_path = answer.text().contains("there is no /");
                assert!(!says_no_such_path, "{method} {path}");
            } else {
                let allowed = answer.header("allow").unwrap_or_default().to_owned();
                assert_fault(answer, 405, "method_not_allowed");
                assert!(described.iter().all(|known| allowed.contains(known)), "{path} allows {allowed}");
            }
        }
    }
    for path in
        ["/", "/nowhere", "/livez/", "/tt/api/v1", "/tt/api/v2/fleet", "/TT/api/v1/fleet", "/tt/api/v1/keys/a/b"]
    {
        assert_fault(gateway.admin_get(path), 404, "not_found");
    }
    gateway.idle_check();
}

#[test]
fn no_request_however_odd_ends_anything() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).start();
    let long = "x".repeat(5_000);
    let targets = [
        "/tt/api/v1/decisions?limit=0",
        "/tt/api/v1/decisions?limit=99999999999999999999",
        "/tt/api/v1/decisions?limit=-1",
        "/tt/api/v1/decisions?after=x",
        "/tt/api/v1/decisions?decision=maybe",
        "/tt/api/v1/decisions?node=%00",
        "/tt/api/v1/decisions?node=%ff%fe",
        "/tt/api/v1/decisions?limit=1&limit=2",
        "/tt/api/v1/query?since=99999d",
        "/tt/api/v1/query?since=1h&until=2h",
        "/tt/api/v1/query?since=-9999-01-01T00:00:00Z&until=9999-12-31T23:59:59Z&group_by=node,node",
        "/tt/api/v1/query?group_by=colour",
        "/tt/api/v1/query?group_by=,",
        "/tt/api/v1/query?group_by=node,model,upstream,endpoint,key,limit,day,hour,node:org",
        "/tt/api/v1/query?sinse=1h",
        "/tt/api/v1/query?fleet=perhaps",
        "/tt/api/v1/governance/limits?node=acme",
        "/tt/api/v1/governance/limits?node=org:a/team:b/user:c/more:d",
        "/tt/api/v1/audit?limit=1001",
    ];
    for target in targets {
        assert_fault(gateway.admin_get(target), 400, "invalid_request");
    }
    gateway.admin_get(&format!("/tt/api/v1/query?model={long}")).expect(200);
    gateway.admin_get("/tt/api/v1/query?since=9999d&until=0s&model=*%00*").expect(400);
    assert_fault(ask(&gateway, "DELETE", "/tt/api/v1/keys/%ff", &[]), 400, "invalid_request");
    assert_fault(ask(&gateway, "DELETE", &format!("/tt/api/v1/keys/{long}"), &[]), 404, "not_found");
    let bodies = [
        "",
        "{",
        "[]",
        "null",
        "7",
        "\"\"",
        "{}",
        "{\"node\":7}",
        "{\"node\":\"acme\"}",
        "{\"node\":\"__global\"}",
        "{\"node\":\"org:a\",\"node\":\"org:b\"}",
        "{\"node\":\"org:a\",\"colour\":1}",
        "{\"node\":\"org:a\",\"expires\":\"0s\"}",
        "{\"node\":\"org:a\",\"expires\":\"1970-01-01T00:00:00Z\"}",
        "{\"node\":\"org:a\",\"expires\":\"soon\"}",
        "{\"node\":\"org:a\",\"name\":\"\"}",
        "{\"node\":\"org:a\",\"name\":\"a\\u0000b\"}",
        "{\"node\":\"org:a\\ud800\"}",
    ];
    for body in bodies {
        let answer = exchange(gateway.admin, &Request::post("/tt/api/v1/keys").json_text(body));
        assert_fault(answer, 400, "invalid_request");
    }
    let nested = "[".repeat(60_000);
    assert_fault(exchange(gateway.admin, &Request::post("/tt/api/v1/keys").json_text(&nested)), 400, "invalid_request");
    let large = format!("{{\"node\":\"{}\"}}", "x".repeat(70_000));
    assert_fault(exchange(gateway.admin, &Request::post("/tt/api/v1/keys").json_text(&large)), 413, "too_large");
    let chunks = std::iter::repeat_n(vec![b' '; 10_000], 10);
    assert_fault(exchange(gateway.admin, &Request::post("/tt/api/v1/keys").chunked(chunks)), 413, "too_large");
    assert!(
        gateway.admin_get("/tt/api/v1/keys").json()["keys"].as_array().is_some_and(Vec::is_empty),
        "none was minted"
    );
    gateway.idle_check();
}

#[test]
fn a_crowd_that_says_nothing_at_the_admin_port_harms_nobody_at_the_other() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).start();
    let key = gateway.mint(DEV1);
    let files = gateway.process.open_files();
    let crowd: Vec<Conn> = (0..300).map(|_| Conn::open(gateway.admin)).collect();
    until("the admin port to be full", SOON, || gateway.process.open_files() >= files + 250);
    for _ in 0..20 {
        gateway.post(&key, CHAT, &chat("mock")).expect(200);
    }
    assert!(gateway.process.open_files() < files + 290, "a bounded number is let in");
    drop(crowd);
    gateway.admin_get("/readyz").expect(200);
    gateway.idle_check();
}

// ---- configuration

#[test]
fn the_config_is_shown_without_secrets_and_a_reload_says_what_it_did() {
    let mock = Mock::start();
    let setup = Setup::with_mock(&mock).limit("team_rpm", "rpm", "amount: 10, period: 1h");
    let gateway = setup.start();
    let page = gateway.admin_get("/tt/api/v1/config").expect(200);
    assert!(!page.text().contains(setup::UPSTREAM_KEY));
    let config = &page.json()["config"];
    assert_eq!(config["upstreams"][0]["api_key_env"], setup::UPSTREAM_KEY_ENV);
    assert_eq!(
        (&config["ledger"]["sync_interval"], &config["governance"]["limits"][0]["amount"]),
        (&json!("200ms"), &json!(10))
    );

    gateway.reconfigure(&Setup::with_mock(&mock).cores(1).limit("team_rpm", "rpm", "amount: 20, period: 1h"));
    let reloaded = gateway.admin_post("/tt/api/v1/config/reload", &json!({})).expect(200).json();
    assert_eq!(reloaded["needs_restart"], json!(["server.cores"]));
    let now = gateway.admin_get("/tt/api/v1/config").expect(200).json();
    assert_eq!(now["config"]["governance"]["limits"][0]["amount"], 20);
    assert!(now["generation"].as_u64() > page.json()["generation"].as_u64());

    gateway.reconfigure(&Setup::with_mock(&mock).limit("team_rpm", "rpm", "amount: 0, period: 1h"));
    let refused = gateway.admin_post("/tt/api/v1/config/reload", &json!({}));
    assert!(refused.text().contains("governance.limits[0]"), "{}", refused.text());
    assert_fault(refused, 422, "config_refused");
    let audit = gateway.admin_get("/tt/api/v1/audit").expect(200).json();
    let outcomes: Vec<_> =
        audit["entries"].as_array().expect("entries").iter().map(|entry| entry["outcome"].as_str()).collect();
    assert_eq!(outcomes, [Some("refused"), Some("done")]);
    gateway.idle_check();
}

// ---- metrics

#[test]
fn every_metric_of_a_single_node_is_there_and_passes_promtool() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock)
        .limit("team_rpm", "rpm", "amount: 2, period: 100h")
        .limit("team_budget", "budget_usd", "amount_usd: 1, period: month")
        .cores(4)
        .start();
    let key = gateway.mint(DEV1);
    for _ in 0..2 {
        gateway.post(&key, CHAT, &chat("mock")).expect(200);
    }
    gateway.post(&key, CHAT, &chat("mock")).expect(429);
    gateway.send(&Request::get("/v1/nowhere")).expect(404);
    gateway.wait_rows(3, SOON);
    let answer = gateway.admin_get("/metrics").expect(200);
    assert_eq!(answer.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let metrics = gateway.metrics();
    let sum = |name: &str, label: &str| metrics.sum_where(&format!("tokentriage_{name}"), &[label]);
    assert_eq!(sum("requests_total", "endpoint=\"chat.completions\",upstream=\"mock-openai\",code=\"200\""), Some(2.0));
    assert_eq!(sum("refusals_total", "type=\"rpm\",limit=\"team_rpm\""), Some(1.0));
    assert_eq!(sum("unjudged_requests_total", "code=\"404\""), Some(1.0));
    assert_eq!(sum("tokens_total", "kind=\"cached_input\""), Some(120.0));
    assert_eq!(sum("request_duration_seconds_bucket", "le=\"+Inf\""), Some(3.0), "summed over cores");
    assert_eq!(sum("request_duration_seconds_bucket", "le=\"600\""), Some(3.0), "in seconds");
    assert_eq!((sum("fleet_live", ""), sum("suspended", "")), (Some(1.0), Some(0.0)));
    assert!(sum("ledger_write_seconds_count", "op=\"write\"") >= Some(1.0));
    let drivers = metrics.text.lines().filter(|line| line.starts_with("tokentriage_core_info{core=\"")).count();
    assert_eq!(drivers, 4);
    assert!(metrics.text.contains("tokentriage_build_info{version=\""));
    metrics.assert_in_order(&["acme", "dev1", &key.id]);
    gateway.idle_check();
}

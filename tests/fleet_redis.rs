//! `store: redis` on real replicas and a real server while it is healthy: exact across the fleet, nothing disclosed, nothing
//! left behind. Needs redis-server.

mod common;

use std::net::SocketAddr;
use std::time::Duration;

use common::*;
use serde_json::json;

/// A day long, so that nothing is earned again while the test runs.
const RPM_30: &str = "amount: 30, period: 24h, store: redis";

/// A replica of the fleet that shares `redis`.
fn replica(mock: &Mock, redis: &str, name: &str) -> Setup {
    Setup::with_mock(mock).replica(name).redis(redis)
}

/// A replica of the fleet on a provider that costs the machine little.
fn light_replica(provider: &Scripted, redis: &str, name: &str) -> Setup {
    Setup::new().upstream("provider", "openai", provider.addr, r#"["mock*"]"#, "").replica(name).redis(redis)
}

/// So many CHATs at once to these replicas in turn: all are written, over connections that stand already, before any
/// answer is read.
fn storm(replicas: &[(SocketAddr, &Key)], calls: usize) -> Vec<Response> {
    let mut conns: Vec<Conn> = replicas.iter().cycle().take(calls).map(|(addr, _)| Conn::open(*addr)).collect();
    for (conn, (_, key)) in conns.iter_mut().zip(replicas.iter().cycle()) {
        conn.send(&Request::post(CHAT).key(&key.secret).json(&chat("mock")));
    }
    conns.iter_mut().map(Conn::read_response).collect()
}

/// Three replicas share 30: of 90 calls at once exactly 30 are admitted when the store gave every verdict.
fn admits_exactly_30_of_90(algorithm: &str) {
    let (provider, redis) = (Scripted::start(|asked| scripted::healthy_chat(&asked.model())), RedisServer::start());
    let limit = format!("{RPM_30}, algorithm: {algorithm}");
    let gateways: Vec<Gateway> = ["tt-a", "tt-b", "tt-c"]
        .into_iter()
        .map(|name| light_replica(&provider, &redis.address(), name).limit("team_rpm", "rpm", &limit).start())
        .collect();
    let keys: Vec<Key> = gateways.iter().map(|gateway| gateway.mint(DEV1)).collect();
    let replicas: Vec<_> = gateways.iter().zip(&keys).map(|(gateway, key)| (gateway.addr, key)).collect();
    let mut told = Vec::new();
    // A verdict that misses its 5 ms on a busy machine is the local cell's, and says so: such a storm proves less, and is
    // repeated once the store answers again.
    let clean = until_some("a storm without a miss", Duration::from_secs(60), || {
        for (addr, key) in &replicas {
            until("a verdict of the store", SOON, || {
                let answer = http::exchange(*addr, &Request::post(CHAT).key(&key.secret).json(&chat("mock")));
                answer.header("x-tt-coordination").is_none()
            });
        }
        redis.tell(&["FLUSHALL"]);
        let answers = storm(&replicas, 90);
        let admitted = answers.iter().filter(|answer| answer.status == 200).count();
        let fell_back = answers.iter().filter(|answer| answer.header("x-tt-coordination").is_some()).count();
        for refused in answers.iter().filter(|answer| answer.status != 200) {
            assert_eq!(refused.status, 429, "{}", refused.text());
            assert_eq!(refused.header("x-tt-refused-by"), Some("team_rpm"));
        }
        // A call whose verdict fell back may have been counted by the store all the same: then one fewer is admitted there.
        let may = 30_usize.saturating_sub(fell_back)..=30 + fell_back;
        assert!(may.contains(&admitted), "{algorithm}: {admitted} admitted, {fell_back} fell back");
        told.push((admitted, fell_back));
        (fell_back == 0).then_some(admitted)
    });
    println!("{algorithm}: (admitted of 90, fell back): {told:?}");
    assert_eq!(clean, 30);
    gateways.iter().for_each(Gateway::idle_check);
}

#[test]
fn three_replicas_admit_exactly_what_a_gcra_limit_says() {
    admits_exactly_30_of_90("gcra");
}

#[test]
fn three_replicas_admit_exactly_what_a_token_bucket_says() {
    admits_exactly_30_of_90("token_bucket");
}

#[test]
fn three_replicas_admit_exactly_what_a_fixed_window_says() {
    admits_exactly_30_of_90("fixed_window");
}

#[test]
fn three_replicas_admit_exactly_what_a_sliding_window_says() {
    admits_exactly_30_of_90("sliding_window");
}

/// What the caller sees of a healthy fleet is what one node would say, and no word of coordination.
#[test]
fn a_healthy_store_shows_in_the_numbers_and_nowhere_else() {
    let (mock, redis) = (Mock::start(), RedisServer::start());
    let setup =
        |name| replica(&mock, &redis.address(), name).limit("team_rpm", "rpm", "amount: 2, period: 1m, store: redis");
    let (a, b) = (setup("tt-a").start(), setup("tt-b").start());
    let (key_a, key_b) = (a.mint(DEV1), b.mint(DEV1));
    // A busy machine misses 5 ms now and then, and says so: then the story is told again from an empty store.
    let (first, seen, refused) = until_some("a story without a miss", SOON, || {
        redis.tell(&["FLUSHALL"]);
        let first = a.post(&key_a, CHAT, &chat("mock"));
        let second = b.post(&key_b, CHAT, &chat("mock"));
        let seen = a.me(&key_a).limit("team_rpm");
        let refused = a.post(&key_a, CHAT, &chat("mock"));
        let is_told = [&first, &second, &refused].iter().any(|answer| answer.header("x-tt-coordination").is_some())
            || !seen.0["enforcement"]["live"]["suspended"].is_null();
        // A reply that came too late for its verdict was counted all the same, perhaps after the store was emptied.
        let statuses = [first.status, second.status, refused.status];
        (!is_told && statuses == [200, 200, 429]).then_some((first, seen, refused))
    });
    assert_eq!(first.header("RateLimit-Policy"), Some("\"team_rpm\";q=2;w=60"));
    let left = first.header("RateLimit").expect("a served call says what is left");
    assert!(["\"team_rpm\";r=1;t=30", "\"team_rpm\";r=1;t=29"].contains(&left), "{left}");
    assert_eq!(seen.remaining(), 0.0, "what the fleet has left, though this replica counted one of two: {}", seen.0);
    let wait: u64 = refused.header("retry-after").and_then(|wait| wait.parse().ok()).expect("a wait");
    assert!((20..=30).contains(&wait), "one of two in half a minute, from the first call on: {wait} s");
    assert_eq!(refused.json()["error"]["enforcement"], json!({"posture": "enforcing", "approximate": false}));
    assert_eq!(a.row(&refused.head).0["suspended"], json!([]));
    // Nobody's name is in the store, and what is there expires.
    for key in redis.keys() {
        assert!(key.starts_with("tt:"), "{key}");
        assert!(!["org", "acme", "ml", "dev1", "team"].iter().any(|name| key.contains(name)), "{key}");
        let ttl_ms = redis.ask(&["PTTL", &key]).integer().unwrap();
        assert!(ttl_ms != -1, "{key} would live for ever");
    }
}

/// A limit that a reload brings waits for the restart that brings the store.
#[test]
fn a_reload_cannot_bring_a_store_and_says_so() {
    let (mock, redis) = (Mock::start(), RedisServer::start());
    let gateway = Setup::with_mock(&mock).limit("team_rpm", "rpm", "amount: 10, period: 1h").start();
    gateway.reconfigure(&replica(&mock, &redis.address(), "tt-test").limit("team_rpm", "rpm", RPM_30));
    let answer = gateway.admin_post("/tt/api/v1/config/reload", &json!({}));
    assert!(answer.status >= 400, "{}", answer.text());
    assert!(answer.text().contains("takes effect with a restart"), "{}", answer.text());
    assert!(redis.keys().is_empty());
}

/// The password and every call go over TLS when the config says so, and the server's certificate is checked.
#[test]
fn tls_is_spoken_and_the_certificate_is_checked() {
    let mock = Mock::start();
    let folder = folder::Folder::new();
    let cert = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let (cert_file, key_file) = (folder.path().join("redis.pem"), folder.path().join("redis.key"));
    std::fs::write(&cert_file, cert.cert.pem()).unwrap();
    std::fs::write(&key_file, cert.signing_key.serialize_pem()).unwrap();
    let port = mock::free_port().port().to_string();
    let (cert_path, key_path) = (cert_file.to_str().unwrap(), key_file.to_str().unwrap());
    let redis = RedisServer::start_with(&[
        "--tls-port",
        &port,
        "--tls-cert-file",
        cert_path,
        "--tls-key-file",
        key_path,
        "--tls-ca-cert-file",
        cert_path,
        "--tls-auth-clients",
        "no",
    ]);
    let section = format!("shared_state: {{ redis: {{ external: allow, addr: \"localhost:{port}\", tls: true }} }}");
    for (trusted, is_served) in [(cert_path, true), ("/dev/null", false)] {
        redis.tell(&["FLUSHALL"]);
        let setup = Setup::with_mock(&mock).section(&section).env("SSL_CERT_FILE", Some(trusted));
        let gateway = setup.limit("team_rpm", "rpm", RPM_30).start();
        let key = gateway.mint(DEV1);
        // A handshake takes longer than a verdict may: the first calls may find it under way.
        let ask = || gateway.post(&key, CHAT, &chat("mock")).expect(200).header("x-tt-coordination").is_none();
        if is_served {
            until("a verdict over TLS", SOON, ask);
            assert_eq!(redis.keys().iter().filter(|key| key.starts_with("tt:rate:")).count(), 1);
        } else {
            assert!((0..6).all(|_| !ask()), "nobody vouches for this server: {}", gateway.log_text());
            assert!(redis.keys().is_empty());
        }
    }
}

//! Case C51: secrets in errors, logs, rows, metrics and upstream requests, from public bug reports of other
//! gateways.

mod common;

use common::setup::{UPSTREAM_KEY, UPSTREAM_KEY_ENV};
use common::*;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// The forms in which a secret may leak: as it is, and its hash.
fn forms_of(secret: &str) -> [String; 2] {
    let hash: String = Sha256::digest(secret.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
    [secret.to_owned(), hash]
}

/// Everything a gateway tells: its log, its ledger, its metrics and what its admin port shows.
fn everything_told(gateway: &Gateway) -> Vec<(String, String)> {
    let mut told = vec![
        ("stderr".to_owned(), gateway.process.stderr.text()),
        ("stdout".to_owned(), gateway.process.stdout.text()),
    ];
    let files = std::fs::read_dir(gateway.ledger_dir()).expect("there is a ledger folder");
    for file in files.flatten() {
        let text = String::from_utf8_lossy(&std::fs::read(file.path()).unwrap_or_default()).into_owned();
        told.push((file.path().display().to_string(), text));
    }
    let pages = [
        "/metrics",
        "/tt/api/v1/keys",
        "/tt/api/v1/audit",
        "/tt/api/v1/config",
        "/tt/api/v1/decisions?limit=100",
        "/tt/api/v1/governance/health",
        "/tt/api/v1/governance/limits",
        "/tt/api/v1/fleet",
    ];
    for page in pages {
        told.push((page.to_owned(), gateway.admin_get(page).text()));
    }
    told
}

fn headers_and_body(answer: &Response) -> String {
    format!("{:?}\n{}", answer.headers, answer.text())
}

#[track_caller]
fn assert_nowhere(secret: &str, told: &[(String, String)]) {
    for form in forms_of(secret) {
        for (place, text) in told {
            assert!(!text.contains(&form), "{form} is in {place}");
        }
    }
}

#[test]
fn c51_a_key_shows_up_nowhere_and_every_bad_key_gets_the_same_answer() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).limit("team_rpm", "rpm", "amount: 3, period: 100h").start();
    let other = Setup::with_mock(&mock).start();
    let good = gateway.mint(DEV1);
    let deleted = gateway.mint(DEV1);
    gateway.revoke(&deleted);
    let expired = gateway.mint_with(json!({"node": DEV1, "name": "short", "expires": "1s"}));
    until("the key to expire", SOON, || gateway.get(&expired, "/tt/v1/me").status == 401);
    let unknown = other.mint(DEV1); // well-formed, but another gateway's

    let mut told = Vec::new();
    // served, refused by a limit, failed upstream
    for model in ["mock", "mock+status500", "mock+cut", "mock"] {
        told.push((format!("answer to {model}"), headers_and_body(&gateway.post(&good, CHAT, &chat(model)))));
    }
    let mut refusals: Vec<Value> = Vec::new();
    for key in [&deleted, &expired, &unknown] {
        for (path, body) in [(CHAT, chat("mock")), (MESSAGES, message("mock")), (EMBEDDINGS, embedding("mock"))] {
            let refused = gateway.post(key, path, &body).expect(401);
            told.push((format!("401 on {path}"), headers_and_body(&refused)));
            if path == CHAT {
                refusals.push(refused.json()["error"]["message"].clone());
            }
        }
        assert_eq!(gateway.get(key, "/v1/models").status, 401);
    }
    assert!(refusals.windows(2).all(|pair| pair[0] == pair[1]), "the answer tells unknown from deleted: {refusals:?}");
    assert!(refusals[0].is_string());

    told.extend(everything_told(&gateway));
    told.push(("the upstream's log".to_owned(), mock.log_text()));
    for key in [&good, &deleted, &expired, &unknown] {
        assert_nowhere(&key.secret, &told);
    }
    // Our own provider key goes to the provider, and only there.
    assert!(mock.log_text().contains(UPSTREAM_KEY));
    told.pop();
    assert_nowhere(UPSTREAM_KEY, &told);
    gateway.idle_check();
}

#[test]
fn c51_a_missing_provider_key_is_our_fault_and_reaches_no_upstream() {
    let mock = Mock::start();
    let gateway = Setup::with_mock(&mock).env(UPSTREAM_KEY_ENV, None).start();
    let key = gateway.mint(DEV1);
    for (path, body) in [(CHAT, chat("mock")), (MESSAGES, message("mock"))] {
        let request = Request::post(path).header("x-tt-key", &key.secret).key("sk-caller-own").json(&body);
        let answer = gateway.send(&request);
        assert!((500..600).contains(&answer.status), "{}: {}", answer.status, answer.text());
        assert!(!headers_and_body(&answer).contains("sk-caller-own"));
    }
    mock.assert_untouched();
    assert_nowhere("sk-caller-own", &everything_told(&gateway));
    assert!(gateway.process.exited().is_none());
}

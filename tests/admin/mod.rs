//! What the tests of the admin port share: a gateway that asks for tokens, and how its faults look.

#![allow(dead_code)] // every test binary compiles all of this and uses its own part

use serde_json::Value;

use crate::common::http::exchange;
use crate::common::*;

pub const ADMIN: (&str, &str) = ("Authorization", "Bearer hunter2");
pub const PEER: (&str, &str) = ("Authorization", "Bearer peer3");
pub const JSON: (&str, &str) = ("Content-Type", "application/json");

/// A gateway whose admin port asks for the token `hunter2` and takes `peer3` from peers.
pub fn guarded(mock: &Mock) -> Setup {
    // The setup has no section for `fleet`; a value of several lines makes one.
    Setup::with_mock(mock)
        .server("admin_token_env", "TT_TEST_ADMIN")
        .ledger(
            "sync",
            "interval\nfleet:\n  peer_token_env: TT_TEST_PEER\n  advertise_url: \"http://tt-a.tt.svc:9090\"",
        )
        .env("TT_TEST_ADMIN", Some("hunter2"))
        .env("TT_TEST_PEER", Some("peer3"))
}

pub fn ask(gateway: &Gateway, method: &str, path: &str, headers: &[(&str, &str)]) -> Response {
    let request = Request::new(method, path);
    exchange(gateway.admin, &headers.iter().fold(request, |request, (name, value)| request.header(name, value)))
}

/// Asserts the status and that the body says what is wrong and what to do.
#[track_caller]
pub fn assert_fault(answer: Response, status: u16, kind: &str) {
    let answer = answer.expect(status);
    assert_eq!(answer.header("content-type"), Some("application/json"));
    let error = answer.json()["error"].clone();
    assert_eq!(error["type"], kind, "{error}");
    for part in ["message", "remedy"] {
        assert!(error[part].as_str().is_some_and(|text| !text.is_empty()), "no {part} in {error}");
    }
}

/// Mints with the admin token.
#[track_caller]
pub fn mint(gateway: &Gateway, body: Value) -> Key {
    let request = Request::post("/tt/api/v1/keys").header(ADMIN.0, ADMIN.1).json(&body);
    let minted = exchange(gateway.admin, &request).expect(201).json();
    let text = |member: &str| minted[member].as_str().expect("a text").to_owned();
    Key { id: text("id"), secret: text("key") }
}

//! Virtual keys over HTTP: list, mint, revoke. Every change is on disk, known to every core and in the audit before it is
//! answered.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::rejection::PathRejection;
use axum::extract::{Extension, Path, State};
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::json;
use shards::scope::Node;
use shards::units::WallMs;

use super::answer::{Answer, Fault, blocking, ok, parse, with_status};
use super::{Admin, By, now, query};
use crate::audit::Who;
use crate::keys::{Key, KeyError, StoreError};
use crate::when::{self, When};

/// Characters of a key's name: it is for lists and logs.
pub const NAME_CHARS_MAX: usize = 128;
const SHAPE: &str = r#"{"node": "org:acme/team:ml", "name": "ci", "expires": "30d"}, the last two only if wanted"#;

/// A key as it is listed: everything but the key.
#[derive(Serialize, Deserialize)]
pub struct Listed {
    pub id: String,
    pub node: String,
    pub name: Option<String>,
    /// `live`, `expired` or `revoked`.
    pub state: String,
    pub created_at: String,
    pub expires_at: Option<String>,
    pub revoked_at: Option<String>,
}

impl Listed {
    pub fn of(key: &Key, now: WallMs) -> Self {
        let state = match key.revoked_ms {
            Some(_) => "revoked",
            None if key.is_live(now) => "live",
            None => "expired",
        };
        let text = |ms: i64| when::text(WallMs(ms));
        Listed {
            id: key.id.clone(),
            node: key.node.clone(),
            name: key.name.clone(),
            state: state.to_owned(),
            created_at: text(key.created_ms),
            expires_at: key.expires_ms.map(text),
            revoked_at: key.revoked_ms.map(text),
        }
    }
}

#[derive(Serialize, Deserialize)]
pub struct Keys {
    pub keys: Vec<Listed>,
}

pub async fn list(State(admin): State<Arc<Admin>>) -> Answer {
    let keys = blocking(move || admin.shared().keys.list()).await?.map_err(fault)?;
    let wall = now().wall;
    let keys: Vec<Listed> = keys.iter().map(|key| Listed::of(key, wall)).collect();
    ok(&Keys { keys })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Mint {
    node: String,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    expires: Option<String>,
}

/// A mint, and the key, this once.
#[derive(Serialize)]
struct Minted {
    key: String,
    #[serde(flatten)]
    listed: Listed,
    note: &'static str,
}

pub async fn mint(State(admin): State<Arc<Admin>>, Extension(by): By, body: Bytes) -> Answer {
    let ask: Mint = parse(&body, SHAPE)?;
    let node = query::node(&ask.node)?;
    check_name(ask.name.as_deref()).map_err(|(wrong, remedy)| Fault::bad_request(wrong, remedy))?;
    let wall = now().wall;
    let expires = ask.expires.as_deref().map(|text| expiry(text, wall)).transpose()?;
    let minted = blocking(move || admin.mint(&node, ask.name, expires, wall, &by.who())).await??;
    with_status(StatusCode::CREATED, &minted)
}

pub async fn revoke(
    State(admin): State<Arc<Admin>>,
    Extension(by): By,
    id: Result<Path<String>, PathRejection>,
) -> Answer {
    let Path(id) =
        id.map_err(|rejection| Fault::bad_request(rejection.body_text(), "write the id that the list shows"))?;
    let revoked = blocking(move || admin.revoke(&id, now().wall, &by.who())).await??;
    ok(&revoked)
}

impl Admin {
    fn mint(
        &self,
        node: &Node,
        name: Option<String>,
        expires: Option<WallMs>,
        wall: WallMs,
        who: &Who,
    ) -> Result<Minted, Fault> {
        let keys = &self.shared().keys;
        let minted = keys.mint(node, name, expires, wall, &self.by(who)).map_err(fault)?;
        let listed = Listed::of(&minted.key, wall);
        let what = json!({"id": listed.id, "node": listed.node, "name": listed.name, "expires_at": listed.expires_at});
        if let Err(error) = self.audit.record(wall, who, "keys.mint", &what, "done") {
            // A key nobody is on record for must not open anything.
            let undone = keys.revoke(&minted.key.id, wall, &self.by(who)).is_ok();
            self.shared().announce();
            let state = if undone { "the new key was revoked again" } else { "and the new key could not be revoked" };
            return Err(Fault::storage(format!("the mint could not be audited ({error}); {state}")));
        }
        self.shared().announce();
        tracing::info!(key = listed.id, node = listed.node, "virtual key minted");
        Ok(Minted { key: minted.token, listed, note: "the key is shown this once; only its hash is kept" })
    }

    fn revoke(&self, id: &str, wall: WallMs, who: &Who) -> Result<Listed, Fault> {
        let revoked = self.shared().keys.revoke(id, wall, &self.by(who)).map_err(fault)?;
        let Some(key) = revoked else {
            let remedy = "see /tt/api/v1/keys for the ids";
            return Err(Fault::new(StatusCode::NOT_FOUND, "not_found", "there is no key with that id", remedy));
        };
        self.shared().announce();
        let listed = Listed::of(&key, wall);
        tracing::info!(key = listed.id, node = listed.node, "virtual key revoked");
        let what = json!({"id": listed.id, "node": listed.node, "name": listed.name});
        self.audit
            .record(wall, who, "keys.revoke", &what, "done")
            .map_err(|error| Fault::storage(format!("the key is revoked, but that could not be audited: {error}")))?;
        Ok(listed)
    }
}

impl Admin {
    /// Who asked, for a store that all replicas share.
    fn by(&self, who: &Who) -> String {
        who.on_replica(&self.shared().replica.name)
    }
}

/// What is wrong with a name, and what to do.
pub fn check_name(name: Option<&str>) -> Result<(), (&'static str, &'static str)> {
    match name {
        Some(name) if name.chars().count() > NAME_CHARS_MAX => Err(("name is too long", "use at most 128 characters")),
        Some(name) if name.chars().any(char::is_control) => Err(("name holds a control character", "leave it out")),
        Some(name) if name.trim().is_empty() => Err(("name is empty", "leave the name out, or write one")),
        _ => Ok(()),
    }
}

fn expiry(text: &str, now: WallMs) -> Result<WallMs, Fault> {
    let when: When = text
        .parse()
        .map_err(|remedy: String| Fault::bad_request(format!("expires: `{text}` is no point in time"), remedy))?;
    let at = when.ahead(now);
    if at <= now {
        return Err(Fault::bad_request("expires: that is not in the future", "a key that is never valid helps nobody"));
    }
    Ok(at)
}

fn fault(error: KeyError) -> Fault {
    match error {
        KeyError::GlobalNode => Fault::bad_request(format!("node: {error}"), format!("send {SHAPE}")),
        KeyError::File(_) | KeyError::Randomness(_) => Fault::storage(error),
        KeyError::Store(StoreError::Unconfirmed(_)) => {
            let remedy = "revoking again is safe; a key whose secret was never shown can be revoked";
            Fault::new(StatusCode::GATEWAY_TIMEOUT, "store_unconfirmed", error.to_string(), remedy)
        }
        KeyError::Store(_) => {
            let remedy = "see identity in /tt/api/v1/governance/health; keys known so far stay in force";
            Fault::new(StatusCode::SERVICE_UNAVAILABLE, "store_unavailable", error.to_string(), remedy)
        }
    }
}

//! `tokentriage keys`: mint, list and revoke, in the key file that the configuration names or through a running replica.
//!
//! A running replica on the same files takes up a change within half a second; through its admin port it acts at once.
//! Changes made here are in the audit file as well.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;
use shards::scope::Node;
use shards::units::WallMs;

use super::remote::Remote;
use super::table::{Align, table};
use super::{AdminArg, Failure, KeysArgs, KeysCommand, Outcome, print};
use crate::admin::{Keys, Listed, check_name};
use crate::audit::{AuditFile, Who};
use crate::config::Origin;
use crate::keys::{KeyFile, KeyFileError};
use crate::when::{self, When};

const PATH: &str = "/tt/api/v1/keys";

pub fn run(args: KeysArgs) -> Outcome {
    match args.command {
        KeysCommand::Mint(args) => {
            let store = Store::open(&args.admin, args.config.config.as_deref())?;
            mint(&store, &args.node, args.name.as_deref(), args.expires, args.json)
        }
        KeysCommand::List(args) => list(&Store::open(&args.admin, args.config.config.as_deref())?, args.json),
        KeysCommand::Revoke(args) => revoke(&Store::open(&args.admin, args.config.config.as_deref())?, &args.id),
    }
}

/// Where the keys are.
pub enum Store {
    /// On this machine.
    File { keys: KeyFile, path: PathBuf, audit: AuditFile },
    /// Behind the admin port of a running replica.
    Replica(Remote),
}

impl Store {
    /// The one that `--admin` names, else the one of the configuration.
    pub fn open(admin: &AdminArg, config: Option<&Path>) -> Result<Self, Failure> {
        if let Some(replica) = Remote::of(admin, config)? {
            return Ok(Store::Replica(replica));
        }
        let config = Origin::find(config).load()?.config;
        if config.shared_state.postgres.is_some() {
            let message = "this configuration keeps its keys in Postgres; drive a running replica with --admin URL";
            return Err(Failure::Refused(message.to_owned()));
        }
        let path = config.data_dir.join("keys.json");
        let keys = KeyFile::open(&path).map_err(failure)?;
        Ok(Store::File { keys, path, audit: AuditFile::of(&config.data_dir) })
    }

    fn name(&self) -> String {
        match self {
            Store::File { path, .. } => path.display().to_string(),
            Store::Replica(_) => "a running replica".to_owned(),
        }
    }
}

/// A key that was just made.
#[derive(Serialize, Deserialize)]
struct Minted {
    key: String,
    #[serde(flatten)]
    listed: Listed,
}

/// Makes a key and shows it, this once.
pub fn mint(store: &Store, node: &Node, name: Option<&str>, lifetime: Option<Duration>, as_json: bool) -> Outcome {
    check_name(name).map_err(|(wrong, remedy)| Failure::Refused(format!("--{wrong}; {remedy}")))?;
    let now = WallMs(io::clock::wall_ms());
    let expires = lifetime.map(|lifetime| When::Distance(lifetime).ahead(now));
    let minted = match store {
        Store::Replica(replica) => {
            let mut body = json!({"node": node.as_str()});
            if let Some(name) = name {
                body["name"] = name.into();
            }
            if let Some(expires) = expires {
                body["expires"] = when::text(expires).into();
            }
            replica.post(PATH, &body)?
        }
        Store::File { keys, audit, .. } => {
            let (minted, _) = keys.mint(node, name.map(str::to_owned), expires, now).map_err(failure)?;
            let listed = Listed::of(&minted.key, now);
            let what =
                json!({"id": listed.id, "node": listed.node, "name": listed.name, "expires_at": listed.expires_at});
            if let Err(error) = audit.record(now, &Who::command_line(), "keys.mint", &what, "done") {
                // A key nobody is on record for must not open anything.
                keys.revoke(&listed.id, now).map_err(failure)?;
                let message = format!("the mint could not be audited, so the key was revoked again: {error}");
                return Err(Failure::Runtime(message));
            }
            Minted { key: minted.token, listed }
        }
    };
    if as_json {
        return print(&pretty(&minted));
    }
    let listed = &minted.listed;
    let expires = listed.expires_at.as_deref().unwrap_or("never");
    let name = listed.name.as_ref().map_or_else(String::new, |name| format!("name:    {name}\n"));
    print(&format!(
        "key:     {}\nid:      {}\nnode:    {}\n{name}expires: {expires}\nkept in: {}\n\
         The key is shown this once; only its hash is kept.\n",
        minted.key,
        listed.id,
        listed.node,
        store.name(),
    ))
}

/// Every key, without the keys themselves.
pub fn list(store: &Store, as_json: bool) -> Outcome {
    let keys = match store {
        Store::Replica(replica) => replica.get::<Keys>(PATH, &[])?,
        Store::File { keys, .. } => {
            let now = WallMs(io::clock::wall_ms());
            Keys { keys: keys.read().map_err(failure)?.iter().map(|key| Listed::of(key, now)).collect() }
        }
    };
    if as_json {
        return print(&pretty(&keys));
    }
    if keys.keys.is_empty() {
        return print(&format!("no keys in {}\n", store.name()));
    }
    let columns = ["ID", "NODE", "NAME", "STATE", "CREATED", "EXPIRES"].map(|name| (name, Align::Left));
    let lines: Vec<Vec<String>> = keys
        .keys
        .into_iter()
        .map(|key| {
            let expires = key.expires_at.unwrap_or_else(|| "never".to_owned());
            vec![key.id, key.node, key.name.unwrap_or_default(), key.state, key.created_at, expires]
        })
        .collect();
    print(&table(&columns, &lines))
}

/// Makes a key unusable.
pub fn revoke(store: &Store, id: &str) -> Outcome {
    let is_id = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    let unknown =
        || Failure::Refused(format!("there is no key `{id}` in {}; see `tokentriage keys list`", store.name()));
    if !is_id {
        return Err(unknown());
    }
    let listed = match store {
        Store::Replica(replica) => replica.delete::<Listed>(&format!("{PATH}/{id}"))?,
        Store::File { keys, audit, .. } => {
            let now = WallMs(io::clock::wall_ms());
            let (revoked, _) = keys.revoke(id, now).map_err(failure)?;
            let listed = Listed::of(&revoked.ok_or_else(unknown)?, now);
            let what = json!({"id": listed.id, "node": listed.node, "name": listed.name});
            audit.record(now, &Who::command_line(), "keys.revoke", &what, "done").map_err(|error| {
                Failure::Runtime(format!("the key is revoked, but that could not be audited: {error}"))
            })?;
            listed
        }
    };
    print(&format!("revoked {} ({})\n", listed.id, listed.node))
}

fn pretty(value: &impl Serialize) -> String {
    // Text and lists only: nothing in here can fail to become JSON.
    serde_json::to_string_pretty(value).unwrap_or_default() + "\n"
}

fn failure(error: KeyFileError) -> Failure {
    match error {
        KeyFileError::GlobalNode => Failure::Refused(format!("--node: {error}")),
        KeyFileError::Io { .. } | KeyFileError::Content { .. } => Failure::Runtime(error.to_string()),
    }
}

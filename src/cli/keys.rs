//! `tokentriage keys`: mint, list and revoke, in the store that the configuration names or through a running replica.
//!
//! A running replica takes up a change of its key file within half a second, one of a Postgres table when it is notified;
//! through its admin port it acts at once. Changes made here are in the audit file as well, and who made them in the
//! table; no replica need run.

use std::path::PathBuf;
use std::time::Duration;

use io::postgres::{Dsn, KeyRow, PgError, Session};

use serde::{Deserialize, Serialize};
use serde_json::json;
use shards::scope::Node;
use shards::units::WallMs;

use super::remote::Remote;
use super::table::{Align, table};
use super::{At, Failure, KeysArgs, KeysCommand, Outcome, print};
use crate::admin::{Keys, Listed, check_name};
use crate::audit::{AuditFile, Who};
use crate::config::{Config, Origin, Postgres};
use crate::identity_thread::{Times, within};
use crate::keys::{Key, KeyError, KeyFile};
use crate::when::{self, When};

const PATH: &str = "/tt/api/v1/keys";

pub fn run(args: KeysArgs) -> Outcome {
    match args.command {
        KeysCommand::Mint(args) => {
            mint(&Store::open(&args.at)?, &args.node, args.name.as_deref(), args.expires, args.output.json)
        }
        KeysCommand::List(args) => list(&Store::open(&args.at)?, args.output.json),
        KeysCommand::Revoke(args) => revoke(&Store::open(&args.at)?, &args.id),
    }
}

/// Where the keys are.
pub enum Store {
    /// On this machine.
    File { keys: KeyFile, path: PathBuf, audit: AuditFile },
    /// In a database that replicas follow. The audit file is there where the data folder is.
    Postgres { table: Box<Table>, audit: Option<AuditFile> },
    /// Behind the admin port of a running replica.
    Replica(Remote),
}

impl Store {
    /// The one that `--admin` names, else the one of the configuration.
    pub fn open(at: &At) -> Result<Self, Failure> {
        if let Some(replica) = Remote::of(at)? {
            return Ok(Store::Replica(replica));
        }
        let config = Origin::find(at.config()).load()?.config;
        if let Some(postgres) = &config.shared_state.postgres {
            let audit = config.data_dir.is_dir().then(|| AuditFile::of(&config.data_dir));
            return Ok(Store::Postgres { table: Box::new(Table::open(postgres, &config)?), audit });
        }
        let path = config.data_dir.join("keys.json");
        let keys = KeyFile::open(&path).map_err(|error| failure(error.into()))?;
        Ok(Store::File { keys, path, audit: AuditFile::of(&config.data_dir) })
    }

    fn name(&self) -> String {
        match self {
            Store::File { path, .. } => path.display().to_string(),
            Store::Postgres { table, .. } => format!("postgres at {}", table.dsn.endpoint()),
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
            audited_mint(audit, &listed, now, || {
                keys.revoke(&listed.id, now).map(drop).map_err(|e| failure(e.into()))
            })?;
            Minted { key: minted.token, listed }
        }
        Store::Postgres { table, audit } => {
            let minted = Key::mint(node, name.map(str::to_owned), expires, now).map_err(failure)?;
            let (row, by) = (KeyRow::from(&minted.key), table.by());
            table.ask(async |session: &Session| session.insert_key(&row, &by).await)?;
            let listed = Listed::of(&minted.key, now);
            if let Some(audit) = audit {
                let undo =
                    || table.ask(async |session: &Session| session.revoke_key(&row.id, now.0, &by).await).map(drop);
                audited_mint(audit, &listed, now, undo)?;
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

/// Writes the mint down. A key nobody is on record for must not open anything.
fn audited_mint(audit: &AuditFile, listed: &Listed, now: WallMs, undo: impl FnOnce() -> Outcome) -> Outcome {
    let what = json!({"id": listed.id, "node": listed.node, "name": listed.name, "expires_at": listed.expires_at});
    audit.record(now, &Who::command_line(), "keys.mint", &what, "done").or_else(|error| {
        undo()?;
        Err(Failure::Runtime(format!("the mint could not be audited, so the key was revoked again: {error}")))
    })
}

/// Every key, without the keys themselves.
pub fn list(store: &Store, as_json: bool) -> Outcome {
    let keys = match store {
        Store::Replica(replica) => replica.get::<Keys>(PATH, &[])?,
        Store::File { keys, .. } => {
            let now = WallMs(io::clock::wall_ms());
            let keys = keys.read().map_err(|error| failure(error.into()))?;
            Keys { keys: keys.iter().map(|key| Listed::of(key, now)).collect() }
        }
        Store::Postgres { table, .. } => {
            let now = WallMs(io::clock::wall_ms());
            let read = table.ask(async |session: &Session| session.keys().await)?;
            Keys { keys: read.keys.into_iter().map(|row| Listed::of(&Key::from(row), now)).collect() }
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
            let (revoked, _) = keys.revoke(id, now).map_err(|error| failure(error.into()))?;
            let listed = Listed::of(&revoked.ok_or_else(unknown)?, now);
            audited_revoke(audit, &listed, now)?;
            listed
        }
        Store::Postgres { table, audit } => {
            let now = WallMs(io::clock::wall_ms());
            let by = table.by();
            let revoked = table.ask(async |session: &Session| session.revoke_key(id, now.0, &by).await)?;
            let listed = Listed::of(&Key::from(revoked.ok_or_else(unknown)?), now);
            if let Some(audit) = audit {
                audited_revoke(audit, &listed, now)?;
            }
            listed
        }
    };
    print(&format!("revoked {} ({})\n", listed.id, listed.node))
}

fn audited_revoke(audit: &AuditFile, listed: &Listed, now: WallMs) -> Outcome {
    let what = json!({"id": listed.id, "node": listed.node, "name": listed.name});
    audit
        .record(now, &Who::command_line(), "keys.revoke", &what, "done")
        .map_err(|error| Failure::Runtime(format!("the key is revoked, but that could not be audited: {error}")))
}

/// The table of keys in Postgres, asked directly.
pub struct Table {
    dsn: Dsn,
    replica: String,
}

impl Table {
    /// Reads the connection string. Dials nothing yet.
    fn open(postgres: &Postgres, config: &Config) -> Result<Self, Failure> {
        let variable = postgres.dsn_env.as_str();
        let refused = |why: String| Failure::Refused(format!("shared_state.postgres.dsn_env: {variable} {why}"));
        let text = std::env::var(variable).map_err(|_| refused("is not set".to_owned()))?;
        let dsn = Dsn::parse(text.trim_end_matches(['\r', '\n']), "tokentriage/keys");
        let dsn = dsn.map_err(|error| refused(error.to_string()))?;
        Ok(Table { dsn, replica: config.replica.name.clone().unwrap_or_default() })
    }

    /// Who makes a change, for the table.
    fn by(&self) -> String {
        Who::command_line().on_replica(&self.replica)
    }

    /// Connects, makes the tables if this is the first time, and asks. Waits for the server, for a few deadlines at most.
    fn ask<T>(&self, ask: impl AsyncFnOnce(&Session) -> Result<T, PgError>) -> Result<T, Failure> {
        let failed = |error: &dyn std::fmt::Display| Failure::Runtime(format!("{}: {error}", self.dsn.endpoint()));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|e| failed(&e))?;
        let call = Times::FIXED.call;
        let asked = runtime.block_on(async {
            let session = within(call, "connecting", Session::open(&self.dsn)).await?;
            within(call, "the migration", session.migrate(true)).await?;
            within(call, "the answer", ask(&session)).await
        });
        runtime.shutdown_background(); // a resolver that hangs must not hang the shell
        asked.map_err(|error| failed(&error))
    }
}

fn pretty(value: &impl Serialize) -> String {
    // Text and lists only: nothing in here can fail to become JSON.
    serde_json::to_string_pretty(value).unwrap_or_default() + "\n"
}

fn failure(error: KeyError) -> Failure {
    match error {
        KeyError::GlobalNode => Failure::Refused(format!("--node: {error}")),
        KeyError::File(_) | KeyError::Store(_) | KeyError::Randomness(_) => Failure::Runtime(error.to_string()),
    }
}

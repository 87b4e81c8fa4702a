//! Several replicas on one Redis: one mock behind them all, one set of keys, short heartbeats.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use super::folder::Folder;
use super::gateway::{Gateway, Key};
use super::mock::{Mock, free_port};
use super::redis::RedisServer;
use super::setup::Setup;
use super::wait::{SOON, until, until_some};

/// The liveness window of a cluster; six heartbeats.
pub const WINDOW: Duration = Duration::from_millis(3_000);
const FLEET: &str = "heartbeat_ms: 500, liveness_window_ms: 3000";
/// As seldom as a configuration may ask for.
const SELDOM: &str = "heartbeat_ms: 60000, liveness_window_ms: 300000";

pub struct Cluster {
    pub redis: RedisServer,
    pub mock: Mock,
    /// What every replica has in common.
    common: Setup,
    keys: PathBuf,
    folder: Folder,
}

impl Cluster {
    /// `limits` adds the limits all replicas have.
    #[track_caller]
    pub fn start(limits: impl FnOnce(Setup) -> Setup) -> Self {
        let (redis, mock, folder) = (RedisServer::start(), Mock::start(), Folder::new());
        let common = limits(Setup::with_mock(&mock).redis(&redis.address()));
        Self { redis, mock, common, keys: folder.path().join("keys.json"), folder }
    }

    /// A replica of this name on the ledger (data folder) of that name, with the keys minted so far. Its admin port is
    /// known beforehand, so that it can be advertised.
    pub fn setup(&self, name: &str, ledger: &str) -> Setup {
        self.beating(name, ledger, FLEET)
    }

    /// A replica that hears of the others' coming and going once a minute.
    pub fn seldom_beating(&self, name: &str) -> Setup {
        self.beating(name, name, SELDOM)
    }

    fn beating(&self, name: &str, ledger: &str, fleet: &str) -> Setup {
        let data_dir = self.data_dir(ledger);
        std::fs::create_dir_all(&data_dir).expect("the test's folder can be written");
        if self.keys.exists() {
            std::fs::copy(&self.keys, data_dir.join("keys.json")).expect("keys can be copied");
        }
        let admin = free_port();
        self.common
            .clone()
            .replica(name)
            .data_dir(data_dir)
            .server("admin_listen", &admin.to_string())
            .section(&format!("fleet: {{ {fleet}, advertise_url: \"http://{admin}\" }}"))
    }

    /// Starts it and waits until it has heard of its peers' burn and of who is live.
    #[track_caller]
    pub fn replica(&self, name: &str) -> Gateway {
        let replica = self.setup(name, name).start();
        in_touch(&replica);
        replica
    }

    pub fn data_dir(&self, ledger: &str) -> PathBuf {
        self.folder.path().join(ledger)
    }

    /// A key that every replica started later knows.
    #[track_caller]
    pub fn mint(&self, by: &Gateway, node: &str) -> Key {
        let key = by.mint(node);
        let minted = by.data_dir.join("keys.json");
        std::fs::copy(minted, &self.keys).expect("keys can be copied");
        key
    }

    /// Waits until each of them counts as many.
    #[track_caller]
    pub fn wait_live(&self, replicas: &[&Gateway], n_live: u64, within: Duration) {
        until(&format!("{n_live} live replicas"), within, || {
            replicas.iter().all(|replica| fleet(replica)["n_live"] == n_live)
        });
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}

/// Waits until a replica has exchanged burn and heartbeats.
#[track_caller]
pub fn in_touch(replica: &Gateway) {
    until("the replica to have heard from the store", SOON, || {
        let health = replica.admin_get("/tt/api/v1/governance/health").json();
        health["suspensions"].as_array().is_some_and(Vec::is_empty) && fleet(replica)["degraded"] == false
    });
}

#[track_caller]
pub fn fleet(replica: &Gateway) -> Value {
    replica.admin_get("/tt/api/v1/fleet").expect(200).json()
}

#[track_caller]
pub fn health(replica: &Gateway) -> Value {
    replica.admin_get("/tt/api/v1/governance/health").expect(200).json()
}

/// One replica as another one sees it.
#[track_caller]
pub fn standing(seen_by: &Gateway, id: &str) -> Value {
    let roster = fleet(seen_by);
    let replicas = roster["replicas"].as_array().expect("a roster has replicas");
    replicas.iter().find(|replica| replica["id"] == id).cloned().unwrap_or(Value::Null)
}

#[track_caller]
pub fn wait_state(seen_by: &Gateway, id: &str, state: &str) {
    until_some(&format!("{id} to be {state}"), SOON, || (standing(seen_by, id)["state"] == state).then_some(()));
}

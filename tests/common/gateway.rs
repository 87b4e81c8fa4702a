//! A running gateway: the process, its two ports, its keys and its rows.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::Mutex;
use std::time::Duration;

use serde_json::{Value, json};

use super::bodies::{CHAT, chat};
use super::folder::Folder;
use super::http::{Request, Response, exchange, try_exchange};
use super::ledger::{self, Row};
use super::me::Me;
use super::metrics::Metrics;
use super::process::Process;
use super::setup::Setup;
use super::sse::Stream;
use super::wait::{SOON, until, until_some};

/// A virtual key as it was shown when minted.
#[derive(Clone, Debug)]
pub struct Key {
    pub id: String,
    pub secret: String,
}

pub struct Gateway {
    pub process: Process,
    /// Where callers connect.
    pub addr: SocketAddr,
    pub admin: SocketAddr,
    pub data_dir: PathBuf,
    /// Resident memory when it had just started, in KiB.
    pub rss_at_start_kib: u64,
    pub(super) minted: Mutex<Vec<Key>>,
    folder: Folder,
}

/// The binary under test: this package's, or the one of `TT_TEST_BIN`.
pub fn binary() -> PathBuf {
    std::env::var_os("TT_TEST_BIN").map_or_else(|| env!("CARGO_BIN_EXE_tokentriage").into(), PathBuf::from)
}

/// Starts the binary with a configuration, without waiting until it serves. Its folder must outlive it.
pub fn spawn(setup: &Setup, folder: &Path) -> (Process, PathBuf) {
    let data_dir = setup.data_dir.clone().unwrap_or_else(|| folder.join("data"));
    let config = folder.join("tokentriage.yaml");
    std::fs::write(&config, setup.yaml(&data_dir)).expect("the test's folder can be written");
    let mut command = Command::new(binary());
    command.arg("run").arg("-c").arg(&config).current_dir(folder).env_remove("TT_ADMIN_TOKEN");
    for (name, value) in &setup.env {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    (Process::spawn(&mut command), data_dir)
}

/// The two ports of the line that says the gateway is ready:
/// `{"time":…,"level":"INFO","msg":"listening","listen":"127.0.0.1:…","admin":"127.0.0.1:…"}`.
fn ports(line: &str) -> Option<(SocketAddr, SocketAddr)> {
    let line: Value = serde_json::from_str(line).ok()?;
    (line["msg"] == "listening").then_some(())?;
    Some((line["listen"].as_str()?.parse().ok()?, line["admin"].as_str()?.parse().ok()?))
}

impl Gateway {
    #[track_caller]
    pub fn start(setup: &Setup) -> Self {
        let folder = Folder::new();
        let (process, data_dir) = spawn(setup, folder.path());
        let (addr, admin) = until_some("the gateway to listen", SOON, || {
            if let Some(status) = process.exited() {
                let config = setup.yaml(&data_dir);
                panic!("the gateway ended with {status}:\n{}\nits configuration:\n{config}", process.stderr.text());
            }
            process.stderr.all().iter().find_map(|line| ports(line))
        });
        let rss_at_start_kib = process.memory_kib("VmRSS");
        Self { process, addr, admin, data_dir, rss_at_start_kib, minted: Mutex::default(), folder }
    }

    /// Writes another configuration over the file it was started with; SIGHUP or the admin API makes it read that.
    pub fn reconfigure(&self, setup: &Setup) {
        let config = self.folder.path().join("tokentriage.yaml");
        std::fs::write(config, setup.yaml(&self.data_dir)).expect("the test's folder can be written");
    }

    // ---- asking it, as a caller

    #[track_caller]
    pub fn post(&self, key: &Key, path: &str, body: &Value) -> Response {
        exchange(self.addr, &Request::post(path).key(&key.secret).json(body))
    }

    #[track_caller]
    pub fn post_text(&self, key: &Key, path: &str, body: &str) -> Response {
        exchange(self.addr, &Request::post(path).key(&key.secret).json_text(body))
    }

    /// One CHAT to a gateway that may die meanwhile: whether an answer came.
    pub fn send_gently(&self, key: &Key) -> bool {
        try_exchange(self.addr, &Request::post(CHAT).key(&key.secret).json(&chat("mock"))).is_some()
    }

    #[track_caller]
    pub fn get(&self, key: &Key, path: &str) -> Response {
        exchange(self.addr, &Request::get(path).key(&key.secret))
    }

    #[track_caller]
    pub fn send(&self, request: &Request) -> Response {
        exchange(self.addr, request)
    }

    /// Opens a stream and reads its head.
    #[track_caller]
    pub fn stream(&self, key: &Key, path: &str, body: &Value) -> Stream {
        Stream::open(self.addr, &Request::post(path).key(&key.secret).json(body))
    }

    /// What the key's limits say right now.
    #[track_caller]
    pub fn me(&self, key: &Key) -> Me {
        Me(self.get(key, "/tt/v1/me").expect(200).json())
    }

    /// Spends a limit of the LedgerSettled class with one healthy CHAT, and waits until the meter shows it.
    #[track_caller]
    pub fn exhaust(&self, key: &Key, limit_id: &str) {
        self.post(key, CHAT, &chat("mock")).expect(200);
        self.wait_exhausted(key, limit_id);
    }

    #[track_caller]
    pub fn wait_exhausted(&self, key: &Key, limit_id: &str) {
        until(&format!("{limit_id} to be spent"), SOON, || {
            let limit = self.me(key).limit(limit_id);
            limit.used() >= limit.amount()
        });
    }

    // ---- operating it

    #[track_caller]
    pub fn admin_get(&self, path: &str) -> Response {
        exchange(self.admin, &Request::get(path))
    }

    #[track_caller]
    pub fn admin_post(&self, path: &str, body: &Value) -> Response {
        exchange(self.admin, &Request::post(path).json(body))
    }

    #[track_caller]
    pub fn mint(&self, node: &str) -> Key {
        self.mint_with(json!({"node": node, "name": "test"}))
    }

    #[track_caller]
    pub fn mint_with(&self, body: Value) -> Key {
        let answer = self.admin_post("/tt/api/v1/keys", &body);
        assert!(matches!(answer.status, 200 | 201), "minting gave {}: {}", answer.status, answer.text());
        let answer = answer.json();
        let text =
            |member: &str| answer[member].as_str().unwrap_or_else(|| panic!("no {member} in {answer}")).to_owned();
        let key = Key { id: text("id"), secret: text("key") };
        self.minted.lock().unwrap().push(key.clone());
        key
    }

    #[track_caller]
    pub fn revoke(&self, key: &Key) {
        let answer = exchange(self.admin, &Request::new("DELETE", &format!("/tt/api/v1/keys/{}", key.id)));
        assert!(matches!(answer.status, 200 | 204), "revoking gave {}: {}", answer.status, answer.text());
        self.minted.lock().unwrap().retain(|minted| minted.id != key.id);
    }

    #[track_caller]
    pub fn metrics(&self) -> Metrics {
        Metrics::parse(&self.admin_get("/metrics").expect(200).text())
    }

    /// SIGTERM, and the exit it leads to.
    #[track_caller]
    pub fn stop(&self, within: Duration) -> ExitStatus {
        self.process.terminate();
        self.process.wait_exit(within)
    }

    pub fn log_text(&self) -> String {
        self.process.stderr.text()
    }

    // ---- its ledger

    pub fn ledger_dir(&self) -> PathBuf {
        self.data_dir.join("ledger")
    }

    pub fn rows(&self) -> Vec<Row> {
        ledger::rows(&self.ledger_dir())
    }

    /// How many rows there are, without reading what they say.
    pub fn row_count(&self) -> usize {
        ledger::count(&self.ledger_dir())
    }

    /// The one row of an answered request.
    #[track_caller]
    pub fn row(&self, answer: &super::http::Head) -> Row {
        self.row_of(&answer.request_id())
    }

    #[track_caller]
    pub fn row_of(&self, request_id: &str) -> Row {
        let find = || self.rows().into_iter().filter(|row| row.request_id() == request_id).collect::<Vec<_>>();
        let mut found =
            until_some(&format!("the row of {request_id}"), SOON, || Some(find()).filter(|r| !r.is_empty()));
        assert_eq!(found.len(), 1, "one row per request: {found:?}");
        found.remove(0)
    }

    /// Waits until the ledger holds `count` rows, within `within`, and gives them.
    #[track_caller]
    pub fn wait_rows(&self, count: usize, within: Duration) -> Vec<Row> {
        until(&format!("{count} rows"), within, || self.row_count() >= count);
        let rows = self.rows();
        assert_eq!(rows.len(), count, "exactly one row per request");
        rows
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let lines = self.process.stderr.all();
            let tail = &lines[lines.len().saturating_sub(60)..];
            eprintln!("---- the gateway's log, its last {} lines\n{}\n----", tail.len(), tail.join("\n"));
        }
        self.process.kill(); // before its folder goes
    }
}

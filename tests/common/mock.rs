//! The faulty upstream of `tests/data/mock_upstream.py`, on a port and with a log of its own.

use std::net::{SocketAddr, TcpStream};
use std::process::Command;

use serde_json::Value;
use socket2::{Domain, Socket, Type};

use super::folder::Folder;
use super::process::Process;
use super::wait::{SOON, until, until_some};

pub struct Mock {
    pub addr: SocketAddr,
    process: Process,
    folder: Folder,
}

/// One request as the upstream received it.
#[derive(Clone, Debug)]
pub struct Seen {
    pub method: String,
    pub path: String,
    pub headers: Vec<(String, String)>,
    /// `Null` when it was longer than 20,000 bytes.
    pub body: Value,
    pub body_bytes: u64,
}

impl Seen {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    pub fn model(&self) -> &str {
        self.body["model"].as_str().unwrap_or_default()
    }
}

impl Mock {
    pub fn start() -> Self {
        let folder = Folder::new();
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/mock_upstream.py");
        let mut command = Command::new("python3");
        command.args([script, "0"]).env("MOCK_LOG", folder.path().join("mock.jsonl")).env("MOCK_UNTIL_EOF", "1");
        let process = Process::spawn(&mut command);
        let addr = until_some("the mock upstream to listen", SOON, || {
            assert!(process.exited().is_none(), "the mock upstream ended: {}", process.stderr.text());
            process.stdout.all().iter().find_map(|line| line.strip_prefix("mock on ")?.split(' ').next()?.parse().ok())
        });
        Self { addr, process, folder }
    }

    pub fn base_url(&self) -> String {
        format!("http://{}/v1", self.addr)
    }

    /// The log as text, for a search.
    pub fn log_text(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("mock.jsonl")).unwrap_or_default()
    }

    fn log(&self) -> Vec<Value> {
        // a line without its end is still being written
        let text = self.log_text();
        let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        whole.map(|line| serde_json::from_str(line).expect("the mock logs JSON lines")).collect()
    }

    /// What callers caused, without the gateway's own look at `/v1/models`.
    pub fn requests(&self) -> Vec<Seen> {
        let log = self.log();
        let requests = log.iter().filter(|entry| entry.get("method").is_some()).map(seen);
        requests.filter(|seen| !seen.path.ends_with("/models")).collect()
    }

    /// The requests whose model's name is this.
    pub fn requests_for(&self, model: &str) -> Vec<Seen> {
        self.requests().into_iter().filter(|seen| seen.model() == model).collect()
    }

    #[track_caller]
    pub fn last_request(&self) -> Seen {
        self.requests().pop().expect("the mock upstream was asked")
    }

    /// How often the mock found its peer gone while writing an answer.
    pub fn peers_gone(&self) -> usize {
        self.log().iter().filter(|entry| entry.get("peer_gone").is_some()).count()
    }

    #[track_caller]
    pub fn wait_requests(&self, count: usize) {
        until(&format!("{count} requests at the upstream"), SOON, || self.requests().len() >= count);
    }

    #[track_caller]
    pub fn assert_untouched(&self) {
        let requests = self.requests();
        assert!(requests.is_empty(), "nothing should have reached the upstream, but: {requests:?}");
    }
}

fn seen(entry: &Value) -> Seen {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let headers = entry["headers"].as_array().expect("a request has headers");
    Seen {
        method: text(&entry["method"]),
        path: text(&entry["path"]),
        headers: headers.iter().map(|pair| (text(&pair[0]), text(&pair[1]))).collect(),
        body: entry["body"].clone(),
        body_bytes: entry["len"].as_u64().unwrap_or(0),
    }
}

/// A port for a server that cannot choose one: free now, and another process may be faster.
pub fn free_port() -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback has free ports");
    listener.local_addr().expect("a bound socket has an address")
}

/// A port where connecting hangs: its queue is full and nobody takes from it, until this process ends.
pub fn full_port() -> SocketAddr {
    let listener = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket can be had");
    listener.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("loopback has free ports");
    listener.listen(0).expect("a bound socket listens"); // room for one
    let addr = listener.local_addr().ok().and_then(|addr| addr.as_socket()).expect("a bound socket has an address");
    std::mem::forget(TcpStream::connect(addr).expect("the first is taken in"));
    std::mem::forget(listener);
    addr
}

/// A port where connecting is refused: taken by a socket that does not listen, until this process ends.
pub fn dead_port() -> SocketAddr {
    let taken = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket can be had");
    taken.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("loopback has free ports");
    let addr = taken.local_addr().ok().and_then(|addr| addr.as_socket()).expect("a bound socket has an address");
    std::mem::forget(taken);
    addr
}

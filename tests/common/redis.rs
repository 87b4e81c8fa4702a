//! A real redis-server of one test, on a free port, that can be frozen, killed, restarted and reconfigured.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use io::redis::resp::{self, Reply};

use super::folder::Folder;
use super::process::Process;
use super::wait::{SOON, until};

pub struct RedisServer {
    pub addr: SocketAddr,
    process: Mutex<Process>,
    password: Mutex<Option<String>>,
    args: Vec<String>,
    folder: Folder,
}

impl RedisServer {
    /// Keeps nothing on disk and takes no password.
    #[track_caller]
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// With more arguments, such as `["--requirepass", "secret"]`.
    #[track_caller]
    pub fn start_with(args: &[&str]) -> Self {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        let password = args.iter().position(|arg| arg == "--requirepass").and_then(|at| args.get(at + 1)).cloned();
        let folder = Folder::new();
        // Redis cannot choose a free port by itself; between our look and its bind another process may take it.
        for _ in 0..20 {
            let addr = super::mock::free_port();
            let process = spawn(addr, &args, &folder);
            if let Some(process) = process {
                return Self { addr, process: Mutex::new(process), password: Mutex::new(password), args, folder };
            }
        }
        panic!("redis-server found no free port");
    }

    /// `host:port`, as the config wants it.
    pub fn address(&self) -> String {
        self.addr.to_string()
    }

    // ---- asking it

    /// One command over a connection of its own.
    #[track_caller]
    pub fn ask(&self, parts: &[&str]) -> Reply {
        let mut stream = connect(self.addr);
        if let Some(password) = &*self.password.lock().unwrap() {
            let reply = exchange(&mut stream, &[b"AUTH", password.as_bytes()]);
            assert!(reply.error().is_none(), "AUTH: {reply:?}");
        }
        let parts: Vec<&[u8]> = parts.iter().map(|part| part.as_bytes()).collect();
        exchange(&mut stream, &parts)
    }

    /// A command that must succeed.
    #[track_caller]
    pub fn tell(&self, parts: &[&str]) {
        let reply = self.ask(parts);
        assert!(reply.error().is_none(), "{parts:?}: {reply:?}");
    }

    /// Every key.
    #[track_caller]
    pub fn keys(&self) -> Vec<String> {
        let reply = self.ask(&["KEYS", "*"]);
        let keys = reply.array().unwrap_or_else(|| panic!("{reply:?}"));
        keys.iter().map(|key| String::from_utf8_lossy(key.bytes().unwrap_or_default()).into_owned()).collect()
    }

    /// How often a command was run, by `INFO commandstats`.
    #[track_caller]
    pub fn calls(&self, command: &str) -> u64 {
        let reply = self.ask(&["INFO", "commandstats"]);
        let text = String::from_utf8_lossy(reply.bytes().unwrap_or_default()).into_owned();
        let line =
            text.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")).map(str::to_owned));
        line.and_then(|rest| rest.split(',').next()?.parse().ok()).unwrap_or(0)
    }

    // ---- hurting it

    /// It stops without a word: connections stay open and nothing answers.
    pub fn freeze(&self) {
        self.process.lock().unwrap().signal(libc::SIGSTOP);
    }

    pub fn thaw(&self) {
        self.process.lock().unwrap().signal(libc::SIGCONT);
    }

    pub fn kill(&self) {
        self.process.lock().unwrap().kill();
    }

    /// A fresh process on the same port, which remembers nothing.
    #[track_caller]
    pub fn restart(&self) {
        let mut process = self.process.lock().unwrap();
        process.kill();
        super::wait::until_some("redis-server to have its port again", SOON, || {
            spawn(self.addr, &self.args, &self.folder).map(|fresh| *process = fresh)
        });
        *self.password.lock().unwrap() =
            self.args.iter().position(|arg| arg == "--requirepass").and_then(|at| self.args.get(at + 1)).cloned();
    }

    /// Takes another password from now on (none, when it is empty) and drops everybody who said the old one.
    #[track_caller]
    pub fn change_password(&self, password: &str) {
        self.tell(&["CONFIG", "SET", "requirepass", password]);
        *self.password.lock().unwrap() = Some(password.to_owned()).filter(|password| !password.is_empty());
        self.tell(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    }
}

/// `None` when it ended at once, as it does when the port is taken.
fn spawn(addr: SocketAddr, args: &[String], folder: &Folder) -> Option<Process> {
    let mut command = Command::new("redis-server");
    command.args(["--bind", "127.0.0.1", "--port", &addr.port().to_string(), "--save", "", "--appendonly", "no"]);
    command.args(["--daemonize", "no", "--dir"]).arg(folder.path()).args(args);
    let process = Process::spawn(&mut command);
    let mut ended = false;
    until("redis-server to answer", SOON, || {
        ended = process.exited().is_some();
        // A password, or a replica without its primary, answers with an error, which is an answer.
        ended || process.stdout.all().iter().any(|line| line.contains("Ready to accept connections"))
    });
    (!ended).then_some(process)
}

fn connect(addr: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(addr).expect("redis-server accepts connections");
    stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a plain socket");
    stream
}

#[track_caller]
fn exchange(stream: &mut TcpStream, parts: &[&[u8]]) -> Reply {
    let mut bytes = Vec::new();
    resp::command(&mut bytes, parts);
    stream.write_all(&bytes).expect("redis-server takes a command");
    let (mut received, mut chunk) = (Vec::new(), [0; 16 << 10]);
    loop {
        if let Some((reply, _)) = resp::read(&received).expect("redis-server speaks RESP") {
            return reply;
        }
        let count = stream.read(&mut chunk).expect("redis-server answers");
        assert!(count > 0, "redis-server closed the connection");
        received.extend_from_slice(&chunk[..count]);
    }
}

//! A child process whose output is kept, that can be signalled, and that never outlives its test.

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::wait::{until, until_some};

#[derive(Clone, Default)]
pub struct Lines(Arc<Mutex<Vec<String>>>);

impl Lines {
    pub fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    pub fn text(&self) -> String {
        self.all().join("\n")
    }

    /// Collects lines until the pipe is closed.
    fn follow(&self, pipe: impl Read + Send + 'static) -> JoinHandle<()> {
        let lines = self.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(pipe).split(b'\n').map_while(Result::ok) {
                lines.0.lock().unwrap().push(String::from_utf8_lossy(&line).into_owned());
            }
        })
    }
}

/// What the last lines of a process may take to be read here. A grandchild that keeps a pipe open hangs nobody for longer.
const LAST_LINES: Duration = Duration::from_secs(2);

pub struct Process {
    child: Mutex<Child>,
    pub pid: u32,
    pub stdout: Lines,
    pub stderr: Lines,
    followers: [JoinHandle<()>; 2],
}

impl Process {
    /// Starts it with both outputs followed. Its input stays open until it is dropped.
    pub fn spawn(command: &mut Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        let (stdout, stderr) = (Lines::default(), Lines::default());
        let followers = [
            stdout.follow(child.stdout.take().expect("piped above")),
            stderr.follow(child.stderr.take().expect("piped above")),
        ];
        Self { pid: child.id(), child: Mutex::new(child), stdout, stderr, followers }
    }

    pub fn exited(&self) -> Option<ExitStatus> {
        self.child.lock().unwrap().try_wait().expect("our own child can be waited for")
    }

    /// Waits until it is gone and its last lines are here.
    #[track_caller]
    pub fn wait_exit(&self, within: Duration) -> ExitStatus {
        let status = until_some("the process to exit", within, || self.exited());
        let deadline = Instant::now() + LAST_LINES;
        while !self.is_read() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        status
    }

    /// Whether both outputs are closed and all that came is kept.
    fn is_read(&self) -> bool {
        self.followers.iter().all(JoinHandle::is_finished)
    }

    pub fn terminate(&self) {
        self.signal(libc::SIGTERM);
    }

    /// kill -9, and waits until it is gone.
    pub fn kill(&self) {
        let mut child = self.child.lock().unwrap();
        let _ = child.kill(); // it may have exited by itself
        let _ = child.wait();
    }

    pub fn signal(&self, signal: libc::c_int) {
        // The lock keeps the child unreaped, so the pid cannot belong to another process.
        let mut child = self.child.lock().unwrap();
        if child.try_wait().is_ok_and(|exited| exited.is_none()) {
            // SAFETY: kill(2) takes two integers and touches no memory of ours.
            unsafe { libc::kill(self.pid as libc::pid_t, signal) };
        }
    }

    /// One number from /proc/PID/status, in KiB: `VmRSS`, or `VmHWM` for its peak.
    pub fn memory_kib(&self, field: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
    }

    /// The TCP connections of this process: its own address and the peer's. Listening sockets are not among them.
    pub fn peers(&self) -> Vec<(SocketAddr, SocketAddr)> {
        let fds = std::fs::read_dir(format!("/proc/{}/fd", self.pid)).into_iter().flatten().flatten();
        let links = fds.filter_map(|fd| std::fs::read_link(fd.path()).ok()?.to_str().map(str::to_owned));
        let own: HashSet<String> =
            links.filter_map(|link| Some(link.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())).collect();
        let tables = ["tcp", "tcp6"].map(|table| std::fs::read_to_string(format!("/proc/{}/net/{table}", self.pid)));
        let lines: Vec<String> =
            tables.into_iter().flatten().flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>()).collect();
        let connections = lines.iter().filter_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let (local, peer) = (kernel_address(words.get(1)?)?, kernel_address(words.get(2)?)?);
            (own.contains(*words.get(9)?) && peer.port() != 0).then_some((local, peer))
        });
        connections.collect()
    }

    pub fn open_files(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.pid)).map_or(0, Iterator::count)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// `0100007F:1F90`: words in the machine's order, which is the reverse of the network's here.
fn kernel_address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let words: Option<Vec<u8>> = (0..ip.len() / 8)
        .map(|nth| u32::from_str_radix(ip.get(nth * 8..nth * 8 + 8)?, 16).ok().map(u32::to_le_bytes))
        .collect::<Option<Vec<[u8; 4]>>>()
        .map(|words| words.concat());
    let ip = match <[u8; 4]>::try_from(words.as_deref()?) {
        Ok(four) => IpAddr::V4(Ipv4Addr::from(four)),
        Err(_) => IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(words.as_deref()?).ok()?)).to_canonical(),
    };
    Some(SocketAddr::new(ip, port))
}

/// Runs a command to its end and gives its status and output; kills it when it takes longer than `within`.
#[track_caller]
pub fn run(command: &mut Command, within: Duration) -> (ExitStatus, String, String) {
    let process = Process::spawn(command);
    let status = until_some(&format!("{command:?} to end"), within, || process.exited());
    // its last lines may still be on the way; a grandchild that keeps a pipe open must not hang us, so no join
    until("the output to be read", within, || process.is_read());
    (status, process.stdout.text(), process.stderr.text())
}

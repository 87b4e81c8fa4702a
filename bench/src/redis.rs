//! A Redis of our own, and what befalls it: the shared store of the scenarios about it.

use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::process::Process;
use crate::scenario::Redis;
use crate::targets;
use crate::trouble::{Result, While, trouble};

/// How long it may take to start; it loads nothing.
const OPEN_WITHIN: Duration = Duration::from_secs(10);

pub struct RedisServer {
    pub addr: SocketAddr,
    program: PathBuf,
    folder: PathBuf,
    cpus: Vec<usize>,
    process: Option<Process>,
}

impl RedisServer {
    /// Starts it on a free loopback port, keeping nothing on disk. `None` when it is not installed.
    pub fn start(folder: &Path, cpus: &[usize]) -> Result<Option<Self>> {
        let Some(program) = targets::find_peer("redis-server", folder) else { return Ok(None) };
        std::fs::create_dir_all(folder).whilst(|| format!("cannot make {}", folder.display()))?;
        let addr = targets::free_addr()?;
        let mut server = Self { addr, program, folder: folder.to_owned(), cpus: cpus.to_vec(), process: None };
        server.spawn()?;
        Ok(Some(server))
    }

    fn spawn(&mut self) -> Result<()> {
        let mut command = Command::new(&self.program);
        command.args([
            "--bind",
            "127.0.0.1",
            "--port",
            &self.addr.port().to_string(),
            "--save",
            "",
            "--appendonly",
            "no",
        ]);
        command.current_dir(&self.folder);
        let process = Process::start(command, &self.cpus, &self.folder.join("log"))?;
        let began = Instant::now();
        while TcpStream::connect(self.addr).is_err() {
            if began.elapsed() > OPEN_WITHIN {
                return trouble(format!("redis-server did not start:\n{}", process.log_tail()));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        self.process = Some(process);
        Ok(())
    }

    pub fn cpu_ns(&self) -> u64 {
        self.process.as_ref().map_or(0, Process::cpu_ns)
    }

    pub fn befall(&mut self, fault: Redis) {
        match (fault, &self.process) {
            (Redis::Frozen, Some(process)) => process.signal(libc::SIGSTOP),
            (Redis::Dead, Some(process)) => process.signal(libc::SIGKILL),
            _ => {}
        }
    }

    /// As before the fault.
    pub fn recover(&mut self, fault: Redis) -> Result<()> {
        match fault {
            Redis::Healthy => {}
            Redis::Frozen => self.process.iter().for_each(|process| process.signal(libc::SIGCONT)),
            Redis::Dead => {
                self.process = None;
                self.spawn()?;
            }
        }
        Ok(())
    }
}

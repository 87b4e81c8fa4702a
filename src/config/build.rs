//! From the file's shape to the typed configuration: required keys, defaults, and what one key must look like.
//!
//! Goes on after every mistake, with a stand-in value that never leaves this module's caller: a configuration with an
//! error in its report is not handed out. Rules that tie several sections together are in `validate`; rules about
//! limits in the pure crate.

mod governance;
mod shared;
mod upstream;

use std::path::PathBuf;
use std::time::Duration;

use super::default;
use super::diagnostics::Report;
use super::leaf::{Span, Text};
use super::read::Given;
use super::schema;
use super::types::*;

/// Makes the configuration and reports every key that is missing or malformed.
pub fn config(file: schema::File, report: &mut Report) -> Config {
    Config {
        server: server(file.server.0.unwrap_or_default(), report),
        data_dir: path(file.data_dir, "data_dir", default::data_dir(), report),
        replica: replica(file.replica.0.unwrap_or_default(), report),
        upstreams: upstream::upstreams(file.upstreams, report),
        pricing: governance::pricing(file.pricing, report),
        ledger: ledger(file.ledger.0.unwrap_or_default(), report),
        governance: governance::governance(file.governance.0.unwrap_or_default()),
        shared_state: shared::shared_state(file.shared_state.0.unwrap_or_default(), report),
        fleet: shared::fleet(file.fleet.0.unwrap_or_default(), report),
        experimental: shared::experimental(file.experimental.0.unwrap_or_default(), report),
    }
}

fn server(file: schema::Server, report: &mut Report) -> Server {
    let default = Server::default();
    Server {
        listen: file.listen.0.map_or(default.listen, |address| address.0),
        admin_listen: file.admin_listen.0.map_or(default.admin_listen, |address| address.0),
        admin_token_env: file.admin_token_env.0,
        cores: file.cores.0.unwrap_or(default.cores),
        driver: file.driver.0.unwrap_or(default.driver),
        pin: file.pin.0.unwrap_or(default.pin),
        tls: file.tls.0.map(|tls| Tls {
            cert_file: required_path(tls.cert_file, "server.tls.cert_file", report),
            key_file: required_path(tls.key_file, "server.tls.key_file", report),
        }),
        max_head_bytes: file.max_head_bytes.0.map_or(default.max_head_bytes, |size| size.0),
        max_body_bytes: file.max_body_bytes.0.map_or(default.max_body_bytes, |size| size.0),
        head_timeout: duration(file.head_timeout, default.head_timeout),
        body_timeout: duration(file.body_timeout, default.body_timeout),
        idle_timeout: duration(file.idle_timeout, default.idle_timeout),
        drain_timeout: duration(file.drain_timeout, default.drain_timeout),
        max_connections: file.max_connections.0.map_or(default.max_connections, |count| whole_u32(count.0)),
        cors: Cors { allow_origins: origins(file.cors.0.unwrap_or_default(), report) },
    }
}

fn origins(file: schema::Cors, report: &mut Report) -> Vec<String> {
    let mut origins = Vec::new();
    for (index, origin) in texts(file.allow_origins) {
        let path = format!("server.cors.allow_origins[{index}]");
        match origin.as_str() {
            "*" => origins.push(origin),
            _ => match upstream::parse_base_url(&origin) {
                Ok(BaseUrl::Http(http)) if http.base_path.is_empty() && !origin.ends_with('/') => {
                    origins.push(BaseUrl::Http(http).to_string());
                }
                _ => report.error(
                    &path,
                    format!("`{origin}` is no origin"),
                    "write a scheme and a host without a path, such as https://app.example.com, or \"*\"",
                ),
            },
        }
    }
    origins
}

fn replica(file: schema::Replica, report: &mut Report) -> Replica {
    let name = file.name.0.map(|name| name.0);
    if let Some(name) = name.as_ref().filter(|name| !is_dns_label(name)) {
        report.error(
            "replica.name",
            format!("`{name}` is no DNS label"),
            "use 1 to 63 of a-z, 0-9 and -, not at either end: the name stands in host names and in shared keys",
        );
    }
    Replica { name, name_env: file.name_env.0 }
}

fn ledger(file: schema::Ledger, report: &mut Report) -> Ledger {
    let default = Ledger::default();
    Ledger {
        dir: path(file.dir, "ledger.dir", default.dir, report),
        sync: file.sync.0.unwrap_or(default.sync),
        sync_interval: duration(file.sync_interval, default.sync_interval),
        segment_bytes: file.segment_bytes.0.map_or(default.segment_bytes, |size| size.0),
        retain: duration(file.retain, default.retain),
    }
}

/// `a-z`, `0-9` and inner hyphens, 1 to 63 of them.
pub fn is_dns_label(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=63).contains(&text.len()) && text.bytes().all(inner) && !text.starts_with('-') && !text.ends_with('-')
}

/// `[a-z0-9_-]{1,64}`: what limits and upstreams are called.
fn is_id(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'_' | b'-');
    (1..=64).contains(&text.len()) && text.bytes().all(inner)
}

fn path(given: Given<Text>, at: &str, default: PathBuf, report: &mut Report) -> PathBuf {
    match given.0 {
        Some(Text(text)) if text.trim().is_empty() => {
            report.error(at, "the path is empty", format!("write a path, or remove the key for {}", default.display()));
            default
        }
        Some(Text(text)) => PathBuf::from(text),
        None => default,
    }
}

fn required_path(given: Given<Text>, at: &str, report: &mut Report) -> PathBuf {
    match given.0 {
        Some(Text(text)) if !text.trim().is_empty() => PathBuf::from(text),
        _ => {
            report.error(at, "is missing", "name the PEM file, or remove server.tls to serve without TLS");
            PathBuf::new()
        }
    }
}

/// A required text. The stand-in for a missing one is empty.
fn required(given: Given<Text>, at: &str, remedy: &str, report: &mut Report) -> String {
    match given.0 {
        Some(Text(text)) if !text.trim().is_empty() => text,
        Some(_) => {
            report.error(at, "is empty", remedy);
            String::new()
        }
        None => {
            report.error(at, "is missing", remedy);
            String::new()
        }
    }
}

/// The texts of a list with their index in the file.
fn texts(given: Given<Vec<Given<Text>>>) -> impl Iterator<Item = (usize, String)> {
    given.0.unwrap_or_default().into_iter().enumerate().filter_map(|(index, text)| Some((index, text.0?.0)))
}

fn duration<const MIN_MS: u64, const MAX_MS: u64>(given: Given<Span<MIN_MS, MAX_MS>>, default: Duration) -> Duration {
    given.0.map_or(default, |span| span.0)
}

/// The kinds of `schema` bound every count that is kept in 32 bits.
fn whole_u32(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

//! Sections that matter once there is more than one replica: shared stores, the fleet, the federation preview.

use std::collections::HashSet;

use super::super::diagnostics::Report;
use super::super::leaf::Consent;
use super::super::read::Given;
use super::super::schema;
use super::super::types::*;
use super::upstream::{parse_base_url, split_authority};
use super::{is_dns_label, required};

pub fn shared_state(file: schema::SharedState, report: &mut Report) -> SharedState {
    SharedState {
        redis: file.redis.0.map(|redis| self::redis(redis, report)),
        postgres: file.postgres.0.map(|postgres| self::postgres(postgres, report)),
    }
}

fn redis(file: schema::Redis, report: &mut Report) -> Redis {
    consent(file.external, "shared_state.redis", "addr", report);
    let at = "shared_state.redis.addr";
    let addr = required(file.addr, at, "write host:port, such as \"10.0.0.10:6379\"", report);
    if !addr.is_empty() && !matches!(split_authority(&addr), Some((_, Some(_)))) {
        let message = if addr.contains('@') {
            "is no host with a port".to_owned()
        } else {
            format!("`{addr}` is no host with a port")
        };
        report.error(
            at,
            message,
            "write host:port without a scheme, such as \"10.0.0.10:6379\"; tls and password_env are keys of their own",
        );
    }
    Redis { external: Allow::Allow, addr, password_env: file.password_env.0, tls: file.tls.0.unwrap_or(false) }
}

fn postgres(file: schema::Postgres, report: &mut Report) -> Postgres {
    consent(file.external, "shared_state.postgres", "dsn_env", report);
    let dsn_env = file.dsn_env.0.unwrap_or_else(|| {
        let remedy = "name the environment variable that holds the connection string";
        report.error("shared_state.postgres.dsn_env", "is missing", remedy);
        EnvName(String::new())
    });
    Postgres { external: Allow::Allow, dsn_env }
}

/// Nothing dials out unless somebody typed the word.
fn consent(given: Given<Consent>, at: &str, address_key: &str, report: &mut Report) {
    let remedy = "write `external: allow`: it lets the process dial more than its upstreams, so it must be typed";
    match given.0 {
        Some(Consent(word)) if word == "allow" => {}
        Some(Consent(word)) => report.error(
            &format!("{at}.external"),
            format!("`{word}` is no consent; the only one is the literal word allow"),
            format!("{remedy}, or remove {at}"),
        ),
        None => report.error(
            &format!("{at}.external"),
            format!("{address_key} points out of this process without the consent `external: allow`"),
            format!("{remedy}, or remove {at}"),
        ),
    }
}

pub fn fleet(file: schema::Fleet, report: &mut Report) -> Fleet {
    let default = Fleet::default();
    let advertise_url = file.advertise_url.0.map(|text| text.0);
    if let Some(url) = &advertise_url {
        url_of_a_peer(url, "fleet.advertise_url", report);
    }
    Fleet {
        heartbeat: file.heartbeat_ms.0.map_or(default.heartbeat, |ms| std::time::Duration::from_millis(ms.0)),
        liveness_window: file
            .liveness_window_ms
            .0
            .map_or(default.liveness_window, |ms| std::time::Duration::from_millis(ms.0)),
        advertise_url,
        advertise_url_env: file.advertise_url_env.0,
        peer_token_env: file.peer_token_env.0,
    }
}

pub fn experimental(file: schema::Experimental, report: &mut Report) -> Experimental {
    let file = file.federation.0.unwrap_or_default();
    let mut names = HashSet::new();
    let mut instances = Vec::new();
    for (index, item) in file.instances.0.unwrap_or_default().into_iter().enumerate() {
        let Some(item) = item.0 else { continue };
        let at = format!("experimental.federation.instances[{index}]");
        let name = required(item.name, &format!("{at}.name"), "name the instance, such as eu", report);
        if !name.is_empty() && !is_dns_label(&name) {
            let remedy = "use 1 to 63 of a-z, 0-9 and -, not at either end";
            report.error(&format!("{at}.name"), format!("`{name}` is no DNS label"), remedy);
        }
        if !name.is_empty() && !names.insert(name.clone()) {
            report.error(
                &format!("{at}.name"),
                format!("there is another instance `{name}`"),
                "give each its own name",
            );
        }
        let remedy = "write the URL of its admin port, such as https://eu.example.com:9090";
        let url = required(item.url, &format!("{at}.url"), remedy, report);
        if !url.is_empty() {
            url_of_a_peer(&url, &format!("{at}.url"), report);
        }
        instances.push(Instance { name, url, token_env: item.token_env.0 });
    }
    Experimental { federation: Federation { enabled: file.enabled.0.unwrap_or(false), instances } }
}

fn url_of_a_peer(url: &str, at: &str, report: &mut Report) {
    let why = match parse_base_url(url) {
        Ok(BaseUrl::Http(_)) => return,
        Ok(BaseUrl::Mock) => format!("`{url}` is no URL with http:// or https:// in front"),
        Err(why) => why,
    };
    report.error(at, why, "write the URL of an admin port, such as http://tt-0.tt.svc:9090");
}

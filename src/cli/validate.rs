//! `tokentriage validate`: the whole compile that `run` does, a look at the variables and files it needs, and a summary.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::io;

use shards::limit::{Class, Limit, LimitType};
use shards::rate::Clock0;

use super::{Outcome, ValidateArgs, color, print};
use crate::config::diagnostics::render;
use crate::config::{self, Compiled, Config, Environment, Loaded, Origin, Surroundings};

pub fn run(args: &ValidateArgs) -> Outcome {
    let origin = Origin::find(args.config.config.as_deref());
    let loaded = origin.load()?;
    let compiled = config::compile(&loaded, Clock0::default())?;
    let environment = config::environment(&loaded, &Surroundings::of_process());
    let all = loaded.warnings.iter().chain(&compiled.warnings).chain(&environment.warnings);
    let warnings: Vec<_> = all.cloned().collect();
    let text = render(&warnings, &loaded.source, color());
    let _ = io::Write::write_all(&mut io::stderr(), text.as_bytes()); // warnings nobody hears do not make it invalid
    print(&summary(&origin, &loaded, &compiled, &environment))
}

fn summary(origin: &Origin, loaded: &Loaded, compiled: &Compiled, environment: &Environment) -> String {
    let config = &loaded.config;
    let mut text = format!("configuration: {}\n", origin.name());
    upstreams(config, &mut text);
    limits(config, compiled, &mut text);
    tiers(config, &mut text);
    if environment.refusals > 0 {
        let what = if environment.refusals == 1 { "1 thing" } else { &format!("{} things", environment.refusals) };
        push(&mut text, format_args!("environment: `run` would not start here, for want of {what} named above"));
    }
    text.push_str("OK: configuration is valid\n");
    text
}

fn upstreams(config: &Config, text: &mut String) {
    let width =
        |of: fn(&config::Upstream) -> String| config.upstreams.iter().map(|item| of(item).len()).max().unwrap_or(0);
    let id_width = width(|upstream| upstream.id.clone());
    let url_width = width(|upstream| upstream.base_url.to_string());
    push(text, format_args!("upstreams: {}", config.upstreams.len()));
    for upstream in &config.upstreams {
        let api = match upstream.api {
            config::Api::Openai => "openai",
            config::Api::Anthropic => "anthropic",
        };
        let url = upstream.base_url.to_string();
        let models = upstream.models.join(", ");
        push(text, format_args!("  {:id_width$}  {api:9}  {url:url_width$}  {models}", upstream.id));
    }
}

fn limits(config: &Config, compiled: &Compiled, text: &mut String) {
    let limits = &compiled.limits.limits;
    let in_shadow = |of: &[&Limit]| match of.iter().filter(|limit| !limit.is_enforcing()).count() {
        0 => String::new(),
        shadow => format!(", {shadow} in shadow"),
    };
    let all: Vec<&Limit> = limits.iter().map(|limit| &**limit).collect();
    let off = if config.governance.enabled { "" } else { " (governance.enabled is false: none is asked)" };
    push(text, format_args!("limits: {}{}{off}", all.len(), in_shadow(&all)));
    // In the order of the classes, and inside one in the order of the store's name.
    let mut groups: BTreeMap<(u8, &str), Vec<&Limit>> = BTreeMap::new();
    for limit in all {
        let (rank, store) = match limit.kind.class() {
            Class::LedgerSettled => (0, "ledger"),
            Class::AdmissionCounted => (1, limit.store.as_str()),
            Class::ReserveReconcile => (2, limit.store.as_str()),
            Class::InflightLease => (3, limit.store.as_str()),
        };
        groups.entry((rank, store)).or_default().push(limit);
    }
    // A class by the types that are in it, in the words of the file.
    let types = |group: &[&Limit]| {
        let kinds = LimitType::ALL.iter().filter(|kind| group.iter().any(|limit| limit.kind == **kind));
        kinds.map(|kind| kind.as_str()).collect::<Vec<_>>().join(", ")
    };
    let width = groups.values().map(|group| types(group).len()).max().unwrap_or(0);
    for ((_, store), group) in &groups {
        push(text, format_args!("  {:width$}  {store:6}  {}{}", types(group), group.len(), in_shadow(group)));
    }
}

fn tiers(config: &Config, text: &mut String) {
    let shared = &config.shared_state;
    let redis = shared.redis.as_ref().map(|redis| format!("redis {}", redis.addr));
    let postgres = shared.postgres.as_ref().map(|postgres| format!("postgres ${}", postgres.dsn_env.as_str()));
    let tiers: Vec<String> = redis.into_iter().chain(postgres).collect();
    match tiers.is_empty() {
        true => push(text, format_args!("tiers: none (nothing but upstreams is dialled)")),
        false => push(text, format_args!("tiers: {}", tiers.join(", "))),
    }
}

fn push(text: &mut String, line: std::fmt::Arguments<'_>) {
    let line = line.to_string();
    let _ = writeln!(text, "{}", line.trim_end()); // writing to a string does not fail
}

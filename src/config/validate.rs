//! Rules that tie sections together, and the one compile that `validate`, `run` and reload share.
//!
//! What a single key must look like is in `build`; what limits and prices must be is in the pure crate, called from
//! here. Nothing is refused anywhere else, except what only the running machine can know: ports, files, variables.

use std::collections::HashMap;
use std::net::IpAddr;

use shards::plan::{CompileInput, LimitSet, Problem};
use shards::price::{PriceBook, PriceOverride};
use shards::rate::Clock0;
use shards::scope::Glob;

use super::diagnostics::{Diagnostic, Errors, Report, Severity};
use super::load::Loaded;
use super::replica::{self, ReplicaSource, Surroundings};
use super::types::*;

/// What a configuration compiles to, beside the configuration itself.
pub struct Compiled {
    pub limits: LimitSet,
    pub prices: PriceBook,
    /// Warnings the compile adds to those of the load.
    pub warnings: Vec<Diagnostic>,
}

impl std::fmt::Debug for Compiled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compiled")
            .field("limits", &self.limits)
            .field("warnings", &self.warnings)
            .finish_non_exhaustive()
    }
}

/// Compiles limits and prices. `clock0` aligns rate windows where requests are served; its default will do elsewhere.
pub fn compile(loaded: &Loaded, clock0: Clock0) -> Result<Compiled, Errors> {
    let mut report = Report::default();
    let compiled = limits_and_prices(&loaded.config, clock0, &mut report);
    let has_errors = report.has_errors();
    let diagnostics = report.into_diagnostics(&loaded.source);
    match compiled {
        Some((limits, prices)) if !has_errors => Ok(Compiled { limits, prices, warnings: diagnostics }),
        _ => {
            let diagnostics = loaded.warnings.iter().cloned().chain(diagnostics).collect();
            Err(Errors { source: loaded.source.clone(), diagnostics })
        }
    }
}

/// `None` when at least one error was reported.
pub(super) fn limits_and_prices(config: &Config, clock0: Clock0, report: &mut Report) -> Option<(LimitSet, PriceBook)> {
    let upstream_ids: Vec<String> = config.upstreams.iter().map(|upstream| upstream.id.clone()).collect();
    let globs: Vec<(String, String)> = model_globs(config).map(|(_, path, glob)| (path, glob.to_owned())).collect();
    let compiled = shards::plan::compile(CompileInput {
        limits: &config.governance.limits,
        redis: config.shared_state.redis.is_some(),
        upstream_ids: &upstream_ids,
        upstream_model_globs: &globs,
        retain_ms: u64::try_from(config.ledger.retain.as_millis()).unwrap_or(u64::MAX),
        clock0,
    });
    for Problem { path, message, remedy } in compiled.warnings {
        report.warning(&path, message, remedy);
    }
    let limits = compiled.limits.map_err(|problems| {
        for Problem { path, message, remedy } in problems {
            report.error(&path, message, remedy);
        }
    });
    let prices = prices(config, report);
    Some((limits.ok()?, prices?))
}

fn prices(config: &Config, report: &mut Report) -> Option<PriceBook> {
    let overrides: Vec<PriceOverride> = config.pricing.iter().map(price_override).collect();
    match PriceBook::new(&overrides) {
        Ok(book) => {
            for (upstream, path, glob) in model_globs(config) {
                // What the mock inside the binary answers costs nobody anything.
                if upstream.base_url != BaseUrl::Mock && !book.prices_any(&Glob::new(glob)) {
                    report.warning(
                        &path,
                        format!("no model that fits `{glob}` has a price"),
                        "add it under pricing: without one its cost is unknown and an enforcing budget refuses it",
                    );
                }
            }
            Some(book)
        }
        Err(problems) => {
            for problem in problems {
                report.error(&problem.path, problem.message, problem.remedy);
            }
            None
        }
    }
}

fn price_override(price: &PriceEntry) -> PriceOverride {
    PriceOverride {
        path: price.path.clone(),
        model: price.model.clone(),
        input: price.input_usd_per_mtok.clone(),
        output: price.output_usd_per_mtok.clone(),
        cache_read: price.cache_read_usd_per_mtok.clone(),
        cache_write: price.cache_write_usd_per_mtok.clone(),
    }
}

/// Each model glob of each upstream with its path.
fn model_globs(config: &Config) -> impl Iterator<Item = (&Upstream, String, &str)> {
    config.upstreams.iter().enumerate().flat_map(|(index, upstream)| {
        let globs = upstream.models.iter().enumerate();
        globs.map(move |(at, glob)| (upstream, format!("upstreams[{index}].models[{at}]"), glob.as_str()))
    })
}

/// The rules between sections. Values they compare are in the configuration whether written or defaulted.
pub(super) fn sections(config: &Config, surroundings: &Surroundings, report: &mut Report) {
    ports(config, report);
    upstream_ids(config, report);
    fleet(config, report);
    tiers(config, surroundings, report);
    if !config.governance.keys.disclose_limits {
        report.warning(
            "governance.keys.disclose_limits",
            "answers carry no limit headers, so callers find out about a limit by being refused",
            "remove the key to disclose limits",
        );
    }
}

fn ports(config: &Config, report: &mut Report) {
    let server = &config.server;
    if !server.admin_listen.ip().to_canonical().is_loopback() && server.admin_token_env.is_none() {
        report.error(
            "server.admin_listen",
            format!("the admin port would listen on {} without a token", server.admin_listen),
            "set server.admin_token_env to the environment variable that holds a token, or listen on 127.0.0.1",
        );
    }
    let (callers, admin) = (server.listen, server.admin_listen);
    let same_ip = callers.ip() == admin.ip() || callers.ip().is_unspecified() || admin.ip().is_unspecified();
    if callers.port() == admin.port() && callers.port() != 0 && same_ip {
        report.error(
            "server.admin_listen",
            format!("callers and the admin port would both listen on port {}", admin.port()),
            "give each its own port: callers must not reach the admin API",
        );
    }
}

fn upstream_ids(config: &Config, report: &mut Report) {
    let mut first: HashMap<&str, usize> = HashMap::new();
    for (index, upstream) in config.upstreams.iter().enumerate() {
        if upstream.id.is_empty() {
            continue; // reported as missing
        }
        match first.get(upstream.id.as_str()) {
            Some(earlier) => report.error(
                &format!("upstreams[{index}].id"),
                format!("id {} is already taken by upstreams[{earlier}]", upstream.id),
                "give each upstream an id of its own",
            ),
            None => {
                first.insert(&upstream.id, index);
            }
        }
    }
}

fn fleet(config: &Config, report: &mut Report) {
    let fleet = &config.fleet;
    if fleet.liveness_window < fleet.heartbeat * 2 {
        report.error(
            "fleet.liveness_window_ms",
            format!(
                "{} ms is less than two heartbeats of {} ms, so one late heartbeat would drop a live replica",
                fleet.liveness_window.as_millis(),
                fleet.heartbeat.as_millis()
            ),
            "raise liveness_window_ms to at least twice heartbeat_ms; seven times rides out a short outage",
        );
    }
    if config.shared_state.redis.is_some() {
        advertised(config, report);
    }
}

/// Peers ask each other's ledgers through the admin port: one that cannot be reached is missing in every fleet query.
fn advertised(config: &Config, report: &mut Report) {
    let (fleet, listen) = (&config.fleet, config.server.admin_listen);
    let Some(url) = &fleet.advertise_url else {
        if fleet.advertise_url_env.is_none() {
            report.warning(
                "fleet",
                "no advertise_url: peers cannot ask this replica for its ledger, so every fleet query lacks it",
                "set fleet.advertise_url to how peers reach this admin port, such as http://10.0.0.21:9090",
            );
        }
        return;
    };
    let host = url.parse::<axum::http::Uri>().ok().and_then(|uri| uri.host().map(str::to_owned)).unwrap_or_default();
    let host = host.trim_matches(['[', ']']);
    let ip = host.parse::<IpAddr>().map(|ip| ip.to_canonical()).ok();
    let is_wildcard = ip.is_some_and(|ip| ip.is_unspecified());
    let is_here = host == "localhost" || ip.is_some_and(|ip| ip.is_loopback());
    if is_wildcard {
        report.warning(
            "fleet.advertise_url",
            format!("{host} is where one listens, not where one is reached: peers that ask it ask themselves"),
            "write the address or the name at which peers reach this admin port",
        );
    } else if listen.ip().to_canonical().is_loopback() && !is_here {
        report.warning(
            "fleet.advertise_url",
            format!("peers are sent to {url}, but the admin port listens on {listen}, which only this machine reaches"),
            "let server.admin_listen listen on the advertised address; it needs server.admin_token_env then",
        );
    }
}

fn tiers(config: &Config, surroundings: &Surroundings, report: &mut Report) {
    let dialled = "the process dials more than its upstreams";
    let remedy = "this is what `external: allow` consents to; remove the section to dial nothing but upstreams";
    // A section that is refused is not enabled, so there is nothing to warn of.
    let redis = config.shared_state.redis.as_ref().filter(|_| !report.has_error_within("shared_state.redis"));
    if let Some(redis) = redis {
        report.warning(
            "shared_state.redis",
            format!("a network redis at {} is enabled: {dialled}", redis.addr),
            remedy,
        );
    }
    let postgres = config.shared_state.postgres.as_ref().filter(|_| !report.has_error_within("shared_state.postgres"));
    if let Some(postgres) = postgres {
        let variable = postgres.dsn_env.as_str();
        let message = format!("a network postgres at the address in {variable} is enabled: {dialled}");
        report.warning("shared_state.postgres", message, remedy);
    }
    match replica::resolve(&config.replica, surroundings) {
        Ok(identity) if identity.source == ReplicaSource::Nonce && requires_coordination(config) => report.warning(
            "replica",
            "no name for this replica: it takes a new one at every start, and its old ones stay on the roster as gone",
            "set replica.name, or replica.name_env to a variable that names the pod or the machine",
        ),
        Ok(_) => {}
        Err(bad) => report.error("replica.name_env", bad.message(), bad.remedy()),
    }
}

/// A fault found after the load, at boot or on a reload, with the place of its path.
pub fn fault(loaded: &Loaded, path: &str, message: String, remedy: String) -> Diagnostic {
    let span = loaded.source.map.locate(path);
    Diagnostic { severity: Severity::Error, path: path.to_owned(), message, remedy, span, other: None }
}

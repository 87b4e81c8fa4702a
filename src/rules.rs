//! The rules in force: limits, routes, prices and the knobs of the request path, compiled from one config file.
//!
//! Immutable once published. Boot and reload build one from a [`crate::config::Config`]; a data core keeps a
//! reference and takes a new one when the generation moves. What a core learns about a model (which upstreams may
//! serve it, what it costs) is remembered per core in [`Route`].

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use io::runtime::{ClientTls, ServerTls, TlsError};
use io::upstream::{Resolver, Target};
use shards::plan::LimitSet;
use shards::price::{ModelPrice, PriceBook};
use shards::scope::{Endpoint, Glob};

use crate::config::{self, Api, BaseUrl, Config, HttpBase, Secret, StreamUsage};

/// Everything a request is judged and routed by.
pub struct Rules {
    /// The file, typed.
    pub config: Config,
    /// The compiled limits.
    pub limits: Arc<LimitSet>,
    /// What models cost.
    pub prices: PriceBook,
    /// Providers in file order.
    pub upstreams: Vec<Arc<Upstream>>,
    /// TLS on the callers' port.
    pub tls: Option<ServerTls>,
    /// What the compile warned of, for the panel.
    pub warnings: Vec<String>,
}

/// One provider.
pub struct Upstream {
    /// As configured.
    pub id: Arc<str>,
    /// Which API it speaks.
    pub api: Api,
    /// Where and how to connect.
    pub target: Target,
    /// The `Host` header.
    pub host_header: String,
    /// What stands in place of `/v1` at the front of a caller's path.
    pub v1_prefix: String,
    pool_key: String,
    /// Whose credential goes upstream.
    pub credential: Credential,
    /// Models it serves.
    pub models: Vec<Glob>,
    /// Share among those that match.
    pub weight: u32,
    /// Other paths it may serve.
    pub passthrough: Vec<String>,
    /// Deadlines in nanoseconds.
    pub connect_timeout_ns: u64,
    /// From the request's last byte to the answer's head.
    pub first_byte_timeout_ns: u64,
    /// Between two pieces of an answer.
    pub idle_timeout_ns: u64,
    /// Connections kept per core.
    pub max_idle_per_core: usize,
    /// Whether streams are asked to report usage.
    pub stream_usage: StreamUsage,
    /// It answered 400 to the usage option once: never sent again.
    refuses_usage_option: AtomicBool,
}

/// What an upstream is shown as proof of who pays.
#[derive(Clone)]
pub enum Credential {
    /// The caller's own provider key passes through.
    Callers,
    /// The operator's key.
    Ours(Secret),
    /// The operator named a variable that is not set: nothing can be sent.
    Missing,
}

impl Upstream {
    /// Whether to ask this upstream for usage on a stream whose caller did not.
    pub fn takes_usage_option(&self) -> bool {
        self.stream_usage == StreamUsage::Auto && !self.refuses_usage_option.load(Ordering::Relaxed)
    }

    /// Remembers that it rejects the option.
    pub fn remember_usage_option_refused(&self) {
        self.refuses_usage_option.store(true, Ordering::Relaxed);
    }

    /// Whether the upstream has a credential that is not the caller's own.
    pub fn has_own_credential(&self) -> bool {
        !matches!(self.credential, Credential::Callers)
    }

    /// The key under which a core pools connections: the same after a reload that did not move the upstream.
    pub fn pool_key(&self) -> &str {
        &self.pool_key
    }
}

/// What one core remembers about one model on one API.
pub struct Route {
    /// Upstreams that may serve it. Empty: none does.
    pub candidates: Vec<Arc<Upstream>>,
    /// What it costs, if that is known.
    pub price: Option<Arc<ModelPrice>>,
    /// It is served, but only by the other API.
    pub wrong_api: bool,
    /// Current weights of the smooth weighted round robin.
    turns: RefCell<Vec<i64>>,
}

impl Route {
    /// The candidates in the order to try: the one whose turn it is, then the others in file order.
    pub fn in_turn(&self) -> impl Iterator<Item = &Arc<Upstream>> {
        let first = self.turn();
        let rest = self.candidates.iter().enumerate().filter(move |(index, _)| Some(*index) != first);
        first.and_then(|index| self.candidates.get(index)).into_iter().chain(rest.map(|(_, upstream)| upstream))
    }

    /// Smooth weighted round robin: everyone gains its weight, the richest goes and pays the total.
    fn turn(&self) -> Option<usize> {
        if self.candidates.len() < 2 {
            return (!self.candidates.is_empty()).then_some(0);
        }
        let mut turns = self.turns.borrow_mut();
        let mut total = 0;
        for (turn, upstream) in turns.iter_mut().zip(&self.candidates) {
            *turn += i64::from(upstream.weight);
            total += i64::from(upstream.weight);
        }
        // The first of equals: max_by_key would take the last.
        let richest = turns.iter().copied().max()?;
        let index = turns.iter().position(|turn| *turn == richest)?;
        turns[index] -= total;
        Some(index)
    }
}

/// Models one core remembers before it starts anew; a caller that invents names cannot fill memory.
const ROUTES_MAX: usize = 4096;

/// One core's memory of routes, thrown away when the rules change.
#[derive(Default)]
pub struct Routes {
    openai: RefCell<Remembered>,
    anthropic: RefCell<Remembered>,
}

type Remembered = HashMap<String, Rc<Route>, foldhash::fast::RandomState>;

impl Routes {
    /// The route of a model, looked up once per core and model.
    pub fn of(&self, rules: &Rules, api: Api, model: &str) -> Rc<Route> {
        let mut routes = match api {
            Api::Openai => self.openai.borrow_mut(),
            Api::Anthropic => self.anthropic.borrow_mut(),
        };
        if let Some(route) = routes.get(model) {
            return route.clone();
        }
        if routes.len() >= ROUTES_MAX {
            routes.clear();
        }
        let route = Rc::new(rules.route(api, model));
        routes.insert(model.to_owned(), route.clone());
        route
    }
}

impl Rules {
    /// Upstreams of the right API whose globs match. One that serves `*` catches only what no other glob names.
    fn route(&self, api: Api, model: &str) -> Route {
        let matching = |api_matches: bool| {
            let named = |upstream: &&Arc<Upstream>| {
                (upstream.api == api) == api_matches
                    && upstream.models.iter().any(|glob| glob.as_str() != "*" && glob.matches(model))
            };
            let catching = |upstream: &&Arc<Upstream>| {
                (upstream.api == api) == api_matches && upstream.models.iter().any(|glob| glob.as_str() == "*")
            };
            let found: Vec<_> = self.upstreams.iter().filter(named).cloned().collect();
            if found.is_empty() { self.upstreams.iter().filter(catching).cloned().collect() } else { found }
        };
        let candidates = matching(true);
        let wrong_api = candidates.is_empty() && !matching(false).is_empty();
        let turns = RefCell::new(vec![0; candidates.len()]);
        Route { price: self.prices.find(model), candidates, wrong_api, turns }
    }

    /// The upstreams that list this path for pass-through.
    pub fn passthrough(&self, path: &str) -> impl Iterator<Item = &Arc<Upstream>> {
        self.upstreams.iter().filter(move |upstream| upstream.passthrough.iter().any(|listed| listed == path))
    }

    /// Builds the rules of a config that compiled. Names start to resolve in the background; reads certificates.
    pub fn build(
        config: Config,
        limits: Arc<LimitSet>,
        prices: PriceBook,
        warnings: Vec<String>,
        resolver: &Resolver,
        mock: Option<SocketAddr>,
    ) -> Result<Rules, TlsError> {
        let urls: Vec<HttpBase> = config.upstreams.iter().map(|upstream| http_base(&upstream.base_url, mock)).collect();
        let client_tls = if urls.iter().any(|url| url.https) { Some(ClientTls::from_system()?) } else { None };
        let upstreams = config
            .upstreams
            .iter()
            .zip(urls)
            .map(|(upstream, url)| Arc::new(Upstream::build(upstream, &url, client_tls.as_ref(), resolver)))
            .collect();
        let tls = match &config.server.tls {
            None => None,
            Some(tls) => {
                Some(ServerTls::from_pem_files(&tls.cert_file.to_string_lossy(), &tls.key_file.to_string_lossy())?)
            }
        };
        Ok(Rules { config, limits, prices, upstreams, tls, warnings })
    }
}

impl Upstream {
    fn build(from: &config::Upstream, url: &HttpBase, tls: Option<&ClientTls>, resolver: &Resolver) -> Self {
        let credential = match &from.api_key_env {
            None => Credential::Callers,
            Some(variable) => match std::env::var(variable.as_str()) {
                Ok(key) if !key.trim().is_empty() => Credential::Ours(Secret::new(key.trim().to_owned())),
                _ => {
                    tracing::warn!(
                        upstream = from.id,
                        variable = variable.as_str(),
                        "the variable of a provider key is not set: requests to this upstream are answered with 503"
                    );
                    Credential::Missing
                }
            },
        };
        let target = Target {
            host: url.host.clone(),
            addresses: resolver.follow(&url.host, url.port),
            tls: tls.cloned().filter(|_| url.https),
        };
        Upstream {
            id: Arc::from(from.id.as_str()),
            api: from.api,
            target,
            host_header: url.authority(),
            pool_key: format!("{}{}", if url.https { "https://" } else { "http://" }, url.authority()),
            v1_prefix: from.v1_prefix.clone(),
            credential,
            models: from.models.iter().map(|glob| Glob::new(glob)).collect(),
            weight: from.weight,
            passthrough: from.passthrough.clone(),
            connect_timeout_ns: ns(from.connect_timeout),
            first_byte_timeout_ns: ns(from.first_byte_timeout),
            idle_timeout_ns: ns(from.idle_timeout),
            max_idle_per_core: from.max_idle_per_core as usize,
            stream_usage: from.stream_usage,
            refuses_usage_option: AtomicBool::new(false),
        }
    }
}

/// Where an upstream really is: the built-in mock listens on a port of this process.
fn http_base(url: &BaseUrl, mock: Option<SocketAddr>) -> HttpBase {
    match (url, mock) {
        (BaseUrl::Http(url), _) => url.clone(),
        (BaseUrl::Mock, Some(mock)) => {
            HttpBase { https: false, host: mock.ip().to_string(), port: mock.port(), base_path: String::new() }
        }
        // Boot starts the mock whenever an upstream names it; nothing listens on port 0.
        (BaseUrl::Mock, None) => {
            HttpBase { https: false, host: "127.0.0.1".to_owned(), port: 0, base_path: String::new() }
        }
    }
}

/// The compiled limits, or none while `governance.enabled` is false.
pub fn limits_in_force(config: &Config, compiled: LimitSet) -> LimitSet {
    if config.governance.enabled { compiled } else { LimitSet::default() }
}

/// A duration as the nanoseconds the timers count in.
pub fn ns(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Which API an endpoint belongs to.
pub fn api_of(endpoint: Endpoint) -> Api {
    match endpoint {
        Endpoint::Messages | Endpoint::CountTokens => Api::Anthropic,
        _ => Api::Openai,
    }
}

/// The API's name, for messages.
pub fn api_name(api: Api) -> &'static str {
    match api {
        Api::Openai => "the OpenAI API",
        Api::Anthropic => "the Anthropic API",
    }
}

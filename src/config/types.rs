//! The configuration as the rest of the program reads it: plain typed values, every default filled in.
//!
//! Serialises back into the shape of the file (`GET /tt/api/v1/config` shows it), with names of environment variables
//! and never a secret. Made by `build`; nothing here judges.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Serialize, Serializer};
use shards::limit::LimitDecl;

pub use super::leaf::{Auto, Cores, EnvName, Pin};
pub use super::schema::{Anonymous, Api, Driver, RequireKey, StreamUsage, Sync, UnpricedModels};
use super::units;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Config {
    pub server: Server,
    pub data_dir: PathBuf,
    pub replica: Replica,
    /// In file order, which is the order in which models are matched.
    pub upstreams: Vec<Upstream>,
    pub pricing: Vec<PriceEntry>,
    pub ledger: Ledger,
    pub governance: Governance,
    pub shared_state: SharedState,
    pub fleet: Fleet,
    pub experimental: Experimental,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Server {
    pub listen: SocketAddr,
    pub admin_listen: SocketAddr,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admin_token_env: Option<EnvName>,
    pub cores: Cores,
    pub driver: Driver,
    pub pin: Pin,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<Tls>,
    #[serde(serialize_with = "size")]
    pub max_head_bytes: u64,
    #[serde(serialize_with = "size")]
    pub max_body_bytes: u64,
    #[serde(serialize_with = "duration")]
    pub head_timeout: Duration,
    #[serde(serialize_with = "duration")]
    pub body_timeout: Duration,
    #[serde(serialize_with = "duration")]
    pub idle_timeout: Duration,
    #[serde(serialize_with = "duration")]
    pub drain_timeout: Duration,
    pub max_connections: u32,
    pub cors: Cors,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tls {
    pub cert_file: PathBuf,
    pub key_file: PathBuf,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Cors {
    /// Lower-case origins without a path, or `*`. Empty: CORS is off.
    pub allow_origins: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Replica {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name_env: Option<EnvName>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Upstream {
    pub id: String,
    pub api: Api,
    pub base_url: BaseUrl,
    /// `None`: the caller's own provider credential passes through.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_key_env: Option<EnvName>,
    /// Globs, at least one.
    pub models: Vec<String>,
    pub weight: u32,
    #[serde(serialize_with = "duration")]
    pub connect_timeout: Duration,
    #[serde(serialize_with = "duration")]
    pub first_byte_timeout: Duration,
    /// Exact paths under /v1/.
    pub passthrough: Vec<String>,
    #[serde(serialize_with = "duration")]
    pub idle_timeout: Duration,
    pub max_idle_per_core: u32,
    pub stream_usage: StreamUsage,
    /// What replaces `/v1` at the front of a caller's path: `/v1` for `https://api.openai.com/v1`, `/v1beta/openai`
    /// for a provider that keeps its OpenAI API there. See [`HttpBase`].
    #[serde(skip)]
    pub v1_prefix: String,
}

/// Where an upstream is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BaseUrl {
    /// `builtin://mock`: the mock provider inside this binary, so that a first run needs no key and no network.
    Mock,
    Http(HttpBase),
}

/// The spelling of [`BaseUrl::Mock`] in the file.
pub const MOCK_URL: &str = "builtin://mock";

/// An `http` or `https` URL, taken apart.
///
/// SDKs of the two families count the base differently: OpenAI's base ends in `/v1`, Anthropic's stops before it. Both
/// spellings are taken for both APIs, except that an OpenAI base with another path (`…/v1beta/openai`) is the whole
/// prefix, as it is in the SDK.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpBase {
    pub https: bool,
    /// Lower case; an IPv6 address without its brackets.
    pub host: String,
    pub port: u16,
    /// Empty, or `/` and more without a `/` at the end.
    pub base_path: String,
}

impl HttpBase {
    /// The `Host` header: the port only where it is not the scheme's own.
    pub fn authority(&self) -> String {
        let own_port = if self.https { 443 } else { 80 };
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        if self.port == own_port { host } else { format!("{host}:{}", self.port) }
    }

    /// What stands in place of `/v1` at the front of a caller's path.
    pub fn v1_prefix(&self, api: Api) -> String {
        match api {
            Api::Openai if self.base_path.is_empty() => "/v1".to_owned(),
            Api::Openai => self.base_path.clone(),
            Api::Anthropic if self.base_path.ends_with("/v1") => self.base_path.clone(),
            Api::Anthropic => format!("{}/v1", self.base_path),
        }
    }
}

impl fmt::Display for BaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BaseUrl::Mock => f.write_str(MOCK_URL),
            BaseUrl::Http(http) => {
                let scheme = if http.https { "https" } else { "http" };
                write!(f, "{scheme}://{}{}", http.authority(), http.base_path)
            }
        }
    }
}

impl Serialize for BaseUrl {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// One entry of `pricing`, numbers as they are written.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PriceEntry {
    /// `pricing[0]`.
    #[serde(skip)]
    pub path: String,
    pub model: String,
    #[serde(serialize_with = "decimal")]
    pub input_usd_per_mtok: String,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "decimal_option")]
    pub output_usd_per_mtok: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "decimal_option")]
    pub cache_read_usd_per_mtok: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "decimal_option")]
    pub cache_write_usd_per_mtok: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ledger {
    /// As configured; [`Config::ledger_dir`] puts it under `data_dir`.
    pub dir: PathBuf,
    pub sync: Sync,
    #[serde(serialize_with = "duration")]
    pub sync_interval: Duration,
    #[serde(serialize_with = "size")]
    pub segment_bytes: u64,
    #[serde(serialize_with = "duration")]
    pub retain: Duration,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Governance {
    pub enabled: bool,
    pub unpriced_models: UnpricedModels,
    pub keys: Keys,
    /// As the file spells them; `compile` turns them into limits.
    #[serde(serialize_with = "super::effective::limits")]
    pub limits: Vec<LimitDecl>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Keys {
    pub require_key: RequireKey,
    pub anonymous: Anonymous,
    pub disclose_limits: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SharedState {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub redis: Option<Redis>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub postgres: Option<Postgres>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Redis {
    pub external: Allow,
    /// `host:port`, an IPv6 host in brackets.
    pub addr: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password_env: Option<EnvName>,
    pub tls: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Postgres {
    pub external: Allow,
    pub dsn_env: EnvName,
}

/// The consent was given. There is no value without it: a tier without consent does not load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Allow {
    #[serde(rename = "allow")]
    Allow,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fleet {
    #[serde(rename = "heartbeat_ms", serialize_with = "millis")]
    pub heartbeat: Duration,
    #[serde(rename = "liveness_window_ms", serialize_with = "millis")]
    pub liveness_window: Duration,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advertise_url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advertise_url_env: Option<EnvName>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer_token_env: Option<EnvName>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Experimental {
    pub federation: Federation,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Federation {
    pub enabled: bool,
    pub instances: Vec<Instance>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Instance {
    pub name: String,
    pub url: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_env: Option<EnvName>,
}

impl Config {
    /// The ledger folder: under `data_dir`, unless the file names an absolute one.
    pub fn ledger_dir(&self) -> PathBuf {
        self.data_dir.join(&self.ledger.dir)
    }

    /// The whole configuration as JSON in the shape of the file, defaults spelt out, without a secret. It is itself a
    /// configuration file that means the same.
    pub fn effective_json(&self) -> String {
        // Text, numbers and lists only: nothing in here can fail to become JSON.
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}

/// Whether this configuration needs the tier that coordinates replicas.
pub fn requires_coordination(config: &Config) -> bool {
    config.shared_state.redis.is_some() || config.shared_state.postgres.is_some()
}

impl Serialize for EnvName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl EnvName {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn duration<S: Serializer>(value: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&units::format_duration(*value))
}

fn millis<S: Serializer>(value: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(u64::try_from(value.as_millis()).unwrap_or(u64::MAX))
}

fn size<S: Serializer>(value: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&units::format_size(*value))
}

fn decimal<S: Serializer>(text: &str, serializer: S) -> Result<S::Ok, S::Error> {
    super::effective::decimal(text, serializer)
}

fn decimal_option<S: Serializer>(text: &Option<String>, serializer: S) -> Result<S::Ok, S::Error> {
    super::effective::decimal(text.as_deref().unwrap_or("0"), serializer)
}

//! The file, key for key: what may stand where, of which kind, and what each key means.
//!
//! Declared once and used three times: to read the file, to find unknown keys, and to print the JSON Schema that lets
//! editors complete it. Every key is optional here; what is required, what a default is and which values go together
//! is decided in `build`.

use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};

use super::leaf::{Address, Consent, Cores, Decimal, EnvName, PeriodText, Pin, Size, Span, Text, Whole};
use super::read::Given;

const SECOND: u64 = 1_000;
const HOUR: u64 = 3_600 * SECOND;
const DAY: u64 = 24 * HOUR;

/// A time limit on one step of a connection.
pub type Timeout = Span<1, HOUR>;
/// A time limit on something a provider may take long for.
pub type LongTimeout = Span<1, DAY>;

/// The configuration file of TokenTriage.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(title = "TokenTriage configuration")]
pub struct File {
    /// Ports, data cores and bounds of what one connection may take.
    pub server: Given<Server>,
    /// Folder for the ledger, keys and snapshots.
    #[schemars(extend("default" = "./tt-data"))]
    pub data_dir: Given<Text>,
    /// The name of this replica.
    pub replica: Given<Replica>,
    /// Where requests go. At least one.
    pub upstreams: Given<Vec<Given<Upstream>>>,
    /// Overrides of and additions to the built-in price table.
    pub pricing: Given<Vec<Given<Price>>>,
    /// Where and how safely decisions are written down.
    pub ledger: Given<Ledger>,
    /// Keys and limits.
    pub governance: Given<Governance>,
    /// Stores that several replicas share. Nothing is dialled unless `external: allow` stands beside it.
    pub shared_state: Given<SharedState>,
    /// How replicas know of each other.
    pub fleet: Given<Fleet>,
    /// Previews that may change between releases.
    pub experimental: Given<Experimental>,
}

/// Ports, data cores and bounds of what one connection may take.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Server {
    /// Where callers connect.
    #[schemars(extend("default" = "127.0.0.1:8790"))]
    pub listen: Given<Address>,
    /// Admin API, pages, metrics, health. Off loopback it needs `admin_token_env`.
    #[schemars(extend("default" = "127.0.0.1:9090"))]
    pub admin_listen: Given<Address>,
    /// Environment variable with the bearer token of the admin port.
    pub admin_token_env: Given<EnvName>,
    /// Data cores; auto is the available parallelism.
    #[schemars(extend("default" = "auto"))]
    pub cores: Given<Cores>,
    /// auto takes io_uring where it works and logs why where it does not.
    #[schemars(extend("default" = "auto"))]
    pub driver: Given<Driver>,
    /// Whether data cores are pinned; auto pins when there are at least 4.
    #[schemars(extend("default" = "auto"))]
    pub pin: Given<Pin>,
    /// Certificate and key of the caller port; read again on SIGHUP.
    pub tls: Given<Tls>,
    /// Longest request head.
    #[schemars(extend("default" = "64KiB"))]
    pub max_head_bytes: Given<Size<1_024, { 1 << 20 }>>,
    /// Longest request body.
    #[schemars(extend("default" = "32MiB"))]
    pub max_body_bytes: Given<Size<1_024, { 1 << 30 }>>,
    /// How long a caller may take for a request head.
    #[schemars(extend("default" = "10s"))]
    pub head_timeout: Given<Timeout>,
    /// How long no byte of a request body may arrive.
    #[schemars(extend("default" = "60s"))]
    pub body_timeout: Given<Timeout>,
    /// How long an unused connection is kept.
    #[schemars(extend("default" = "75s"))]
    pub idle_timeout: Given<Timeout>,
    /// How long requests may finish after SIGTERM.
    #[schemars(extend("default" = "30s"))]
    pub drain_timeout: Given<Timeout>,
    /// Caller connections of all cores together.
    #[schemars(extend("default" = 65_536))]
    pub max_connections: Given<Whole<1, 16_777_216>>,
    /// Browsers on other origins.
    pub cors: Given<Cors>,
}

/// How sockets are driven.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum Driver {
    Auto,
    IoUring,
    Epoll,
}

/// Certificate and key, PEM files.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["cert_file", "key_file"]))]
pub struct Tls {
    /// Certificate chain.
    pub cert_file: Given<Text>,
    /// Private key.
    pub key_file: Given<Text>,
}

/// Cross-origin requests from browsers. Off while the list is empty.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Cors {
    /// Origins such as `https://app.example.com`, or `*`.
    #[schemars(extend("default" = []))]
    pub allow_origins: Given<Vec<Given<Text>>>,
}

/// The name of this replica: `name`, else `name_env`, else the host name, else a name for this one run.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Replica {
    /// A DNS label of at most 63 characters.
    #[schemars(extend("pattern" = "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"))]
    pub name: Given<Text>,
    /// Environment variable with the name.
    pub name_env: Given<EnvName>,
}

/// A provider, or a server that speaks like one.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["id", "api", "base_url"]))]
pub struct Upstream {
    /// Unique name, used in limits, rows and metrics.
    #[schemars(extend("pattern" = "^[a-z0-9_-]{1,64}$"))]
    pub id: Given<Text>,
    /// Which API it speaks.
    pub api: Given<Api>,
    /// `https://api.openai.com/v1`; `builtin://mock` is the mock inside this binary.
    pub base_url: Given<Text>,
    /// Environment variable with the provider key. Omitted: the caller's own provider key passes through.
    pub api_key_env: Given<EnvName>,
    /// Globs of the models it serves. The first match in file order serves; `*` catches the rest.
    #[schemars(extend("default" = ["*"]))]
    pub models: Given<Vec<Given<Text>>>,
    /// Share of the requests when several upstreams match one model.
    #[schemars(extend("default" = 1))]
    pub weight: Given<Whole<1, 1_000>>,
    /// How long a connection may take to come up.
    #[schemars(extend("default" = "2s"))]
    pub connect_timeout: Given<Timeout>,
    /// How long the first byte of an answer may take.
    #[schemars(extend("default" = "600s"))]
    pub first_byte_timeout: Given<LongTimeout>,
    /// Other /v1/ paths this upstream may serve.
    #[schemars(extend("default" = []))]
    pub passthrough: Given<Vec<Given<Text>>>,
    /// How long a stream may pause between two chunks.
    #[schemars(extend("default" = "120s"))]
    pub idle_timeout: Given<LongTimeout>,
    /// Unused connections each core keeps.
    #[schemars(extend("default" = 64))]
    pub max_idle_per_core: Given<Whole<0, 65_536>>,
    /// auto asks for usage on streams and remembers upstreams that reject the option.
    #[schemars(extend("default" = "auto"))]
    pub stream_usage: Given<StreamUsage>,
}

/// The API an upstream speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum Api {
    Openai,
    Anthropic,
}

/// Whether usage is asked for on streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum StreamUsage {
    Auto,
    Never,
}

/// The price of a model, in US dollars per million tokens.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["model", "input_usd_per_mtok"]))]
pub struct Price {
    /// Model name or glob.
    pub model: Given<Text>,
    pub input_usd_per_mtok: Given<Decimal>,
    /// Omitted for models without output, such as embeddings.
    pub output_usd_per_mtok: Given<Decimal>,
    /// Tokens read from the provider's cache; they cost what input costs when omitted.
    pub cache_read_usd_per_mtok: Given<Decimal>,
    /// Tokens written to the provider's cache; unknown when omitted.
    pub cache_write_usd_per_mtok: Given<Decimal>,
}

/// The decision ledger.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Ledger {
    /// Folder under `data_dir`.
    #[schemars(extend("default" = "ledger"))]
    pub dir: Given<Text>,
    /// interval commits rows in groups; always puts a row on disk before the last byte of its answer. A disk that takes
    /// nothing holds no answer under either: rows wait in memory, and the health page and the metrics say so.
    #[schemars(extend("default" = "interval"))]
    pub sync: Given<Sync>,
    /// Rows of at most this long are at risk when power is lost.
    #[schemars(extend("default" = "200ms"))]
    pub sync_interval: Given<Span<1, { 60 * SECOND }>>,
    /// Size at which a file is closed and the next one begun.
    #[schemars(extend("default" = "256MiB"))]
    pub segment_bytes: Given<Size<65_536, { 16 << 30 }>>,
    /// How long rows are kept. At least as long as the longest period of a limit.
    #[schemars(extend("default" = "90d"))]
    pub retain: Given<Span<HOUR, { 3_650 * DAY }>>,
}

/// When rows reach the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum Sync {
    Interval,
    Always,
}

/// Keys and limits.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Governance {
    /// false forwards and records without deciding.
    #[schemars(extend("default" = true))]
    pub enabled: Given<bool>,
    /// What happens to a model without a price while an enforcing budget applies.
    #[schemars(extend("default" = "refuse"))]
    pub unpriced_models: Given<UnpricedModels>,
    /// Virtual keys.
    pub keys: Given<Keys>,
    /// The rules, each with a counter per node it is attached to.
    pub limits: Given<Vec<Given<Limit>>>,
}

/// What happens to a model without a price while an enforcing budget applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum UnpricedModels {
    Refuse,
    Admit,
}

/// Virtual keys.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Keys {
    /// Whether a request without a virtual key is refused.
    #[schemars(extend("default" = "optional"))]
    pub require_key: Given<RequireKey>,
    /// Where a request without a virtual key may go: own_credential reaches only upstreams without a key of ours.
    #[schemars(extend("default" = "own_credential"))]
    pub anonymous: Given<Anonymous>,
    /// Whether answers carry the state of limits in headers.
    #[schemars(extend("default" = true))]
    pub disclose_limits: Given<bool>,
}

/// Whether a request without a virtual key is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum RequireKey {
    Optional,
    Required,
}

/// What a request without a virtual key may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum Anonymous {
    OwnCredential,
    Allow,
    Refuse,
}

/// One rule.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["id", "attach", "type"]))]
pub struct Limit {
    /// Unique name, shown in refusals.
    #[schemars(extend("pattern" = "^[a-z0-9_-]{1,64}$"))]
    pub id: Given<Text>,
    /// The node it counts for, or the level of which each node has a counter of its own.
    pub attach: Given<Attach>,
    /// Which requests it selects; everything when omitted.
    pub r#match: Given<Match>,
    /// What it counts.
    #[schemars(extend("enum" = ["budget_usd", "quota_tokens", "quota_requests", "rpm", "tpm", "concurrency"]))]
    pub r#type: Given<Text>,
    /// budget_usd: US dollars per period.
    pub amount_usd: Given<Decimal>,
    /// Every other type: tokens, requests or concurrent requests.
    pub amount: Given<Decimal>,
    /// Budgets and quotas: hour, day, week, month or year (UTC calendar). rpm and tpm: a duration such as 1m.
    pub period: Given<PeriodText>,
    /// rpm only; gcra is the default.
    #[schemars(extend("enum" = ["gcra", "token_bucket", "fixed_window", "sliding_window"]))]
    pub algorithm: Given<Text>,
    /// rpm and tpm: how much may come at once; the amount by default.
    pub burst: Given<Decimal>,
    /// Where the counter lives. rpm: local, redis, share. tpm and concurrency: local, share. Budgets and quotas: none.
    #[schemars(extend("enum" = ["local", "redis", "share"]))]
    pub store: Given<Text>,
    /// Whether it refuses.
    pub posture: Given<Posture>,
}

/// The node a limit counts for, or the level of which each node has a counter of its own.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Attach {
    /// `__global`, or `org:NAME`, `org:NAME/team:NAME`, `org:NAME/team:NAME/user:NAME`.
    pub node: Given<Text>,
    /// Each node of this level has its own counter.
    #[schemars(extend("enum" = ["org", "team", "user"]))]
    pub level: Given<Text>,
}

/// Which requests a limit selects.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Match {
    /// Globs of model names. Not on rpm and concurrency, which decide before the body is read.
    pub model: Given<Vec<Given<Text>>>,
    /// Upstream ids. Not on rpm and concurrency, which decide before the body is read.
    pub upstream: Given<Vec<Given<Text>>>,
    /// Endpoints such as chat.completions.
    pub endpoint: Given<Vec<Given<Text>>>,
}

/// Whether a limit refuses.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Posture {
    /// shadow decides and counts, and never refuses.
    #[schemars(extend("enum" = ["enforcing", "shadow"], "default" = "enforcing"))]
    pub mode: Given<Text>,
}

/// Stores that several replicas share.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SharedState {
    /// Counters, convergence and membership.
    pub redis: Given<Redis>,
    /// Virtual keys.
    pub postgres: Given<Postgres>,
}

/// The shared counter store.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["external", "addr"]))]
pub struct Redis {
    /// The literal word allow: the consent to dial out.
    pub external: Given<Consent>,
    /// `host:port`.
    pub addr: Given<Text>,
    /// Environment variable with the password.
    pub password_env: Given<EnvName>,
    #[schemars(extend("default" = false))]
    pub tls: Given<bool>,
}

/// The shared key store.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["external", "dsn_env"]))]
pub struct Postgres {
    /// The literal word allow: the consent to dial out.
    pub external: Given<Consent>,
    /// Environment variable with the connection string.
    pub dsn_env: Given<EnvName>,
}

/// How replicas know of each other.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Fleet {
    /// How often a replica says that it lives.
    #[schemars(extend("default" = 2_000))]
    pub heartbeat_ms: Given<Whole<100, 60_000>>,
    /// How long after its last heartbeat a replica counts as live. At least twice `heartbeat_ms`.
    #[schemars(extend("default" = 15_000))]
    pub liveness_window_ms: Given<Whole<200, 600_000>>,
    /// How peers reach this admin port.
    pub advertise_url: Given<Text>,
    /// Environment variable with that URL, for when it is not written here.
    pub advertise_url_env: Given<EnvName>,
    /// Environment variable with the token peers use for reading.
    pub peer_token_env: Given<EnvName>,
}

/// Previews that may change between releases.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Experimental {
    /// Cards of other instances on the overview page; nothing is merged across them.
    pub federation: Given<Federation>,
}

/// Cards of other instances.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Federation {
    #[schemars(extend("default" = false))]
    pub enabled: Given<bool>,
    #[schemars(extend("default" = []))]
    pub instances: Given<Vec<Given<Instance>>>,
}

/// Another instance of TokenTriage.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["name", "url"]))]
pub struct Instance {
    /// A DNS label.
    pub name: Given<Text>,
    /// Its admin port.
    pub url: Given<Text>,
    /// Environment variable with its token.
    pub token_env: Given<EnvName>,
}

/// The JSON Schema of the whole file.
pub fn json_schema() -> Schema {
    schemars::schema_for!(File)
}

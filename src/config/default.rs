//! Every default of the file, the configuration that serves without a file, and the one `init` writes.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use super::types::*;

/// Serves when there is no file: loopback only, the built-in mock, no key, no network.
pub const EMBEDDED: &str = include_str!("default.yaml");
/// How messages name [`EMBEDDED`].
pub const EMBEDDED_NAME: &str = "built-in default";
/// What `tokentriage init` writes.
pub const STARTER: &str = include_str!("starter.yaml");
/// The file that is taken when none is named.
pub const FILE_NAME: &str = "tokentriage.yaml";

impl Default for Server {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8790)),
            admin_listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 9090)),
            admin_token_env: None,
            cores: Auto::Auto,
            driver: Driver::Auto,
            pin: Auto::Auto,
            tls: None,
            max_head_bytes: 64 << 10,
            max_body_bytes: 32 << 20,
            head_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(60),
            idle_timeout: Duration::from_secs(75),
            drain_timeout: Duration::from_secs(30),
            max_connections: 65_536,
            cors: Cors::default(),
        }
    }
}

/// Where everything lives that must survive a restart.
pub fn data_dir() -> PathBuf {
    PathBuf::from("./tt-data")
}

/// An upstream with nothing but its name, API and address: what each entry of `upstreams` starts from.
pub fn upstream(id: String, api: Api, base_url: BaseUrl) -> Upstream {
    let v1_prefix = match &base_url {
        BaseUrl::Mock => "/v1".to_owned(),
        BaseUrl::Http(http) => http.v1_prefix(api),
    };
    Upstream {
        id,
        api,
        base_url,
        api_key_env: None,
        models: vec!["*".to_owned()],
        weight: 1,
        connect_timeout: Duration::from_secs(2),
        first_byte_timeout: Duration::from_secs(600),
        passthrough: Vec::new(),
        idle_timeout: Duration::from_secs(120),
        max_idle_per_core: 64,
        stream_usage: StreamUsage::Auto,
        v1_prefix,
    }
}

impl Default for Ledger {
    fn default() -> Self {
        Self {
            dir: PathBuf::from("ledger"),
            sync: Sync::Interval,
            sync_interval: Duration::from_millis(200),
            segment_bytes: 256 << 20,
            retain: Duration::from_secs(90 * 86_400),
        }
    }
}

impl Default for Governance {
    fn default() -> Self {
        Self { enabled: true, unpriced_models: UnpricedModels::Refuse, keys: Keys::default(), limits: Vec::new() }
    }
}

impl Default for Keys {
    fn default() -> Self {
        Self { require_key: RequireKey::Optional, anonymous: Anonymous::OwnCredential, disclose_limits: true }
    }
}

impl Default for Fleet {
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_millis(2_000),
            liveness_window: Duration::from_millis(15_000),
            advertise_url: None,
            advertise_url_env: None,
            peer_token_env: None,
        }
    }
}

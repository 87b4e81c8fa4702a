//! The configuration of one gateway under test, written as the YAML an operator would write.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::SocketAddr;
use std::path::PathBuf;

use super::gateway::Gateway;
use super::mock::Mock;

/// The secret the gateway holds for its upstreams. Nothing but the upstream may ever see it.
pub const UPSTREAM_KEY: &str = "sk-upstream-5f1c09d2e7b84a63";
/// The environment variable it comes from.
pub const UPSTREAM_KEY_ENV: &str = "TT_TEST_UPSTREAM_KEY";
/// The environment variable that holds the connection string of Postgres.
pub const POSTGRES_DSN_ENV: &str = "TT_TEST_PG_DSN";

/// PRICE of the cases: every model beginning `mock`.
const MOCK_PRICE: &str = "{ model: \"mock*\", input_usd_per_mtok: 1, output_usd_per_mtok: 10, \
                          cache_read_usd_per_mtok: 0.1, cache_write_usd_per_mtok: 1.25 }";

#[derive(Clone)]
pub struct Setup {
    /// Members of `server`, `ledger`, `shared_state`, `governance` and `governance.keys`.
    sections: BTreeMap<&'static str, BTreeMap<String, String>>,
    upstreams: Vec<String>,
    pricing: Vec<String>,
    limits: Vec<String>,
    replica: String,
    /// Further sections of the file, word for word.
    raw: Vec<String>,
    pub env: BTreeMap<String, Option<String>>,
    pub data_dir: Option<PathBuf>,
}

impl Default for Setup {
    fn default() -> Self {
        Self::new()
    }
}

impl Setup {
    /// No upstream and no limit yet; the mock's price, two data cores, the driver of `TT_TEST_DRIVER`.
    pub fn new() -> Self {
        let setup = Self {
            sections: BTreeMap::new(),
            upstreams: Vec::new(),
            pricing: vec![MOCK_PRICE.to_owned()],
            limits: Vec::new(),
            replica: "tt-test".to_owned(),
            raw: Vec::new(),
            env: BTreeMap::from([(UPSTREAM_KEY_ENV.to_owned(), Some(UPSTREAM_KEY.to_owned()))]),
            data_dir: None,
        };
        let driver = std::env::var("TT_TEST_DRIVER").unwrap_or_else(|_| "auto".to_owned());
        let server = [("listen", "127.0.0.1:0"), ("admin_listen", "127.0.0.1:0"), ("drain_timeout", "5s")];
        let setup = server.into_iter().fold(setup, |setup, (key, value)| setup.server(key, value));
        // rows must be kept as long as the longest period of a case, which is a year
        setup.server("driver", &driver).cores(2).ledger("retain", "400d").governance("enabled", "true")
    }

    /// The mock behind both APIs, for every model beginning `mock`.
    pub fn with_mock(mock: &Mock) -> Self {
        Self::new().mock(mock, r#"["mock*"]"#)
    }

    /// The mock behind both APIs, for these model globs (a YAML list).
    pub fn mock(self, mock: &Mock, models: &str) -> Self {
        let setup = self.upstream("mock-openai", "openai", mock.addr, models, "");
        setup.upstream("mock-anthropic", "anthropic", mock.addr, models, "")
    }

    /// One upstream with our key; `more` is further members, such as `first_byte_timeout: 1s`.
    pub fn upstream(self, id: &str, api: &str, addr: SocketAddr, models: &str, more: &str) -> Self {
        let more = format!("api_key_env: {UPSTREAM_KEY_ENV}, {more}");
        self.keyless_upstream(id, api, addr, models, more.trim_end_matches([',', ' ']))
    }

    /// One upstream that gets the caller's own credential, unless `more` names a key.
    pub fn keyless_upstream(mut self, id: &str, api: &str, addr: SocketAddr, models: &str, more: &str) -> Self {
        let comma = if more.is_empty() { "" } else { ", " };
        self.upstreams
            .push(format!("{{ id: {id}, api: {api}, base_url: \"http://{addr}/v1\", models: {models}{comma}{more} }}"));
        self
    }

    /// One upstream as a YAML mapping, word for word.
    pub fn raw_upstream(mut self, entry: &str) -> Self {
        self.upstreams.push(entry.to_owned());
        self
    }

    /// A limit on the team of K1: `limit("team_rpm", "rpm", "amount: 10, period: 1h")`.
    pub fn limit(self, id: &str, kind: &str, rest: &str) -> Self {
        self.limit_on("org:acme/team:ml", id, kind, rest)
    }

    pub fn limit_on(mut self, node: &str, id: &str, kind: &str, rest: &str) -> Self {
        self.limits.push(format!("{{ id: {id}, attach: {{ node: \"{node}\" }}, type: {kind}, {rest} }}"));
        self
    }

    pub fn price(mut self, entry: &str) -> Self {
        self.pricing.push(entry.to_owned());
        self
    }

    /// Only these prices, not the mock's.
    pub fn only_prices(mut self, entries: &[&str]) -> Self {
        self.pricing = entries.iter().map(|entry| (*entry).to_owned()).collect();
        self
    }

    pub fn server(self, key: &str, value: &str) -> Self {
        self.member("server", key, value)
    }

    /// The replica's name, for tests of several.
    pub fn replica(mut self, name: &str) -> Self {
        self.replica = name.to_owned();
        self
    }

    /// A Redis at `host:port` that all replicas share.
    pub fn redis(self, address: &str) -> Self {
        self.member("shared_state", "redis", &format!("{{ external: allow, addr: \"{address}\" }}"))
    }

    /// A top-level section as YAML, word for word.
    pub fn section(mut self, yaml: &str) -> Self {
        self.raw.push(yaml.to_owned());
        self
    }

    pub fn cores(self, cores: u32) -> Self {
        self.server("cores", &cores.to_string())
    }

    pub fn ledger(self, key: &str, value: &str) -> Self {
        self.member("ledger", key, value)
    }

    pub fn governance(self, key: &str, value: &str) -> Self {
        self.member("governance", key, value)
    }

    pub fn keys(self, key: &str, value: &str) -> Self {
        self.member("keys", key, value)
    }

    /// Callers must bring a virtual key.
    pub fn require_key(self) -> Self {
        self.keys("require_key", "required")
    }

    /// Keys in Postgres, with this connection string in the environment.
    pub fn postgres(self, dsn: &str) -> Self {
        let section = format!("{{ external: allow, dsn_env: {POSTGRES_DSN_ENV} }}");
        self.member("shared_state", "postgres", &section).env(POSTGRES_DSN_ENV, Some(dsn))
    }

    pub fn env(mut self, name: &str, value: Option<&str>) -> Self {
        self.env.insert(name.to_owned(), value.map(str::to_owned));
        self
    }

    /// A data folder that outlives the gateway, for restarts. The test owns it.
    pub fn data_dir(mut self, path: impl Into<PathBuf>) -> Self {
        self.data_dir = Some(path.into());
        self
    }

    fn member(mut self, section: &'static str, key: &str, value: &str) -> Self {
        self.sections.entry(section).or_default().insert(key.to_owned(), value.to_owned());
        self
    }

    #[track_caller]
    pub fn start(&self) -> Gateway {
        Gateway::start(self)
    }

    pub fn yaml(&self, data_dir: &std::path::Path) -> String {
        let mut yaml = String::new();
        self.write_section(&mut yaml, "server", "");
        writeln!(yaml, "data_dir: \"{}\"\nreplica: {{ name: {} }}", data_dir.display(), self.replica).unwrap();
        self.write_section(&mut yaml, "shared_state", "");
        write_list(&mut yaml, "upstreams", "", &self.upstreams);
        write_list(&mut yaml, "pricing", "", &self.pricing);
        self.write_section(&mut yaml, "ledger", "");
        yaml += "governance:\n";
        for (key, value) in self.sections.get("governance").into_iter().flatten() {
            writeln!(yaml, "  {key}: {value}").unwrap();
        }
        self.write_section(&mut yaml, "keys", "  ");
        write_list(&mut yaml, "limits", "  ", &self.limits);
        self.raw.iter().for_each(|section| writeln!(yaml, "{section}").unwrap());
        yaml
    }

    fn write_section(&self, yaml: &mut String, name: &str, indent: &str) {
        let Some(members) = self.sections.get(name) else { return };
        writeln!(yaml, "{indent}{name}:").unwrap();
        for (key, value) in members {
            writeln!(yaml, "{indent}  {key}: {value}").unwrap();
        }
    }
}

fn write_list(yaml: &mut String, name: &str, indent: &str, items: &[String]) {
    if items.is_empty() {
        return;
    }
    writeln!(yaml, "{indent}{name}:").unwrap();
    for item in items {
        writeln!(yaml, "{indent}  - {item}").unwrap();
    }
}

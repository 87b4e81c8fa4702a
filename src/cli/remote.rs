//! The admin port of a running replica, as the command line asks it.
//!
//! Used by commands that were given `--admin`. Sends the admin token to the address that was named and nowhere else: no
//! proxy, no redirect.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{At, Failure};
use crate::config::{EnvName, Origin};

/// Asked for when neither the command line nor the configuration names a variable.
const TOKEN_VARIABLE: &str = "TT_ADMIN_TOKEN";
/// A query over a large ledger takes seconds; a replica that hangs must not hang the shell.
const WITHIN: Duration = Duration::from_secs(60);
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// A replica that can be asked.
pub struct Remote {
    base: String,
    token: Option<String>,
    agent: ureq::Agent,
}

impl Remote {
    /// The replica that `--admin` names; `None` without it. The token comes from the variable that the command line
    /// names, else from the one that the configuration names, else from `TT_ADMIN_TOKEN`.
    pub fn of(at: &At) -> Result<Option<Self>, Failure> {
        at.admin.admin.as_ref().map(|url| Remote::at(url, at)).transpose()
    }

    /// The replica that `--admin` names, else the one that the configuration would run.
    pub fn of_or_configured(at: &At) -> Result<Self, Failure> {
        if let Some(replica) = Remote::of(at)? {
            return Ok(replica);
        }
        let listen = Origin::find(at.config()).load()?.config.server.admin_listen;
        if listen.port() == 0 {
            let message = "the configuration leaves the admin port to the system: name the replica with --admin URL";
            return Err(Failure::Refused(message.to_owned()));
        }
        Remote::at(&format!("http://{}", reachable(listen)), at)
    }

    fn at(url: &str, at: &At) -> Result<Self, Failure> {
        if !(url.starts_with("http://") || url.starts_with("https://")) {
            return Err(Failure::Refused(format!(
                "--admin: `{url}` is no URL; write http://127.0.0.1:9090 or the like"
            )));
        }
        let token = match &at.admin.admin_token_env {
            Some(variable) => Some(set(variable).ok_or_else(|| {
                Failure::Refused(format!("--admin-token-env: the environment variable {variable} is not set"))
            })?),
            None => configured_variable(at.config())?.as_deref().and_then(set).or_else(|| set(TOKEN_VARIABLE)),
        };
        let agent = ureq::Agent::config_builder()
            .timeout_global(Some(WITHIN))
            .timeout_connect(Some(Duration::from_secs(5)))
            .max_redirects(0)
            .http_status_as_error(false)
            .proxy(None)
            .build();
        Ok(Remote { base: url.trim_end_matches('/').to_owned(), token, agent: agent.into() })
    }

    pub fn get<T: DeserializeOwned>(&self, path: &str, params: &[(&str, String)]) -> Result<T, Failure> {
        let mut request = self.agent.get(format!("{}{path}", self.base));
        for (name, value) in params {
            request = request.query(name, value);
        }
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        self.answer(request.call())
    }

    pub fn post<T: DeserializeOwned>(&self, path: &str, body: &Value) -> Result<T, Failure> {
        let mut request = self.agent.post(format!("{}{path}", self.base)).header("content-type", "application/json");
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        self.answer(request.send(body.to_string()))
    }

    pub fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        let mut request = self.agent.delete(format!("{}{path}", self.base));
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        self.answer(request.call())
    }

    fn answer<T: DeserializeOwned>(
        &self,
        answer: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
    ) -> Result<T, Failure> {
        let unreachable = |error: ureq::Error| Failure::Runtime(format!("{}: {error}", self.base));
        let mut answer = answer.map_err(unreachable)?;
        let status = answer.status();
        let body = answer.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_string().map_err(unreachable)?;
        if status.is_success() {
            return serde_json::from_str(&body)
                .map_err(|error| Failure::Runtime(format!("{}: the answer is not one of ours: {error}", self.base)));
        }
        let text = format!("{}: {}", self.base, why(status.as_u16(), &body));
        // What was asked cannot be had as asked; anything else could, and went wrong there: a store that is down, a full disk.
        Err(if status.is_client_error() { Failure::Refused(text) } else { Failure::Runtime(text) })
    }
}

/// Who listens on every address is reached on this machine's own.
fn reachable(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}

/// What the replica said, or its status when that says nothing.
fn why(status: u16, body: &str) -> String {
    let error = serde_json::from_str::<Value>(body).unwrap_or_default();
    match (error["error"]["message"].as_str(), error["error"]["remedy"].as_str()) {
        (Some(message), Some(remedy)) => format!("{message}; {remedy}"),
        _ => format!("it answered {status}"),
    }
}

/// The variable in the configuration. A file that was named must load; the one that happens to lie here need not.
fn configured_variable(config: Option<&Path>) -> Result<Option<String>, Failure> {
    let loaded = match (Origin::find(config).load(), config) {
        (Ok(loaded), _) => loaded,
        (Err(errors), Some(_)) => return Err(errors.into()),
        (Err(_), None) => return Ok(None),
    };
    Ok(loaded.config.server.admin_token_env.as_ref().map(EnvName::as_str).map(str::to_owned))
}

fn set(variable: &str) -> Option<String> {
    std::env::var(variable).ok().map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
}

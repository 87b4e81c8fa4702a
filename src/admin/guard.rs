//! Who may ask the admin port what: looked at before any handler runs.
//!
//! - `Host` must be a name of this replica. A page of a hostile site that has its own name resolve to our address (DNS
//!   rebinding) would otherwise read everything on a loopback port without a token.
//! - With `server.admin_token_env` set, everything but the health paths needs that token. The peer token reads only.
//! - Writes must not come from another site's page, and carry JSON, which no plain HTML form can send.
//!
//! Tokens are compared by their SHA-256, in constant time: neither content nor length leaks.

use std::net::IpAddr;
use std::str::FromStr;

use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, HOST, ORIGIN};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::answer::Fault;
use crate::config::{Secret, Secrets};

/// Paths that anybody may ask: probes have no token, and the answers say nothing but up or not.
const OPEN_PATHS: [&str; 3] = ["/livez", "/readyz", "/healthz"];

/// What the caller proved to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    AdminToken,
    PeerToken,
    /// None was asked for.
    Nothing,
}

impl Shown {
    /// As the audit spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Shown::AdminToken => "admin",
            Shown::PeerToken => "peer",
            Shown::Nothing => "none",
        }
    }
}

/// The rules at the door of one replica.
pub struct Guard {
    admin_token: Option<[u8; 32]>,
    peer_token: Option<[u8; 32]>,
    /// Lower case, without ports.
    names: Vec<String>,
}

impl Guard {
    pub fn new(secrets: &Secrets, replica: &str) -> Self {
        let digest = |secret: &Secret| Sha256::digest(secret.expose()).into();
        let mut names = vec!["localhost".to_owned(), replica.to_ascii_lowercase()];
        let advertised = secrets.advertise_url.as_deref().and_then(|url| url.parse::<Uri>().ok());
        names.extend(advertised.and_then(|url| Some(url.host()?.to_ascii_lowercase())));
        Guard {
            admin_token: secrets.admin_token.as_ref().map(digest),
            peer_token: secrets.peer_token.as_ref().map(digest),
            names,
        }
    }

    /// Lets the request in, with what it showed, or says why not. Never waits.
    pub fn admit(&self, uri: &Uri, headers: &HeaderMap) -> Result<Shown, Fault> {
        if OPEN_PATHS.contains(&uri.path()) {
            return Ok(Shown::Nothing);
        }
        self.known_host(uri, headers)?;
        self.token(headers)
    }

    /// Whether one who was admitted may also write, in this way. Asked once it is known that the path takes the method.
    pub fn may_write(shown: Shown, method: &Method, headers: &HeaderMap) -> Result<(), Fault> {
        if shown == Shown::PeerToken {
            let message = "the peer token reads, it does not write";
            return Err(Fault::new(StatusCode::FORBIDDEN, "forbidden", message, "use the admin token"));
        }
        same_site(headers)?;
        is_json(method, headers)
    }

    /// An address is always let in: a browser that was lured here by a name sends that name.
    fn known_host(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Fault> {
        let mut hosts = headers.get_all(HOST).iter();
        let (Some(host), None) = (hosts.next(), hosts.next()) else {
            return Err(Fault::bad_request("a request needs one Host header", "send exactly one"));
        };
        let host = host.to_str().unwrap_or_default();
        // The target may name a host as well (`GET http://name/path`); it counts as much as the header.
        let named = [Some(host), uri.authority().map(Authority::as_str)];
        for name in named.into_iter().flatten() {
            if !self.is_ours(name) {
                let message = "this replica does not answer to the name in the Host header";
                let remedy = "use its address, localhost, its replica name, or the host of fleet.advertise_url";
                return Err(Fault::new(StatusCode::MISDIRECTED_REQUEST, "unknown_host", message, remedy));
            }
        }
        Ok(())
    }

    fn is_ours(&self, name: &str) -> bool {
        let Ok(authority) = Authority::from_str(name) else { return false };
        if name.contains('@') {
            return false;
        }
        let host = authority.host().to_ascii_lowercase();
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        bare.parse::<IpAddr>().is_ok() || self.names.iter().any(|ours| ours == host.trim_end_matches('.'))
    }

    fn token(&self, headers: &HeaderMap) -> Result<Shown, Fault> {
        let mut credentials = headers.get_all(AUTHORIZATION).iter();
        let (first, second) = (credentials.next(), credentials.next());
        let presented = first.and_then(|value| bearer(value.as_bytes())).filter(|_| second.is_none());
        let digest: Option<[u8; 32]> = presented.map(|token| Sha256::digest(token).into());
        let is = |ours: &Option<[u8; 32]>| match (ours, &digest) {
            (Some(ours), Some(digest)) => bool::from(ours.ct_eq(digest)),
            _ => false,
        };
        // Both are compared, whatever the first says.
        let (admin, peer) = (is(&self.admin_token), is(&self.peer_token));
        match (admin, peer) {
            (true, _) => Ok(Shown::AdminToken),
            (false, true) => Ok(Shown::PeerToken),
            (false, false) if self.admin_token.is_none() => Ok(Shown::Nothing),
            (false, false) => {
                let (message, challenge) = match first {
                    Some(_) => ("the token is not valid", "Bearer realm=\"tokentriage\", error=\"invalid_token\""),
                    None => ("an admin token is needed", "Bearer realm=\"tokentriage\""),
                };
                let remedy = "send `Authorization: Bearer …` with the value of the variable that \
                              server.admin_token_env names";
                Err(Fault::unauthorized(message, remedy, challenge))
            }
        }
    }
}

/// The token of `Bearer …`; the scheme in any case.
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

/// A browser says on whose behalf it sends. Programs say nothing and are let through.
fn same_site(headers: &HeaderMap) -> Result<(), Fault> {
    let refused = |header: &str| {
        let message = format!("the {header} header says that another site's page sent this");
        Err(Fault::new(
            StatusCode::FORBIDDEN,
            "cross_site",
            message,
            "write from this replica's own pages, or without a browser",
        ))
    };
    // `same-site` is another port of the same host: for a loopback port that is any program of this machine.
    let fetch_site = headers.get_all(HeaderName::from_static("sec-fetch-site")).iter();
    if fetch_site.into_iter().any(|site| site != "same-origin" && site != "none") {
        return refused("Sec-Fetch-Site");
    }
    let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let is_ours = |origin: &HeaderValue| {
        let origin = origin.to_str().unwrap_or_default();
        let authority = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        authority.is_some_and(|authority| authority.eq_ignore_ascii_case(host))
    };
    if headers.get_all(ORIGIN).iter().any(|origin| !is_ours(origin)) {
        return refused("Origin");
    }
    Ok(())
}

/// A write without a body (DELETE) needs no type, but may not claim another.
fn is_json(method: &Method, headers: &HeaderMap) -> Result<(), Fault> {
    let mut types = headers.get_all(CONTENT_TYPE).iter();
    let is_json = |value: &HeaderValue| {
        let value = value.to_str().unwrap_or_default();
        value.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/json")
    };
    let fine = match (types.next(), types.next()) {
        (Some(value), None) => is_json(value),
        (None, None) => *method == Method::DELETE,
        _ => false,
    };
    if fine {
        return Ok(());
    }
    let message = "writes need the Content-Type application/json";
    Err(Fault::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message, "send it with the request"))
}

#[cfg(test)]
mod tests;

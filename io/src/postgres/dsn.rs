//! The connection string: what libpq understands, as far as this client does, and nothing of it in any message.
//!
//! `tokio-postgres` reads both forms (`postgres://…` and `key=value …`) but knows neither `sslmode=verify-full` nor
//! `sslrootcert`; those are taken out here and handed to rustls. What cannot be honoured is refused at boot, never
//! ignored: a string that asks for a client certificate must not connect without one. Timeouts and keepalives are
//! ours, because published bounds hang on them.

use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::{Host, LoadBalanceHosts, SslMode};

use super::tls::{Check, Tls};

/// For one address to take the connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Sent and not acknowledged for this long is lost.
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(10);
/// A silent connection is asked after this long, and twice more: gone after 10 + 3 x 3 s.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(3);
const KEEPALIVE_RETRIES: u32 = 3;
/// Options of libpq that change nothing here when they say one of these.
const HARMLESS: [(&str, &[&str]); 3] =
    [("gssencmode", &["disable", "prefer"]), ("sslcompression", &["0"]), ("sslsni", &["1"])];
/// Options of libpq that this client cannot honour. Only these are named in a message: anything else may be part of a
/// password that was not quoted.
const UNSUPPORTED: [&str; 13] = [
    "sslcert",
    "sslkey",
    "sslpassword",
    "sslcrl",
    "sslcrldir",
    "sslcertmode",
    "gssencmode",
    "sslcompression",
    "sslsni",
    "service",
    "passfile",
    "require_auth",
    "requirepeer",
];

/// Why a connection string cannot be used. The texts hold nothing of it but names of known options.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum DsnError {
    /// It is in neither form, or a value is none.
    #[error("is no connection string such as postgres://user:password@host:5432/database?sslmode=verify-full")]
    Form,
    /// Nothing to connect to.
    #[error("names no host")]
    NoHost,
    /// An option whose promise this client cannot keep.
    #[error("uses the option {0}, which is not supported")]
    Unsupported(&'static str),
    /// An option nobody knows.
    #[error("uses an unknown option, or holds a character that must be quoted (key=value) or percent-encoded (URL)")]
    Unknown,
    /// `sslmode` says something else.
    #[error("sslmode must be disable, prefer, require, verify-ca or verify-full")]
    SslMode,
    /// The file of trusted certificates cannot be used.
    #[error("sslrootcert: {0}")]
    RootCert(String),
    /// rustls could not be set up.
    #[error("TLS: {0}")]
    Tls(String),
}

/// A connection string, understood.
#[derive(Clone)]
pub struct Dsn {
    pub(super) config: Config,
    pub(super) tls: Option<Tls>,
}

impl Dsn {
    /// Reads the string, and the file that `sslrootcert` names. `application` is how the server's lists name us unless
    /// the string says so itself.
    pub fn parse(text: &str, application: &str) -> Result<Self, DsnError> {
        let (rest, own) = match text.strip_prefix("postgres://").or(text.strip_prefix("postgresql://")) {
            Some(url) => split_url(text, url)?,
            None => split_pairs(text)?,
        };
        let mut config: Config = rest.parse().map_err(|_| DsnError::Form)?;
        if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
            return Err(DsnError::NoHost);
        }
        if config.get_application_name().is_none() {
            config.application_name(application);
        }
        if config.get_hosts().len() > 1 && !own.orders_hosts {
            // One that takes the connection and never answers must not keep every try from reaching the others.
            config.load_balance_hosts(LoadBalanceHosts::Random);
        }
        config
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_user_timeout(TCP_USER_TIMEOUT)
            .keepalives(true)
            .keepalives_idle(KEEPALIVE_IDLE)
            .keepalives_interval(KEEPALIVE_INTERVAL)
            .keepalives_retries(KEEPALIVE_RETRIES);
        let (mode, check) = match (own.mode.as_deref(), own.root_cert.as_deref()) {
            // The machine's trust store is only worth anything with the name checked (libpq does the same).
            (None | Some("verify-full"), Some("system")) => (SslMode::Require, Some(Check::Full)),
            (_, Some("system")) => return Err(DsnError::SslMode),
            (Some("disable"), _) => (SslMode::Disable, None),
            (None | Some("prefer"), _) => (SslMode::Prefer, Some(Check::Nothing)),
            (Some("require"), None) => (SslMode::Require, Some(Check::Nothing)),
            (Some("require" | "verify-ca"), _) => (SslMode::Require, Some(Check::Authority)),
            (Some("verify-full"), _) => (SslMode::Require, Some(Check::Full)),
            (Some(_), _) => return Err(DsnError::SslMode),
        };
        config.ssl_mode(mode);
        let root_cert = own.root_cert.as_deref().filter(|file| *file != "system");
        let tls = check.map(|check| Tls::new(check, root_cert)).transpose()?;
        Ok(Dsn { config, tls })
    }

    /// Hosts, ports and database, for messages.
    pub fn endpoint(&self) -> String {
        let ports = self.config.get_ports();
        let port = |at: usize| ports.get(at).or(ports.first()).copied().unwrap_or(5432);
        let mut hosts: Vec<String> = self
            .config
            .get_hosts()
            .iter()
            .enumerate()
            .map(|(at, host)| match host {
                Host::Tcp(name) if name.contains(':') => format!("[{name}]:{}", port(at)),
                Host::Tcp(name) => format!("{name}:{}", port(at)),
                Host::Unix(folder) => format!("{}:{}", folder.display(), port(at)),
            })
            .collect();
        if hosts.is_empty() {
            let addresses = self.config.get_hostaddrs().iter().enumerate();
            hosts = addresses.map(|(at, address)| std::net::SocketAddr::new(*address, port(at)).to_string()).collect();
        }
        let database = self.config.get_dbname().or(self.config.get_user()).unwrap_or("postgres");
        format!("{}/{database}", hosts.join(","))
    }

    /// Whether a server that is not the one meant would be noticed.
    pub fn verifies_the_server(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.check == Check::Full)
    }

    /// The text with every occurrence of the password blotted out: a server may send anything back.
    pub(super) fn without_password(&self, text: &str) -> String {
        let password = self.config.get_password().and_then(|bytes| std::str::from_utf8(bytes).ok());
        match password {
            Some(password) if !password.is_empty() => text.replace(password, "***"),
            _ => text.to_owned(),
        }
    }
}

impl std::fmt::Debug for Dsn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.endpoint())
    }
}

/// What rustls must know.
#[derive(Default)]
struct Own {
    mode: Option<String>,
    root_cert: Option<String>,
    /// Somebody decided in which order several hosts are tried.
    orders_hosts: bool,
}

impl Own {
    /// Whether the option is for us, or changes nothing; an error when it cannot be honoured.
    fn takes(&mut self, key: &str, value: &str) -> Result<bool, DsnError> {
        match key {
            "sslmode" => self.mode = Some(value.to_owned()),
            "sslrootcert" => self.root_cert = Some(value.to_owned()).filter(|file| !file.is_empty()),
            _ if HARMLESS.iter().any(|(name, values)| *name == key && values.contains(&value)) => {}
            _ => {
                return match UNSUPPORTED.iter().find(|name| **name == key) {
                    Some(name) => Err(DsnError::Unsupported(name)),
                    None if is_known(key) => {
                        self.orders_hosts |= key == "load_balance_hosts";
                        Ok(false)
                    }
                    None => Err(DsnError::Unknown),
                };
            }
        }
        Ok(true)
    }
}

/// What `tokio-postgres` understands.
fn is_known(key: &str) -> bool {
    const KNOWN: [&str; 18] = [
        "user",
        "password",
        "dbname",
        "options",
        "application_name",
        "host",
        "hostaddr",
        "port",
        "connect_timeout",
        "tcp_user_timeout",
        "keepalives",
        "keepalives_idle",
        "keepalives_interval",
        "keepalives_retries",
        "target_session_attrs",
        "channel_binding",
        "load_balance_hosts",
        "sslnegotiation",
    ];
    KNOWN.contains(&key)
}

/// The URL without the parameters that are ours. The query begins at the first `?` behind the credentials.
fn split_url(text: &str, behind_scheme: &str) -> Result<(String, Own), DsnError> {
    let credentials = behind_scheme.find('@').map_or(0, |at| at + 1);
    let scheme = text.len() - behind_scheme.len();
    let mut own = Own::default();
    let Some(query_at) = behind_scheme[credentials..].find('?').map(|at| scheme + credentials + at) else {
        return Ok((text.to_owned(), own));
    };
    let mut kept = Vec::new();
    for pair in text[query_at + 1..].split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').ok_or(DsnError::Form)?;
        if !own.takes(key, &percent_decoded(value)?)? {
            kept.push(pair);
        }
    }
    let mut rest = text[..query_at].to_owned();
    if !kept.is_empty() {
        rest.push('?');
        rest.push_str(&kept.join("&"));
    }
    Ok((rest, own))
}

fn percent_decoded(text: &str) -> Result<String, DsnError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let (digits, tail) = tail.split_first_chunk::<2>().ok_or(DsnError::Form)?;
        let digits = std::str::from_utf8(digits).map_err(|_| DsnError::Form)?;
        bytes.push(u8::from_str_radix(digits, 16).map_err(|_| DsnError::Form)?);
        rest = tail;
    }
    String::from_utf8(bytes).map_err(|_| DsnError::Form)
}

/// `key=value` pairs without those that are ours; values may stand in single quotes, `\` escapes.
fn split_pairs(text: &str) -> Result<(String, Own), DsnError> {
    let (mut rest, mut own) = (String::new(), Own::default());
    let mut chars = text.chars().peekable();
    loop {
        while chars.next_if(|c| c.is_whitespace()).is_some() {}
        let mut key = String::new();
        while let Some(c) = chars.next_if(|c| !c.is_whitespace() && *c != '=') {
            key.push(c);
        }
        if key.is_empty() {
            return if chars.peek().is_none() { Ok((rest, own)) } else { Err(DsnError::Form) };
        }
        while chars.next_if(|c| c.is_whitespace()).is_some() {}
        chars.next_if_eq(&'=').ok_or(DsnError::Form)?;
        while chars.next_if(|c| c.is_whitespace()).is_some() {}
        let value = value(&mut chars)?;
        if !own.takes(&key, &value)? {
            rest.push_str(&key);
            rest.push_str("='");
            value.chars().for_each(|c| {
                if matches!(c, '\'' | '\\') {
                    rest.push('\\');
                }
                rest.push(c);
            });
            rest.push_str("' ");
        }
    }
}

fn value(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) -> Result<String, DsnError> {
    let is_quoted = chars.next_if_eq(&'\'').is_some();
    let mut value = String::new();
    while let Some(c) = chars.next_if(|c| if is_quoted { *c != '\'' } else { !c.is_whitespace() }) {
        value.push(if c == '\\' { chars.next().ok_or(DsnError::Form)? } else { c });
    }
    if is_quoted {
        chars.next_if_eq(&'\'').ok_or(DsnError::Form)?;
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Dsn, DsnError> {
        Dsn::parse(text, "tokentriage")
    }

    #[test]
    fn both_forms_say_the_same() {
        for text in [
            "postgres://app:s%20ecret@db.example:5433/keys?sslmode=require&application_name=gw",
            "postgresql://app:s%20ecret@db.example:5433/keys?application_name=gw&sslmode=require",
            "host=db.example port = 5433 user=app password='s ecret' dbname=keys sslmode=require application_name=gw",
        ] {
            let dsn = parse(text).unwrap();
            assert_eq!(dsn.endpoint(), "db.example:5433/keys");
            assert_eq!(dsn.config.get_password(), Some(&b"s ecret"[..]));
            assert_eq!(dsn.config.get_ssl_mode(), SslMode::Require);
            assert_eq!(dsn.config.get_application_name(), Some("gw"));
        }
    }

    #[test]
    fn quotes_and_backslashes_of_a_password_survive() {
        let dsn = parse(r"host=db password='it\'s a \\ ' user=u").unwrap();
        assert_eq!(dsn.config.get_password(), Some(&br"it's a \ "[..]));
        assert_eq!(parse("host=db password='open").unwrap_err(), DsnError::Form);
    }

    #[test]
    fn timeouts_are_ours_whatever_the_string_says() {
        let dsn = parse("postgres://u@h/d?connect_timeout=600&tcp_user_timeout=0&keepalives=0").unwrap();
        assert_eq!(dsn.config.get_connect_timeout(), Some(&Duration::from_secs(5)));
        assert_eq!(dsn.config.get_tcp_user_timeout(), Some(&Duration::from_secs(10)));
        assert!(dsn.config.get_keepalives());
    }

    #[test]
    fn sslmode_decides_what_is_checked() {
        let check = |text: &str| parse(text).unwrap().tls.map(|tls| tls.check);
        assert_eq!(check("host=h sslmode=disable"), None);
        assert_eq!(check("host=h"), Some(Check::Nothing));
        assert_eq!(check("host=h sslmode=require"), Some(Check::Nothing));
        assert_eq!(check("host=h sslmode=verify-ca"), Some(Check::Authority));
        assert_eq!(check("host=h sslmode=verify-full"), Some(Check::Full));
        assert_eq!(check("host=h sslrootcert=system"), Some(Check::Full));
        assert!(parse("host=h sslmode=verify-full").unwrap().verifies_the_server());
        assert_eq!(parse("host=h sslmode=verify-fully").unwrap_err(), DsnError::SslMode);
        assert_eq!(parse("host=h sslmode=require sslrootcert=system").unwrap_err(), DsnError::SslMode);
    }

    #[test]
    fn of_several_hosts_none_is_always_the_first_unless_that_is_asked_for() {
        let order = |text: &str| parse(text).unwrap().config.get_load_balance_hosts();
        assert_eq!(order("postgres://u@a:1,b:2/d"), LoadBalanceHosts::Random);
        assert_eq!(order("postgres://u@a:1,b:2/d?load_balance_hosts=disable"), LoadBalanceHosts::Disable);
        assert_eq!(parse("postgres://u@a:1,b:2/d").unwrap().endpoint(), "a:1,b:2/d");
    }

    #[test]
    fn a_root_file_that_cannot_be_used_is_named() {
        let error = parse("host=h sslmode=verify-full sslrootcert=/nowhere/ca.pem").unwrap_err().to_string();
        assert!(error.starts_with("sslrootcert: /nowhere/ca.pem: "), "{error}");
    }

    #[test]
    fn what_cannot_be_honoured_is_refused_and_no_message_shows_a_piece_of_the_password() {
        assert_eq!(parse("host=h sslcert=/c.pem").unwrap_err(), DsnError::Unsupported("sslcert"));
        assert!(parse("host=h gssencmode=disable").is_ok());
        assert_eq!(parse("user=u dbname=d").unwrap_err(), DsnError::NoHost);
        for text in
            ["host=h password=hunter2 xyzzy=1", "postgres://u:hunter2@h:xyzzy/d", "hunter2 xyzzy", "", "host=h xyzzy"]
        {
            let error = parse(text).unwrap_err();
            let shown = format!("{error} {error:?}");
            assert!(!shown.contains("hunter2") && !shown.contains("xyzzy"), "{text}: {shown}");
        }
        let dsn = parse("postgres://u:hunter2@h/d").unwrap();
        assert_eq!(format!("{dsn:?}"), "h:5432/d");
        assert_eq!(dsn.without_password("no hunter2 here"), "no *** here");
    }
}

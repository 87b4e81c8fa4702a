//! What this replica is called: by the file, a variable, the host, or a name for this one run.
//!
//! Decides the order and what counts as a usable name. The boot logs the outcome as its first line.

use std::fmt;

use super::build::is_dns_label;
use super::types::{EnvName, Replica};

/// Looks up an environment variable.
pub type Variables = Box<dyn Fn(&str) -> Option<String>>;

/// What the process finds around it. Passed in, so that tests and `validate` say what they mean.
pub struct Surroundings {
    /// An environment variable; `None` when it is not set or not UTF-8.
    pub variable: Variables,
    /// The host name, if the machine has one.
    pub hostname: Option<String>,
}

impl Surroundings {
    /// The environment and host name of this process.
    pub fn of_process() -> Self {
        let hostname = ["/proc/sys/kernel/hostname", "/etc/hostname"]
            .iter()
            .find_map(|path| std::fs::read_to_string(path).ok())
            .map(|name| name.trim().to_owned());
        Self { variable: Box::new(|name| std::env::var(name).ok()), hostname }
    }

    /// Nothing around: no variable is set, the host has no name.
    pub fn none() -> Self {
        Self { variable: Box::new(|_| None), hostname: None }
    }
}

impl fmt::Debug for Surroundings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Variables hold secrets, so they are not looked at here.
        f.debug_struct("Surroundings").field("hostname", &self.hostname).finish_non_exhaustive()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaIdentity {
    pub name: String,
    pub source: ReplicaSource,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplicaSource {
    Config,
    Env,
    Hostname,
    Nonce,
}

impl ReplicaSource {
    pub fn as_str(self) -> &'static str {
        match self {
            ReplicaSource::Config => "config",
            ReplicaSource::Env => "env",
            ReplicaSource::Hostname => "hostname",
            ReplicaSource::Nonce => "nonce",
        }
    }
}

impl ReplicaIdentity {
    /// Whether the next start will find the same name.
    pub fn is_stable(&self) -> bool {
        self.source != ReplicaSource::Nonce
    }
}

/// The variable that `replica.name_env` names holds no usable name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadReplicaName {
    pub variable: String,
    pub value: String,
}

impl BadReplicaName {
    pub fn message(&self) -> String {
        format!("{} holds `{}`, which is no DNS label", self.variable, self.value)
    }

    pub fn remedy(&self) -> &'static str {
        "set it to 1 to 63 of a-z, 0-9 and -, not at either end"
    }
}

impl fmt::Display for BadReplicaName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "replica.name_env: {}; {}", self.message(), self.remedy())
    }
}

impl std::error::Error for BadReplicaName {}

/// The name of this replica. A variable that is not set or empty passes on to the host name; one that holds no name
/// is an error, because somebody meant it. A host name is cut at its first dot; `localhost` names nobody.
pub fn resolve(config: &Replica, surroundings: &Surroundings) -> Result<ReplicaIdentity, BadReplicaName> {
    if let Some(name) = &config.name {
        return Ok(ReplicaIdentity { name: name.clone(), source: ReplicaSource::Config });
    }
    if let Some(EnvName(variable)) = &config.name_env {
        let value = (surroundings.variable)(variable).map(|value| value.trim().to_owned());
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            if !is_dns_label(&value) {
                return Err(BadReplicaName { variable: variable.clone(), value });
            }
            return Ok(ReplicaIdentity { name: value, source: ReplicaSource::Env });
        }
    }
    let host = surroundings.hostname.as_deref().unwrap_or("").to_ascii_lowercase();
    let label = host.split('.').next().unwrap_or("");
    if is_dns_label(label) && label != "localhost" {
        return Ok(ReplicaIdentity { name: label.to_owned(), source: ReplicaSource::Hostname });
    }
    Ok(ReplicaIdentity { name: nonce(), source: ReplicaSource::Nonce })
}

/// A name for this one run: 64 random bits, so that two replicas without a name do not take each other's.
fn nonce() -> String {
    let mut bytes = [0u8; 8];
    // Without the kernel's randomness the process id still tells two replicas of one machine apart.
    if getrandom::fill(&mut bytes).is_err() {
        bytes = u64::from(std::process::id()).to_be_bytes();
    }
    format!("tt-{:016x}", u64::from_be_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn around(variable: Option<&'static str>, hostname: Option<&str>) -> Surroundings {
        Surroundings {
            variable: Box::new(move |name| (name == "NAME").then_some(variable?.to_owned())),
            hostname: hostname.map(str::to_owned),
        }
    }

    fn named(name: Option<&str>) -> Replica {
        Replica { name: name.map(str::to_owned), name_env: Some(EnvName("NAME".to_owned())) }
    }

    #[test]
    fn the_file_comes_before_the_variable_before_the_host_before_the_nonce() {
        let source = |replica, around| resolve(&replica, &around).map(|identity| (identity.name, identity.source));
        let ok = |name: &str, source| Ok((name.to_owned(), source));
        let full = || around(Some("from-env"), Some("Web-1.example.com"));
        assert_eq!(source(named(Some("from-file")), full()), ok("from-file", ReplicaSource::Config));
        assert_eq!(source(named(None), full()), ok("from-env", ReplicaSource::Env));
        for unset in [None, Some(""), Some("  ")] {
            assert_eq!(
                source(named(None), around(unset, Some("Web-1.example.com"))),
                ok("web-1", ReplicaSource::Hostname)
            );
        }
        for host in [None, Some(""), Some("localhost"), Some("under_score")] {
            let (name, source) = source(named(None), around(None, host)).unwrap();
            assert_eq!(source, ReplicaSource::Nonce);
            assert!(is_dns_label(&name) && name.len() == 19, "{name}");
        }
    }

    #[test]
    fn only_a_nonce_is_unstable() {
        let identity = resolve(&Replica::default(), &Surroundings::none()).unwrap();
        assert!(!identity.is_stable());
        assert!(resolve(&named(Some("a")), &Surroundings::none()).unwrap().is_stable());
    }

    #[test]
    fn a_variable_with_an_unusable_name_is_an_error_that_names_it() {
        let bad = resolve(&named(None), &around(Some("Not A Name"), Some("web-1"))).unwrap_err();
        assert_eq!(
            bad.to_string(),
            "replica.name_env: NAME holds `Not A Name`, which is no DNS label; \
             set it to 1 to 63 of a-z, 0-9 and -, not at either end"
        );
    }
}

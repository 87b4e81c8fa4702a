//! The secrets that `*_env` keys name, read from the environment once, at boot; and what else the machine must hold for
//! this configuration to serve, for `validate` to say beforehand.
//!
//! The only place where a secret enters the process. A secret does not print: its `Debug` says `<secret>`, and getting
//! at the text takes a call that can be searched for.

use std::fmt;

use io::postgres::Dsn;
use io::runtime::ServerTls;

use super::diagnostics::{Diagnostic, Errors, Report, Severity};
use super::load::Loaded;
use super::replica::Surroundings;
use super::types::EnvName;

/// Text that must not be shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub fn new(text: String) -> Self {
        Self(text)
    }

    /// The text itself, for the one place that sends or compares it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<secret>")
    }
}

/// Every secret and every other value that the configuration takes from the environment.
#[derive(Clone, Debug, Default)]
pub struct Secrets {
    pub admin_token: Option<Secret>,
    /// In the order of `upstreams`; `None` where callers bring their own credential, and also where the variable that
    /// `api_key_env` names holds no key: requests to such an upstream must fail without reaching it.
    pub upstream_keys: Vec<Option<Secret>>,
    pub redis_password: Option<Secret>,
    pub postgres_dsn: Option<Secret>,
    pub peer_token: Option<Secret>,
    /// In the order of `experimental.federation.instances`.
    pub federation_tokens: Vec<Option<Secret>>,
    /// From the file or from its variable. No secret, but resolved at the same time.
    pub advertise_url: Option<String>,
    /// Upstreams that cannot be used for want of their key.
    pub warnings: Vec<Diagnostic>,
}

/// Reads every variable the configuration names. All that are missing are reported together: as errors, except that
/// a missing provider key is a warning, because it must not keep the other upstreams from serving.
pub fn secrets(loaded: &Loaded, surroundings: &Surroundings) -> Result<Secrets, Errors> {
    let config = &loaded.config;
    let mut reader = Reader { surroundings, report: Report::default() };
    let mut secrets = Secrets {
        admin_token: reader.secret("server.admin_token_env", config.server.admin_token_env.as_ref()),
        upstream_keys: config
            .upstreams
            .iter()
            .enumerate()
            .map(|(index, upstream)| {
                reader.upstream_key(&format!("upstreams[{index}].api_key_env"), upstream.api_key_env.as_ref())
            })
            .collect(),
        redis_password: config
            .shared_state
            .redis
            .as_ref()
            .and_then(|redis| reader.secret("shared_state.redis.password_env", redis.password_env.as_ref())),
        postgres_dsn: config
            .shared_state
            .postgres
            .as_ref()
            .and_then(|postgres| reader.dsn("shared_state.postgres.dsn_env", &postgres.dsn_env)),
        peer_token: reader.secret("fleet.peer_token_env", config.fleet.peer_token_env.as_ref()),
        federation_tokens: config
            .experimental
            .federation
            .instances
            .iter()
            .enumerate()
            .map(|(index, instance)| {
                let path = format!("experimental.federation.instances[{index}].token_env");
                reader.secret(&path, instance.token_env.as_ref())
            })
            .collect(),
        advertise_url: config
            .fleet
            .advertise_url
            .clone()
            .or_else(|| reader.value("fleet.advertise_url_env", config.fleet.advertise_url_env.as_ref())),
        warnings: Vec::new(),
    };
    let has_errors = reader.report.has_errors();
    let diagnostics = reader.report.into_diagnostics(&loaded.source);
    if has_errors {
        return Err(Errors { source: loaded.source.clone(), diagnostics });
    }
    secrets.warnings = diagnostics;
    Ok(secrets)
}

/// What keeps this machine, as it is now, from serving the configuration.
pub struct Environment {
    /// In the words of `run`, but each a warning: a file may be checked elsewhere than where it is served.
    pub warnings: Vec<Diagnostic>,
    /// How many of them `run` refuses to start with.
    pub refusals: usize,
}

/// Looks for the variables and files that [`secrets`] and boot read. Dials nothing.
pub fn environment(loaded: &Loaded, surroundings: &Surroundings) -> Environment {
    let mut warnings = match secrets(loaded, surroundings) {
        Ok(secrets) => secrets.warnings,
        Err(errors) => errors.diagnostics,
    };
    let mut report = Report::default();
    if let Some(tls) = &loaded.config.server.tls
        && let Err(why) = ServerTls::from_pem_files(&tls.cert_file.to_string_lossy(), &tls.key_file.to_string_lossy())
    {
        report.error("server.tls", why.to_string(), "name a certificate and its key that this user may read");
    }
    warnings.extend(report.into_diagnostics(&loaded.source));
    let refusals = warnings.iter().filter(|warning| warning.severity == Severity::Error).count();
    warnings.iter_mut().for_each(|warning| warning.severity = Severity::Warning);
    Environment { warnings, refusals }
}

struct Reader<'a> {
    surroundings: &'a Surroundings,
    report: Report,
}

impl Reader<'_> {
    fn secret(&mut self, path: &str, name: Option<&EnvName>) -> Option<Secret> {
        self.value(path, name).map(Secret)
    }

    fn upstream_key(&mut self, path: &str, name: Option<&EnvName>) -> Option<Secret> {
        let name = name?.as_str();
        match self.read(name) {
            Ok(value) => Some(Secret(value)),
            Err(fault) => {
                let message = format!("the environment variable {name} {fault}, so this upstream cannot be used");
                self.report.warning(path, message, remedy(name));
                None
            }
        }
    }

    fn dsn(&mut self, path: &str, name: &EnvName) -> Option<Secret> {
        let secret = self.secret(path, Some(name))?;
        if let Err(why) = Dsn::parse(secret.expose(), "tokentriage") {
            let remedy = "write postgres://user:password@host:5432/database?sslmode=verify-full into it";
            self.report.error(path, format!("the value of {} {why}", name.as_str()), remedy);
        }
        Some(secret)
    }

    fn value(&mut self, path: &str, name: Option<&EnvName>) -> Option<String> {
        let name = name?.as_str();
        match self.read(name) {
            Ok(value) => Some(value),
            Err(fault) => {
                self.report.error(path, format!("the environment variable {name} {fault}"), remedy(name));
                None
            }
        }
    }

    /// The value of a variable, or what is wrong with it.
    fn read(&self, name: &str) -> Result<String, &'static str> {
        let value = (self.surroundings.variable)(name).ok_or("is not set")?;
        // A file's last newline comes along when a variable is filled from it.
        let value = value.trim_end_matches(['\r', '\n']);
        if value.is_empty() {
            return Err("is empty");
        }
        // It goes into a header or a password command, where a control character starts something else.
        if value.chars().any(char::is_control) {
            return Err("holds a control character");
        }
        Ok(value.to_owned())
    }
}

fn remedy(name: &str) -> String {
    format!("set {name} in the environment of the process, or remove the key")
}

#[cfg(test)]
mod tests {
    use super::super::load::load_text;
    use super::*;

    const TEXT: &str = "server: { admin_token_env: ADMIN }\nupstreams:\n  \
        - { id: a, api: openai, base_url: \"https://a/v1\", api_key_env: KEY_A }\n  \
        - { id: b, api: openai, base_url: \"https://b/v1\" }\n";

    fn around(pairs: &'static [(&'static str, &'static str)]) -> Surroundings {
        let find = move |name: &str| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        Surroundings { variable: Box::new(find), hostname: None }
    }

    #[test]
    fn secrets_come_from_the_environment_and_do_not_print() {
        let loaded = load_text("t", TEXT).unwrap();
        let secrets = secrets(&loaded, &around(&[("ADMIN", "hunter2\n"), ("KEY_A", "sk-live")])).unwrap();
        assert_eq!(secrets.admin_token.as_ref().map(Secret::expose), Some("hunter2"));
        assert_eq!(secrets.upstream_keys.len(), 2);
        assert!(secrets.upstream_keys[1].is_none());
        let shown = format!("{secrets:?}");
        assert!(!shown.contains("hunter2") && !shown.contains("sk-live"), "{shown}");
    }

    #[test]
    fn every_missing_variable_is_named_with_its_key_in_one_run() {
        let text = format!("{TEXT}fleet: {{ peer_token_env: PEER }}\n");
        let loaded = load_text("tt.yaml", &text).unwrap();
        let errors = secrets(&loaded, &around(&[("KEY_A", "k"), ("PEER", "")])).unwrap_err().to_string();
        insta::assert_snapshot!(errors, @r"
        error: server.admin_token_env: the environment variable ADMIN is not set
         --> tt.yaml:1:28
          |
        1 | server: { admin_token_env: ADMIN }
          |                            ^^^^^
          |
          = help: set ADMIN in the environment of the process, or remove the key

        error: fleet.peer_token_env: the environment variable PEER is empty
         --> tt.yaml:5:26
          |
        5 | fleet: { peer_token_env: PEER }
          |                          ^^^^
          |
          = help: set PEER in the environment of the process, or remove the key
        ");
    }

    #[test]
    fn what_is_checked_beforehand_says_what_boot_says_and_counts_what_boot_refuses() {
        let text = format!("{TEXT}shared_state: {{ postgres: {{ external: allow, dsn_env: DSN }} }}\n");
        let loaded = load_text("tt.yaml", &text).unwrap();
        let told = |pairs| {
            let environment = environment(&loaded, &around(pairs));
            assert!(environment.warnings.iter().all(|warning| warning.severity == Severity::Warning));
            let words = environment.warnings.iter().map(|warning| format!("{}: {}", warning.path, warning.message));
            (words.collect::<Vec<_>>(), environment.refusals)
        };
        let form = "shared_state.postgres.dsn_env: the value of DSN is no connection string such as \
                    postgres://user:password@host:5432/database?sslmode=verify-full";
        assert_eq!(told(&[("ADMIN", "t"), ("KEY_A", "k"), ("DSN", "nonsense")]), (vec![form.to_owned()], 1));
        let boot = secrets(&loaded, &around(&[("ADMIN", "t"), ("KEY_A", "k"), ("DSN", "nonsense")])).unwrap_err();
        assert!(boot.to_string().contains(form), "{boot}");
        let (missing, refusals) = told(&[("DSN", "postgres://u@localhost/d")]);
        assert_eq!((missing.len(), refusals), (2, 1), "{missing:?}: without a provider's key it serves the others");
        assert_eq!(told(&[("ADMIN", "t"), ("KEY_A", "k"), ("DSN", "postgres://u@localhost/d")]), (vec![], 0));
    }

    #[test]
    fn a_missing_provider_key_costs_that_upstream_and_not_the_gateway() {
        let loaded = load_text("tt.yaml", TEXT).unwrap();
        let secrets = secrets(&loaded, &around(&[("ADMIN", "token")])).unwrap();
        assert_eq!(secrets.upstream_keys, [None, None]);
        let warnings: Vec<_> = secrets.warnings.iter().map(|warning| (&*warning.path, &*warning.message)).collect();
        let message = "the environment variable KEY_A is not set, so this upstream cannot be used";
        assert_eq!(warnings, [("upstreams[0].api_key_env", message)]);
    }

    #[test]
    fn a_secret_with_a_line_break_inside_is_refused_without_showing_it() {
        let loaded = load_text("t", TEXT).unwrap();
        let errors = secrets(&loaded, &around(&[("ADMIN", "a\r\nX-Evil: b"), ("KEY_A", "k")])).unwrap_err().to_string();
        assert!(errors.contains("ADMIN holds a control character") && !errors.contains("X-Evil"), "{errors}");
    }
}

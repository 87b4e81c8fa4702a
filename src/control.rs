//! The control thread: admin API, signals and reload. Nothing here is on a request's path.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use io::ring::Pager;
use io::upstream::Resolver;
use shards::rate::Clock0;
use tokio::signal::unix::{SignalKind, signal};

use crate::admin;
use crate::config::{self, Config, Origin, Secrets};
use crate::rules::Rules;
use crate::shared::Shared;

/// What the admin API and the signals act through.
pub struct Control {
    /// What all threads see.
    pub shared: Arc<Shared>,
    /// The secrets of the config, read at boot.
    pub secrets: Secrets,
    origin: Origin,
    resolver: Resolver,
    mock: Option<SocketAddr>,
    pager: Arc<Pager>,
    clock0: Clock0,
    reloading: std::sync::Mutex<()>,
    drain_began_ns: std::sync::OnceLock<u64>,
}

/// What a reload did.
#[derive(Debug, serde::Serialize)]
pub struct Reloaded {
    /// Warnings of the compile.
    pub warnings: Vec<String>,
    /// Keys whose new value waits for a restart.
    pub needs_restart: Vec<&'static str>,
}

impl Control {
    /// Made at the end of boot.
    pub fn new(
        shared: Arc<Shared>,
        origin: Origin,
        resolver: Resolver,
        mock: Option<SocketAddr>,
        secrets: Secrets,
        pager: Arc<Pager>,
        clock0: Clock0,
    ) -> Self {
        Control {
            shared,
            secrets,
            origin,
            resolver,
            mock,
            pager,
            clock0,
            reloading: std::sync::Mutex::new(()),
            drain_began_ns: std::sync::OnceLock::new(),
        }
    }

    /// Compiles the file aside and swaps it in. A file that does not compile changes nothing; the error says why.
    pub fn reload(&self) -> Result<Reloaded, String> {
        // One at a time: the file read last is the one in force.
        let _one = self.reloading.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let loaded = self.origin.load().map_err(|errors| errors.to_string())?;
        if config::requires_coordination(&loaded.config) {
            return Err("shared_state: this build has no coordination tier".to_owned());
        }
        let compiled = config::compile(&loaded, self.clock0).map_err(|errors| errors.to_string())?;
        let all = loaded.warnings.iter().chain(&compiled.warnings);
        let warnings: Vec<String> =
            all.map(|warning| format!("{}: {} ({})", warning.path, warning.message, warning.remedy)).collect();
        let before = self.shared.rules.load_full();
        let needs_restart = config::needs_restart(&before.config, &loaded.config);
        let mut config = loaded.config;
        let limits = crate::rules::limits_in_force(&config, compiled.limits);
        keep_what_runs(&mut config, &before.config);
        let rules =
            Rules::build(config, Arc::new(limits), compiled.prices, warnings.clone(), &self.resolver, self.mock)
                .map_err(|error| format!("server.tls: {error}"))?;
        self.shared.rules.store(Arc::new(rules));
        self.shared.ledger.limits_changed();
        self.shared.announce();
        self.pager.page();
        tracing::info!(needs_restart = needs_restart.join(", "), warnings = warnings.len(), "config reloaded");
        Ok(Reloaded { warnings, needs_restart })
    }
}

/// What waits for a restart keeps its running value, so that the effective config says what is true.
fn keep_what_runs(config: &mut Config, running: &Config) {
    let (new, old) = (&mut config.server, &running.server);
    new.listen = old.listen;
    new.admin_listen = old.admin_listen;
    new.admin_token_env = old.admin_token_env.clone();
    new.cores = old.cores;
    new.driver = old.driver;
    new.pin = old.pin;
    config.data_dir = running.data_dir.clone();
    config.replica = running.replica.clone();
    config.ledger = running.ledger.clone();
    config.shared_state = running.shared_state.clone();
    config.fleet = running.fleet.clone();
}

/// Serves the admin port until SIGTERM or SIGINT. Waits for that.
pub fn serve(control: &Arc<Control>, listener: TcpListener) -> std::io::Result<()> {
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut hangup = signal(SignalKind::hangup())?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let admin = tokio::spawn(admin::serve(listener, control.clone()));
        let refresh = tokio::spawn(refresh_keys(control.clone()));
        loop {
            tokio::select! {
                _ = terminate.recv() => break,
                _ = interrupt.recv() => break,
                _ = hangup.recv() => {
                    let control = control.clone();
                    let reloaded = tokio::task::spawn_blocking(move || control.reload()).await;
                    if let Ok(Err(error)) = reloaded {
                        tracing::error!("config not reloaded, the running one stays in force: {error}");
                    }
                }
            }
        }
        refresh.abort();
        tracing::info!(
            connections = control.shared.cores.iter().map(|core| core.metrics.connections()).sum::<i64>(),
            at_most_s = control.shared.rules.load().config.server.drain_timeout.as_secs_f64(),
            "draining"
        );
        // The admin port answers `draining` until the data cores are done: it ends with the runtime.
        control.shared.draining.store(true, std::sync::atomic::Ordering::Release);
        control.shared.cores.iter().for_each(|core| core.doorbell.ring());
        while control.shared.cores.iter().any(|core| core.metrics.connections() > 0 || core.metrics.inflight() > 0) {
            if control.drain_is_over() {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        admin.abort();
        Ok(())
    })
}

/// A key minted or revoked by the command line beside us takes effect within this time.
const KEY_REFRESH: std::time::Duration = std::time::Duration::from_millis(500);

async fn refresh_keys(control: Arc<Control>) {
    let mut failing = false;
    loop {
        tokio::time::sleep(KEY_REFRESH).await;
        match control.shared.keys.refresh() {
            Ok(true) => control.shared.announce(),
            Ok(false) => failing = false,
            Err(error) if !failing => {
                failing = true;
                tracing::error!(%error, "the key file cannot be read; the keys known so far stay in force");
            }
            Err(_) => {}
        }
    }
}

impl Control {
    /// Whether `server.drain_timeout` has passed since the drain began.
    fn drain_is_over(&self) -> bool {
        let timeout_ns = crate::rules::ns(self.shared.rules.load().config.server.drain_timeout);
        let began_ns = self.drain_began_ns.get_or_init(io::clock::mono_ns);
        io::clock::mono_ns().saturating_sub(*began_ns) > timeout_ns
    }
}

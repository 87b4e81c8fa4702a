//! The control thread: admin API, signals and reload. Nothing here is on a request's path.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use io::ring::Pager;
use io::upstream::Resolver;
use shards::rate::Clock0;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::admin;
use crate::audit::{AuditFile, Who};
use crate::config::{self, Config, Origin, Secrets};
use crate::coordination::Coordination;
use crate::coordination::fleet::Command;
use crate::rules::Rules;
use crate::shared::Shared;

/// How long a reload waits for the accountant to look at new limits; it looks every second when nothing hangs.
const ARM_WITHIN: std::time::Duration = std::time::Duration::from_secs(30);

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

    /// Reloads, and writes into the audit who wanted it and what came of it. Waits for the disk.
    pub fn reload_for(&self, who: &Who) -> (Result<Reloaded, String>, std::io::Result<()>) {
        let reloaded = self.reload();
        let (what, outcome) = match &reloaded {
            Ok(reloaded) => {
                let warnings = reloaded.warnings.len();
                (serde_json::json!({"warnings": warnings, "needs_restart": reloaded.needs_restart}), "done")
            }
            Err(_) => (serde_json::json!({}), "refused"),
        };
        let audit = AuditFile::of(&self.shared.rules.load().config.data_dir);
        let now = shards::units::WallMs(io::clock::wall_ms());
        (reloaded, audit.record(now, who, "config.reload", &what, outcome))
    }

    /// Compiles the file aside and swaps it in. A file that does not compile changes nothing; the error says why.
    ///
    /// New limits reach the accountant first and the gates after it: no gate ever reads a new budget before the rows
    /// that the period already holds are in it.
    fn reload(&self) -> Result<Reloaded, String> {
        // One at a time: the file read last is the one in force.
        let _one = self.reloading.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let loaded = self.origin.load().map_err(|errors| errors.to_string())?;
        let compiled = config::compile(&loaded, self.clock0).map_err(|errors| errors.to_string())?;
        let all = loaded.warnings.iter().chain(&compiled.warnings);
        let mut warnings: Vec<String> =
            all.map(|warning| format!("{}: {} ({})", warning.path, warning.message, warning.remedy)).collect();
        let before = self.shared.rules.load_full();
        let needs_restart = config::needs_restart(&before.config, &loaded.config);
        let mut config = loaded.config;
        let asks_redis = |limit: &std::sync::Arc<shards::limit::Limit>| limit.store == shards::limit::Store::Redis;
        if self.shared.coordination.is_none() && compiled.limits.limits.iter().any(asks_redis) {
            return Err("shared_state.redis takes effect with a restart, and a limit names `store: redis`".to_owned());
        }
        let limits = Arc::new(crate::rules::limits_in_force(&config, compiled.limits));
        keep_what_runs(&mut config, &before.config);
        let mut rules = Rules::build(config, limits.clone(), compiled.prices, Vec::new(), &self.resolver, self.mock)
            .map_err(|error| format!("server.tls: {error}"))?;
        let unread = self.shared.ledger.arm(limits, ARM_WITHIN, || self.pager.page()).map_err(|_| {
            let seconds = ARM_WITHIN.as_secs();
            format!("ledger: it took no notice of the new limits for {seconds} s, so they were not put in force; is its disk hanging?")
        })?;
        if unread > 0 {
            warnings.push(format!(
                "ledger: {unread} segments could not be read, so new limits do not count the rows in them (the log says why)"
            ));
        }
        rules.warnings = warnings.clone();
        self.shared.rules.store(Arc::new(rules));
        self.shared.announce();
        if let Some(coordination) = &self.shared.coordination {
            coordination.rules_changed();
        }
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
    if new.tls.is_some() != old.tls.is_some() {
        new.tls = old.tls.clone(); // or callers of the other kind would fail from one connection to the next
    }
    config.data_dir = running.data_dir.clone();
    config.replica = running.replica.clone();
    config.ledger = running.ledger.clone();
    config.shared_state = running.shared_state.clone();
    config.fleet = running.fleet.clone();
}

/// SIGTERM and SIGINT, for as long as the process stops.
pub struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    fn listen() -> std::io::Result<Self> {
        Ok(StopSignals { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Waits for one. One that came while nobody waited is heard by the next who does, on whichever runtime.
    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Serves the admin port until SIGTERM or SIGINT, and until the data cores are done or their time is over. Waits for that.
pub fn serve(control: &Arc<Control>, listener: TcpListener) -> std::io::Result<StopSignals> {
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut stop = StopSignals::listen()?;
        let mut hangup = signal(SignalKind::hangup())?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let admin = tokio::spawn(admin::serve(listener, control.clone()));
        let refresh = tokio::spawn(refresh_keys(control.clone()));
        loop {
            tokio::select! {
                () = stop.next() => break,
                // On the blocking pool: a reload that waits for the disk must not keep a SIGTERM waiting.
                _ = hangup.recv() => drop(tokio::task::spawn_blocking({
                    let control = control.clone();
                    move || control.reload_by_signal()
                })),
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
        if let Some(coordination) = &control.shared.coordination {
            coordination.fleet.ask(Command::Leave); // too busy to hear it: it leaves at the end
        }
        control.shared.cores.iter().for_each(|core| core.doorbell.ring());
        while control.shared.cores.iter().any(|core| core.metrics.connections() > 0 || core.metrics.inflight() > 0) {
            if control.drain_is_over() {
                break;
            }
            tokio::select! {
                () = stop.next() => control.cut_short(),
                () = tokio::time::sleep(std::time::Duration::from_millis(10)) => {}
            }
        }
        admin.abort();
        Ok(stop)
    })
}

/// Has the coordinator take its leave of the shared store, and waits for that; it is bounded there. Another signal ends it
/// now.
pub fn goodbye(coordination: &Coordination, mut stop: StopSignals, coordinator: impl FnOnce() + Send + 'static) {
    coordination.stop();
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
        return coordinator(); // no signal cuts it then
    };
    runtime.block_on(async {
        let mut ended = tokio::task::spawn_blocking(coordinator);
        tokio::select! {
            _ = &mut ended => return,
            () = stop.next() => {}
        }
        tracing::warn!("told to stop again: the goodbye to the shared store is cut short");
        coordination.hurry();
        let _ = ended.await; // a thread that panicked has ended the process
    });
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
    /// SIGHUP.
    fn reload_by_signal(&self) {
        let (reloaded, audited) = self.reload_for(&Who::Signal { name: "SIGHUP" });
        if let Err(error) = reloaded {
            tracing::error!("config not reloaded, the running one stays in force: {error}");
        }
        if let Err(error) = audited {
            tracing::error!(%error, "a reload could not be written into the audit");
        }
    }

    /// A second SIGTERM or SIGINT: what still runs is cut now. Its rows are written all the same.
    fn cut_short(&self) {
        if self.shared.cutting.swap(true, std::sync::atomic::Ordering::AcqRel) {
            return;
        }
        tracing::warn!(
            connections = self.shared.cores.iter().map(|core| core.metrics.connections()).sum::<i64>(),
            "told to stop again: open connections are cut now"
        );
        self.shared.cores.iter().for_each(|core| core.doorbell.ring());
    }

    /// Whether `server.drain_timeout` has passed since the drain began.
    fn drain_is_over(&self) -> bool {
        let timeout_ns = crate::rules::ns(self.shared.rules.load().config.server.drain_timeout);
        let began_ns = self.drain_began_ns.get_or_init(io::clock::mono_ns);
        io::clock::mono_ns().saturating_sub(*began_ns) > timeout_ns
    }
}

//! Starting and stopping, in order, on one page.
//!
//! ```text
//! config → name → descriptors → ledger (lock, catch up, last stop) → keys → mock → rules → ports → accountant
//! → coordinator → identity → cores → control
//! SIGTERM → readiness off → cores drain → accountant writes the last rows → checkpoint → coordinator leaves → exit 0
//! SIGTERM again → cores cut what still runs, and the coordinator its leave → the same end
//! ```
//!
//! A thread that dies of a panic ends the process, loudly: a gateway with a missing core is worse than a restart.

use std::fs::DirBuilder;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::thread::JoinHandle;

use io::clock;
use io::doorbell::doorbell;
use io::errand::errands;
use io::postgres::DsnError;
use io::redis::Endpoint;
use io::ring::{Pager, ring};
use io::runtime::{DriverChoice, TlsError};
use io::upstream::Resolver;
use shards::coordinate::key::ScopeHash;
use shards::coordinate::ticket::TICKETS_MAX;
use shards::rate::Clock0;
use shards::registry::Registry;
use shards::units::{MonoNs, WallMs};
use tokio::sync::Notify;

use crate::accountant_core::{self, Unwritten};
use crate::cli::{Failure, Outcome, RunArgs};
use crate::config::{self, Auto, BaseUrl, Config, Driver, Errors, Loaded, Origin, Secrets, Surroundings};
use crate::control::{self, Control};
use crate::coordination::Coordination;
use crate::coordination::convergence::Convergence;
use crate::coordination::fleet::FleetState;
use crate::coordination::roster::{RosterFile, RosterKeeper, RosterTable};
use crate::coordinator_core;
use crate::data_core::{self, Start};
use crate::identity_thread::Identity;
use crate::keys::{KeyFileError, KeyStore};
use crate::last_stop::{LastStop, RunningMark};
use crate::ledger::LedgerState;
use crate::memory;
use crate::metrics::CoreMetrics;
use crate::rules::Rules;
use crate::shared::{CoreSeen, Shared};

/// Rows a core may be ahead of the accountant before they wait in its own overflow.
const TEE_ROWS: usize = 4_096;
/// And the overflow: past it rows are dropped and counted. 16,384 rows x 0.5 KB = 8 MB a core at worst.
const OVERFLOW_ROWS: usize = 16_384;
/// How long boot waits for names to resolve; a name that takes longer is answered 502 until it does.
const NAMES_NS: u64 = 2_000_000_000;
/// How long boot waits for the first look at Postgres, so that a healthy start serves no key as unknown or stale.
const FIRST_LOOK: std::time::Duration = std::time::Duration::from_secs(2);
/// Cores are pinned only where each has a CPU and some are left for the other threads.
const PIN_FROM_CPUS: usize = 4;

/// Why the process did not start, or did not stop as it should.
#[derive(Debug, thiserror::Error)]
pub enum BootError {
    /// The config does not compile.
    #[error("{0}")]
    Config(Box<Errors>),
    /// The replica's name from the environment is no DNS label.
    #[error("{0}")]
    Replica(String),
    /// The data folder cannot be made.
    #[error("data_dir {path}: {reason}; name a folder this user may write to")]
    DataDir {
        /// As configured.
        path: String,
        /// The system's words.
        reason: std::io::Error,
    },
    /// The ledger folder cannot be used.
    #[error(transparent)]
    Ledger(#[from] io::ledger_file::LedgerError),
    /// The key file cannot be used.
    #[error(transparent)]
    Keys(#[from] KeyFileError),
    /// The connection string of the key store cannot be used.
    #[error("shared_state.postgres.dsn_env: the value of {variable} {reason}")]
    Dsn {
        /// The variable that holds it.
        variable: String,
        /// What is wrong with it; nothing of the string itself.
        reason: DsnError,
    },
    /// TLS cannot be set up.
    #[error("server.tls: {0}")]
    Tls(#[from] TlsError),
    /// TLS towards Redis cannot be set up.
    #[error("shared_state.redis: {0}")]
    Redis(TlsError),
    /// A port cannot be had.
    #[error("{key} {address}: {reason}; {}", listen_remedy(reason))]
    Listen {
        /// The config key.
        key: &'static str,
        /// The address.
        address: SocketAddr,
        /// The system's words.
        reason: std::io::Error,
    },
    /// A driver was forced that this machine does not allow.
    #[error("server.driver: {0}")]
    Driver(#[from] io::runtime::DriverError),
    /// It stopped on a disk that took no rows.
    #[error(
        "stopped, but the last {rows} rows are lost: the ledger took none to the end ({reason}); what they spent is in no \
         budget from the next start on. A disk with room before the stop keeps them"
    )]
    RowsLost {
        /// How many.
        rows: u64,
        /// The system's words.
        reason: String,
    },
    /// It stopped on a disk that did not confirm the last rows.
    #[error("stopped, but the last rows may not be on the disk ({reason}); the next start tells of it, too")]
    RowsUnsure {
        /// The system's words.
        reason: String,
    },
    /// The system refused a thread, a socket or randomness.
    #[error("{0}")]
    System(#[from] std::io::Error),
}

fn listen_remedy(reason: &std::io::Error) -> &'static str {
    use std::io::ErrorKind::{AddrInUse, AddrNotAvailable, PermissionDenied};
    match reason.kind() {
        AddrInUse => "something listens there (`ss -ltnp` shows what): stop it, or name another port",
        AddrNotAvailable => "name an address that this machine has, or 0.0.0.0 for all of them",
        PermissionDenied => "ports below 1024 are not for every user: name another, or grant CAP_NET_BIND_SERVICE",
        _ => "name another address",
    }
}

/// `tokentriage run`.
pub fn command(args: RunArgs) -> Outcome {
    memory::keep_pages_small();
    run(&Origin::find(args.config.config.as_deref())).map_err(Failure::from)
}

impl From<BootError> for Failure {
    fn from(error: BootError) -> Self {
        match error {
            BootError::Config(errors) => Failure::Config(errors),
            BootError::Replica(_) | BootError::Dsn { .. } => Failure::Refused(error.to_string()),
            _ => Failure::Runtime(error.to_string()),
        }
    }
}

/// Serves until told to stop. Waits for that.
pub fn run(origin: &Origin) -> Result<(), BootError> {
    // Config, and who we are: the first line of every boot.
    let loaded = origin.load().map_err(|errors| BootError::Config(Box::new(errors)))?;
    let replica = config::resolve_replica(&loaded.config.replica, &Surroundings::of_process())
        .map_err(|bad| BootError::Replica(format!("{}; {}", bad.message(), bad.remedy())))?;
    tracing::info!(
        name = replica.name,
        source = replica.source.as_str(),
        stable = replica.is_stable(),
        "replica identity resolved"
    );
    let clock0 = Clock0 { wall_offset_ns: clock::wall_offset_ns() };
    let compiled = config::compile(&loaded, clock0).map_err(|errors| BootError::Config(Box::new(errors)))?;
    let secrets =
        config::secrets(&loaded, &Surroundings::of_process()).map_err(|errors| BootError::Config(Box::new(errors)))?;
    tracing::info!(config = origin.name(), "config loaded");
    let warnings: Vec<String> = warnings(&loaded, &compiled);
    if !matches!(origin, Origin::Embedded) {
        warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    }
    raise_descriptor_limit();

    // The ledger: one process per folder, meters as of the last row.
    let config = loaded.config.clone();
    make_data_dir(&config.data_dir)?;
    let convergence = config.shared_state.redis.as_ref().map(|_| Arc::new(Convergence::default()));
    let registry = registry(convergence.as_ref());
    let pager = Arc::new(Pager::default());
    let ledger = LedgerState::default();
    let limits = Arc::new(crate::rules::limits_in_force(&config, compiled.limits));
    let accountant = accountant_core::open(&config, &replica.name, &limits, &registry, &ledger)?;
    let (mut mark, last_stop) = RunningMark::set(&config.data_dir, WallMs(clock::wall_ms()))?;
    if let LastStop::Unclean { started } = &last_stop {
        tracing::warn!(
            started,
            "the last process on this data folder did not stop cleanly: {}",
            crate::last_stop::MEANING
        );
    }
    ledger.set_last_stop(last_stop);

    // Keys, providers, rules.
    let (keys, identity) = open_keys(&config, &secrets, &replica.name)?;
    let uses_mock = config.upstreams.iter().any(|upstream| upstream.base_url == BaseUrl::Mock);
    let mock = if uses_mock { Some(start_mock()?) } else { None };
    let resolver = Resolver::start()?;
    let rules = Rules::build(config.clone(), limits, compiled.prices, warnings, &resolver, mock)?;

    await_names(&rules);

    // Ports, before any thread serves.
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let core_count = match config.server.cores {
        Auto::Auto => cpus,
        Auto::Set(count) => usize::from(count),
    };
    let listeners = io::listen::bind_all(config.server.listen, core_count).map_err(|reason| BootError::Listen {
        key: "server.listen",
        address: config.server.listen,
        reason,
    })?;
    let admin = std::net::TcpListener::bind(config.server.admin_listen).map_err(|reason| BootError::Listen {
        key: "server.admin_listen",
        address: config.server.admin_listen,
        reason,
    })?;
    let listen_at = listeners.first().map_or(Ok(config.server.listen), std::net::TcpListener::local_addr)?;
    let admin_at = admin.local_addr()?;

    // What everybody sees.
    let mut seen = Vec::with_capacity(core_count);
    let mut ends = Vec::with_capacity(core_count);
    let mut receivers = Vec::with_capacity(core_count);
    let (wake, mut desks) = (Arc::new(Notify::new()), Vec::new());
    for listener in listeners {
        let (sender, receiver, counts) = ring(TEE_ROWS, OVERFLOW_ROWS, pager.clone());
        let (door, bell) = doorbell()?;
        receivers.push(receiver);
        let asker = config.shared_state.redis.as_ref().map(|_| {
            let (asker, answerer) = errands(TICKETS_MAX, wake.clone(), door.clone());
            desks.push(answerer);
            asker
        });
        ends.push((listener, sender, bell, asker));
        seen.push(CoreSeen {
            metrics: Arc::new(CoreMetrics::default()),
            rows: counts,
            blanks: Arc::default(),
            doorbell: door,
            synced_rows: Arc::new(AtomicU64::new(0)),
            driver: std::sync::OnceLock::new(),
        });
    }
    let started_ms = clock::wall_ms();
    let fleet = convergence.map(|convergence| {
        let (ledger, url) = (accountant.ledger_id(), secrets.advertise_url.clone());
        let file: Arc<dyn RosterKeeper> = Arc::new(RosterFile::of(&config.data_dir));
        // So that the first answer about the fleet knows it. A copy that cannot be read is said, and read again, later.
        let remembered = file.load().unwrap_or_default();
        let table = keys.followed().map(|followed| Arc::new(RosterTable(followed.clone())) as Arc<dyn RosterKeeper>);
        let keepers = std::iter::once(file).chain(table).collect();
        let fleet = FleetState::new(&config, &replica, ledger, url, started_ms, convergence, keepers);
        fleet.inspect(|fleet| fleet.roster.remember(remembered))
    });
    let coordination = fleet.transpose()?.map(|fleet| Arc::new(Coordination::of(&config, fleet, wake.clone())));
    let shared = Arc::new(Shared::new(replica, rules, keys, registry, ledger, seen, coordination, started_ms));
    shared.beat.beat(MonoNs(clock::mono_ns())); // the catch-up above published every meter

    // Threads.
    let accountant = {
        let (shared, pager) = (shared.clone(), pager.clone());
        thread("tt-accountant", move || {
            accountant_core::run(accountant, receivers, &shared, &pager).map_err(|unwritten| {
                let reason = shared.ledger.trouble().map_or_else(|| "see the log".to_owned(), |trouble| trouble.error);
                match unwritten {
                    Unwritten::Lost { rows } => BootError::RowsLost { rows, reason },
                    Unwritten::Unsynced => BootError::RowsUnsure { reason },
                }
            })
        })?
    };
    let coordinator = match &config.shared_state.redis {
        None => None,
        Some(redis) => {
            let password = secrets.redis_password.as_ref().map(|secret| secret.expose().to_owned());
            let endpoint = Endpoint::new(&redis.addr, password, redis.tls).map_err(BootError::Redis)?;
            let start = coordinator_core::Start { endpoint, desks, wake, pager: pager.clone() };
            let shared = shared.clone();
            Some(thread("tt-coordinator", move || Ok(coordinator_core::run(start, &shared)?))?)
        }
    };
    if let Some(identity) = identity {
        let (followed, shared) = (identity.followed(), shared.clone());
        thread("tt-identity", move || Ok(identity.run(move || shared.announce())?))?;
        followed.await_first_look(FIRST_LOOK);
    }
    let connections = Arc::new(AtomicUsize::new(0));
    let pins = match config.server.pin {
        Auto::Auto => cpus >= PIN_FROM_CPUS && core_count <= cpus,
        Auto::Set(pin) => pin,
    };
    let allowed = io::cpu::allowed();
    let mut cores = Vec::with_capacity(core_count);
    for (index, (listener, rows, bell, asker)) in ends.into_iter().enumerate() {
        let start = Start {
            index,
            listener,
            rows,
            bell,
            asker,
            driver: driver_choice(config.server.driver),
            pin_to: pins.then(|| allowed.get(index % allowed.len().max(1)).copied()).flatten(),
            connections: connections.clone(),
        };
        let shared = shared.clone();
        cores.push(thread(&format!("tt-core-{index}"), move || {
            data_core::run(start, &shared).map_err(BootError::Driver)
        })?);
    }
    wait_for_drivers(&shared, &mut cores)?;
    mark.serves(WallMs(clock::wall_ms()))?;

    // Control, on this thread, until a signal ends it.
    let control =
        Arc::new(Control::new(shared.clone(), origin.clone(), resolver, mock, secrets, pager.clone(), clock0));
    tracing::info!(listen = %listen_at, admin = %admin_at, cores = core_count, "listening");
    if matches!(origin, Origin::Embedded) {
        tracing::info!(
            "no config file: the built-in mock answers; try curl http://{listen_at}/v1/chat/completions \
             -d '{{\"model\":\"mock\",\"messages\":[{{\"role\":\"user\",\"content\":\"hi\"}}]}}', and `tokentriage init` \
             for a config of your own"
        );
    }
    let stop = control::serve(&control, admin)?;

    // Stop. The cores were told when the signal came.
    for core in cores {
        let _ = core.join();
    }
    pager.page();
    let written = accountant.join().unwrap_or(Ok(())); // one that panicked has ended the process
    match &written {
        Ok(()) => drop(mark),
        Err(_) => mark.stay(),
    }
    if let (Some(coordination), Some(coordinator)) = (&shared.coordination, coordinator) {
        control::goodbye(coordination, stop, move || drop(coordinator.join()));
    }
    written?;
    tracing::info!("stopped");
    Ok(())
}

/// The counters. Where burn is exchanged, a meter starts from what peers are known to have burned.
fn registry(convergence: Option<&Arc<Convergence>>) -> Registry {
    let Some(convergence) = convergence.cloned() else { return Registry::new() };
    Registry::new().with_newborn(Box::new(move |key, meter| {
        convergence.terms.claim(ScopeHash::of(&key.identity, &key.node), key.clone(), meter);
    }))
}

/// The store that the config names. Postgres is not dialled yet, and need not be there.
fn open_keys(config: &Config, secrets: &Secrets, replica: &str) -> Result<(KeyStore, Option<Identity>), BootError> {
    let file = config.data_dir.join("keys.json");
    let (Some(postgres), Some(dsn)) = (&config.shared_state.postgres, &secrets.postgres_dsn) else {
        return Ok((KeyStore::open(&file)?, None));
    };
    if file.exists() {
        tracing::warn!(file = %file.display(), "keys are kept in Postgres; those in the key file open nothing");
    }
    let identity = Identity::new(dsn.expose(), replica, &config.data_dir)
        .map_err(|reason| BootError::Dsn { variable: postgres.dsn_env.as_str().to_owned(), reason })?;
    Ok((KeyStore::Postgres(identity.followed()), Some(identity)))
}

/// Rows and keys name tenants and what they spend: nobody but the service's own user needs to look in.
fn make_data_dir(path: &Path) -> Result<(), BootError> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|reason| BootError::DataDir { path: path.display().to_string(), reason })
}

fn warnings(loaded: &Loaded, compiled: &config::Compiled) -> Vec<String> {
    let all = loaded.warnings.iter().chain(&compiled.warnings);
    all.map(|warning| format!("{}: {} ({})", warning.path, warning.message, warning.remedy)).collect()
}

/// Gives the providers' names a moment to resolve, so that the first request does not find them unknown.
fn await_names(rules: &Rules) {
    let deadline_ns = clock::mono_ns() + NAMES_NS;
    let known = || rules.upstreams.iter().all(|upstream| !upstream.target.addresses.current().is_empty());
    while !known() && clock::mono_ns() < deadline_ns {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// A thread whose panic or failure ends the process.
fn thread(
    name: &str,
    body: impl FnOnce() -> Result<(), BootError> + Send + 'static,
) -> std::io::Result<JoinHandle<Result<(), BootError>>> {
    let named = name.to_owned();
    std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        std::panic::catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
            tracing::error!(thread = named, "a thread of the gateway panicked; the process ends");
            std::process::abort()
        })
    })
}

/// Waits until every core runs, so that a forced driver that fails is a boot error and not a silent core.
fn wait_for_drivers(shared: &Shared, cores: &mut Vec<JoinHandle<Result<(), BootError>>>) -> Result<(), BootError> {
    loop {
        if let Some(ended) = cores.iter().position(JoinHandle::is_finished) {
            let outcome = cores.swap_remove(ended).join();
            return outcome.unwrap_or_else(|_| Err(std::io::Error::other("a data core ended at once").into()));
        }
        if shared.cores.iter().all(|core| core.driver.get().is_some()) {
            return Ok(());
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

fn driver_choice(driver: Driver) -> DriverChoice {
    match driver {
        Driver::Auto => DriverChoice::Auto,
        Driver::IoUring => DriverChoice::IoUring,
        Driver::Epoll => DriverChoice::Epoll,
    }
}

/// Runs the built-in mock on a thread of its own, on a free loopback port.
fn start_mock() -> std::io::Result<SocketAddr> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    std::thread::Builder::new().name("tt-mock".into()).spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let served = runtime.and_then(|runtime| {
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener)?;
                crate::mock::serve(listener, crate::mock::MockOptions::default()).await
            })
        });
        if let Err(error) = served {
            tracing::error!(%error, "the built-in mock upstream ended");
        }
    })?;
    Ok(address)
}

/// Each caller and each provider connection is a descriptor: take all that the system allows.
fn raise_descriptor_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls read or write the struct they are given.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 && limit.rlim_cur < limit.rlim_max {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        }
    }
}

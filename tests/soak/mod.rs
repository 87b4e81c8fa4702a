//! The fleet of the soak, and what all its threads see of it.

mod audit;
mod calls;
mod faults;
mod keys;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

use crate::common::cluster::in_touch;
use crate::common::folder::Folder;
use crate::common::mock::free_port;
use crate::common::*;

use self::keys::Known;

/// Replicas that run at a time. The first is never touched, so that what it leaks adds up.
const REPLICAS: usize = 3;
/// Short, so that members come and go within a fault; the default is 2 s and 15 s.
const FLEET: &str = "heartbeat_ms: 500, liveness_window_ms: 3000";
/// Before the first fault and after the last one.
const CALM: Duration = Duration::from_secs(3);

/// Every type of limit and every store; the rates refuse now and then, the budgets never.
const LIMITS: &str = r#"[
  { id: acme_bucket, attach: { node: "org:acme" }, type: rpm, amount: 400, period: 10s, store: redis, algorithm: token_bucket },
  { id: ml_gcra, attach: { node: "org:acme/team:ml" }, type: rpm, amount: 150, period: 10s, store: redis },
  { id: ops_window, attach: { node: "org:acme/team:ops" }, type: rpm, amount: 200, period: 10s, store: redis, algorithm: fixed_window },
  { id: user_window, attach: { level: user }, type: rpm, amount: 120, period: 10s, store: redis, algorithm: sliding_window },
  { id: ml_share, attach: { node: "org:acme/team:ml" }, type: rpm, amount: 240, period: 10s, store: share },
  { id: ops_tpm, attach: { node: "org:acme/team:ops" }, type: tpm, amount: 1800000, period: 1m, store: share },
  { id: ops_slots, attach: { node: "org:acme/team:ops" }, type: concurrency, amount: 9, store: share },
  { id: user_slots, attach: { level: user }, type: concurrency, amount: 4 },
  { id: acme_tokens, attach: { node: "org:acme" }, type: quota_tokens, amount: 1000000000, period: month },
  { id: ml_usd, attach: { node: "org:acme/team:ml" }, type: budget_usd, amount_usd: 100000, period: month },
  { id: user_requests, attach: { level: user }, type: quota_requests, amount: 1000000, period: month },
]"#;
pub const USERS: [&str; 4] = [
    "org:acme/team:ml/user:ada",
    "org:acme/team:ml/user:bob",
    "org:acme/team:ops/user:cy",
    "org:acme/team:ops/user:dee",
];

/// Small and good enough; the same seed rolls the same numbers on every machine.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64, whose: u64) -> Self {
        Self(seed.wrapping_mul(0xD6E8_FEB8_6659_FD93) ^ whose.wrapping_mul(0xCA5A_8263_9512_1157))
    }

    /// Below `sides`.
    pub fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) % sides as u64) as usize
    }

    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.roll(of.len())]
    }

    /// Between the two.
    pub fn wait(&mut self, least: Duration, most: Duration) -> Duration {
        least + Duration::from_millis(self.roll((most - least).as_millis() as usize + 1) as u64)
    }
}

/// One process of a replica, from its start to its end.
pub struct Running {
    pub gateway: Gateway,
    /// Told apart from the one before it under the same name.
    pub nth: usize,
    pub ledger: String,
    /// It is about to be killed: callers may find their connection gone.
    pub is_doomed: AtomicBool,
    /// Held while a caller connects and asks, so that a clean stop comes between two questions.
    pub asking: RwLock<()>,
    /// Ids of keys that it has let in.
    pub has_served: Mutex<HashSet<String>>,
}

/// What befalls the fleet, and what became of it.
pub struct World {
    pub seed: u64,
    pub began: Instant,
    pub mock: Mock,
    pub redis: RedisServer,
    pub redis_proxy: TcpProxy,
    pub postgres: Mutex<PostgresServer>,
    pub postgres_proxy: PgProxy,
    /// Since when Postgres has been well; `None` while it is not.
    pub postgres_well: Mutex<Option<Instant>>,
    pub slots: [RwLock<Option<Arc<Running>>>; REPLICAS],
    pub keys: RwLock<Vec<Arc<Known>>>,
    pub answers: Mutex<Vec<calls::Answered>>,
    /// When which process was killed.
    pub killed: Mutex<HashMap<usize, Instant>>,
    /// All ledgers that ever were, and their data folders.
    pub ledgers: Mutex<BTreeMap<String, PathBuf>>,
    pub faults_are_over: AtomicBool,
    pub calls_are_over: AtomicBool,
    wrong: Mutex<Vec<String>>,
    started: AtomicUsize,
    folder: Folder,
}

/// Ends the soak when the thread that holds it panics: the others would go on for minutes.
struct Fuse<'w>(&'w World);

impl Drop for Fuse<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.faults_are_over.store(true, Ordering::Release);
            self.0.calls_are_over.store(true, Ordering::Release);
        }
    }
}

pub fn run(length: Duration, seed: u64) {
    println!("soak of {length:?}, seed {seed}; to repeat it: TT_SOAK_S={} TT_SOAK_SEED={seed}", length.as_secs());
    let (redis, postgres) = (RedisServer::start(), PostgresServer::start());
    let world = World {
        seed,
        began: Instant::now(),
        mock: Mock::start(),
        redis_proxy: TcpProxy::to(redis.addr),
        redis,
        postgres_proxy: PgProxy::start(postgres.port),
        postgres: Mutex::new(postgres),
        postgres_well: Mutex::new(Some(Instant::now())),
        slots: Default::default(),
        keys: RwLock::default(),
        answers: Mutex::default(),
        killed: Mutex::default(),
        ledgers: Mutex::default(),
        faults_are_over: AtomicBool::new(false),
        calls_are_over: AtomicBool::new(false),
        wrong: Mutex::default(),
        started: AtomicUsize::new(0),
        folder: Folder::new(),
    };
    for (slot, name) in ["tt-a", "tt-b", "tt-c"].into_iter().enumerate() {
        world.start(slot, name, name);
    }
    (0..REPLICAS).for_each(|slot| in_touch(&world.running(slot).expect("it was started").gateway));
    keys::first(&world);
    let mut leaks = audit::Leaks::before(&world);
    std::thread::scope(|scope| {
        let guarded = |work: Box<dyn FnOnce(&World) + Send>| {
            let world = &world;
            scope.spawn(move || {
                let _fuse = Fuse(world);
                work(world);
            })
        };
        let calling: Vec<_> = (0..calls::CALLERS).map(|_| guarded(Box::new(calls::call))).collect();
        world.pause(CALM);
        let failing = [
            guarded(Box::new(faults::of_redis)),
            guarded(Box::new(faults::of_postgres)),
            guarded(Box::new(faults::of_replicas)),
            guarded(Box::new(keys::come_and_go)),
        ];
        leaks.watch(&world, length);
        world.faults_are_over.store(true, Ordering::Release);
        failing.into_iter().for_each(|thread| thread.join().expect("a thread of the soak"));
        world.tell("all is healed");
        std::thread::sleep(CALM); // callers go on for so long
        world.calls_are_over.store(true, Ordering::Release);
        calling.into_iter().for_each(|thread| thread.join().expect("a caller"));
    });
    world.assert_nothing_wrong();
    audit::all(&world, &leaks);
    world.assert_nothing_wrong();
    if std::env::var_os("TT_SOAK_LOGS").is_some() {
        world
            .all_running()
            .iter()
            .for_each(|replica| println!("---- replica {}\n{}", replica.nth, replica.gateway.log_text()));
    }
}

impl World {
    /// Starts a replica of that name on that ledger.
    pub fn start(&self, slot: usize, name: &str, ledger: &str) {
        *self.slots[slot].write().unwrap() = Some(Arc::new(self.launch(name, ledger)));
    }

    /// The same, beside those that callers ask.
    pub fn launch(&self, name: &str, ledger: &str) -> Running {
        let data_dir = self.folder.path().join(ledger);
        std::fs::create_dir_all(&data_dir).expect("the test's folder can be written");
        self.ledgers.lock().unwrap().insert(ledger.to_owned(), data_dir.clone());
        let (admin, dsn) = (free_port(), self.postgres.lock().unwrap().dsn_through(&self.postgres_proxy));
        let setup = Setup::with_mock(&self.mock).redis(&self.redis_proxy.address()).postgres(&dsn).require_key();
        let setup = setup.replica(name).data_dir(data_dir).server("admin_listen", &admin.to_string());
        let setup = setup.governance("limits", &LIMITS.replace('\n', " "));
        let setup = setup.section(&format!("fleet: {{ {FLEET}, advertise_url: \"http://{admin}\" }}"));
        Running {
            gateway: setup.start(),
            nth: self.started.fetch_add(1, Ordering::Relaxed), // only told apart
            ledger: ledger.to_owned(),
            is_doomed: AtomicBool::new(false),
            asking: RwLock::new(()),
            has_served: Mutex::default(),
        }
    }

    pub fn running(&self, slot: usize) -> Option<Arc<Running>> {
        self.slots[slot].read().unwrap().clone()
    }

    /// All that run now.
    pub fn all_running(&self) -> Vec<Arc<Running>> {
        (0..REPLICAS).filter_map(|slot| self.running(slot)).collect()
    }

    /// Since when Postgres has been well.
    pub fn postgres_well_since(&self) -> Option<Instant> {
        *self.postgres_well.lock().unwrap()
    }

    /// Lets time pass; `false` when the faults are over.
    pub fn pause(&self, how_long: Duration) -> bool {
        let until = Instant::now() + how_long;
        while Instant::now() < until && !self.faults_are_over.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(20)); // the pause between two looks
        }
        !self.faults_are_over.load(Ordering::Acquire)
    }

    /// Says what happened and when.
    pub fn tell(&self, what: &str) {
        println!("{:7.2} s  {what}", self.began.elapsed().as_secs_f64());
    }

    /// Something happened to a caller that must not.
    pub fn complain(&self, what: String) {
        self.tell(&format!("WRONG: {what}"));
        self.wrong.lock().unwrap().push(what);
    }

    #[track_caller]
    fn assert_nothing_wrong(&self) {
        let wrong = self.wrong.lock().unwrap();
        let shown: Vec<&String> = wrong.iter().take(20).collect();
        assert!(wrong.is_empty(), "seed {}: {} wrongs, first {shown:#?}", self.seed, wrong.len());
    }
}

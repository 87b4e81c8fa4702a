//! What one data core owns: its copies of the published state, its pools and buffers, its ring to the accountant.
//!
//! Everything here lives on one thread and is reached through `Rc`; the only shared words it touches per request are
//! the generation (a load) and the counters the caller's limits name.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::poll_fn;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Poll, Waker};

use io::clock;
use io::errand::Asker;
use io::http1::write::DateCache;
use io::http1::{RequestHead, ResponseHead};
use io::json::Inspector;
use io::listen::StopAccepting;
use io::ring::RingSender;
use io::runtime::{Event, Socket, sleep};
use io::upstream::Pool;
use shards::gate::Passed;
use shards::plan::{LimitSet, NodePlan};
use shards::row::{RequestId, Row};
use shards::scope::{Endpoint, Node};
use shards::units::{MonoNs, Now, WallMs};

use crate::coordination::desk::{Answer, Desk, Question};
use crate::keys::{Followed, Snapshot};
use crate::memory::Owed;
use crate::metrics::CoreMetrics;
use crate::rules::{Routes, Rules, Upstream};
use crate::shared::Shared;

/// Callers one core remembers resolved plans for.
const PLANS_MAX: usize = 65_536;
/// A provider's idle connection is forgotten after this long; most close theirs after 60 s or more.
const POOL_IDLE_NS: u64 = 50_000_000_000;
/// How often, a millisecond apart, a request lets the accountant catch up.
const EASE_TICKS: u32 = 50;
/// Things of a finished request that a core keeps for later ones, of each kind.
const KEPT_MAX: usize = 256;
/// Counters at rest are evicted this often, in housekeeping ticks of a second.
const SWEEP_EVERY: u64 = 60;

/// One data core.
pub struct Core {
    /// Its number.
    pub index: usize,
    /// What all cores see.
    pub shared: Arc<Shared>,
    /// Its counters.
    pub metrics: Arc<CoreMetrics>,
    /// Set once: no new requests, idle connections end.
    pub drain: Event,
    /// The drain time is over: what still runs is dropped, which gives everything back and writes its row.
    pub cut: Event,
    /// Ends its accept loop.
    pub stop: StopAccepting,
    /// Connections it serves right now.
    pub connections: Cell<usize>,
    /// Memory to be given back after large bodies.
    pub owed: Owed,
    /// Its desk at the shared store; `None` where none is configured.
    pub desk: Option<Desk>,
    /// Reads request bodies.
    pub inspector: RefCell<Inspector>,
    view: RefCell<Rc<View>>,
    pools: RefCell<HashMap<String, Rc<RefCell<Pool>>, foldhash::fast::RandomState>>,
    rows: RefCell<Option<RingSender<Box<Row>>>>,
    #[allow(clippy::vec_box)] // a request takes the box, not what is in it
    blank_rows: RefCell<Vec<Box<Row>>>,
    rows_sent: Cell<u64>,
    synced: Synced,
    ids: Cell<u128>,
    ticks: Cell<u64>,
    date: RefCell<DateCache>,
    sheets: RefCell<Vec<Sheet<Passed>>>,
    answer_heads: RefCell<Vec<ResponseHead>>,
    #[allow(clippy::vec_box)] // a connection takes the box, not what is in it
    request_heads: RefCell<Vec<Box<RequestHead>>>,
}

/// Resolved plans by caller and endpoint. By the node first, so that a look-up counts no reference to one.
type Plans = HashMap<Node, [Option<Rc<NodePlan>>; Endpoint::ALL.len()], foldhash::fast::RandomState>;

/// This core's copies of what was published, all of one generation.
pub struct View {
    /// The rules in force.
    pub rules: Arc<Rules>,
    /// The keys.
    pub keys: Arc<Snapshot>,
    /// How far they may be believed; `None` where they are in a file of this replica.
    pub followed: Option<Arc<Followed>>,
    /// Models looked up before.
    pub routes: Rc<Routes>,
    /// Which generation all of this is of.
    pub generation: u64,
    /// This core's own copy, so that counting references moves no cache line of another core.
    limits: Rc<LimitSet>,
    plans: Rc<RefCell<Plans>>,
}

/// Rows of this core that are on disk, and who waits for more (`ledger.sync: always`).
struct Synced {
    count: Arc<AtomicU64>,
    waiting: RefCell<Vec<Waker>>,
}

/// What a request fills, boxed, so that it is handed on instead of being copied: what the gates leave behind (1 KB, there
/// until its request is dropped) and its row (440 bytes, there until the request is settled).
pub struct Sheet<T>(Option<Box<T>>);

impl<T> Deref for Sheet<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_deref().expect("nobody looks at a request's sheet after its end")
    }
}

impl<T> DerefMut for Sheet<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_deref_mut().expect("nobody looks at a request's sheet after its end")
    }
}

impl Core {
    /// Made on the core's own thread.
    pub fn new(
        index: usize,
        shared: Arc<Shared>,
        rows: RingSender<Box<Row>>,
        asker: Option<Asker<Question, Answer>>,
    ) -> std::io::Result<Self> {
        let mut seed = [0_u8; 16];
        getrandom::fill(&mut seed).map_err(std::io::Error::other)?;
        let seen = &shared.cores[index];
        let (metrics, count) = (seen.metrics.clone(), seen.synced_rows.clone());
        let view = View::of(&shared);
        Ok(Core {
            index,
            metrics,
            drain: Event::default(),
            cut: Event::default(),
            stop: StopAccepting::default(),
            connections: Cell::new(0),
            owed: Owed::default(),
            desk: shared.coordination.clone().zip(asker).map(|(coordination, asker)| Desk::new(coordination, asker)),
            inspector: RefCell::new(Inspector::default()),
            view: RefCell::new(Rc::new(view)),
            pools: RefCell::default(),
            rows: RefCell::new(Some(rows)),
            blank_rows: RefCell::default(),
            rows_sent: Cell::new(0),
            synced: Synced { count, waiting: RefCell::default() },
            ids: Cell::new(u128::from_le_bytes(seed)),
            ticks: Cell::new(0),
            date: RefCell::default(),
            sheets: RefCell::default(),
            answer_heads: RefCell::default(),
            request_heads: RefCell::default(),
            shared,
        })
    }

    /// Both clocks, read once per request.
    pub fn now(&self) -> Now {
        Now { mono: MonoNs(clock::mono_ns()), wall: WallMs(clock::wall_ms()) }
    }

    /// The published state, refreshed when the generation moved.
    ///
    /// Handed out by a reference count of this core alone: the published ones are shared by all cores, and counting
    /// them per request would move their cache lines about.
    pub fn view(&self) -> Rc<View> {
        let mut view = self.view.borrow_mut();
        if self.shared.generation() != view.generation {
            let fresh = View::of(&self.shared);
            // Plans hold counters and limits of the old rules; a new key alone leaves them right.
            let same_rules = Arc::ptr_eq(&view.rules, &fresh.rules);
            *view = Rc::new(if same_rules {
                View { plans: view.plans.clone(), routes: view.routes.clone(), limits: view.limits.clone(), ..fresh }
            } else {
                fresh
            });
        }
        view.clone()
    }

    /// The limits on a node's path for an endpoint, resolved to their counters; looked up once per core and caller.
    pub fn plan(&self, view: &View, node: &Node, endpoint: Endpoint) -> Rc<NodePlan> {
        let mut plans = view.plans.borrow_mut();
        if let Some(Some(plan)) = plans.get(node).map(|of_node| &of_node[endpoint as usize]) {
            return plan.clone();
        }
        if plans.len() >= PLANS_MAX {
            plans.clear();
        }
        let plan = Rc::new(view.limits.plan_for(node, endpoint, &self.shared.registry));
        plans.entry(node.clone()).or_default()[endpoint as usize] = Some(plan.clone());
        plan
    }

    /// Forgets resolved plans, so that counters nobody uses can be evicted.
    fn forget_plans(&self) {
        self.view.borrow().plans.borrow_mut().clear();
    }

    /// A fresh request id: 48 bits of time, 80 bits that no two cores or restarts share.
    pub fn request_id(&self, wall: WallMs) -> RequestId {
        // A Weyl sequence over 128 bits: never repeats, and the seed is random per core and boot.
        let next = self.ids.get().wrapping_add(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        self.ids.set(next);
        RequestId::new(wall, next >> 48)
    }

    /// The `Date` header's text for now.
    pub fn date(&self, wall: WallMs, write: impl FnOnce(&str)) {
        write(self.date.borrow_mut().at(wall.0.div_euclid(1000)));
    }

    /// This core's pool of connections to an upstream.
    pub fn pool(&self, upstream: &Upstream) -> Rc<RefCell<Pool>> {
        let mut pools = self.pools.borrow_mut();
        if let Some(pool) = pools.get(upstream.pool_key()) {
            return pool.clone();
        }
        let pool = Rc::new(RefCell::new(Pool::new(upstream.max_idle_per_core, POOL_IDLE_NS)));
        pools.insert(upstream.pool_key().to_owned(), pool.clone());
        pool
    }

    /// Keeps an upstream connection whose answer was read to its end.
    pub fn keep(&self, upstream: &Upstream, socket: Socket) {
        self.pool(upstream).borrow_mut().give(socket);
    }

    /// A head to be read, reused between requests: an idle connection has none.
    pub fn take_request_head(&self) -> Box<RequestHead> {
        self.request_heads.borrow_mut().pop().unwrap_or_default()
    }

    /// Gives a request's head back once nobody looks at it any more.
    pub fn give_request_head(&self, mut head: Box<RequestHead>) {
        let mut kept = self.request_heads.borrow_mut();
        if kept.len() < KEPT_MAX {
            head.clear();
            kept.push(head);
        }
    }

    /// A head to be read, reused between answers.
    pub fn take_answer_head(&self) -> ResponseHead {
        self.answer_heads.borrow_mut().pop().unwrap_or_default()
    }

    /// Gives an answer's head back once nobody looks at it any more.
    pub fn give_answer_head(&self, mut head: ResponseHead) {
        let mut kept = self.answer_heads.borrow_mut();
        if kept.len() < KEPT_MAX {
            head.clear();
            kept.push(head);
        }
    }

    /// An empty verdict sheet, reused between requests.
    pub fn take_passed(&self) -> Sheet<Passed> {
        self.sheets.borrow_mut().pop().unwrap_or_else(|| Sheet(Some(Box::default())))
    }

    /// Takes a verdict sheet back. What it still holds is returned to its counters.
    pub fn give_passed(&self, sheet: &mut Sheet<Passed>) {
        let Some(mut passed) = sheet.0.take() else { return };
        passed.clear();
        let mut kept = self.sheets.borrow_mut();
        if kept.len() < KEPT_MAX {
            kept.push(Sheet(Some(passed)));
        }
    }

    /// A blank row, one that came back from the accountant if there is one.
    pub fn take_row(&self) -> Sheet<Row> {
        let mut blank = self.blank_rows.borrow_mut();
        if blank.is_empty() {
            self.shared.cores[self.index].blanks.take_into(&mut blank);
        }
        Sheet(Some(blank.pop().unwrap_or_else(|| Box::new(Row::blank()))))
    }

    /// Takes a row back that nobody is to see. Without effect on one that was handed over.
    pub fn give_row(&self, sheet: &mut Sheet<Row>) {
        let Some(mut row) = sheet.0.take() else { return };
        let mut blank = self.blank_rows.borrow_mut();
        if blank.len() < KEPT_MAX {
            *row = Row::blank();
            blank.push(row);
        }
    }

    /// Hands a row to the accountant. Never waits. The number says which of this core's rows it was; `None` when it
    /// had to be dropped, which is counted.
    pub fn hand_over(&self, sheet: &mut Sheet<Row>) -> Option<u64> {
        let row = sheet.0.take()?;
        self.metrics.with(|numbers| numbers.record(&row));
        if !self.rows.borrow_mut().as_mut()?.send(row) {
            return None;
        }
        let sent = self.rows_sent.get() + 1;
        self.rows_sent.set(sent);
        Some(sent)
    }

    /// Moves rows that waited in the overflow on. `true` when none is left.
    pub fn flush_rows(&self) -> bool {
        self.rows.borrow_mut().as_mut().is_none_or(RingSender::flush)
    }

    /// No more rows will come from this core: the accountant may end. Not left to `Drop`, because tasks that the
    /// runtime never finishes keep the core alive.
    pub fn hang_up(&self) {
        self.rows.borrow_mut().take();
    }

    /// Lets the accountant catch up while this core's overflow is more than half full, for at most 50 ms a request:
    /// callers are served a little slower rather than rows dropped, and a disk that hangs does not hang traffic.
    pub async fn ease(&self) {
        for _ in 0..EASE_TICKS {
            let crowded = self.rows.borrow_mut().as_mut().is_some_and(|rows| !rows.flush() && rows.is_crowded());
            if !crowded {
                return;
            }
            sleep(std::time::Duration::from_millis(1)).await;
        }
    }

    /// Waits until this core's row of that number is on disk, or cannot be put there.
    pub async fn synced(&self, number: u64) {
        poll_fn(|cx| {
            if self.synced.count.load(Ordering::Acquire) >= number {
                return Poll::Ready(());
            }
            self.synced.waiting.borrow_mut().push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// The doorbell rang: somebody published, synced rows, or asked for the drain.
    pub fn on_ring(&self) {
        self.synced.waiting.borrow_mut().drain(..).for_each(Waker::wake);
        if let Some(desk) = &self.desk {
            desk.collect();
        }
        if self.shared.draining.load(Ordering::Acquire) {
            self.stop.stop();
            self.drain.set();
        }
        if self.shared.cutting.load(Ordering::Acquire) {
            self.cut.set();
        }
    }

    /// Once a second: idle upstream connections, rows that waited in the overflow, counters at rest.
    pub fn housekeeping(&self) {
        self.pools.borrow_mut().retain(|_, pool| {
            let mut pool = pool.borrow_mut();
            pool.sweep();
            pool.idle() > 0
        });
        self.flush_rows();
        self.owed.after_second();
        self.ticks.set(self.ticks.get().wrapping_add(1));
        if self.ticks.get().is_multiple_of(SWEEP_EVERY) {
            // A counter that a remembered plan holds is in use: forget first, so that what rests can go.
            self.forget_plans();
            self.shared.registry.sweep(self.index, self.shared.cores.len(), self.now());
        }
    }
}

impl View {
    fn of(shared: &Shared) -> Self {
        // The generation is read first: what is loaded after it is at least as new.
        let generation = shared.generation();
        let rules = shared.rules.load_full();
        View {
            generation,
            limits: Rc::new(rules.limits.copy_for_core()),
            rules,
            keys: shared.keys.snapshot(),
            followed: shared.keys.followed().cloned(),
            routes: Rc::default(),
            plans: Rc::default(),
        }
    }
}

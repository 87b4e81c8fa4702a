//! The loop against a store that does what a test says, on tokio's virtual clock: 30 s pass in no time, and always alike.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};

use io::postgres::{KeyRow, KeysRead, ReplicaRow};
use shards::scope::Node;
use tokio::sync::Notify;

use super::*;

/// A store in memory.
#[derive(Default)]
struct Table {
    keys: Mutex<Vec<Key>>,
    replicas: Mutex<Vec<ReplicaRow>>,
    version: AtomicI64,
    bell: Notify,
    /// Changes ring.
    rings: AtomicBool,
    /// Calls are never answered.
    hangs: AtomicBool,
    /// Connecting is refused.
    is_down: AtomicBool,
    /// Writing is refused.
    is_read_only: AtomicBool,
    has_no_tables: AtomicBool,
    opened: AtomicUsize,
    open: AtomicUsize,
    reads: AtomicUsize,
    /// Bumped to end every connection.
    epoch: AtomicUsize,
    ended: Notify,
}

impl Table {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Key>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Somebody else's change.
    fn change(&self, edit: impl FnOnce(&mut Vec<Key>)) {
        edit(&mut self.lock());
        self.version.fetch_add(1, SeqCst);
        if self.rings.load(SeqCst) {
            self.bell.notify_one();
        }
    }

    fn end_connections(&self) {
        self.epoch.fetch_add(1, SeqCst);
        self.ended.notify_waiters();
    }

    async fn answer(&self) -> Result<(), PgError> {
        if self.hangs.load(SeqCst) {
            std::future::pending::<()>().await;
        }
        Ok(())
    }
}

struct FakeStore(Arc<Table>);
struct FakeLink {
    table: Arc<Table>,
    epoch: usize,
}

impl Drop for FakeLink {
    fn drop(&mut self) {
        self.table.open.fetch_sub(1, SeqCst);
    }
}

impl Store for FakeStore {
    type Link = FakeLink;

    async fn open(&self) -> Result<FakeLink, PgError> {
        self.0.opened.fetch_add(1, SeqCst);
        self.0.answer().await?;
        if self.0.is_down.load(SeqCst) {
            return Err(PgError::Connect { endpoint: "fake".into(), reason: "refused".into() });
        }
        self.0.open.fetch_add(1, SeqCst);
        Ok(FakeLink { table: self.0.clone(), epoch: self.0.epoch.load(SeqCst) })
    }
}

impl Link for FakeLink {
    async fn listen(&mut self) -> Result<(), PgError> {
        self.table.answer().await
    }

    async fn rung(&mut self) -> Result<(), PgError> {
        let ended = self.table.ended.notified();
        if self.epoch != self.table.epoch.load(SeqCst) {
            return Err(PgError::Lost("ended".into()));
        }
        tokio::select! {
            () = self.table.bell.notified() => Ok(()),
            () = ended => Err(PgError::Lost("ended".into())),
        }
    }

    async fn prepare(&mut self, may_create: bool) -> Result<(), PgError> {
        self.table.answer().await?;
        if self.table.has_no_tables.load(SeqCst) && !may_create { Err(PgError::Emptied) } else { Ok(()) }
    }

    async fn version(&mut self) -> Result<i64, PgError> {
        self.table.answer().await?;
        Ok(self.table.version.load(SeqCst))
    }

    async fn keys(&mut self) -> Result<KeysRead, PgError> {
        self.table.reads.fetch_add(1, SeqCst);
        let version = self.version().await?;
        let mut keys: Vec<KeyRow> = self.table.lock().iter().map(KeyRow::from).collect();
        keys.sort_by(|a, b| (a.created_ms, &a.id).cmp(&(b.created_ms, &b.id))); // as the real one does
        Ok(KeysRead { keys, version })
    }

    async fn insert(&mut self, key: &Key, _by: &str) -> Result<(), PgError> {
        self.table.answer().await?;
        if self.table.is_read_only.load(SeqCst) {
            return Err(PgError::Refused { code: "25006".into(), message: "read-only transaction".into() });
        }
        self.table.change(|keys| keys.push(key.clone()));
        Ok(())
    }

    async fn revoke(&mut self, id: &str, now: WallMs, _by: &str) -> Result<Option<Key>, PgError> {
        self.table.answer().await?;
        let mut revoked = None;
        self.table.change(|keys| {
            if let Some(key) = keys.iter_mut().find(|key| key.id == id) {
                key.revoked_ms = Some(now.0);
                revoked = Some(key.clone());
            }
        });
        Ok(revoked)
    }

    async fn save_replicas(&mut self, rows: &[ReplicaRow]) -> Result<(), PgError> {
        self.table.replicas.lock().unwrap().extend_from_slice(rows);
        Ok(())
    }

    async fn replicas(&mut self) -> Result<Vec<ReplicaRow>, PgError> {
        Ok(self.table.replicas.lock().unwrap().clone())
    }
}

struct Rig {
    table: Arc<Table>,
    followed: Arc<Followed>,
    announced: Arc<AtomicUsize>,
    began: Instant,
}

/// A follower with the published numbers, on the virtual clock of a paused runtime.
fn rig(last_good: Option<LastGood>) -> Rig {
    let table = Arc::new(Table::default());
    table.rings.store(true, SeqCst);
    let times = Times::FIXED;
    let (followed, asks) = Followed::new("fake".into(), last_good.as_ref(), times.stale(), times.call);
    let followed = Arc::new(followed);
    let announced = Arc::new(AtomicUsize::new(0));
    let began = Instant::now();
    let count = announced.clone();
    let mut follower = Follower {
        store: FakeStore(table.clone()),
        followed: followed.clone(),
        asks,
        times,
        announce: Box::new(move || {
            count.fetch_add(1, SeqCst);
        }),
        now: Box::new(move || at(began)),
        file: None,
        known: last_good.map(|last| last.keys).unwrap_or_default(),
        version: None,
        is_announced: false,
        said_stale: false,
        waiting: None,
        is_kept: true,
        kept_at: None,
    };
    tokio::spawn(async move { follower.run().await });
    Rig { table, followed, announced, began }
}

/// A second after the beginning of time, because 0 means never.
fn at(began: Instant) -> Now {
    let ns = u64::try_from(began.elapsed().as_nanos()).unwrap() + 1_000_000_000;
    Now { mono: MonoNs(ns), wall: WallMs(i64::try_from(ns / 1_000_000).unwrap()) }
}

impl Rig {
    fn standing(&self) -> Standing {
        self.followed.standing(at(self.began).mono)
    }

    fn opens(&self, minted: &crate::keys::Minted) -> bool {
        self.followed.snapshot().find(minted.token.as_bytes(), WallMs(0)).is_some()
    }

    /// How long until it holds, by the virtual clock.
    async fn until(&self, holds: impl Fn(&Rig) -> bool) -> Duration {
        let began = Instant::now();
        while !holds(self) {
            assert!(began.elapsed() < Duration::from_secs(600), "never");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        began.elapsed()
    }

    /// Asks from a thread, as administrators do, while virtual time goes on.
    async fn ask<T: Send + 'static>(&self, ask: impl FnOnce(&Followed) -> T + Send + 'static) -> T {
        let followed = self.followed.clone();
        let asking = std::thread::spawn(move || ask(&followed));
        while !asking.is_finished() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        asking.join().unwrap()
    }
}

fn minted() -> crate::keys::Minted {
    Key::mint(&Node::parse("org:acme").unwrap(), None, None, WallMs(0)).unwrap()
}

fn after(seconds: u64) -> tokio::time::Sleep {
    tokio::time::sleep(Duration::from_secs(seconds))
}

#[test]
fn the_numbers_are_the_published_ones() {
    let times = Times::FIXED;
    assert_eq!(times.revocation_bound, Duration::from_secs(30));
    assert_eq!(times.retry(), Duration::from_millis(3_750));
    assert_eq!(times.stale(), Duration::from_secs(60));
    // A read that begins when it is due and takes all of its deadline but a little ends within the bound.
    assert!(times.reread() + times.call < times.revocation_bound + times.retry());
}

#[tokio::test(start_paused = true)]
async fn a_change_elsewhere_is_in_force_when_the_bell_rings() {
    let rig = rig(None);
    rig.until(|rig| rig.standing() == Standing::Fresh).await;
    let key = minted();
    rig.table.change(|keys| keys.push(key.key.clone()));
    assert!(rig.until(|rig| rig.opens(&key)).await <= Duration::from_millis(200));
    rig.table.change(|keys| keys[0].revoked_ms = Some(1));
    assert!(rig.until(|rig| !rig.opens(&key)).await <= Duration::from_millis(200));
}

#[tokio::test(start_paused = true)]
async fn a_lost_ring_is_noticed_an_eighth_of_the_bound_later() {
    let rig = rig(None);
    rig.until(|rig| rig.standing() == Standing::Fresh).await;
    rig.table.rings.store(false, SeqCst);
    for _ in 0..20 {
        let key = minted();
        rig.table.change(|keys| keys.push(key.key.clone()));
        assert!(rig.until(|rig| rig.opens(&key)).await <= Duration::from_millis(3_800));
    }
}

#[tokio::test(start_paused = true)]
async fn all_keys_are_read_once_per_bound_even_if_nothing_says_that_they_changed() {
    let rig = rig(None);
    rig.until(|rig| rig.standing() == Standing::Fresh).await;
    rig.table.rings.store(false, SeqCst);
    let key = minted();
    rig.table.lock().push(key.key.clone()); // neither a ring nor another version
    assert!(rig.until(|rig| rig.opens(&key)).await <= Duration::from_secs(30));
    let reads = rig.table.reads.load(SeqCst);
    after(300).await;
    let more = rig.table.reads.load(SeqCst) - reads;
    assert!((10..=14).contains(&more), "{more} reads in ten bounds");
}

#[tokio::test(start_paused = true)]
async fn a_storm_of_changes_is_read_ten_times_a_second_at_most() {
    let rig = rig(None);
    rig.until(|rig| rig.standing() == Standing::Fresh).await;
    let reads = rig.table.reads.load(SeqCst);
    for _ in 0..1_000 {
        rig.table.change(|_| {});
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let more = rig.table.reads.load(SeqCst) - reads;
    assert!((8..=11).contains(&more), "{more} reads in a second");
}

#[tokio::test(start_paused = true)]
async fn a_revocation_while_the_listener_is_dead_is_honoured_on_reconnect() {
    let rig = rig(None);
    let key = minted();
    rig.table.change(|keys| keys.push(key.key.clone()));
    rig.until(|rig| rig.opens(&key)).await;
    rig.table.rings.store(false, SeqCst);
    rig.table.change(|keys| keys[0].revoked_ms = Some(1));
    rig.table.end_connections();
    assert!(rig.until(|rig| !rig.opens(&key)).await <= Duration::from_millis(300));
    assert_eq!(rig.table.opened.load(SeqCst), 2, "a connection that worked is replaced at once");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_hangs_is_given_up_with_its_connection_and_serving_goes_on() {
    let rig = rig(None);
    let key = minted();
    rig.table.change(|keys| keys.push(key.key.clone()));
    rig.until(|rig| rig.opens(&key)).await;
    rig.table.hangs.store(true, SeqCst);
    let announced = rig.announced.load(SeqCst);
    after(50).await;
    assert_eq!(rig.standing(), Standing::Fresh, "not stale yet");
    assert!(rig.table.open.load(SeqCst) <= 1, "nothing is held for what hangs");
    after(20).await;
    assert_eq!(rig.standing(), Standing::Stale);
    assert!(rig.opens(&key), "the last-good snapshot is served");
    assert_eq!(rig.announced.load(SeqCst), announced, "and no core was bothered");
    assert!(rig.followed.trouble().unwrap().error.contains("took longer than 10 s"));
    after(3_600).await;
    assert!(rig.table.open.load(SeqCst) <= 1);
    rig.table.hangs.store(false, SeqCst);
    assert!(rig.until(|rig| rig.standing() == Standing::Fresh).await <= Duration::from_secs(14));
    assert!(rig.followed.trouble().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_down_is_tried_again_soon_and_then_every_eighth_of_the_bound() {
    let rig = rig(None);
    rig.table.is_down.store(true, SeqCst);
    rig.table.end_connections();
    after(4).await;
    let soon = rig.table.opened.load(SeqCst);
    assert!((4..=7).contains(&soon), "{soon} tries in the first seconds");
    assert_eq!(rig.standing(), Standing::NeverSeeded);
    after(600).await;
    let later = rig.table.opened.load(SeqCst) - soon;
    assert!((150..=165).contains(&later), "{later} tries in ten minutes");
    rig.table.is_down.store(false, SeqCst);
    assert!(rig.until(|rig| rig.standing() == Standing::Fresh).await <= Duration::from_millis(3_800));
}

#[tokio::test(start_paused = true)]
async fn what_is_minted_or_revoked_here_is_in_force_before_it_is_answered() {
    let rig = rig(None);
    rig.until(|rig| rig.standing() == Standing::Fresh).await;
    rig.table.rings.store(false, SeqCst);
    let key = minted();
    let inserted = key.key.clone();
    assert_eq!(rig.ask(move |followed| followed.insert(inserted, "me".into())).await, Ok(()));
    assert!(rig.opens(&key));
    let id = key.key.id.clone();
    let revoked = rig.ask(move |followed| followed.revoke(id, WallMs(7), "me".into())).await;
    assert_eq!(revoked.unwrap().unwrap().revoked_ms, Some(7));
    assert!(!rig.opens(&key));
    assert_eq!(rig.ask(|followed| followed.revoke("key_0".into(), WallMs(7), "me".into())).await, Ok(None));
}

#[tokio::test(start_paused = true)]
async fn keys_made_within_one_tick_of_the_clock_are_announced_once_each() {
    let rig = rig(None);
    rig.until(|rig| rig.standing() == Standing::Fresh).await;
    let before = rig.announced.load(SeqCst);
    for id in ["key_c", "key_a", "key_b"] {
        let key = Key { id: id.to_owned(), ..minted().key };
        assert_eq!(rig.ask(move |followed| followed.insert(key, "test".into())).await, Ok(()));
    }
    let reads = rig.table.reads.load(SeqCst);
    rig.until(|rig| rig.table.reads.load(SeqCst) >= reads + 2).await; // what its own changes rang for, and the next one
    let order = rig.ask(|followed| followed.list()).await.unwrap().into_iter().map(|key| key.id);
    assert_eq!(order.collect::<Vec<_>>(), ["key_a", "key_b", "key_c"]);
    assert_eq!(rig.announced.load(SeqCst), before + 3, "reading the same keys again is no news");
}

#[tokio::test(start_paused = true)]
async fn a_change_that_cannot_be_made_says_whether_it_may_have_happened() {
    let rig = rig(None);
    rig.until(|rig| rig.standing() == Standing::Fresh).await;
    let insert = |followed: &Followed| followed.insert(minted().key, "me".into());
    rig.table.is_read_only.store(true, SeqCst);
    assert!(matches!(rig.ask(insert).await, Err(StoreError::Refused(_))));
    assert_eq!(rig.table.opened.load(SeqCst), 1, "a refusal costs no connection");
    rig.table.hangs.store(true, SeqCst);
    assert!(matches!(rig.ask(insert).await, Err(StoreError::Unconfirmed(_))));
    assert!(matches!(rig.ask(insert).await, Err(StoreError::Unreachable(_))), "nothing was sent");
    rig.table.hangs.store(false, SeqCst);
    rig.table.is_down.store(true, SeqCst);
    rig.until(|rig| rig.followed.trouble().is_some_and(|trouble| trouble.error.contains("refused"))).await;
    assert!(matches!(rig.ask(insert).await, Err(StoreError::Unreachable(_))));
    rig.table.is_down.store(false, SeqCst);
    rig.table.is_read_only.store(false, SeqCst);
    assert_eq!(rig.ask(insert).await, Ok(()), "an administrator does not wait for the next try");
}

#[tokio::test(start_paused = true)]
async fn the_roster_is_kept_and_says_at_once_when_it_cannot_be() {
    let rig = rig(None);
    rig.until(|rig| rig.standing() == Standing::Fresh).await;
    let row = ReplicaRow { id: "tt-a".into(), as_of_us: 2, entry: Some("{}".into()) };
    let saved = row.clone();
    rig.ask(move |followed| RosterStore::save(followed, vec![saved])).await.unwrap();
    assert_eq!(rig.ask(|followed: &Followed| followed.load()).await.unwrap(), [row]);
    rig.table.is_down.store(true, SeqCst);
    rig.table.end_connections();
    rig.until(|rig| rig.followed.trouble().is_some_and(|trouble| trouble.error.contains("refused"))).await;
    after(60).await; // the pauses between two tries have grown to their longest
    let (opened, began) = (rig.table.opened.load(SeqCst), Instant::now());
    assert!(matches!(rig.ask(|followed: &Followed| followed.load()).await, Err(StoreError::Unreachable(_))));
    // Until the asking thread is there, virtual time goes on, and with it the tries that are due anyhow.
    let due = began.elapsed().as_nanos() / Times::FIXED.retry().as_nanos();
    assert!(rig.table.opened.load(SeqCst) - opened <= due as usize + 1, "the roster hurries nobody");
}

#[tokio::test(start_paused = true)]
async fn keys_of_the_last_run_are_stale_until_the_store_was_read_and_survive_an_emptied_one() {
    let key = minted();
    let last = LastGood { store: "fake".into(), refreshed_ms: 1, keys: vec![key.key.clone()] };
    let rig = rig(Some(last));
    rig.table.has_no_tables.store(true, SeqCst);
    assert_eq!(rig.standing(), Standing::Stale);
    after(30).await;
    assert!(rig.opens(&key));
    assert!(rig.followed.trouble().unwrap().error.contains("no tokentriage tables"));
    rig.table.has_no_tables.store(false, SeqCst);
    rig.until(|rig| rig.standing() == Standing::Fresh).await;
    assert!(!rig.opens(&key), "the store is what counts");
}

//! Convergence between a few replicas and a model of the store: what is counted, what is sent when, what is disclosed.

#[path = "support/store.rs"]
mod store;

use std::collections::BTreeMap;

use proptest::prelude::*;
use shards::accountant::period_of;
use shards::converge::{BATCH, Converge, Job, PARTS, STALE_NS, ScopeHash, Term, standing};
use shards::limit::Calendar;
use shards::meter::PeriodSpan;
use shards::suspend::Reason;
use shards::units::{MonoNs, Now, WallMs};
use store::Store;

const SECOND_NS: u64 = 1_000_000_000;
const SCOPE: ScopeHash = ScopeHash([1; 16]);

fn at(ms: u64) -> Now {
    Now { mono: MonoNs(ms * 1_000_000), wall: WallMs(1_785_549_600_000 + ms as i64) }
}

fn month() -> PeriodSpan {
    period_of(Calendar::Month, at(0).wall)
}

struct Replica {
    ledger: &'static str,
    name: &'static str,
    converge: Converge,
    remote: BTreeMap<ScopeHash, Term>,
}

impl Replica {
    fn new(ledger: &'static str, name: &'static str, now: Now) -> Replica {
        Replica { ledger, name, converge: Converge::new(ledger, 0, now.mono), remote: BTreeMap::new() }
    }

    /// Everything that is due until `ms`.
    fn run(&mut self, store: &mut Store, from_ms: u64, until_ms: u64) -> usize {
        let mut scripts = 0;
        for ms in from_ms..=until_ms {
            loop {
                let batch = self.converge.next_batch(at(ms));
                if batch.is_empty() {
                    break;
                }
                assert!(batch.len() <= BATCH);
                scripts += batch.len();
                for job in &batch {
                    store.now_us = 1_000_000 + ms * 1_000;
                    let reply = store.run(self.ledger, self.name, job);
                    self.converge.answer(job, reply, at(ms));
                }
            }
        }
        self.remote.extend(self.converge.take_terms().into_iter().map(|term| (term.scope, term)));
        scripts
    }

    fn burn(&mut self, burn: u64, rows: u64) {
        self.converge.own(SCOPE, Calendar::Month, month(), burn, rows);
    }

    fn remote(&self) -> u64 {
        self.remote.get(&SCOPE).map_or(0, |term| term.remote)
    }
}

#[test]
fn a_replica_that_burned_nothing_learns_what_its_peers_burned() {
    let mut store = Store::default();
    let (mut a, mut b) = (Replica::new("l1", "a", at(0)), Replica::new("l2", "b", at(0)));
    a.burn(300, 2);
    a.run(&mut store, 0, 600);
    b.run(&mut store, 600, 1_700);
    assert_eq!((a.remote(), b.remote()), (0, 300));
    assert!(b.converge.flushed().is_some() && a.converge.flushed().is_some());
}

#[test]
fn a_restart_writes_the_same_cell_again_under_whatever_name() {
    let mut store = Store::default();
    let (mut a, mut b) = (Replica::new("l1", "a", at(0)), Replica::new("l2", "b", at(0)));
    a.burn(300, 2);
    a.run(&mut store, 0, 600);
    for name in ["a", "renamed"] {
        let mut again = Replica::new("l1", name, at(2_000));
        again.burn(300, 2);
        again.run(&mut store, 2_000, 3_000);
        assert_eq!(again.remote(), 0, "its own ledger is not a peer");
    }
    b.run(&mut store, 3_000, 4_000);
    assert_eq!(b.remote(), 300);
}

#[test]
fn what_a_ledger_published_before_it_lost_rows_stays_spent() {
    let mut store = Store::default();
    let (mut a, mut b) = (Replica::new("l1", "a", at(0)), Replica::new("l2", "b", at(0)));
    a.burn(300, 3);
    a.run(&mut store, 0, 600);
    let mut again = Replica::new("l1", "a", at(2_000));
    again.burn(200, 2); // a third row was published and not on disk yet
    again.run(&mut store, 2_000, 3_000);
    assert_eq!(again.remote(), 100);
    again.burn(250, 3);
    again.run(&mut store, 3_001, 4_500);
    b.run(&mut store, 4_500, 5_000);
    assert_eq!((again.remote(), b.remote()), (100, 350));
    assert_eq!(again.remote[&SCOPE].published_rows, 3);
}

#[test]
fn a_ledger_that_lost_every_row_of_a_scope_still_counts_what_it_published() {
    let mut store = Store::default();
    let mut a = Replica::new("l1", "a", at(0));
    a.burn(300, 3);
    a.run(&mut store, 0, 600);
    let mut again = Replica::new("l1", "a", at(2_000));
    again.run(&mut store, 2_000, 3_000);
    assert_eq!(again.remote(), 300);
    again.burn(10, 1);
    again.run(&mut store, 3_001, 4_500);
    let mut b = Replica::new("l2", "b", at(5_000));
    b.run(&mut store, 5_000, 6_000);
    assert_eq!((again.remote(), b.remote()), (300, 310));
}

#[test]
fn a_scope_is_published_at_most_once_a_second_and_once_more_when_it_rests() {
    let mut store = Store::default();
    let mut a = Replica::new("l1", "a", at(0));
    a.run(&mut store, 0, 999);
    let mut publications = 0;
    for ms in 1_000..9_000 {
        a.burn(ms.min(4_000), ms.min(4_000));
        let batch = a.converge.next_batch(at(ms));
        publications += batch.iter().filter(|job| matches!(job, Job::Publish { .. })).count();
        for job in &batch {
            store.now_us = 1_000_000 + ms * 1_000;
            let reply = store.run("l1", "a", job);
            a.converge.answer(job, reply, at(ms));
        }
    }
    assert!((4..=6).contains(&publications), "{publications} in three seconds of burn, one at rest");
    let cell = store.cells.values().next().unwrap().values().next().unwrap();
    assert_eq!((cell.burn, cell.flush_rows), (4_000, 0));
    assert!(a.converge.is_flushed() && a.converge.unsent_rows() == 0);
}

#[test]
fn the_lag_is_own_unpublished_rows_and_peers_last_flush_times_its_age() {
    let mut store = Store::default();
    let (mut a, mut b) = (Replica::new("l1", "a", at(0)), Replica::new("l2", "b", at(0)));
    a.burn(300, 4);
    a.run(&mut store, 0, 10);
    b.run(&mut store, 500, 600);
    let term = b.remote[&SCOPE];
    assert_eq!((term.lag_rows_per_s, term.lag_row_ms), (4, 2_000), "four rows, half a second ago");
    a.burn(400, 6);
    assert_eq!(a.converge.unsent_rows(), 2);
}

#[test]
fn a_store_that_fails_keeps_everything_for_the_next_round() {
    let mut a = Replica::new("l1", "a", at(0));
    a.burn(300, 2);
    let batch = a.converge.next_batch(at(0));
    assert_eq!(batch.len(), 2, "the look, and the one cell");
    batch.iter().for_each(|job| a.converge.failed(job));
    assert_eq!(standing(a.converge.flushed(), at(0).mono), Some(Reason::NeverSynced));
    let mut store = Store::default();
    a.run(&mut store, 1, 600);
    assert_eq!(store.cells.len(), 1);
    let flushed = a.converge.flushed();
    assert_eq!(standing(flushed, MonoNs(0)), None);
    assert_eq!(standing(flushed, MonoNs(flushed.unwrap().0 + STALE_NS)), None);
    assert_eq!(standing(flushed, MonoNs(flushed.unwrap().0 + STALE_NS + 1)), Some(Reason::ConvergenceStale));
}

#[test]
fn a_store_that_began_from_nothing_unspends_nothing() {
    let mut store = Store::default();
    let (mut a, mut b) = (Replica::new("l1", "a", at(0)), Replica::new("l2", "b", at(0)));
    a.burn(300, 2);
    b.burn(50, 1);
    a.run(&mut store, 0, 600);
    b.run(&mut store, 600, 1_200);
    a.run(&mut store, 1_200, 1_800);
    assert_eq!((a.remote(), b.remote()), (50, 300));
    store.wipe();
    b.run(&mut store, 1_801, 4_000);
    assert_eq!(b.remote(), 300, "a is not back yet, and its burn still counts");
    a.burn(310, 3);
    a.run(&mut store, 4_000, 6_000);
    b.run(&mut store, 6_000, 7_000);
    assert_eq!((a.remote(), b.remote()), (50, 310));
    b.converge.forget_replica("a", at(7_000).mono);
    assert_eq!(b.remote(), 310, "published again, so the store decides");
}

#[test]
fn burn_that_had_come_to_rest_is_published_again_to_a_store_that_began_from_nothing() {
    let mut store = Store::default();
    let (mut a, mut b) = (Replica::new("l1", "a", at(0)), Replica::new("l2", "b", at(0)));
    a.burn(300, 2);
    b.burn(50, 1);
    for replica in [&mut a, &mut b] {
        replica.run(&mut store, 0, 10_000); // published, and once more with no row new in it
        assert!(replica.converge.is_flushed());
    }
    store.wipe();
    a.run(&mut store, 10_001, 12_000);
    b.run(&mut store, 12_001, 14_000);
    let mut newcomer = Replica::new("l3", "c", at(15_000));
    newcomer.run(&mut store, 15_000, 17_000);
    assert_eq!(newcomer.remote(), 350);
    a.run(&mut store, 17_000, 19_000);
    b.run(&mut store, 17_000, 19_000);
    assert_eq!((a.remote(), b.remote()), (50, 300));
}

#[test]
fn a_store_that_lost_everything_between_two_looks_does_not_seem_to_have_purged_anybody() {
    let mut store = Store::default();
    let (mut a, mut b) = (Replica::new("l1", "a", at(0)), Replica::new("l2", "b", at(0)));
    a.burn(300, 2);
    a.run(&mut store, 0, 600);
    b.run(&mut store, 600, 1_200);
    assert_eq!(b.remote(), 300);
    b.burn(7, 1);
    store.wipe();
    // A publication, and no look before it.
    let job =
        Job::Publish { scope: SCOPE, calendar: Calendar::Month, period: month(), burn: 7, rows: 1, is_first: true };
    let reply = store.run("l2", "b", &job);
    b.converge.answer(&job, reply, at(1_300));
    assert!(b.converge.take_terms().iter().all(|term| term.remote == 300));
}

/// Three replicas that heard of each other; `c` is dead from then on. Gives the store, and the two that live.
fn with_a_dead_peer() -> (Store, Replica, Replica) {
    let mut store = Store::default();
    let mut a = Replica::new("l1", "a", at(0));
    let (mut b, mut c) = (Replica::new("l2", "b", at(0)), Replica::new("l3", "c", at(0)));
    a.burn(300, 2);
    c.burn(50, 1);
    c.run(&mut store, 0, 600);
    for replica in [&mut a, &mut b] {
        replica.run(&mut store, 600, 10_000);
    }
    b.run(&mut store, 10_001, 10_600);
    assert_eq!((a.remote(), b.remote()), (50, 350));
    (store, a, b)
}

#[test]
fn a_dead_replicas_burn_is_brought_back_to_a_store_that_lost_it_by_whoever_heard_it() {
    let (mut store, mut a, mut b) = with_a_dead_peer();
    store.wipe();
    for replica in [&mut a, &mut b] {
        replica.run(&mut store, 11_000, 15_000);
    }
    assert_eq!(store.cells.values().next().unwrap().len(), 2, "one cell for each ledger that burned, and none twice");
    let cell = store.cells.values().next().unwrap()["l3"].clone();
    assert_eq!((cell.burn, cell.rows, cell.beat_us, &*cell.replica), (50, 1, 1_000_000, "c"), "as it was written");
    // Both are gone now, and a newcomer knows of all three; so does the dead one when it comes back, and adds nothing.
    let mut newcomer = Replica::new("l4", "d", at(20_000));
    newcomer.run(&mut store, 20_000, 22_000);
    assert_eq!(newcomer.remote(), 350);
    let mut c = Replica::new("l3", "c", at(30_000));
    c.burn(50, 1);
    c.run(&mut store, 30_000, 32_000);
    newcomer.run(&mut store, 32_000, 34_000);
    assert_eq!((c.remote(), newcomer.remote()), (300, 350));
    // At rest: nothing is asked but the look, twice a second, and each cell of ours once a minute.
    assert!(a.run(&mut store, 40_000, 50_000) <= 22);
}

#[test]
fn who_is_alive_says_more_than_who_remembers_it() {
    let (mut store, mut a, mut b) = with_a_dead_peer();
    store.wipe();
    // It was not dead after all, and burned on.
    let mut c = Replica::new("l3", "c", at(10_700));
    c.burn(80, 4);
    c.run(&mut store, 11_000, 12_000);
    for replica in [&mut a, &mut b] {
        replica.run(&mut store, 12_000, 20_000);
    }
    let cell = store.cells.values().next().unwrap()["l3"].clone();
    assert_eq!((cell.burn, cell.rows), (80, 4));
    assert_eq!((a.remote(), b.remote()), (80, 380));
}

#[test]
fn of_two_who_remember_the_one_who_heard_more_is_believed() {
    let (mut store, mut a, mut b) = with_a_dead_peer();
    let mut c = Replica::new("l3", "c", at(10_700));
    c.burn(90, 3);
    c.run(&mut store, 10_700, 11_700);
    a.run(&mut store, 11_700, 12_300); // the other does not hear it
    store.wipe();
    b.run(&mut store, 12_300, 18_000);
    assert_eq!(store.cells.values().next().unwrap()["l3"].burn, 50);
    a.run(&mut store, 18_000, 24_000);
    assert_eq!(store.cells.values().next().unwrap()["l3"].burn, 90);
    b.run(&mut store, 24_000, 25_000);
    assert_eq!((a.remote(), b.remote()), (90, 390));
}

#[test]
fn what_was_purged_by_name_is_not_brought_back_by_who_did_not_hear_of_it() {
    let (mut store, mut a, mut b) = with_a_dead_peer();
    store.wipe();
    b.run(&mut store, 11_000, 12_500);
    let removed_us = store.now_us;
    let purged = store.purge(SCOPE, Calendar::Month, month().start.0, "c", removed_us);
    assert!(purged.is_empty(), "before anybody brought it back");
    for replica in [&mut a, &mut b] {
        replica.run(&mut store, 12_501, 20_000);
    }
    assert!(!store.cells.values().next().unwrap().contains_key("l3"));
    assert_eq!((a.remote(), b.remote()), (0, 300), "and who remembered it counts it no longer");
    // By the same name, anew: that counts.
    let mut c = Replica::new("l3", "c", at(21_000));
    c.burn(60, 2);
    c.run(&mut store, 21_000, 22_000);
    a.run(&mut store, 22_000, 23_000);
    store.wipe();
    a.run(&mut store, 24_000, 30_000);
    assert_eq!((a.remote(), store.cells.values().next().unwrap()["l3"].burn), (60, 60));
}

#[test]
fn a_replica_that_was_removed_while_it_lives_says_again_all_that_it_burned() {
    let mut store = Store::default();
    let (mut a, mut b) = (Replica::new("l1", "a", at(0)), Replica::new("l2", "b", at(0)));
    assert!(!a.converge.publish_again(at(0).mono), "there was nothing");
    a.burn(300, 2);
    a.run(&mut store, 0, 5_000); // at rest
    b.run(&mut store, 5_001, 5_600);
    let removed_us = store.now_us;
    let purge = |store: &mut Store| store.purge(SCOPE, Calendar::Month, month().start.0, "a", removed_us);
    assert_eq!(purge(&mut store).len(), 1);
    b.run(&mut store, 5_601, 6_200);
    assert_eq!(b.remote(), 0);
    assert!(a.converge.publish_again(at(6_200).mono));
    a.run(&mut store, 6_200, 7_200);
    assert!(purge(&mut store).is_empty(), "a removal that takes long leaves what was published since");
    b.run(&mut store, 7_201, 7_800);
    assert_eq!(b.remote(), 300);
    assert!(a.run(&mut store, 7_801, 17_800) <= 22, "at rest again");
}

#[test]
fn a_store_that_began_from_nothing_is_told_again_once_it_is_old_enough_and_nothing_waits() {
    let (mut store, mut a, _) = with_a_dead_peer();
    let old = store.generation();
    assert!(!a.converge.is_refilling(old, store.now_us, at(10_600).mono));
    assert!(!a.converge.is_refilling(old, old, at(10_600).mono), "its clock stepped back: it is known long enough");
    store.wipe();
    let noticed =
        |a: &Replica, store: &Store, ms| a.converge.is_refilling(store.generation(), store.now_us, at(ms).mono);
    assert!(noticed(&a, &store, 10_700), "before it is noticed here");
    for ms in (11_000..14_000).step_by(500) {
        a.run(&mut store, ms, ms + 499);
        assert!(noticed(&a, &store, ms + 499), "{ms}");
    }
    a.run(&mut store, 14_000, 15_500);
    assert!(!noticed(&a, &store, 15_500));
    assert!(store.cells.values().next().unwrap().contains_key("l3"));
}

#[test]
fn a_departed_replica_counts_until_the_period_ends_or_its_cell_is_purged() {
    let mut store = Store::default();
    let (mut a, mut b) = (Replica::new("l1", "a", at(0)), Replica::new("l2", "b", at(0)));
    a.burn(300, 2);
    a.run(&mut store, 0, 600);
    b.run(&mut store, 600, 1_200);
    b.run(&mut store, 700_000, 700_600);
    let shown = (0..PARTS).flat_map(|part| b.converge.peers(part, at(700_600).mono)).next().unwrap();
    assert!(shown.is_departed() && shown.cell.replica == "a");
    assert_eq!(b.remote(), 300);
    assert_eq!(store.purge(SCOPE, Calendar::Month, month().start.0, "a", 701_000_000).len(), 1);
    b.run(&mut store, 701_000, 702_000);
    assert_eq!(b.remote(), 0);
}

#[test]
fn a_new_period_starts_without_the_old_ones_cells_even_of_a_dead_replica() {
    let mut store = Store::default();
    let (mut a, mut b) = (Replica::new("l1", "a", at(0)), Replica::new("l2", "b", at(0)));
    a.burn(300, 2);
    a.run(&mut store, 0, 600);
    b.run(&mut store, 600, 1_200);
    let september = Now { mono: MonoNs(3 * SECOND_NS), wall: month().end };
    let batch = b.converge.next_batch(september);
    let [Job::Changed { indexes }] = &batch[..] else { panic!("{batch:?}") };
    assert!(
        indexes
            .iter()
            .any(|(calendar, start, since)| { (*calendar, *start, *since) == (Calendar::Month, month().end, 0) })
    );
    let reply = store.run("l2", "b", &batch[0]);
    b.converge.answer(&batch[0], reply, september);
    let terms = b.converge.take_terms();
    assert!(terms.iter().all(|term| term.period != period_of(Calendar::Month, september.wall)), "{terms:?}");
}

#[test]
fn ten_thousand_scopes_fit_in_a_second_and_more_stretch_it() {
    let mut store = Store::default();
    let mut a = Replica::new("l1", "a", at(0));
    a.run(&mut store, 0, 600);
    let publish = |a: &mut Replica, scopes: u32, burn: u64| {
        for n in 0..scopes {
            let mut scope = [0; 16];
            scope[..4].copy_from_slice(&n.to_le_bytes());
            a.converge.own(ScopeHash(scope), Calendar::Month, month(), burn, burn);
        }
    };
    publish(&mut a, 9_900, 1);
    a.run(&mut store, 1_000, 2_100);
    assert!(a.converge.is_flushed(), "{} rows unsent", a.converge.unsent_rows());
    publish(&mut a, 20_000, 2);
    a.run(&mut store, 4_000, 5_000);
    assert!(!a.converge.is_flushed());
    assert!(a.converge.unsent_rows() > 9_000, "and it is known how much is behind");
    a.run(&mut store, 5_001, 7_000);
    assert!(a.converge.is_flushed());
}

proptest! {
    /// However publications, failures, restarts and reads are mixed: what a replica takes its peers to have burned is
    /// never more than they did, and exactly that once all were heard.
    #[test]
    fn converging_is_idempotent_and_counts_each_ledger_once(
        steps in proptest::collection::vec((0_usize..3, 0_u8..6, 1_u64..50), 1..60),
    ) {
        let mut store = Store::default();
        let names = ["a", "b", "c"];
        let ledgers = ["l1", "l2", "l3"];
        let mut spent = [0_u64; 3];
        let mut ms = 0;
        let mut replicas: Vec<Replica> =
            ledgers.iter().zip(names).map(|(ledger, name)| Replica::new(ledger, name, at(0))).collect();
        for (who, what, amount) in steps {
            ms += 400;
            match what {
                0 | 1 => {
                    spent[who] += amount;
                    let total = spent[who];
                    replicas[who].burn(total, total);
                }
                2 => {
                    // A restart, sometimes under another name, from the same ledger.
                    let name = if amount % 2 == 0 { names[who] } else { "other" };
                    replicas[who] = Replica::new(ledgers[who], name, at(ms));
                    let total = spent[who];
                    replicas[who].burn(total, total);
                }
                3 => {
                    // The store takes it, the answer is lost.
                    let batch = replicas[who].converge.next_batch(at(ms));
                    for job in &batch {
                        store.now_us = 1_000_000 + ms * 1_000;
                        let _ = store.run(ledgers[who], names[who], job);
                        replicas[who].converge.failed(job);
                    }
                }
                _ => { replicas[who].run(&mut store, ms, ms + 300); }
            }
            for (who, replica) in replicas.iter().enumerate() {
                let others: u64 = spent.iter().sum::<u64>() - spent[who];
                prop_assert!(replica.remote() <= others, "{} of {others}", replica.remote());
            }
        }
        for _ in 0..3 {
            for replica in &mut replicas {
                replica.run(&mut store, ms, ms + 1_600);
                ms += 1_600;
            }
        }
        for (who, replica) in replicas.iter().enumerate() {
            let others: u64 = spent.iter().sum::<u64>() - spent[who];
            prop_assert_eq!(replica.remote(), others);
        }
    }
}

//! Virtual keys that are minted and revoked on any replica while Postgres is well or not, and what each replica may still
//! believe of them.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::http::try_exchange;
use crate::common::*;

use super::{Dice, Running, USERS, World};

/// A mint or a revocation is known everywhere within this, counted from when Postgres has been well; and a second for the
/// machine.
const BOUND: Duration = Duration::from_secs(31);
/// Keys in use.
const USED: usize = 8;
/// Postgres is back for a replica that had been cut off: it tries again every 3.75 s, and a dial may take 5.
const BACK: Duration = Duration::from_secs(12);

/// A key and what happened to it.
pub struct Known {
    pub key: Key,
    node: &'static str,
    minted: Instant,
    minted_on: usize,
    /// When the first attempt to revoke it began: from then on it may be refused.
    pub revoking: OnceLock<Instant>,
    /// When it was certain, and on which process: there at once, elsewhere within the bound.
    revoked: OnceLock<(Instant, usize)>,
}

impl Known {
    /// The process must know that it is good.
    pub fn is_known_to(&self, replica: &Running, asked: Instant) -> bool {
        let was_minted_there = self.minted_on == replica.nth && self.minted <= asked;
        was_minted_there || replica.has_served.lock().unwrap().contains(&self.key.id)
    }

    /// Longer than the bound ago, in all of which Postgres was well.
    fn is_long_ago(since: Instant, asked: Instant, world: &World) -> bool {
        let well = world.postgres_well_since();
        well.is_some_and(|well| asked.saturating_duration_since(since.max(well)) > BOUND)
    }

    /// Whether a 401 is due, or may be.
    pub fn may_be_unknown(&self, replica: &Running, asked: Instant, world: &World) -> bool {
        let is_revoked = self.revoking.get().is_some();
        is_revoked || (!self.is_known_to(replica, asked) && !Known::is_long_ago(self.minted, asked, world))
    }

    pub fn must_be_refused(&self, replica: &Running, asked: Instant, world: &World) -> bool {
        self.revoked
            .get()
            .is_some_and(|(at, on)| (*on == replica.nth && *at < asked) || Known::is_long_ago(*at, asked, world))
    }

    pub fn story(&self, replica: &Running, asked: Instant, world: &World) -> String {
        let ago = |at: Instant| asked.saturating_duration_since(at).as_secs_f64();
        format!(
            "minted {:.2} s ago on replica {}, known there: {}, revoking since {:?} s, revoked {:?} s ago, postgres well \
             for {:?} s",
            ago(self.minted),
            self.minted_on,
            self.is_known_to(replica, asked),
            self.revoking.get().map(|at| ago(*at)),
            self.revoked.get().map(|(at, on)| (ago(*at), *on)),
            world.postgres_well_since().map(ago)
        )
    }
}

/// The first keys, known to all.
pub fn first(world: &World) {
    for nth in 0..USED {
        let on = world.running(nth % 3).expect("all run");
        assert!(mint(world, &on, USERS[nth % USERS.len()]), "Postgres is well");
    }
    for replica in world.all_running() {
        for known in world.keys.read().unwrap().iter() {
            until("a key to be known everywhere", BOUND, || replica.gateway.get(&known.key, "/tt/v1/me").status == 200);
            replica.has_served.lock().unwrap().insert(known.key.id.clone());
        }
    }
}

/// One that nobody tried to revoke.
pub fn usable(world: &World) -> Arc<Known> {
    let keys = world.keys.read().unwrap();
    keys.iter().find(|known| known.revoking.get().is_none()).expect("some are always in use").clone()
}

/// One of that user; a fresh one if need be.
pub fn usable_of(world: &World, user: &'static str) -> Arc<Known> {
    let find = || {
        let keys = world.keys.read().unwrap();
        keys.iter().find(|known| known.node == user && known.revoking.get().is_none()).cloned()
    };
    find().unwrap_or_else(|| {
        assert!(mint(world, &world.running(0).expect("it was never touched"), user), "Postgres is well");
        let known = find().expect("it was just minted");
        for replica in world.all_running() {
            until("a key to be known", BOUND, || replica.gateway.get(&known.key, "/tt/v1/me").status == 200);
        }
        known
    })
}

/// One comes, one goes.
pub fn come_and_go(world: &World) {
    let mut dice = Dice::new(world.seed, 4);
    let (mut minted, mut revoked) = (0, 0);
    while world.pause(dice.wait(Duration::from_millis(300), Duration::from_millis(2_500))) {
        let running = world.all_running();
        let on = running[dice.roll(running.len())].clone();
        minted += usize::from(mint(world, &on, dice.pick(&USERS)));
        let usable: Vec<Arc<Known>> =
            world.keys.read().unwrap().iter().filter(|known| known.revoked.get().is_none()).cloned().collect();
        if usable.len() > USED {
            let known = usable[dice.roll(usable.len())].clone();
            let running = world.all_running();
            revoked += usize::from(revoke(world, &running[dice.roll(running.len())].clone(), &known));
        }
    }
    world.tell(&format!("{minted} keys were minted meanwhile, {revoked} revoked"));
}

/// An operator's question to a replica that may go meanwhile.
fn ask(world: &World, on: &Running, request: &Request, what: &str) -> Option<Value> {
    let well = world.postgres_well_since();
    let answer = try_exchange(on.gateway.admin, request);
    let is_gone = || on.is_doomed.load(Ordering::Acquire) || on.gateway.process.exited().is_some() || !is_up(world, on);
    match answer {
        Some(answer) if matches!(answer.status, 200 | 201 | 204) => {
            return Some(serde_json::from_slice(&answer.body).unwrap_or(Value::Null));
        }
        // Not while Postgres was well all the time, and long enough for everybody to have noticed.
        Some(answer) if matches!(answer.status, 503 | 504) => {
            let is_well = well.is_some_and(|well| well.elapsed() > BACK) && well == world.postgres_well_since();
            if is_well && on.gateway.process.exited().is_none() && !is_young(on) {
                world.complain(format!("{what} with Postgres well: {} {}", answer.status, answer.text()));
            }
        }
        Some(answer) => world.complain(format!("{what}: {} {}", answer.status, answer.text())),
        None if is_gone() => {}
        None => world.complain(format!("{what}: no answer from the admin port of replica {}", on.nth)),
    }
    None
}

fn is_up(world: &World, on: &Running) -> bool {
    world.all_running().iter().any(|running| running.nth == on.nth)
}

/// It may not have reached Postgres yet.
fn is_young(on: &Running) -> bool {
    on.has_served.lock().unwrap().is_empty()
}

fn mint(world: &World, on: &Running, node: &'static str) -> bool {
    let request = Request::post("/tt/api/v1/keys").json(&json!({"node": node, "name": "soak"}));
    let Some(answer) = ask(world, on, &request, "a mint") else { return false };
    let text = |member: &str| answer[member].as_str().unwrap_or_else(|| panic!("no {member} in {answer}")).to_owned();
    let key = Key { id: text("id"), secret: text("key") };
    let known = Known {
        key,
        node,
        minted: Instant::now(),
        minted_on: on.nth,
        revoking: OnceLock::new(),
        revoked: OnceLock::new(),
    };
    world.keys.write().unwrap().push(Arc::new(known));
    true
}

fn revoke(world: &World, on: &Running, known: &Known) -> bool {
    known.revoking.get_or_init(Instant::now);
    let request = Request::new("DELETE", &format!("/tt/api/v1/keys/{}", known.key.id));
    let is_done = ask(world, on, &request, "a revocation").is_some();
    if is_done {
        known.revoked.get_or_init(|| (Instant::now(), on.nth));
    }
    is_done
}

/// Once all is healed, every replica knows every key for what it is.
pub fn assert_known_everywhere(world: &World) {
    for replica in world.all_running() {
        for known in world.keys.read().unwrap().iter() {
            let wanted: &[u16] = match (known.revoking.get(), known.revoked.get()) {
                (None, _) => &[200],
                (Some(_), Some(_)) => &[401],
                (Some(_), None) => &[200, 401], // nobody knows what became of that attempt
            };
            let id = &known.key.id;
            until(&format!("replica {} to know key {id} as {wanted:?}", replica.nth), BOUND, || {
                wanted.contains(&replica.gateway.get(&known.key, "/tt/v1/me").status)
            });
        }
    }
}

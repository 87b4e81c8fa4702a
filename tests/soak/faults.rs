//! What goes wrong: one thing at a time with each store, and with the replicas, all three at once.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::common::*;

use super::{Dice, World};

/// How long a fault lasts and how long it is quiet after it; in a long soak some last longer than the breaker's interval.
fn lasts(dice: &mut Dice) -> Duration {
    let long = dice.roll(5) == 0;
    if long {
        dice.wait(Duration::from_secs(5), Duration::from_secs(12))
    } else {
        dice.wait(Duration::from_millis(100), Duration::from_millis(3_000))
    }
}

#[derive(Clone, Copy, Debug)]
enum OfRedis {
    Frozen,
    Restarted,
    Dead,
    Slow(u64),
    Lying(&'static str),
    CutMidReply,
    Blackholed,
    Refused,
    ScriptsFlushed,
    Emptied,
    Demoted,
    PasswordChanged,
    Full,
}

const OF_REDIS: [OfRedis; 16] = [
    OfRedis::Frozen,
    OfRedis::Frozen,
    OfRedis::Restarted,
    OfRedis::Dead,
    OfRedis::Slow(3),
    OfRedis::Slow(20),
    OfRedis::Lying("-ERR something is wrong\r\n"),
    OfRedis::Lying("*2\r\n:7\r\n$3\r\nabc\r\n"),
    OfRedis::CutMidReply,
    OfRedis::Blackholed,
    OfRedis::Refused,
    OfRedis::ScriptsFlushed,
    OfRedis::Emptied,
    OfRedis::Demoted,
    OfRedis::PasswordChanged,
    OfRedis::Full,
];

pub fn of_redis(world: &World) {
    let mut dice = Dice::new(world.seed, 1);
    let (redis, proxy) = (&world.redis, &world.redis_proxy);
    while world.pause(dice.wait(Duration::from_millis(500), Duration::from_millis(6_000))) {
        let fault = dice.pick(&OF_REDIS);
        let lasts = lasts(&mut dice);
        world.tell(&format!("redis: {fault:?} for {lasts:?}"));
        match fault {
            OfRedis::Frozen => redis.freeze(),
            OfRedis::Restarted | OfRedis::Dead => redis.kill(),
            OfRedis::Slow(ms) => proxy.set(Mood::Slow(Duration::from_millis(ms))),
            OfRedis::Lying(answer) => proxy.set(Mood::Answer(answer.as_bytes())),
            OfRedis::CutMidReply => proxy.set(Mood::CutMidReply),
            OfRedis::Blackholed => proxy.set(Mood::Blackhole),
            OfRedis::Refused => proxy.set(Mood::Refuse),
            OfRedis::ScriptsFlushed => redis.tell(&["SCRIPT", "FLUSH"]),
            OfRedis::Emptied => redis.tell(&["FLUSHALL"]),
            OfRedis::Demoted => redis.tell(&["REPLICAOF", "127.0.0.1", "1"]), // nobody is there
            OfRedis::PasswordChanged => redis.change_password("another"),
            OfRedis::Full => redis.tell(&["CONFIG", "SET", "maxmemory", "1"]),
        }
        if !matches!(fault, OfRedis::Restarted | OfRedis::ScriptsFlushed | OfRedis::Emptied) {
            world.pause(lasts);
        }
        match fault {
            OfRedis::Frozen => redis.thaw(),
            OfRedis::Restarted | OfRedis::Dead => redis.restart(),
            OfRedis::Demoted => redis.tell(&["REPLICAOF", "NO", "ONE"]),
            OfRedis::PasswordChanged => redis.change_password(""),
            OfRedis::Full => redis.tell(&["CONFIG", "SET", "maxmemory", "0"]),
            OfRedis::ScriptsFlushed | OfRedis::Emptied => {}
            _ => proxy.set(Mood::Pass),
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum OfPostgres {
    Restarted,
    Frozen,
    Terminated,
    Unheard,
    CutOff,
    Blackholed,
}

const OF_POSTGRES: [OfPostgres; 6] = [
    OfPostgres::Restarted,
    OfPostgres::Frozen,
    OfPostgres::Terminated,
    OfPostgres::Unheard,
    OfPostgres::CutOff,
    OfPostgres::Blackholed,
];

pub fn of_postgres(world: &World) {
    let mut dice = Dice::new(world.seed, 2);
    let proxy = &world.postgres_proxy;
    while world.pause(dice.wait(Duration::from_millis(500), Duration::from_millis(9_000))) {
        let fault = dice.pick(&OF_POSTGRES);
        let lasts = lasts(&mut dice);
        world.tell(&format!("postgres: {fault:?} for {lasts:?}"));
        // Only a lost notification leaves it well: the bound holds without one.
        if !matches!(fault, OfPostgres::Unheard) {
            *world.postgres_well.lock().unwrap() = None;
        }
        match fault {
            OfPostgres::Restarted => world.postgres.lock().unwrap().stop(),
            OfPostgres::Frozen => world.postgres.lock().unwrap().freeze(),
            OfPostgres::Terminated => world.postgres.lock().unwrap().terminate_gateways(),
            OfPostgres::Unheard => proxy.lose_notifications(),
            OfPostgres::CutOff => proxy.cut(),
            OfPostgres::Blackholed => proxy.swallow(),
        }
        if !matches!(fault, OfPostgres::Terminated) {
            world.pause(lasts);
        }
        match fault {
            OfPostgres::Restarted => world.postgres.lock().unwrap().boot(),
            OfPostgres::Frozen => world.postgres.lock().unwrap().thaw(),
            OfPostgres::Terminated => {}
            OfPostgres::Unheard | OfPostgres::CutOff | OfPostgres::Blackholed => proxy.mend(),
        }
        world.postgres_well.lock().unwrap().get_or_insert_with(Instant::now);
    }
}

pub fn of_replicas(world: &World) {
    let mut dice = Dice::new(world.seed, 3);
    let mut born = 0;
    let mut homes = ["tt-a", "tt-b", "tt-c"].map(|name| (name.to_owned(), name.to_owned()));
    while world.pause(dice.wait(Duration::from_millis(2_000), Duration::from_millis(12_000))) {
        let slot = 1 + dice.roll(2);
        let is_clean = dice.roll(2) == 0;
        let Some(replica) = world.running(slot) else { continue };
        let (name, ledger) = homes[slot].clone();
        world.tell(&format!("{name} on ledger {ledger}: {}", if is_clean { "stopped" } else { "killed" }));
        if is_clean {
            // As behind a load balancer that has seen it leave; what was asked before that is served.
            *world.slots[slot].write().unwrap() = None;
            drop(replica.asking.write().unwrap());
            let status = replica.gateway.stop(SOON);
            if !status.success() {
                world.complain(format!("a clean stop ended with {status}: {}", replica.gateway.log_text()));
            }
        } else {
            replica.is_doomed.store(true, Ordering::Release);
            world.killed.lock().unwrap().insert(replica.nth, Instant::now());
            replica.gateway.process.kill();
            *world.slots[slot].write().unwrap() = None;
        }
        super::audit::assert_no_panic(&replica);
        world.pause(dice.wait(Duration::ZERO, Duration::from_millis(4_000)));
        born += 1;
        homes[slot] = match dice.roll(3) {
            0 => (format!("tt-n{born}"), ledger),
            1 => (format!("tt-n{born}"), format!("ledger-{born}")),
            _ => (name, ledger),
        };
        let (name, ledger) = &homes[slot];
        world.tell(&format!("{name} on ledger {ledger}: started"));
        world.start(slot, name, ledger);
    }
}

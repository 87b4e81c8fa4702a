//! The admission scripts on a real server, under a clock of the test's: the published vectors, and the local code step by
//! step. Needs redis-server.

mod common;
#[path = "../shards/tests/support/dice.rs"]
mod dice;

use common::RedisServer;
use dice::Dice;
use io::redis::{Reply, admission};
use serde_json::{Value, json};
use shards::rate::{Algorithm, RateParams, RateSpec, Retry, Script, ScriptReply, Standing, step};
use shards::units::MonoNs;

/// A recent instant, so that numbers are as large as in service: any multiple of every period below.
const BASE_US: u64 = 1_796_000_000_000_000;

/// Runs one script over many steps in one call. A key cannot expire while a script runs, so the test's clock is the only
/// one; the scripts' expiry is another test's.
fn run(server: &RedisServer, script: Script, base_us: u64, steps: &[(u64, [u64; 3])]) -> Vec<Vec<i64>> {
    run_together(server, script, base_us, steps, 1)
}

/// The same with so many calls in each step.
fn run_together(
    server: &RedisServer,
    script: Script,
    base_us: u64,
    steps: &[(u64, [u64; 3])],
    calls: usize,
) -> Vec<Vec<i64>> {
    let body = match script {
        Script::Backlog => admission::BACKLOG,
        Script::FixedWindow => admission::FIXED_WINDOW,
        Script::SlidingWindow => admission::SLIDING_WINDOW,
    };
    let driver = format!(
        "local function count(KEYS, ARGV, now)\n{body}\nend\n\
         local replies = {{}}\n\
         for nth, step in ipairs(cjson.decode(ARGV[1])) do\n\
             replies[nth] = count(KEYS, {{struct.pack('<ddd', step[2], step[3], step[4]), ARGV[2]}}, tonumber(step[1]))\n\
         end\n\
         return replies"
    );
    // As text: JSON numbers would be rounded to 14 digits on their way.
    let texts: Vec<[String; 4]> = steps
        .iter()
        .map(|(at_us, [one, two, three])| {
            [(base_us + at_us).to_string(), one.to_string(), two.to_string(), three.to_string()]
        })
        .collect();
    server.tell(&["DEL", "scope"]);
    let (steps, calls) = (json!(texts).to_string(), calls.to_string());
    let with_calls = ["EVAL", &driver, "1", "scope", &steps, &calls];
    let reply = server.ask(if calls == "1" { &with_calls[..5] } else { &with_calls });
    let replies = reply.array().unwrap_or_else(|| panic!("{reply:?}"));
    replies.iter().map(words).collect()
}

/// An array of words, or one word alone.
fn words(reply: &Reply) -> Vec<i64> {
    let words = reply.array().unwrap_or(std::slice::from_ref(reply));
    words.iter().map(|word| word.integer().unwrap_or_else(|| panic!("{reply:?}"))).collect()
}

fn read(params: &RateParams, words: &[i64], cost: u64) -> (bool, Retry, Standing) {
    let reply = ScriptReply::of(params.script(), words.iter().copied()).unwrap_or_else(|| panic!("{words:?}"));
    params.read_script(&reply, cost)
}

fn algorithm(vector: &Value) -> Algorithm {
    let known = [Algorithm::Gcra, Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::SlidingWindow];
    let named = known.into_iter().find(|algorithm| vector["alg"] == algorithm.as_str());
    named.unwrap_or_else(|| panic!("{}", vector["alg"]))
}

/// A vector whose steps are acquires in whole µs of a period in whole µs, of a type that may use the store.
fn is_for_scripts(vector: &Value) -> bool {
    let id = vector["id"].as_str().unwrap();
    let is_product = !["log-", "fixed-settle", "token-debt", "gcra-tpm-"].iter().any(|prefix| id.starts_with(prefix));
    let in_us = |value: &Value| value.as_u64().unwrap().is_multiple_of(1_000);
    let ops = vector["ops"].as_array().unwrap();
    is_product
        && in_us(&vector["params"]["period_ns"])
        && ops.iter().all(|op| op["op"] == "acquire" && in_us(&op["t_ns"]))
}

#[test]
fn the_acquire_only_vectors_in_whole_microseconds_get_their_published_answers_from_the_scripts() {
    let server = RedisServer::start();
    let file: Value = serde_json::from_str(include_str!("data/gcra_vectors.json")).unwrap();
    let (mut replayed, mut refused, mut count) = (0, Vec::new(), 0);
    for vector in file["vectors"].as_array().unwrap().iter().filter(|vector| is_for_scripts(vector)) {
        let id = vector["id"].as_str().unwrap();
        let number = |key: &str| vector["params"][key].as_u64();
        let (amount, period_ns) = (number("amount").unwrap(), number("period_ns").unwrap());
        let spec = RateSpec {
            amount,
            period_ns,
            burst: number("burst").unwrap_or(amount),
            algorithm: algorithm(vector),
            debt: false,
        };
        let Ok(params) = RateParams::new(spec).and_then(|params| params.fits_script().map(|()| params)) else {
            refused.push(id);
            continue;
        };
        let ops = vector["ops"].as_array().unwrap();
        let at_us = |op: &Value| op["t_ns"].as_u64().unwrap() / 1_000;
        let mut steps = Vec::new();
        if let Some(initial) = number("initial") {
            steps.push((at_us(&ops[0]), params.script_args(spec.burst - initial)));
        }
        let before = steps.len();
        steps.extend(ops.iter().map(|op| (at_us(op), params.script_args(op["cost"].as_u64().unwrap()))));
        let period_us = period_ns / 1_000;
        let replies = run(&server, params.script(), BASE_US / period_us * period_us, &steps);
        // An interval rounded up to whole µs is late by less than 1 µs in each.
        let late_ns =
            |ns: u64| if period_us.is_multiple_of(amount) { 0 } else { ns / (period_us / amount).max(1) + 1_000 };
        for (nth, (op, words)) in ops.iter().zip(&replies[before..]).enumerate() {
            let (expect, cost) = (&op["expect"], op["cost"].as_u64().unwrap());
            let (admitted, retry, standing) = read(&params, words, cost);
            let place = format!("{id} step {nth}: {words:?} {retry:?} {standing:?}, expected {expect}");
            let (mut retry_ns, mut reset_ns) =
                (expect["retry_ns"].as_i64().unwrap(), expect["reset_ns"].as_u64().unwrap());
            // On purpose, as in the local code: a clock that stepped back costs one interval, and a bucket is full again
            // one drain after the earlier clock.
            match (id, nth) {
                ("gcra-clock-back-unclamped", 1) => (retry_ns, reset_ns) = (100_000_000, 1_000_000_000),
                ("token-clock-back", 1) => (retry_ns, reset_ns) = (1_100_000_000, 2_000_000_000),
                _ => {}
            }
            let same = |ns: u64, expected: u64| (expected..=expected + late_ns(expected)).contains(&ns);
            assert_eq!(admitted, expect["allowed"].as_bool().unwrap(), "{place}");
            assert_eq!(standing.remaining, expect["remaining"].as_u64().unwrap(), "{place}");
            assert!(same(standing.reset_ns, reset_ns), "{place}");
            match retry {
                Retry::Now => assert_eq!(retry_ns, 0, "{place}"),
                Retry::Never => assert_eq!(retry_ns, -1, "{place}"),
                Retry::After { ns } => assert!(same(ns, u64::try_from(retry_ns).unwrap()), "{place}"),
            }
            count += 1;
        }
        replayed += 1;
    }
    println!("{replayed} vectors, {count} steps through the scripts; refused by validation: {refused:?}");
    assert_eq!(replayed + refused.len(), 38);
    assert_eq!(refused, ["gcra-huge-cost-mul-overflow", "gcra-1-per-year-burst-1000"], "backlogs over 73 years");
}

#[test]
fn scripts_and_cells_answer_alike_step_by_step() {
    let server = RedisServer::start();
    let (second, day) = (1_000_000_000, 86_400_000_000_000);
    let rates = [
        (60, 60 * second, 60),
        (600, 60 * second, 5),
        (1, second, 3),
        (100, 10 * second, 100),
        (1_048_575, 30 * day, 1_000), // products beyond a double's 53 bits
        (7_000, day, 7_000),
    ];
    let mut dice = Dice(20_261_130);
    let mut compared = 0;
    for algorithm in [Algorithm::Gcra, Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::SlidingWindow] {
        for (amount, period_ns, burst) in rates {
            let params = RateParams::new(RateSpec { amount, period_ns, burst, algorithm, debt: false }).unwrap();
            let period_us = period_ns / 1_000;
            // Where an interval is no whole number of µs, a backlog drains at its own speed: those are the vectors' matter.
            if params.script() == Script::Backlog && !period_us.is_multiple_of(amount) {
                continue;
            }
            for _ in 0..4 {
                let mut at_us = 10 * period_us;
                let asked: Vec<(u64, u64)> = (0..300)
                    .map(|_| {
                        match dice.roll(10) {
                            0 => at_us = at_us.saturating_sub(dice.roll(period_us)),
                            1 => at_us += dice.roll(3 * period_us),
                            _ => at_us += dice.roll(period_us / amount.min(50) + 1),
                        }
                        let cost = if dice.roll(4) == 0 { dice.roll(params.burst() + 2) } else { 1 };
                        (at_us, cost)
                    })
                    .collect();
                let steps: Vec<_> = asked.iter().map(|(at_us, cost)| (*at_us, params.script_args(*cost))).collect();
                let replies = run(&server, params.script(), 0, &steps);
                let mut word = 0;
                for ((at_us, cost), words) in asked.iter().zip(&replies) {
                    let here = step(&params, word, MonoNs(at_us * 1_000), *cost);
                    word = here.new_word.unwrap_or(word);
                    let (admitted, retry, standing) = read(&params, words, *cost);
                    let place = format!("{params:?} at {at_us} µs, cost {cost}: {words:?}, here {here:?}");
                    assert_eq!(admitted, here.admitted, "{place}");
                    assert_eq!(standing, here.standing, "{place}");
                    if let (Retry::After { ns }, Retry::After { ns: here }) = (retry, here.retry) {
                        assert!(ns.abs_diff(here) < 1_000, "{ns}: {place}");
                    }
                    compared += 1;
                }
            }
        }
    }
    println!("{compared} steps alike");
    assert!(compared > 20_000);
}

#[test]
fn calls_that_go_together_are_answered_as_one_after_the_other() {
    let server = RedisServer::start();
    let mut dice = Dice(7);
    let second = 1_000_000_000;
    for algorithm in [Algorithm::Gcra, Algorithm::FixedWindow, Algorithm::SlidingWindow] {
        let rate = RateSpec { amount: 100, period_ns: 10 * second, burst: 30, algorithm, debt: false };
        let params = RateParams::new(rate).unwrap();
        for calls in [2, 3, 64] {
            let mut at_us = 0;
            let steps: Vec<_> = (0..200)
                .map(|_| {
                    at_us += dice.roll(200_000) * calls as u64;
                    (at_us, params.script_args(dice.roll(4)))
                })
                .collect();
            let alone: Vec<_> = steps.iter().flat_map(|step| std::iter::repeat_n(*step, calls)).collect();
            let together = run_together(&server, params.script(), BASE_US, &steps, calls);
            let alone = run(&server, params.script(), BASE_US, &alone);
            assert_eq!(together.concat(), alone.concat(), "{algorithm:?}, {calls} calls");
            let replies = alone.iter().map(|words| read(&params, words, 1).0);
            let admitted = replies.filter(|admitted| *admitted).count();
            assert!((1..alone.len()).contains(&admitted), "{algorithm:?}: {admitted} admitted");
        }
    }
}

#[test]
fn every_key_expires_when_it_is_full_again_and_holds_nothing_but_numbers() {
    let server = RedisServer::start();
    let minute = 60_000_000_000;
    for (algorithm, longest_ms) in [
        (Algorithm::Gcra, 1_000),
        (Algorithm::TokenBucket, 1_000),
        (Algorithm::FixedWindow, 60_000),
        (Algorithm::SlidingWindow, 120_000),
    ] {
        let params =
            RateParams::new(RateSpec { amount: 60, period_ns: minute, burst: 60, algorithm, debt: false }).unwrap();
        let text = admission::whole(match params.script() {
            Script::Backlog => admission::BACKLOG,
            Script::FixedWindow => admission::FIXED_WINDOW,
            Script::SlidingWindow => admission::SLIDING_WINDOW,
        });
        let text = format!("local ARGV = {{struct.pack('<ddd', ARGV[1], ARGV[2], ARGV[3])}}\n{text}");
        server.tell(&["DEL", "scope"]);
        for cost in [1, 0] {
            let [one, two, three] = params.script_args(cost).map(|arg| arg.to_string());
            let reply = server.ask(&["EVAL", &text, "1", "scope", &one, &two, &three]);
            let words = words(&reply);
            let (admitted, _, standing) = read(&params, &words, cost);
            assert!(admitted && standing.remaining == 59, "{words:?}");
            let ttl_ms = server.ask(&["PTTL", "scope"]).integer().unwrap();
            assert!((1..=longest_ms).contains(&ttl_ms), "{algorithm:?}: {ttl_ms} ms");
        }
        // Somebody else's value under our key counts as nothing, and does not live on.
        server.tell(&["SET", "scope", "nan"]);
        let [one, two, three] = params.script_args(1).map(|arg| arg.to_string());
        let words = words(&server.ask(&["EVAL", &text, "1", "scope", &one, &two, &three]));
        assert!(read(&params, &words, 1).0, "{words:?}");
        assert!(server.ask(&["PTTL", "scope"]).integer().unwrap() > 0);
    }
}

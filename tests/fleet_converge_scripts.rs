//! The scripts that replicas exchange burn and heartbeats with, on a real server, step by step beside the model that the
//! fleet's simulation runs on. Needs redis-server.

mod common;
#[path = "../shards/tests/support/dice.rs"]
mod dice;
#[path = "../shards/tests/support/store.rs"]
mod store;

use common::RedisServer;
use dice::Dice;
use io::redis::{Reply as Answer, Script};
use shards::accountant::period_of;
use shards::converge::{CALENDARS, CellSeen, Job, Reply, ScopeHash};
use shards::limit::Calendar;
use shards::membership::roster::{Beat, Card};
use shards::units::WallMs;
use store::Store;

fn eval(server: &RedisServer, script: Script, keys: &[String], args: &[String]) -> Vec<Answer> {
    let count = keys.len().to_string();
    let mut parts = vec!["EVAL", script.text(), &count];
    parts.extend(keys.iter().chain(args).map(String::as_str));
    let answer = server.ask(&parts);
    answer.array().unwrap_or_else(|| panic!("{script:?}: {answer:?}")).to_vec()
}

fn text(answer: &Answer) -> String {
    match answer {
        Answer::Integer(number) => number.to_string(),
        other => String::from_utf8(other.bytes().unwrap_or_else(|| panic!("{other:?}")).to_vec()).unwrap(),
    }
}

/// Cells without what the server's own clock put into them, in order of their ledgers.
fn cells(items: &[Answer]) -> Vec<CellSeen> {
    let cell = |pair: &[Answer]| CellSeen::parse(&text(&pair[0]), &text(&pair[1])).expect("a cell of ours");
    timeless(items.chunks(2).map(cell).collect())
}

fn timeless(mut cells: Vec<CellSeen>) -> Vec<CellSeen> {
    cells.iter_mut().for_each(|cell| cell.beat_us = 0);
    cells.sort_by(|one, other| one.ledger.cmp(&other.ledger));
    cells
}

const SCOPES: [ScopeHash; 3] = [ScopeHash([1; 16]), ScopeHash([2; 16]), ScopeHash([0xff; 16])];

#[test]
fn burn_is_kept_and_told_by_the_server_as_by_the_model() {
    let server = RedisServer::start();
    let mut model = Store::at(1_700_000_000_000_000);
    let mut dice = Dice(7);
    let wall = WallMs(jiff::Timestamp::now().as_millisecond());
    let calendar = Calendar::Month;
    let period = period_of(calendar, wall);
    let expiry = (period.end.0 + 86_400_000).to_string();
    let index = "i".to_owned();
    let (mut read_to, mut model_read_to) = ("0".to_owned(), 0);
    // Sums larger than a double holds exactly: text all the way.
    let mut spent = [u64::MAX - 1_000_000, 1 << 60, 0];
    let mut rows = [0_u64; 3];
    for step in 0..400 {
        model.now_us += 1 + dice.roll(1_000);
        let scope = SCOPES[dice.roll(3) as usize];
        let who = dice.roll(3) as usize;
        let (ledger, replica) = (["l1", "l2", "l3"][who], ["tt-a", "tt-b", "tt-c"][dice.roll(3) as usize]);
        let keys = [scope.to_string(), index.clone(), "g".to_owned(), "p".to_owned()];
        let burn_keys = &keys[..3];
        match dice.roll(7) {
            0..=2 => {
                // Sometimes a first publication that says less than an earlier one did.
                let is_first = dice.roll(4) == 0;
                spent[who] += dice.roll(50);
                rows[who] += dice.roll(3);
                let less = if is_first { dice.roll(40) } else { 0 };
                let (burn, rows) = (spent[who].saturating_sub(less), rows[who].saturating_sub(less / 20));
                let args = [ledger, replica, &burn.to_string(), &rows.to_string(), &expiry, &scope.to_string()];
                let mut args: Vec<String> = args.map(str::to_owned).to_vec();
                args.push(u8::from(is_first).to_string());
                let answer = eval(&server, Script::Publish, burn_keys, &args);
                let Reply::Cells(expected) =
                    model.run(ledger, replica, &Job::Publish { scope, calendar, period, burn, rows, is_first })
                else {
                    panic!("a publication gives cells")
                };
                assert_eq!(cells(&answer[3..]), timeless(expected.cells), "step {step}");
            }
            3 => {
                let answer = eval(&server, Script::Cells, burn_keys, &[scope.to_string()]);
                let Reply::Cells(expected) = model.run("", "", &Job::Read { scope, calendar, period }) else {
                    panic!("a read gives cells")
                };
                assert_eq!(cells(&answer[3..]), timeless(expected.cells), "step {step}");
            }
            4 => {
                let mut keys = vec!["g".to_owned()];
                keys.extend(CALENDARS.map(|of| if of == calendar { index.clone() } else { format!("none-{of:?}") }));
                let mut args = vec!["1000".to_owned(), "60000".to_owned()];
                args.extend(CALENDARS.map(|of| if of == calendar { read_to.clone() } else { "0".to_owned() }));
                let answer = eval(&server, Script::Changes, &keys, &args);
                let at = CALENDARS.iter().position(|of| *of == calendar).unwrap();
                let found: Vec<String> = answer[2 + at].array().unwrap().iter().map(text).collect();
                let indexes = CALENDARS.map(|of| (of, period.start, if of == calendar { model_read_to } else { 0 }));
                let Reply::Changes(expected) = model.run("", "", &Job::Changed { indexes }) else {
                    panic!("a look gives changes")
                };
                let scopes: Vec<String> = found.chunks(2).map(|pair| pair[0].clone()).collect();
                let expected_scopes: Vec<String> =
                    expected.indexes[at].iter().map(|(scope, _)| scope.to_string()).collect();
                assert_eq!(scopes, expected_scopes, "step {step}: in the order they were changed");
                if let (Some(pair), Some((_, score))) = (found.chunks(2).last(), expected.indexes[at].last()) {
                    (read_to, model_read_to) = (pair[1].clone(), *score);
                }
            }
            5 => {
                // Remembered by somebody: more or less than there is, from before or from after a purge.
                let is_old = dice.roll(2) == 0;
                let (burn, rows, flush_rows) =
                    ((spent[who] + 20).saturating_sub(dice.roll(40)), rows[who], dice.roll(3));
                // The model's clock is not the server's: long ago for both, or far ahead of both.
                let beat_us = if is_old { 1 } else { 1 << 52 };
                let cell = CellSeen { ledger: ledger.into(), replica: replica.into(), burn, rows, flush_rows, beat_us };
                let numbers = [burn, rows, flush_rows, beat_us].map(|number| number.to_string());
                let mut args = vec![ledger.to_owned(), replica.to_owned()];
                args.extend(numbers);
                args.extend([expiry.clone(), scope.to_string()]);
                let answer = eval(&server, Script::Restore, &keys, &args);
                let Reply::Cells(expected) = model.run("", "", &Job::Restore { scope, calendar, period, cell }) else {
                    panic!("a restoration gives cells")
                };
                assert_eq!(cells(&answer[3..]), timeless(expected.cells), "step {step}");
            }
            _ if dice.roll(4) == 0 => {
                let keys = [scope.to_string(), index.clone(), "p".to_owned()];
                // Removed before or after what was published; before what is remembered from far ahead.
                let at_us = [2, 1 << 51][dice.roll(2) as usize];
                let args = [replica.to_owned(), scope.to_string(), "60000".to_owned(), at_us.to_string()];
                let answer = eval(&server, Script::Purge, &keys, &args);
                assert_eq!(
                    cells(&answer),
                    timeless(model.purge(scope, calendar, period.start.0, replica, at_us)),
                    "step {step}"
                );
            }
            _ => {}
        }
    }
    for key in server.keys() {
        let ttl_ms = server.ask(&["PTTL", &key]).integer().unwrap();
        assert!(ttl_ms > 0 && ttl_ms <= 32 * 86_400_000 + 1_000, "{key} has PTTL {ttl_ms}");
    }
}

#[test]
fn heartbeats_goodbyes_and_removals_are_kept_by_the_server_as_by_the_model() {
    let server = RedisServer::start();
    let mut model = Store::at(1_700_000_000_000_000);
    let mut dice = Dice(11);
    let keys = ["fleet".to_owned(), "gone".to_owned()];
    for step in 0..300 {
        model.now_us += 1 + dice.roll(1_000);
        let replica = ["tt-a", "tt-b", "tt-c"][dice.roll(3) as usize];
        let nonce = ["n1", "n2"][dice.roll(2) as usize];
        if dice.roll(5) == 0 {
            let force = dice.roll(2) == 0;
            let args = [replica, "3600000000", if force { "1" } else { "0" }, "60000"].map(str::to_owned);
            let answer = eval(&server, Script::Decommission, &keys, &args);
            let removed = model.decommission(replica, 3_600_000_000, force);
            assert_eq!(text(&answer[0]), if removed.is_some() { "gone" } else { "live" }, "step {step}");
            let timeless = |beat: Option<Beat>| beat.map(|beat| Beat { at_us: 0, ..beat });
            let entry = answer.get(2).and_then(|entry| Beat::parse(&text(entry)));
            assert_eq!(timeless(entry), timeless(removed.flatten()), "step {step}");
            continue;
        }
        let card = Card {
            ledger_id: format!("ledger of {replica}"),
            version: "0.1.0".to_owned(),
            source: "config".to_owned(),
            stable: true,
            started_at_ms: step,
            advertise_url: Some("http://[::1]:9090".to_owned()),
            skew_ms: -4,
        };
        let drained = dice.roll(4) == 0;
        let word = if drained { "drained" } else { "live" };
        let json = serde_json::to_string(&card).unwrap();
        let args = [replica, word, nonce, &json, "60000"].map(str::to_owned);
        let answer = eval(&server, Script::Beat, &keys, &args);
        let expected = model.beat(replica, drained, nonce, &card);
        let timeless = |beat: Option<Beat>| beat.map(|beat| Beat { at_us: 0, ..beat });
        assert_eq!(timeless(Beat::parse(&text(&answer[1]))), timeless(expected.before), "step {step}");
        let mut beats: Vec<(String, Option<Beat>)> = answer[2]
            .array()
            .unwrap()
            .chunks(2)
            .map(|pair| (text(&pair[0]), timeless(Beat::parse(&text(&pair[1])))))
            .collect();
        beats.sort_by(|one, other| one.0.cmp(&other.0));
        let expected_beats: Vec<_> = expected.beats.into_iter().map(|(id, beat)| (id, timeless(Some(beat)))).collect();
        assert_eq!(beats, expected_beats, "step {step}");
        let mut gone: Vec<String> = answer[3].array().unwrap().chunks(2).map(|pair| text(&pair[0])).collect();
        gone.sort();
        assert_eq!(gone, expected.gone.into_iter().map(|(id, _)| id).collect::<Vec<_>>(), "step {step}");
    }
    for key in server.keys() {
        assert!(server.ask(&["PTTL", &key]).integer().unwrap() > 0, "{key}");
    }
}

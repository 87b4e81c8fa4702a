//! The background connection's words: what is to be asked as calls of scripts, and what the scripts answer as plain data.
//!
//! Has every key and the order of every argument, as the heads of the scripts tell them. Decides nothing, waits for nothing;
//! an answer that cannot be one is `None`.

use io::redis::{Call, Reply as Answer, Script};
use shards::converge::{CALENDARS, CellSeen, Cells, Changes, Job, Reply, ScopeHash};
use shards::limit::Calendar;
use shards::membership::roster::{Beat, Card, GONE_KEPT_US, Snapshot};
use shards::meter::PeriodSpan;
use shards::units::WallMs;

/// Changed scopes a look asks for at once, per index.
const PAGE: usize = 2_000;
/// Cells outlive their period by a day.
const KEEP_CELLS_MS: i64 = 86_400_000;
/// The store's generation is renewed with every look; a store without replicas for a day has none.
const KEEP_GENERATION_MS: u64 = 86_400_000;
/// A fleet that is off this long is remembered by its copies only.
const KEEP_FLEET_MS: u64 = 86_400_000;

// One hash slot for keys that one script uses together, so that a cluster's node takes them.
const GENERATION: &str = "tt:{burn}:generation";
const CELLS: &str = "tt:{burn}:cells";
const INDEX: &str = "tt:{burn}:index";
const PURGED: &str = "tt:{burn}:purged";
const FLEET: &str = "tt:{fleet}:roster";
const GONE: &str = "tt:{fleet}:gone";

/// A job of the exchange, said by this replica on this ledger.
pub fn job(job: &Job, ledger: &str, replica: &str) -> Call {
    match job {
        Job::Changed { indexes } => {
            let mut keys = vec![GENERATION.as_bytes().to_vec()];
            let mut args = vec![text(PAGE as u64), text(KEEP_GENERATION_MS)];
            for (calendar, start, since) in indexes {
                keys.push(index_key(*calendar, *start));
                args.push(text(*since));
            }
            Call { script: Script::Changes, keys, args }
        }
        Job::Publish { scope, calendar, period, burn, rows, is_first } => Call {
            script: Script::Publish,
            keys: cell_keys(*scope, *calendar, period.start),
            args: vec![
                ledger.into(),
                replica.into(),
                text(*burn),
                text(*rows),
                expiry(*period),
                scope.hex().to_vec(),
                text(u64::from(*is_first)),
            ],
        },
        Job::Read { scope, calendar, period } => Call {
            script: Script::Cells,
            keys: cell_keys(*scope, *calendar, period.start),
            args: vec![scope.hex().to_vec()],
        },
        Job::Restore { scope, calendar, period, cell } => Call {
            script: Script::Restore,
            keys: [cell_keys(*scope, *calendar, period.start), vec![PURGED.into()]].concat(),
            args: vec![
                cell.ledger.as_str().into(),
                cell.replica.as_str().into(),
                text(cell.burn),
                text(cell.rows),
                text(cell.flush_rows),
                text(cell.beat_us),
                expiry(*period),
                scope.hex().to_vec(),
            ],
        },
    }
}

/// A heartbeat, or a goodbye.
pub fn beat(replica: &str, is_leaving: bool, nonce: &str, card: &Card) -> Call {
    Call {
        script: Script::Beat,
        keys: vec![FLEET.into(), GONE.into()],
        args: vec![
            replica.into(),
            (if is_leaving { "drained" } else { "live" }).into(),
            nonce.into(),
            serde_json::to_vec(card).unwrap_or_default(), // strings and numbers always become JSON
            text(KEEP_FLEET_MS),
        ],
    }
}

/// Since when the store has what it has, and its clock. One that has just lost everything begins with this.
pub fn generation() -> Call {
    let args = vec![text(PAGE as u64), text(KEEP_GENERATION_MS)];
    Call { script: Script::Changes, keys: vec![GENERATION.into()], args }
}

/// Takes a replica off the fleet.
pub fn decommission(replica: &str, window_ns: u64, force: bool) -> Call {
    Call {
        script: Script::Decommission,
        keys: vec![FLEET.into(), GONE.into()],
        args: vec![replica.into(), text(window_ns / 1_000), text(force.into()), text(GONE_KEPT_US / 1_000)],
    }
}

/// What came of it.
pub enum Removal {
    /// It beats: nothing was changed.
    Live,
    /// It is off, as of this instant of the store's clock; with what the store had of it.
    Gone { at_us: u64, beat: Option<Beat> },
}

/// Takes the cells that a replica published last, up to its removal, out of a scope.
pub fn purge(replica: &str, at_us: u64, scope: ScopeHash, calendar: Calendar, period: PeriodSpan) -> Call {
    Call {
        script: Script::Purge,
        keys: vec![cells_key(scope, period.start), index_key(calendar, period.start), PURGED.into()],
        args: vec![replica.into(), scope.hex().to_vec(), text(GONE_KEPT_US / 1_000), text(at_us)],
    }
}

fn text(number: u64) -> Vec<u8> {
    number.to_string().into_bytes()
}

/// When a period's cells are gone, Unix ms.
fn expiry(period: PeriodSpan) -> Vec<u8> {
    period.end.0.saturating_add(KEEP_CELLS_MS).to_string().into_bytes()
}

fn cell_keys(scope: ScopeHash, calendar: Calendar, start: WallMs) -> Vec<Vec<u8>> {
    vec![cells_key(scope, start), index_key(calendar, start), GENERATION.into()]
}

fn cells_key(scope: ScopeHash, start: WallMs) -> Vec<u8> {
    format!("{CELLS}:{scope}:{}", start.0).into_bytes()
}

fn index_key(calendar: Calendar, start: WallMs) -> Vec<u8> {
    format!("{INDEX}:{}:{}", calendar.as_str(), start.0).into_bytes()
}

fn number(answer: &Answer) -> Option<u64> {
    answer.integer().and_then(|number| u64::try_from(number).ok())
}

fn string(answer: &Answer) -> Option<String> {
    answer.bytes().and_then(|bytes| std::str::from_utf8(bytes).ok()).map(str::to_owned)
}

/// `[a, 1, b, 2]` as pairs of text. Whatever is no text is left out.
fn pairs(items: &[Answer]) -> Vec<(String, String)> {
    items.chunks_exact(2).filter_map(|pair| Some((string(&pair[0])?, string(&pair[1])?))).collect()
}

/// What a script's answer says; `None` for anything it cannot say.
pub fn reply(job: &Job, answer: &Answer) -> Option<Reply> {
    let items = answer.array()?;
    let (now_us, second) = (number(items.first()?)?, number(items.get(1)?)?);
    let rest = items.get(2..)?;
    if !matches!(job, Job::Changed { .. }) {
        let score = number(rest.first()?)?;
        let cells: Option<Vec<CellSeen>> = rest
            .get(1..)?
            .chunks(2)
            .map(|pair| {
                let [ledger, cell] = pair else { return None };
                CellSeen::parse(&string(ledger)?, &string(cell)?)
            })
            .collect();
        return Some(Reply::Cells(Cells { now_us, generation: second, score, cells: cells? }));
    }
    let mut indexes: [Vec<(ScopeHash, u64)>; CALENDARS.len()] = Default::default();
    if rest.len() != indexes.len() {
        return None;
    }
    for (index, found) in indexes.iter_mut().zip(rest) {
        for pair in found.array()?.chunks(2) {
            let [scope, score] = pair else { return None };
            // A score is a double: 1.7e15 comes back in digits, and without a fraction.
            let score: f64 = string(score)?.parse().ok()?;
            index.push((ScopeHash::parse(&string(scope)?)?, score as u64));
        }
    }
    Some(Reply::Changes(Changes { now_us, generation: second, indexes, page: PAGE }))
}

/// What a heartbeat's answer says. Entries that no version of ours has written are left out: one of them must not make
/// the rest of the fleet invisible.
pub fn snapshot(answer: &Answer) -> Option<Snapshot> {
    let items = answer.array()?;
    let before = string(items.get(1)?)?;
    let beats = pairs(items.get(2)?.array()?);
    let gone = pairs(items.get(3)?.array()?);
    Some(Snapshot {
        now_us: number(items.first()?)?,
        before: Beat::parse(&before),
        beats: beats.into_iter().filter_map(|(id, beat)| Some((id, Beat::parse(&beat)?))).collect(),
        gone: gone.into_iter().filter_map(|(id, at)| Some((id, at.parse().ok()?))).collect(),
    })
}

/// What the question for the generation is answered: the store's clock, and the generation.
pub fn begun(answer: &Answer) -> Option<(u64, u64)> {
    let items = answer.array()?;
    Some((number(items.first()?)?, number(items.get(1)?)?))
}

/// What a removal's answer says.
pub fn removal(answer: &Answer) -> Option<Removal> {
    let items = answer.array()?;
    match items.first()?.bytes()? {
        b"live" => Some(Removal::Live),
        b"gone" => {
            let at_us = string(items.get(1)?)?.parse().ok()?;
            Some(Removal::Gone { at_us, beat: Beat::parse(&string(items.get(2)?)?) })
        }
        _ => None,
    }
}

/// The cells that a purge took. Whatever is no cell is left out.
pub fn purged(answer: &Answer) -> Vec<CellSeen> {
    let cells = pairs(answer.array().unwrap_or_default());
    cells.into_iter().filter_map(|(ledger, cell)| CellSeen::parse(&ledger, &cell)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use shards::converge::Converge;
    use shards::membership::roster::Roster;
    use shards::units::{MonoNs, Now};

    use super::*;

    fn any_answer() -> impl Strategy<Value = Answer> {
        let text = prop_oneof![
            any::<Vec<u8>>(),
            "[0-9a-f]{32}".prop_map(String::into_bytes),
            "[0-9]{1,20}".prop_map(String::into_bytes),
            "[0-9]{1,20} [0-9]{1,20} [0-9]{1,3} [0-9]{1,16} tt-[a-z]".prop_map(String::into_bytes),
            "[0-9]{1,16} (live|drained) n [{}]*".prop_map(String::into_bytes),
            Just(b"nan".to_vec()),
            Just(b"-1e300".to_vec()),
        ];
        let leaf = prop_oneof![
            4 => text.prop_map(Answer::Bulk),
            1 => any::<i64>().prop_map(Answer::Integer),
            1 => Just(Answer::Nil),
            1 => Just(Answer::Error(b"ERR no".to_vec())),
        ];
        leaf.prop_recursive(3, 64, 8, |inner| proptest::collection::vec(inner, 0..8).prop_map(Answer::Array))
    }

    fn jobs() -> [Job; 2] {
        let period = shards::accountant::period_of(Calendar::Day, WallMs(0));
        let indexes = CALENDARS.map(|calendar| (calendar, WallMs(0), 0));
        [Job::Changed { indexes }, Job::Read { scope: ScopeHash([1; 16]), calendar: Calendar::Day, period }]
    }

    proptest! {
        #[test]
        fn no_answer_of_a_store_does_harm(answer in any_answer(), parts in proptest::collection::vec(any_answer(), 7)) {
            let now = Now { mono: MonoNs(1), wall: WallMs(1) };
            for answer in [answer, Answer::Array(parts)] {
                let _ = (removal(&answer), purged(&answer), begun(&answer));
                let mut roster = Roster::new("a", "n", "l", 1);
                if let Some(snapshot) = snapshot(&answer) {
                    roster.heard(snapshot, now.mono);
                }
                prop_assert!(roster.n_live() >= 1);
                for job in jobs() {
                    let mut converge = Converge::new("l", 0, now.mono);
                    let _ = converge.next_batch(now);
                    match reply(&job, &answer) {
                        Some(reply) => converge.answer(&job, reply, now),
                        None => converge.failed(&job),
                    }
                    let _ = (converge.take_terms(), converge.next_batch(now));
                }
            }
        }
    }

    #[test]
    fn keys_name_nobody_and_share_a_slot_where_a_script_uses_them_together() {
        let key = String::from_utf8(cells_key(ScopeHash([0xab; 16]), WallMs(5))).unwrap();
        assert_eq!(key, format!("tt:{{burn}}:cells:{}:5", "ab".repeat(16)));
        assert_eq!(index_key(Calendar::Month, WallMs(5)), b"tt:{burn}:index:month:5");
        assert!([GENERATION, CELLS, INDEX, PURGED].iter().all(|key| key.starts_with("tt:{burn}:")));
        assert!([FLEET, GONE].iter().all(|key| key.starts_with("tt:{fleet}:")));
    }
}

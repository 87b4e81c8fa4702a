//! The accountant under a virtual clock: what the gates read after rows were folded, across period ends, restarts,
//! reloads and clocks that jump. Nothing here waits or reads a clock.

#![cfg(not(loom))]

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use proptest::prelude::*;
use shards::accountant::{Checkpoint, Folder, LedgerPosition, Rollup, period_of};
use shards::limit::{AttachDecl, Calendar, Limit, LimitDecl, LimitType, MatchDecl, Period};
use shards::meter::Meter;
use shards::plan::{CompileInput, LimitSet, compile};
use shards::registry::Registry;
use shards::row::{Decision, Outcome, RowFacts};
use shards::scope::{Endpoint, Node};
use shards::units::{NanoUsd, WallMs};
use shards::usage::{Usage, UsageSource};

const HOUR_MS: i64 = 3_600_000;
const DAY_MS: i64 = 24 * HOUR_MS;
/// 2027-01-01T00:00:00Z, a Friday.
const NEW_YEAR_2027: i64 = 1_798_761_600_000;
const CENT: u64 = 10_000_000;

fn limit(id: &str, kind: &str, attach: &str, period: &str) -> LimitDecl {
    let (node, level) = match attach.strip_prefix("level:") {
        Some(level) => (None, Some(level.to_owned())),
        None => (Some(attach.to_owned()), None),
    };
    let is_money = kind == "budget_usd";
    LimitDecl {
        path: format!("governance.limits[{id}]"),
        id: Some(id.to_owned()),
        kind: Some(kind.to_owned()),
        attach: Some(AttachDecl { node, level }),
        amount: (!is_money).then(|| "1000".to_owned()),
        amount_usd: is_money.then(|| "1".to_owned()),
        period: Some(period.to_owned()),
        ..LimitDecl::default()
    }
}

fn matching(mut decl: LimitDecl, model: &str, upstream: &str) -> LimitDecl {
    let some = |text: &str| (!text.is_empty()).then(|| vec![text.to_owned()]);
    decl.match_ = Some(MatchDecl { model: some(model), upstream: some(upstream), endpoint: None });
    decl
}

fn set(decls: &[LimitDecl]) -> Arc<LimitSet> {
    let upstreams = ["up".to_owned(), "other".to_owned()];
    let input =
        CompileInput { limits: decls, upstream_ids: &upstreams, retain_ms: u64::MAX, ..CompileInput::default() };
    Arc::new(compile(input).limits.expect("these limits are valid"))
}

fn node(text: &str) -> Node {
    Node::parse(text).unwrap()
}

/// A forwarded row of 140 tokens that costs a cent.
fn row(seq: u64, end: i64) -> RowFacts<'static> {
    RowFacts {
        seq,
        end: WallMs(end),
        node: Cow::Borrowed("org:acme/team:ml/user:dev1"),
        key_id: Some(Cow::Borrowed("k1")),
        endpoint: Endpoint::ChatCompletions,
        model: Cow::Borrowed("mock"),
        upstream: Some(Cow::Borrowed("up")),
        decision: Decision::Admitted,
        outcome: Some(Outcome::Completed),
        refused_by: None,
        forwarded: true,
        usage: Usage { input: 100, output: 40, source: UsageSource::Reported, ..Usage::default() },
        cost: Some(NanoUsd(CENT)),
        latency_us: 1,
    }
}

/// A folder with its limits and counters, as the accountant core holds them.
struct Desk {
    set: Arc<LimitSet>,
    registry: Registry,
    folder: Folder,
}

impl Desk {
    fn new(decls: &[LimitDecl], now: i64) -> Desk {
        let mut desk = Desk { set: set(decls), registry: Registry::new(), folder: Folder::new() };
        desk.folder.arm(desk.set.clone(), &desk.registry, WallMs(now));
        desk.folder.caught_up();
        desk
    }

    fn fold(&mut self, row: &RowFacts<'_>) {
        self.folder.fold(row, &self.registry).unwrap();
    }

    /// What a gate of `limit` at `node` reads.
    fn meter(&self, limit: &str, at: &str) -> Arc<Meter> {
        self.registry.meter(self.set.get(limit).unwrap(), &node(at)).unwrap()
    }

    fn observed(&self, limit: &str, at: &str, now: i64) -> u64 {
        self.meter(limit, at).observed(WallMs(now))
    }
}

#[test]
fn row_counts_in_every_limit_that_matches_its_fields() {
    let decls = [
        limit("org_usd", "budget_usd", "org:acme", "month"),
        limit("team_tokens", "quota_tokens", "level:team", "day"),
        limit("all_requests", "quota_requests", "__global", "hour"),
        limit("rate", "rpm", "org:acme", "1m"),
        limit("elsewhere", "budget_usd", "org:beta", "month"),
        matching(limit("gpt_only", "budget_usd", "org:acme", "month"), "gpt-*", ""),
        matching(limit("up_only", "quota_requests", "org:acme", "week"), "", "up"),
    ];
    let now = NEW_YEAR_2027 + 5;
    let mut desk = Desk::new(&decls, now);
    desk.fold(&row(1, now));
    desk.fold(&RowFacts { upstream: Some("other".into()), ..row(2, now) });
    // Refused: nothing was forwarded, used or spent.
    desk.fold(&RowFacts {
        decision: Decision::Refused,
        refused_by: Some("org_usd".into()),
        forwarded: false,
        upstream: None,
        usage: Usage::default(),
        cost: None,
        ..row(3, now)
    });
    assert_eq!(desk.observed("org_usd", "org:acme", now), 0, "nothing is seen before it is published");
    desk.folder.publish(WallMs(now));
    assert_eq!(desk.observed("org_usd", "org:acme", now), 2 * CENT);
    assert_eq!(desk.observed("team_tokens", "org:acme/team:ml", now), 280);
    assert_eq!(desk.observed("all_requests", "__global", now), 2);
    assert_eq!(desk.observed("gpt_only", "org:acme", now), 0);
    assert_eq!(desk.observed("up_only", "org:acme", now), 1);
    assert_eq!(desk.observed("elsewhere", "org:beta", now), 0);
    assert_eq!(desk.folder.burns(WallMs(now)).count(), 4);
}

#[test]
fn row_whose_node_is_none_is_told_and_counts_nowhere() {
    let mut desk = Desk::new(&[limit("usd", "budget_usd", "__global", "month")], NEW_YEAR_2027);
    let bad = RowFacts { node: "acme".into(), ..row(1, NEW_YEAR_2027) };
    assert!(desk.folder.fold(&bad, &desk.registry).is_err());
    desk.fold(&row(1, NEW_YEAR_2027));
    desk.folder.publish(WallMs(NEW_YEAR_2027));
    assert_eq!(desk.observed("usd", "__global", NEW_YEAR_2027), CENT);
}

#[test]
fn c16_a_monthly_budget_resets_once_a_month_at_midnight_of_the_first() {
    // Jan 30 to Mar 2 in hours, a common year and a leap year, a cent an hour.
    for (new_year, february_days) in [(NEW_YEAR_2027, 28), (NEW_YEAR_2027 + 365 * DAY_MS, 29)] {
        let from = new_year + 29 * DAY_MS;
        let february = new_year + 31 * DAY_MS;
        let march = february + february_days * DAY_MS;
        let mut desk = Desk::new(&[limit("usd", "budget_usd", "org:acme", "month")], from);
        let mut cents = 0;
        for (hour, seq) in (0..(march + DAY_MS - from) / HOUR_MS).zip(1..) {
            let now = from + hour * HOUR_MS;
            if now == february || now == march {
                cents = 0;
            }
            assert_eq!(desk.observed("usd", "org:acme", now), cents * CENT, "hour {hour}");
            desk.fold(&row(seq, now));
            desk.folder.publish(WallMs(now));
            cents += 1;
            let reading = desk.meter("usd", "org:acme").read(WallMs(now));
            let next = [february, march, march + 31 * DAY_MS].into_iter().find(|first| *first > now).unwrap();
            assert_eq!((reading.observed, reading.resets_at), (cents * CENT, Some(WallMs(next))));
        }
    }
}

#[test]
fn c17_first_request_after_the_boundary_finds_the_budget_whole_before_any_beat() {
    let boundary = NEW_YEAR_2027 + DAY_MS;
    let mut replicas = [0, 1].map(|_| Desk::new(&[limit("usd", "budget_usd", "org:acme", "day")], NEW_YEAR_2027));
    for desk in &mut replicas {
        for seq in 1..=200 {
            desk.fold(&row(seq, boundary - 1));
        }
        desk.folder.publish(WallMs(boundary - 1));
        assert_eq!(desk.observed("usd", "org:acme", boundary - 1), 200 * CENT);
        assert_eq!(desk.observed("usd", "org:acme", boundary), 0);
        // A row that ended in the old day but is folded in the new one does not bring it back.
        desk.fold(&row(201, boundary - 1));
        desk.fold(&row(202, boundary + 1));
        desk.folder.publish(WallMs(boundary + 2));
        assert_eq!(desk.observed("usd", "org:acme", boundary + 2), CENT);
    }
}

#[test]
fn c18_spend_does_not_leak_before_the_boundary() {
    let mut desk = Desk::new(&[limit("usd", "budget_usd", "org:acme", "month")], NEW_YEAR_2027);
    for seq in 1..=100u64 {
        let now = NEW_YEAR_2027 + seq as i64 * DAY_MS / 10;
        desk.fold(&RowFacts { cost: Some(NanoUsd(446_000)), ..row(seq, now) });
        desk.folder.republish(WallMs(now));
        assert_eq!(desk.observed("usd", "org:acme", now), seq * 446_000);
    }
}

#[test]
fn c19_token_quota_debits_what_a_row_used() {
    let mut desk = Desk::new(&[limit("tokens", "quota_tokens", "org:acme", "day")], NEW_YEAR_2027);
    for (seq, endpoint) in [(1, Endpoint::ChatCompletions), (2, Endpoint::Messages), (3, Endpoint::Responses)] {
        desk.fold(&RowFacts { endpoint, ..row(seq, NEW_YEAR_2027) });
        desk.folder.publish(WallMs(NEW_YEAR_2027));
        assert_eq!(desk.observed("tokens", "org:acme", NEW_YEAR_2027), 140 * seq);
    }
}

#[test]
fn limit_added_on_reload_counts_what_the_period_already_holds() {
    let now = NEW_YEAR_2027 + 10 * DAY_MS;
    let old = limit("usd", "budget_usd", "org:acme", "month");
    let mut desk = Desk::new(std::slice::from_ref(&old), now);
    desk.fold(&row(1, NEW_YEAR_2027 - 1)); // last year
    desk.fold(&row(2, NEW_YEAR_2027));
    let closed = desk.folder.take_rollup();
    desk.fold(&row(3, now));

    // The amount changes, and a limit is added.
    let changed = LimitDecl { amount_usd: Some("7".into()), ..old };
    desk.set = set(&[changed, limit("tokens", "quota_tokens", "level:user", "month")]);
    let since = desk.folder.arm(desk.set.clone(), &desk.registry, WallMs(now));
    assert_eq!(since, Some(WallMs(NEW_YEAR_2027)));
    // Rows go on while the closed segments are read.
    desk.fold(&row(4, now));
    desk.folder.backfill(&Rollup::decode(&closed.encode()).unwrap(), &desk.registry);
    desk.folder.caught_up();
    desk.folder.publish(WallMs(now));
    assert_eq!(desk.observed("usd", "org:acme", now), 3 * CENT, "counted once, also across a changed amount");
    assert_eq!(desk.observed("tokens", "org:acme/team:ml/user:dev1", now), 3 * 140);

    assert_eq!(desk.folder.arm(desk.set.clone(), &desk.registry, WallMs(now)), None, "nothing is new any more");
    desk.folder.backfill(&closed, &desk.registry);
    desk.folder.publish(WallMs(now));
    assert_eq!(desk.observed("usd", "org:acme", now), 3 * CENT);
}

#[test]
fn clock_that_jumps_ahead_and_comes_back_neither_resets_twice_nor_gives_the_budget_away() {
    let now = NEW_YEAR_2027 + 5 * HOUR_MS;
    let mut desk = Desk::new(&[limit("usd", "budget_usd", "org:acme", "day")], now);
    (1..=50).for_each(|seq| desk.fold(&row(seq, now)));
    desk.folder.publish(WallMs(now));
    // A month ahead for one row, then back.
    desk.fold(&row(51, now + 30 * DAY_MS));
    desk.folder.publish(WallMs(now + 30 * DAY_MS));
    desk.fold(&row(52, now));
    desk.folder.publish(WallMs(now));
    assert_eq!(desk.observed("usd", "org:acme", now), 52 * CENT, "one cent too strict, not 51 too lax");
    // And again when that day really comes: its one row is still there.
    desk.folder.republish(WallMs(now + 30 * DAY_MS));
    assert_eq!(desk.observed("usd", "org:acme", now + 30 * DAY_MS), CENT);
}

#[test]
fn scope_is_forgotten_after_its_period_and_counts_again_when_it_returns() {
    let mut desk = Desk::new(&[limit("usd", "budget_usd", "level:user", "hour")], NEW_YEAR_2027);
    desk.fold(&row(1, NEW_YEAR_2027));
    desk.folder.republish(WallMs(NEW_YEAR_2027 + HOUR_MS));
    assert_eq!(desk.folder.burns(WallMs(NEW_YEAR_2027)).count(), 1);
    desk.folder.republish(WallMs(NEW_YEAR_2027 + 2 * HOUR_MS));
    assert_eq!(desk.folder.burns(WallMs(NEW_YEAR_2027)).count(), 0);
    let later = NEW_YEAR_2027 + 5 * HOUR_MS;
    desk.fold(&row(2, later));
    desk.folder.publish(WallMs(later));
    assert_eq!(desk.observed("usd", "org:acme/team:ml/user:dev1", later), CENT);
}

#[test]
fn peers_are_told_what_changed_once() {
    let mut desk = Desk::new(&[limit("usd", "budget_usd", "org:acme", "month")], NEW_YEAR_2027);
    desk.fold(&row(1, NEW_YEAR_2027));
    desk.fold(&row(2, NEW_YEAR_2027));
    let mut told = Vec::new();
    let now = WallMs(NEW_YEAR_2027 + 1);
    desk.folder.changed(now, |_, burn| told.push((burn.node.to_string(), burn.period.start, burn.amount, burn.rows)));
    assert_eq!(told, [("org:acme".to_owned(), WallMs(NEW_YEAR_2027), 2 * CENT, 2)]);
    desk.folder.changed(now, |_, _| panic!("nothing has changed since"));
}

#[test]
fn checkpoint_of_another_version_or_garbage_is_none() {
    assert!(Checkpoint::decode(b"").is_none() && Checkpoint::decode(b"{}").is_none());
    let bytes = Folder::new().checkpoint(LedgerPosition { segment: 1, offset: 2 }).encode();
    let text = String::from_utf8(bytes.clone()).unwrap();
    assert_eq!(Checkpoint::decode(&bytes).unwrap().position, LedgerPosition { segment: 1, offset: 2 });
    assert!(Checkpoint::decode(text.replace("\"v\":1", "\"v\":2").as_bytes()).is_none());
}

/// The last millisecond of the last hour of [`rows`].
const AFTER_ROWS: WallMs = WallMs(NEW_YEAR_2027 + 2 * DAY_MS - 1);

/// Node, model, upstream, time, cost, tokens, and one in ten refused.
type Ask = (&'static str, &'static str, &'static str, i64, u64, (u64, u64), u8);

/// Rows over four days around a new year, half of them in the last hour; callers, models and upstreams, some refused.
fn rows() -> impl Strategy<Value = Vec<RowFacts<'static>>> {
    let nodes = ["__global", "org:acme", "org:acme/team:ml", "org:acme/team:ml/user:dev1", "org:beta/team:x"];
    let one = (
        proptest::sample::select(nodes.to_vec()),
        proptest::sample::select(vec!["gpt-a", "gpt-b", "mock"]),
        proptest::sample::select(vec!["up", "other"]),
        prop_oneof![0..4 * DAY_MS, 4 * DAY_MS - HOUR_MS..4 * DAY_MS],
        0..1_000_000u64,
        (0..1_000u64, 0..1_000u64),
        0..10u8,
    );
    proptest::collection::vec(one, 1..80).prop_map(|rows| {
        let fact = |(place, ask): (usize, Ask)| {
            let (node, model, upstream, at, cost, (input, output), chance) = ask;
            let refused = chance == 0;
            let used = Usage { input, output, ..Usage::default() };
            RowFacts {
                node: Cow::Borrowed(node),
                model: Cow::Borrowed(model),
                upstream: (!refused).then_some(Cow::Borrowed(upstream)),
                decision: if refused { Decision::Refused } else { Decision::Admitted },
                outcome: (!refused).then_some(Outcome::Completed),
                refused_by: refused.then_some(Cow::Borrowed("a")),
                forwarded: !refused,
                usage: if refused { Usage::default() } else { used },
                cost: (chance > 1).then_some(NanoUsd(cost)),
                ..row(place as u64 + 1, NEW_YEAR_2027 - 2 * DAY_MS + at)
            }
        };
        rows.into_iter().enumerate().map(fact).collect()
    })
}

fn some_limits() -> Vec<LimitDecl> {
    vec![
        limit("a", "budget_usd", "org:acme", "month"),
        limit("b", "quota_tokens", "level:team", "day"),
        limit("c", "quota_requests", "__global", "week"),
        matching(limit("d", "budget_usd", "level:user", "year"), "gpt-*", "up"),
        limit("e", "quota_requests", "level:org", "hour"),
    ]
}

/// The sum by definition: every row looked at for every limit, no caches and no periods kept.
fn expected(set: &LimitSet, rows: &[RowFacts<'_>], now: WallMs) -> HashMap<(String, String), u64> {
    let mut sums = HashMap::new();
    for (limit, row) in set.limits.iter().flat_map(|limit| rows.iter().map(move |row| (limit, row))) {
        let upstream = row.upstream.as_deref().unwrap_or_default();
        let Some(at) = limit.attach.node_for(&node(&row.node)) else { continue };
        let counts = limit.matches.selects(&row.model, upstream, row.endpoint);
        if counts && period_of(calendar(limit), now).contains(row.end) {
            let amount = match limit.kind {
                LimitType::BudgetUsd => row.cost.map_or(0, |cost| cost.0),
                LimitType::QuotaTokens => row.usage.input + row.usage.output,
                _ => u64::from(row.forwarded),
            };
            *sums.entry((limit.id.to_string(), at.to_string())).or_insert(0) += amount;
        }
    }
    sums.retain(|_, sum| *sum > 0);
    sums
}

fn calendar(limit: &Limit) -> Calendar {
    match limit.period {
        Some(Period::Calendar(calendar)) => calendar,
        _ => panic!("only calendar limits are tested here"),
    }
}

/// What the gates read for every scope, and the folder says the same.
fn metered(desk: &mut Desk, now: WallMs) -> HashMap<(String, String), u64> {
    desk.folder.publish(now);
    let mut sums = HashMap::new();
    for burn in desk.folder.burns(now) {
        let meter = desk.registry.meter(burn.limit, burn.node).unwrap();
        assert_eq!(meter.observed(now), burn.amount, "{} {}", burn.limit.id, burn.node);
        sums.insert((burn.limit.id.to_string(), burn.node.to_string()), burn.amount);
    }
    sums.retain(|_, sum| *sum > 0);
    sums
}

proptest! {
    #[test]
    fn meters_are_the_sums_of_the_rows_in_their_period(rows in rows()) {
        let mut desk = Desk::new(&some_limits(), AFTER_ROWS.0);
        rows.iter().for_each(|row| desk.fold(row));
        prop_assert_eq!(metered(&mut desk, AFTER_ROWS), expected(&desk.set, &rows, AFTER_ROWS));
    }

    #[test]
    fn replay_after_any_cut_gives_the_same_meters(
        rows in rows(), cut: proptest::sample::Index, rotations in proptest::collection::vec(any::<proptest::sample::Index>(), 0..3),
        checkpoint_at: proptest::sample::Index, has_checkpoint: bool, added_later in 0..3usize,
    ) {
        let now = AFTER_ROWS;
        let all = some_limits();
        let first_limits = &all[..all.len() - added_later];

        // First life: rows up to the cut; segments end at the rotations; a checkpoint somewhere on the way.
        let cut = cut.index(rows.len() + 1);
        let ends: Vec<usize> = rotations.iter().map(|at| at.index(rows.len() + 1)).filter(|at| *at <= cut).collect();
        let checkpoint_at = checkpoint_at.index(cut + 1);
        let mut first = Desk::new(first_limits, now.0);
        let mut rollups: Vec<(usize, Rollup)> = Vec::new(); // by index of their last row + 1
        let mut segment_starts = vec![0];
        let mut checkpoint = None;
        for at in 0..=cut {
            if ends.contains(&at) && !first.folder.rollup().is_empty() {
                rollups.push((at, first.folder.take_rollup()));
                segment_starts.push(at);
            }
            if at == checkpoint_at && has_checkpoint {
                let segment = *segment_starts.last().unwrap() as u64;
                checkpoint = Some(first.folder.checkpoint(LedgerPosition { segment, offset: at as u64 }));
            }
            rows[at..cut].first().into_iter().for_each(|row| first.fold(row));
        }

        // Second life: more limits than before, the same files.
        let checkpoint = checkpoint.map(|checkpoint| Checkpoint::decode(&checkpoint.encode()).unwrap());
        let registry = Registry::new();
        let set = set(&all);
        let folder = checkpoint.as_ref().map_or_else(Folder::new, |saved| Folder::restore(saved, &set, &registry));
        let mut second = Desk { set: set.clone(), registry, folder };
        let needs_history = second.folder.arm(set, &second.registry, now).is_some();
        let open = *segment_starts.last().unwrap();
        let fold_from = checkpoint.map_or(open, |saved| saved.position.segment as usize);
        if needs_history {
            for (_, rollup) in rollups.iter().filter(|(end, _)| *end <= fold_from) {
                second.folder.backfill(&Rollup::decode(&rollup.encode()).unwrap(), &second.registry);
            }
        }
        rows[fold_from..cut].iter().for_each(|row| second.fold(row));
        second.folder.caught_up();
        prop_assert_eq!(second.folder.folded_seq(), cut as u64);

        // And on with the rest, as the process that never died would have.
        let mut steady = Desk::new(&all, now.0);
        rows.iter().for_each(|row| steady.fold(row));
        rows[cut..].iter().for_each(|row| second.fold(row));
        prop_assert_eq!(metered(&mut second, now), metered(&mut steady, now));
        prop_assert_eq!(metered(&mut second, now), expected(&steady.set, &rows, now));
    }
}

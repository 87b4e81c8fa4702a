//! "What was spent": groups and sums over rollups.
//!
//! Whole hours: a question that begins or ends inside one is widened to it, and the answer says which instants it
//! covers. Memory is bounded by the number of groups. The open segment's rollup is one among the others.

use std::collections::HashMap;

use foldhash::fast::FixedState;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::period::{DAY_MS, HOUR_MS};
use super::rollup::{Rollup, Scope, Totals};
use crate::scope::{Glob, Level, Node};
use crate::units::WallMs;

/// Groups that are kept apart; what comes later is summed in one group without a name, and the answer says so.
/// 100,000 × about 300 B = 30 MB.
const GROUPS_MAX: usize = 100_000;

/// What a group is made by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupBy {
    /// The node as in the row, or cut to a level. A node above that level stands for itself.
    Node(Option<Level>),
    Model,
    Upstream,
    Endpoint,
    Key,
    /// The limit that refused. Rows that no limit refused share the group without a name.
    Limit,
    Day,
    Hour,
}

impl GroupBy {
    /// `node`, `node:team` (also org, user), `model`, `upstream`, `endpoint`, `key`, `limit`, `day`, `hour`.
    pub fn parse(text: &str) -> Option<GroupBy> {
        if let Some(level) = text.strip_prefix("node:") {
            let level = Level::parse(level).filter(|level| *level != Level::Global); // that is no grouping at all
            return level.map(|level| GroupBy::Node(Some(level)));
        }
        Some(match text {
            "node" => GroupBy::Node(None),
            "model" => GroupBy::Model,
            "upstream" => GroupBy::Upstream,
            "endpoint" => GroupBy::Endpoint,
            "key" => GroupBy::Key,
            "limit" => GroupBy::Limit,
            "day" => GroupBy::Day,
            "hour" => GroupBy::Hour,
            _ => return None,
        })
    }
}

/// A question.
#[derive(Debug, Clone)]
pub struct Query {
    pub since: WallMs,
    pub until: WallMs,
    /// One group over everything when empty.
    pub group_by: Vec<GroupBy>,
    /// Only this node and those below it.
    pub node: Option<Node>,
    pub model: Option<Glob>,
}

/// One group of an answer: its name by each part of `group_by` (`None`: the rows have none), and its sums.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    pub by: Vec<Option<String>>,
    #[serde(flatten)]
    pub totals: Totals,
}

/// The answer, groups in order of their names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// The whole hours it covers.
    pub since: WallMs,
    pub until: WallMs,
    pub groups: Vec<Group>,
    /// There were more groups than are kept apart; the rest is in the group whose names are all missing.
    pub is_truncated: bool,
}

/// A query being answered. Groups are told apart by the numbers of their texts, so that a cell costs a sum and no text.
pub struct Tally {
    query: Query,
    by_limit: bool,
    texts: Texts,
    groups: HashMap<GroupKey, u32, FixedState>,
    /// By group.
    sums: Vec<(GroupKey, Totals)>,
    is_truncated: bool,
}

/// The numbers of a group's texts, in the order of `group_by`.
type GroupKey = SmallVec<[u32; 4]>;

/// A text that is in no group.
const UNKNOWN: u32 = u32::MAX;

/// Texts that name groups, each once; number 0 is no text.
#[derive(Default)]
struct Texts {
    numbers: HashMap<Box<str>, u32, FixedState>,
    list: Vec<Box<str>>,
}

impl Texts {
    /// The text's number; [`UNKNOWN`] for a new one when no more are taken in.
    fn of(&mut self, text: &str, is_full: bool) -> u32 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        if is_full {
            return UNKNOWN;
        }
        self.list.push(text.into());
        let number = self.list.len() as u32; // bounded by the scopes of the segments, far below 2^32
        self.numbers.insert(text.into(), number);
        number
    }

    fn text(&self, number: u32) -> Option<String> {
        let at = (number as usize).checked_sub(1)?;
        self.list.get(at).map(|text| text.to_string())
    }
}

impl Query {
    pub fn tally(mut self) -> Tally {
        self.since = WallMs(floor_hour(self.since.0));
        self.until = WallMs(floor_hour(self.until.0.saturating_add(HOUR_MS - 1)));
        let by_limit = self.group_by.contains(&GroupBy::Limit);
        Tally {
            query: self,
            by_limit,
            texts: Texts::default(),
            groups: HashMap::default(),
            sums: Vec::new(),
            is_truncated: false,
        }
    }
}

impl Tally {
    /// Adds a segment's sums. Each rollup once.
    pub fn add(&mut self, rollup: &Rollup) {
        let by_limit = self.by_limit;
        let selected: Vec<bool> = rollup.scopes().iter().map(|scope| self.selects(scope)).collect();
        // A scope's cells lie in few hours, most of them one behind the other: its last group is remembered.
        let mut last: Vec<Option<(WallMs, usize)>> = vec![None; rollup.scopes().len()];
        for cell in rollup.cells() {
            let (at, start) = (cell.scope(), cell.start());
            if !selected[at] || start < self.query.since || start >= self.query.until {
                continue;
            }
            let (scope, time) = (&rollup.scopes()[at], self.time_of(start));
            let mut rest = cell.totals;
            let mut most: Option<(usize, u64)> = None;
            for (limit, rows) in rollup.refused_by(cell).filter(|_| by_limit) {
                let refused = Totals { requests: rows, refusals: rows, ..Totals::default() };
                rest.requests = rest.requests.saturating_sub(rows);
                rest.refusals = rest.refusals.saturating_sub(rows);
                let group = self.group(scope, time, Some(limit));
                self.sums[group].1.add(&refused);
                if most.is_none_or(|(_, most)| rows > most) {
                    most = Some((group, rows));
                }
            }
            // What refused rows have beside their number, such as their latency, is not kept by limit. Where there were no
            // others, it belongs to the limit that refused most of them; a group of no rows would be a phantom.
            if let Some((group, _)) = most.filter(|_| rest.requests == 0) {
                self.sums[group].1.add(&rest);
                continue;
            }
            let group = match last[at] {
                Some((known, group)) if known == time => group,
                _ => self.group(scope, time, None),
            };
            last[at] = Some((time, group));
            self.sums[group].1.add(&rest);
        }
    }

    pub fn answer(self) -> Answer {
        let Tally { texts, sums, .. } = &self;
        let group = |(key, totals): &(GroupKey, Totals)| Group {
            by: key.iter().map(|number| texts.text(*number)).collect(),
            totals: *totals,
        };
        let mut groups: Vec<Group> = sums.iter().map(group).collect();
        groups.sort_unstable_by(|left, right| left.by.cmp(&right.by));
        Answer { since: self.query.since, until: self.query.until, groups, is_truncated: self.is_truncated }
    }

    fn selects(&self, scope: &Scope) -> bool {
        self.query.node.as_ref().is_none_or(|node| scope.node.is_within(node))
            && self.query.model.as_ref().is_none_or(|glob| glob.matches(&scope.model))
    }

    /// The instant that stands for `start` in a group's name.
    fn time_of(&self, start: WallMs) -> WallMs {
        let has = |by| self.query.group_by.contains(&by);
        if has(GroupBy::Hour) {
            return start;
        }
        WallMs(if has(GroupBy::Day) { start.0 - start.0.rem_euclid(DAY_MS) } else { 0 })
    }

    /// Where the sums of a group are.
    fn group(&mut self, scope: &Scope, time: WallMs, limit: Option<&str>) -> usize {
        let is_full = self.groups.len() >= GROUPS_MAX;
        let mut key = GroupKey::new();
        let texts = &mut self.texts;
        let mut of = |text: &str| texts.of(text, is_full);
        for by in &self.query.group_by {
            key.push(match by {
                GroupBy::Node(None) => of(scope.node.as_str()),
                GroupBy::Node(Some(level)) => of(scope.node.at(*level).as_ref().unwrap_or(&scope.node).as_str()),
                GroupBy::Model => of(&scope.model),
                GroupBy::Upstream => scope.upstream.as_deref().map_or(0, &mut of),
                GroupBy::Endpoint => of(scope.endpoint.as_str()),
                GroupBy::Key => scope.key_id.as_deref().map_or(0, &mut of),
                GroupBy::Limit => limit.map_or(0, &mut of),
                GroupBy::Day => rfc3339(time).split_once('T').map_or(0, |(day, _)| of(day)),
                GroupBy::Hour => of(&rfc3339(time)),
            });
        }
        if let Some(group) = self.groups.get(&key) {
            return *group as usize;
        }
        if is_full {
            self.is_truncated = true;
            key.iter_mut().for_each(|number| *number = 0);
            if let Some(group) = self.groups.get(&key) {
                return *group as usize;
            }
        }
        self.sums.push((key.clone(), Totals::default()));
        self.groups.insert(key, self.sums.len() as u32 - 1); // GROUPS_MAX and one
        self.sums.len() - 1
    }
}

fn floor_hour(ms: i64) -> i64 {
    ms.saturating_sub(ms.rem_euclid(HOUR_MS))
}

fn rfc3339(wall: WallMs) -> String {
    let mut text = Vec::with_capacity(24);
    crate::refusal::text::rfc3339(wall, &mut text);
    String::from_utf8(text).unwrap_or_default() // that writer writes ASCII only
}

#[cfg(test)]
mod tests {
    use super::super::rollup::tests::{refused, row};
    use super::*;

    /// 2026-11-30T00:00:00Z
    const MIDNIGHT: i64 = 1_795_996_800_000;

    /// Two days, two teams, two models; three refusals by two limits.
    fn rollups() -> [Rollup; 2] {
        let mut closed = Rollup::default();
        closed.add(&row(1, MIDNIGHT - 1, "org:a/team:x/user:u", "gpt-a")).unwrap();
        closed.add(&row(2, MIDNIGHT, "org:a/team:x/user:v", "gpt-b")).unwrap();
        closed.add(&refused(3, MIDNIGHT + 1, "org:a/team:x/user:v", "rpm")).unwrap();
        let mut open = Rollup::default();
        open.add(&row(4, MIDNIGHT + HOUR_MS, "org:a/team:y", "gpt-a")).unwrap();
        open.add(&refused(5, MIDNIGHT + HOUR_MS, "org:a/team:y", "rpm")).unwrap();
        open.add(&refused(6, MIDNIGHT + HOUR_MS, "__global", "usd")).unwrap();
        [closed, open]
    }

    fn ask(group_by: &[&str]) -> Query {
        Query {
            since: WallMs(MIDNIGHT - DAY_MS),
            until: WallMs(MIDNIGHT + DAY_MS),
            group_by: group_by.iter().map(|text| GroupBy::parse(text).unwrap()).collect(),
            node: None,
            model: None,
        }
    }

    fn answer(query: Query) -> Answer {
        let mut tally = query.tally();
        rollups().iter().for_each(|rollup| tally.add(rollup));
        tally.answer()
    }

    /// Names, requests and refusals of each group.
    fn groups(query: Query) -> Vec<(String, u64, u64)> {
        let text = |group: &Group| {
            let names: Vec<&str> = group.by.iter().map(|name| name.as_deref().unwrap_or("-")).collect();
            (names.join(" "), group.totals.requests, group.totals.refusals)
        };
        answer(query).groups.iter().map(text).collect()
    }

    fn expect(query: Query, expected: &[(&str, u64, u64)]) {
        let expected: Vec<_> = expected.iter().map(|(name, r, f)| ((*name).to_owned(), *r, *f)).collect();
        assert_eq!(groups(query), expected);
    }

    #[test]
    fn everything_is_one_group_with_its_money_and_tokens() {
        let answer = answer(ask(&[]));
        let [group] = answer.groups.as_slice() else { panic!("{answer:?}") };
        assert_eq!((group.totals.requests, group.totals.refusals, group.totals.cost_nanousd), (6, 3, 3 * 446_000));
        assert_eq!((group.totals.input_tokens, group.totals.output_tokens, answer.is_truncated), (300, 120, false));
    }

    #[test]
    fn groups_follow_nodes_models_and_time() {
        expect(ask(&["node:team"]), &[("__global", 1, 1), ("org:a/team:x", 3, 1), ("org:a/team:y", 2, 1)]);
        expect(
            ask(&["node:org", "model"]),
            &[("__global ", 1, 1), ("org:a ", 2, 2), ("org:a gpt-a", 2, 0), ("org:a gpt-b", 1, 0)],
        );
        expect(ask(&["day"]), &[("2026-11-29", 1, 0), ("2026-11-30", 5, 3)]);
        expect(
            ask(&["hour"]),
            &[("2026-11-29T23:00:00Z", 1, 0), ("2026-11-30T00:00:00Z", 2, 1), ("2026-11-30T01:00:00Z", 3, 2)],
        );
        expect(
            ask(&["upstream", "key", "endpoint"]),
            &[("- k1 chat.completions", 3, 3), ("up k1 chat.completions", 3, 0)],
        );
    }

    #[test]
    fn refusals_group_by_the_limit_that_refused_and_add_up() {
        expect(ask(&["limit"]), &[("-", 3, 0), ("rpm", 2, 2), ("usd", 1, 1)]);
        expect(
            ask(&["limit", "day"]),
            &[("- 2026-11-29", 1, 0), ("- 2026-11-30", 2, 0), ("rpm 2026-11-30", 2, 2), ("usd 2026-11-30", 1, 1)],
        );
    }

    #[test]
    fn rows_that_were_all_refused_leave_no_group_without_rows_and_their_latency_is_kept() {
        let query = ask(&["node:team", "limit"]);
        let latency_us: u64 = answer(query.clone()).groups.iter().map(|group| group.totals.latency_us).sum();
        assert_eq!(latency_us, 6 * 1_000);
        let of_x = [("org:a/team:x -", 2, 0), ("org:a/team:x rpm", 1, 1)];
        let of_y = [("org:a/team:y -", 1, 0), ("org:a/team:y rpm", 1, 1)];
        expect(query, &[&[("__global usd", 1, 1)], &of_x[..], &of_y[..]].concat());
    }

    #[test]
    fn filters_take_a_node_with_what_is_below_it_and_models_by_glob() {
        let team = Query { node: Some(Node::parse("org:a/team:x").unwrap()), ..ask(&["node"]) };
        expect(team, &[("org:a/team:x/user:u", 1, 0), ("org:a/team:x/user:v", 2, 1)]);
        expect(Query { model: Some(Glob::new("gpt-*")), ..ask(&["model"]) }, &[("gpt-a", 2, 0), ("gpt-b", 1, 0)]);
    }

    #[test]
    fn question_inside_an_hour_is_answered_for_the_whole_hour_and_says_so() {
        let query = Query { since: WallMs(MIDNIGHT + 5), until: WallMs(MIDNIGHT + 6), ..ask(&[]) };
        let answer = answer(query);
        assert_eq!((answer.since, answer.until), (WallMs(MIDNIGHT), WallMs(MIDNIGHT + HOUR_MS)));
        assert_eq!(answer.groups[0].totals.requests, 2);
    }

    #[test]
    fn words_that_group_nothing_are_not_parsed() {
        assert_eq!(GroupBy::parse("node:team"), Some(GroupBy::Node(Some(Level::Team))));
        for text in ["", "nodes", "node:", "node:key", "node:global", "month"] {
            assert_eq!(GroupBy::parse(text), None);
        }
    }

    #[test]
    fn more_groups_than_are_kept_apart_are_summed_and_the_answer_says_so() {
        let mut rollup = Rollup::default();
        let rows = GROUPS_MAX as u64 + 10;
        (1..=rows).for_each(|seq| {
            rollup.add(&row(seq, MIDNIGHT, "__global", &format!("m{seq}"))).unwrap();
        });
        let mut tally = ask(&["model"]).tally();
        tally.add(&rollup);
        let answer = tally.answer();
        assert!(answer.is_truncated && answer.groups.len() == GROUPS_MAX + 1);
        assert_eq!((answer.groups[0].by.as_slice(), answer.groups[0].totals.requests), ([None].as_slice(), 10));
    }
}

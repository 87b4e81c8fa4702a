//! "What was spent": groups and sums over rollups.
//!
//! Whole hours: a question that begins or ends inside one is widened to it, and the answer says which instants it
//! covers. Memory is bounded by the number of groups. The open segment's rollup is one among the others.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

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
    /// `node`, `node:team` (also global, org, user), `model`, `upstream`, `endpoint`, `key`, `limit`, `day`, `hour`.
    pub fn parse(text: &str) -> Option<GroupBy> {
        if let Some(level) = text.strip_prefix("node:") {
            return Level::parse(level).map(|level| GroupBy::Node(Some(level)));
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

/// A query being answered.
pub struct Tally {
    query: Query,
    groups: HashMap<Vec<Option<String>>, Totals>,
    is_truncated: bool,
}

impl Query {
    pub fn tally(mut self) -> Tally {
        self.since = WallMs(floor_hour(self.since.0));
        self.until = WallMs(floor_hour(self.until.0.saturating_add(HOUR_MS - 1)));
        Tally { query: self, groups: HashMap::new(), is_truncated: false }
    }
}

impl Tally {
    /// Adds a segment's sums. Each rollup once.
    pub fn add(&mut self, rollup: &Rollup) {
        let by_limit = self.query.group_by.contains(&GroupBy::Limit);
        let selected: Vec<bool> = rollup.scopes().iter().map(|scope| self.selects(scope)).collect();
        // Summed by number first: names are made once per group and segment, not once per hour of every scope.
        let mut sums: HashMap<(usize, WallMs, Option<&str>), Totals> = HashMap::new();
        for cell in rollup.cells() {
            let start = cell.start();
            if !selected[cell.scope()] || start < self.query.since || start >= self.query.until {
                continue;
            }
            let (scope, time) = (cell.scope(), self.time_of(start));
            let mut rest = cell.totals;
            for (limit, rows) in rollup.refused_by(cell).filter(|_| by_limit) {
                let refused = Totals { requests: rows, refusals: rows, ..Totals::default() };
                rest.requests = rest.requests.saturating_sub(rows);
                rest.refusals = rest.refusals.saturating_sub(rows);
                sums.entry((scope, time, Some(limit))).or_default().add(&refused);
            }
            if rest != Totals::default() {
                sums.entry((scope, time, None)).or_default().add(&rest);
            }
        }
        for ((scope, time, limit), totals) in sums {
            self.count(self.names(&rollup.scopes()[scope], time, limit), &totals);
        }
    }

    pub fn answer(self) -> Answer {
        let mut groups: Vec<Group> = self.groups.into_iter().map(|(by, totals)| Group { by, totals }).collect();
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

    fn names(&self, scope: &Scope, time: WallMs, limit: Option<&str>) -> Vec<Option<String>> {
        let name = |by: &GroupBy| match by {
            GroupBy::Node(None) => Some(scope.node.to_string()),
            GroupBy::Node(Some(level)) => Some(scope.node.at(*level).unwrap_or(scope.node.clone()).to_string()),
            GroupBy::Model => Some(scope.model.to_string()),
            GroupBy::Upstream => scope.upstream.as_deref().map(str::to_owned),
            GroupBy::Endpoint => Some(scope.endpoint.as_str().to_owned()),
            GroupBy::Key => scope.key_id.as_deref().map(str::to_owned),
            GroupBy::Limit => limit.map(str::to_owned),
            GroupBy::Day => rfc3339(time).split_once('T').map(|(day, _)| day.to_owned()),
            GroupBy::Hour => Some(rfc3339(time)),
        };
        self.query.group_by.iter().map(name).collect()
    }

    fn count(&mut self, mut names: Vec<Option<String>>, totals: &Totals) {
        if self.groups.len() >= GROUPS_MAX && !self.groups.contains_key(&names) {
            self.is_truncated = true;
            names.iter_mut().for_each(|name| *name = None);
        }
        self.groups.entry(names).or_default().add(totals);
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
        for text in ["", "nodes", "node:", "node:key", "month"] {
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

use super::*;
use shards::price::PriceSource;
use shards::row::{Decision, RefusedBy, RequestId, Row, encode};
use shards::scope::Endpoint;
use shards::suspend::Suspensions;
use shards::units::NanoUsd;
use shards::usage::{Usage, UsageSource};

/// 2026-11-30T00:00:00Z
const MIDNIGHT: i64 = 1_795_996_800_000;
const HOUR: i64 = 3_600_000;

fn row(seq: u64, end_ms: i64, node: &str, model: &str) -> Row {
    let usage = Usage { input: 100, output: 40, cached_input: 60, source: UsageSource::Reported, ..Usage::default() };
    Row {
        seq,
        ts: WallMs(end_ms - 5),
        end: WallMs(end_ms),
        request_id: RequestId::new(WallMs(end_ms), u128::from(seq)),
        node: Node::parse(node).unwrap(),
        key_id: None,
        endpoint: Endpoint::ChatCompletions,
        model: model.into(),
        upstream: Some("mock".into()),
        decision: Decision::Admitted,
        outcome: None,
        attempts: 1,
        refused_by: None,
        shadow: Default::default(),
        suspended: Suspensions::new(),
        status: 200,
        forwarded: true,
        stream: false,
        usage,
        cost: Some(NanoUsd(446_000)),
        price: PriceSource::Config,
        reserved_tokens: 0,
        latency_us: 10,
        first_byte_us: None,
        overhead_us: 1,
        traceparent: None,
    }
}

fn refused(seq: u64, end_ms: i64, node: &str) -> Row {
    let node = Node::parse(node).unwrap();
    let by = RefusedBy { limit_id: "cap".into(), node: node.clone(), limit_type: LimitType::Rpm };
    Row {
        decision: Decision::Refused,
        refused_by: Some(by),
        upstream: None,
        forwarded: false,
        usage: Usage::default(),
        cost: None,
        status: 429,
        ..row(seq, end_ms, node.as_str(), "")
    }
}

struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("tt-query-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        Dir(dir)
    }

    fn append(&self, segment: u64, rows: &[Row]) {
        use std::io::Write;
        let mut lines = Vec::new();
        rows.iter().for_each(|row| encode(row, "tt-a", &mut lines));
        let path = self.0.join(format!("decisions-{segment:020}.jsonl"));
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
        file.write_all(&lines).unwrap();
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn question(group_by: &[&str]) -> Question {
    let group_by: Vec<String> = group_by.iter().map(|part| (*part).to_owned()).collect();
    Question::new(WallMs(MIDNIGHT), WallMs(MIDNIGHT + 24 * HOUR), &group_by, None, None).unwrap()
}

fn coverage() -> Coverage {
    Coverage::one("tt-a", "live", "own_ledger", WallMs(MIDNIGHT))
}

#[test]
fn closed_segments_with_and_without_a_rollup_and_the_open_one_add_up() {
    let dir = Dir::new("segments");
    dir.append(1, &[row(1, MIDNIGHT + 1, "org:acme", "a"), row(2, MIDNIGHT + HOUR, "org:acme", "b")]);
    dir.append(3, &[row(3, MIDNIGHT + 2 * HOUR, "org:acme/team:ml", "a")]);
    dir.append(4, &[refused(4, MIDNIGHT + 2 * HOUR, "org:beta")]);
    let ledger = Ledger::at(&dir.0);
    let before = ledger.query(&question(&["node", "model"]), coverage()).unwrap();
    let names: Vec<_> =
        before.groups.iter().map(|line| (line.by["node"].clone().unwrap(), line.sums.requests)).collect();
    let expected = [("org:acme", 1), ("org:acme", 1), ("org:acme/team:ml", 1), ("org:beta", 1)];
    assert_eq!(names, expected.map(|(node, requests)| (node.to_owned(), requests)));
    assert_eq!((before.total.requests, before.total.refusals, before.total.forwarded), (4, 1, 3));
    assert_eq!(
        (before.total.cost_nanousd, before.total.tokens.input, before.total.tokens.cached_input),
        (1_338_000, 300, 180)
    );
    assert_eq!(before.total.cost_usd.to_string(), "0.001338");

    // The same rows from a rollup instead.
    let mut rollup = Rollup::default();
    for row in [row(1, MIDNIGHT + 1, "org:acme", "a"), row(2, MIDNIGHT + HOUR, "org:acme", "b")] {
        rollup.add(&row.facts()).unwrap();
    }
    std::fs::write(rollup_path(&dir.0, 1), rollup.encode()).unwrap();
    std::fs::write(dir.0.join("decisions-00000000000000000001.jsonl"), "").unwrap();
    assert_eq!(ledger.query(&question(&["node", "model"]), coverage()).unwrap(), before);
}

#[test]
fn rows_that_come_between_two_questions_are_counted_once() {
    let dir = Dir::new("grows");
    let ledger = Ledger::at(&dir.0);
    assert_eq!(ledger.query(&question(&[]), coverage()).unwrap().total.requests, 0, "no segment yet");
    dir.append(1, &[row(1, MIDNIGHT + 1, "org:acme", "a")]);
    for expected in [1, 1] {
        assert_eq!(ledger.query(&question(&[]), coverage()).unwrap().total.requests, expected);
    }
    dir.append(1, &[row(2, MIDNIGHT + 1, "org:acme", "a")]);
    assert_eq!(ledger.query(&question(&[]), coverage()).unwrap().total.requests, 2);
    dir.append(3, &[row(3, MIDNIGHT + 1, "org:acme", "a")]);
    assert_eq!(ledger.query(&question(&[]), coverage()).unwrap().total.requests, 3, "a segment later");
}

#[test]
fn a_corrupt_line_is_counted_and_a_half_written_one_waits() {
    let dir = Dir::new("corrupt");
    let path = dir.0.join("decisions-00000000000000000001.jsonl");
    let mut line = Vec::new();
    encode(&row(1, MIDNIGHT + 1, "org:acme", "a"), "tt-a", &mut line);
    std::fs::write(&path, [b"{broken}\n".as_slice(), &line[..100]].concat()).unwrap();
    let ledger = Ledger::at(&dir.0);
    let torn = ledger.query(&question(&[]), coverage()).unwrap();
    assert_eq!((torn.total.requests, torn.corrupt_rows), (0, 1));
    std::fs::write(&path, [b"{broken}\n".as_slice(), &line].concat()).unwrap();
    let whole = ledger.query(&question(&[]), coverage()).unwrap();
    assert_eq!((whole.total.requests, whole.corrupt_rows), (1, 1));
}

#[test]
fn segments_of_another_time_are_not_read_and_hide_nothing() {
    let dir = Dir::new("window");
    let day = 24 * HOUR;
    for (segment, at) in [(1, -9), (2, -3), (3, -1), (4, 0), (5, 3), (6, 9)] {
        dir.append(segment, &[row(segment, MIDNIGHT + at * day + 1, "org:acme", "a")]);
        let path = dir.0.join(format!("decisions-{segment:020}.jsonl"));
        let mut text = std::fs::read(&path).unwrap();
        text.extend_from_slice(b"{broken}\n");
        std::fs::write(&path, text).unwrap();
    }
    let ledger = Ledger::at(&dir.0);
    for _ in 0..2 {
        let spend = ledger.query(&question(&[]), coverage()).unwrap();
        // Looked into: 3 (ends when 4 begins) and 4; 2 because a clock may have been wrong by a day; and the open one.
        assert_eq!((spend.total.requests, spend.corrupt_rows), (1, 4));
    }
    let all = Question::new(WallMs(MIDNIGHT - 30 * day), WallMs(MIDNIGHT + 30 * day), &[], None, None).unwrap();
    let spend = ledger.query(&all, coverage()).unwrap();
    assert_eq!((spend.total.requests, spend.corrupt_rows), (6, 6));
}

#[test]
fn a_question_that_makes_no_sense_says_what_may_be_written() {
    let ask = |since: i64, group_by: &[&str], node: Option<&str>| {
        let group_by: Vec<String> = group_by.iter().map(|part| (*part).to_owned()).collect();
        Question::new(WallMs(since), WallMs(10), &group_by, node, None).map(|_| ()).unwrap_err()
    };
    assert!(ask(10, &[], None).starts_with("since: "));
    assert!(ask(0, &["colour"], None).contains("node:team, node:user, model"));
    assert!(ask(0, &["model", "model"], None).contains("twice"));
    assert!(ask(0, &[], Some("acme")).starts_with("node: it "));
    assert!(ask(0, &["model"; 9], None).contains("at most 8"));
}

#[test]
fn the_answers_of_two_replicas_add_up_group_by_group() {
    let (one, other) = (Dir::new("add-one"), Dir::new("add-other"));
    one.append(1, &[row(1, MIDNIGHT + 1, "org:a", "x"), row(2, MIDNIGHT + 1, "org:b", "x")]);
    other.append(1, &[row(1, MIDNIGHT + 1, "org:b", "x"), row(2, MIDNIGHT + 1, "org:c", "x")]);
    let question = question(&["node"]);
    let ask = |dir: &Dir| Ledger::at(&dir.0).query(&question, coverage()).unwrap();
    let (mut sum, alone) = (ask(&one), ask(&one));
    sum.add(ask(&other));
    let nodes: Vec<_> = sum.groups.iter().map(|line| (line.by["node"].clone().unwrap(), line.sums.requests)).collect();
    assert_eq!(nodes, [("org:a".to_owned(), 1), ("org:b".to_owned(), 2), ("org:c".to_owned(), 1)]);
    assert_eq!((sum.total.requests, sum.total.cost_nanousd), (4, 2 * alone.total.cost_nanousd));
    assert_eq!(sum.total.cost_usd, me::amount(LimitType::BudgetUsd, sum.total.cost_nanousd));
    // A peer may say anything.
    let mut absurd = ask(&other);
    absurd.total.requests = u64::MAX;
    sum.add(absurd);
    assert_eq!(sum.total.requests, u64::MAX);
}

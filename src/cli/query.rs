//! `tokentriage query`: what was used and spent, from the ledger of the configuration or through a running replica.
//!
//! Reads a ledger's files without its lock, so it works beside a running gateway and without one.

use std::io::Write;

use shards::refusal::text;
use shards::units::WallMs;

use super::remote::Remote;
use super::table::{Align, csv, table};
use super::{Failure, Outcome, QueryArgs, print};
use crate::config::{Config, Origin, Surroundings, resolve_replica};
use crate::ledger_query::{Coverage, Ledger, Question, Spend, Sums};
use crate::when;

/// How the answer is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    Table,
    Json,
    Csv,
}

/// What is asked, in the words of the API.
pub struct Ask {
    pub since: WallMs,
    pub until: WallMs,
    pub group_by: Vec<String>,
    pub node: Option<String>,
    pub model: Option<String>,
    /// Every replica, through the one that is asked.
    pub fleet: bool,
}

pub fn run(args: QueryArgs) -> Outcome {
    let now = WallMs(io::clock::wall_ms());
    let ask = Ask {
        since: args.since.ago(now),
        until: args.until.map_or(WallMs(now.0.saturating_add(1)), |until| until.ago(now)),
        group_by: args.group_by,
        node: args.node.map(|node| node.to_string()),
        model: args.model,
        fleet: args.fleet,
    };
    let shape = match (args.output.json, args.csv) {
        (true, _) => Shape::Json,
        (false, true) => Shape::Csv,
        (false, false) => Shape::Table,
    };
    let spend = match Remote::of(&args.at)? {
        Some(replica) => through(&replica, &ask)?,
        None if ask.fleet => through(&Remote::of_or_configured(&args.at)?, &ask)?,
        None => from_files(&Origin::find(args.at.config()).load()?.config, &ask)?,
    };
    show(&spend, shape)
}

/// The answer of a running replica.
pub fn through(replica: &Remote, ask: &Ask) -> Result<Spend, Failure> {
    let mut params = vec![
        ("since", when::text(ask.since)),
        ("until", when::text(ask.until)),
        ("group_by", ask.group_by.join(",")),
        ("fleet", ask.fleet.to_string()),
    ];
    params.extend(ask.node.clone().map(|node| ("node", node)));
    params.extend(ask.model.clone().map(|model| ("model", model)));
    replica.get("/tt/api/v1/query", &params)
}

/// The answer of the files.
pub fn from_files(config: &Config, ask: &Ask) -> Result<Spend, Failure> {
    let question = Question::new(ask.since, ask.until, &ask.group_by, ask.node.as_deref(), ask.model.as_deref())
        .map_err(|wrong| Failure::Refused(format!("--{}", wrong.replacen("group_by", "group-by", 1))))?;
    let dir = config.ledger_dir();
    if !dir.is_dir() {
        let message = "there is no ledger; start the gateway once, or name its configuration with -c";
        return Err(Failure::Refused(format!("{}: {message}", dir.display())));
    }
    let replica = resolve_replica(&config.replica, &Surroundings::of_process());
    let name = replica.map_or_else(|bad| bad.value, |replica| replica.name);
    let coverage = Coverage::one(&name, "offline", "ledger_files", WallMs(io::clock::wall_ms()));
    Ledger::at(&dir).query(&question, coverage).map_err(|error| Failure::Runtime(error.to_string()))
}

/// Writes the answer to stdout and what it does not say in numbers to stderr. A sum that lacks a replica, or may, ends in its
/// own way, after it was printed.
pub fn show(spend: &Spend, shape: Shape) -> Outcome {
    match shape {
        Shape::Json => print(&(serde_json::to_string_pretty(spend).unwrap_or_default() + "\n"))?,
        Shape::Csv => print(&as_csv(spend))?,
        Shape::Table => print(&as_table(spend))?,
    }
    let _ = std::io::stderr().write_all(notes(spend).as_bytes()); // with stderr closed there is nobody to tell
    let Coverage { is_partial, replicas_answered, replicas_total, note, .. } = &spend.coverage;
    if *is_partial {
        let of_whom = if note.is_some() { "replicas that are known" } else { "replicas" };
        let what = format!("the answer is partial: {replicas_answered} of {replicas_total} {of_whom} are in it");
        return Err(Failure::Partial(what));
    }
    Ok(())
}

fn as_table(spend: &Spend) -> String {
    let headings: Vec<String> = spend.group_by.iter().map(|part| part.to_uppercase()).collect();
    let mut columns: Vec<(&str, Align)> = headings.iter().map(|name| (name.as_str(), Align::Left)).collect();
    let sums = ["REQUESTS", "REFUSED", "ERRORS", "INPUT", "CACHED", "OUTPUT", "USD"];
    columns.extend(sums.map(|name| (name, Align::Right)));
    // Beside the amount that lacks them, where a script that keeps the table alone finds it.
    let has_unpriced = spend.total.unpriced > 0;
    columns.extend(has_unpriced.then_some(("UNPRICED", Align::Right)));
    let numbers = |sums: &Sums| {
        let tokens = &sums.tokens;
        let counts = [sums.requests, sums.refusals, sums.errors, tokens.input, tokens.cached_input, tokens.output]
            .map(|n| n.to_string());
        let unpriced = has_unpriced.then(|| sums.unpriced.to_string());
        counts.into_iter().chain([usd(sums.cost_nanousd)]).chain(unpriced).collect::<Vec<_>>()
    };
    let mut lines: Vec<Vec<String>> = spend
        .groups
        .iter()
        .map(|group| {
            let names =
                spend.group_by.iter().map(|part| group.by.get(part).cloned().flatten().unwrap_or("-".to_owned()));
            names.chain(numbers(&group.sums)).collect()
        })
        .collect();
    if !spend.group_by.is_empty() {
        let names = spend.group_by.iter().enumerate();
        let names = names.map(|(index, _)| if index == 0 { "total".to_owned() } else { String::new() });
        lines.push(names.chain(numbers(&spend.total)).collect());
    } else if lines.is_empty() {
        lines.push(numbers(&spend.total));
    }
    table(&columns, &lines)
}

fn as_csv(spend: &Spend) -> String {
    let mut columns: Vec<&str> = spend.group_by.iter().map(String::as_str).collect();
    columns.extend([
        "requests",
        "refusals",
        "errors",
        "forwarded",
        "input_tokens",
        "output_tokens",
        "cached_input_tokens",
        "cache_write_tokens",
        "reasoning_tokens",
        "cost_usd",
        "unpriced",
    ]);
    let line = |group: &crate::ledger_query::Line| {
        let (sums, tokens) = (&group.sums, &group.sums.tokens);
        let names = spend.group_by.iter().map(|part| group.by.get(part).cloned().flatten().unwrap_or_default());
        let counts = [sums.requests, sums.refusals, sums.errors, sums.forwarded, tokens.input, tokens.output];
        let parts = [tokens.cached_input, tokens.cache_write, tokens.reasoning];
        let numbers = counts.into_iter().chain(parts).map(|count| count.to_string());
        names.chain(numbers).chain([usd(sums.cost_nanousd), sums.unpriced.to_string()]).collect()
    };
    csv(&columns, &spend.groups.iter().map(line).collect::<Vec<Vec<String>>>())
}

/// What a reader of the numbers must know.
fn notes(spend: &Spend) -> String {
    let coverage = &spend.coverage;
    let (answered, total) = (coverage.replicas_answered, coverage.replicas_total);
    let mut notes =
        format!("{} to {}, {answered} of {total} replicas ({})\n", spend.since, spend.until, coverage.basis);
    let silent =
        coverage.replicas.iter().filter_map(|replica| Some((&replica.id, &replica.state, replica.error.as_ref()?)));
    for (id, state, error) in silent {
        notes.push_str(&format!("partial: {id} is {state}: {error}\n"));
    }
    if let Some(note) = &coverage.note {
        notes.push_str(&format!("partial: {note}\n"));
    }
    if spend.total.unpriced > 0 {
        notes.push_str(&format!("{} requests have no known price and are not in the cost\n", spend.total.unpriced));
    }
    if spend.is_truncated {
        notes.push_str("there are more groups than are kept apart; the rest is in the group without names\n");
    }
    if spend.corrupt_rows > 0 {
        notes.push_str(&format!("{} lines of the ledger could not be read and are in no sum\n", spend.corrupt_rows));
    }
    notes
}

fn usd(nanousd: u64) -> String {
    let mut digits = Vec::new();
    text::usd(nanousd, &mut digits);
    String::from_utf8(digits).unwrap_or_default() // digits and a point
}

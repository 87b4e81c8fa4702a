//! `tokentriage fleet`: the roster of a running replica, and removing one that is gone. Both through the admin port: a
//! removal is audited there.

use std::io::Write;

use serde_json::{Value, json};

use super::remote::Remote;
use super::table::{Align, table};
use super::{DecommissionArgs, FleetArgs, FleetCommand, FleetListArgs, Outcome, print};

const PATH: &str = "/tt/api/v1/fleet";

pub fn run(args: FleetArgs) -> Outcome {
    match args.command {
        FleetCommand::List(args) => list(&args),
        FleetCommand::Decommission(args) => decommission(&args),
    }
}

fn list(args: &FleetListArgs) -> Outcome {
    let replica = Remote::of_or_configured(&args.at)?;
    let roster: Value = replica.get(PATH, &[])?;
    if args.output.json {
        return print(&pretty(&roster));
    }
    let columns = ["REPLICA", "STATE", "VERSION", "STARTED", "URL"].map(|name| (name, Align::Left));
    let columns = [&columns[..2], &[("AGE", Align::Right)], &columns[2..]].concat();
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let lines: Vec<Vec<String>> = members(&roster["replicas"])
        .map(|replica| {
            let age = replica["age_ms"].as_u64().map_or("-".to_owned(), |ms| format!("{:.1}s", ms as f64 / 1e3));
            vec![
                text(&replica["id"]),
                text(&replica["state"]),
                age,
                text(&replica["version"]),
                text(&replica["started_at"]),
                text(&replica["advertise_url"]),
            ]
        })
        .collect();
    print(&table(&columns, &lines))?;
    let note = roster["note"].as_str().unwrap_or_default().to_owned();
    let suspended = roster["suspended"].as_str().map(|reason| format!(" ({reason})")).unwrap_or_default();
    let note = if note.is_empty() { note } else { format!(": {note}") };
    let as_of = roster["as_of"].as_str().filter(|_| roster["degraded"] == true);
    let as_of = as_of.map(|as_of| format!(", as of {as_of}")).unwrap_or_default();
    let line = format!("{} live{suspended}{as_of}{note}\n", text(&roster["summary"]));
    let _ = std::io::stderr().write_all(line.as_bytes()); // with stderr closed there is nobody to tell
    Ok(())
}

fn decommission(args: &DecommissionArgs) -> Outcome {
    let replica = Remote::of_or_configured(&args.at)?;
    let body = json!({"replica": args.replica, "force": args.force});
    let removed: Value = replica.post(&format!("{PATH}/decommission"), &body)?;
    if args.output.json {
        return print(&pretty(&removed));
    }
    if let Some(note) = removed["note"].as_str() {
        let _ = std::io::stderr().write_all(format!("{}: {note}\n", args.replica).as_bytes()); // as in `list`
    }
    let mut text = match removed["state"].as_str() {
        Some(state) => format!("{} is removed; it was {state}\n", args.replica),
        None => format!("{} is removed; it was not on the roster\n", args.replica),
    };
    if members(&removed["dropped"]).next().is_none() {
        text += "nothing it burned was still counted\n";
        return print(&text);
    }
    text += "what it burned in running periods no longer counts:\n";
    let columns = [("LIMIT", Align::Left), ("NODE", Align::Left), ("PERIOD", Align::Left), ("BURN", Align::Right)];
    let word = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let lines: Vec<Vec<String>> = members(&removed["dropped"])
        .map(|line| vec![word(&line["limit_id"]), word(&line["node"]), word(&line["period"]), line["burn"].to_string()])
        .collect();
    text += &table(&columns, &lines);
    print(&text)
}

fn members(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default() + "\n"
}

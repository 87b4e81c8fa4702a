//! `GET /tt/api/v1/query`: what was used and spent. Also how handlers read their parameters.

mod fan_out;

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use serde::Deserialize;
use shards::scope::Node;
use shards::units::WallMs;

use super::answer::{Answer, Fault, ok, reading};
use super::{Admin, now};
use crate::ledger_query::{Coverage, Question};
use crate::when::{When, text};

/// Asked for when `since` is not given.
const SINCE: &str = "24h";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Params {
    since: Option<String>,
    until: Option<String>,
    /// Comma-separated.
    group_by: Option<String>,
    node: Option<String>,
    model: Option<String>,
    #[serde(default)]
    fleet: bool,
}

pub async fn answer(State(admin): State<Arc<Admin>>, params: Result<Query<Params>, QueryRejection>) -> Answer {
    let params = self::params(params)?;
    let wall = now().wall;
    let since = when("since", params.since.as_deref().unwrap_or(SINCE))?.ago(wall);
    let until = params.until.as_deref().map(|text| when("until", text)).transpose()?;
    let until = until.map_or(WallMs(wall.0.saturating_add(1)), |until| until.ago(wall));
    let group_by: Vec<String> = match params.group_by.as_deref() {
        None | Some("") => Vec::new(),
        Some(list) => list.split(',').map(|part| part.trim().to_owned()).collect(),
    };
    let question = Question::new(since, until, &group_by, params.node.as_deref(), params.model.as_deref())
        .map_err(|wrong| Fault::bad_request(wrong, "see /tt/api/v1/openapi.json"))?;
    // The fleet of a single node is itself: the sums are the same, and so is the coverage.
    let basis = if params.fleet { "fleet_of_one" } else { "own_ledger" };
    let of = admin.clone();
    let spend = reading(move || {
        let coverage = Coverage::one(&of.shared().replica.name, "live", basis, wall);
        of.ledger.query(&question, coverage)
    });
    let spend = spend.await?.map_err(Fault::storage)?;
    if !params.fleet {
        return ok(&spend);
    }
    let mut asked = vec![("since", text(since)), ("until", text(until)), ("group_by", group_by.join(","))];
    asked.extend(params.node.map(|node| ("node", node)));
    asked.extend(params.model.map(|model| ("model", model)));
    ok(&fan_out::ask(admin, spend, asked).await?)
}

/// The parameters, or which one is wrong.
pub fn params<T>(params: Result<Query<T>, QueryRejection>) -> Result<T, Fault> {
    match params {
        Ok(Query(params)) => Ok(params),
        Err(rejection) => {
            let text = rejection.body_text();
            let wrong = text.strip_prefix("Failed to deserialize query string: ").unwrap_or(&text).to_owned();
            Err(Fault::bad_request(wrong, "see /tt/api/v1/openapi.json for the parameters"))
        }
    }
}

/// A node in a parameter.
pub fn node(text: &str) -> Result<Node, Fault> {
    Node::parse(text).map_err(|error| {
        Fault::bad_request(format!("node: it {error}"), "write a node such as org:acme or org:acme/team:ml/user:dev1")
    })
}

fn when(name: &str, text: &str) -> Result<When, Fault> {
    text.parse().map_err(|remedy: String| Fault::bad_request(format!("{name}: `{text}` is no point in time"), remedy))
}

//! Rollup files of the first format: one JSON document. Read, never written.

use std::borrow::Cow;

use serde::Deserialize;

use super::super::totals::Numbers;
use super::super::{Cell, Rollup, Scope, Totals};
use super::RollupError;
use crate::scope::{Endpoint, Node};

const VERSION: u32 = 1;

pub(super) fn decode(bytes: &[u8]) -> Result<Rollup, RollupError> {
    let json: RollupJson<'_> = serde_json::from_slice(bytes)?;
    if json.v != VERSION {
        return Err(RollupError::Version(json.v));
    }
    let scopes: Vec<Scope> =
        json.scopes.into_iter().map(ScopeJson::read).collect::<Option<_>>().ok_or(RollupError::Inconsistent)?;
    let cell = |CellJson(hour, scope, numbers, refused_by): CellJson| Cell {
        hour,
        scope,
        totals: Totals::from_numbers(numbers),
        refused_by: refused_by.into(),
    };
    let cells: Vec<Cell> = json.cells.into_iter().map(cell).collect();
    if cells.iter().any(|cell| cell.scope as usize >= scopes.len()) {
        return Err(RollupError::Inconsistent);
    }
    Ok(Rollup {
        first_seq: json.first_seq,
        last_seq: json.last_seq,
        newest: vec![u32::MAX; scopes.len()],
        scopes,
        cells,
        limit_ids: json.limits.into_iter().map(|id| id.into_owned().into()).collect(),
        ..Rollup::default()
    })
}

#[derive(Deserialize)]
struct RollupJson<'a> {
    v: u32,
    first_seq: u64,
    last_seq: u64,
    limits: Vec<Cow<'a, str>>,
    #[serde(borrow)]
    scopes: Vec<ScopeJson<'a>>,
    cells: Vec<CellJson>,
}

/// Node, key, model, upstream, endpoint.
#[derive(Deserialize)]
struct ScopeJson<'a>(
    #[serde(borrow)] Cow<'a, str>,
    Option<Cow<'a, str>>,
    #[serde(borrow)] Cow<'a, str>,
    Option<Cow<'a, str>>,
    #[serde(borrow)] Cow<'a, str>,
);

impl ScopeJson<'_> {
    fn read(self) -> Option<Scope> {
        let ScopeJson(node, key_id, model, upstream, endpoint) = self;
        Some(Scope {
            node: Node::parse(&node).ok()?,
            key_id: key_id.map(|text| text.into()),
            model: model.into(),
            upstream: upstream.map(|text| text.into()),
            endpoint: Endpoint::parse(&endpoint)?,
        })
    }
}

/// Hour, scope, sums, refusals by limit.
#[derive(Deserialize)]
struct CellJson(i64, u32, Numbers, Vec<(u32, u64)>);

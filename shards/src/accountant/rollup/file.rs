//! A rollup as a file: one JSON document, texts once, cells as bare numbers.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::totals::Numbers;
use super::{Cell, Rollup, Scope, Totals};
use crate::scope::{Endpoint, Node};

const VERSION: u32 = 1;

/// Why bytes are no rollup. The remedy is always the same: rebuild it from the segment.
#[derive(Debug, thiserror::Error)]
pub enum RollupError {
    #[error("not a rollup: {0}")]
    Json(#[from] serde_json::Error),
    #[error("rollup format {0} is not known to this version")]
    Version(u32),
    #[error("rollup names a node, an endpoint or an index that does not exist")]
    Inconsistent,
}

impl Rollup {
    /// The rollup as a file: one JSON document.
    pub fn encode(&self) -> Vec<u8> {
        let json = RollupJson {
            v: VERSION,
            first_seq: self.first_seq,
            last_seq: self.last_seq,
            limits: self.limit_ids.iter().map(|id| (&**id).into()).collect(),
            scopes: self.scopes.iter().map(ScopeJson::of).collect(),
            cells: self
                .cells
                .iter()
                .map(|cell| CellJson(cell.hour, cell.scope, cell.totals.to_numbers(), cell.refused_by.to_vec()))
                .collect(),
        };
        serde_json::to_vec(&json).expect("numbers and strings always become JSON")
    }

    /// Reads a file that [`Rollup::encode`] made.
    pub fn decode(bytes: &[u8]) -> Result<Rollup, RollupError> {
        let json: RollupJson<'_> = serde_json::from_slice(bytes)?;
        if json.v != VERSION {
            return Err(RollupError::Version(json.v));
        }
        let scopes: Vec<Scope> =
            json.scopes.into_iter().map(ScopeJson::read).collect::<Option<_>>().ok_or(RollupError::Inconsistent)?;
        let cells: Vec<Cell> = json
            .cells
            .into_iter()
            .map(|CellJson(hour, scope, numbers, refused_by)| Cell {
                hour,
                scope,
                totals: Totals::from_numbers(numbers),
                refused_by: refused_by.into(),
            })
            .collect();
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
            // A rollup that was read back is complete: nothing is added to it.
            ..Rollup::default()
        })
    }
}

#[derive(Serialize, Deserialize)]
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
#[derive(Serialize, Deserialize)]
struct ScopeJson<'a>(
    #[serde(borrow)] Cow<'a, str>,
    Option<Cow<'a, str>>,
    #[serde(borrow)] Cow<'a, str>,
    Option<Cow<'a, str>>,
    #[serde(borrow)] Cow<'a, str>,
);

impl ScopeJson<'_> {
    fn of(scope: &Scope) -> ScopeJson<'_> {
        ScopeJson(
            scope.node.as_str().into(),
            scope.key_id.as_deref().map(Cow::Borrowed),
            (&*scope.model).into(),
            scope.upstream.as_deref().map(Cow::Borrowed),
            scope.endpoint.as_str().into(),
        )
    }

    fn read(self) -> Option<Scope> {
        let ScopeJson(node, key_id, model, upstream, endpoint) = self;
        Some(Scope {
            node: Node::parse(&node).ok()?,
            key_id: key_id.map(|text| text.into_owned().into()),
            model: model.into_owned().into(),
            upstream: upstream.map(|text| text.into_owned().into()),
            endpoint: Endpoint::parse(&endpoint)?,
        })
    }
}

/// Hour, scope, sums, refusals by limit.
#[derive(Serialize, Deserialize)]
struct CellJson(i64, u32, Numbers, Vec<(u32, u64)>);

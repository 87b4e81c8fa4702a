//! A folder's meters as plain data: what a restart takes up instead of reading the whole period again.
//!
//! Serde data without behaviour. A checkpoint that cannot be read is no loss: the rollups hold the same sums.

use serde::{Deserialize, Serialize};

use super::fold::Spent;
use crate::meter::PeriodSpan;
use crate::scope::Node;
use crate::units::WallMs;

const VERSION: u32 = 1;

/// A byte in the ledger, as the ledger's files count: the segment's first sequence number, and an offset in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct LedgerPosition {
    pub segment: u64,
    pub offset: u64,
}

/// Meters, complete up to a row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    v: u32,
    /// Where the next row begins.
    pub position: LedgerPosition,
    /// The last row that the meters hold.
    pub metered_seq: u64,
    /// The limits they are complete for, scopes without any burn left out.
    pub(super) limits: Vec<LimitJson>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LimitJson {
    pub(super) identity: String,
    pub(super) scopes: Vec<ScopeJson>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ScopeJson {
    pub(super) node: String,
    /// Start, end, amount, rows of each period that is kept.
    spent: Vec<(WallMs, WallMs, u64, u64)>,
}

impl Checkpoint {
    pub(super) fn new(position: LedgerPosition, metered_seq: u64, limits: Vec<LimitJson>) -> Checkpoint {
        Checkpoint { v: VERSION, position, metered_seq, limits }
    }

    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("numbers and strings always become JSON")
    }

    /// `None` for anything this version did not write.
    pub fn decode(bytes: &[u8]) -> Option<Checkpoint> {
        serde_json::from_slice(bytes).ok().filter(|checkpoint: &Checkpoint| checkpoint.v == VERSION)
    }
}

impl ScopeJson {
    pub(super) fn new(node: &Node, spent: &[Spent]) -> ScopeJson {
        let spent = spent.iter().map(|spent| (spent.period.start, spent.period.end, spent.amount, spent.rows));
        ScopeJson { node: node.to_string(), spent: spent.collect() }
    }

    pub(super) fn spent(&self) -> impl Iterator<Item = Spent> {
        self.spent.iter().map(|&(start, end, amount, rows)| Spent { period: PeriodSpan { start, end }, amount, rows })
    }
}

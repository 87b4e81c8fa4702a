//! The words between a replica and the store: scopes, cells, what is asked and what is answered.
//!
//! A cell is kept as text, `<burn> <rows> <rows of the last flush> <beat µs> <replica>`, under its ledger's id. Whoever
//! carries the words (Redis scripts) is not known here.

use compact_str::CompactString;

pub use crate::coordinate::key::ScopeHash;
use crate::limit::Calendar;
use crate::meter::PeriodSpan;
use crate::units::WallMs;

/// One ledger's burn of one scope in one period.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CellSeen {
    pub ledger: CompactString,
    /// Who published it last.
    pub replica: CompactString,
    /// Nano-USD, tokens or rows.
    pub burn: u64,
    pub rows: u64,
    /// Rows that were new in its last publication.
    pub flush_rows: u64,
    /// The store's clock at its last publication.
    pub beat_us: u64,
}

impl CellSeen {
    /// `None` for anything that no publication writes.
    pub fn parse(ledger: &str, text: &str) -> Option<CellSeen> {
        let mut parts = text.splitn(5, ' ');
        let mut number = || parts.next()?.parse::<u64>().ok();
        let (burn, rows, flush_rows, beat_us) = (number()?, number()?, number()?, number()?);
        let replica = parts.next()?;
        let fits = |text: &str| !text.is_empty() && text.len() <= 64 && !text.contains(' ');
        (fits(replica) && fits(ledger)).then(|| CellSeen {
            ledger: ledger.into(),
            replica: replica.into(),
            burn,
            rows,
            flush_rows,
            beat_us,
        })
    }
}

/// One script to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Job {
    /// Who changed what since, in each calendar's running period: (calendar, its start, score read up to).
    Changed { indexes: [(Calendar, WallMs, u64); 5] },
    /// Sets our cell, notes the scope in the index, gives all cells.
    Publish {
        scope: ScopeHash,
        calendar: Calendar,
        period: PeriodSpan,
        burn: u64,
        rows: u64,
        /// Of this process: a larger burn that the cell has already is kept.
        is_first: bool,
    },
    /// Gives all cells.
    Read { scope: ScopeHash, calendar: Calendar, period: PeriodSpan },
    /// Brings a peer's cell back that the store lost, and gives all cells; without that one if it was purged by name.
    Restore { scope: ScopeHash, calendar: Calendar, period: PeriodSpan, cell: CellSeen },
}

/// What came back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    Changes(Changes),
    Cells(Cells),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    pub now_us: u64,
    /// Another number than last time: the store began from nothing in between.
    pub generation: u64,
    /// Per calendar, in the order they were asked for: scopes and their scores, oldest first.
    pub indexes: [Vec<(ScopeHash, u64)>; 5],
    /// At most so many per index; as many means there may be more.
    pub page: usize,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cells {
    pub now_us: u64,
    /// As in [`Changes`]; 0: the store has none yet. Without it, a store that has just lost everything would seem to say
    /// that the peers' cells were removed.
    pub generation: u64,
    /// The scope's place in the index.
    pub score: u64,
    pub cells: Vec<CellSeen>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_cell_is_read_back_and_nonsense_is_not() {
        let cell = CellSeen::parse("1f", "446000 3 2 1700000000000000 tt-gov-a").unwrap();
        assert_eq!((cell.burn, cell.rows, cell.flush_rows, cell.beat_us), (446_000, 3, 2, 1_700_000_000_000_000));
        assert_eq!((cell.ledger.as_str(), cell.replica.as_str()), ("1f", "tt-gov-a"));
        for bad in ["", "1 2 3 4", "1 2 3 4 ", "-1 2 3 4 a", "1 2 3 x a", "1 2 3 4 a b", "18446744073709551616 0 0 0 a"]
        {
            assert_eq!(CellSeen::parse("1f", bad), None, "{bad}");
        }
        assert_eq!(CellSeen::parse("", "1 2 3 4 a"), None);
    }

    proptest! {
        #[test]
        fn a_scope_is_read_back_from_its_digits(bytes: [u8; 16]) {
            prop_assert_eq!(ScopeHash::parse(&ScopeHash(bytes).to_string()), Some(ScopeHash(bytes)));
        }

        #[test]
        fn any_text_is_read_without_harm(text: String, ledger: String) {
            let _ = (ScopeHash::parse(&text), CellSeen::parse(&ledger, &text));
        }
    }
}

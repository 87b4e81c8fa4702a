//! A scope in one period: what this replica burned there, what each peer's ledger says, and the sum for the meter.

use smallvec::SmallVec;

use super::{CellSeen, DEPARTED_US, FLUSH_NS, ScopeHash, Term};
use crate::limit::Calendar;
use crate::meter::PeriodSpan;
use crate::units::{MonoNs, WallMs};

/// A scope in one period. Its calendar follows from the scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) scope: ScopeHash,
    pub(super) start: WallMs,
}

/// All cells of one scope in one period, as last seen.
#[derive(Debug)]
pub(super) struct Scope {
    pub(super) calendar: Calendar,
    pub(super) period: PeriodSpan,
    pub(super) own: Option<Own>,
    pub(super) peers: SmallVec<[Peer; 2]>,
    /// The scope's place in the index when its cells were read: nothing older needs reading.
    pub(super) seen_score: u64,
}

/// Our own cell.
#[derive(Debug, Default)]
pub(super) struct Own {
    pub(super) burn: u64,
    pub(super) rows: u64,
    /// What this ledger had published before it lost rows (a power cut, a disk that was full): spent all the same.
    pub(super) lost_burn: u64,
    pub(super) lost_rows: u64,
    pub(super) sent: Option<Sent>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) burn: u64,
    pub(super) rows: u64,
    /// Rows that were new in it.
    pub(super) flush_rows: u64,
    pub(super) at: MonoNs,
}

/// A peer's cell.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    pub(super) cell: CellSeen,
    /// How old its beat was, by the store's clock, when it was read.
    pub(super) age_us: u64,
    pub(super) read_at: MonoNs,
    /// The store lost it; it counts on until its replica publishes again, or somebody who remembers it brings it back.
    pub(super) is_kept: bool,
}

impl Scope {
    pub(super) fn new(calendar: Calendar, period: PeriodSpan) -> Scope {
        Scope { calendar, period, own: None, peers: SmallVec::new(), seen_score: 0 }
    }

    pub(super) fn term(&self, scope: ScopeHash, now: MonoNs) -> Term {
        let own = self.own.as_ref();
        let burn = self.peers.iter().fold(0_u64, |sum, peer| sum.saturating_add(peer.cell.burn));
        let lag = |peer: &Peer| peer.cell.flush_rows.saturating_mul(peer.age_at(now).min(DEPARTED_US) / 1_000);
        Term {
            scope,
            calendar: self.calendar,
            period: self.period,
            remote: burn.saturating_add(own.map_or(0, |own| own.lost_burn)),
            published_rows: own.and_then(|own| Some(own.sent?.rows.saturating_sub(own.lost_rows))).unwrap_or(0),
            lag_row_ms: self.peers.iter().map(lag).fold(0, u64::saturating_add),
            lag_rows_per_s: self.peers.iter().map(|peer| peer.cell.flush_rows).fold(0, u64::saturating_add),
            as_of: now,
        }
    }
}

impl Own {
    pub(super) fn is_unsent(&self) -> bool {
        let (burn, rows) = (self.burn.saturating_add(self.lost_burn), self.rows.saturating_add(self.lost_rows));
        self.sent.is_none_or(|sent| sent.burn != burn || sent.rows != rows)
    }

    pub(super) fn unsent_rows(&self) -> u64 {
        let rows = self.rows.saturating_add(self.lost_rows);
        rows.saturating_sub(self.sent.map_or(0, |sent| sent.rows))
    }

    /// When it is to be published next; `None` when there is nothing to say.
    pub(super) fn due_ns(&self) -> Option<u64> {
        let Some(sent) = self.sent else { return Some(0) };
        (self.is_unsent() || sent.flush_rows > 0).then(|| sent.at.0.saturating_add(FLUSH_NS))
    }
}

impl Peer {
    pub(super) fn age_at(&self, now: MonoNs) -> u64 {
        self.age_us.saturating_add(now.since(self.read_at) / 1_000)
    }
}

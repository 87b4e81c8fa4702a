//! From rows to what the gates and the operator read: meters, rollups, answers.
//!
//! Pure folding. The accountant core hands in rows in the order it wrote them; which core that is, where the rows
//! lie and when to sync them is not known here.
//!
//! - [`Folder`] adds rows to the meters of the limits they count in, and to the open segment's [`Rollup`];
//! - [`Checkpoint`] is a folder's meters as plain data, for the next start;
//! - [`Query`] answers "what was spent" from rollups;
//! - [`period_of`] is the calendar all of them share.

mod checkpoint;
mod fold;
mod period;
mod query;
mod rollup;

pub use checkpoint::{Checkpoint, LedgerPosition};
pub use fold::{Burn, Folder};
pub use period::period_of;
pub use query::{Answer, Group, GroupBy, Query, Tally};
pub use rollup::{Cell, OTHER_MODEL, Rollup, RollupError, Scope, Totals};

//! Blank rows: the boxes of rows that the accountant is done with, on their way back to the core that fills them again.
//!
//! A row is 440 bytes and would be copied a dozen times between its request and the ledger, and a ring that held rows
//! themselves would go through 1.8 MB again and again: more than a core's cache has room for. So the ring carries boxes,
//! and a core that works at its limit has a few hundred of them, which stay where they are.

use std::sync::{Mutex, PoisonError};

use shards::row::Row;

/// Boxes that lie here for one core: as many as come back at once at half a million rows a second. 1,024 x 440 B = 0.45 MB.
const KEPT_MAX: usize = 1_024;

/// What the accountant gives back to one core.
#[derive(Default)]
#[allow(clippy::vec_box)] // a request takes the box, not what is in it
pub struct Blanks(Mutex<Vec<Box<Row>>>);

impl Blanks {
    /// Takes rows back, each as blank as if nobody had ever filled it. What is too many is freed.
    pub fn give(&self, rows: impl Iterator<Item = Box<Row>>) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for mut row in rows {
            if kept.len() < KEPT_MAX {
                *row = Row::blank();
                kept.push(row);
            }
        }
    }

    /// Takes all of them, in exchange for the empty `mine`. Nothing while the accountant is at it: a core never waits.
    pub fn take_into(&self, mine: &mut Vec<Box<Row>>) {
        if let Ok(mut kept) = self.0.try_lock() {
            std::mem::swap(&mut *kept, mine);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_comes_back_blank_and_not_too_many_are_kept() {
        let blanks = Blanks::default();
        let filled = || Box::new(Row { status: 200, model: "m".into(), ..Row::blank() });
        blanks.give((0..KEPT_MAX + 5).map(|_| filled()));
        let mut mine = Vec::new();
        blanks.take_into(&mut mine);
        assert_eq!(mine.len(), KEPT_MAX);
        assert!(mine.iter().all(|row| **row == Row::blank()));
        mine.clear();
        blanks.take_into(&mut mine);
        assert!(mine.is_empty(), "each is given out once");
    }
}

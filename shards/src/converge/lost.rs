//! A store that began from nothing: everything of ours is told again, and what peers had said is brought back for those
//! that can no longer say it.
//!
//! A generation is the store's word for its beginning. Until every replica has found the new one and told it again, the
//! store knows less than the fleet burned ([`Converge::is_refilling`]).

use super::{CellSeen, Cells, Converge, FLUSH_NS, Job, Key, LOOK_NS, Sent};
use crate::units::{MonoNs, Now};

/// Who lives publishes its own within a second; then what others remember of those that do not is brought back.
const RESTORE_AFTER_NS: u64 = 2 * FLUSH_NS;
/// A store that began from nothing is told again by then, by everybody: they find it out with their next look, wait, and
/// have a second for it. Until then it does not know what the dead burned.
const REFILLED_AFTER_NS: u64 = RESTORE_AFTER_NS + 2 * LOOK_NS + FLUSH_NS;
/// Scopes looked at for that in one round: 2,000 a second, a fifth of what the server gets at most.
const RESTORED_A_ROUND: usize = 1_000;

impl Converge {
    /// Whether the store may not have been told everything again since it began from nothing. `generation` is what it has now,
    /// `store_us` its clock. A generation is the instant it began; one that was met here long enough ago is old whatever a
    /// store's clock does.
    pub fn is_refilling(&self, generation: u64, store_us: u64, now: MonoNs) -> bool {
        let is_young = store_us.saturating_sub(generation) < REFILLED_AFTER_NS / 1_000
            && now.since(self.generation_met) < REFILLED_AFTER_NS;
        self.generation != Some(generation) || is_young || !self.to_restore.is_empty()
    }

    /// Whether this is the store we know. If not, it began from nothing in between.
    pub(super) fn is_of(&mut self, generation: u64, now: MonoNs) -> bool {
        if self.generation != Some(generation) {
            self.generation_met = now;
        }
        match self.generation.replace(generation) {
            Some(known) if known != generation => {
                self.store_was_lost(now);
                false
            }
            Some(_) => true,
            // A first cell before the first look: the store may have no generation yet.
            None => {
                self.generation = Some(generation).filter(|generation| *generation != 0);
                true
            }
        }
    }

    /// The store began from nothing: what we knew of the peers stays known, and everything of ours is published again. What
    /// nobody publishes is brought back after that, so that it outlives us too: a replica that died keeps its burn.
    fn store_was_lost(&mut self, now: MonoNs) {
        self.generations_lost += 1;
        self.watch.iter_mut().for_each(|watch| watch.since = 0);
        self.to_read.clear();
        self.to_restore.clear();
        self.restore_at_ns = now.0.saturating_add(RESTORE_AFTER_NS);
        for (key, scope) in &mut self.scopes {
            scope.seen_score = 0;
            scope.peers.iter_mut().for_each(|peer| peer.is_kept = true);
            if !scope.peers.is_empty() {
                self.to_restore.push_back(*key);
            }
        }
        self.publish_again(now);
        self.round.has_failed = true; // the next round reads the new store from its beginning
        self.look_at_ns = now.0;
    }

    /// The store has nothing of ours any more: all of it is due at once, however long it had been at rest. A cell is written
    /// whole, so nothing counts twice where some of it was there after all. `false` when there was nothing.
    pub fn publish_again(&mut self, now: MonoNs) -> bool {
        let at = MonoNs(now.0.saturating_sub(FLUSH_NS));
        let mut is_any = false;
        for (key, scope) in &mut self.scopes {
            let Some(own) = &mut scope.own else { continue };
            if let Some(sent) = &mut own.sent {
                is_any |= sent.burn > 0 || sent.rows > 0;
                *sent = Sent { burn: 0, rows: 0, flush_rows: 0, at };
            }
            if own.is_unsent() {
                self.dirty.insert(*key);
            }
        }
        is_any
    }

    /// Asks for cells to be brought back that the store lost and nobody has published since. A scope stays on the list until
    /// the store has said what became of it.
    pub(super) fn restore(&mut self, now: Now) {
        for _ in 0..self.to_restore.len().min(RESTORED_A_ROUND) {
            let Some(key) = self.to_restore.pop_front() else { return };
            let Some(scope) = self.scopes.get(&key).filter(|scope| scope.period.contains(now.wall)) else { continue };
            let (calendar, period) = (scope.calendar, scope.period);
            let lost = scope.peers.iter().filter(|peer| peer.is_kept);
            let jobs = lost.map(|peer| Job::Restore { scope: key.scope, calendar, period, cell: peer.cell.clone() });
            let before = self.queue.len();
            self.queue.extend(jobs);
            if self.queue.len() > before {
                self.to_restore.push_back(key);
            }
        }
    }

    /// A cell that the store did not take back was purged by name meanwhile, unheard by us.
    pub(super) fn restored(&mut self, key: Key, cell: &CellSeen, cells: &Cells) {
        if cells.cells.iter().any(|stored| stored.ledger == cell.ledger) {
            return;
        }
        if let Some(scope) = self.scopes.get_mut(&key) {
            scope.peers.retain(|peer| !(peer.is_kept && peer.cell.ledger == cell.ledger));
        }
    }
}

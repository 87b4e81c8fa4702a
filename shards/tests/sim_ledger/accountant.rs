//! The accountant and its disk: batches are taken, written, folded and published; it checkpoints, dies and boots again.

use super::*;

impl World {
    /// Takes a batch, writes it, folds it, publishes.
    pub(super) fn account(&mut self, dice: &mut Dice) {
        let at_once = 1 + dice.roll(20) as usize;
        let mut batch: Vec<Folded> = Vec::new();
        for core in &mut self.cores {
            while batch.len() < at_once {
                let Some(mut row) = core.tee.pop_front() else { break };
                row.seq = self.accountant.next_seq;
                self.accountant.next_seq += 1;
                self.taken_nanousd += cost_of(&row);
                let given_up = self.accountant.waiting.len() >= WAITING_ROWS_MAX;
                if given_up {
                    self.given_up_nanousd += cost_of(&row);
                } else {
                    let mut line = Vec::new();
                    encode(&row, "sim", &mut line);
                    self.accountant.waiting.push((row.seq, line));
                }
                batch.push(Folded { row, given_up, is_forgotten: false, is_missed_by_late: false });
            }
        }
        self.write(batch.iter().any(|folded| folded.given_up));
        let is_new = !batch.is_empty();
        for folded in batch {
            self.accountant.folder.fold(&folded.row.facts(), &self.registry).expect("its node is one");
            if folded.given_up {
                self.accountant.is_exact = false;
                self.saw("given up");
            }
            self.folded.push(folded);
        }
        self.sums.get_mut().clear();
        if is_new {
            self.accountant.folder.publish(self.wall());
            self.beat();
        }
    }

    fn write(&mut self, gives_up: bool) {
        if self.accountant.waiting.is_empty() {
            return;
        }
        if self.disk.is_full {
            self.accountant.is_exact = false;
            self.saw("disk full");
            return;
        }
        let first_seq = self.accountant.waiting[0].0;
        let must_rotate = self.disk.segments.last().is_none_or(|open| open.lines.len() >= SEGMENT_ROWS);
        if must_rotate {
            if let Some(closed) = self.disk.segments.last_mut() {
                let rollup = self.accountant.folder.take_rollup();
                if self.accountant.is_exact {
                    closed.rollup = Some(rollup.encode());
                } else {
                    closed.rollup = Some(rollup_of(closed).encode());
                    // Folded for the closed segment, written to the new one.
                    for (_, line) in &self.accountant.waiting {
                        self.accountant.folder.roll_again(&decode_facts(line).expect("a line we wrote"));
                    }
                    self.folded.iter_mut().for_each(|folded| folded.is_forgotten |= folded.given_up);
                    self.accountant.is_exact = !gives_up;
                    *self.seen.entry("rebuilt".into()).or_default() += 1;
                }
            }
            self.disk.segments.push(Segment { first_seq, lines: Vec::new(), rollup: None });
        }
        let open = self.disk.segments.last_mut().expect("made above");
        open.lines.extend(self.accountant.waiting.drain(..).map(|(_, line)| line));
    }

    pub(super) fn beat(&mut self) {
        self.beat.beat(MonoNs(self.now_ns));
        self.beat_ns = self.now_ns;
    }

    pub(super) fn republish(&mut self) {
        self.accountant.folder.republish(self.wall());
        self.beat();
    }

    pub(super) fn checkpoint(&mut self) {
        let Some(open) = self.disk.segments.last() else { return };
        if !self.accountant.waiting.is_empty() || self.disk.is_full {
            return;
        }
        let position = LedgerPosition { segment: open.first_seq, offset: 0 };
        self.disk.checkpoint = Some(self.accountant.folder.checkpoint(position).encode());
        let given_up = self.folded.iter().filter(|folded| folded.given_up).cloned().collect();
        self.checkpointed = Checkpointed { given_up, knows_late: self.has_late };
        self.saw("checkpoint");
    }

    /// kill -9: what was in memory is gone.
    pub(super) fn die(&mut self) {
        let in_tees: u64 = self.cores.iter().map(|core| costs(&core.tee)).sum();
        let waiting: Vec<u64> = self.accountant.waiting.iter().map(|(seq, _)| *seq).collect();
        let unwritten = self.folded.iter().filter(|folded| waiting.contains(&folded.row.seq));
        self.lost_nanousd += in_tees + costs(unwritten.map(|folded| &folded.row));
        self.taken_nanousd += in_tees;
        self.cores = Default::default();
        self.saw("crash");
        self.boot();
    }

    /// SIGTERM: everything is taken, written and checkpointed; the next start finds every meter as it was.
    pub(super) fn restart_cleanly(&mut self, dice: &mut Dice) {
        for core in 0..CORES {
            while !self.cores[core].running.is_empty() {
                self.go_on(core, dice);
            }
        }
        self.disk.is_full = false;
        while self.cores.iter().any(|core| !core.tee.is_empty()) || !self.accountant.waiting.is_empty() {
            self.account(dice);
        }
        self.republish();
        self.checkpoint();
        let before = self.meters();
        self.boot();
        let after = self.meters();
        assert_eq!(before, after, "a clean restart changes no meter");
        self.saw("clean restart");
    }

    fn boot(&mut self) {
        self.registry = Registry::new();
        self.life_began_ns = self.now_ns;
        self.in_flight.clear();
        self.rpm_admitted.clear();
        let set = Arc::new(self.set.clone());
        let checkpoint = self.disk.checkpoint.as_ref().and_then(|bytes| Checkpoint::decode(bytes));
        let mut folder = match &checkpoint {
            Some(checkpoint) => Folder::restore(checkpoint, &set, &self.registry),
            None => Folder::new(),
        };
        let since = folder.arm(set, &self.registry, self.wall());
        let open = self.disk.segments.last().map_or(0, |segment| segment.first_seq);
        let from = checkpoint.map_or(open, |checkpoint| checkpoint.position.segment);
        if since.is_some() {
            for segment in self.disk.segments.iter().filter(|segment| segment.first_seq < from) {
                folder.backfill(&rollup_of(segment), &self.registry);
            }
        }
        self.sums.get_mut().clear();
        self.folded = self.checkpointed.given_up.clone();
        for folded in &mut self.folded {
            folded.is_forgotten = true;
            folded.is_missed_by_late |= !self.checkpointed.knows_late;
        }
        for segment in &mut self.disk.segments {
            for line in &segment.lines {
                let facts = decode_facts(line).expect("a line we wrote");
                if segment.first_seq >= from {
                    folder.fold(&facts, &self.registry).expect("its node is one");
                }
                let row = shards::row::decode(line).expect("a line we wrote").row;
                self.folded.push(Folded { row, given_up: false, is_forgotten: false, is_missed_by_late: false });
            }
            if segment.first_seq >= from && segment.first_seq != open {
                segment.rollup = Some(folder.take_rollup().encode());
            }
        }
        folder.caught_up();
        let next_seq = (folder.folded_seq() + 1).max(open.max(1));
        self.accountant = Accountant { folder, next_seq, waiting: Vec::new(), is_exact: true };
        self.republish();
    }

    // ---- the comparison
}

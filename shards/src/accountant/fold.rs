//! The folder: rows into meters.
//!
//! Decides which limits a row counts in (by the row's own fields), in which period (that of its `end`) and with what
//! amount. Each row counts once, by its sequence number, whatever is read again after a crash. Does not decide when
//! to publish; gates read what [`Folder::publish`] last wrote.
//!
//! Start:  [`Folder::restore`] → [`Folder::arm`] → [`Folder::backfill`] per closed segment before the checkpoint's,
//! if `arm` asked for it → [`Folder::fold`] per row from the checkpoint's segment on (from its first row: the open
//! rollup is rebuilt from there) → [`Folder::caught_up`].
//! Reload: [`Folder::arm`] → [`Folder::backfill`] per closed segment, if asked → [`Folder::caught_up`].

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use smallvec::SmallVec;

use super::checkpoint::{Checkpoint, LedgerPosition, LimitJson, ScopeJson};
use super::period::period_of;
use super::rollup::{Rollup, Scope};
use crate::converge::{ScopeHash, Term};
use crate::limit::{Calendar, Class, Limit, LimitIdentity, LimitType, Period};
use crate::meter::{Meter, PeriodSpan};
use crate::plan::{Counter, LimitSet};
use crate::registry::{Registry, ScopeKey};
use crate::row::RowFacts;
use crate::scope::{Node, NodeError};
use crate::units::WallMs;

/// Periods of one scope that are kept: the running one, the one before (rows that end at a boundary arrive in either
/// order), and two more for a clock that jumped ahead and came back.
const PERIODS_MAX: usize = 4;

/// A scope without a row in the running period is forgotten this long after its last period ended: the last
/// publication to the peers is out by then.
const FORGET_AFTER_MS: i64 = 10 * 60 * 1_000;

/// What one scope burned in one period, for publication to the peers.
#[derive(Debug, Clone, Copy)]
pub struct Burn<'a> {
    pub limit: &'a Arc<Limit>,
    pub node: &'a Node,
    pub period: PeriodSpan,
    /// Nano-USD, tokens or requests.
    pub amount: u64,
    pub rows: u64,
}

/// Burn of one period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Spent {
    pub(super) period: PeriodSpan,
    pub(super) amount: u64,
    pub(super) rows: u64,
}

/// One LedgerSettled scope.
struct Account {
    limit: Arc<Limit>,
    calendar: Calendar,
    node: Node,
    meter: Arc<Meter>,
    /// Oldest first; never overlapping.
    spent: SmallVec<[Spent; 2]>,
    /// Changed since the last [`Folder::publish`].
    is_unpublished: bool,
    /// Changed since the last [`Folder::changed`].
    is_unsent: bool,
    /// Own rows that are in the shared store, and of which period.
    sent: Option<(PeriodSpan, u64)>,
    /// What the shared store calls it; known from the first [`Folder::changed`] on.
    scope: Option<ScopeHash>,
}

/// Rows in, meters out. Owned by the accountant core.
pub struct Folder {
    set: Arc<LimitSet>,
    accounts: Vec<Account>,
    by_scope: HashMap<ScopeKey, u32>,
    /// Limits whose meters are complete: every row of the running period up to `metered_seq` is in them.
    followed: HashSet<LimitIdentity>,
    /// Limits that still miss rows up to `metered_seq`, and the period they miss them of.
    catching_up: HashMap<LimitIdentity, PeriodSpan>,
    /// Rows up to here are in the meters of followed limits.
    metered_seq: u64,
    /// Rows up to here are in this rollup or an earlier one.
    rolled_seq: u64,
    rollup: Rollup,
    /// Accounts that [`Folder::changed`] would show.
    unsent: Vec<u32>,
    /// By scope of the open rollup: the accounts its rows count in.
    credits: Vec<Option<Arc<[u32]>>>,
}

impl Default for Folder {
    fn default() -> Folder {
        Folder::new()
    }
}

impl Folder {
    /// Follows no limit and has seen no row.
    pub fn new() -> Folder {
        Folder {
            set: Arc::default(),
            accounts: Vec::new(),
            by_scope: HashMap::new(),
            followed: HashSet::new(),
            catching_up: HashMap::new(),
            metered_seq: 0,
            rolled_seq: 0,
            rollup: Rollup::default(),
            unsent: Vec::new(),
            credits: Vec::new(),
        }
    }

    /// Takes the meters of an earlier process up again, for limits that `set` still has. Nothing is published yet.
    pub fn restore(checkpoint: &Checkpoint, set: &LimitSet, registry: &Registry) -> Folder {
        let mut folder = Folder::new();
        folder.metered_seq = checkpoint.metered_seq;
        for saved in &checkpoint.limits {
            let same = set.limits.iter().find(|limit| limit.identity.as_str() == saved.identity);
            let Some((limit, calendar)) = same.and_then(|limit| Some((limit, calendar_of(limit)?))) else { continue };
            folder.followed.insert(limit.identity.clone());
            for scope in &saved.scopes {
                let Ok(node) = Node::parse(&scope.node) else { continue };
                let Some(meter) = registry.meter(limit, &node) else { continue };
                let account = folder.account(limit, calendar, node, meter);
                let account = &mut folder.accounts[account as usize];
                account.spent =
                    scope.spent().filter(|spent| period_of(calendar, spent.period.start) == spent.period).collect();
                account.is_unpublished = true;
                account.is_unsent = true;
            }
        }
        folder.reindex();
        folder
    }

    /// Follows the limits of `set` from now on. Limits that were followed keep their meters, limits that are gone
    /// are forgotten, and new ones are caught up with this folder's own open rollup at once. Returns since when the
    /// earlier segments' rollups are needed as well, for [`Folder::backfill`]; `None` when there is no new limit.
    pub fn arm(&mut self, set: Arc<LimitSet>, registry: &Registry, now: WallMs) -> Option<WallMs> {
        let armed: HashMap<&LimitIdentity, &Arc<Limit>> =
            set.limits.iter().map(|limit| (&limit.identity, limit)).collect();
        self.followed.retain(|identity| armed.contains_key(identity));
        self.catching_up.clear();
        for limit in set.limits.iter().filter(|limit| !self.followed.contains(&limit.identity)) {
            if let Some(calendar) = calendar_of(limit) {
                self.catching_up.insert(limit.identity.clone(), period_of(calendar, now));
            }
        }
        let followed = &self.followed;
        self.accounts.retain(|account| followed.contains(&account.limit.identity));
        for account in &mut self.accounts {
            // Amount, posture and the like may have changed; the meter has not.
            account.limit = armed[&account.limit.identity].clone();
        }
        self.set = set;
        self.reindex();

        let own = std::mem::take(&mut self.rollup);
        self.backfill(&own, registry);
        self.rollup = own;
        self.catching_up.values().map(|period| period.start).min()
    }

    /// Adds a closed segment's sums to the meters of limits that are catching up. Each rollup once, and none whose
    /// rows are also folded one by one.
    pub fn backfill(&mut self, rollup: &Rollup, registry: &Registry) {
        let (_, last_seq) = rollup.seqs().unwrap_or_default();
        self.metered_seq = self.metered_seq.max(last_seq);
        if self.catching_up.is_empty() {
            return;
        }
        let credits: Vec<Arc<[u32]>> = rollup.scopes().iter().map(|scope| self.resolve(scope, registry)).collect();
        for cell in rollup.cells() {
            let totals = &cell.totals;
            let worth = Worth {
                cost: totals.cost_nanousd,
                tokens: totals.input_tokens.saturating_add(totals.output_tokens),
                forwarded: totals.forwarded,
                rows: totals.forwarded,
            };
            let Some(accounts) = credits.get(cell.scope()) else { continue };
            self.credit(accounts, cell.start(), worth, Only::CatchingUp);
        }
    }

    /// Every row there is has been folded or backfilled: new limits are followed like the others, and the next
    /// checkpoint holds them.
    pub fn caught_up(&mut self) {
        self.followed.extend(self.catching_up.drain().map(|(identity, _)| identity));
    }

    /// Folds one row, in the order of sequence numbers. A row seen before changes nothing. `Err` when its node is
    /// none: the line is corrupt.
    pub fn fold(&mut self, row: &RowFacts<'_>, registry: &Registry) -> Result<(), NodeError> {
        if row.seq <= self.rolled_seq {
            return Ok(());
        }
        let scope = self.rollup.add(row)?;
        self.rolled_seq = row.seq;
        let only = if row.seq <= self.metered_seq { Only::CatchingUp } else { Only::All };
        self.metered_seq = self.metered_seq.max(row.seq);

        let worth = Worth {
            cost: row.cost.map_or(0, |cost| cost.0),
            tokens: row.usage.total_tokens(),
            forwarded: u64::from(row.forwarded),
            rows: 1,
        };
        if worth.is_nothing() || (only == Only::CatchingUp && self.catching_up.is_empty()) {
            return Ok(());
        }
        let accounts = self.credits_of(scope, registry);
        self.credit(&accounts, row.end, worth, only);
        Ok(())
    }

    /// Publishes what changed since the last time. After every batch.
    pub fn publish(&mut self, now: WallMs) {
        for account in self.accounts.iter_mut().filter(|account| account.is_unpublished) {
            account.publish(now);
        }
    }

    /// Publishes every meter, rolled to the period of `now`, and forgets scopes whose last period is long over.
    /// Every 5 s, so that gates see the accountant alive.
    pub fn republish(&mut self, now: WallMs) {
        for account in &mut self.accounts {
            account.publish(now);
        }
        let before = self.accounts.len();
        self.accounts.retain(|account| !account.is_over(now));
        if self.accounts.len() < before {
            self.reindex();
        }
    }

    /// What each scope burned in the period of `now`. For pages and for a full publication to the peers.
    pub fn burns(&self, now: WallMs) -> impl Iterator<Item = Burn<'_>> {
        self.accounts.iter().map(move |account| account.burn(now))
    }

    /// Shows the burn of each scope that changed since the last call, and marks it as seen: that of the running period,
    /// and what was folded late into one that ended a moment ago.
    pub fn changed(&mut self, now: WallMs, mut visit: impl FnMut(ScopeHash, Burn<'_>)) {
        for at in self.unsent.drain(..) {
            let Some(account) = self.accounts.get_mut(at as usize) else { continue };
            account.is_unsent = false;
            let scope = *account.scope.get_or_insert_with(|| ScopeHash::of(&account.limit.identity, &account.node));
            let running = account.burn(now);
            visit(scope, running);
            let is_late = |spent: &&Spent| spent.period != running.period && !is_long_over(spent.period, now);
            for &Spent { period, amount, rows } in account.spent.iter().filter(is_late) {
                visit(scope, Burn { limit: &account.limit, node: &account.node, period, amount, rows });
            }
        }
    }

    /// Whether [`Folder::changed`] would show anything.
    pub fn has_changed(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Peers' burn of a scope arrived, or word that our own did: published at once, also for a scope that no row of ours
    /// counted in yet.
    pub fn hear(&mut self, key: &ScopeKey, term: &Term, registry: &Registry) {
        let own = self.by_scope.get(key).and_then(|at| self.accounts.get_mut(*at as usize));
        let meter = match &own {
            Some(account) => account.meter.clone(),
            None => match registry.get(key) {
                Some(Counter::Meter(meter)) => meter,
                _ => return, // swept away meanwhile: made again, it starts from this term
            },
        };
        if !meter.publish_remote(term.period, term.remote) {
            // The clock was ahead of a period's end and came back, as in `Account::publish`.
            if let Some(ahead) = meter.period() {
                meter.publish_remote(ahead, term.remote);
            }
        }
        meter.publish_lag(term.lag());
        if let Some(account) = own {
            account.sent = Some((term.period, term.published_rows));
            account.publish_unsent(term.period);
        }
    }

    /// The last row that was folded; 0 before the first.
    pub fn folded_seq(&self) -> u64 {
        self.rolled_seq.max(self.metered_seq)
    }

    /// The open segment's sums so far: the newest part of any query.
    pub fn rollup(&self) -> &Rollup {
        &self.rollup
    }

    /// Adds a row that was folded already to the open rollup once more: its line waited for the disk and went to another
    /// segment than the one that was open then, whose rollup is made anew from its lines.
    pub fn roll_again(&mut self, row: &RowFacts<'_>) {
        if row.seq <= self.rolled_seq {
            let _ = self.rollup.add(row); // its node was one when it was folded
        }
    }

    /// Ends the open rollup, because its segment was closed, and begins the next.
    pub fn take_rollup(&mut self) -> Rollup {
        self.credits.clear();
        std::mem::take(&mut self.rollup)
    }

    /// The meters as plain data, complete up to the last folded row, which ends at `position`. Limits that are still
    /// catching up are left out: they will catch up again.
    pub fn checkpoint(&self, position: LedgerPosition) -> Checkpoint {
        let mut limits: HashMap<&LimitIdentity, LimitJson> = self
            .followed
            .iter()
            .map(|identity| (identity, LimitJson { identity: identity.as_str().to_owned(), scopes: Vec::new() }))
            .collect();
        for account in &self.accounts {
            if let Some(limit) = limits.get_mut(&account.limit.identity) {
                limit.scopes.push(ScopeJson::new(&account.node, &account.spent));
            }
        }
        let mut limits: Vec<LimitJson> = limits.into_values().collect();
        limits.sort_unstable_by(|left, right| left.identity.cmp(&right.identity));
        Checkpoint::new(position, self.folded_seq(), limits)
    }

    fn credit(&mut self, accounts: &[u32], end: WallMs, worth: Worth, only: Only) {
        for at in accounts {
            let Some(account) = self.accounts.get_mut(*at as usize) else { continue };
            if only == Only::CatchingUp {
                let missing = self.catching_up.get(&account.limit.identity);
                if missing.is_none_or(|period| end < period.start) {
                    continue;
                }
            }
            account.add(end, worth.to(account.limit.kind), worth.rows);
            if !std::mem::replace(&mut account.is_unsent, true) {
                self.unsent.push(*at);
            }
        }
    }

    /// The accounts of a scope of the open rollup, looked up once.
    fn credits_of(&mut self, scope: usize, registry: &Registry) -> Arc<[u32]> {
        if let Some(Some(accounts)) = self.credits.get(scope) {
            return accounts.clone();
        }
        let Some(of) = self.rollup.scopes().get(scope).cloned() else { return Arc::default() };
        let accounts = self.resolve(&of, registry);
        if self.credits.len() <= scope {
            self.credits.resize(scope + 1, None);
        }
        self.credits[scope] = Some(accounts.clone());
        accounts
    }

    fn resolve(&mut self, scope: &Scope, registry: &Registry) -> Arc<[u32]> {
        let upstream = scope.upstream.as_deref().unwrap_or_default();
        let settled = self.set.settled_for(&scope.node, &scope.model, upstream, scope.endpoint, registry);
        let account = |(limit, node, meter): (Arc<Limit>, Node, Arc<Meter>)| {
            calendar_of(&limit).map(|calendar| self.account(&limit, calendar, node, meter))
        };
        settled.into_iter().filter_map(account).collect()
    }

    /// Index of the account of `(limit, node)`, made now if there is none.
    fn account(&mut self, limit: &Arc<Limit>, calendar: Calendar, node: Node, meter: Arc<Meter>) -> u32 {
        let fresh = self.accounts.len() as u32; // an account costs more than 100 B: memory ends first
        let key = ScopeKey { identity: limit.identity.clone(), node: node.clone() };
        let at = *self.by_scope.entry(key).or_insert(fresh);
        if at == fresh {
            self.accounts.push(Account {
                limit: limit.clone(),
                calendar,
                node,
                meter,
                spent: SmallVec::new(),
                is_unpublished: false,
                is_unsent: false,
                sent: None,
                scope: None,
            });
        }
        at
    }

    /// After accounts were removed: their places have changed.
    fn reindex(&mut self) {
        self.credits.clear();
        let key = |account: &Account| ScopeKey { identity: account.limit.identity.clone(), node: account.node.clone() };
        self.by_scope = self.accounts.iter().zip(0..).map(|(account, at)| (key(account), at)).collect();
        self.unsent =
            self.accounts.iter().zip(0..).filter(|(account, _)| account.is_unsent).map(|(_, at)| at).collect();
    }
}

impl Account {
    fn add(&mut self, end: WallMs, amount: u64, rows: u64) {
        let running = self.spent.iter_mut().rev().find(|spent| spent.period.contains(end));
        match running {
            Some(spent) => {
                spent.amount = spent.amount.saturating_add(amount);
                spent.rows = spent.rows.saturating_add(rows);
            }
            None => self.begin(Spent { period: period_of(self.calendar, end), amount, rows }),
        }
        self.is_unpublished |= amount > 0;
    }

    /// Keeps the newest periods; a row of an older one is too late to matter to any gate.
    fn begin(&mut self, spent: Spent) {
        let at = self.spent.partition_point(|known| known.period.start < spent.period.start);
        self.spent.insert(at, spent);
        if self.spent.len() > PERIODS_MAX {
            self.spent.remove(0);
        }
    }

    fn spent_in(&self, period: PeriodSpan) -> Spent {
        let known = self.spent.iter().rev().find(|spent| spent.period == period);
        known.copied().unwrap_or(Spent { period, amount: 0, rows: 0 })
    }

    fn publish(&mut self, now: WallMs) {
        self.is_unpublished = false;
        let running = self.spent_in(period_of(self.calendar, now));
        self.publish_unsent(running.period);
        if self.meter.publish(running.period, running.amount) {
            return;
        }
        // The clock was ahead of a period's end and came back; the meter does not go back. It shows both periods'
        // burn until the later one begins in earnest: over-refuses by what was spent while the clock was wrong.
        // Showing the later period's alone would give the running budget away.
        if let Some(ahead) = self.meter.period() {
            let both = self.spent_in(ahead).amount.saturating_add(running.amount);
            self.meter.publish(ahead, both);
        }
    }

    /// Rows of `period` that peers cannot know of yet.
    fn publish_unsent(&self, period: PeriodSpan) {
        let sent = self.sent.filter(|(of, _)| *of == period).map_or(0, |(_, rows)| rows);
        self.meter.publish_unsent(self.spent_in(period).rows.saturating_sub(sent));
    }

    fn burn(&self, now: WallMs) -> Burn<'_> {
        let Spent { period, amount, rows } = self.spent_in(period_of(self.calendar, now));
        Burn { limit: &self.limit, node: &self.node, period, amount, rows }
    }

    fn is_over(&self, now: WallMs) -> bool {
        self.spent.last().is_none_or(|spent| is_long_over(spent.period, now))
    }
}

fn is_long_over(period: PeriodSpan, now: WallMs) -> bool {
    period.end.0.saturating_add(FORGET_AFTER_MS) <= now.0
}

/// Which limits a row may still count in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Only {
    All,
    CatchingUp,
}

/// What rows add to a meter, by what the meter counts.
#[derive(Clone, Copy)]
struct Worth {
    cost: u64,
    tokens: u64,
    forwarded: u64,
    rows: u64,
}

impl Worth {
    fn is_nothing(&self) -> bool {
        self.cost == 0 && self.tokens == 0 && self.forwarded == 0
    }

    fn to(self, kind: LimitType) -> u64 {
        match kind {
            LimitType::BudgetUsd => self.cost,
            LimitType::QuotaTokens => self.tokens,
            LimitType::QuotaRequests => self.forwarded,
            LimitType::Rpm | LimitType::Tpm | LimitType::Concurrency => 0,
        }
    }
}

/// The calendar of a LedgerSettled limit; `None` for the other classes, which no row counts in.
fn calendar_of(limit: &Limit) -> Option<Calendar> {
    match limit.period {
        Some(Period::Calendar(calendar)) if limit.kind.class() == Class::LedgerSettled => Some(calendar),
        _ => None,
    }
}

//! Who shares the limits: heartbeats in, the number of live replicas and the roster out.
//!
//! Ages are differences of the store's own clock, so that no replica's clock decides who is alive. A replica that
//! stopped beating leaves `N_live` after the liveness window and stays on the roster until it is decommissioned, because
//! its spend stays too. Decides states, conflicts and trust; sends nothing, keeps no file. The coordinator feeds it,
//! admin pages and the other threads see [`Entry`] rows and two numbers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::suspend::Reason;
use crate::units::MonoNs;

/// Replicas that are kept; beyond it the ones that were silent longest are left out. 1,024 x 0.5 KB.
pub const ENTRIES_MAX: usize = 1_024;
/// A removal is remembered this long, so that a replica that slept meanwhile hears of it: 30 days.
pub const GONE_KEPT_US: u64 = 30 * 86_400 * 1_000_000;

/// What a replica says of itself with every heartbeat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Card {
    #[serde(rename = "l")]
    pub ledger_id: String,
    #[serde(rename = "v")]
    pub version: String,
    /// Where its name comes from: `config`, `env`, `hostname`, `nonce`.
    #[serde(rename = "f")]
    pub source: String,
    /// Whether it will have the same name after a restart.
    #[serde(rename = "k")]
    pub stable: bool,
    #[serde(rename = "s")]
    pub started_at_ms: i64,
    /// How peers reach its admin port.
    #[serde(rename = "u", default, skip_serializing_if = "Option::is_none")]
    pub advertise_url: Option<String>,
    /// Its wall clock minus the store's, as it measured at its last heartbeat.
    #[serde(rename = "d", default)]
    pub skew_ms: i64,
}

/// One heartbeat as the store keeps it: `<beat µs> <live|drained> <nonce> <card as JSON>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beat {
    /// The store's clock when it arrived.
    pub at_us: u64,
    /// It said goodbye.
    pub drained: bool,
    /// Drawn once per process: two processes of one name differ in it.
    pub nonce: String,
    pub card: Card,
}

impl Beat {
    /// `None` for anything a heartbeat does not write.
    pub fn parse(text: &str) -> Option<Beat> {
        let mut parts = text.splitn(4, ' ');
        let at_us = parts.next()?.parse().ok()?;
        let drained = match parts.next()? {
            "live" => false,
            "drained" => true,
            _ => return None,
        };
        let nonce = parts.next().filter(|nonce| !nonce.is_empty() && nonce.len() <= 64)?.to_owned();
        let card = serde_json::from_str(parts.next()?).ok()?;
        Some(Beat { at_us, drained, nonce, card })
    }
}

/// What the store answers to a heartbeat.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// The store's clock.
    pub now_us: u64,
    /// Own name as it stood just before this heartbeat overwrote it.
    pub before: Option<Beat>,
    /// Every name and its last heartbeat, our own included.
    pub beats: Vec<(String, Beat)>,
    /// Names that were decommissioned, and when.
    pub gone: Vec<(String, u64)>,
}

/// One replica on the roster. Plain data: the file copy and the Postgres table hold exactly this.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    pub id: String,
    #[serde(flatten)]
    pub card: Card,
    /// The store's clock at its last heartbeat.
    pub last_beat_us: u64,
    pub drained: bool,
}

/// What a replica is to the others right now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// Beat within the liveness window; counts in `N_live`.
    Live,
    /// Missed one window; no longer counts.
    Stale,
    /// Missed two.
    Unreachable,
    /// Said goodbye.
    Drained,
}

impl State {
    pub const fn as_str(self) -> &'static str {
        match self {
            State::Live => "live",
            State::Stale => "stale",
            State::Unreachable => "unreachable",
            State::Drained => "drained",
        }
    }
}

/// The roster as one replica knows it.
#[derive(Clone, Debug)]
pub struct Roster {
    own_id: String,
    own_nonce: String,
    own_ledger: String,
    window_ns: u64,
    entries: BTreeMap<String, Entry>,
    gone: BTreeMap<String, u64>,
    as_of: Option<AsOf>,
    /// Of this process, by the store's clock.
    first_beat_us: Option<u64>,
    /// When a foreign process was last seen to use our name or our ledger.
    conflict_seen: Option<MonoNs>,
}

/// One instant on two clocks.
#[derive(Clone, Copy, Debug)]
struct AsOf {
    store_us: u64,
    mono: MonoNs,
}

impl Roster {
    /// Knows nobody but itself.
    pub fn new(own_id: &str, own_nonce: &str, own_ledger: &str, window_ns: u64) -> Roster {
        Roster {
            own_id: own_id.to_owned(),
            own_nonce: own_nonce.to_owned(),
            own_ledger: own_ledger.to_owned(),
            window_ns,
            entries: BTreeMap::new(),
            gone: BTreeMap::new(),
            as_of: None,
            first_beat_us: None,
            conflict_seen: None,
        }
    }

    /// Takes up what a copy remembers. What the store says, and what was decommissioned, wins. `true` when it changed
    /// anything.
    pub fn remember(&mut self, entries: Vec<Entry>, gone: &[(String, u64)]) -> bool {
        let mut changed = self.bury(gone);
        for entry in entries {
            let is_gone = self.gone.get(&entry.id).is_some_and(|at_us| entry.last_beat_us <= *at_us);
            let is_older = self.entries.get(&entry.id).is_some_and(|known| known.last_beat_us >= entry.last_beat_us);
            if !is_gone && !is_older && entry.id != self.own_id {
                self.entries.insert(entry.id.clone(), entry);
                changed = true;
            }
        }
        self.bound();
        changed
    }

    /// A heartbeat was answered. `true` when somebody came, left, moved or was removed: a copy is out of date then. Ages
    /// alone do not count.
    pub fn heard(&mut self, snapshot: Snapshot, now: MonoNs) -> bool {
        let first_us = *self.first_beat_us.get_or_insert(snapshot.now_us);
        let others = snapshot.beats.iter().map(|(id, beat)| (id.as_str(), beat));
        let foreign =
            others.chain(snapshot.before.iter().map(|beat| (self.own_id.as_str(), beat))).any(|(id, beat)| {
                let is_ours = id == self.own_id || beat.card.ledger_id == self.own_ledger;
                // A predecessor's last heartbeat is older than our first; only one that still beats is a conflict.
                is_ours && beat.nonce != self.own_nonce && beat.at_us > first_us && !beat.drained
            });
        if foreign {
            self.conflict_seen = Some(now);
        }
        self.as_of = Some(AsOf { store_us: snapshot.now_us, mono: now });
        let mut changed = self.bury(&snapshot.gone);
        for (id, Beat { at_us, drained, card, .. }) in snapshot.beats {
            if self.gone.get(&id).is_some_and(|gone_us| at_us <= *gone_us) {
                continue;
            }
            let entry = Entry { id: id.clone(), card, last_beat_us: at_us, drained };
            changed |= self.entries.get(&id).is_none_or(|known| !is_same(known, &entry));
            self.entries.insert(id, entry);
        }
        self.bound();
        changed
    }

    /// Live replicas as of the last answer, this one always among them.
    pub fn n_live(&self) -> u32 {
        let Some(as_of) = self.as_of else { return 1 };
        let others = self.entries.values().filter(|entry| entry.id != self.own_id);
        let live = others.filter(|entry| self.state_at(entry, as_of.store_us) == State::Live).count();
        1 + live as u32 // at most ENTRIES_MAX
    }

    /// How many ways a share is split now, and why that cannot be relied on, if so. Without an answer within the liveness
    /// window each replica enforces the full amount: *over-admits*, N × limit across the fleet.
    pub fn parts(&self, now: MonoNs) -> (u32, Option<Reason>) {
        match self.as_of {
            Some(as_of) if now.since(as_of.mono) <= self.window_ns => {
                (self.n_live(), self.has_conflict(now).then_some(Reason::ReplicaIdConflict))
            }
            _ => (1, Some(Reason::MembershipStale)),
        }
    }

    /// Whether another live process uses our name or a copy of our ledger.
    pub fn has_conflict(&self, now: MonoNs) -> bool {
        self.conflict_seen.is_some_and(|seen| now.since(seen) <= self.window_ns)
    }

    /// When the store last answered.
    pub fn as_of(&self) -> Option<MonoNs> {
        self.as_of.map(|as_of| as_of.mono)
    }

    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values()
    }

    pub fn find(&self, id: &str) -> Option<&Entry> {
        self.entries.get(id)
    }

    /// Removals that are still remembered, for the copies.
    pub fn gone(&self) -> Vec<(String, u64)> {
        self.gone.iter().map(|(id, at_us)| (id.clone(), *at_us)).collect()
    }

    /// What `entry` was when the store last answered; `None`: it never did, and a copy remembers nothing but a goodbye. Who
    /// beat since then is not known here: a store that froze keeps the heartbeats of the living from us as well.
    pub fn state(&self, entry: &Entry) -> Option<State> {
        if entry.id == self.own_id {
            return Some(State::Live); // it is the one that is asked
        }
        match self.as_of {
            Some(as_of) => Some(self.state_at(entry, as_of.store_us)),
            None => entry.drained.then_some(State::Drained),
        }
    }

    /// What the writer of `beat` was at an instant of the store's clock.
    pub fn state_of(&self, beat: &Beat, store_us: u64) -> State {
        self.standing(beat.at_us, beat.drained, store_us)
    }

    /// From its last heartbeat to the store's last answer; `None` before the first.
    pub fn age_ms(&self, entry: &Entry) -> Option<u64> {
        self.as_of.map(|as_of| as_of.store_us.saturating_sub(entry.last_beat_us) / 1_000)
    }

    /// The largest clock difference that a live replica measured against the store.
    pub fn max_abs_skew_ms(&self) -> u64 {
        let live = self.entries.values().filter(|entry| self.state(entry) == Some(State::Live));
        live.map(|entry| entry.card.skew_ms.unsigned_abs()).max().unwrap_or(0)
    }

    /// What `entry` was at an instant of the store's clock, if it did not beat again.
    pub fn state_at(&self, entry: &Entry, store_us: u64) -> State {
        self.standing(entry.last_beat_us, entry.drained, store_us)
    }

    /// A clock of the store that stepped back makes everybody younger: *over-refuses* shares until it caught up.
    fn standing(&self, last_beat_us: u64, drained: bool, store_us: u64) -> State {
        let age_ns = store_us.saturating_sub(last_beat_us).saturating_mul(1_000);
        match age_ns {
            _ if drained => State::Drained,
            _ if age_ns <= self.window_ns => State::Live,
            _ if age_ns <= self.window_ns.saturating_mul(2) => State::Stale,
            _ => State::Unreachable,
        }
    }

    fn bury(&mut self, gone: &[(String, u64)]) -> bool {
        let before = self.entries.len();
        for (id, at_us) in gone.iter().take(ENTRIES_MAX) {
            let known = self.gone.entry(id.clone()).or_insert(0);
            *known = (*known).max(*at_us);
            if self.entries.get(id).is_some_and(|entry| entry.last_beat_us <= *at_us) {
                self.entries.remove(id);
            }
        }
        if let Some(as_of) = self.as_of {
            self.gone.retain(|_, at_us| as_of.store_us.saturating_sub(*at_us) <= GONE_KEPT_US);
        }
        self.entries.len() < before
    }

    fn bound(&mut self) {
        while self.entries.len() > ENTRIES_MAX {
            let oldest = self.entries.values().filter(|entry| entry.id != self.own_id).min_by_key(|e| e.last_beat_us);
            let Some(id) = oldest.map(|entry| entry.id.clone()) else { return };
            self.entries.remove(&id);
        }
    }
}

/// Whether nothing but the age and the skew differs.
fn is_same(known: &Entry, entry: &Entry) -> bool {
    let still = |card: &Card| Card { skew_ms: 0, ..card.clone() };
    known.drained == entry.drained && still(&known.card) == still(&entry.card)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;
    const WINDOW_NS: u64 = 15 * SECOND_NS;

    fn card(ledger: &str) -> Card {
        Card {
            ledger_id: ledger.to_owned(),
            version: "0.1.0".to_owned(),
            source: "config".to_owned(),
            stable: true,
            started_at_ms: 1,
            advertise_url: None,
            skew_ms: 0,
        }
    }

    fn beat(at_s: u64, nonce: &str, ledger: &str) -> Beat {
        Beat { at_us: at_s * 1_000_000, drained: false, nonce: nonce.to_owned(), card: card(ledger) }
    }

    fn snapshot(now_s: u64, beats: &[(&str, Beat)]) -> Snapshot {
        let beats = beats.iter().map(|(id, beat)| ((*id).to_owned(), beat.clone())).collect();
        Snapshot { now_us: now_s * 1_000_000, before: None, beats, gone: Vec::new() }
    }

    fn at(second: u64) -> MonoNs {
        MonoNs(second * SECOND_NS)
    }

    #[test]
    fn a_heartbeat_is_read_back_and_nonsense_is_not() {
        let text = format!("17 live abc {}", serde_json::to_string(&card("l1")).unwrap());
        let read = Beat::parse(&text).unwrap();
        assert_eq!((read.at_us, read.drained, read.nonce.as_str()), (17, false, "abc"));
        assert_eq!(read.card, card("l1"));
        for bad in
            ["", "17", "17 live", "17 live abc", "17 live abc {", "x live abc {}", "17 dead abc {}", "17 live  {}"]
        {
            assert_eq!(Beat::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_dead_replica_leaves_n_after_the_window_and_stays_on_the_roster() {
        let mut roster = Roster::new("a", "n", "l1", WINDOW_NS);
        assert_eq!(roster.parts(at(0)), (1, Some(Reason::MembershipStale)), "nobody answered yet");
        let both = [("a", beat(100, "n", "l1")), ("b", beat(100, "m", "l2"))];
        assert!(roster.heard(snapshot(100, &both), at(0)));
        assert_eq!(roster.parts(at(1)), (2, None));
        let later = [("a", beat(115, "n", "l1")), ("b", beat(100, "m", "l2"))];
        assert!(!roster.heard(snapshot(115, &later), at(15)), "only ages changed");
        assert_eq!(roster.n_live(), 2, "a beat as old as the window still counts");
        roster.heard(snapshot(116, &later), at(16));
        assert_eq!(roster.n_live(), 1);
        let b = roster.find("b").unwrap().clone();
        assert_eq!((roster.state(&b), roster.age_ms(&b)), (Some(State::Stale), Some(16_000)));
        roster.heard(snapshot(131, &later), at(31));
        assert_eq!((roster.state(&b), roster.age_ms(&b)), (Some(State::Unreachable), Some(31_000)));
    }

    #[test]
    fn a_store_that_froze_makes_nobody_unreachable_and_before_its_first_answer_nothing_is_known() {
        let mut roster = Roster::new("a", "n", "l1", WINDOW_NS);
        let of = |id: &str, drained| Entry { id: id.to_owned(), card: card("l2"), last_beat_us: 50_000_000, drained };
        roster.remember(vec![of("b", false), of("c", true)], &[]);
        let state = |roster: &Roster, id: &str| roster.state(roster.find(id).unwrap());
        assert_eq!((state(&roster, "b"), state(&roster, "c")), (None, Some(State::Drained)));
        assert_eq!(roster.age_ms(roster.find("b").unwrap()), None);
        roster.heard(snapshot(100, &[("a", beat(100, "n", "l1")), ("b", beat(99, "m", "l2"))]), at(0));
        // Ten minutes without an answer: N is not to be relied on, and "b" is what it was.
        assert_eq!(roster.parts(at(600)), (1, Some(Reason::MembershipStale)));
        assert_eq!((state(&roster, "b"), roster.age_ms(roster.find("b").unwrap())), (Some(State::Live), Some(1_000)));
    }

    #[test]
    fn a_snapshot_older_than_the_window_splits_nothing_and_says_so() {
        let mut roster = Roster::new("a", "n", "l1", WINDOW_NS);
        roster.heard(snapshot(100, &[("b", beat(100, "m", "l2")), ("c", beat(99, "o", "l3"))]), at(0));
        assert_eq!(roster.parts(at(15)), (3, None));
        assert_eq!(roster.parts(MonoNs(15 * SECOND_NS + 1)), (1, Some(Reason::MembershipStale)));
    }

    #[test]
    fn one_that_said_goodbye_is_drained_at_once_and_kept() {
        let mut roster = Roster::new("a", "n", "l1", WINDOW_NS);
        let left = Beat { drained: true, ..beat(100, "m", "l2") };
        roster.heard(snapshot(100, &[("b", left)]), at(0));
        assert_eq!((roster.n_live(), roster.entries().count()), (1, 1));
        assert_eq!(roster.state(roster.find("b").unwrap()), Some(State::Drained));
    }

    #[test]
    fn a_restart_is_no_conflict_and_a_second_process_of_the_same_name_is() {
        let mut roster = Roster::new("a", "new", "l1", WINDOW_NS);
        let predecessor =
            Snapshot { before: Some(beat(99, "old", "l1")), ..snapshot(100, &[("a", beat(100, "new", "l1"))]) };
        roster.heard(predecessor, at(0));
        assert!(!roster.has_conflict(at(0)));
        let twin =
            Snapshot { before: Some(beat(101, "twin", "l9")), ..snapshot(102, &[("a", beat(102, "new", "l1"))]) };
        roster.heard(twin, at(2));
        assert_eq!(roster.parts(at(3)), (1, Some(Reason::ReplicaIdConflict)));
        roster.heard(snapshot(118, &[("a", beat(118, "new", "l1"))]), at(18));
        assert!(!roster.has_conflict(at(18)), "the twin was silent for a window");
    }

    #[test]
    fn a_copy_of_our_ledger_under_another_name_is_a_conflict_and_our_old_name_is_not() {
        let mut roster = Roster::new("a", "n", "l1", WINDOW_NS);
        roster.heard(snapshot(100, &[("old-a", beat(98, "o", "l1"))]), at(0));
        assert!(!roster.has_conflict(at(0)), "we were called that before");
        roster.heard(snapshot(102, &[("old-a", beat(98, "o", "l1")), ("clone", beat(101, "c", "l1"))]), at(2));
        assert!(roster.has_conflict(at(2)));
    }

    #[test]
    fn a_decommissioned_replica_is_gone_until_it_beats_again() {
        let mut roster = Roster::new("a", "n", "l1", WINDOW_NS);
        let dead = Entry { id: "b".to_owned(), card: card("l2"), last_beat_us: 50, drained: false };
        assert!(roster.remember(vec![dead.clone()], &[]));
        assert!(roster.heard(Snapshot { gone: vec![("b".to_owned(), 60)], ..snapshot(100, &[]) }, at(0)));
        assert_eq!(roster.entries().count(), 0);
        assert!(!roster.remember(vec![dead], &[]), "a copy does not bring it back");
        roster.heard(snapshot(101, &[("b", beat(101, "m", "l2"))]), at(1));
        assert_eq!(roster.n_live(), 2);
    }

    #[test]
    fn a_store_that_forgot_everybody_makes_us_forget_nobody() {
        let mut roster = Roster::new("a", "n", "l1", WINDOW_NS);
        roster.heard(snapshot(100, &[("b", beat(100, "m", "l2"))]), at(0));
        roster.heard(snapshot(200, &[("a", beat(200, "n", "l1"))]), at(100));
        assert_eq!((roster.n_live(), roster.entries().count()), (1, 2));
    }

    #[test]
    fn the_roster_is_bounded_and_keeps_the_youngest() {
        let mut roster = Roster::new("a", "n", "l1", WINDOW_NS);
        let many = (0..ENTRIES_MAX as u64 + 5).map(|n| (format!("pod-{n}"), beat(n, "m", "l2"))).collect();
        roster.heard(Snapshot { now_us: 9, before: None, beats: many, gone: Vec::new() }, at(0));
        assert_eq!(roster.entries().count(), ENTRIES_MAX);
        assert!(roster.find("pod-4").is_none() && roster.find("pod-5").is_some());
    }
}

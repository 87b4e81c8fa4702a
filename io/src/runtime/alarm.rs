//! One lazy alarm per waiter, and one timer per core.
//!
//! Nearly every wait ends before its deadline. An alarm therefore stays set for the deadline it was asked for first: when
//! a later one is asked for, it rings early and is moved then. A request that meets its deadlines sets an alarm once a
//! second or not at all. The core waits no longer than until the earliest is due.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::future::poll_fn;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use smallvec::SmallVec;

use crate::clock;

thread_local! {
    static BOARD: RefCell<Board> = RefCell::new(Board::default());
    /// Until when what was due has rung.
    static RUNG_NS: Cell<u64> = const { Cell::new(0) };
}

/// The alarms of one core.
#[derive(Default)]
struct Board {
    /// When each set alarm is due, by monotonic ns and seat.
    due: BTreeSet<(u64, usize)>,
    seats: Vec<Seat>,
    free: Vec<usize>,
}

#[derive(Default)]
struct Seat {
    waiting: Option<Waker>,
    has_rung: bool,
}

impl Board {
    fn set(&mut self, seat: usize, at_ns: u64) {
        self.seats[seat].has_rung = false;
        self.due.insert((at_ns, seat));
    }

    /// Takes the alarms that are due, and gives who is to be woken.
    fn ring(&mut self, now_ns: u64) -> SmallVec<[Waker; 8]> {
        let mut woken = SmallVec::new();
        while let Some(&(at_ns, seat)) = self.due.first()
            && at_ns <= now_ns
        {
            self.due.pop_first();
            self.seats[seat].has_rung = true;
            woken.extend(self.seats[seat].waiting.take());
        }
        woken
    }
}

/// When the next alarm of this core is due; `u64::MAX` if none is set.
pub(super) fn next_ns() -> u64 {
    BOARD.with_borrow(|board| board.due.first().map_or(u64::MAX, |(at_ns, _)| *at_ns))
}

/// Rings what is due.
pub(super) fn ring(now_ns: u64) {
    RUNG_NS.set(now_ns);
    let woken = BOARD.with_borrow_mut(|board| board.ring(now_ns));
    woken.into_iter().for_each(Waker::wake);
}

/// Nobody waits any more.
pub(super) fn forget_all() {
    drop(BOARD.take()); // outside of the board: what goes with a waker may have alarms
}

/// An alarm that is set as rarely as possible. Deadlines are monotonic nanoseconds ([`clock::mono_ns`]).
#[derive(Default)]
pub struct Alarm {
    seat: Option<usize>,
    /// What the board has, as long as it has not rung.
    set_for_ns: u64,
    /// Whose waker the board has, by the address that tells tasks apart: as long as the waker is there, so is its task.
    asker: usize,
}

impl Alarm {
    /// Ready once `deadline_ns` has passed by the clock; otherwise wakes the task then, at most 1 ms late.
    pub fn poll_at(&mut self, cx: &mut Context<'_>, deadline_ns: u64) -> Poll<()> {
        if deadline_ns == u64::MAX {
            return Poll::Pending;
        }
        let asker = cx.waker().data().addr();
        // Nearly always: a wait that goes on. The board need not be looked at, whose seats lie cold among many waits.
        let is_set = self.seat.is_some() && self.set_for_ns <= deadline_ns && self.set_for_ns > RUNG_NS.get();
        if is_set && self.asker == asker {
            return Poll::Pending;
        }
        self.asker = asker;
        BOARD.with_borrow_mut(|board| {
            let seat = match self.seat {
                Some(seat) => {
                    if board.seats[seat].has_rung {
                        if clock::mono_ns() >= deadline_ns {
                            return Poll::Ready(());
                        }
                        self.set(board, seat, deadline_ns);
                    } else if self.set_for_ns > deadline_ns {
                        board.due.remove(&(self.set_for_ns, seat));
                        self.set(board, seat, deadline_ns);
                    }
                    seat
                }
                None => {
                    let seat = board.free.pop().unwrap_or_else(|| {
                        board.seats.push(Seat::default());
                        board.seats.len() - 1
                    });
                    self.seat = Some(seat);
                    self.set(board, seat, deadline_ns);
                    seat
                }
            };
            match &mut board.seats[seat].waiting {
                Some(waker) => waker.clone_from(cx.waker()),
                empty => *empty = Some(cx.waker().clone()),
            }
            Poll::Pending
        })
    }

    fn set(&mut self, board: &mut Board, seat: usize, at_ns: u64) {
        self.set_for_ns = at_ns;
        board.set(seat, at_ns);
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        let Some(seat) = self.seat else { return };
        // A thread that ends may have lost its board already.
        let _ = BOARD.try_with(|board| {
            let mut board = board.borrow_mut();
            board.due.remove(&(self.set_for_ns, seat));
            if let Some(left) = board.seats.get_mut(seat) {
                *left = Seat::default();
                board.free.push(seat);
            }
        });
    }
}

/// Waits for `duration`, at most 1 ms longer.
pub async fn sleep(duration: Duration) {
    let mut alarm = Alarm::default();
    let deadline_ns = clock::mono_ns().saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX));
    poll_fn(|cx| alarm.poll_at(cx, deadline_ns)).await;
}

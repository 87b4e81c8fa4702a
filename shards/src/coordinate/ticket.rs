//! Who waits on one core: a ticket for each call, so that an answer finds the request that asked and no other.
//!
//! A ticket that was given up may be issued again; its number then has another generation, and an answer to the old one is
//! late: dropped and counted. Knows no core and no runtime but the standard waker.

use std::task::Waker;

/// Calls one core may have out. Past it a call is not made and the local cell answers.
pub const TICKETS_MAX: usize = 4_096;

/// One call's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TicketId {
    slot: u32,
    generation: u32,
}

/// The tickets of one core.
#[derive(Debug)]
pub struct Tickets<A> {
    slots: Vec<Slot<A>>,
    free: Vec<u32>,
    late: u64,
}

#[derive(Debug)]
struct Slot<A> {
    generation: u32,
    state: State<A>,
}

#[derive(Debug)]
enum State<A> {
    Free,
    Waiting(Option<Waker>),
    Answered(A),
}

impl<A> Default for Tickets<A> {
    fn default() -> Tickets<A> {
        Tickets { slots: Vec::new(), free: Vec::new(), late: 0 }
    }
}

impl<A> Tickets<A> {
    /// A ticket nobody else holds; `None` when all are out.
    pub fn issue(&mut self) -> Option<TicketId> {
        let at = match self.free.pop() {
            Some(at) => at,
            None if self.slots.len() < TICKETS_MAX => {
                self.slots.push(Slot { generation: 0, state: State::Free });
                self.slots.len() as u32 - 1 // below TICKETS_MAX
            }
            None => return None,
        };
        let slot = self.slots.get_mut(at as usize)?;
        slot.state = State::Waiting(None);
        Some(TicketId { slot: at, generation: slot.generation })
    }

    /// An answer came. Whoever waits is to be woken; nobody is when the ticket was given up, and then it is counted late.
    pub fn answer(&mut self, id: TicketId, answer: A) -> Option<Waker> {
        match self.held(id) {
            Some(slot) => match std::mem::replace(&mut slot.state, State::Answered(answer)) {
                State::Waiting(waker) => waker,
                State::Free | State::Answered(_) => None,
            },
            None => {
                self.late += 1;
                None
            }
        }
    }

    /// The answer, once: the ticket is free again with it. Without one, `waker` is woken when it comes.
    pub fn take(&mut self, id: TicketId, waker: &Waker) -> Option<A> {
        let slot = self.held(id)?;
        match std::mem::replace(&mut slot.state, State::Free) {
            State::Answered(answer) => {
                self.release(id);
                Some(answer)
            }
            State::Free | State::Waiting(_) => {
                slot.state = State::Waiting(Some(waker.clone()));
                None
            }
        }
    }

    /// Nobody waits any more. Does nothing to a ticket that was taken or given up before.
    pub fn give_up(&mut self, id: TicketId) {
        if self.held(id).is_some() {
            self.release(id);
        }
    }

    /// Answers that came too late.
    pub fn late(&self) -> u64 {
        self.late
    }

    /// Tickets that are out.
    pub fn out(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    fn held(&mut self, id: TicketId) -> Option<&mut Slot<A>> {
        self.slots.get_mut(id.slot as usize).filter(|slot| slot.generation == id.generation)
    }

    fn release(&mut self, id: TicketId) {
        if let Some(slot) = self.held(id) {
            slot.state = State::Free;
            // Comes round after four billion calls of one slot, all of which would have to be late by then.
            slot.generation = slot.generation.wrapping_add(1);
            self.free.push(id.slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asleep() -> &'static Waker {
        Waker::noop()
    }

    #[test]
    fn an_answer_finds_its_own_ticket_and_is_taken_once() {
        let mut tickets = Tickets::default();
        let (one, two) = (tickets.issue().unwrap(), tickets.issue().unwrap());
        assert_eq!(tickets.take(two, asleep()), None);
        assert!(tickets.answer(two, "two").is_some(), "it waits and is woken");
        assert!(tickets.answer(one, "one").is_none(), "it has not begun to wait");
        assert_eq!((tickets.take(one, asleep()), tickets.take(two, asleep())), (Some("one"), Some("two")));
        assert_eq!((tickets.take(one, asleep()), tickets.out(), tickets.late()), (None, 0, 0));
    }

    #[test]
    fn a_late_answer_is_counted_and_reaches_nobody() {
        let mut tickets = Tickets::default();
        let first = tickets.issue().unwrap();
        tickets.give_up(first);
        tickets.give_up(first);
        let second = tickets.issue().unwrap();
        assert_ne!(first, second, "the same slot, another generation");
        assert!(tickets.answer(first, "late").is_none());
        assert_eq!((tickets.late(), tickets.take(second, asleep())), (1, None));
        tickets.answer(second, "in time");
        assert_eq!(tickets.take(second, asleep()), Some("in time"));
        tickets.answer(second, "twice");
        assert_eq!((tickets.late(), tickets.out()), (2, 0));
    }

    #[test]
    fn the_number_of_tickets_has_a_maximum() {
        let mut tickets = Tickets::<()>::default();
        let all: Vec<_> = std::iter::from_fn(|| tickets.issue()).collect();
        assert_eq!(all.len(), TICKETS_MAX);
        tickets.give_up(all[7]);
        assert!(tickets.issue().is_some() && tickets.issue().is_none());
    }
}

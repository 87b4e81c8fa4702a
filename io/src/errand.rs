//! Errands: a core hands questions to another thread and goes on serving; the answers come back with its doorbell.
//!
//! Two single-producer rings of fixed depth. Nobody waits here: a question that finds its ring full is not taken, and an
//! answer that finds its ring full is lost, which its asker must be able to bear (it has a deadline). Wakes are coalesced
//! on both sides.

use std::sync::Arc;

use tokio::sync::Notify;

use crate::doorbell::Doorbell;

/// The core's end.
pub struct Asker<Q, A> {
    questions: rtrb::Producer<Q>,
    answers: rtrb::Consumer<A>,
    wake: Arc<Notify>,
}

/// The other thread's end.
pub struct Answerer<Q, A> {
    questions: rtrb::Consumer<Q>,
    answers: rtrb::Producer<A>,
    doorbell: Doorbell,
    has_answered: bool,
}

/// A pair with room for `depth` questions and as many answers. `wake` wakes the answering thread, `doorbell` the core.
pub fn errands<Q, A>(depth: usize, wake: Arc<Notify>, doorbell: Doorbell) -> (Asker<Q, A>, Answerer<Q, A>) {
    let (ask, asked) = rtrb::RingBuffer::new(depth);
    let (answer, answered) = rtrb::RingBuffer::new(depth);
    let asker = Asker { questions: ask, answers: answered, wake };
    (asker, Answerer { questions: asked, answers: answer, doorbell, has_answered: false })
}

impl<Q, A> Asker<Q, A> {
    /// Hands a question over; whoever answers is woken by [`Asker::ring`]. `false`: the ring is full, nothing was handed
    /// over.
    pub fn ask(&mut self, question: Q) -> bool {
        self.questions.push(question).is_ok()
    }

    /// Wakes whoever answers. Costs a system call when it sleeps.
    pub fn ring(&self) {
        self.wake.notify_one();
    }

    /// The next answer that is there.
    pub fn next_answer(&mut self) -> Option<A> {
        self.answers.pop().ok()
    }
}

impl<Q, A> Answerer<Q, A> {
    /// The next question that is there.
    pub fn next_question(&mut self) -> Option<Q> {
        self.questions.pop().ok()
    }

    /// Sends an answer; `false` when it was lost. The core is woken by [`Answerer::ring`].
    pub fn answer(&mut self, answer: A) -> bool {
        self.has_answered = true;
        self.answers.push(answer).is_ok()
    }

    /// Wakes the core, if anything was answered since the last time.
    pub fn ring(&mut self) {
        if std::mem::take(&mut self.has_answered) {
            self.doorbell.ring();
        }
    }
}

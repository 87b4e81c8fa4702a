//! A core's io_uring: operations that the kernel carries out while the core does something else.
//!
//! An operation has a slot, which holds all that the kernel needs until it is done: the buffer, and the descriptor, whose
//! number another connection would get otherwise. Whoever began it holds an [`Operation`] and is woken when it is done;
//! dropping that calls it off, and the slot is free once the kernel says so.
//!
//! Nothing is handed over at once: a turn of the core hands over what its tasks began with one system call, the same that
//! waits for what is done.

mod listener;
mod provided;
mod stream;

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use io_uring::{IoUring, Probe, cqueue, opcode, squeue, types};

pub(super) use self::listener::Listener;
use self::provided::Provided;
pub(super) use self::stream::Stream;
use super::buffers::give_buffer;
use crate::clock;

/// What a call-off completes with; nobody waits for it.
const CALL_OFF: u64 = u64::MAX;
/// How long the end of a ring waits for what it called off. What is left then is leaked, because the kernel may have it.
const END_NS: u64 = 1_000_000_000;

/// One core's ring.
pub(super) struct Ring(RefCell<Inside>);

struct Inside {
    uring: IoUring,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Taken from the kernel and not yet told: a buffer that is kept.
    arrived: Vec<cqueue::Entry>,
    /// The kernel knows receives that wait before they try.
    can_poll_first: bool,
    /// Where the kernel knows receives that go on: what they read into. After `uring`, which uses it.
    provided: Option<Provided>,
}

/// What one operation needs and what became of it.
#[derive(Default)]
struct Slot {
    stage: Stage,
    /// This result wakes nobody: who began it asks when something else has happened.
    quiet_at: Option<i32>,
    waker: Option<Waker>,
    /// What the kernel reads or writes; of a receive that goes on, what came and was not taken yet.
    buffer: Vec<u8>,
    /// Kept open until it is done.
    _file: Option<Rc<OwnedFd>>,
    /// Its result is a descriptor.
    opens: bool,
    done_ns: u64,
}

#[derive(Clone, Copy, Default)]
enum Stage {
    #[default]
    Free,
    UnderWay,
    /// Called off; nobody asks for its result.
    Abandoned,
    Done {
        result: i32,
        flags: u32,
    },
}

/// An operation under way, or done and not yet asked for. Dropping it calls it off.
pub(super) struct Operation {
    ring: Rc<Ring>,
    slot: u32,
}

/// What became of an operation.
pub(super) struct Done {
    /// Bytes, events or a descriptor.
    pub(super) result: io::Result<i32>,
    pub(super) buffer: Vec<u8>,
    /// The socket had more to read.
    pub(super) has_more: bool,
    /// When it was found done, monotonic ns.
    pub(super) at_ns: u64,
}

impl Ring {
    /// Sets a ring up; the reason of the kernel, or what it lacks, otherwise. `is_single_issuer`: the builder says so, which
    /// only Linux 6.0 and later accept.
    pub(super) fn new(builder: &io_uring::Builder, entries: u32, is_single_issuer: bool) -> io::Result<Rc<Self>> {
        let mut uring: IoUring = builder.build(entries)?;
        let lacks = |what: &str| io::Error::new(io::ErrorKind::Unsupported, format!("the kernel lacks {what}"));
        if !uring.params().is_feature_ext_arg() {
            return Err(lacks("waits with a timeout (Linux 5.11)"));
        }
        let mut probe = Probe::new();
        uring.submitter().register_probe(&mut probe)?;
        let needed = [
            ("recv", opcode::Recv::CODE),
            ("send", opcode::Send::CODE),
            ("accept", opcode::Accept::CODE),
            ("poll", opcode::PollAdd::CODE),
            ("cancel", opcode::AsyncCancel::CODE),
        ];
        if let Some((name, _)) = needed.iter().find(|(_, code)| !probe.is_supported(*code)) {
            return Err(lacks(&format!("the operation {name}")));
        }
        // A filter may allow the ring and not its use.
        // SAFETY: an operation that points to nothing.
        unsafe { uring.submission().push(&opcode::Nop::new().build()) }.map_err(io::Error::other)?;
        uring.submit_and_wait(1)?;
        uring.completion().for_each(drop);
        let provided = if is_single_issuer { Provided::register(&mut uring)? } else { None };
        let (slots, free, arrived) = Default::default();
        let inside = Inside { uring, slots, free, arrived, can_poll_first: is_single_issuer, provided };
        Ok(Rc::new(Ring(RefCell::new(inside))))
    }

    /// Ready when the descriptor has one of these poll(2) events, or an error.
    pub(super) fn watch(self: &Rc<Self>, file: &Rc<OwnedFd>, events: libc::c_short) -> Operation {
        let entry = opcode::PollAdd::new(types::Fd(file.as_raw_fd()), events as u32).build();
        self.begin(file, Vec::new(), false, entry)
    }

    /// Takes the next caller of a listening socket in.
    fn accept(self: &Rc<Self>, file: &Rc<OwnedFd>) -> Operation {
        let listener = types::Fd(file.as_raw_fd());
        // No address is asked for.
        let entry = opcode::Accept::new(listener, std::ptr::null_mut(), std::ptr::null_mut());
        self.begin(file, Vec::new(), true, entry.flags(libc::SOCK_CLOEXEC).build())
    }

    fn begin(self: &Rc<Self>, file: &Rc<OwnedFd>, buffer: Vec<u8>, opens: bool, entry: squeue::Entry) -> Operation {
        let mut inside = self.0.borrow_mut();
        let index = inside.free.pop().unwrap_or_else(|| {
            inside.slots.push(Slot::default());
            (inside.slots.len() - 1) as u32 // far below 2^32: each has a descriptor
        });
        let slot = &mut inside.slots[index as usize];
        *slot = Slot { stage: Stage::UnderWay, buffer, _file: Some(file.clone()), opens, ..Slot::default() };
        inside.push(entry.user_data(u64::from(index)));
        Operation { ring: self.clone(), slot: index }
    }

    /// Hands over what was begun, waits until something is done or until `until_ns` (monotonic; 0 does not wait,
    /// `u64::MAX` has no end), and wakes whom it concerns.
    pub(super) fn turn(&self, until_ns: u64) {
        let mut inside = self.0.borrow_mut();
        let until_ns = if inside.arrived.is_empty() { until_ns } else { 0 };
        inside.enter(until_ns);
        let mut arrived = std::mem::take(&mut inside.arrived);
        arrived.extend(inside.uring.completion());
        if !arrived.is_empty() {
            drop(inside);
            let now_ns = clock::mono_ns();
            for entry in arrived.drain(..) {
                // Woken, or dropped, while nothing of the ring is borrowed: either may come back to it.
                let (waker, _left) = self.0.borrow_mut().done(&entry, now_ns);
                if let Some(waker) = waker {
                    waker.wake();
                }
            }
            inside = self.0.borrow_mut();
        }
        // Nothing, unless somebody who was dropped above had to hand something over.
        arrived.append(&mut inside.arrived);
        inside.arrived = arrived;
    }

    /// Nobody waits any more. Whoever was waited for is dropped with its last waker.
    pub(super) fn forget_waiting(&self) {
        let mut wakers = Vec::new();
        for slot in &mut self.0.borrow_mut().slots {
            wakers.extend(slot.waker.take());
        }
        drop(wakers); // while nothing is borrowed: it may call operations off
    }

    /// Calls everything off and waits for it to end.
    pub(super) fn end(&self) {
        let deadline_ns = clock::mono_ns().saturating_add(END_NS);
        {
            let mut inside = self.0.borrow_mut();
            for index in 0..inside.slots.len() {
                inside.call_off(index as u32);
            }
        }
        while self.0.borrow().is_busy() && clock::mono_ns() < deadline_ns {
            self.turn(deadline_ns);
        }
    }
}

impl Inside {
    /// Puts an operation into the submission queue. One that is full is handed over first.
    fn push(&mut self, entry: squeue::Entry) {
        // SAFETY: what the entry points to is in its slot until the kernel says that it is done, or of the kernel's alone.
        while unsafe { self.uring.submission().push(&entry) }.is_err() {
            self.enter(0);
            // A kernel whose completions are not taken may take no more operations.
            let Inside { uring, arrived, .. } = self;
            arrived.extend(uring.completion());
        }
    }

    fn call_off(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        if matches!(slot.stage, Stage::UnderWay) {
            slot.stage = Stage::Abandoned;
            self.push(opcode::AsyncCancel::new(u64::from(index)).build().user_data(CALL_OFF));
        }
    }

    fn is_busy(&self) -> bool {
        self.slots.iter().any(|slot| matches!(slot.stage, Stage::UnderWay | Stage::Abandoned))
    }

    /// The system call.
    fn enter(&mut self, until_ns: u64) {
        let (pending, has_work) = {
            let queue = self.uring.submission();
            (!queue.is_empty(), queue.taskrun() || queue.cq_overflow())
        };
        let submitter = self.uring.submitter();
        let entered = match until_ns {
            0 if !pending && !has_work => return,
            0 => submitter.submit(),
            u64::MAX => submitter.submit_and_wait(1),
            _ => {
                let left = Duration::from_nanos(until_ns.saturating_sub(clock::mono_ns()));
                let left = types::Timespec::from(left);
                submitter.submit_with_args(1, &types::SubmitArgs::new().timespec(&left))
            }
        };
        let Err(error) = entered else { return };
        match error.raw_os_error() {
            // The time is over; a signal; the kernel is short of memory or has completions to be taken first.
            Some(libc::ETIME | libc::EINTR | libc::EAGAIN | libc::EBUSY) => {}
            // Nothing that a peer does leads here: the ring is no ring, the arguments are none, or a completion was lost for
            // want of memory, and somebody would wait for it for ever.
            _ => panic!("io_uring_enter: {error}"),
        }
    }

    /// Notes what is done: whom to wake, and what nobody needs any more.
    fn done(&mut self, entry: &cqueue::Entry, now_ns: u64) -> (Option<Waker>, Option<Slot>) {
        let index = entry.user_data();
        let Some(slot) = self.slots.get_mut(index as usize).filter(|_| index != CALL_OFF) else { return (None, None) };
        if let Some(id) = cqueue::buffer_select(entry.flags()).filter(|_| entry.result() >= 0)
            && let Some(came) = self.provided.as_mut().and_then(|provided| provided.take(id, entry.result() as usize))
        {
            if slot.buffer.is_empty() && matches!(slot.stage, Stage::UnderWay) {
                slot.buffer = came;
            } else {
                slot.buffer.extend_from_slice(&came);
                give_buffer(came);
            }
        }
        if cqueue::more(entry.flags()) {
            let waker = slot.waker.take();
            if matches!(slot.stage, Stage::Abandoned) {
                slot.buffer.clear();
            }
            return (waker, None);
        }
        if matches!(slot.stage, Stage::Abandoned) {
            let slot = std::mem::take(slot);
            self.free.push(index as u32);
            if slot.opens && entry.result() >= 0 {
                // SAFETY: opened for us, and nobody else knows of it.
                drop(unsafe { OwnedFd::from_raw_fd(entry.result()) });
            }
            return (None, Some(slot));
        }
        slot.stage = Stage::Done { result: entry.result(), flags: entry.flags() };
        slot.done_ns = now_ns;
        let is_quiet = slot.quiet_at == Some(entry.result());
        (if is_quiet { None } else { slot.waker.take() }, None)
    }
}

/// A receive was called off, or the ring was out of buffers.
fn may_be_begun_anew(result: i32) -> bool {
    matches!(-result, libc::ECANCELED | libc::ENOBUFS)
}

impl Drop for Inside {
    fn drop(&mut self) {
        if self.is_busy() {
            std::mem::forget(self.provided.take()); // the kernel may have it
        }
        for slot in self.slots.drain(..) {
            if matches!(slot.stage, Stage::UnderWay | Stage::Abandoned) {
                std::mem::forget(slot); // likewise
            }
        }
    }
}

impl Operation {
    /// Ready when it is done; else the task is woken then.
    pub(super) fn poll(&mut self, cx: &Context<'_>) -> Poll<()> {
        self.poll_unless(cx, None)
    }

    /// [`Operation::poll`], but the task is not woken if the result is this one.
    fn poll_unless(&mut self, cx: &Context<'_>, quiet_at: Option<i32>) -> Poll<()> {
        let inside = &mut *self.ring.0.borrow_mut();
        let slot = &mut inside.slots[self.slot as usize];
        if matches!(slot.stage, Stage::Done { .. }) {
            return Poll::Ready(());
        }
        slot.quiet_at = quiet_at;
        match &mut slot.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            empty => *empty = Some(cx.waker().clone()),
        }
        Poll::Pending
    }

    /// Whether bytes of a receive that goes on wait to be taken.
    fn has_arrived(&self) -> bool {
        !self.ring.0.borrow().slots[self.slot as usize].buffer.is_empty()
    }

    /// Whether it has ended.
    fn is_done(&self) -> bool {
        matches!(self.ring.0.borrow().slots[self.slot as usize].stage, Stage::Done { .. })
    }

    /// Whether it has ended because nothing can come any more: at the peer's end, or with an error.
    fn is_over(&self) -> bool {
        match self.ring.0.borrow().slots[self.slot as usize].stage {
            Stage::Done { result, .. } => result <= 0 && !may_be_begun_anew(result),
            _ => false,
        }
    }

    /// Appends at most `room` of the bytes that wait; `None` when there are none.
    fn take_arrived(&self, into: &mut Vec<u8>, room: usize) -> Option<usize> {
        let buffer = &mut self.ring.0.borrow_mut().slots[self.slot as usize].buffer;
        let count = buffer.len().min(room);
        if count == 0 {
            return None;
        }
        if into.is_empty() && count == buffer.len() {
            give_buffer(std::mem::replace(into, std::mem::take(buffer)));
        } else {
            into.extend_from_slice(&buffer[..count]);
            buffer.drain(..count);
            if buffer.is_empty() {
                give_buffer(std::mem::take(buffer));
            }
        }
        Some(count)
    }

    /// It ends soon, with `ECANCELED` or with what was faster.
    fn call_off(&self) {
        let cancel = opcode::AsyncCancel::new(u64::from(self.slot)).build();
        self.ring.0.borrow_mut().push(cancel.user_data(CALL_OFF));
    }

    /// What became of it; `None` while it is under way, and then it is called off.
    pub(super) fn end(self) -> Option<Done> {
        let mut inside = self.ring.0.borrow_mut();
        let slot = &mut inside.slots[self.slot as usize];
        let Stage::Done { result, flags } = slot.stage else { return None };
        let result = if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(result) };
        let buffer = std::mem::take(&mut slot.buffer);
        slot.opens = false; // whoever has the result closes it
        Some(Done { result, buffer, has_more: cqueue::sock_nonempty(flags), at_ns: slot.done_ns })
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        let mut inside = self.ring.0.borrow_mut();
        let slot = &mut inside.slots[self.slot as usize];
        let mut left = (slot.waker.take(), None);
        match slot.stage {
            Stage::Done { result, .. } => {
                if slot.opens && result >= 0 {
                    // SAFETY: opened for us, and nobody took it.
                    drop(unsafe { OwnedFd::from_raw_fd(result) });
                }
                left.1 = Some(std::mem::take(slot));
                inside.free.push(self.slot);
            }
            Stage::UnderWay => inside.call_off(self.slot),
            Stage::Free | Stage::Abandoned => {}
        }
        drop(inside);
        drop(left); // a waker's task may go with it, and come back to the ring
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::provided::RECEIVED_MAX;
    use super::*;

    #[test]
    fn a_peer_that_nobody_reads_fills_some_buffers_and_no_more() {
        let mut builder = IoUring::builder();
        builder.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
        let Ok(ring) = Ring::new(&builder, 64, true) else { return }; // io_uring is not allowed here
        let (ours, mut far) = UnixStream::pair().unwrap();
        let file = Rc::new(OwnedFd::from(ours));
        let Some(operation) = ring.receive_on(&file) else { return }; // nor known to this kernel
        far.set_nonblocking(true).unwrap();
        let mut sent = 0;
        for _ in 0..100 {
            while let Ok(count) = far.write(&[7; 8192]) {
                sent += count;
            }
            ring.turn(clock::mono_ns() + 1_000_000);
        }
        assert!(operation.is_done(), "it has ended, so that the peer waits");
        let mut got = Vec::new();
        let count = operation.take_arrived(&mut got, usize::MAX).unwrap();
        assert!(count == RECEIVED_MAX as usize && count < sent, "{count} of {sent} bytes");
        drop(operation);
        ring.end();
    }
}

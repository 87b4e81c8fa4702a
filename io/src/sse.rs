//! A stream of events, read beside the relay: what ends it, what it used, and the one chunk the client did not ask for.
//!
//! Bytes are never held for a parse. Only when we asked for usage ourselves ([`SseTap::new`] with `hide`), an event is
//! kept back while it may still turn out to be the usage chunk: from its first byte until its `choices` have an
//! element, a few hundred bytes in. Lines may end with LF, CR LF or CR, may be split anywhere and be of any length; an
//! event may be spread over several `data` lines. Knows no socket; `usage::AnswerTap` is its usual caller.

mod cut;
mod lines;

use crate::usage::{BodyScan, Choices, EventKind, Passed, Shape};
use lines::{Lines, Step};

/// An event kept back beyond this is let go: a usage chunk has about 500 bytes.
const HELD_BYTES_MAX: usize = 64 * 1024;

/// One per stream.
#[derive(Clone, Debug)]
pub struct SseTap {
    scan: BodyScan,
    lines: Lines,
    event: Event,
    terminated: bool,
    hide: bool,
    held: Vec<u8>,
    released: Vec<u8>,
    /// An event has ended and nothing of the next was read yet: a LF behind its CR still belongs to it.
    ended: Option<Fate>,
}

/// What became of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Passed,
    Dropped,
}

/// The event being read.
#[derive(Clone, Copy, Debug, Default)]
struct Event {
    /// The first byte of its data that is no space.
    data_first: Option<u8>,
    /// How much of `[DONE]` its data has matched; beyond its length when it is something else.
    done_matched: usize,
    has_fields: bool,
    /// It will not be dropped: its bytes pass as they come.
    passes: bool,
    /// Some of it has gone to the client.
    sent: bool,
}

const DONE: &[u8] = b"[DONE]";

impl SseTap {
    /// `hide`: the usage chunk is for us alone.
    pub fn new(shape: Shape, hide: bool) -> SseTap {
        SseTap {
            scan: BodyScan::new(shape),
            lines: Lines::default(),
            event: Event::default(),
            terminated: false,
            hide,
            held: Vec::new(),
            released: Vec::new(),
            ended: None,
        }
    }

    /// Takes the next piece and says what of it may go out now; see [`Passed`]. Moves bytes of the piece only when
    /// an event in the middle of it is dropped.
    pub fn push(&mut self, piece: &mut [u8]) -> Passed<'_> {
        if self.hide {
            return self.push_hiding(piece);
        }
        let mut at = 0;
        while at < piece.len() {
            let (taken, ended) = self.read_event(&piece[at..]);
            at += taken;
            if ended {
                self.begin_event();
            } else {
                self.event.sent = true;
            }
        }
        Passed { held: b"", length: piece.len() }
    }

    /// The stream has ended: what was kept back and is not the usage chunk. After a cut this need not be sent.
    pub fn finish(&mut self) -> &[u8] {
        self.released.clear();
        if !self.is_usage_chunk() {
            std::mem::swap(&mut self.released, &mut self.held);
        }
        self.held.clear();
        &self.released
    }

    pub fn scan(&self) -> &BodyScan {
        &self.scan
    }

    pub(crate) fn scan_mut(&mut self) -> &mut BodyScan {
        &mut self.scan
    }

    /// Whether an event has said that the stream is complete. What follows is of no account.
    pub fn is_terminated(&self) -> bool {
        self.terminated
    }

    /// Appends the event that tells the client its stream was cut, after whatever is needed to end what was sent of
    /// the current event. Bytes still kept back must not be sent before it.
    pub fn append_cut_event(&self, code: &str, message: &str, out: &mut Vec<u8>) {
        out.extend_from_slice(self.line_ends_before_own_event());
        cut::append_event(self.scan.shape(), code, message, out);
    }

    fn line_ends_before_own_event(&self) -> &'static [u8] {
        let (event, mid_line) = (&self.event, self.lines.is_mid_line());
        match (event.sent, event.has_fields) {
            (false, _) => b"",
            // Behind comments alone an empty line would be an event of its own, which openai-python cannot read.
            (true, false) if mid_line => b"\n",
            (true, false) => b"",
            // A CR that ended the last line would swallow a single LF.
            (true, true) if mid_line || self.lines.is_after_cr() => b"\n\n",
            (true, true) => b"\n",
        }
    }

    /// Reads to the end of the current event or of `text`, whichever comes first; true for the former.
    fn read_event(&mut self, text: &[u8]) -> (usize, bool) {
        let mut at = 0;
        while at < text.len() {
            let (taken, step) = self.lines.step(&text[at..]);
            match step {
                Step::Data { from, to } => self.read_data(&text[at + from..at + to]),
                Step::FieldBegan => self.event.has_fields = true,
                Step::LineEnded { data: true } => self.end_data_line(),
                Step::EventEnded => return (at + taken, true),
                Step::LineEnded { data: false } | Step::Nothing => {}
            }
            at += taken;
        }
        (at, false)
    }

    fn read_data(&mut self, data: &[u8]) {
        let matches = DONE.get(self.event.done_matched..).is_some_and(|rest| rest.starts_with(data));
        self.event.done_matched = if matches { self.event.done_matched + data.len() } else { usize::MAX };
        if self.event.data_first.is_none() {
            self.event.data_first = data.iter().copied().find(|b| !b.is_ascii_whitespace());
        }
        self.scan.feed(data);
    }

    fn end_data_line(&mut self) {
        let ends = matches!(self.scan.document().kind, EventKind::End | EventKind::Failed);
        let done = std::mem::replace(&mut self.event.done_matched, usize::MAX) == DONE.len();
        self.terminated |= done || (ends && self.scan.document().complete);
        // The next data line of this event goes on where this one ended, with a line end between them.
        self.scan.feed(b"\n");
    }

    fn begin_event(&mut self) {
        self.event = Event::default();
        self.scan.begin_document();
    }

    /// Whether the event read so far is the extra chunk that only reports usage.
    fn is_usage_chunk(&self) -> bool {
        let document = self.scan.document();
        self.event.data_first == Some(b'{')
            && document.complete
            && !document.followed
            && document.usage
            && document.choices == Choices::Empty
            && !document.error
    }

    /// Whether the event may still turn out to be it.
    fn may_be_usage_chunk(&self) -> bool {
        let document = self.scan.document();
        let other_data = self.event.data_first.is_some_and(|first| first != b'{');
        let decided = document.choices == Choices::Some || document.error || document.complete;
        !other_data && (!decided || self.is_usage_chunk())
    }

    fn push_hiding(&mut self, piece: &mut [u8]) -> Passed<'_> {
        self.released.clear();
        let (mut length, mut from, mut at) = (0, 0, 0);
        while at < piece.len() {
            if let Some(fate) = self.ended.take()
                && self.lines.is_after_cr()
                && piece[at] == b'\n'
            {
                at += self.read_event(&piece[at..at + 1]).0;
                if fate == Fate::Passed {
                    length = move_down(piece, from..at, length);
                }
                from = at;
                continue;
            }
            let (taken, ended) = self.read_event(&piece[at..]);
            at += taken;
            if !ended {
                break;
            }
            if !self.event.passes && self.is_usage_chunk() {
                self.held.clear();
                self.ended = Some(Fate::Dropped);
            } else {
                self.release_held();
                length = move_down(piece, from..at, length);
                self.ended = Some(Fate::Passed);
            }
            from = at;
            self.begin_event();
        }
        let open = from..piece.len();
        if open.is_empty() {
            return Passed { held: &self.released, length };
        }
        // Comments keep a waiting client alive. The usage chunk comes after the end of the last choice, so until
        // then a comment is not part of it.
        let only_comments = !self.event.has_fields && !self.scan.has_finish_reason();
        if !self.event.passes && !self.may_be_usage_chunk() || self.held.len() + open.len() > HELD_BYTES_MAX {
            self.event.passes = true;
        }
        if self.event.passes || only_comments {
            self.release_held();
            length = move_down(piece, open, length);
            self.event.sent = true;
        } else {
            self.held.extend_from_slice(&piece[open]);
        }
        Passed { held: &self.released, length }
    }

    /// Lets go what was held. Only the first event of a piece can have begun before it, so this comes first in order.
    fn release_held(&mut self) {
        if !self.held.is_empty() {
            std::mem::swap(&mut self.released, &mut self.held);
            self.held.clear();
        }
    }
}

/// Moves `piece[range]` down to `to` and returns where it ends there.
fn move_down(piece: &mut [u8], range: std::ops::Range<usize>, to: usize) -> usize {
    let end = to + range.len();
    if range.start != to {
        piece.copy_within(range, to);
    }
    end
}

#[cfg(test)]
mod tests;

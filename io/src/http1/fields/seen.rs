//! The head that was read before this one: a client asks again and again with the same lines, or the same but for the last
//! few, and what both heads begin with is read once.
//!
//! Compares bytes and nothing else, so that whoever sent the head before makes no difference to what this one says.

use super::{Field, LineEnds};

/// Larger heads are read anew each time: 256 heads that a core keeps × 2 KB = 0.5 MB.
const HEAD_BYTES_MAX: usize = 2 * 1024;

/// A head as it was read.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    /// Up to its empty line.
    text: Vec<u8>,
    /// Where its field lines begin, and how they may end.
    begins: Option<(usize, LineEnds)>,
    fields: Vec<Field>,
    notable: Vec<u8>,
    names_others: bool,
}

/// What two heads have in common.
#[derive(Default)]
pub(super) struct Same<'s> {
    pub(super) fields: &'s [Field],
    pub(super) notable: &'s [u8],
    /// Perhaps one of them is a `Connection` that names others; if not, none is.
    pub(super) names_others: bool,
    /// Where the first other line begins.
    pub(super) next: usize,
}

impl Seen {
    /// What the lines from `start` on say that `buf` has as well.
    pub(super) fn same_lines(&self, buf: &[u8], start: usize, ends: LineEnds) -> Same<'_> {
        if self.begins != Some((start, ends)) {
            return Same { next: start, ..Same::default() };
        }
        let same = same_bytes(&self.text, buf);
        let (mut count, mut next) = (self.fields.len(), self.text.len());
        // A line is the same if the next one begins within what is.
        while next > same && count > 0 {
            count -= 1;
            next = self.fields[count].name.range().start;
        }
        let others = self.notable.iter().rev().take_while(|at| usize::from(**at) >= count).count();
        let notable = &self.notable[..self.notable.len() - others];
        // If none is the same, what stands before them may not be either.
        let next = if count == 0 { start } else { next };
        Same { fields: &self.fields[..count], notable, names_others: self.names_others, next }
    }

    /// Takes the head over that was read from `text`, its empty line left out.
    pub(super) fn keep(
        &mut self,
        text: &[u8],
        begins: (usize, LineEnds),
        fields: &[Field],
        notable: &[u8],
        names_others: bool,
    ) {
        if text.len() > HEAD_BYTES_MAX {
            return;
        }
        self.text.clear();
        self.text.extend_from_slice(text);
        self.begins = Some(begins);
        self.fields.clear();
        self.fields.extend_from_slice(fields);
        self.notable.clear();
        self.notable.extend_from_slice(notable);
        self.names_others = names_others;
    }
}

/// How many bytes both begin with: all of `text`, or whole blocks of it, because a line more that is read costs less than
/// finding the byte.
fn same_bytes(text: &[u8], buf: &[u8]) -> usize {
    const BLOCK: usize = 32;
    let (blocks, rest) = text.as_chunks::<BLOCK>();
    let same = blocks.iter().zip(buf.as_chunks::<BLOCK>().0).take_while(|(ours, theirs)| ours == theirs).count();
    let at = same * BLOCK;
    if same == blocks.len() && buf[at..].starts_with(rest) { text.len() } else { at }
}

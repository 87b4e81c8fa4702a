//! Reads a JSON text in pieces of any size and picks out what metering needs, in bounded memory.
//!
//! Not a validator: the text goes to the client whatever it is, and a server that writes broken JSON only loses its
//! usage report. Strings are skipped without looking at each byte; member names are kept only where one could
//! matter. Depth is followed without recursion or allocation.

use super::keys::{EventKind, Key, meaning};
use super::report::Report;
use super::{Shape, UsageSeen};
use crate::stops::{self, QuoteOrBackslash};
use compact_str::CompactString;

/// A usage object larger than this is not read (they have about 300 bytes).
const USAGE_BYTES_MAX: usize = 8 * 1024;
/// Names and short values that matter are shorter; of a longer one nothing is kept.
const NAME_BYTES_MAX: usize = 64;
/// Members are told apart down to this depth; what matters lies above it.
const DEPTH_KNOWN: usize = 16;

/// One JSON text, or the documents of a stream one after the other.
#[derive(Clone, Debug)]
pub struct BodyScan {
    shape: Shape,
    // Over the whole answer.
    report: Report,
    model: CompactString,
    /// Of generated text as written, and how many `\u` escapes were in it.
    raw_text_bytes: u64,
    unicode_escapes: u64,
    error_seen: bool,
    finished: bool,
    // Of the current document.
    document: Document,
    depth: usize,
    /// Bit d: the container at depth d is an object. Deeper than 63, containers count as arrays: no names there.
    objects: u64,
    /// The member being read at each depth.
    members: [Key; DEPTH_KNOWN],
    expects_name: bool,
    after_colon: bool,
    /// The depth from which on every string is generated text; 0 for none.
    arguments_from: usize,
    // Of the current string.
    string: Option<StringRole>,
    escaped: bool,
    name: [u8; NAME_BYTES_MAX],
    /// Beyond [`NAME_BYTES_MAX`]: too long to matter.
    name_length: usize,
    // Of the usage object being copied.
    capture_depth: usize,
    capture: Vec<u8>,
}

/// What one document (one event of a stream) was.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Document {
    pub kind: EventKind,
    pub choices: Choices,
    /// A usage object was in it.
    pub usage: bool,
    pub error: bool,
    /// Its outermost brackets have closed.
    pub complete: bool,
    /// Another document followed it in the same event, which no API does.
    pub followed: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Choices {
    #[default]
    Absent,
    Empty,
    Some,
}

/// What is done with the bytes of a string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StringRole {
    Skip,
    /// A member's name that could matter.
    Name,
    /// A short value that matters (model, kind of event, tier).
    Value,
    Text,
}

impl BodyScan {
    pub fn new(shape: Shape) -> BodyScan {
        BodyScan {
            shape,
            report: Report::default(),
            model: CompactString::default(),
            raw_text_bytes: 0,
            unicode_escapes: 0,
            error_seen: false,
            finished: false,
            document: Document::default(),
            depth: 0,
            objects: 0,
            members: [Key::Other; DEPTH_KNOWN],
            expects_name: false,
            after_colon: false,
            arguments_from: 0,
            string: None,
            escaped: false,
            name: [0; NAME_BYTES_MAX],
            name_length: 0,
            capture_depth: 0,
            capture: Vec::new(),
        }
    }

    /// Takes the next piece. Never fails; what cannot be understood is passed over.
    pub fn feed(&mut self, piece: &[u8]) {
        // Where the part of a usage object in this piece begins.
        let mut captured_from = 0;
        let mut at = 0;
        if self.string.is_some() && !piece.is_empty() {
            at = self.read_string(piece, 0);
        }
        while let Some(&byte) = piece.get(at) {
            at += 1;
            match byte {
                b'"' => {
                    at = self.open_string(piece, at);
                    // Right behind a name, nearly always: one round less.
                    if piece.get(at) == Some(&b':') {
                        at += 1;
                        self.take_colon();
                    }
                }
                b':' => self.take_colon(),
                b',' => self.expects_name = self.is_object(),
                b'{' | b'[' => {
                    if self.open_container(byte) {
                        captured_from = at - 1;
                    }
                }
                b'}' | b']' => {
                    if self.capture_depth != 0 && self.capture_depth == self.depth {
                        self.end_capture(&piece[captured_from..at]);
                    }
                    self.close_container();
                }
                b' ' | b'\n' | b'\r' | b'\t' => {}
                _ => {
                    if self.after_colon {
                        self.open_scalar(byte);
                    }
                    // The rest of it says nothing.
                    while piece.get(at).is_some_and(|&byte| !STRUCTURE[usize::from(byte)]) {
                        at += 1;
                    }
                }
            }
        }
        if self.capture_depth != 0 {
            self.capture(&piece[captured_from..]);
        }
    }

    /// What was reported so far; `None` when there was no sign of usage.
    pub fn usage(&self) -> Option<UsageSeen> {
        self.report.usage(self.shape)
    }

    /// Bytes of generated text so far, tool-call arguments included: the basis of an estimate when usage is missing.
    pub fn text_bytes(&self) -> u64 {
        // `\u5317` stands for about three bytes of text: its four digits less one.
        self.raw_text_bytes.saturating_sub(self.unicode_escapes)
    }

    /// The model the answer names: recorded, not trusted for a price.
    pub fn model(&self) -> Option<&str> {
        (!self.model.is_empty()).then_some(self.model.as_str())
    }

    /// Whether the answer is an error, or its stream reported one.
    pub fn error_seen(&self) -> bool {
        self.error_seen
    }

    /// Starts the next document of a stream; what the answer said so far stays.
    pub(crate) fn begin_document(&mut self) {
        self.document = Document::default();
        self.depth = 0;
        self.objects = 0;
        self.expects_name = false;
        self.after_colon = false;
        self.arguments_from = 0;
        self.string = None;
        self.escaped = false;
        self.capture_depth = 0;
        self.capture.clear();
    }

    pub(crate) fn document(&self) -> &Document {
        &self.document
    }

    /// Whether a choice of a chat has said why it ended. Only the usage chunk and the end mark come after that.
    pub fn has_finish_reason(&self) -> bool {
        self.finished
    }

    pub(crate) fn shape(&self) -> Shape {
        self.shape
    }

    /// Counts bytes of an answer that cannot be read as text.
    pub(crate) fn count_opaque(&mut self, bytes: usize) {
        self.raw_text_bytes += bytes as u64;
    }

    fn is_object(&self) -> bool {
        self.depth < 64 && self.objects >> self.depth & 1 == 1
    }

    fn member(&self, depth: usize) -> Key {
        self.members.get(depth).copied().unwrap_or_default()
    }

    /// The member being read where we are, and `Other` at the outermost level.
    fn current(&self) -> Key {
        self.member(self.depth)
    }

    fn take_colon(&mut self) {
        self.expects_name = false;
        self.after_colon = true;
    }

    /// Begins a string whose content starts at `from`, and returns where to go on: behind it, or at the end of the piece.
    #[inline(always)]
    fn open_string(&mut self, piece: &[u8], from: usize) -> usize {
        let role = self.role_of_string();
        let end = stops::next_far::<QuoteOrBackslash>(piece, from);
        if piece.get(end) != Some(&b'"') {
            self.name_length = 0;
            self.string = Some(role);
            return self.read_string(piece, from);
        }
        // The usual case: all of it lies in this piece.
        match role {
            StringRole::Skip => {}
            StringRole::Text => self.raw_text_bytes += (end - from) as u64,
            StringRole::Name => self.finish_name(&piece[from..end]),
            StringRole::Value => self.finish_value(&piece[from..end]),
        }
        end + 1
    }

    #[inline(always)]
    fn role_of_string(&mut self) -> StringRole {
        if self.expects_name {
            if self.names_matter() { StringRole::Name } else { self.role_in_arguments() }
        } else {
            self.after_colon = false;
            match self.current() {
                _ if self.arguments_from != 0 => StringRole::Text,
                Key::Text | Key::Arguments | Key::TextRoot => StringRole::Text,
                Key::Model if !self.model.is_empty() => StringRole::Skip,
                Key::Model | Key::Type | Key::Tier => StringRole::Value,
                Key::Error => {
                    self.error();
                    StringRole::Skip
                }
                Key::Usage => {
                    self.report.unreadable();
                    StringRole::Skip
                }
                Key::FinishReason => {
                    self.finished = true;
                    StringRole::Skip
                }
                _ => StringRole::Skip,
            }
        }
    }

    fn role_in_arguments(&self) -> StringRole {
        if self.arguments_from != 0 { StringRole::Text } else { StringRole::Skip }
    }

    /// Whether the name of a member here could be one that means something.
    fn names_matter(&self) -> bool {
        let root = self.member(1);
        match self.depth {
            1 => true,
            2 if root == Key::Wrapper => true,
            depth => depth < DEPTH_KNOWN && root.is_text_root() && self.arguments_from == 0,
        }
    }

    /// Reads on in a string and returns where to go on: behind its quote, or at the end of the piece.
    fn read_string(&mut self, piece: &[u8], from: usize) -> usize {
        let mut at = from;
        if self.escaped {
            self.escaped = false;
            self.read_escape(piece[at]);
            at += 1;
        }
        loop {
            let rest = &piece[at..];
            let length = stops::next_far::<QuoteOrBackslash>(rest, 0);
            let part = &rest[..length];
            match rest.get(length) {
                None => {
                    self.keep(part);
                    return piece.len();
                }
                Some(b'"') => {
                    self.close_string(part);
                    return at + length + 1;
                }
                Some(_) => {
                    self.keep(part);
                    let Some(&escape) = rest.get(length + 1) else {
                        self.escaped = true;
                        return piece.len();
                    };
                    self.read_escape(escape);
                    at += length + 2;
                }
            }
        }
    }

    fn keep(&mut self, part: &[u8]) {
        match self.string {
            Some(StringRole::Text) => self.raw_text_bytes += part.len() as u64,
            Some(StringRole::Name | StringRole::Value) => {
                let end = self.name_length + part.len();
                if let Some(room) = self.name.get_mut(self.name_length..end) {
                    room.copy_from_slice(part);
                }
                self.name_length = end;
            }
            Some(StringRole::Skip) | None => {}
        }
    }

    /// The character behind a backslash.
    fn read_escape(&mut self, escape: u8) {
        match self.string {
            Some(StringRole::Text) if escape == b'u' => self.unicode_escapes += 1,
            Some(StringRole::Text) => self.raw_text_bytes += 1,
            // No name that matters is written with escapes.
            _ => self.name_length = NAME_BYTES_MAX + 1,
        }
    }

    /// Ends a string whose last part is `part`.
    fn close_string(&mut self, part: &[u8]) {
        self.keep(part);
        let role = self.string.take();
        let (name, length) = (self.name, self.name_length);
        let whole = name.get(..length).unwrap_or_default();
        match role {
            Some(StringRole::Name) => self.finish_name(whole),
            Some(StringRole::Value) if length <= NAME_BYTES_MAX => self.finish_value(whole), // `whole` is empty beyond
            _ => {}
        }
    }

    fn finish_name(&mut self, name: &[u8]) {
        let meaning = meaning(name, self.depth, self.member(1));
        if let Some(member) = self.members.get_mut(self.depth) {
            *member = meaning;
        }
    }

    fn finish_value(&mut self, value: &[u8]) {
        if value.len() > NAME_BYTES_MAX {
            return; // as one that came in pieces, of which nothing is kept
        }
        match self.current() {
            Key::Model => {
                self.model = CompactString::from_utf8(value).unwrap_or_default();
            }
            Key::Tier => self.report.tier(value),
            Key::Type => {
                self.document.kind = EventKind::of(value);
                if matches!(self.document.kind, EventKind::Error | EventKind::Failed) {
                    self.error();
                }
            }
            _ => {}
        }
    }

    /// Enters a container; true when it is a usage object, which is copied from its bracket on.
    fn open_container(&mut self, bracket: u8) -> bool {
        let is_object = bracket == b'{';
        let member = self.current();
        self.after_colon = false;
        self.expects_name = is_object;
        self.document.followed |= self.document.complete && self.depth == 0;
        if self.depth == 1 && member == Key::Choices && !is_object && self.document.choices == Choices::Absent {
            self.document.choices = Choices::Empty;
        } else if self.depth == 2 && self.member(1) == Key::Choices {
            self.document.choices = Choices::Some;
        }
        self.depth += 1;
        if self.depth < 64 {
            let bit = 1 << self.depth;
            self.objects = if is_object { self.objects | bit } else { self.objects & !bit };
        }
        if let Some(inner) = self.members.get_mut(self.depth) {
            // In `"content": ["a", "b"]` each element is what the list is. The outermost level stands for nothing.
            *inner = if !is_object && member == Key::Text && self.depth > 1 { Key::Text } else { Key::Other };
        }
        if self.capture_depth != 0 || self.depth == 1 {
            return false;
        }
        match member {
            Key::Usage if is_object => {
                self.capture_depth = self.depth;
                self.capture.clear();
                return true;
            }
            Key::Usage => self.report.unreadable(),
            Key::Error => self.error(),
            Key::Arguments if self.arguments_from == 0 => self.arguments_from = self.depth,
            _ => {}
        }
        false
    }

    fn close_container(&mut self) {
        self.expects_name = false;
        self.after_colon = false;
        if self.depth == self.arguments_from {
            self.arguments_from = 0;
        }
        self.depth = self.depth.saturating_sub(1);
        self.document.complete |= self.depth == 0;
    }

    /// A number or a word behind a colon begins with `first`.
    fn open_scalar(&mut self, first: u8) {
        self.after_colon = false;
        match self.current() {
            Key::Error if first != b'n' => self.error(),
            Key::Usage if first != b'n' => self.report.unreadable(),
            _ => {}
        }
    }

    fn error(&mut self) {
        self.document.error = true;
        self.error_seen = true;
    }

    fn capture(&mut self, part: &[u8]) {
        if self.capture.len() + part.len() <= USAGE_BYTES_MAX {
            self.capture.extend_from_slice(part);
        } else {
            // Too large to be one; what was kept is cut off and reads as nothing.
            self.capture.clear();
            self.capture.resize(USAGE_BYTES_MAX, 0);
        }
    }

    /// The usage object ends with `part`. In the usual case it lies in one piece and is read where it is.
    fn end_capture(&mut self, part: &[u8]) {
        if self.capture.is_empty() && part.len() <= USAGE_BYTES_MAX {
            return self.finish_capture(part);
        }
        self.capture(part);
        let capture = std::mem::take(&mut self.capture);
        self.finish_capture(&capture);
        self.capture = capture;
    }

    fn finish_capture(&mut self, capture: &[u8]) {
        self.capture_depth = 0;
        self.document.usage = true;
        if capture.first() != Some(&b'{') {
            self.report.unreadable();
        } else if self.shape == Shape::Anthropic && self.member(1) == Key::Wrapper {
            self.report.read_start(capture);
        } else {
            self.report.read(capture);
        }
    }
}

/// What a text is made of beside strings, numbers, words and space.
const STRUCTURE: [bool; 256] = {
    let mut structure = [false; 256];
    let bytes = b"\"{}[]:,";
    let mut at = 0;
    while at < bytes.len() {
        structure[bytes[at] as usize] = true;
        at += 1;
    }
    structure
};

#[cfg(test)]
mod tests;

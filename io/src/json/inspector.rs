//! Reads a request body as it arrives: each byte once, in pieces of any size, with a fixed amount of memory.
//!
//! A body of 32 MiB must not keep a core from its other callers, so that what was received is read while the rest is on
//! its way. What comes out does not depend on the pieces: the reader stops before whatever is not complete (a number, a
//! word, an escape) and takes it from there, and a string remembers how far it was read.

use compact_str::CompactString;

use super::members::{LONGEST_SPELLING, Member, Seen};
use super::prompt::{BYTES_PER_TOKEN, LOOKED_AT, NAME_BYTES_MAX, Under, is_base64, is_image_type};
use super::strings::{Scan, Text};
use super::{Asked, BadBody, Splice};

/// Nesting beyond this is refused. Real tool schemas stay below 20.
const NESTING_MAX: usize = 128;
/// Values and members a body may hold. A bound on time, not on memory: reading one costs a few ns.
const VALUES_MAX: usize = 1_000_000;
/// No provider has model names near this long, and the name goes into every row.
const MODEL_BYTES_MAX: usize = 512;
/// A number is looked at anew with each piece until it is complete, so it may not be longer than this.
const NUMBER_BYTES_MAX: usize = 1_024;
/// Numbers shorter than this without an exponent are within a double's range.
const NUMBER_BYTES_SMALL: usize = 300;

/// What may come next, apart from space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Next {
    #[default]
    Value,
    /// Behind `[`.
    ValueOrEnd,
    /// Behind `{`.
    KeyOrEnd,
    /// Behind a comma in an object.
    Key,
    Colon,
    CommaOrEnd,
    /// The root value is complete.
    Nothing,
}

/// What a value is to us, by the key it stands under.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Slot {
    #[default]
    Root,
    Ignored,
    Model,
    Stream,
    StreamOptions,
    IncludeUsage,
    Count(Member),
    Prompt(Under),
    Tools,
}

/// An object or array that is open.
#[derive(Clone, Copy, Debug)]
struct Open {
    is_array: bool,
    /// What it is the value of.
    slot: Slot,
    /// A part of the prompt that is a picture.
    is_image: bool,
}

/// A string that is being read: a key or a value.
#[derive(Clone, Copy, Debug)]
struct Reading {
    text: Text,
    is_key: bool,
}

/// Reads one body at a time. Never waits.
#[derive(Default)]
pub struct Inspector {
    /// Everything before this index of the body has been read.
    at: usize,
    next: Next,
    string: Option<Reading>,
    open: Vec<Open>,
    /// What the value to come is.
    slot: Slot,
    /// The member that is being read is `prompt`.
    is_prompt: bool,
    values: usize,
    is_object: bool,
    seen: Seen,
    found: Found,
    /// What is wrong with what was asked for; told unless the body turns out not to be JSON.
    refused: Option<BadBody>,
    /// Nothing further is read.
    broken: Option<BadBody>,
}

/// What was found so far.
#[derive(Default)]
struct Found {
    model: Option<CompactString>,
    stream: bool,
    output_cap: Option<u64>,
    choices: Option<u64>,
    /// Elements of the list that `prompt` may be. One that is a list itself is a prompt in tokens.
    prompts: u64,
    input_bytes: u64,
    images: u32,
    include_usage: bool,
    has_include_usage: bool,
    splice: Option<Splice>,
}

impl Inspector {
    /// Reads one complete body. Takes time in proportion to it: text 0.3 µs a kilobyte, structure up to 5.
    pub fn inspect(&mut self, body: &[u8]) -> Result<Asked, BadBody> {
        self.begin();
        self.read(body);
        self.finish(body)
    }

    /// Forgets what was read before.
    pub fn begin(&mut self) {
        let mut open = std::mem::take(&mut self.open);
        open.clear();
        *self = Inspector { open, ..Inspector::default() };
    }

    /// Reads on. `body` is all of it that has come so far: what was there at the last call, unchanged, and more behind.
    pub fn read(&mut self, body: &[u8]) {
        if self.broken.is_none()
            && let Err(bad) = self.read_on(body)
        {
            self.broken = Some(bad);
        }
    }

    /// What the body asks for, after the last call of [`Inspector::read`] with the whole of it.
    pub fn finish(&mut self, body: &[u8]) -> Result<Asked, BadBody> {
        if let Some(bad) = self.broken.take() {
            return Err(bad);
        }
        // The end of the body ends a number, and only that; one that is all of a body is not what we want anyway.
        let is_number = self.next == Next::Value && self.open.is_empty() && is_number(body.get(self.at..));
        if self.next != Next::Nothing && !is_number {
            return Err(BadBody::NotJson { near_byte: self.at });
        }
        if !self.is_object {
            return Err(BadBody::NotAnObject);
        }
        if let Some(bad) = self.refused.take() {
            return Err(bad);
        }
        let found = std::mem::take(&mut self.found);
        let (Some(model), Some(usage_splice)) = (found.model, found.splice) else { return Err(BadBody::NoModel) };
        Ok(Asked {
            model,
            stream: found.stream,
            output_cap: found.output_cap,
            choices: found.choices.unwrap_or(1).max(1).saturating_mul(found.prompts.max(1)),
            input_bytes: found.input_bytes,
            images: found.images,
            include_usage: found.include_usage,
            usage_splice,
        })
    }

    fn read_on(&mut self, body: &[u8]) -> Result<(), BadBody> {
        if let Some(reading) = self.string.take()
            && !self.read_string(body, reading)?
        {
            return Ok(());
        }
        while let Some(&byte) = body.get(self.at) {
            match byte {
                b' ' | b'\n' | b'\r' | b'\t' => self.at += 1,
                b'"' => {
                    let is_key = match self.next {
                        Next::Key | Next::KeyOrEnd => true,
                        Next::Value | Next::ValueOrEnd => false,
                        Next::Colon | Next::CommaOrEnd | Next::Nothing => return Err(self.not_json()),
                    };
                    self.at += 1;
                    let reading = Reading { text: Text { start: self.at, shrinks: 0 }, is_key };
                    if !self.read_string(body, reading)? {
                        return Ok(());
                    }
                }
                b':' if self.next == Next::Colon => {
                    self.count_value()?;
                    self.at += 1;
                    self.next = Next::Value;
                }
                b',' if self.next == Next::CommaOrEnd => {
                    self.count_value()?;
                    self.at += 1;
                    self.next =
                        if self.open.last().is_some_and(|open| open.is_array) { Next::Value } else { Next::Key };
                }
                b'{' | b'[' if self.expects_value() => {
                    self.count_value()?;
                    self.begin_container(byte == b'[')?;
                }
                b'}' if matches!(self.next, Next::CommaOrEnd | Next::KeyOrEnd) => self.end_container(false)?,
                b']' if matches!(self.next, Next::CommaOrEnd | Next::ValueOrEnd) => self.end_container(true)?,
                b'-' | b'0'..=b'9' if self.expects_value() => {
                    let Some(length) = number(body.get(self.at..)).map_err(|()| self.not_json())? else {
                        return Ok(());
                    };
                    let number = body.get(self.at..self.at + length).unwrap_or_default();
                    if !is_within_range(number) {
                        return Err(self.not_json());
                    }
                    self.number(number);
                    self.at += length;
                    self.value_ended();
                }
                b't' | b'f' | b'n' if self.expects_value() => {
                    let (word, value): (&[u8], _) = match byte {
                        b't' => (b"true", Some(true)),
                        b'f' => (b"false", Some(false)),
                        _ => (b"null", None),
                    };
                    let here = body.get(self.at..).unwrap_or_default();
                    if !here.starts_with(word) {
                        return if word.starts_with(here) { Ok(()) } else { Err(self.not_json()) };
                    }
                    self.word(self.at..self.at + word.len(), value);
                    self.at += word.len();
                    self.value_ended();
                }
                _ => return Err(self.not_json()),
            }
        }
        Ok(())
    }

    /// Reads on in a string, from where we are; whether its end has come.
    #[inline(always)]
    fn read_string(&mut self, body: &[u8], mut reading: Reading) -> Result<bool, BadBody> {
        match reading.text.scan(body, self.at) {
            Scan::End(end) if reading.is_key => {
                self.at = end + 1;
                self.next = Next::Colon;
                self.key(body, reading.text, end);
                // Nearly always right behind it: one round less.
                if body.get(self.at) == Some(&b':') {
                    self.count_value()?;
                    self.at += 1;
                    self.next = Next::Value;
                }
            }
            Scan::End(end) => {
                self.at = end + 1;
                self.string(body, reading.text, end);
                self.value_ended();
            }
            Scan::More(at) => {
                self.string = Some(reading);
                self.at = at;
                return Ok(false);
            }
            Scan::Bad(near_byte) => return Err(BadBody::NotJson { near_byte }),
        }
        Ok(true)
    }

    #[inline(always)]
    fn expects_value(&self) -> bool {
        matches!(self.next, Next::Value | Next::ValueOrEnd)
    }

    fn not_json(&self) -> BadBody {
        BadBody::NotJson { near_byte: self.at }
    }

    fn count_value(&mut self) -> Result<(), BadBody> {
        self.values += 1;
        if self.values > VALUES_MAX { Err(BadBody::TooManyValues) } else { Ok(()) }
    }

    /// A string or a list begins, which is a prompt of its own where it is an element of `prompt`.
    fn count_prompt(&mut self) {
        if self.is_prompt && self.open.len() == 2 && self.open[1].is_array {
            self.found.prompts += 1;
        }
    }

    fn refuse(&mut self, bad: BadBody) {
        self.refused.get_or_insert(bad);
    }

    fn begin_container(&mut self, is_array: bool) -> Result<(), BadBody> {
        if self.open.len() == NESTING_MAX {
            return Err(self.not_json());
        }
        self.count_prompt();
        let mut slot = self.slot;
        match slot {
            Slot::Root if is_array => slot = Slot::Ignored,
            Slot::Root => {
                self.is_object = true;
                // Right behind the opening brace; a comma fits there, because `model` follows.
                let with = r#""stream_options":{"include_usage":true},"#;
                self.found.splice = Some(Splice { at: self.at + 1..self.at + 1, with });
            }
            Slot::StreamOptions if !is_array => {
                self.found.splice = Some(Splice { at: self.at + 1..self.at + 1, with: r#""include_usage":true"# });
            }
            Slot::Prompt(Under::Label | Under::Type) => slot = Slot::Ignored,
            Slot::Ignored | Slot::Prompt(_) | Slot::Tools => {}
            _ => {
                self.unfit();
                slot = Slot::Ignored;
            }
        }
        self.open.push(Open { is_array, slot, is_image: false });
        self.slot = slot; // of an array's elements; each member of an object has its own
        self.at += 1;
        self.next = if is_array { Next::ValueOrEnd } else { Next::KeyOrEnd };
        Ok(())
    }

    fn end_container(&mut self, is_array: bool) -> Result<(), BadBody> {
        match self.open.pop() {
            Some(open) if open.is_array == is_array => {
                self.found.images = self.found.images.saturating_add(u32::from(open.is_image));
                self.at += 1;
                self.value_ended();
                Ok(())
            }
            _ => Err(self.not_json()),
        }
    }

    fn value_ended(&mut self) {
        match self.open.last() {
            Some(open) => {
                self.slot = open.slot;
                self.next = Next::CommaOrEnd;
            }
            None => self.next = Next::Nothing,
        }
    }

    /// A key was read: what its value will be.
    fn key(&mut self, body: &[u8], text: Text, end: usize) {
        let Some(open) = self.open.last_mut() else { return };
        self.slot = match open.slot {
            Slot::Root => {
                let mut room = None::<[u8; LONGEST_SPELLING]>;
                let key = text.said(body, end, &mut room).unwrap_or_default();
                self.member(key)
            }
            Slot::StreamOptions => {
                let mut room = None::<[u8; NAME_BYTES_MAX]>;
                let key = text.said(body, end, &mut room).unwrap_or_default();
                self.option(key)
            }
            Slot::Prompt(_) => {
                let mut room = None::<[u8; NAME_BYTES_MAX]>;
                let under = Under::key(text.said(body, end, &mut room).unwrap_or_default());
                open.is_image |= under == Under::ImageLink;
                Slot::Prompt(under)
            }
            Slot::Tools => {
                self.found.input_bytes += text.length(end) as u64;
                Slot::Tools
            }
            _ => Slot::Ignored,
        };
    }

    /// A member of the body itself.
    fn member(&mut self, key: &[u8]) -> Slot {
        self.is_prompt = key == b"prompt";
        let Some(member) = Member::of(key) else {
            if let Some(member) = Member::mistaken(key) {
                self.refuse(BadBody::Misspelled { member: member.name() });
            }
            return Slot::Ignored;
        };
        if !self.seen.insert(member) {
            self.refuse(BadBody::Duplicate { member: member.name() });
            return Slot::Ignored;
        }
        match member {
            Member::Model => Slot::Model,
            Member::Stream => Slot::Stream,
            Member::StreamOptions => Slot::StreamOptions,
            Member::MaxTokens | Member::MaxCompletionTokens | Member::MaxOutputTokens | Member::N | Member::BestOf => {
                Slot::Count(member)
            }
            Member::Messages
            | Member::Prompt
            | Member::Input
            | Member::System
            | Member::Instructions
            | Member::Suffix => Slot::Prompt(Under::Text),
            Member::Tools | Member::Functions => Slot::Tools,
            // Read from the answer, which decides; only its being there once matters here.
            Member::ServiceTier => Slot::Ignored,
        }
    }

    /// A member of `stream_options`.
    fn option(&mut self, key: &[u8]) -> Slot {
        if let Some(splice) = &mut self.found.splice
            && splice.with == r#""include_usage":true"#
        {
            splice.with = r#""include_usage":true,"#; // another member follows
        }
        if key == b"include_usage" {
            if std::mem::replace(&mut self.found.has_include_usage, true) {
                self.refuse(BadBody::Duplicate { member: OPTION });
                return Slot::Ignored;
            }
            return Slot::IncludeUsage;
        }
        if key.eq_ignore_ascii_case(b"include_usage") {
            self.refuse(BadBody::Misspelled { member: OPTION });
        }
        Slot::Ignored
    }

    /// A value that is not of the kind its member takes.
    fn unfit(&mut self) {
        match self.slot {
            Slot::Model => self.refuse(BadBody::ModelNotAName),
            Slot::Stream => self.refuse(BadBody::NotABoolean { member: "stream" }),
            Slot::StreamOptions => self.refuse(BadBody::NotAnObjectMember { member: "stream_options" }),
            Slot::IncludeUsage => self.refuse(BadBody::NotABoolean { member: OPTION }),
            Slot::Count(member) => self.refuse(BadBody::NotACount { member: member.name() }),
            Slot::Root | Slot::Ignored | Slot::Prompt(_) | Slot::Tools => {}
        }
    }

    /// A string that is a value.
    fn string(&mut self, body: &[u8], text: Text, end: usize) {
        self.count_prompt();
        let length = text.length(end);
        match self.slot {
            Slot::Model => {
                let mut room = None::<[u8; MODEL_BYTES_MAX]>;
                match text.said(body, end, &mut room) {
                    Some(name) if !name.is_empty() => self.found.model = CompactString::from_utf8(name).ok(),
                    _ => self.unfit(),
                }
            }
            Slot::Tools | Slot::Prompt(Under::Text) => self.found.input_bytes += length as u64,
            Slot::Prompt(Under::Payload) => {
                if !is_base64(text.begin(body, end, &mut [0; LOOKED_AT]), length) {
                    self.found.input_bytes += length as u64;
                }
            }
            Slot::Prompt(Under::Type) => {
                let mut room = None::<[u8; NAME_BYTES_MAX]>;
                let is_image = text.said(body, end, &mut room).is_some_and(is_image_type);
                if let Some(open) = self.open.last_mut() {
                    open.is_image |= is_image;
                }
            }
            _ => self.unfit(),
        }
    }

    fn number(&mut self, number: &[u8]) {
        match self.slot {
            Slot::Prompt(_) if self.open.last().is_some_and(|open| open.is_array) => {
                self.found.input_bytes += BYTES_PER_TOKEN;
            }
            Slot::Count(member) => match count(number) {
                Some(count) => self.counted(member, count),
                None => self.unfit(),
            },
            _ => self.unfit(),
        }
    }

    fn counted(&mut self, member: Member, count: u64) {
        let most = match member {
            Member::N | Member::BestOf => &mut self.found.choices,
            _ => &mut self.found.output_cap,
        };
        *most = (*most).max(Some(count));
    }

    /// `true`, `false`, or null.
    fn word(&mut self, at: std::ops::Range<usize>, value: Option<bool>) {
        match self.slot {
            Slot::Stream => self.found.stream = value.unwrap_or(false),
            Slot::IncludeUsage => {
                self.found.include_usage = value.unwrap_or(false);
                self.found.splice = Some(Splice { at, with: "true" });
            }
            Slot::StreamOptions if value.is_none() => {
                self.found.splice = Some(Splice { at, with: r#"{"include_usage":true}"# });
            }
            Slot::Count(_) if value.is_none() => {}
            _ => self.unfit(),
        }
    }
}

const OPTION: &str = "stream_options.include_usage";

/// Whether the text is one number and nothing else but space.
fn is_number(text: Option<&[u8]>) -> bool {
    let text = text.unwrap_or_default();
    if text.len() > NUMBER_BYTES_MAX {
        return false;
    }
    let ended = [text, b" "].concat();
    number(Some(&ended)) == Ok(Some(text.len())) && is_within_range(text)
}

/// The length of the number at the beginning of `text`. `None`: its end has not come.
fn number(text: Option<&[u8]>) -> Result<Option<usize>, ()> {
    let text = text.unwrap_or_default();
    let text = &text[..text.len().min(NUMBER_BYTES_MAX + 1)];
    let digits = |from: usize| from + text[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let mut at = usize::from(text.first() == Some(&b'-'));
    at = match text.get(at) {
        None => return Ok(None),
        Some(b'0') => at + 1,
        Some(b'1'..=b'9') => digits(at),
        Some(_) => return Err(()),
    };
    if text.get(at) == Some(&b'.') {
        match text.get(at + 1) {
            None => return Ok(None),
            Some(b'0'..=b'9') => at = digits(at + 1),
            Some(_) => return Err(()),
        }
    }
    if let Some(b'e' | b'E') = text.get(at) {
        at += 1;
        at += usize::from(matches!(text.get(at), Some(b'+' | b'-')));
        match text.get(at) {
            None => return Ok(None),
            Some(b'0'..=b'9') => at = digits(at),
            Some(_) => return Err(()),
        }
    }
    match text.get(at) {
        None if at <= NUMBER_BYTES_MAX => Ok(None),
        Some(b',' | b']' | b'}' | b' ' | b'\n' | b'\r' | b'\t') if at <= NUMBER_BYTES_MAX => Ok(Some(at)),
        _ => Err(()),
    }
}

/// Whether a well-formed number is one that a double can hold: others are taken for all kinds of things.
fn is_within_range(number: &[u8]) -> bool {
    // In four bytes there is room for an exponent of two digits.
    let has_exponent = || number.iter().any(|byte| matches!(byte, b'e' | b'E'));
    let is_plain = number.len() <= 4 || number.len() < NUMBER_BYTES_SMALL && !has_exponent();
    is_plain || double(number).is_some_and(f64::is_finite)
}

fn double(number: &[u8]) -> Option<f64> {
    std::str::from_utf8(number).ok()?.parse().ok()
}

/// A whole number of at least 0, in any spelling; beyond a u64 it saturates: the reserve is capped anyway, the provider
/// will say no.
fn count(number: &[u8]) -> Option<u64> {
    // Nine digits at most are nearly all that is met.
    if number.len() <= 9 && number.iter().all(u8::is_ascii_digit) {
        return Some(number.iter().fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0')));
    }
    if let Some(count) = std::str::from_utf8(number).ok().and_then(|text| text.parse().ok()) {
        return Some(count);
    }
    // `as` saturates. 1e18 is a whole number in another spelling; 1.5 is not.
    double(number).filter(|value| *value >= 0.0 && value.trunc() == *value).map(|value| value as u64)
}

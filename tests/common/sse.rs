//! A server-sent event stream as it arrives: events with their times, and how it ended.

use std::net::SocketAddr;
use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;

use super::http::{Conn, Decoder, Framing, Head, Progress, Request};

#[derive(Clone, Debug)]
pub struct Event {
    pub event: Option<String>,
    pub id: Option<String>,
    pub data: String,
    /// When its last byte was read.
    pub at: Instant,
    pub wall: SystemTime,
}

impl Event {
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.data).unwrap_or_else(|error| panic!("{error} in event data {:?}", self.data))
    }

    pub fn is_done(&self) -> bool {
        self.data == "[DONE]"
    }
}

/// An answer being read. Dropping it hangs up.
pub struct Stream {
    conn: Conn,
    pub head: Head,
    decoder: Decoder,
    /// The body so far, out of its chunks.
    pub raw: Vec<u8>,
    parsed: usize,
    /// `Some` once the body has ended: whether it ended as promised.
    complete: Option<bool>,
}

/// A stream read to its end.
pub struct Finished {
    pub head: Head,
    pub raw: Vec<u8>,
    pub events: Vec<Event>,
    pub framing: Framing,
    pub complete: bool,
}

impl Stream {
    #[track_caller]
    pub fn open(addr: SocketAddr, request: &Request) -> Self {
        let mut conn = Conn::open(addr);
        conn.send(request);
        Self::answer_on(conn)
    }

    /// Reads the head of the answer that is coming on a connection.
    #[track_caller]
    pub fn answer_on(mut conn: Conn) -> Self {
        let head = conn.read_head();
        let decoder = Decoder::of(&head, "POST");
        Self { conn, head, decoder, raw: Vec::new(), parsed: 0, complete: None }
    }

    #[track_caller]
    pub fn expect(self, status: u16) -> Self {
        if self.head.status != status {
            let head = self.head.clone();
            let rest = self.finish();
            panic!("status {} instead of {status}: {}", head.status, String::from_utf8_lossy(&rest.raw));
        }
        self
    }

    /// The next event, or `None` when the stream has ended.
    #[track_caller]
    pub fn next_event(&mut self) -> Option<Event> {
        loop {
            if let Some((event, used)) = next_event(&self.raw[self.parsed..], self.complete.is_some()) {
                self.parsed += used;
                match event {
                    Some(event) => return Some(Event { at: self.conn.read_at, wall: self.conn.read_at_wall, ..event }),
                    None => continue, // a comment, or an event without data
                }
            }
            if self.complete.is_some() {
                return None;
            }
            match self.conn.read_body(&mut self.decoder, &mut self.raw) {
                Progress::More => {}
                Progress::Complete => self.complete = Some(true),
                Progress::Cut => self.complete = Some(false),
            }
        }
    }

    /// Reads `count` events; a stream that ends earlier fails the test.
    #[track_caller]
    pub fn events(&mut self, count: usize) -> Vec<Event> {
        (0..count).map(|at| self.next_event().unwrap_or_else(|| panic!("ended after {at} events"))).collect()
    }

    #[track_caller]
    pub fn finish(mut self) -> Finished {
        let events = std::iter::from_fn(|| self.next_event()).collect();
        let complete = self.complete.expect("no event is left only once the stream has ended");
        Finished { head: self.head, raw: self.raw, events, framing: self.decoder.framing, complete }
    }

    pub fn hang_up(self) {
        drop(self);
    }

    /// Hangs up with a reset.
    pub fn reset(self) {
        self.conn.reset();
    }

    /// Whether anything comes within `within`.
    pub fn has_bytes(&mut self, within: Duration) -> bool {
        self.conn.has_bytes(within)
    }
}

impl Finished {
    /// The events' data as JSON, without `[DONE]`.
    #[track_caller]
    pub fn chunks(&self) -> Vec<Value> {
        self.events.iter().filter(|event| !event.is_done()).map(Event::json).collect()
    }

    pub fn is_done(&self) -> bool {
        self.events.last().is_some_and(Event::is_done)
    }
}

pub fn parse(body: &[u8]) -> Vec<Event> {
    let (mut events, mut at) = (Vec::new(), 0);
    while let Some((event, used)) = next_event(&body[at..], true) {
        events.extend(event);
        at += used;
    }
    events
}

/// The event at the start of `bytes` and its length with the empty line behind it. `None` when it is not whole
/// yet; an event without data is `Some((None, length))`. Lines may end in LF, CRLF or CR.
fn next_event(bytes: &[u8], ended: bool) -> Option<(Option<Event>, usize)> {
    let bom = if bytes.starts_with(b"\xef\xbb\xbf") { 3 } else { 0 };
    let mut at = bom;
    let (mut name, mut id, mut data) = (None, None, None::<String>);
    loop {
        let (line, used) = next_line(&bytes[at..], ended)?;
        at += used;
        if line.is_empty() {
            let event = data.map(|data| Event { event: name, id, data, at: Instant::now(), wall: SystemTime::now() });
            return Some((event, at));
        }
        let line = String::from_utf8_lossy(line);
        let (field, value) = line.split_once(':').unwrap_or((&line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => name = Some(value.to_owned()),
            "id" => id = Some(value.to_owned()),
            "data" => match &mut data {
                Some(data) => *data = format!("{data}\n{value}"),
                None => data = Some(value.to_owned()),
            },
            _ => {} // comments have an empty field name
        }
    }
}

fn next_line(bytes: &[u8], ended: bool) -> Option<(&[u8], usize)> {
    let end = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r'))?;
    match (bytes[end], bytes.get(end + 1)) {
        (b'\r', Some(b'\n')) => Some((&bytes[..end], end + 2)),
        (b'\r', None) if !ended => None, // the LF may still come
        _ => Some((&bytes[..end], end + 1)),
    }
}

/// What a stream should look like once the gateway hid the usage chunk it had asked for itself: the same bytes
/// without the one event that has usage and no choices.
#[track_caller]
pub fn without_usage_chunk(body: &[u8]) -> Vec<u8> {
    let text = String::from_utf8(body.to_vec()).expect("the mock writes UTF-8");
    let is_usage = |event: &&str| event.contains(r#""choices": []"#) && event.contains(r#""total_tokens""#);
    let kept: Vec<&str> = text.split_inclusive("\n\n").filter(|event| !is_usage(event)).collect();
    assert_eq!(kept.len() + 1, text.split_inclusive("\n\n").count(), "one usage chunk in {text}");
    kept.concat().into_bytes()
}

//! One caller's connection: requests one after the other, in the order they came, until somebody ends it.
//!
//! While it is idle a connection holds no buffer. Pipelined requests wait in the buffer behind the one being served.

use std::ops::{Deref, DerefMut};
use std::rc::Rc;
use std::sync::LazyLock;
use std::task::Poll;

use io::clock;
use io::http1::{Fields, HeadError, HeadLimits, RequestHead};
use io::runtime::{Fill, Socket, Waiter, give_buffer, take_buffer};
use shards::refusal::Family;

use crate::caller::Memo;
use crate::core::Core;
use crate::request;
use crate::respond::{self, Ending, Fault};
use crate::rules::ns;

/// Buffers larger than this are let go of while an answer is relayed: more than a core's own spare ones have.
const RELEASED_FROM: usize = 64 * 1024;
/// How long a caller may take to hear an answer that ends the connection.
const LAST_WORDS_NS: u64 = 2_000_000_000;
/// A caller that takes none of our bytes for this long is gone.
pub const WRITE_STALL_NS: u64 = 60_000_000_000;

/// A caller, and what was read of its requests.
pub struct Client {
    /// The connection.
    pub socket: Socket,
    /// Bytes read and not used up: the current request, then pipelined ones.
    pub buf: Vec<u8>,
    /// The head being read or served; its ranges point into `buf`.
    pub head: Head,
    /// Where the current request ends in `buf`, once its body was read.
    pub end: usize,
    /// The key it used last.
    pub memo: Memo,
}

impl Client {
    /// A caller that was just accepted.
    pub fn new(socket: Socket) -> Box<Self> {
        Box::new(Client { socket, buf: Vec::new(), head: Head::default(), end: 0, memo: Memo::default() })
    }

    /// Lets go of a request that will not be sent again, if it is large or its answer takes its time (`is_stream`). The
    /// head's fields are gone with it.
    pub fn release_request(&mut self, is_stream: bool) {
        if is_stream || self.buf.capacity() > RELEASED_FROM {
            let pipelined = self.buf.split_off(self.end.min(self.buf.len()));
            give_buffer(std::mem::replace(&mut self.buf, pipelined));
            self.end = 0;
        }
        if is_stream {
            self.head.fields = Fields::default();
        }
    }
}

/// A request's head, which a connection between requests has no room for: it reads as one that says nothing.
#[derive(Default)]
pub struct Head(Option<Box<RequestHead>>);

static NO_HEAD: LazyLock<RequestHead> = LazyLock::new(RequestHead::default);

impl Deref for Head {
    type Target = RequestHead;

    fn deref(&self) -> &RequestHead {
        self.0.as_deref().unwrap_or_else(|| &NO_HEAD)
    }
}

impl DerefMut for Head {
    fn deref_mut(&mut self) -> &mut RequestHead {
        self.0.get_or_insert_default()
    }
}

/// What becomes of the connection after a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// The next request may come.
    KeepAlive,
    /// Closed at once: nothing more can be said, or nothing more may be (a cut answer).
    Close,
    /// Our side ends, and what the caller still sends is read for a moment, so that our answer arrives.
    CloseGently,
}

/// Serves a connection to its end. Waits; runs as a task of its core. The caller is boxed, because a future that takes
/// something holds it twice: where it came from and where it is used.
pub async fn serve(core: Rc<Core>, mut client: Box<Client>) {
    if let Some(tls) = core.view().rules.tls.clone() {
        let deadline_ns = clock::tick_ns().saturating_add(ns(core.view().rules.config.server.head_timeout));
        if Box::pin(client.socket.accept_tls(&tls, deadline_ns)).await.is_err() {
            return;
        }
    }
    let drained = core.drain.waiter();
    let after = loop {
        let head_len = match next_head(&core, &mut client, &drained).await {
            Ok(Some(head_len)) => head_len,
            Ok(None) => {
                // A caller that ends its side, and a drain, may come before the last answer has left.
                let _ = Box::pin(client.socket.flush(WRITE_STALL_NS)).await;
                break After::Close;
            }
            Err(refused) => break Box::pin(refuse_head(&core, &mut client, refused)).await,
        };
        core.metrics.request(1);
        let in_flight = InFlight(&core);
        // Boxed, so that its state (4 KB: heads, verdicts, the row) exists only while a request runs: an idle
        // connection would carry it otherwise.
        // Written into its box, because `Box::pin` would copy it there.
        let after = Box::into_pin(Box::write(Box::new_uninit(), request::serve(&core, &mut client, head_len))).await;
        drop(in_flight);
        if after != After::KeepAlive {
            break after;
        }
        let end = client.end.min(client.buf.len());
        client.buf.drain(..end);
        if client.buf.is_empty() {
            give_buffer(std::mem::take(&mut client.buf));
            if let Some(head) = client.head.0.take() {
                core.give_request_head(head);
            }
        }
    };
    give_buffer(std::mem::take(&mut client.buf));
    if after == After::CloseGently {
        Box::pin(client.socket.close_gently(clock::mono_ns().saturating_add(LAST_WORDS_NS))).await;
    }
}

/// Counts a request as in flight until dropped, also when it panics.
struct InFlight<'c>(&'c Core);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.metrics.request(-1);
    }
}

/// Waits for the next whole head. `None`: the connection ended between requests, as it should.
async fn next_head(core: &Core, client: &mut Client, drained: &Waiter<'_>) -> Result<Option<usize>, HeadError> {
    let (limits, idle_ns, head_ns) = {
        let view = core.view();
        let server = &view.rules.config.server;
        let head_bytes_max = u32::try_from(server.max_head_bytes).unwrap_or(u32::MAX);
        (HeadLimits { head_bytes_max }, ns(server.idle_timeout), ns(server.head_timeout))
    };
    if client.buf.is_empty() {
        if core.drain.is_set() {
            return Ok(None);
        }
        let deadline_ns = clock::tick_ns().saturating_add(idle_ns);
        match client.socket.next(&mut client.buf, deadline_ns, |cx| drained.poll(cx)).await {
            Ok(0) | Err(_) => return Ok(None),
            Ok(_) => client.head = Head(Some(core.take_request_head())),
        }
    }
    client.head.clear();
    let deadline_ns = clock::tick_ns().saturating_add(head_ns);
    loop {
        if let Some(head_len) = client.head.parse(&client.buf, &limits)? {
            return Ok(Some(head_len));
        }
        match client.socket.next(&mut client.buf, deadline_ns, |_| Poll::Pending).await {
            Ok(0) | Err(Fill::Broken(_)) => return Ok(None),
            Ok(_) => {}
            Err(Fill::Deadline) => return Err(HeadError { status: 408, reason: "the request's head took too long" }),
        }
    }
}

/// A head nobody can serve: answered, then closed, because where it ends is not known.
async fn refuse_head(core: &Core, client: &mut Client, refused: HeadError) -> After {
    let now = core.now();
    let request_id = core.request_id(now.wall);
    core.metrics.with(|numbers| *numbers.unjudged.entry(refused.status).or_default() += 1);
    // The head may not have been understood as far as its path; its first line tells all the same.
    let line = client.buf.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let messages = memchr::memmem::find(line, b" /v1/messages").is_some();
    let family = if messages { Family::Anthropic } else { Family::OpenAi };
    let body = Fault::InvalidRequest.body(family, refused.reason, request_id.as_str());
    let mut out = take_buffer();
    respond::begin(&mut out, refused.status, request_id.as_bytes(), true);
    core.date(now.wall, |date| io::http1::write::field(&mut out, "date", date.as_bytes()));
    respond::end(&mut out, refused.status, &body, Ending { close: true, ..Ending::default() });
    if client.socket.write_all(out, LAST_WORDS_NS).await.is_ok() { After::CloseGently } else { After::Close }
}

/// Whose envelope an answer on this path takes.
pub fn family_of(path: &str) -> Family {
    if path.starts_with("/v1/messages") { Family::Anthropic } else { Family::OpenAi }
}

//! One request sent to one provider, until the head of its answer is here.
//!
//! A pooled connection that turns out to be closed, before any byte of an answer, is replaced once by a fresh one.
//! Nothing else is ever sent twice: it may have been billed. While the provider thinks, the caller is watched, and
//! if it leaves the connection to the provider is closed at once.

use std::ops::Range;
use std::rc::Rc;

use io::clock;
use io::http1::{FieldKind, HeadLimits, Method, ResponseHead, target, write};
use io::json::Splice;
use io::runtime::{Beside, Socket, give_buffer, read_beside, take_buffer};
use io::upstream::{ConnectError, connect};
use shards::scope::Endpoint;

use crate::caller::{is_forwardable, percent_decoded};
use crate::connection::{Client, WRITE_STALL_NS};
use crate::core::Core;
use crate::request::Asking;
use crate::request::life::Life;
use crate::rules::{Credential, Upstream};

/// A body up to this size is copied behind its head and sent with it in one write.
const ONE_WRITE_MAX: usize = 16 * 1024;
/// One read of an answer.
pub const READ_ROOM: usize = 16 * 1024;
/// The head of a provider's answer may be larger than a caller's: some send whole policies in it.
const ANSWER_HEAD_BYTES_MAX: u32 = 256 * 1024;
/// A caller may send this much of its next requests while the current one is served.
const PIPELINED_BYTES_MAX: usize = 256 * 1024;
/// An error answer is looked into for the rejected usage option up to this size.
const ERROR_BYTES_MAX: usize = 64 * 1024;

/// A pooled connection that closes within this long after a request was written on it was closed before.
const STALE_NS: u64 = 500_000_000;
/// How long an answer may take that a provider gave while it closed on the rest of the request.
const EARLY_ANSWER_NS: u64 = 250_000_000;

/// What to send.
pub struct Call<'c> {
    /// Length of the caller's head in its buffer.
    pub head_len: usize,
    /// The body in the caller's buffer.
    pub body: Range<usize>,
    /// The normalised path.
    pub path: &'c str,
    /// What the body asks for.
    pub asked: &'c Asking,
    /// Which endpoint.
    pub endpoint: Endpoint,
}

/// The provider's answer, up to and including its head.
pub struct Answer {
    /// The connection it comes on.
    pub socket: Socket,
    /// What was read: the head, and maybe some or all of the body.
    pub buf: Vec<u8>,
    /// The head; its ranges point into `buf`.
    pub head: ResponseHead,
    /// Where the body begins in `buf`.
    pub head_len: usize,
    /// We asked for a usage chunk that the caller did not ask for.
    pub hides_usage: bool,
}

/// Why there is no answer.
#[derive(Debug)]
pub enum Failure {
    /// Nothing was sent, or not all of it: another upstream may be asked.
    NotSent(String),
    /// The connect deadline passed; nothing was sent.
    ConnectTimeout,
    /// Sent, and the connection ended without an answer.
    NoAnswer,
    /// Sent, and the answer makes no sense.
    BadAnswer(&'static str),
    /// Sent, and nothing came in time.
    AnswerTimeout,
    /// The caller left.
    ClientGone,
}

/// Asks one upstream. Waits, within the upstream's deadlines.
pub async fn ask(
    core: &Rc<Core>,
    client: &mut Client,
    upstream: &Upstream,
    call: &Call<'_>,
    life: &mut Life,
) -> Result<Answer, Failure> {
    // Only these two report usage on streams by an option; the others do without being asked.
    let by_option = matches!(call.endpoint, Endpoint::ChatCompletions | Endpoint::Completions);
    let splice = call.asked.usage_splice().filter(|_| by_option && upstream.takes_usage_option());
    let mut answer = ask_once(core, client, upstream, call, splice, life).await?;
    answer.hides_usage = splice.is_some();
    if answer.hides_usage && answer.head.status == 400 && rejects_usage_option(&mut answer, upstream).await {
        // An error was not billed, and the option was ours: the one request that is sent again by design.
        give_buffer(std::mem::take(&mut answer.buf));
        let answer = ask_once(core, client, upstream, call, None, life).await?;
        // Remembered only when it was our option alone that was wrong: a caller that sends options of its own must
        // not be able to switch everybody's metering off.
        let body = client.buf.get(call.body.clone()).unwrap_or_default();
        let callers_own = memchr::memmem::find(body, b"stream_options").is_some();
        if answer.head.status < 400 && !callers_own {
            upstream.remember_usage_option_refused();
        }
        return Ok(answer);
    }
    Ok(answer)
}

async fn ask_once(
    core: &Rc<Core>,
    client: &mut Client,
    upstream: &Upstream,
    call: &Call<'_>,
    splice: Option<&Splice>,
    life: &mut Life,
) -> Result<Answer, Failure> {
    let body_len = splice.map_or(call.body.len(), |splice| splice.changed_len(call.body.len()));
    let mut head = take_buffer();
    write_head(&mut head, client, upstream, call, body_len);

    let mut fresh_only = false;
    let failure = loop {
        let pooled = if fresh_only { None } else { core.pool(upstream).borrow_mut().take() };
        let reused = pooled.is_some();
        let mut socket = match pooled {
            Some(socket) => socket,
            None => {
                core.metrics.with(|numbers| numbers.upstream_connects += 1);
                let deadline_ns = clock::tick_ns().saturating_add(upstream.connect_timeout_ns);
                match connect(&upstream.target, deadline_ns).await {
                    Ok(socket) => socket,
                    Err(ConnectError::Deadline) => break Failure::ConnectTimeout,
                    Err(error) => break Failure::NotSent(format!("{}: {error}", upstream.id)),
                }
            }
        };
        life.row.attempts += 1;
        life.row.forwarded = true;
        life.sent = false;
        let begun = send(client, &mut socket, &head, splice, call).await;
        if let Err(error) = &begun {
            if error.kind() == std::io::ErrorKind::ConnectionAborted {
                break Failure::ClientGone;
            }
            // The provider took part of it and then nothing. The body's buffer stayed with the driver, so that there
            // is nothing left to send again.
            if error.kind() == std::io::ErrorKind::TimedOut || client.buf.len() < call.body.end {
                break Failure::AnswerTimeout;
            }
        }
        let begun_ns = clock::tick_ns();
        match await_head(core, client, socket, begun.err(), upstream.first_byte_timeout_ns, life).await {
            Ok(answer) => {
                give_buffer(head);
                life.first_byte();
                return Ok(answer);
            }
            Err(unanswered) => match unanswered.failure {
                Failure::ClientGone => break Failure::ClientGone,
                // It was closed before it saw the request.
                _ if unanswered.unsent.is_some() && reused => forget_attempt(life),
                failure => match unanswered.unsent {
                    Some(error) => break Failure::NotSent(format!("{}: {error}", upstream.id)),
                    // Closed at once: the same. Closed after a while: it may have worked on it.
                    None if matches!(failure, Failure::NoAnswer)
                        && unanswered.untouched
                        && reused
                        && clock::tick_ns().saturating_sub(begun_ns) < STALE_NS =>
                    {
                        forget_attempt(life);
                    }
                    None => break failure,
                },
            },
        }
        fresh_only = true;
    };
    give_buffer(head);
    Err(failure)
}

/// A pooled connection was closed before it answered anything: its provider never saw the request. The attempt stays
/// counted; nothing was forwarded and nothing is booked unless the fresh connection is.
fn forget_attempt(life: &mut Life) {
    life.row.forwarded = false;
    life.sent = false;
}

/// The request's head as the upstream is to see it.
fn write_head(out: &mut Vec<u8>, client: &Client, upstream: &Upstream, call: &Call<'_>, body_len: usize) {
    let (head, buf) = (&client.head, &client.buf[..]);
    out.extend_from_slice(head.method.as_str().as_bytes());
    out.push(b' ');
    out.extend_from_slice(upstream.v1_prefix.as_bytes());
    out.extend_from_slice(call.path.strip_prefix("/v1").unwrap_or(call.path).as_bytes());
    let ours = upstream.has_own_credential();
    if let Some(query) = head.query(buf) {
        if ours {
            target::append_query_without_secrets(query, out);
        } else {
            append_query_without_our_keys(query, out);
        }
    }
    out.extend_from_slice(b" HTTP/1.1\r\n");
    write::field(out, "host", upstream.host_header.as_bytes());
    let named_by_connection = head.fields.connection_options(buf).next().is_some();
    head.fields.pass_on(buf, out, |field, name, value| {
        let passes = match field.kind {
            FieldKind::Plain | FieldKind::ContentType | FieldKind::ContentEncoding | FieldKind::Date => true,
            FieldKind::TraceParent => true,
            FieldKind::RateLimit => true,
            FieldKind::Credential => !ours && is_forwardable(name, value),
            FieldKind::HopByHop
            | FieldKind::Host
            | FieldKind::ContentLength
            | FieldKind::TransferEncoding
            | FieldKind::Connection
            | FieldKind::Expect
            | FieldKind::Ours
            | FieldKind::AcceptEncoding => false,
        };
        // Whatever the header: a key of ours is nobody else's to see.
        let holds_our_key = !ours && memchr::memmem::find(value, crate::keys::PREFIX).is_some();
        passes && !holds_our_key && !(named_by_connection && head.fields.is_connection_named(buf, name))
    });
    if let Credential::Ours(key) = &upstream.credential {
        match upstream.api {
            crate::config::Api::Openai => {
                out.extend_from_slice(b"authorization: Bearer ");
                out.extend_from_slice(key.expose().as_bytes());
                write::line_end(out);
            }
            crate::config::Api::Anthropic => write::field(out, "x-api-key", key.expose().as_bytes()),
        }
    }
    out.extend_from_slice(b"accept-encoding: identity\r\n");
    if body_len > 0 || matches!(head.method, Method::Post | Method::Put | Method::Patch) {
        write::number_field(out, "content-length", body_len as u64);
    }
    write::line_end(out);
}

/// The query as it came, without pairs that hold a key of ours in any spelling.
fn append_query_without_our_keys(query: &[u8], out: &mut Vec<u8>) {
    let mut separator = b'?';
    for pair in query.split(|byte| *byte == b'&').filter(|pair| !pair.is_empty()) {
        if memchr::memmem::find(&percent_decoded(pair), crate::keys::PREFIX).is_none() {
            out.push(separator);
            out.extend_from_slice(pair);
            separator = b'&';
        }
    }
}

/// Begins to send the request; a large body is sent to its end.
async fn send(
    client: &mut Client,
    socket: &mut Socket,
    head: &[u8],
    splice: Option<&Splice>,
    call: &Call<'_>,
) -> std::io::Result<()> {
    let Range { start, end } = call.body;
    let Some(body) = client.buf.get(start..end) else {
        return Err(std::io::ErrorKind::InvalidInput.into()); // never a length without its bytes
    };
    let mut wire = take_buffer();
    wire.extend_from_slice(head);
    if body.len() <= ONE_WRITE_MAX {
        match splice {
            Some(splice) => splice.apply(body, &mut wire),
            None => wire.extend_from_slice(body),
        }
        return socket.send(wire, WRITE_STALL_NS).await;
    }
    // The option usually goes right behind the opening brace, and so with the head.
    let mut next = start;
    if let Some(splice) = splice {
        let (before, behind) = (start + splice.at.start, start + splice.at.end);
        if before - next > ONE_WRITE_MAX {
            socket.send(std::mem::take(&mut wire), WRITE_STALL_NS).await?;
            send_part(client, socket, next..before).await?;
        } else {
            wire.extend_from_slice(client.buf.get(next..before).unwrap_or_default());
        }
        wire.extend_from_slice(splice.with.as_bytes());
        next = behind;
    }
    socket.send(wire, WRITE_STALL_NS).await?;
    send_part(client, socket, next..end).await
}

/// Writes a part of the body, large enough for a slow provider to make it last: the caller is watched meanwhile. The
/// buffer is lent to the driver and comes back, for another attempt.
async fn send_part(client: &mut Client, socket: &mut Socket, part: Range<usize>) -> std::io::Result<()> {
    let bytes = std::mem::take(&mut client.buf);
    let (result, bytes) = socket.write_part_for(bytes, part, WRITE_STALL_NS, &mut client.socket).await;
    client.buf = bytes;
    result
}

/// Why no answer's head came.
struct Unanswered {
    failure: Failure,
    /// No byte of an answer was seen.
    untouched: bool,
    /// The request did not leave whole.
    unsent: Option<std::io::Error>,
}

/// Waits for the answer's head, while the request leaves, and watches the caller. A provider may answer before it has
/// read everything (413, 401) and close: that answer is the answer.
async fn await_head(
    core: &Core,
    client: &mut Client,
    mut socket: Socket,
    mut unsent: Option<std::io::Error>,
    timeout_ns: u64,
    life: &mut Life,
) -> Result<Answer, Unanswered> {
    let limits = HeadLimits { head_bytes_max: ANSWER_HEAD_BYTES_MAX };
    if unsent.is_none() && socket.is_flushed() {
        life.request_sent(clock::mono_ns());
    }
    let timeout_ns = if unsent.is_some() { EARLY_ANSWER_NS } else { timeout_ns };
    let mut deadline_ns = clock::tick_ns().saturating_add(timeout_ns);
    let mut buf = Vec::new();
    let mut head = core.take_answer_head();
    let mut untouched = true;
    let failure = loop {
        match read(client, &mut socket, &mut buf, deadline_ns).await {
            Got::Bytes(_) => untouched = false,
            Got::Written(Ok(at_ns)) => {
                life.request_sent(at_ns);
                continue;
            }
            Got::Written(Err(error)) => {
                deadline_ns = clock::mono_ns().saturating_add(EARLY_ANSWER_NS);
                unsent = Some(error);
                continue;
            }
            Got::End | Got::Broken => break Failure::NoAnswer,
            Got::ClientGone => break Failure::ClientGone,
            Got::Deadline => break Failure::AnswerTimeout,
        }
        match head.parse(&buf, &limits, client.head.method) {
            Ok(Some(head_len)) => {
                head.keep_alive &= unsent.is_none();
                return Ok(Answer { socket, buf, head, head_len, hides_usage: false });
            }
            Ok(None) => {}
            Err(bad) => break Failure::BadAnswer(bad.reason),
        }
    };
    Err(Unanswered { failure, untouched, unsent })
}

/// What came of reading from the provider.
#[derive(Debug)]
pub enum Got {
    /// That many bytes, behind those that were there.
    Bytes(usize),
    /// The request has left, at that time (monotonic ns), or cannot. The read goes on.
    Written(std::io::Result<u64>),
    /// It ended the connection.
    End,
    /// The connection broke.
    Broken,
    /// The caller left.
    ClientGone,
    /// Nothing came in time.
    Deadline,
}

/// Reads from the provider, and notices when the caller leaves. Bytes the caller pipelines are kept. After anything but
/// bytes the connection to the provider is of no further use, and the buffer may be gone with it.
///
/// A provider takes its time, and many are waited for at once: an empty buffer is given back, and one is taken when
/// bytes are there.
pub async fn read(client: &mut Client, socket: &mut Socket, buf: &mut Vec<u8>, deadline_ns: u64) -> Got {
    if buf.is_empty() {
        give_buffer(std::mem::take(buf));
    }
    loop {
        match read_beside(socket, buf, READ_ROOM, &mut client.socket, deadline_ns).await {
            Beside::Read(Ok(0)) => return Got::End,
            Beside::Read(Ok(count)) => return Got::Bytes(count),
            Beside::Read(Err(_)) => return Got::Broken,
            Beside::Written(done) => return Got::Written(done),
            Beside::Deadline => return Got::Deadline,
            Beside::OtherBroken => return Got::ClientGone,
            Beside::Other => match client.socket.take_next(&mut client.buf, READ_ROOM) {
                Ok(None) => {}
                Ok(Some(count)) if count > 0 && client.buf.len().saturating_sub(client.end) < PIPELINED_BYTES_MAX => {}
                // The end, a broken connection, or somebody who only fills our memory.
                Ok(_) | Err(_) => return Got::ClientGone,
            },
        }
    }
}

/// Whether a 400 complains about the option we added. Reads the error, bounded; it stays in the answer's buffer.
async fn rejects_usage_option(answer: &mut Answer, upstream: &Upstream) -> bool {
    let mut decoder = io::http1::BodyDecoder::new(answer.head.framing);
    let mut seen = answer.buf.get(answer.head_len..).unwrap_or_default().to_vec();
    let mut done = decoder.decode(&mut seen).map_or(true, |decoded| decoded.done);
    while !done && answer.buf.len() < ERROR_BYTES_MAX {
        let deadline_ns = clock::tick_ns().saturating_add(upstream.idle_timeout_ns);
        let from = answer.buf.len();
        match answer.socket.fill(&mut answer.buf, READ_ROOM, deadline_ns).await {
            Ok(count) if count > 0 => {
                let mut piece = answer.buf.get(from..).unwrap_or_default().to_vec();
                done = decoder.decode(&mut piece).map_or(true, |decoded| decoded.done);
            }
            _ => break,
        }
    }
    let body = answer.buf.get(answer.head_len..).unwrap_or_default();
    memchr::memmem::find(body, b"stream_options").is_some() || memchr::memmem::find(body, b"include_usage").is_some()
}

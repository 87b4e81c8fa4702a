//! A request's body: read whole and bounded into the caller's buffer, or got rid of when nobody needs it.
//!
//! The body stays where it was read, behind its head, and is forwarded from there: memory per request is one copy. What
//! it asks for is found out while it arrives, piece by piece, and between two pieces the core serves others: a large body
//! costs its neighbours the time of one piece.

use std::cell::RefCell;
use std::ops::Range;

use io::clock;
use io::http1::{BodyDecoder, Framing, write};
use io::json::{Asked, BadBody, Inspector};
use io::runtime::{Fill, let_others_run};

use crate::connection::{Client, WRITE_STALL_NS};

/// One read of a large body. Receiving and inspecting so much takes a core about 0.1 ms; half of it costs a
/// tenth more CPU for bodies of a megabyte.
const READ_ROOM: usize = 128 * 1024;
/// An unread body of at most this size is read and thrown away, so that the connection can be kept.
const SKIP_MAX: u64 = 64 * 1024;
/// And this is how long that may take.
const SKIP_NS: u64 = 1_000_000_000;

/// Why a body did not come in.
#[derive(Debug, PartialEq, Eq)]
pub enum BodyFault {
    /// Larger than the limit; told by its length before it was read, or by what came.
    TooLarge,
    /// No byte of it for the configured time.
    Slow,
    /// Its framing is broken.
    BadFraming(&'static str),
    /// The caller left.
    Gone,
}

/// A body that came in.
pub struct Body {
    /// Where it lies in the caller's buffer.
    pub range: Range<usize>,
    /// What it asks for, taken as JSON.
    pub asked: Result<Asked, BadBody>,
}

/// Reads the body behind the head. On success `client.end` says where the next request begins. `inspector` reads bodies
/// that are here already. Waits, at most `timeout_ns` between two bytes.
pub async fn receive(
    client: &mut Client,
    head_len: usize,
    body_bytes_max: u64,
    timeout_ns: u64,
    inspector: &RefCell<Inspector>,
) -> Result<Body, BodyFault> {
    match client.head.framing {
        Framing::None | Framing::UntilClose => Ok(whole(client, head_len..head_len, inspector)),
        Framing::Length(length) => {
            if length > body_bytes_max {
                return Err(BodyFault::TooLarge);
            }
            let end = usize::try_from(length).ok().and_then(|length| head_len.checked_add(length));
            let end = end.ok_or(BodyFault::TooLarge)?;
            if client.buf.len() >= end {
                return Ok(whole(client, head_len..end, inspector));
            }
            say_continue(client, head_len).await?;
            // One exact allocation: its pages cost nothing until bytes arrive.
            client.buf.reserve_exact(end - client.buf.len());
            // Others' bodies come in between, so this one has a reader of its own.
            let mut inspector = Box::<Inspector>::default();
            while client.buf.len() < end {
                let room = (end - client.buf.len()).min(READ_ROOM);
                read_more(client, room, timeout_ns).await?;
                inspector.read(client.buf.get(head_len..).unwrap_or_default());
            }
            client.end = end;
            Ok(Body {
                range: head_len..end,
                asked: inspector.finish(client.buf.get(head_len..end).unwrap_or_default()),
            })
        }
        Framing::Chunked => receive_chunked(client, head_len, body_bytes_max, timeout_ns).await,
    }
}

/// A body that is here.
fn whole(client: &mut Client, range: Range<usize>, inspector: &RefCell<Inspector>) -> Body {
    client.end = range.end;
    let asked = inspector.borrow_mut().inspect(client.buf.get(range.clone()).unwrap_or_default());
    Body { range, asked }
}

async fn receive_chunked(
    client: &mut Client,
    head_len: usize,
    body_bytes_max: u64,
    timeout_ns: u64,
) -> Result<Body, BodyFault> {
    let mut decoder = BodyDecoder::new(Framing::Chunked);
    let mut inspector = Box::<Inspector>::default();
    let mut end = head_len; // of the payload, which is moved together behind the head
    say_continue(client, head_len).await?;
    loop {
        let piece = client.buf.get_mut(end..).unwrap_or_default();
        let decoded = decoder.decode(piece).map_err(|_| BodyFault::BadFraming("the body's chunks are malformed"))?;
        let (payload_end, next) = (end + decoded.payload, end + decoded.consumed);
        client.buf.drain(payload_end..next);
        end = payload_end;
        if (end - head_len) as u64 > body_bytes_max {
            return Err(BodyFault::TooLarge);
        }
        let body = client.buf.get(head_len..end).unwrap_or_default();
        inspector.read(body);
        if decoded.done {
            client.end = end;
            return Ok(Body { range: head_len..end, asked: inspector.finish(body) });
        }
        // A quarter more at a time: doubling would hold three times a large body while it moves.
        if client.buf.capacity() - client.buf.len() < READ_ROOM {
            client.buf.reserve_exact(READ_ROOM.max(client.buf.len() / 4));
        }
        read_more(client, READ_ROOM, timeout_ns).await?;
    }
}

/// Reads what is there, or waits for it; others run first in any case.
async fn read_more(client: &mut Client, room: usize, timeout_ns: u64) -> Result<(), BodyFault> {
    let_others_run().await;
    let deadline_ns = clock::tick_ns().saturating_add(timeout_ns);
    match client.socket.fill(&mut client.buf, room, deadline_ns).await {
        Ok(0) | Err(Fill::Broken(_)) => Err(BodyFault::Gone),
        Ok(_) => Ok(()),
        Err(Fill::Deadline) => Err(BodyFault::Slow),
    }
}

/// Tells a caller that waits for it that its body is wanted, unless the body is coming already.
async fn say_continue(client: &mut Client, head_len: usize) -> Result<(), BodyFault> {
    if client.head.expect_continue && client.buf.len() == head_len {
        let said = client.socket.write_all(write::CONTINUE.to_vec(), WRITE_STALL_NS).await;
        said.map_err(|_| BodyFault::Gone)?;
    }
    Ok(())
}

/// Whether an unread body is small enough to be read and thrown away after an early answer. A caller that waits for
/// `100 Continue` may or may not send it, so there is no telling where its next request begins.
pub fn is_skippable(client: &Client, head_len: usize) -> bool {
    match client.head.framing {
        Framing::None => true,
        Framing::Length(length) => {
            let here = (client.buf.len() - head_len.min(client.buf.len())) as u64;
            length <= here || (length - here <= SKIP_MAX && !client.head.expect_continue)
        }
        Framing::Chunked | Framing::UntilClose => false,
    }
}

/// Reads a skippable body to its end and forgets it. `false`: it did not come in time, the connection must end.
pub async fn skip(client: &mut Client, head_len: usize) -> bool {
    let mut left = match client.head.framing {
        Framing::None => 0,
        Framing::Length(length) => length,
        Framing::Chunked | Framing::UntilClose => return false,
    };
    let here = (client.buf.len() - head_len) as u64;
    if left <= here {
        client.end = head_len + usize::try_from(left).unwrap_or(usize::MAX);
        return true;
    }
    left -= here;
    let deadline_ns = clock::mono_ns().saturating_add(SKIP_NS);
    while left > 0 {
        client.buf.truncate(head_len);
        let room = usize::try_from(left).unwrap_or(READ_ROOM).min(READ_ROOM);
        match client.socket.fill(&mut client.buf, room, deadline_ns).await {
            // What is read from a TLS session, or was read ahead, may go beyond: the next request begins there.
            Ok(count) if count as u64 > left => {
                client.end = client.buf.len() - (count - left as usize);
                return true;
            }
            Ok(count) if count > 0 => left -= count as u64,
            _ => return false,
        }
    }
    client.end = client.buf.len();
    true
}

//! The callers: at fixed times, on connections of their own, and strict about what they get.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::http::{Decoder, Progress};
use crate::common::*;

use super::keys::Known;
use super::{Dice, REPLICAS, Running, World};

/// More than are ever under way at a time.
pub const CALLERS: usize = 24;
/// Of all callers together. Two CPUs serve this many, with three debug builds, two stores and the provider beside.
const PER_SECOND: u64 = 60;

/// What a caller was told, to be compared with the rows.
pub struct Answered {
    pub nth: usize,
    pub request_id: String,
    pub status: u16,
    pub is_suspended: bool,
    pub at: Instant,
}

static NEXT: AtomicU64 = AtomicU64::new(0);

/// Takes the next call, waits until it is due, makes it, and so on.
pub fn call(world: &World) {
    let began = world.began;
    let first = began.elapsed().as_micros() as u64 * PER_SECOND / 1_000_000;
    let _ = NEXT.compare_exchange(0, first, Ordering::Relaxed, Ordering::Relaxed);
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let due = began + Duration::from_micros(number * 1_000_000 / PER_SECOND);
        std::thread::sleep(due.saturating_duration_since(Instant::now())); // an open loop: calls have their times
        if world.calls_are_over.load(Ordering::Acquire) {
            return;
        }
        let mut dice = Dice::new(world.seed, number << 8);
        let running = world.all_running();
        let known = world.keys.read().unwrap().clone();
        // One in ten asks with a key that may be revoked.
        let usable: Vec<_> = known.iter().filter(|key| key.revoking.get().is_none()).cloned().collect();
        let from = if dice.roll(10) == 0 { &known } else { &usable };
        if running.is_empty() || from.is_empty() {
            continue;
        }
        let replica = &running[dice.roll(REPLICAS) % running.len()];
        one(world, replica, &from[dice.roll(from.len())], &mut dice);
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Plain,
    Streamed,
    /// A stream whose caller hangs up after the head.
    Abandoned,
}

fn one(world: &World, replica: &Arc<Running>, key: &Arc<Known>, dice: &mut Dice) {
    let kind = match dice.roll(20) {
        0 => Kind::Abandoned,
        1..=4 => Kind::Streamed,
        _ => Kind::Plain,
    };
    let body = match kind {
        Kind::Plain => question("mock"),
        Kind::Streamed | Kind::Abandoned => chat_stream("mock+slow20"),
    };
    let request = Request::post(CHAT).key(&key.key.secret).json(&body);
    let asked = Instant::now();
    let asking = replica.asking.read().unwrap();
    let conn = Conn::try_open(replica.gateway.addr).and_then(|mut conn| {
        conn.try_send_raw(&request.bytes(&conn.host.clone()))?;
        Ok(conn)
    });
    drop(asking);
    let answer = conn.ok().and_then(|conn| answer_on(conn, kind));
    let doomed = || replica.is_doomed.load(Ordering::Acquire);
    match answer {
        Some(answer) => judge(world, replica, key, asked, kind, &answer),
        None if doomed() => {}
        None => world.complain(format!(
            "no answer, or half of one, from replica {} after {:?} ({})",
            replica.nth,
            asked.elapsed(),
            if kind == Kind::Plain { "plain" } else { "streamed" }
        )),
    }
}

/// `None` where no whole answer came.
fn answer_on(mut conn: Conn, kind: Kind) -> Option<Response> {
    let head = conn.try_read_head()?;
    let mut decoder = Decoder::of(&head, "POST");
    let (framing, mut body) = (decoder.framing, Vec::new());
    let hangs_up = kind == Kind::Abandoned && head.status == 200;
    loop {
        if hangs_up {
            return Some(Response { head, body, framing, complete: false });
        }
        match conn.read_body(&mut decoder, &mut body) {
            Progress::More => {}
            Progress::Complete => return Some(Response { head, body, framing, complete: true }),
            Progress::Cut => return None,
        }
    }
}

/// Whether the answer was due.
fn judge(world: &World, replica: &Running, key: &Known, asked: Instant, kind: Kind, answer: &Response) {
    let wrong = |what: &str| {
        world.complain(format!(
            "{what}: {} from replica {} with key {} ({}): {} {:?}",
            answer.status,
            replica.nth,
            key.key.id,
            key.story(replica, asked, world),
            answer.text(),
            answer.headers
        ));
    };
    match answer.status {
        200 | 429 => {
            if key.must_be_refused(replica, asked, world) {
                return wrong("a revoked key was let in");
            }
            replica.has_served.lock().unwrap().insert(key.key.id.clone());
            if answer.status == 429 && !super::LIMITS.contains(answer.header("x-tt-refused-by").unwrap_or("nobody")) {
                wrong("a refusal that no limit of ours gave");
            }
            if answer.status == 200 && kind == Kind::Streamed && !answer.text().trim_end().ends_with("data: [DONE]") {
                wrong("a stream without its end");
            }
            world.answers.lock().unwrap().push(Answered {
                nth: replica.nth,
                request_id: answer.request_id(),
                status: answer.status,
                is_suspended: answer.header("x-tt-coordination").is_some(),
                at: Instant::now(),
            });
        }
        401 if key.may_be_unknown(replica, asked, world) => {}
        401 => wrong("a good key was called bad"),
        503 if answer.text().contains("identity_unavailable") && !key.is_known_to(replica, asked) => {}
        _ => wrong("an answer that is not due"),
    }
}

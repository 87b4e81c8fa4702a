//! A Postgres that lies: whatever it sends after the login, calls end with an error or a value, never with a panic.
//!
//! Each seed makes a conversation of plausible messages, some of them damaged: a length that is too long or too short, a
//! column too many, text that is no UTF-8, nothing at all. The reader runs in a task, where a panic would be swallowed, so
//! panics are counted by the hook.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use io::postgres::{Dsn, Session};

const SEEDS: u64 = 400;

static PANICS: AtomicUsize = AtomicUsize::new(0);

struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        // xorshift64: the same seed gives the same conversation
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % sides as u64).unwrap()
    }
}

fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 4).unwrap();
    [&[kind][..], &length.to_be_bytes(), body].concat()
}

/// What a server may say to a query, one after the other.
fn plausible(dice: &mut Dice) -> Vec<u8> {
    let columns: u16 = [0, 1, 1, 1, 7, 7, 10, 300][dice.roll(8)];
    match dice.roll(12) {
        0 => message(b'1', &[]),
        1 => message(b'2', &[]),
        2 | 3 => {
            let mut body = columns.to_be_bytes().to_vec();
            for _ in 0..columns {
                body.extend_from_slice(b"c\0");
                let oid = [16_u32, 17, 20, 23, 25, 1_009, 0, 999_999][dice.roll(8)];
                body.extend_from_slice(&[0; 6]);
                body.extend_from_slice(&oid.to_be_bytes());
                body.extend_from_slice(&[0, 4, 255, 255, 255, 255, 0, 1]);
            }
            message(b'T', &body)
        }
        4 | 5 => {
            let mut body = columns.to_be_bytes().to_vec();
            for _ in 0..columns {
                let length = [-1_i32, 0, 1, 4, 8, 32, -2, i32::MAX][dice.roll(8)];
                body.extend_from_slice(&length.to_be_bytes());
                body.extend(std::iter::repeat_n(dice.roll(256) as u8, usize::try_from(length.clamp(0, 64)).unwrap()));
            }
            message(b'D', &body)
        }
        6 => message(b'C', [&b"SELECT 1\0"[..], b"DELETE x\0", b"\0", b"", b"\xff\xff"][dice.roll(5)]),
        7 => message(b'E', [&b"SERROR\0C42501\0Mno\0\0"[..], b"S\0\0", b"\0", b"", b"CXXXXX\0M\xff\0\0"][dice.roll(5)]),
        8 => message(b'A', [&b"\0\0\0\x01tokentriage_keys\0\0"[..], b"\0\0", b""][dice.roll(3)]),
        9 => message(b'Z', [&b"I"[..], b"E", b"", b"??"][dice.roll(4)]),
        10 => message(b'S', [&b"a\0b\0"[..], b"a", b""][dice.roll(3)]),
        _ => message(dice.roll(256) as u8, &[dice.roll(256) as u8; 3]),
    }
}

/// Takes the login, then answers whatever is asked. The user's name is the seed.
fn converse(mut peer: TcpStream) -> std::io::Result<()> {
    peer.set_read_timeout(Some(Duration::from_millis(400)))?;
    let mut asked = [0; 4096];
    let count = peer.read(&mut asked)?;
    let login = String::from_utf8_lossy(&asked[..count]).into_owned();
    let seed = login.split('\0').skip_while(|word| *word != "user").nth(1).and_then(|name| name.parse::<u64>().ok());
    let mut dice = Dice(seed.unwrap_or(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    peer.write_all(&message(b'R', &[0, 0, 0, 0]))?;
    peer.write_all(&message(b'Z', b"I"))?;
    while peer.read(&mut asked)? > 0 {
        let mut out = Vec::new();
        for _ in 0..=dice.roll(6) {
            let mut part = plausible(&mut dice);
            match dice.roll(8) {
                0 => part.truncate(dice.roll(part.len())),
                1 => {
                    let at = dice.roll(part.len());
                    part[at] = dice.roll(256) as u8;
                }
                _ => {}
            }
            out.extend_from_slice(&part);
        }
        if dice.roll(3) > 0 {
            out.extend_from_slice(&message(b'Z', b"I"));
        }
        peer.write_all(&out)?;
        if dice.roll(10) == 0 {
            break;
        }
    }
    Ok(())
}

#[test]
fn nothing_a_server_sends_panics() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        PANICS.fetch_add(1, Ordering::AcqRel);
        before(info);
    }));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for peer in listener.incoming().flatten() {
            std::thread::spawn(move || converse(peer));
        }
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut all = tokio::task::JoinSet::new();
        for seed in 1..=SEEDS {
            let dsn = Dsn::parse(&format!("host=127.0.0.1 port={port} user={seed} sslmode=disable"), "test").unwrap();
            // A server that says too little is given up like any other.
            all.spawn(
                async move { (seed, tokio::time::timeout(Duration::from_secs(1), speak(&dsn, seed)).await.is_ok()) },
            );
        }
        let mut ended = 0;
        while let Some(done) = all.join_next().await {
            ended += u64::from(done.expect("no seed panics").1);
        }
        assert!(ended > SEEDS / 10, "most of what is said must be understood or refused, not waited for: {ended}");
    });
    assert_eq!(PANICS.load(Ordering::Acquire), 0);
}

/// Every call there is.
async fn speak(dsn: &Dsn, seed: u64) {
    let Ok(mut session) = Session::open(dsn).await else { return };
    let _ = session.listen("tokentriage_keys").await;
    let _ = session.keys().await;
    let _ = session.keys_version().await;
    let _ = session.replicas().await;
    let _ = session.revoke_key("key_0", 1, "me").await;
    let _ = session.migrate(seed.is_multiple_of(2)).await;
    let _ = session.rung().await;
}

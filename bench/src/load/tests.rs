//! The generator against the mock provider, and against servers that misbehave on purpose.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;

use socket2::{Domain, Socket, Type};

use super::*;
use crate::provider::{Provider, Settings};

fn load(target: SocketAddr, pace: Pace, expect: Expect, connections: usize) -> Load {
    let stream = matches!(expect, Expect::Stream { .. });
    Load {
        target,
        request: Request::chat(target, "/v1/chat/completions", 600, stream),
        keys: Arc::from(["sk-test".to_owned()]),
        keys_taken: Arc::default(),
        connections,
        pace,
        expect,
        requests_per_connection: 0,
        ramp_ns: 0,
        timeout_ns: 2_000_000_000,
        threads: 1,
        cpus: sys::usable_cpus(),
        is_busy: false,
        provider: None,
        is_beside: false,
    }
}

fn run(load: &Load, warmup_ms: u64, window_ms: u64) -> Tally {
    let begin_ns = warmup_ms * 1_000_000;
    let window = Window { origin: Instant::now(), begin_ns, end_ns: begin_ns + window_ms * 1_000_000 };
    start(load, window).unwrap().finish().unwrap()
}

fn provider(settings: &Settings) -> Provider {
    Provider::start(settings, 1, &sys::usable_cpus()).unwrap()
}

const CLOSED: Pace = Pace::Closed { think_ns: 0 };

/// A server that treats every request of every connection as `answer` says; connections are served one after another.
fn server(answer: impl Fn(u32) -> (Duration, Vec<u8>) + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut count = 0;
        while let Ok((mut socket, _)) = listener.accept() {
            let mut buffer = [0; 8192];
            while let Ok(1..) = socket.read(&mut buffer) {
                let (wait, bytes) = answer(count);
                count += 1;
                std::thread::sleep(wait);
                if bytes.is_empty() || socket.write_all(&bytes).is_err() {
                    break;
                }
            }
        }
    });
    addr
}

fn reply(body: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

#[test]
fn a_closed_loop_counts_right_answers_and_nothing_fails() {
    let provider = provider(&Settings::default());
    let tally = run(&load(provider.addr, CLOSED, Expect::Reply, 8), 20, 200);
    assert!(tally.is_valid(), "{:?}", tally.failures);
    assert_eq!(tally.completed, tally.latency.len());
    assert_eq!(tally.connects, 8);
    assert!(provider.answered() >= tally.completed);
}

#[test]
fn several_threads_share_connections_and_keys() {
    let provider = provider(&Settings::default());
    let load = Load { threads: 3, ..load(provider.addr, CLOSED, Expect::Reply, 7) };
    let tally = run(&load, 0, 100);
    assert!(tally.is_valid(), "{:?}", tally.failures);
    assert_eq!(tally.connects, 7);
}

#[test]
fn the_next_window_goes_on_with_the_key_after_the_last_one() {
    let provider = provider(&Settings::default());
    let keys: Vec<String> = (0..1_000_000).map(|nth| format!("sk-{nth}")).collect();
    let load = Load { threads: 2, keys: keys.into(), ..load(provider.addr, CLOSED, Expect::Reply, 4) };
    let first = run(&load, 0, 50).completed;
    let taken = load.keys_taken.load(Ordering::Relaxed) as u64;
    assert!(taken >= first && taken > 0, "{taken} keys for {first} requests");
    run(&load, 0, 50);
    assert!(load.keys_taken.load(Ordering::Relaxed) as u64 > taken);
}

#[test]
fn an_open_loop_keeps_its_rate_whatever_the_answers_take() {
    let provider = provider(&Settings { delay_us: 20_000, ..Settings::default() });
    for is_poisson in [false, true] {
        let pace = Pace::Open { rate: 1_000.0, is_poisson };
        let tally = run(&load(provider.addr, pace, Expect::Reply, 64), 100, 500);
        assert!(tally.is_valid(), "{:?}", tally.failures);
        // 1,000/s for 0.5 s. Even distances give 500 to the request; random ones vary by sqrt(500) = 22.
        let off = (tally.completed as i64 - 500).abs();
        assert!(off <= if is_poisson { 110 } else { 1 }, "{}", tally.completed);
    }
}

#[test]
fn a_load_that_never_sleeps_works_the_provider_and_says_how_long_it_had_nothing_to_do() {
    let provider = provider(&Settings::default());
    let pace = Pace::Open { rate: 1_000.0, is_poisson: false };
    let busy = Load { is_busy: true, provider: provider.loan(), ..load(provider.addr, pace, Expect::Reply, 4) };
    let window = Window { origin: Instant::now(), begin_ns: 200_000_000, end_ns: 500_000_000 };
    let running = start(&busy, window).unwrap();
    let live = running.live[0].clone();
    let tally = running.finish().unwrap();
    assert!(tally.is_valid(), "{:?}", tally.failures);
    assert!(tally.completed > 0 && tally.completed <= 301, "{}", tally.completed);
    let idle_ns = live.idle_ns.load(Ordering::Relaxed);
    assert!(idle_ns > 0 && idle_ns < window.now_ns(), "{idle_ns} ns");
}

#[test]
fn a_stall_is_charged_to_every_request_that_was_due_meanwhile() {
    // One connection, due every 10 ms, answered at once; but the 20th answer takes 300 ms. A generator that waits for it
    // before it thinks of the next would record one slow request; here some 30 were due and were late.
    let addr = server(|count| (Duration::from_millis(if count == 20 { 300 } else { 0 }), reply("tt-reply")));
    let pace = Pace::Open { rate: 100.0, is_poisson: false };
    let tally = run(&load(addr, pace, Expect::Reply, 1), 0, 1_000);
    assert!(tally.is_valid(), "{:?}", tally.failures);
    assert_eq!(tally.completed, 100);
    let late = (1..=100).filter(|percent| tally.latency.value_at_quantile(f64::from(*percent) / 100.0) > 50_000_000);
    let late = late.count();
    assert!((20..=35).contains(&late), "{late} of 100 were later than 50 ms");
    assert!(tally.backlog_max >= 20, "{}", tally.backlog_max);
}

#[test]
fn a_closed_loop_hides_that_stall_which_is_why_latency_is_not_read_from_one() {
    let addr = server(|count| (Duration::from_millis(if count == 20 { 300 } else { 1 }), reply("tt-reply")));
    let tally = run(&load(addr, CLOSED, Expect::Reply, 1), 0, 1_000);
    let late = tally.latency.len() - tally.latency.count_between(0, 50_000_000);
    assert!(late <= 2, "{late}");
}

#[test]
fn streams_are_counted_frame_by_frame_with_first_byte_and_gaps() {
    let provider = provider(&Settings { chunks: 10, gap_us: 5_000, ..Settings::default() });
    let tally = run(&load(provider.addr, CLOSED, Expect::Stream { frames: 10 }, 4), 0, 400);
    assert!(tally.is_valid(), "{:?}", tally.failures);
    let gap_ms = tally.gap.value_at_quantile(0.5) as f64 / 1e6;
    assert!((4.0..12.0).contains(&gap_ms), "{gap_ms} ms");
    assert!(tally.frames >= tally.completed * 10);
}

#[test]
fn every_kind_of_bad_answer_makes_the_window_invalid() {
    let cases: &[(&str, Vec<u8>)] = &[
        ("status 429: refused", b"HTTP/1.1 429 No\r\ncontent-length: 0\r\n\r\n".to_vec()),
        ("an answer that was cut", b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\ntt-reply".to_vec()),
        ("bytes after the end of an answer", [reply("tt-reply"), b"x".to_vec()].concat()),
        ("an answer that is not the provider's", reply("something else")),
        ("an answer that is not HTTP/1", b"SSH-2.0-x\r\n\r\n".to_vec()),
        ("a connection closed without an answer", Vec::new()),
    ];
    for (why, bytes) in cases {
        let bytes = bytes.clone();
        let closes = *why == "an answer that was cut";
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            while let Ok((mut socket, _)) = listener.accept() {
                let mut buffer = [0; 8192];
                while let Ok(1..) = socket.read(&mut buffer) {
                    if bytes.is_empty() || socket.write_all(&bytes).is_err() || closes {
                        break;
                    }
                }
            }
        });
        let tally = run(&load(addr, CLOSED, Expect::Reply, 1), 0, 50);
        assert!(!tally.is_valid());
        assert!(tally.failures.contains_key(why), "{why}: {:?}", tally.failures);
    }
}

#[test]
fn a_target_that_is_not_there_or_never_answers_is_a_failure_and_no_hang() {
    // Bound, and not listening: it refuses, and nobody else gets its port.
    let bound = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    bound.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let gone = bound.local_addr().unwrap().as_socket().unwrap();
    for pace in [CLOSED, Pace::Open { rate: 2_000.0, is_poisson: false }] {
        let mut dead = load(gone, pace, Expect::Reply, 4);
        dead.timeout_ns = 100_000_000;
        let tally = run(&dead, 0, 50);
        assert!(tally.failures.contains_key("connection refused"), "{:?}", tally.failures);
    }
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut quiet = load(silent.local_addr().unwrap(), CLOSED, Expect::Reply, 2);
    quiet.timeout_ns = 60_000_000;
    let tally = run(&quiet, 0, 150);
    assert!(tally.failures.contains_key("no complete answer in time"), "{:?}", tally.failures);
}

#[test]
fn connections_are_used_up_after_so_many_requests() {
    let provider = provider(&Settings::default());
    let churn = Load { requests_per_connection: 5, ..load(provider.addr, CLOSED, Expect::Reply, 2) };
    let tally = run(&churn, 0, 100);
    assert!(tally.is_valid(), "{:?}", tally.failures);
    let expected = tally.completed / 5;
    assert!(tally.connects >= expected && tally.connects <= expected + 4, "{} for {}", tally.connects, tally.completed);
}

#[test]
fn think_time_is_kept_between_two_requests() {
    let provider = provider(&Settings::default());
    let tally = run(&load(provider.addr, Pace::Closed { think_ns: 20_000_000 }, Expect::Reply, 2), 0, 400);
    assert!(tally.is_valid());
    assert!((20..=42).contains(&tally.completed), "{}", tally.completed); // two connections, one request per 20 ms each
}

#[test]
fn a_body_that_no_socket_buffer_holds_is_sent_whole() {
    let provider = provider(&Settings::default());
    let mut big = load(provider.addr, CLOSED, Expect::Reply, 2);
    big.request = Request::chat(provider.addr, "/v1/chat/completions", 8_000_000, false);
    assert_eq!(big.request.body_bytes(), 8_000_000);
    let tally = run(&big, 0, 300);
    assert!(tally.is_valid(), "{:?}", tally.failures);
}

//! Many cores on one scope: never one admission over the cap, and everything is given back.
//!
//! 4 data cores, 64 callers and one scope, for about ten seconds each. What was admitted is counted at the
//! upstream, not by the gateway's own numbers.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::*;

const CALLERS: usize = 64;
const FOR: Duration = Duration::from_secs(10);

/// Hammers CHAT from all callers until the time is up; gives how many were admitted, and from the first request
/// to the last answer how long it took.
fn hammer(gateway: &Gateway, key: &Key) -> (u64, Duration) {
    let request = Request::post(CHAT).key(&key.secret).json(&chat("mock"));
    let admitted = AtomicU64::new(0);
    let began = Instant::now();
    thread::scope(|scope| {
        for _ in 0..CALLERS {
            scope.spawn(|| {
                let mut caller = Conn::open(gateway.addr);
                while began.elapsed() < FOR {
                    caller.send(&request);
                    let answer = caller.read_response();
                    match answer.status {
                        200 => admitted.fetch_add(1, Ordering::Relaxed),
                        429 => 0,
                        status => panic!("{status}: {}", answer.text()),
                    };
                }
            });
        }
    });
    (admitted.into_inner(), began.elapsed())
}

#[test]
fn rpm_admits_at_most_its_burst_and_what_time_earned() {
    const BURST: u64 = 50;
    const PER_MINUTE: u64 = 1_200;
    let forwarded = Arc::new(AtomicU64::new(0));
    let counter = forwarded.clone();
    let upstream = Scripted::start(move |asked| {
        counter.fetch_add(1, Ordering::Relaxed);
        scripted::healthy_chat(&asked.model())
    });
    let gateway = Setup::new()
        .upstream("counting", "openai", upstream.addr, r#"["mock*"]"#, "")
        .limit("team_rpm", "rpm", &format!("amount: {PER_MINUTE}, period: 1m, burst: {BURST}"))
        .cores(4)
        .start();
    let key = gateway.mint(DEV1);
    let (admitted, took) = hammer(&gateway, &key);
    let earned = took.as_millis() as u64 * PER_MINUTE / 60_000;
    assert!(admitted <= BURST + earned, "{admitted} admitted, {BURST} + {earned} allowed");
    assert_eq!(forwarded.load(Ordering::Relaxed), admitted, "what was admitted was forwarded, and nothing else");
    // 64 callers leave no unit unused for long
    assert!(admitted >= (BURST + earned) * 9 / 10, "{admitted} of {} admitted: it over-refuses", BURST + earned);
    gateway.idle_check_allowing(128);
}

#[test]
fn a_window_admits_exactly_its_amount() {
    const AMOUNT: u64 = 1_000;
    let algorithms = ["fixed_window", "sliding_window"];
    for (algorithm, cores) in algorithms.into_iter().flat_map(|algorithm| [1, 2, 4].map(|cores| (algorithm, cores))) {
        let upstream = Scripted::start(|asked| scripted::healthy_chat(&asked.model()));
        // Windows are aligned to the epoch; one of 1000 h ends during this test once in many thousand runs.
        let rest = format!("amount: {AMOUNT}, period: 1000h, algorithm: {algorithm}");
        let gateway = Setup::new()
            .upstream("counting", "openai", upstream.addr, r#"["mock*"]"#, "")
            .limit("team_rpm", "rpm", &rest)
            .cores(cores)
            .start();
        let key = gateway.mint(DEV1);
        let request = Request::post(CHAT).key(&key.secret).json(&chat("mock"));
        let admitted: u64 = thread::scope(|scope| {
            let callers: Vec<_> = (0..CALLERS)
                .map(|_| {
                    scope.spawn(|| {
                        let mut caller = Conn::open(gateway.addr);
                        let asked = (0..100).map(|_| {
                            caller.send(&request);
                            u64::from(caller.read_response().status == 200)
                        });
                        asked.sum::<u64>()
                    })
                })
                .collect();
            callers.into_iter().map(|caller| caller.join().expect("a caller does not panic")).sum()
        });
        assert_eq!(admitted, AMOUNT, "{algorithm} on {cores} cores: not one more, and not one less");
        gateway.idle_check();
    }
}

#[test]
fn concurrency_never_exceeds_its_cap_and_rests_at_zero() {
    const CAP: u64 = 4;
    let (running, peak) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (now, most) = (running.clone(), peak.clone());
    let upstream = Scripted::start(move |asked| {
        // A lease is held from before this until after the answer left, so what runs here is never more.
        most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        thread::sleep(Duration::from_millis(5)); // an answer takes time: without it, requests hardly overlap
        now.fetch_sub(1, Ordering::SeqCst);
        scripted::healthy_chat(&asked.model())
    });
    let gateway = Setup::new()
        .upstream("counting", "openai", upstream.addr, r#"["mock*"]"#, "")
        .limit("team_slots", "concurrency", &format!("amount: {CAP}"))
        .cores(4)
        .start();
    let key = gateway.mint(DEV1);
    let (admitted, _) = hammer(&gateway, &key);
    let peak = peak.load(Ordering::SeqCst);
    assert!(peak <= CAP, "{peak} ran at once under a cap of {CAP}");
    assert_eq!(peak, CAP, "the cap was reached, so the test tests it");
    assert!(admitted > 100, "{admitted}");
    until("the gauge to rest", PROMPTLY, || gateway.me(&key).limit("team_slots").live() == 0);
    // Hundreds of thousands of rows, most of them refusals: the gateway's own count of them must agree.
    let served = [r#"code="200""#, r#"endpoint="chat.completions""#];
    let booked = || gateway.metrics().sum_where("tokentriage_requests_total", &served);
    until("every admitted request to have its row", SOON, || booked() == Some(admitted as f64));
    assert_eq!(gateway.metrics().count("tokentriage_dropped_rows_total"), 0);
    gateway.idle_check_allowing(128);
}

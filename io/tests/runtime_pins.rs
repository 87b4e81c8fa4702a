//! What the rest of the gateway relies on from the runtime, under both drivers.
//!
//! These tests may never be deleted as "testing the library": they pin that waiting on readiness may be given up
//! at any time without losing a byte or a descriptor, which a dropped read under io_uring does not allow.

use std::cell::RefCell;
use std::io::{Read, Write};
use std::net::{TcpListener as StdListener, TcpStream as StdStream};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use io::clock::mono_ns;
use io::doorbell::doorbell;
use io::listen::{Listener, StopAccepting, bind_all};
use io::runtime::{
    Beside, ClientTls, DriverChoice, DriverKind, Event, Fill, ServerTls, Socket, read_beside, run_core, sleep, spawn,
};
use io::upstream::{Addresses, ConnectError, Pool, Target, connect};

const SECOND_NS: u64 = 1_000_000_000;

/// Runs the body under each driver this machine has; epoll it always has.
fn on_both_drivers<Fut: Future<Output = ()>>(body: impl Fn() -> Fut) {
    for choice in [DriverChoice::Epoll, DriverChoice::Auto] {
        run_core(choice, |_| body()).expect("a driver");
    }
}

/// A connected pair: our socket and the test's plain blocking end.
async fn pair() -> (Socket, StdStream) {
    let listeners = bind_all("127.0.0.1:0".parse().unwrap(), 1).unwrap();
    let address = listeners[0].local_addr().unwrap();
    let far = StdStream::connect(address).unwrap();
    let listener = Listener::new(listeners.into_iter().next().unwrap()).unwrap();
    (listener.accept(&StopAccepting::default()).await.unwrap(), far)
}

fn to(address: std::net::SocketAddr) -> Target {
    Target { host: "127.0.0.1".into(), addresses: Addresses::fixed(address), tls: None }
}

#[test]
fn epoll_can_be_forced() {
    let kind = run_core(DriverChoice::Epoll, async |driver| driver.kind).unwrap();
    assert_eq!(kind, DriverKind::Epoll);
}

#[test]
fn waits_given_up_lose_no_byte() {
    on_both_drivers(async || {
        let (mut socket, mut far) = pair().await;
        for round in 0..300_u32 {
            // Given up while nothing is there, then given up again right after the bytes came.
            assert!(!socket.readable(mono_ns() + 1).await || round > 0);
            far.write_all(&round.to_be_bytes()).unwrap();
            let mut got = Vec::new();
            while got.len() < 4 {
                let room = 4 - got.len();
                socket.fill(&mut got, room, mono_ns() + 5 * SECOND_NS).await.unwrap();
            }
            assert_eq!(got, round.to_be_bytes());
        }
    });
}

#[test]
fn a_deadline_ends_a_wait_and_the_socket_stays_usable() {
    on_both_drivers(async || {
        let (mut socket, mut far) = pair().await;
        let mut got = Vec::new();
        let started = mono_ns();
        assert!(matches!(socket.fill(&mut got, 10, started + 20_000_000).await, Err(Fill::Deadline)));
        assert!(mono_ns() - started >= 20_000_000);
        far.write_all(b"later").unwrap();
        assert_eq!(socket.fill(&mut got, 10, u64::MAX).await.unwrap(), 5);
    });
}

#[test]
fn a_read_waits_beside_another_socket_and_goes_on_after_its_news() {
    on_both_drivers(async || {
        let (mut first, mut far_first) = pair().await;
        let (mut second, mut far_second) = pair().await;
        let mut got = Vec::new();
        {
            let mut reading = pin!(first.read(&mut got, 64));
            let waited = read_beside(reading.as_mut(), &mut second, mono_ns() + 5_000_000).await;
            assert!(matches!(waited, Beside::Deadline), "{waited:?}");
            far_second.write_all(b"news").unwrap();
            let waited = read_beside(reading.as_mut(), &mut second, u64::MAX).await;
            assert!(matches!(waited, Beside::Other), "{waited:?}");
            assert_eq!(second.fill(&mut Vec::new(), 64, u64::MAX).await.unwrap(), 4);
            far_first.write_all(b"hello").unwrap();
            let waited = read_beside(reading.as_mut(), &mut second, mono_ns() + 5 * SECOND_NS).await;
            assert!(matches!(waited, Beside::Read(Ok(5))), "{waited:?}");
        }
        assert_eq!(got, b"hello");
        // One way of reading and the other take turns on one connection.
        far_first.write_all(b"again").unwrap();
        assert_eq!(first.fill(&mut got, 64, mono_ns() + 5 * SECOND_NS).await.unwrap(), 5);
        far_first.write_all(b"!").unwrap();
        assert_eq!(first.read(&mut got, 64).await.unwrap(), 1);
        assert_eq!(got, b"helloagain!");
    });
}

#[test]
fn a_read_that_is_given_up_with_its_connection_closes_it_at_once() {
    on_both_drivers(async || {
        let (mut socket, mut far) = pair().await;
        let (mut other, _far_other) = pair().await;
        let ended = std::thread::spawn(move || far.read(&mut [0; 1]).unwrap());
        let mut got = Vec::new();
        let waited = read_beside(pin!(socket.read(&mut got, 64)), &mut other, mono_ns() + 5_000_000).await;
        assert!(matches!(waited, Beside::Deadline), "{waited:?}");
        drop(socket);
        while !ended.is_finished() {
            sleep(Duration::from_millis(1)).await; // the core must go on running for the close to be submitted
        }
        assert_eq!(ended.join().unwrap(), 0);
    });
}

#[test]
fn a_wait_ends_once_for_each_piece_that_comes_and_not_before() {
    on_both_drivers(async || {
        let (mut socket, mut far) = pair().await;
        let mut got = Vec::new();
        for _ in 0..50 {
            // What is remembered of the last piece must not be taken for news.
            assert!(!socket.readable(mono_ns() + 1_000_000).await);
            far.write_all(b"x").unwrap();
            assert!(socket.readable(mono_ns() + 5 * SECOND_NS).await);
            assert!(socket.has_news());
            assert_eq!(socket.try_read(&mut got, 64).await.unwrap(), Some(1));
            assert!(!socket.has_news());
        }
    });
}

#[test]
fn a_write_ends_when_the_one_it_is_for_has_left() {
    on_both_drivers(async || {
        let (mut socket, _far) = pair().await;
        let (mut asker, mut far_asker) = pair().await;
        far_asker.write_all(b"the next request").unwrap(); // who sends more is there
        let all = 0..64 << 20;
        let (result, _) = socket.write_part_for(vec![7; 64 << 20], all.clone(), 50_000_000, &mut asker).await;
        assert_eq!(result.unwrap_err().kind(), std::io::ErrorKind::TimedOut);
        let (mut socket, _far) = pair().await;
        let (mut asker, far_asker) = pair().await;
        drop(far_asker);
        let (result, _) = socket.write_part_for(vec![7; 64 << 20], all, 60 * SECOND_NS, &mut asker).await;
        assert_eq!(result.unwrap_err().kind(), std::io::ErrorKind::ConnectionAborted);
    });
}

#[test]
fn a_reader_that_takes_nothing_ends_the_write() {
    on_both_drivers(async || {
        let (mut socket, _far) = pair().await;
        let (result, _) = socket.write_all(vec![7; 64 << 20], 50_000_000).await;
        assert_eq!(result.unwrap_err().kind(), std::io::ErrorKind::TimedOut);
    });
}

#[test]
fn a_large_write_arrives_whole() {
    on_both_drivers(async || {
        let (mut socket, mut far) = pair().await;
        let reader = std::thread::spawn(move || {
            let mut all = Vec::new();
            far.read_to_end(&mut all).unwrap();
            all
        });
        let bytes: Vec<u8> = (0..8_000_000_u32).map(|n| (n % 251) as u8).collect();
        let (result, back) = socket.write_all(bytes.clone(), 5 * SECOND_NS).await;
        result.unwrap();
        assert_eq!(back, bytes, "the buffer comes back");
        drop(socket);
        // The core must go on running for the close to be submitted.
        while !reader.is_finished() {
            sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(reader.join().unwrap(), bytes);
    });
}

#[test]
fn stopping_ends_accept_and_loses_no_descriptor() {
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    on_both_drivers(async || {
        let before = open();
        for _ in 0..100 {
            let listeners = bind_all("127.0.0.1:0".parse().unwrap(), 1).unwrap();
            let listener = Listener::new(listeners.into_iter().next().unwrap()).unwrap();
            let stop = Rc::new(StopAccepting::default());
            let stopper = stop.clone();
            spawn(async move { stopper.stop() }, || ());
            assert!(listener.accept(&stop).await.is_err());
            assert!(listener.accept(&stop).await.is_err(), "and stays stopped");
        }
        sleep(Duration::from_millis(20)).await;
        // Other tests run in this process too, so only a leak of one a round would show.
        assert!(open() < before + 90, "{before} before, {} after", open());
    });
}

#[test]
fn one_core_each_gets_a_socket_and_a_second_process_an_error() {
    let listeners = bind_all("127.0.0.1:0".parse().unwrap(), 4).unwrap();
    let address = listeners[0].local_addr().unwrap();
    assert!(listeners.iter().all(|each| each.local_addr().unwrap() == address));
    assert_eq!(bind_all(address, 2).unwrap_err().kind(), std::io::ErrorKind::AddrInUse);
}

#[test]
fn connecting_fails_soon_or_at_the_deadline() {
    on_both_drivers(async || {
        let closed = StdListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        assert!(matches!(connect(&to(closed), mono_ns() + SECOND_NS).await, Err(ConnectError::Failed(_))));
        // A listener whose backlog is full takes no more connections.
        let full = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        full.bind(&"127.0.0.1:0".parse::<std::net::SocketAddr>().unwrap().into()).unwrap();
        full.listen(0).unwrap();
        let address = full.local_addr().unwrap().as_socket().unwrap();
        let mut held = Vec::new();
        let outcome = loop {
            match connect(&to(address), mono_ns() + 30_000_000).await {
                Ok(socket) if held.len() < 16 => held.push(socket),
                other => break other.map(|_| ()),
            }
        };
        assert!(matches!(outcome, Err(ConnectError::Deadline)), "{outcome:?}");
    });
}

#[test]
fn the_pool_gives_back_what_is_open_and_drops_what_is_closed() {
    on_both_drivers(async || {
        let listener = StdListener::bind("127.0.0.1:0").unwrap();
        let target = to(listener.local_addr().unwrap());
        let mut pool = Pool::new(8, 60 * SECOND_NS);
        let socket = connect(&target, mono_ns() + SECOND_NS).await.unwrap();
        let (mut far, _) = listener.accept().unwrap();
        pool.give(socket);
        let mut socket = pool.take().expect("still open");
        socket.write_all(b"hello".to_vec(), SECOND_NS).await.0.unwrap();
        let mut got = [0; 5];
        far.read_exact(&mut got).unwrap();
        pool.give(socket);
        drop(far);
        sleep(Duration::from_millis(3)).await; // one that was used a moment ago is not looked at
        assert!(pool.take().is_none());
        assert_eq!(pool.idle(), 0);
    });
}

#[test]
fn a_panic_ends_its_task_alone() {
    std::panic::set_hook(Box::new(|_| ()));
    on_both_drivers(async || {
        let told = Rc::new(RefCell::new(false));
        let tell = told.clone();
        spawn(async { panic!("of one request") }, move || *tell.borrow_mut() = true);
        sleep(Duration::from_millis(2)).await;
        assert!(*told.borrow());
    });
    let _ = std::panic::take_hook();
}

#[test]
fn an_event_wakes_all_who_wait() {
    on_both_drivers(async || {
        let event = Rc::new(Event::default());
        let woken = Rc::new(RefCell::new(0));
        for _ in 0..10 {
            let (event, woken) = (event.clone(), woken.clone());
            spawn(
                async move {
                    event.wait().await;
                    *woken.borrow_mut() += 1;
                },
                || (),
            );
        }
        sleep(Duration::from_millis(2)).await;
        assert_eq!(*woken.borrow(), 0);
        event.set();
        sleep(Duration::from_millis(2)).await;
        assert_eq!(*woken.borrow(), 10);
    });
}

#[test]
fn a_doorbell_wakes_the_core_from_another_thread() {
    on_both_drivers(async || {
        let (door, bell) = doorbell().unwrap();
        let rings = Rc::new(RefCell::new(0));
        let count = rings.clone();
        spawn(
            async move {
                let _ = bell.listen(move || *count.borrow_mut() += 1).await;
            },
            || (),
        );
        for round in 1..=5 {
            let door = door.clone();
            std::thread::spawn(move || door.ring()).join().unwrap();
            let deadline = mono_ns() + 5 * SECOND_NS;
            while *rings.borrow() < round && mono_ns() < deadline {
                sleep(Duration::from_millis(1)).await;
            }
            assert_eq!(*rings.borrow(), round);
        }
    });
}

#[test]
fn tls_carries_requests_both_ways_and_refuses_a_stranger() {
    let cert = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let folder = std::env::temp_dir().join(format!("tt-tls-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (cert_file, key_file) = (folder.join("cert.pem"), folder.join("key.pem"));
    std::fs::write(&cert_file, cert.cert.pem()).unwrap();
    std::fs::write(&key_file, cert.signing_key.serialize_pem()).unwrap();
    let server = ServerTls::from_pem_files(cert_file.to_str().unwrap(), key_file.to_str().unwrap()).unwrap();
    let trusting = ClientTls::trusting_pem_file(cert_file.to_str().unwrap()).unwrap();
    let strangers = ClientTls::from_system().unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    on_both_drivers(async || {
        for (client, welcome) in [(&trusting, true), (&strangers, false)] {
            let listeners = bind_all("127.0.0.1:0".parse().unwrap(), 1).unwrap();
            let address = listeners[0].local_addr().unwrap();
            let listener = Listener::new(listeners.into_iter().next().unwrap()).unwrap();
            let server = server.clone();
            spawn(
                async move {
                    let mut socket = listener.accept(&StopAccepting::default()).await.unwrap();
                    if socket.accept_tls(&server, mono_ns() + 5 * SECOND_NS).await.is_err() {
                        return;
                    }
                    let mut all = Vec::new();
                    while all.len() < 300_000 {
                        if socket.fill(&mut all, 16 * 1024, mono_ns() + 5 * SECOND_NS).await.unwrap_or(0) == 0 {
                            return;
                        }
                    }
                    socket.write_all(all, 5 * SECOND_NS).await.0.unwrap();
                    socket.close_gently(mono_ns() + SECOND_NS).await;
                },
                || (),
            );
            let mut target = to(address);
            target.host = "localhost".into();
            target.tls = Some(client.clone());
            let connected = connect(&target, mono_ns() + 5 * SECOND_NS).await;
            assert_eq!(connected.is_ok(), welcome);
            let Ok(mut socket) = connected else { continue };
            let bytes: Vec<u8> = (0..300_000_u32).map(|n| (n % 251) as u8).collect();
            socket.write_all(bytes.clone(), 5 * SECOND_NS).await.0.unwrap();
            let mut back = Vec::new();
            loop {
                match socket.fill(&mut back, 16 * 1024, mono_ns() + 5 * SECOND_NS).await {
                    Ok(0) => break,
                    Ok(_) => {}
                    Err(error) => panic!("{error:?} after {} bytes", back.len()),
                }
            }
            assert!(back == bytes, "{} bytes came back", back.len());
        }
    });
}

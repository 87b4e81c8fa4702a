//! How sockets come and go, under both drivers: accepting, connecting, keeping them in a pool, TLS.

mod support;

use std::io::Read;
use std::net::TcpListener as StdListener;
use std::rc::Rc;
use std::time::Duration;

use io::clock::mono_ns;
use io::listen::{Listener, StopAccepting, bind_all};
use io::runtime::{ClientTls, ServerTls, sleep, spawn};
use io::upstream::{ConnectError, Pool, connect};
use support::{SECOND_NS, on_both_drivers, to};

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
        let bound = || {
            let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
            socket.bind(&"127.0.0.1:0".parse::<std::net::SocketAddr>().unwrap().into()).unwrap();
            let address = socket.local_addr().unwrap().as_socket().unwrap();
            (socket, address)
        };
        // One that is bound and does not listen refuses, and nobody else gets its port meanwhile.
        let (_closed, address) = bound();
        assert!(matches!(connect(&to(address), mono_ns() + SECOND_NS).await, Err(ConnectError::Failed(_))));
        // A listener whose backlog is full takes no more connections.
        let (full, address) = bound();
        full.listen(0).unwrap();
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
        socket.write_all(b"hello".to_vec(), SECOND_NS).await.unwrap();
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
                    socket.write_all(all, 5 * SECOND_NS).await.unwrap();
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
            socket.write_all(bytes.clone(), 5 * SECOND_NS).await.unwrap();
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

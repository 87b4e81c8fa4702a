//! What the rest of the gateway relies on from the runtime's sockets, under both drivers, and under io_uring as old kernels
//! have it. `runtime_wakes.rs` has what wakes a core, `runtime_connections.rs` how sockets come and go.
//!
//! They pin that a wait may be given up at any time without losing a byte or a descriptor.

mod support;

use std::cell::{Cell, RefCell};
use std::io::{ErrorKind, Read, Write};
use std::rc::Rc;
use std::sync::mpsc;
use std::task::Poll;
use std::time::Duration;

use io::clock::mono_ns;
use io::runtime::{Beside, DriverChoice, DriverKind, Fill, let_others_run, read_beside, run_core, sleep, spawn};
use support::{SECOND_NS, on_both_drivers, pair};

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
fn on_epoll_an_event_is_heard_between_two_turns_of_a_task_that_never_waits() {
    run_core(DriverChoice::Epoll, async |_| {
        let (mut socket, mut far) = pair().await;
        // Tasks that are ready together let the runtime go round that often before it asks the kernel.
        (0..50).for_each(|_| spawn(async {}, || ()));
        let turns = Rc::new(Cell::new(0));
        let counted = turns.clone();
        spawn(
            async move {
                while counted.get() < 10_000 {
                    let_others_run().await;
                    counted.set(counted.get() + 1);
                }
            },
            || (),
        );
        far.write_all(b"x").unwrap();
        let heard_after = Rc::new(Cell::new(u32::MAX));
        let heard = heard_after.clone();
        let turns_then = turns.clone();
        spawn(
            async move {
                assert!(socket.readable(mono_ns() + 5 * SECOND_NS).await);
                heard.set(turns_then.get());
            },
            || (),
        );
        while turns.get() < 10_000 {
            sleep(Duration::from_millis(1)).await;
        }
        assert!(heard_after.get() < 10, "{} turns", heard_after.get());
    })
    .unwrap();
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
        let (mut got, mut news) = (Vec::new(), Vec::new());
        let waited = read_beside(&mut first, &mut got, 64, &mut second, mono_ns() + 5_000_000).await;
        assert!(matches!(waited, Beside::Deadline), "{waited:?}");
        far_second.write_all(b"news").unwrap();
        let waited = read_beside(&mut first, &mut got, 64, &mut second, u64::MAX).await;
        assert!(matches!(waited, Beside::Other), "{waited:?}");
        assert_eq!(second.take_next(&mut news, 64).unwrap(), Some(4));
        far_first.write_all(b"hello").unwrap();
        let waited = read_beside(&mut first, &mut got, 64, &mut second, mono_ns() + 5 * SECOND_NS).await;
        assert!(matches!(waited, Beside::Read(Ok(5))), "{waited:?}");
        assert_eq!(got, b"hello");
        // One way of reading and the other take turns on one connection.
        far_first.write_all(b"again").unwrap();
        assert_eq!(first.fill(&mut got, 64, mono_ns() + 5 * SECOND_NS).await.unwrap(), 5);
        far_first.write_all(b"!").unwrap();
        let waited = read_beside(&mut first, &mut got, 64, &mut second, mono_ns() + 5 * SECOND_NS).await;
        assert!(matches!(waited, Beside::Read(Ok(1))), "{waited:?}");
        assert_eq!(got, b"helloagain!");
        drop(far_second);
        let waited = read_beside(&mut first, &mut got, 64, &mut second, mono_ns() + 5 * SECOND_NS).await;
        assert!(matches!(waited, Beside::Other), "{waited:?}");
        assert_eq!(second.take_next(&mut news, 64).unwrap(), Some(0), "its end");
        assert_eq!(news, b"news");
    });
}

#[test]
fn a_read_without_a_buffer_gets_one_of_the_cores_when_bytes_are_there() {
    on_both_drivers(async || {
        let (mut socket, mut far) = pair().await;
        let (mut other, _far_other) = pair().await;
        let mut got = Vec::new();
        let waited = read_beside(&mut socket, &mut got, 64, &mut other, mono_ns() + 5_000_000).await;
        assert!(matches!(waited, Beside::Deadline) && got.capacity() == 0, "{waited:?}, {}", got.capacity());
        far.write_all(b"hello").unwrap();
        let waited = read_beside(&mut socket, &mut got, 64, &mut other, mono_ns() + 5 * SECOND_NS).await;
        assert!(matches!(waited, Beside::Read(Ok(5))), "{waited:?}");
        assert!(got == b"hello" && got.capacity() >= 16 * 1024, "{}", got.capacity());
    });
}

#[test]
fn a_read_that_is_given_up_with_its_connection_closes_it_at_once() {
    on_both_drivers(async || {
        let (mut socket, mut far) = pair().await;
        let (mut other, _far_other) = pair().await;
        let ended = std::thread::spawn(move || far.read(&mut [0; 1]).unwrap());
        let waited = read_beside(&mut socket, &mut Vec::new(), 64, &mut other, mono_ns() + 5_000_000).await;
        assert!(matches!(waited, Beside::Deadline), "{waited:?}");
        drop(socket);
        while !ended.is_finished() {
            sleep(Duration::from_millis(1)).await; // the core must go on running for the close to be submitted
        }
        assert_eq!(ended.join().unwrap(), 0);
    });
}

#[test]
fn a_peer_that_sends_more_than_is_read_waits_and_loses_no_byte() {
    on_both_drivers(async || {
        const BYTES: usize = 20_000_000;
        let (mut socket, mut far) = pair().await;
        let (mut other, _far_other) = pair().await;
        let (tell, told) = mpsc::channel();
        let sent = std::thread::spawn(move || {
            let bytes: Vec<u8> = (0..BYTES).map(|n| (n % 251) as u8).collect();
            far.set_write_timeout(Some(Duration::from_millis(20))).unwrap();
            let mut left = &bytes[..];
            while !left.is_empty() {
                match far.write(left) {
                    Ok(count) => left = &left[count..],
                    // Held back: nothing more was taken of it for that long.
                    Err(error) if error.kind() == ErrorKind::WouldBlock => drop(tell.send(left.len())),
                    Err(error) => panic!("{error}"),
                }
            }
            far
        });
        // It is waited for once, and then left alone while it sends.
        assert!(socket.readable(mono_ns() + 5 * SECOND_NS).await);
        while told.try_recv().is_err() {
            assert!(!sent.is_finished(), "20 MB lie in buffers of the kernel or of ours");
            sleep(Duration::from_millis(1)).await;
        }
        // Room of both kinds: as for a head, and as for a body.
        let (mut got, mut round) = (Vec::new(), 0_usize);
        while got.len() < BYTES {
            let room = [1, 700, 16 * 1024, 128 * 1024, 300, 64 * 1024][round % 6].min(BYTES - got.len());
            let count = if round % 7 < 4 {
                socket.fill(&mut got, room, mono_ns() + 5 * SECOND_NS).await.unwrap()
            } else {
                match read_beside(&mut socket, &mut got, room, &mut other, mono_ns() + 5 * SECOND_NS).await {
                    Beside::Read(count) => count.unwrap(),
                    other => panic!("{other:?} at {} of {BYTES}", got.len()),
                }
            };
            assert!(count > 0 && count <= room.max(16 * 1024), "{count} bytes where there was room for {room}");
            round += 1;
        }
        assert!(got.iter().enumerate().all(|(n, byte)| *byte == (n % 251) as u8));
        drop(sent.join().unwrap());
        assert_eq!(socket.fill(&mut got, 16, mono_ns() + 5 * SECOND_NS).await.unwrap(), 0);
    });
}

#[test]
fn a_connection_has_no_news_however_much_it_has_received_until_there_are_some() {
    on_both_drivers(async || {
        let (mut socket, mut far) = pair().await;
        let (mut other, _far_other) = pair().await;
        let mut got = Vec::new();
        for round in 0..100_u8 {
            far.write_all(&[round; 1_000]).unwrap();
            while got.len() < 1_000 {
                let read = read_beside(&mut socket, &mut got, 16 * 1024, &mut other, mono_ns() + 5 * SECOND_NS).await;
                assert!(matches!(read, Beside::Read(Ok(1..))), "{read:?}");
            }
            assert!(got.iter().all(|byte| *byte == round));
            got.clear();
            assert!(!socket.has_news(), "after {} answers", round + 1);
        }
        drop(far);
        let deadline = mono_ns() + 5 * SECOND_NS;
        while !socket.has_news() && mono_ns() < deadline {
            sleep(Duration::from_millis(1)).await;
        }
        assert!(socket.has_news(), "its end is news");
    });
}

#[test]
fn more_peers_at_once_than_the_kernel_has_buffers_for_are_all_heard() {
    on_both_drivers(async || {
        let (mut sockets, mut fars) = (Vec::new(), Vec::new());
        for _ in 0..200 {
            let (socket, far) = pair().await;
            sockets.push(socket);
            fars.push(far);
        }
        let heard = Rc::new(Cell::new(0));
        for (n, mut socket) in sockets.into_iter().enumerate() {
            let heard = heard.clone();
            spawn(
                async move {
                    for round in 0..3 {
                        let mut got = Vec::new();
                        socket.next(&mut got, mono_ns() + 10 * SECOND_NS, |_| Poll::Pending).await.unwrap();
                        assert_eq!(got, format!("{n} {round}").as_bytes());
                        heard.set(heard.get() + 1);
                    }
                },
                || (),
            );
        }
        for round in 0..3 {
            sleep(Duration::from_millis(1)).await; // so that all wait
            for (n, far) in fars.iter_mut().enumerate() {
                far.write_all(format!("{n} {round}").as_bytes()).unwrap(); // one turn later they all are there
            }
            let deadline = mono_ns() + 10 * SECOND_NS;
            while heard.get() < 200 * (round + 1) && mono_ns() < deadline {
                sleep(Duration::from_millis(1)).await;
            }
        }
        assert_eq!(heard.get(), 600);
    });
}

#[test]
fn a_runtime_that_ends_closes_what_its_tasks_held() {
    let far = RefCell::new(Vec::new());
    on_both_drivers(async || {
        let (mut socket, mut peer) = pair().await;
        let (mut other, _far_other) = pair().await;
        peer.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        peer.write_all(b"first").unwrap();
        far.borrow_mut().push(peer);
        let is_waiting = Rc::new(Cell::new(false));
        let waits = is_waiting.clone();
        spawn(
            async move {
                let mut got = Vec::new();
                socket.fill(&mut got, 5, u64::MAX).await.unwrap();
                waits.set(true);
                read_beside(&mut socket, &mut got, 64, &mut other, u64::MAX).await;
            },
            || (),
        );
        while !is_waiting.get() {
            sleep(Duration::from_millis(1)).await;
        }
    });
    for mut far in far.take() {
        assert_eq!(far.read(&mut [0; 8]).unwrap(), 0, "closed in order: everything it sent had been read");
    }
}

/// Longer than a buffer waits for a silent peer.
const SILENCE_NS: u64 = 300_000_000;

#[test]
fn a_silent_peer_holds_no_buffer_and_loses_no_byte() {
    on_both_drivers(async || {
        for _ in 0..2 {
            let (mut socket, mut far) = pair().await;
            let mut got = Vec::new();
            far.write_all(b"one ").unwrap();
            assert_eq!(socket.next(&mut got, u64::MAX, |_| Poll::Pending).await.unwrap(), 4);
            // The read ahead is called off on the way, and the silence waited for without one.
            let waited = socket.next(&mut got, mono_ns() + SILENCE_NS, |_| Poll::Pending).await;
            assert!(matches!(waited, Err(Fill::Deadline)), "{waited:?}");
            far.write_all(b"two").unwrap();
            assert_eq!(socket.next(&mut got, mono_ns() + 5 * SECOND_NS, |_| Poll::Pending).await.unwrap(), 3);
            assert_eq!(got, b"one two");
        }
    });
}

#[test]
fn bytes_that_race_the_end_of_a_read_ahead_are_kept() {
    on_both_drivers(async || {
        // Many at once, so that for some of them the bytes are faster and for others the calling off.
        let done = Rc::new(RefCell::new(0));
        for n in 0..64_u64 {
            let (mut socket, mut far) = pair().await;
            let done = done.clone();
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_nanos(50_000_000 + (n % 16) * 125_000));
                far.write_all(&n.to_be_bytes()).unwrap();
                let _ = far.read(&mut [0; 1]);
            });
            spawn(
                async move {
                    let mut got = Vec::new();
                    while got.len() < 8 {
                        let deadline_ns = mono_ns() + 5 * SECOND_NS;
                        socket.next(&mut got, deadline_ns, |_| Poll::Pending).await.unwrap();
                    }
                    assert_eq!(got, n.to_be_bytes());
                    *done.borrow_mut() += 1;
                },
                || (),
            );
        }
        let deadline = mono_ns() + 10 * SECOND_NS;
        while *done.borrow() < 64 && mono_ns() < deadline {
            sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(*done.borrow(), 64);
    });
}

#[test]
fn a_write_goes_on_while_the_next_bytes_are_waited_for() {
    on_both_drivers(async || {
        let (mut socket, mut far) = pair().await;
        let bytes: Vec<u8> = (0..8_000_000_u32).map(|n| (n % 251) as u8).collect();
        let expected = bytes.clone();
        let reader = std::thread::spawn(move || {
            let mut all = vec![0; 8_000_000];
            far.read_exact(&mut all).unwrap();
            far.write_all(b"thanks").unwrap();
            far.read_to_end(&mut all).unwrap();
            all
        });
        socket.send(bytes, SECOND_NS).await.unwrap();
        assert!(!socket.is_flushed(), "more than the kernel takes at once");
        let mut got = Vec::new();
        while got.len() < 6 {
            socket.next(&mut got, mono_ns() + 20 * SECOND_NS, |_| Poll::Pending).await.unwrap();
        }
        assert!(socket.is_flushed());
        // The next write waits for the one before it; none overtakes another.
        socket.send(b" and".to_vec(), SECOND_NS).await.unwrap();
        socket.send(b" more".to_vec(), SECOND_NS).await.unwrap();
        socket.flush(SECOND_NS).await.unwrap();
        drop(socket);
        while !reader.is_finished() {
            sleep(Duration::from_millis(1)).await;
        }
        let all = reader.join().unwrap();
        assert!(all[..8_000_000] == expected[..] && &all[8_000_000..] == b" and more");
    });
}

#[test]
fn a_wait_that_is_given_up_leaves_the_write_to_be_flushed() {
    on_both_drivers(async || {
        let (mut socket, mut far) = pair().await;
        socket.send(vec![7; 8_000_000], SECOND_NS).await.unwrap();
        let waited = socket.next(&mut Vec::new(), u64::MAX, |_| Poll::Ready(())).await;
        assert!(matches!(waited, Err(Fill::Deadline)), "{waited:?}");
        assert!(!socket.is_flushed());
        let reader = std::thread::spawn(move || std::io::copy(&mut far, &mut std::io::sink()).unwrap());
        socket.flush(5 * SECOND_NS).await.unwrap();
        socket.close_gently(mono_ns() + 5 * SECOND_NS).await;
        assert_eq!(reader.join().unwrap(), 8_000_000);
    });
}

#[test]
fn a_write_to_a_peer_that_is_gone_ends_the_wait_for_its_next_bytes() {
    on_both_drivers(async || {
        let (mut socket, far) = pair().await;
        socket2::SockRef::from(&far).set_linger(Some(Duration::ZERO)).unwrap();
        drop(far); // a reset
        let _ = socket.send(vec![7; 1 << 20], SECOND_NS).await;
        let waited = socket.next(&mut Vec::new(), mono_ns() + 5 * SECOND_NS, |_| Poll::Pending).await;
        assert!(matches!(waited, Err(Fill::Broken(_)) | Ok(0)), "{waited:?}");
    });
}

#[test]
fn an_end_that_came_with_the_last_bytes_is_seen() {
    on_both_drivers(async || {
        let (mut socket, mut far) = pair().await;
        far.write_all(b"bye").unwrap();
        drop(far);
        let mut got = Vec::new();
        sleep(Duration::from_millis(5)).await; // both have come before the first read
        assert_eq!(socket.fill(&mut got, 64, mono_ns() + 5 * SECOND_NS).await.unwrap(), 3);
        assert_eq!(socket.fill(&mut got, 64, mono_ns() + 5 * SECOND_NS).await.unwrap(), 0);
        assert!(socket.has_news());
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
            assert_eq!(socket.take_next(&mut got, 64).unwrap(), Some(1));
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
        let result = socket.write_all(vec![7; 64 << 20], 50_000_000).await;
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
        let (mut asker, _far_asker) = pair().await;
        let (result, back) = socket.write_part_for(bytes.clone(), 0..4_000_000, 5 * SECOND_NS, &mut asker).await;
        result.unwrap();
        assert!(back == bytes, "the buffer comes back");
        socket.write_all(back[4_000_000..].to_vec(), 5 * SECOND_NS).await.unwrap();
        drop(socket);
        // The core must go on running for the close to be submitted.
        while !reader.is_finished() {
            sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(reader.join().unwrap(), bytes);
    });
}

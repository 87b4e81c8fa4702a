//! What wakes a core's tasks, under both drivers: events, alarms, another thread's doorbell. And a panic, which ends one task.

mod support;

use std::cell::RefCell;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use io::clock::mono_ns;
use io::doorbell::doorbell;
use io::runtime::{Alarm, Event, sleep, spawn};
use support::{SECOND_NS, on_both_drivers};

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
fn alarms_ring_in_their_order_and_none_before_its_time() {
    on_both_drivers(async || {
        let rung = Rc::new(RefCell::new(Vec::new()));
        for ms in [9_u64, 3, 40, 6, 3] {
            let rung = rung.clone();
            let deadline_ns = mono_ns() + ms * 1_000_000;
            spawn(
                async move {
                    let mut alarm = Alarm::default();
                    // Set for later, moved to earlier, asked for later again: it is the last word that counts.
                    std::future::poll_fn(|cx| {
                        assert!(alarm.poll_at(cx, deadline_ns + SECOND_NS).is_pending());
                        let _ = alarm.poll_at(cx, deadline_ns - 2_000_000);
                        Poll::Ready(())
                    })
                    .await;
                    std::future::poll_fn(|cx| alarm.poll_at(cx, deadline_ns)).await;
                    assert!(mono_ns() >= deadline_ns);
                    rung.borrow_mut().push(ms);
                },
                || (),
            );
        }
        let mut given_up = Alarm::default();
        std::future::poll_fn(|cx| {
            let _ = given_up.poll_at(cx, mono_ns() + 1_000_000);
            Poll::Ready(())
        })
        .await;
        drop(given_up);
        let deadline = mono_ns() + 5 * SECOND_NS;
        while rung.borrow().len() < 5 && mono_ns() < deadline {
            sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(*rung.borrow(), [3, 3, 6, 9, 40]);
    });
}

#[test]
fn an_alarm_that_changes_hands_wakes_the_one_who_has_it() {
    on_both_drivers(async || {
        let deadline_ns = mono_ns() + 3_000_000;
        let alarm = Rc::new(RefCell::new(Alarm::default()));
        let woken = Rc::new(RefCell::new(0));
        // A pooled connection's: the first asks and goes, the second asks for the same time and waits.
        for waits in [false, true] {
            let (alarm, woken) = (alarm.clone(), woken.clone());
            spawn(
                async move {
                    std::future::poll_fn(|cx| match alarm.borrow_mut().poll_at(cx, deadline_ns) {
                        Poll::Pending if waits => Poll::Pending,
                        _ => Poll::Ready(()),
                    })
                    .await;
                    *woken.borrow_mut() += 1;
                },
                || (),
            );
        }
        let until_ns = mono_ns() + 5 * SECOND_NS;
        while *woken.borrow() < 2 && mono_ns() < until_ns {
            sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(*woken.borrow(), 2);
        assert!(mono_ns() >= deadline_ns);
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

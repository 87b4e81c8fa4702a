//! A proxy in front of Postgres that loses what a test wants lost: notifications, or everything.
//!
//! It reads the server's messages (a type byte and a length) so that it can drop single ones. Connections
//! must not ask for TLS: `sslmode=disable`.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

pub struct PgProxy {
    pub port: u16,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    loses_notifications: AtomicBool,
    is_cut: AtomicBool,
    swallows: AtomicBool,
    lost: AtomicUsize,
    open: Mutex<Vec<TcpStream>>,
}

/// `NotificationResponse`.
const NOTIFICATION: u8 = b'A';

impl PgProxy {
    /// In front of a server on this port.
    pub fn start(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has free ports");
        let port = listener.local_addr().expect("a bound socket has an address").port();
        let state = Arc::new(State::default());
        let shared = state.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if shared.is_cut.load(Ordering::Acquire) {
                    continue; // dropped: reset
                }
                let Ok(upstream) = TcpStream::connect(("127.0.0.1", server)) else { continue };
                let copies = (client.try_clone().unwrap(), upstream.try_clone().unwrap());
                shared.open.lock().unwrap().extend([client.try_clone().unwrap(), upstream.try_clone().unwrap()]);
                let (asking, answering) = (shared.clone(), shared.clone());
                std::thread::spawn(move || copy(copies.0, copies.1, &asking));
                std::thread::spawn(move || messages(upstream, client, &answering));
            }
        });
        Self { port, state }
    }

    /// From now on no notification gets through; everything else does.
    pub fn lose_notifications(&self) {
        self.state.loses_notifications.store(true, Ordering::Release);
    }

    /// How many were lost.
    pub fn lost(&self) -> usize {
        self.state.lost.load(Ordering::Acquire)
    }

    /// Ends every connection and lets no new one through: the network to the server is gone.
    pub fn cut(&self) {
        self.state.is_cut.store(true, Ordering::Release);
        self.state.open.lock().unwrap().drain(..).for_each(|socket| drop(socket.shutdown(Shutdown::Both)));
    }

    /// From now on bytes go nowhere, in either direction: open connections hang, and so do new ones once they are made.
    pub fn swallow(&self) {
        self.state.swallows.store(true, Ordering::Release);
    }

    /// The network is back, and everything gets through. Connections that lost bytes are ended: a real network would have
    /// sent those again.
    pub fn mend(&self) {
        if self.state.swallows.load(Ordering::Acquire) {
            self.cut();
        }
        for trouble in [&self.state.swallows, &self.state.is_cut, &self.state.loses_notifications] {
            trouble.store(false, Ordering::Release);
        }
    }
}

fn copy(mut from: TcpStream, mut to: TcpStream, state: &State) {
    let mut buf = [0; 16 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buf) {
        if state.swallows.load(Ordering::Acquire) {
            continue;
        }
        if to.write_all(&buf[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

/// Message by message, as the server sends them.
fn messages(mut from: TcpStream, mut to: TcpStream, state: &State) {
    let mut relay = || -> std::io::Result<()> {
        let (mut kind, mut length) = ([0], [0; 4]);
        from.read_exact(&mut kind)?;
        from.read_exact(&mut length)?;
        let mut rest = vec![0; u32::from_be_bytes(length).saturating_sub(4) as usize];
        from.read_exact(&mut rest)?;
        if kind[0] == NOTIFICATION && state.loses_notifications.load(Ordering::Acquire) {
            state.lost.fetch_add(1, Ordering::AcqRel);
            return Ok(());
        }
        if state.swallows.load(Ordering::Acquire) {
            return Ok(());
        }
        to.write_all(&[&kind[..], &length, &rest].concat())
    };
    while relay().is_ok() {}
    let _ = to.shutdown(Shutdown::Both);
}

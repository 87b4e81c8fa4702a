//! What the pins of the runtime share: both drivers, and pairs of sockets.

#![allow(dead_code)] // every test binary compiles all of this and uses its own part

use std::net::TcpStream as StdStream;

use io::listen::{Listener, StopAccepting, bind_all};
use io::runtime::{DriverChoice, DriverKind, PLAIN, Socket, run_core, run_core_on};
use io::upstream::{Addresses, Target};

pub const SECOND_NS: u64 = 1_000_000_000;

/// Runs the body under each driver this machine has; epoll it always has.
pub fn on_both_drivers<Fut: Future<Output = ()>>(body: impl Fn() -> Fut) {
    run_core(DriverChoice::Epoll, |_| body()).expect("epoll");
    let mut best = None;
    run_core(DriverChoice::Auto, |driver| {
        best = Some(driver.kind);
        body()
    })
    .expect("a driver");
    if best == Some(DriverKind::IoUring) {
        run_core_on(PLAIN, |_| body()).expect("io_uring without flags, where it can be had with them");
    }
}

/// A connected pair: our socket and the test's plain blocking end.
pub async fn pair() -> (Socket, StdStream) {
    let listeners = bind_all("127.0.0.1:0".parse().unwrap(), 1).unwrap();
    let address = listeners[0].local_addr().unwrap();
    let far = StdStream::connect(address).unwrap();
    let listener = Listener::new(listeners.into_iter().next().unwrap()).unwrap();
    (listener.accept(&StopAccepting::default()).await.unwrap(), far)
}

pub fn to(address: std::net::SocketAddr) -> Target {
    Target { host: "127.0.0.1".into(), addresses: Addresses::fixed(address), tls: None }
}

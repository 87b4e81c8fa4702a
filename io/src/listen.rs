//! The callers' port: one listening socket per core on one address, so that the kernel spreads connections.

use std::io;
use std::net::{SocketAddr, TcpListener};

use socket2::{Domain, Protocol, Socket as RawSocket, Type};

use crate::runtime::Socket;

/// Connections that may wait to be accepted, per core.
const BACKLOG: i32 = 4096;

/// Binds `count` sockets to one address. Port 0 picks a free one for all of them.
///
/// The first bind goes without SO_REUSEPORT, so that a second process on the same port is an error here and not a
/// silent thief of half the connections.
pub fn bind_all(address: SocketAddr, count: usize) -> io::Result<Vec<TcpListener>> {
    let alone = socket(address)?;
    alone.bind(&address.into())?;
    let address = alone.local_addr()?.as_socket().unwrap_or(address);
    drop(alone);
    (0..count.max(1))
        .map(|_| {
            let shared = socket(address)?;
            shared.set_reuse_port(true)?;
            shared.bind(&address.into())?;
            shared.listen(BACKLOG)?;
            Ok(shared.into())
        })
        .collect()
}

fn socket(address: SocketAddr) -> io::Result<RawSocket> {
    let socket = RawSocket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.set_cloexec(true)?;
    Ok(socket)
}

/// A core's listening socket.
pub struct Listener {
    inner: monoio::net::TcpListener,
}

impl Listener {
    /// Takes a bound socket over, on the core that will accept from it.
    pub fn new(listener: TcpListener) -> io::Result<Self> {
        Ok(Listener { inner: monoio::net::TcpListener::from_std(listener)? })
    }

    /// Waits for the next caller. Awaited to its end: stopping goes through [`StopAccepting`].
    pub async fn accept(&self, stop: &StopAccepting) -> io::Result<Socket> {
        let (stream, _) = self.inner.cancelable_accept(stop.handle()).await?;
        Ok(Socket::new(stream))
    }
}

/// Ends a core's accept operation without dropping it.
pub struct StopAccepting(std::cell::RefCell<Option<monoio::io::Canceller>>);

impl Default for StopAccepting {
    fn default() -> Self {
        StopAccepting(std::cell::RefCell::new(Some(monoio::io::Canceller::new())))
    }
}

impl StopAccepting {
    fn handle(&self) -> monoio::io::CancelHandle {
        match &*self.0.borrow() {
            Some(canceller) => canceller.handle(),
            None => {
                let used_up = monoio::io::Canceller::new();
                let handle = used_up.handle();
                used_up.cancel();
                handle
            }
        }
    }

    /// The accept in flight, and every later one, ends with `ECANCELED`.
    pub fn stop(&self) {
        if let Some(canceller) = self.0.borrow_mut().take() {
            canceller.cancel();
        }
    }
}

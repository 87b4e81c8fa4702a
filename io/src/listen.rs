//! The callers' port: one listening socket per core on one address, so that the kernel spreads connections.

use std::io;
use std::net::{SocketAddr, TcpListener};

use socket2::{Domain, Protocol, Socket as RawSocket, Type};

pub use crate::runtime::{Listener, StopAccepting};

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

//! One new connection to a provider, within a deadline.

use std::io;
use std::net::{SocketAddr, TcpStream as StdStream};

use socket2::{Domain, Protocol, SockRef, Socket as RawSocket, TcpKeepalive, Type};

use super::Addresses;
use crate::clock;
use crate::runtime::{ClientTls, Socket};

/// Where to connect and how.
#[derive(Clone)]
pub struct Target {
    /// The host name as the certificate and the `Host` header spell it.
    pub host: String,
    /// The addresses that name stands for now.
    pub addresses: Addresses,
    /// TLS, unless the base URL said `http://`.
    pub tls: Option<ClientTls>,
}

/// Why no connection came about. No byte of a request was sent.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The name has no address (yet).
    #[error("the host name did not resolve")]
    Unresolved,
    /// The deadline passed.
    #[error("connecting took too long")]
    Deadline,
    /// Refused, unreachable, reset, or a TLS failure.
    #[error("{0}")]
    Failed(io::Error),
}

/// Tries the target's addresses in order until one answers. Waits, at most until the deadline (monotonic ns).
pub async fn connect(target: &Target, deadline_ns: u64) -> Result<Socket, ConnectError> {
    let addresses = target.addresses.current();
    let mut last = ConnectError::Unresolved;
    for (index, address) in addresses.iter().enumerate() {
        // A dead first address must leave time for the second.
        let now_ns = clock::mono_ns();
        let left_ns = deadline_ns.saturating_sub(now_ns) / (addresses.len() - index) as u64;
        match connect_one(*address, target, now_ns.saturating_add(left_ns)).await {
            Ok(socket) => return Ok(socket),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => last = ConnectError::Deadline,
            Err(error) => last = ConnectError::Failed(error),
        }
    }
    Err(last)
}

async fn connect_one(address: SocketAddr, target: &Target, deadline_ns: u64) -> io::Result<Socket> {
    // The connect itself is a plain non-blocking call: what is waited for is writability, which may be given up
    // at any time without losing a descriptor.
    let raw = RawSocket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    raw.set_nonblocking(true)?;
    raw.set_cloexec(true)?;
    match raw.connect(&address.into()) {
        Ok(()) => {}
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
        Err(error) => return Err(error),
    }
    let mut socket = Socket::connected(StdStream::from(raw), deadline_ns).await?;
    // Dead peers are found by the kernel: 30 s idle, then three probes 10 s apart.
    let keepalive = TcpKeepalive::new()
        .with_time(std::time::Duration::from_secs(30))
        .with_interval(std::time::Duration::from_secs(10))
        .with_retries(3);
    let _ = SockRef::from(&socket).set_tcp_keepalive(&keepalive);
    if let Some(tls) = &target.tls {
        socket.connect_tls(tls, &target.host, deadline_ns).await?;
    }
    Ok(socket)
}

//! How connections come in: a bounded number of them, none idle for ever.
//!
//! A caller that opens connections and says nothing may keep others off the admin port, but never takes the
//! descriptors that requests of the data port need.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep};

/// Open at once; the next one waits in the kernel's backlog. A scraper, a few pages and a fleet of peers need a tenth.
const CONNECTIONS_MAX: usize = 256;
/// Without a byte in either direction. Longer than the slowest answer takes to begin.
const IDLE: Duration = Duration::from_secs(120);

/// The listening socket.
pub struct Doorway {
    listener: TcpListener,
    free: Arc<Semaphore>,
}

impl Doorway {
    pub fn new(listener: TcpListener) -> Self {
        Doorway { listener, free: Arc::new(Semaphore::new(CONNECTIONS_MAX)) }
    }
}

/// Address and port of the other end.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub SocketAddr);

impl Connected<IncomingStream<'_, Doorway>> for Peer {
    fn connect_info(stream: IncomingStream<'_, Doorway>) -> Self {
        Peer(*stream.remote_addr())
    }
}

impl Listener for Doorway {
    type Io = Visit;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Visit, SocketAddr) {
        let place =
            self.free.clone().acquire_owned().await.expect("the semaphore lives as long as we do, and is never closed");
        loop {
            match self.listener.accept().await {
                Ok((stream, peer)) => {
                    let _ = stream.set_nodelay(true); // an answer is as right without it
                    return (Visit { stream, idle: Box::pin(sleep(IDLE)), _place: place }, peer);
                }
                Err(error) => {
                    // Out of descriptors, or a caller that left before we came.
                    tracing::warn!(%error, "accepting an admin connection failed");
                    sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// One connection. Its place is free again when it is dropped.
pub struct Visit {
    stream: TcpStream,
    idle: Pin<Box<Sleep>>,
    _place: OwnedSemaphorePermit,
}

impl Visit {
    fn touched(&mut self) {
        self.idle.as_mut().reset(Instant::now() + IDLE);
    }

    /// Nothing moves: has it been too long?
    fn poll_idle<T>(&mut self, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        ready!(self.idle.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Visit {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.stream).poll_read(context, buf) {
            Poll::Pending => self.poll_idle(context),
            ready => {
                self.touched();
                ready
            }
        }
    }
}

impl AsyncWrite for Visit {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match Pin::new(&mut self.stream).poll_write(context, buf) {
            Poll::Pending => self.poll_idle(context),
            ready => {
                self.touched();
                ready
            }
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match Pin::new(&mut self.stream).poll_write_vectored(context, bufs) {
            Poll::Pending => self.poll_idle(context),
            ready => {
                self.touched();
                ready
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

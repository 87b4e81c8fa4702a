//! One connection: where it goes, how it is opened, and bytes both ways.
//!
//! Runs on tokio, on the coordinator's thread. [`Connection::call`] is for work that can wait its turn; the admissions
//! lane writes and reads for itself with [`Connection::queue`], [`Connection::progress`] and [`Connection::next_reply`].

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::resp::{self, Malformed, Reply};
use crate::runtime::{ClientTls, TlsError};

/// What is read from the socket at once.
const READ_BYTES: usize = 16 << 10;
/// Commands that wait for the socket; a store that does not read them is as good as gone.
const UNSENT_BYTES_MAX: usize = 8 << 20;

/// Where a Redis is and how to speak to it. Opens nothing.
#[derive(Clone)]
pub struct Endpoint {
    host: String,
    port: u16,
    password: Option<String>,
    tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port) // never the password
    }
}

/// Why a connection, or what was to be done over it, failed. After any of these it is not used again.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    /// The name has no address.
    #[error("{0} cannot be resolved: {1}")]
    Unresolved(String, io::Error),
    /// Nothing came in time.
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
    /// The system or the peer ended it.
    #[error("{0}")]
    Broken(#[from] io::Error),
    /// The peer closed it.
    #[error("the server closed the connection")]
    Closed,
    /// What came is no Redis reply.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// A reply that nothing was asked for, or of another kind than what was asked for.
    #[error("the server answers what nobody asked")]
    Unasked,
    /// It owes too many replies.
    #[error("the server does not keep up")]
    Overdue,
    /// The server refuses us: a wrong password, a server that is loading.
    #[error("the server says: {0}")]
    Refused(String),
}

impl Endpoint {
    /// `addr` is `host:port`, an IPv6 host in brackets; anything else is a fault of the config's validation.
    pub fn new(addr: &str, password: Option<String>, tls: bool) -> Result<Endpoint, TlsError> {
        let (host, port) = addr.rsplit_once(':').unwrap_or((addr, "6379"));
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = port.parse().unwrap_or(6379);
        let tls = if tls {
            let name = ServerName::try_from(host.clone());
            let name = name.map_err(|error| TlsError::Roots(format!("{host} is no name for TLS: {error}")))?;
            Some((ClientTls::from_system()?.without_alpn(), name))
        } else {
            None
        };
        Ok(Endpoint { host, port, password, tls })
    }
}

/// Commands to be written together, and how many replies they get.
#[derive(Clone, Debug, Default)]
pub struct Pipeline {
    bytes: Vec<u8>,
    commands: usize,
}

impl Pipeline {
    pub fn new() -> Pipeline {
        Pipeline::default()
    }

    /// Adds a command.
    pub fn push(&mut self, parts: &[&[u8]]) -> &mut Pipeline {
        resp::command(&mut self.bytes, parts);
        self.commands += 1;
        self
    }

    pub fn len(&self) -> usize {
        self.commands
    }

    pub fn is_empty(&self) -> bool {
        self.commands == 0
    }
}

enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Stream {
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self {
            Stream::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Stream::Tls(stream) => Pin::new(stream.as_mut()).poll_read(cx, buf),
        }
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self {
            Stream::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Stream::Tls(stream) => Pin::new(stream.as_mut()).poll_write(cx, bytes),
        }
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Stream::Plain(_) => Poll::Ready(Ok(())),
            Stream::Tls(stream) => Pin::new(stream.as_mut()).poll_flush(cx),
        }
    }
}

/// An open connection whose password was accepted.
pub struct Connection {
    stream: Stream,
    unsent: Vec<u8>,
    sent: usize,
    unflushed: bool,
    received: Vec<u8>,
    read: usize,
}

impl Connection {
    /// Resolves the name, connects, shakes hands, says the password and what is to be said at once; the replies to that
    /// come back. Waits at most `within`. Resolving anew each time is what finds a server that moved.
    pub async fn open(
        endpoint: &Endpoint,
        greeting: &Pipeline,
        within: Duration,
    ) -> Result<(Connection, Vec<Reply>), Trouble> {
        let opened = tokio::time::timeout(within, Connection::open_unbounded(endpoint, greeting)).await;
        opened.unwrap_or(Err(Trouble::TimedOut(within)))
    }

    async fn open_unbounded(endpoint: &Endpoint, greeting: &Pipeline) -> Result<(Connection, Vec<Reply>), Trouble> {
        let Endpoint { host, port, .. } = endpoint;
        let unresolved = |error| Trouble::Unresolved(host.clone(), error);
        let mut broken = unresolved(io::ErrorKind::NotFound.into());
        let mut connected = None;
        for address in tokio::net::lookup_host((host.as_str(), *port)).await.map_err(unresolved)? {
            match TcpStream::connect(address).await {
                Ok(stream) => {
                    connected = Some(stream);
                    break;
                }
                Err(error) => broken = Trouble::Broken(error),
            }
        }
        let Some(stream) = connected else { return Err(broken) };
        stream.set_nodelay(true)?;
        let stream = match &endpoint.tls {
            None => Stream::Plain(stream),
            Some((config, name)) => {
                Stream::Tls(Box::new(TlsConnector::from(config.clone()).connect(name.clone(), stream).await?))
            }
        };
        let mut connection =
            Connection { stream, unsent: Vec::new(), sent: 0, unflushed: false, received: Vec::new(), read: 0 };
        if let Some(password) = &endpoint.password {
            let mut auth = Pipeline::new();
            auth.push(&[b"AUTH", password.as_bytes()]);
            let answer = connection.exchange(&auth).await?;
            if let Some(refused) = answer.iter().find_map(Reply::error) {
                return Err(Trouble::Refused(refused));
            }
        }
        let replies = connection.exchange(greeting).await?;
        Ok((connection, replies))
    }

    /// Writes the commands and waits for all their replies, at most `within`. A reply may be an error of the server's;
    /// that is not [`Trouble`]. After [`Trouble`] the connection must be dropped: late replies would come out of line.
    pub async fn call(&mut self, commands: &Pipeline, within: Duration) -> Result<Vec<Reply>, Trouble> {
        let called = tokio::time::timeout(within, self.exchange(commands)).await;
        called.unwrap_or(Err(Trouble::TimedOut(within)))
    }

    async fn exchange(&mut self, commands: &Pipeline) -> Result<Vec<Reply>, Trouble> {
        self.queue(commands)?;
        let mut replies = Vec::with_capacity(commands.len());
        loop {
            while replies.len() < commands.len() {
                let Some(reply) = self.next_reply()? else { break };
                replies.push(reply);
            }
            if replies.len() == commands.len() {
                return Ok(replies);
            }
            poll_fn(|cx| self.progress(cx)).await?;
        }
    }

    /// Puts commands in line to be written. Fails when the store does not read what was put in line before.
    pub fn queue(&mut self, commands: &Pipeline) -> Result<(), Trouble> {
        if self.unsent.len() - self.sent > UNSENT_BYTES_MAX {
            return Err(Trouble::Broken(io::ErrorKind::WriteZero.into()));
        }
        if self.sent == self.unsent.len() {
            self.unsent.clear();
            self.sent = 0;
        }
        self.unsent.extend_from_slice(&commands.bytes);
        Ok(())
    }

    /// Writes what is in line and reads what has come, without waiting. Ready when something was read; pending while
    /// nothing is there, and the task is woken when that changes. May be given up at any time: no byte is lost.
    pub fn progress(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Trouble>> {
        self.write(cx)?;
        let mut has_read = false;
        loop {
            if self.received.len() - self.read > resp::REPLY_BYTES_MAX {
                return Poll::Ready(Ok(())); // the reader looks first whether this is a reply
            }
            let mut chunk = [std::mem::MaybeUninit::uninit(); READ_BYTES];
            let mut buf = ReadBuf::uninit(&mut chunk);
            match self.stream.poll_read(cx, &mut buf) {
                Poll::Ready(Ok(())) if buf.filled().is_empty() => return Poll::Ready(Err(Trouble::Closed)),
                Poll::Ready(Ok(())) => {
                    self.received.extend_from_slice(buf.filled());
                    has_read = true;
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error.into())),
                Poll::Pending if has_read => return Poll::Ready(Ok(())),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    fn write(&mut self, cx: &mut Context<'_>) -> Result<(), Trouble> {
        while self.sent < self.unsent.len() {
            match self.stream.poll_write(cx, &self.unsent[self.sent..]) {
                Poll::Ready(Ok(0)) => return Err(Trouble::Closed),
                Poll::Ready(Ok(count)) => {
                    self.sent += count;
                    self.unflushed = true;
                }
                Poll::Ready(Err(error)) => return Err(error.into()),
                Poll::Pending => return Ok(()),
            }
        }
        if self.unflushed && self.stream.poll_flush(cx)?.is_ready() {
            self.unflushed = false;
        }
        Ok(())
    }

    /// The next whole reply of those that were read; `None` when its end has not come.
    pub fn next_reply(&mut self) -> Result<Option<Reply>, Trouble> {
        let Some((reply, taken)) = resp::read(&self.received[self.read..])? else {
            self.received.drain(..self.read);
            self.read = 0;
            return Ok(None);
        };
        self.read += taken;
        Ok(Some(reply))
    }
}

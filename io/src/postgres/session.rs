//! One connection to Postgres, and the doorbell that rings on it.
//!
//! A task of the caller's runtime reads the socket; when the session is dropped, so is the task and with it the socket,
//! whatever the server is doing. Notifications carry no content we read: however many come, the bell rings once until
//! somebody looks.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio_postgres::tls::NoTls;
use tokio_postgres::{AsyncMessage, Client, Connection, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::{Dsn, PgError};

/// A connection. Dropping it closes the socket.
pub struct Session {
    pub(super) client: Client,
    pub(super) dsn: Dsn,
    bell: mpsc::Receiver<()>,
    ended: Arc<Mutex<Option<String>>>,
    reader: tokio::task::JoinHandle<()>,
}

impl Session {
    /// Connects and logs in. Waits for the server; must run on a tokio runtime with I/O and time.
    pub async fn open(dsn: &Dsn) -> Result<Self, PgError> {
        let failed = |error| PgError::connecting(&error, dsn);
        match &dsn.tls {
            Some(tls) => {
                let connector = MakeRustlsConnect::new((*tls.config).clone());
                let (client, connection) = dsn.config.connect(connector).await.map_err(failed)?;
                Ok(Session::over(client, connection, dsn))
            }
            None => {
                let (client, connection) = dsn.config.connect(NoTls).await.map_err(failed)?;
                Ok(Session::over(client, connection, dsn))
            }
        }
    }

    fn over<T>(client: Client, connection: Connection<Socket, T>, dsn: &Dsn) -> Self
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        // Room for one: a bell that rings already need not ring twice.
        let (ring, bell) = mpsc::channel(1);
        let ended = Arc::new(Mutex::new(None));
        let reader = tokio::spawn(read(connection, ring, ended.clone(), dsn.clone()));
        Session { client, dsn: dsn.clone(), bell, ended, reader }
    }

    /// Subscribes to a channel. The name is one of ours, so it needs no quoting.
    pub async fn listen(&self, channel: &'static str) -> Result<(), PgError> {
        self.batch(&format!("LISTEN {channel}")).await
    }

    /// Waits until something was notified since the last call, or the connection ended: then the error says why.
    /// May be dropped at any time without losing a ring.
    pub async fn rung(&mut self) -> Result<(), PgError> {
        match self.bell.recv().await {
            Some(()) => Ok(()),
            None => Err(self.lost()),
        }
    }

    /// Several statements without parameters.
    pub(super) async fn batch(&self, sql: &str) -> Result<(), PgError> {
        self.client.batch_execute(sql).await.map_err(|error| self.error(&error))
    }

    pub(super) fn error(&self, error: &tokio_postgres::Error) -> PgError {
        if error.is_closed() { self.lost() } else { PgError::of(error, &self.dsn) }
    }

    fn lost(&self) -> PgError {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        PgError::Lost(ended.clone().unwrap_or_else(|| "it was closed".to_owned()))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

async fn read<T>(
    mut connection: Connection<Socket, T>,
    ring: mpsc::Sender<()>,
    ended: Arc<Mutex<Option<String>>>,
    dsn: Dsn,
) where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let why = loop {
        match poll_fn(|cx| connection.poll_message(cx)).await {
            Some(Ok(AsyncMessage::Notification(_))) => {
                let _ = ring.try_send(()); // full: it rings already
            }
            Some(Ok(_)) => {}
            Some(Err(error)) => break super::words(&error, &dsn),
            None => break "the server closed it".to_owned(),
        }
    };
    *ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
}

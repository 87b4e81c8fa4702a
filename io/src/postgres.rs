//! Postgres, for what replicas must agree on and can live without for a while: virtual keys and the roster.
//!
//! [`Dsn`] says where and how safely, [`Session`] is one connection that also listens for notifications, and the tables
//! beside it are the only SQL there is. Every call is a future that may be dropped at any time: that closes the
//! connection, so a server that hangs holds no thread of ours. Which deadline a call gets is the caller's affair.
//! Called by the identity thread and the command line, on a tokio runtime of their own; never by a data core.

mod dsn;
mod session;
mod tables;
mod tls;

use std::error::Error as _;

pub use dsn::{Dsn, DsnError};
pub use session::Session;
pub use tables::{DOORBELL, KEYS_MAX, KeyRow, KeysRead, ReplicaRow, SCHEMA_VERSION};

/// Why Postgres did not do what was asked. The texts hold no password.
#[derive(Debug, thiserror::Error)]
pub enum PgError {
    /// No connection: refused, unknown host, wrong password, a certificate that does not verify.
    #[error("cannot connect to {endpoint}: {reason}")]
    Connect {
        /// Host, port and database.
        endpoint: String,
        /// The system's or the server's words.
        reason: String,
    },
    /// The connection ended under a call.
    #[error("the connection was lost: {0}")]
    Lost(String),
    /// The server understood and refused. The session lives on.
    #[error("the server refused: {message} (SQLSTATE {code})")]
    Refused {
        /// Five characters.
        code: String,
        /// The server's words.
        message: String,
    },
    /// The server answered something our tables cannot hold.
    #[error("unexpected answer: {0}")]
    Unexpected(String),
    /// Tables that were there before are gone: another or an emptied database.
    #[error(
        "the database has no tokentriage tables, though keys were read from it before; restore it, or remove the local \
         key snapshot and restart to begin with an empty one"
    )]
    Emptied,
}

impl PgError {
    /// Whether the connection can be used again after this.
    pub fn leaves_the_session_usable(&self) -> bool {
        matches!(self, PgError::Refused { .. })
    }

    fn of(error: &tokio_postgres::Error, dsn: &Dsn) -> Self {
        match error.as_db_error() {
            // An operator's kill and a shutdown arrive as a refusal of whatever was going on.
            Some(refusal) if refusal.code().code().starts_with("57P") => {
                PgError::Lost(dsn.without_password(refusal.message()))
            }
            Some(refusal) => PgError::Refused {
                code: dsn.without_password(refusal.code().code()),
                message: dsn.without_password(refusal.message()),
            },
            None => PgError::Lost(words(error, dsn)),
        }
    }

    fn connecting(error: &tokio_postgres::Error, dsn: &Dsn) -> Self {
        PgError::Connect { endpoint: dsn.endpoint(), reason: words(error, dsn) }
    }
}

/// An error and its causes, the outermost first, without a password.
fn words(error: &tokio_postgres::Error, dsn: &Dsn) -> String {
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let text = inner.to_string();
        if !words.contains(&text) {
            words.push_str(": ");
            words.push_str(&text);
        }
        cause = inner.source();
    }
    dsn.without_password(&words)
}

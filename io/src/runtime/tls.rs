//! TLS on both sides, as a state machine over byte vectors: rustls never touches a socket here.
//!
//! That keeps the rule of [`super`] intact: the socket's raw bytes are read when they are there, and this module
//! turns them into plain ones. Key exchange, certificates and records are rustls' with the ring provider.

use std::io::{self, BufRead, Write};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, Connection, RootCertStore, ServerConfig, ServerConnection};

use super::buffers::ensure_buffer;

/// Why TLS could not be set up. All of these are the operator's to mend.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A certificate or key file could not be read or holds no PEM.
    #[error("{file}: {reason}")]
    File {
        /// The file as the config names it.
        file: String,
        /// What is wrong with it.
        reason: String,
    },
    /// rustls refused the pair.
    #[error("certificate and key cannot be used: {0}")]
    Pair(rustls::Error),
    /// The machine has no trust anchors and the built-in ones could not be loaded.
    #[error("no trusted root certificates: {0}")]
    Roots(String),
}

/// How we speak TLS to upstreams. Cheap to clone.
#[derive(Clone)]
pub struct ClientTls(Arc<ClientConfig>);

impl ClientTls {
    /// The machine's trust store (`SSL_CERT_FILE` and `SSL_CERT_DIR` are honoured), or Mozilla's roots where a
    /// container has none. Reads files.
    pub fn from_system() -> Result<Self, TlsError> {
        Self::trusting(system_roots())
    }

    /// Trusts exactly the certificates of a PEM file: a private provider, or a test.
    pub fn trusting_pem_file(file: &str) -> Result<Self, TlsError> {
        Self::trusting(pem_roots(file)?)
    }

    fn trusting(roots: RootCertStore) -> Result<Self, TlsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| TlsError::Roots(error.to_string()))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(ClientTls(Arc::new(config)))
    }

    /// The same trust for a protocol that is not HTTP.
    pub(crate) fn without_alpn(&self) -> Arc<ClientConfig> {
        let mut config = ClientConfig::clone(&self.0);
        config.alpn_protocols.clear();
        Arc::new(config)
    }

    pub(super) fn session(&self, host: &str) -> io::Result<Session> {
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        let session = ClientConnection::new(self.0.clone(), name).map_err(io::Error::other)?;
        Ok(Session::new(Connection::Client(session)))
    }
}

/// The trust anchors of the machine, or Mozilla's where it has none.
pub(crate) fn system_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    let native = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(native.certs);
    if roots.is_empty() {
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
    roots
}

/// The trust anchors of a PEM file and no others.
pub(crate) fn pem_roots(file: &str) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    let certs = CertificateDer::pem_file_iter(file).and_then(|certs| certs.collect::<Result<Vec<_>, _>>());
    let certs = certs.map_err(|error| TlsError::File { file: file.to_owned(), reason: error.to_string() })?;
    roots.add_parsable_certificates(certs);
    Ok(roots)
}

/// How we answer TLS on the callers' port. Cheap to clone; a reload makes a new one.
#[derive(Clone)]
pub struct ServerTls(Arc<ServerConfig>);

impl ServerTls {
    /// Reads a PEM chain and its key.
    pub fn from_pem_files(cert_file: &str, key_file: &str) -> Result<Self, TlsError> {
        let in_file = |file: &str, reason: String| TlsError::File { file: file.to_owned(), reason };
        let chain = CertificateDer::pem_file_iter(cert_file)
            .and_then(|certs| certs.collect::<Result<Vec<_>, _>>())
            .map_err(|error| in_file(cert_file, error.to_string()))?;
        if chain.is_empty() {
            return Err(in_file(cert_file, "holds no certificate".to_owned()));
        }
        let key = PrivateKeyDer::from_pem_file(key_file).map_err(|error| in_file(key_file, error.to_string()))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(TlsError::Pair)?
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .map_err(TlsError::Pair)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(ServerTls(Arc::new(config)))
    }

    pub(super) fn session(&self) -> io::Result<Session> {
        let session = ServerConnection::new(self.0.clone()).map_err(io::Error::other)?;
        Ok(Session::new(Connection::Server(session)))
    }
}

/// One TLS session: raw bytes in and out on one side, plain bytes on the other.
pub(super) struct Session {
    tls: Connection,
    /// Raw bytes that arrived while rustls' own plain-text buffer was full.
    inbox: Vec<u8>,
}

impl Session {
    fn new(tls: Connection) -> Self {
        Session { tls, inbox: Vec::new() }
    }

    pub(super) fn is_handshaking(&self) -> bool {
        self.tls.is_handshaking()
    }

    /// Takes raw bytes from the socket; none means the peer closed it.
    pub(super) fn receive(&mut self, raw: &[u8]) -> io::Result<()> {
        if raw.is_empty() {
            self.tls.read_tls(&mut io::empty())?;
            return Ok(());
        }
        self.inbox.extend_from_slice(raw);
        self.digest()
    }

    /// Feeds what waits in the inbox to rustls, as far as it takes it.
    pub(super) fn digest(&mut self) -> io::Result<()> {
        let mut fed = 0;
        while fed < self.inbox.len() {
            let mut rest = &self.inbox[fed..];
            match self.tls.read_tls(&mut rest) {
                Ok(0) => break,
                Ok(taken) => fed += taken,
                // rustls' plain-text buffer is full: the reader must be emptied first.
                Err(error) if error.kind() == io::ErrorKind::Other => break,
                Err(error) => return Err(error),
            }
            self.tls.process_new_packets().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        }
        self.inbox.drain(..fed);
        Ok(())
    }

    /// Moves plain bytes into the buffer's spare room. `None`: nothing yet. `Some(0)`: the peer said goodbye.
    pub(super) fn open(&mut self, into: &mut Vec<u8>, room: usize) -> io::Result<Option<usize>> {
        loop {
            let count = self.take_plain(into, room)?;
            if count.is_some() {
                return Ok(count);
            }
            let waiting = self.inbox.len();
            self.digest()?;
            if self.inbox.len() == waiting {
                return Ok(None);
            }
        }
    }

    /// [`Session::open`] for what is decrypted already.
    fn take_plain(&mut self, into: &mut Vec<u8>, room: usize) -> io::Result<Option<usize>> {
        let mut count = 0;
        while count < room {
            let mut reader = self.tls.reader();
            match reader.fill_buf() {
                Ok(plain) if !plain.is_empty() => {
                    let part = plain.len().min(room - count);
                    ensure_buffer(into);
                    into.extend_from_slice(&plain[..part]);
                    reader.consume(part);
                    count += part;
                }
                Ok(_) => break, // the end; behind some bytes it is told by the next call, as an error is
                Err(_) if count > 0 => break,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        Ok(Some(count))
    }

    /// Whether plain bytes can be had without the socket: in rustls' buffer, or raw in the inbox.
    pub(super) fn has_more(&mut self) -> bool {
        let plain = self.tls.process_new_packets().map_or(1, |state| state.plaintext_bytes_to_read());
        plain > 0 || !self.inbox.is_empty()
    }

    /// Encrypts plain bytes and appends what must be sent.
    pub(super) fn seal(&mut self, plain: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        let mut rest = plain;
        while !rest.is_empty() {
            let taken = self.tls.writer().write(rest)?;
            rest = &rest[taken..];
            self.drain_into(out)?;
            if taken == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
        }
        self.drain_into(out)
    }

    /// Appends whatever the protocol itself wants to say (handshake, alerts, key updates).
    pub(super) fn drain_into(&mut self, out: &mut Vec<u8>) -> io::Result<()> {
        while self.tls.wants_write() {
            self.tls.write_tls(out)?;
        }
        Ok(())
    }

    pub(super) fn say_goodbye(&mut self, out: &mut Vec<u8>) -> io::Result<()> {
        self.tls.send_close_notify();
        self.drain_into(out)
    }
}

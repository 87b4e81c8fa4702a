//! TLS towards Postgres, as strict as `sslmode` asks: rustls with the ring provider, like everywhere else.
//!
//! `require` encrypts and believes any certificate, `verify-ca` wants a trusted issuer, `verify-full` also the right
//! name. Without `sslrootcert` the machine's trust store counts. Certificates need a subject alternative name.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use super::dsn::DsnError;
use crate::runtime::{pem_roots, system_roots};

/// What must be right about the server's certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Check {
    /// It is encrypted; anybody may be at the other end.
    Nothing,
    /// A trusted authority issued it, for whatever name.
    Authority,
    /// And for this name.
    Full,
}

/// How to speak TLS, made once. Cheap to clone.
#[derive(Clone)]
pub(super) struct Tls {
    pub(super) check: Check,
    pub(super) config: Arc<ClientConfig>,
}

impl Tls {
    /// Reads the file, or the machine's trust store where the check needs one.
    pub(super) fn new(check: Check, root_cert: Option<&str>) -> Result<Self, DsnError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let broken = |error: &dyn std::fmt::Display| DsnError::Tls(error.to_string());
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| broken(&error))?;
        let config = match check {
            Check::Full => builder.with_root_certificates(roots(root_cert)?).with_no_client_auth(),
            Check::Authority => {
                let roots = Arc::new(roots(root_cert)?);
                let strict = WebPkiServerVerifier::builder_with_provider(roots, provider).build();
                let lenient = Lenient { strict: strict.map_err(|error| broken(&error))?, checks_authority: true };
                builder.dangerous().with_custom_certificate_verifier(Arc::new(lenient)).with_no_client_auth()
            }
            Check::Nothing => {
                // Signatures are still checked; the roots only make the verifier possible.
                let mut roots = RootCertStore::empty();
                roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
                let strict = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build();
                let lenient = Lenient { strict: strict.map_err(|error| broken(&error))?, checks_authority: false };
                builder.dangerous().with_custom_certificate_verifier(Arc::new(lenient)).with_no_client_auth()
            }
        };
        Ok(Tls { check, config: Arc::new(config) })
    }
}

fn roots(file: Option<&str>) -> Result<RootCertStore, DsnError> {
    let Some(file) = file else { return Ok(system_roots()) };
    let roots = pem_roots(file).map_err(|error| DsnError::RootCert(error.to_string()))?;
    if roots.is_empty() {
        return Err(DsnError::RootCert(format!("{file}: holds no certificate")));
    }
    Ok(roots)
}

/// rustls' own verifier, with less asked of it: what libpq asks below `verify-full`.
#[derive(Debug)]
struct Lenient {
    strict: Arc<WebPkiServerVerifier>,
    checks_authority: bool,
}

impl ServerCertVerifier for Lenient {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if !self.checks_authority {
            return Ok(ServerCertVerified::assertion());
        }
        // The name is looked at last, so a certificate that fails only there has a trusted issuer.
        match self.strict.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.strict.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.strict.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.strict.supported_verify_schemes()
    }
}

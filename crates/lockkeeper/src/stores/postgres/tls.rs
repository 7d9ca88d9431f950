//! TLS by rustls, with the words of libpq.

use crate::error::{Error, ErrorKind, Result};
use crate::stores::shared::tls_files::TlsFiles;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use std::sync::Arc;
use tokio_postgres_rustls::MakeRustlsConnect;

/// How much the connection is protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SslMode {
    Disable,
    /// TLS where the server offers it, with any certificate.
    Prefer,
    /// TLS with any certificate; with a root of our own, as `VerifyCa`: so does libpq.
    Require,
    /// TLS with a certificate of a known authority.
    VerifyCa,
    /// TLS with a certificate of a known authority, for this host.
    VerifyFull,
}

impl SslMode {
    pub(super) const ALL: [Self; 5] = [Self::Disable, Self::Prefer, Self::Require, Self::VerifyCa, Self::VerifyFull];
}

/// What a connection needs to begin TLS.
#[derive(Clone)]
pub(super) struct Tls {
    mode: SslMode,
    config: Option<Arc<ClientConfig>>,
}

impl Default for Tls {
    fn default() -> Self {
        Self { mode: SslMode::Disable, config: None }
    }
}

fn bad(text: &str) -> Error {
    Error::invalid_config(text).in_store("postgres")
}

impl Tls {
    pub(super) fn new(mode: SslMode, mut files: TlsFiles) -> Result<Self> {
        if mode == SslMode::Disable {
            files.must_be_none("with sslmode=disable")?;
            return Ok(Self::default());
        }
        let provider = Arc::new(ring::default_provider());
        let root = files.authority()?;
        let verify = mode >= SslMode::VerifyCa || (mode == SslMode::Require && root.is_some());
        let verifier = Verifier {
            inner: verify.then(|| verifier(root, &provider)).transpose()?,
            name: mode == SslMode::VerifyFull,
            provider: provider.clone(),
        };
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|e| bad("TLS cannot be set up").with_source(e))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        let config = match files.identity()? {
            None => config.with_no_client_auth(),
            Some((cert, key)) => {
                let chain = certificates(&cert, "sslcert")?;
                let key =
                    PrivateKeyDer::from_pem_slice(&key).map_err(|_| bad("sslkey has no private key in it (PEM)"))?;
                let set = config.with_client_auth_cert(chain, key);
                set.map_err(|e| bad("sslcert and sslkey do not fit together").with_source(e))?
            }
        };
        Ok(Self { mode, config: Some(Arc::new(config)) })
    }

    /// What the driver is told.
    pub(super) fn wanted(&self) -> tokio_postgres::config::SslMode {
        match self.mode {
            SslMode::Disable => tokio_postgres::config::SslMode::Disable,
            SslMode::Prefer => tokio_postgres::config::SslMode::Prefer,
            _ => tokio_postgres::config::SslMode::Require,
        }
    }

    /// What the driver begins TLS with; `None` when there is to be none.
    pub(super) fn connector(&self) -> Option<MakeRustlsConnect> {
        Some(MakeRustlsConnect::new((**self.config.as_ref()?).clone()))
    }
}

fn certificates(pem: &[u8], key: &str) -> Result<Vec<CertificateDer<'static>>> {
    let found: Vec<_> = CertificateDer::pem_slice_iter(pem).filter_map(std::result::Result::ok).collect();
    if found.is_empty() { Err(bad(&format!("{key} has no certificate in it (PEM)"))) } else { Ok(found) }
}

fn verifier(root: Option<Vec<u8>>, provider: &Arc<CryptoProvider>) -> Result<Arc<WebPkiServerVerifier>> {
    let mut roots = RootCertStore::empty();
    let certificates = match root {
        Some(pem) => certificates(&pem, "sslrootcert")?,
        None => rustls_native_certs::load_native_certs().certs,
    };
    roots.add_parsable_certificates(certificates);
    if roots.is_empty() {
        let text = "no authority to check the server's certificate with: name one with sslrootcert";
        return Err(Error::new(ErrorKind::InvalidConfig, text).in_store("postgres"));
    }
    let built = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build();
    built.map_err(|e| bad("sslrootcert cannot be used").with_source(e))
}

/// As much of the server's certificate is checked as the mode asks for.
#[derive(Debug)]
struct Verifier {
    inner: Option<Arc<WebPkiServerVerifier>>,
    /// Whether the certificate must be for this host.
    name: bool,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        let Some(inner) = &self.inner else { return Ok(ServerCertVerified::assertion()) };
        match inner.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            // The chain was checked before the name.
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if !self.name => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

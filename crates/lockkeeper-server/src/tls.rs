//! Certificates of the gateway and of its clients.

use lockkeeper::{Error, ErrorKind, Result};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use std::path::Path;
use std::sync::Arc;
use tokio_rustls::TlsAcceptor;

/// TLS of a gateway.
#[derive(Clone)]
pub struct Tls(pub(crate) TlsAcceptor);

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls")
    }
}

impl Tls {
    /// From files in PEM. With `client_ca`, only clients with a certificate of that authority are let in.
    ///
    /// # Errors
    /// `InvalidConfig` or `Denied`, with the file that cannot be used; never with what is in it.
    pub fn read(cert: &Path, key: &Path, client_ca: Option<&Path>) -> Result<Self> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|e| Error::invalid_config("TLS cannot be used").with_source(e))?;
        let builder = match client_ca {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let mut roots = RootCertStore::empty();
                for found in certificates(path)? {
                    roots.add(found).map_err(|_| unusable(path))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider).build();
                builder.with_client_cert_verifier(verifier.map_err(|_| unusable(path))?)
            }
        };
        let secret = PrivateKeyDer::from_pem_slice(&read(key)?).map_err(|_| unusable(key))?;
        let mut config = builder.with_single_cert(certificates(cert)?, secret).map_err(|_| unusable(cert))?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self(TlsAcceptor::from(Arc::new(config))))
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|e| {
        let kind = match e.kind() {
            std::io::ErrorKind::PermissionDenied => ErrorKind::Denied,
            _ => ErrorKind::InvalidConfig,
        };
        Error::new(kind, format!("{} cannot be read: {e}", path.display())).with_source(e)
    })
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let pem = read(path)?;
    let found = CertificateDer::pem_slice_iter(&pem).collect::<std::result::Result<Vec<_>, _>>();
    found.ok().filter(|found| !found.is_empty()).ok_or_else(|| unusable(path))
}

fn unusable(path: &Path) -> Error {
    Error::invalid_config(format!("{} cannot be used: it has no PEM that fits", path.display()))
}

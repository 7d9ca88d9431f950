//! Certificates of the gateway and of its clients.

use lockkeeper::{Error, ErrorKind, Result};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use tokio_rustls::TlsAcceptor;

/// TLS of a gateway. Clones share one certificate.
#[derive(Clone)]
pub struct Tls(Arc<Inner>);

struct Inner {
    cert: PathBuf,
    key: PathBuf,
    client_ca: Option<PathBuf>,
    loaded: RwLock<Loaded>,
}

struct Loaded {
    acceptor: TlsAcceptor,
    versions: Vec<Version>,
}

/// What tells two states of a file apart: its number, its time and its size.
type Version = (u64, i64, i64, u64);

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
        let loaded = RwLock::new(load(cert, key, client_ca)?);
        let client_ca = client_ca.map(Path::to_owned);
        Ok(Self(Arc::new(Inner { cert: cert.to_owned(), key: key.to_owned(), client_ca, loaded })))
    }

    /// Reads the files again if one of them has changed; whether one has. Later connections have the new certificate.
    /// Files that do not fit each other, such as a new certificate with the old key, change nothing.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn refresh(&self) -> Result<bool> {
        let Inner { cert, key, client_ca, loaded } = &*self.0;
        let now = versions(cert, key, client_ca.as_deref())?;
        if loaded.read().unwrap_or_else(PoisonError::into_inner).versions == now {
            return Ok(false);
        }
        let fresh = load(cert, key, client_ca.as_deref())?;
        *loaded.write().unwrap_or_else(PoisonError::into_inner) = fresh;
        Ok(true)
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        self.0.loaded.read().unwrap_or_else(PoisonError::into_inner).acceptor.clone()
    }
}

fn versions(cert: &Path, key: &Path, client_ca: Option<&Path>) -> Result<Vec<Version>> {
    let version = |path: &Path| {
        let meta = std::fs::metadata(path).map_err(|e| unreadable(path, e))?;
        Ok((meta.ino(), meta.mtime(), meta.mtime_nsec(), meta.size()))
    };
    [Some(cert), Some(key), client_ca].into_iter().flatten().map(version).collect()
}

fn load(cert: &Path, key: &Path, client_ca: Option<&Path>) -> Result<Loaded> {
    // Before the files are read: a change while they are read is then seen at the next look.
    let versions = versions(cert, key, client_ca)?;
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
    Ok(Loaded { acceptor: TlsAcceptor::from(Arc::new(config)), versions })
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|e| unreadable(path, e))
}

fn unreadable(path: &Path, error: std::io::Error) -> Error {
    let kind = match error.kind() {
        std::io::ErrorKind::PermissionDenied => ErrorKind::Denied,
        _ => ErrorKind::InvalidConfig,
    };
    Error::new(kind, format!("{} cannot be read: {error}", path.display())).with_source(error)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let pem = read(path)?;
    let found = CertificateDer::pem_slice_iter(&pem).collect::<std::result::Result<Vec<_>, _>>();
    found.ok().filter(|found| !found.is_empty()).ok_or_else(|| unusable(path))
}

fn unusable(path: &Path) -> Error {
    Error::invalid_config(format!("{} cannot be used: it has no PEM that fits", path.display()))
}

//! TLS of a client, from the files that the options of a URL name.

use super::address::UrlKind;
use super::tls_files::TlsFiles;
use crate::error::Result;
use crate::name::escape;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use std::sync::Arc;

/// How a client checks the server, and by which name.
pub(in crate::stores) type Tls = (Arc<rustls::ClientConfig>, ServerName<'static>);

/// The TLS of a client; without an authority of its own it goes by the system's.
pub(in crate::stores) fn tls(url: &UrlKind, host: &str, mut files: TlsFiles) -> Result<Tls> {
    let bad = |text: String| url.bad(text);
    let unusable = |what: &str| bad(format!("{what} cannot be used: it has no PEM that fits"));
    let mut roots = rustls::RootCertStore::empty();
    match files.authority()? {
        Some(pem) => {
            for found in CertificateDer::pem_slice_iter(&pem) {
                let found = found.map_err(|_| unusable("ca_file"))?;
                roots.add(found).map_err(|e| unusable("ca_file").with_source(e))?;
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| bad("TLS cannot be used".into()).with_source(e))?
        .with_root_certificates(roots);
    let config = match files.identity()? {
        None => config.with_no_client_auth(),
        Some((cert, key)) => {
            let chain = CertificateDer::pem_slice_iter(&cert).collect::<std::result::Result<Vec<_>, _>>();
            let chain = chain.ok().filter(|chain| !chain.is_empty()).ok_or_else(|| unusable("cert_file"))?;
            // Neither the key nor what is wrong with it is shown.
            let key = PrivateKeyDer::from_pem_slice(&key).map_err(|_| unusable("key_file"))?;
            config.with_client_auth_cert(chain, key).map_err(|e| unusable("cert_file or key_file").with_source(e))?
        }
    };
    let name = ServerName::try_from(host.to_owned())
        .map_err(|_| bad(format!("'{}' is not a host", escape(host.as_bytes()))))?;
    Ok((Arc::new(config), name))
}

//! Which certificates are trusted: the file's, or the system's.

use super::url::Place;
use crate::exit::Failure;
use crate::store;
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use std::sync::Arc;

/// The certificates of the authorities to trust.
pub(super) fn authorities(place: &Place) -> Result<Vec<CertificateDer<'static>>, Failure> {
    let Some((option, file)) = &place.ca_file else {
        let found = rustls_native_certs::load_native_certs().certs;
        if found.is_empty() {
            return Err(Failure::config("this machine has no certificate authorities to trust; give ca_file"));
        }
        return Ok(found);
    };
    let wrong = |e: &dyn std::fmt::Display| {
        Failure::config(format!("cannot read certificates from {option} '{}': {e}", store::path(file)))
    };
    let certificates = CertificateDer::pem_file_iter(file).map_err(|e| wrong(&e))?;
    let certificates = certificates.collect::<Result<Vec<_>, _>>().map_err(|e| wrong(&e))?;
    if certificates.is_empty() { Err(wrong(&"there are none in it")) } else { Ok(certificates) }
}

/// TLS that checks the server's name and certificate.
pub(super) fn config(place: &Place) -> Result<rustls::ClientConfig, Failure> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(authorities(place)?);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(|e| Failure::config(format!("TLS cannot be set up: {e}")))?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

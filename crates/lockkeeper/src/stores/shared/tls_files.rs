//! The files that TLS needs, as the options of a URL name them.

use super::address::UrlKind;
use crate::error::Result;

/// What most URLs call them.
#[cfg(any(test, feature = "consul", feature = "etcd", feature = "redis", feature = "remote"))]
pub(in crate::stores) const USUAL: [&str; 3] = ["ca_file", "cert_file", "key_file"];

/// How a certificate begins in a PEM file.
const CERTIFICATE: &[u8] = b"-----BEGIN CERTIFICATE-----";

/// An authority's certificates, our own certificate, and its key: in PEM.
pub(in crate::stores) struct TlsFiles {
    url: &'static UrlKind,
    options: [&'static str; 3],
    found: [Option<Vec<u8>>; 3],
}

impl TlsFiles {
    pub(in crate::stores) fn new(url: &'static UrlKind, options: [&'static str; 3]) -> Self {
        Self { url, options, found: [const { None }; 3] }
    }

    /// Reads the file if `option` names one.
    pub(in crate::stores) fn take(&mut self, option: &str, path: &str) -> Result<bool> {
        let Some(which) = self.options.iter().position(|file| *file == option) else { return Ok(false) };
        self.found[which] = Some(self.url.read(option, path)?);
        Ok(true)
    }

    /// For a connection without TLS; `why` ends the sentence.
    pub(in crate::stores) fn must_be_none(&self, why: &str) -> Result<()> {
        if self.found.iter().any(Option::is_some) {
            return Err(self.url.bad(format!("certificates mean nothing {why}")));
        }
        Ok(())
    }

    #[cfg(feature = "mysql")]
    pub(in crate::stores) fn has_authority(&self) -> bool {
        self.found[0].is_some()
    }

    /// The authority's certificates.
    pub(in crate::stores) fn authority(&mut self) -> Result<Option<Vec<u8>>> {
        let pem = self.found[0].take();
        if pem.as_ref().is_some_and(|pem| !pem.windows(CERTIFICATE.len()).any(|part| part == CERTIFICATE)) {
            return Err(self.url.bad(format!("{} has no certificate in it (PEM)", self.options[0])));
        }
        Ok(pem)
    }

    /// Our own certificate, and its key.
    pub(in crate::stores) fn identity(&mut self) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        match (self.found[1].take(), self.found[2].take()) {
            (Some(cert), Some(key)) => Ok(Some((cert, key))),
            (None, None) => Ok(None),
            _ => Err(self.url.bad(format!("{} and {} belong together", self.options[1], self.options[2]))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    static URL: UrlKind = UrlKind { store: "test", url: "a test URL", shape: "", least: "", known: "" };

    #[test]
    fn files_are_named_in_errors_and_what_is_in_them_is_not() {
        let dir = testkit::TempDir::new();
        let file = dir.write("no.pem", "geheim");
        let path = file.to_str().unwrap();
        let mut files = TlsFiles::new(&URL, USUAL);
        assert!(!files.take("colour", path).unwrap());
        assert!(files.take("ca_file", "/nowhere").unwrap_err().to_string().contains("ca_file cannot be read"));
        assert!(files.must_be_none("here").is_ok());
        assert!(files.take("ca_file", path).unwrap() && files.take("key_file", path).unwrap());
        for (error, word) in [
            (files.must_be_none("here").unwrap_err(), "mean nothing here"),
            (files.authority().unwrap_err(), "ca_file has no certificate"),
            (files.identity().unwrap_err(), "cert_file and key_file"),
        ] {
            assert_eq!(error.kind(), ErrorKind::InvalidConfig);
            assert!(error.to_string().contains(word) && !format!("{error:?}").contains("geheim"), "{error:?}");
        }
    }
}

//! An authority for servers that speak TLS only and want to know who calls.

use crate::{PATIENCE, Proc, TempDir};
use std::process::Command;

/// Puts into `dir` an authority `ca`, a `server` (127.0.0.1 and localhost) and a `client` under it, and an authority `other`:
/// `.crt` and `.key` of each.
pub fn certificates(dir: &TempDir) {
    let script = "
        new() { openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=$1 -keyout $1.key -out $1.csr; }
        ca() { new $1; openssl x509 -req -in $1.csr -signkey $1.key -days 2 -extfile ca.ext -out $1.crt; }
        leaf() { new $1; openssl x509 -req -in $1.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile leaf.ext -out $1.crt; }
        echo basicConstraints=critical,CA:TRUE > ca.ext
        echo subjectAltName=IP:127.0.0.1,DNS:localhost > leaf.ext
        ca ca && ca other && leaf server && leaf client";
    let made = Proc::start(Command::new("sh").args(["-ec", script]).current_dir(dir.path())).wait_for(PATIENCE);
    assert_eq!(made.code, Some(0), "openssl (apt-get install openssl): {}", made.stderr);
}

/// `ca.crt`, `server.crt` and `client.crt` under it with their keys, and `other.crt` of another authority.
#[derive(Debug)]
pub struct Certificates {
    dir: TempDir,
}

impl Certificates {
    /// Makes them.
    #[allow(clippy::new_without_default, reason = "it runs openssl: not a value to have by default")]
    pub fn new() -> Self {
        let dir = TempDir::new();
        certificates(&dir);
        Self { dir }
    }

    pub(crate) fn into_dir(self) -> TempDir {
        self.dir
    }

    fn file(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    /// What a store URL needs.
    pub fn query(&self) -> String {
        let [ca, cert, key] = ["ca.crt", "client.crt", "client.key"].map(|name| self.file(name));
        format!("ca_file={ca}&cert_file={cert}&key_file={key}")
    }

    /// What a server needs, for its listeners and for what it calls itself.
    pub(crate) fn server(&self) -> Vec<[String; 2]> {
        let files = [("tls-cert-file", "server.crt"), ("tls-key-file", "server.key"), ("tls-ca-cert-file", "ca.crt")];
        let mut pairs: Vec<_> = files.iter().map(|(key, name)| [(*key).to_owned(), self.file(name)]).collect();
        pairs.push(["tls-replication".into(), "yes".into()]);
        pairs.push(["port".into(), "0".into()]);
        pairs
    }

    /// What `redis-cli` needs.
    pub(crate) fn cli(&self) -> Vec<String> {
        let files = [("--cacert", "ca.crt"), ("--cert", "client.crt"), ("--key", "client.key")];
        let files = files.iter().flat_map(|(key, name)| [(*key).to_owned(), self.file(name)]);
        std::iter::once("--tls".to_owned()).chain(files).collect()
    }
}

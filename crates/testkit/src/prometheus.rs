//! A real Prometheus on a free loopback port, of the programs that `scripts/install` unpacks, and `promtool`.

use crate::daemon::{Daemon, Server};
use crate::{TempDir, cached};
use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// How long one answer may take.
const LIMIT: Duration = Duration::from_secs(5);

/// The program of that name: an installed one, or the one that was unpacked.
fn program(name: &str) -> PathBuf {
    let unpacked = cached(&format!("prometheus/usr/bin/{name}"));
    if unpacked.exists() {
        return unpacked;
    }
    let works = Command::new(name).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    assert!(works.is_ok_and(|status| status.success()), "there is no {name}: run scripts/test, which unpacks it");
    name.into()
}

/// `promtool`, to check rules and to test them.
pub fn promtool() -> Command {
    Command::new(program("promtool"))
}

/// A Prometheus of a test's own, which scrapes every second. Killed when dropped.
#[derive(Debug)]
pub struct Prometheus {
    daemon: Daemon,
    dir: TempDir,
    config: PathBuf,
}

impl Prometheus {
    /// Starts one that scrapes `/metrics` of ports on 127.0.0.1, each under the name of a job, and evaluates rules.
    pub fn new(jobs: &[(&str, u16)], rules: &Path) -> Self {
        let dir = TempDir::new();
        let global = "global: { scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s }";
        let rules = rules.display().to_string();
        let mut text = format!("{global}\nrule_files: [{rules:?}]\nscrape_configs:\n");
        for (job, port) in jobs {
            // Writing into a string cannot fail.
            let _ = writeln!(text, "- {{ job_name: {job}, static_configs: [{{ targets: [\"127.0.0.1:{port}\"] }}] }}");
        }
        let config = dir.write("prometheus.yml", &text);
        Self { daemon: Daemon::new(), dir, config }.begin()
    }

    /// The JSON that answers a GET, when it answers.
    pub fn get(&self, path: &str) -> Option<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.daemon.port())).ok()?;
        stream.set_read_timeout(Some(LIMIT)).ok()?;
        write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        Some(text.split_once("\r\n\r\n")?.1.to_owned())
    }

    /// The JSON that answers a query now, also when it is wrong.
    pub fn query(&self, query: &str) -> Option<String> {
        let hex: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
        self.get(&format!("/api/v1/query?query={hex}"))
    }
}

impl Server for Prometheus {
    const WHAT: &str = "Prometheus";

    fn daemon(&self) -> &Daemon {
        &self.daemon
    }

    fn daemon_mut(&mut self) -> &mut Daemon {
        &mut self.daemon
    }

    fn start_command(&self) -> Command {
        let mut command = Command::new(program("prometheus"));
        let option = |name: &str, path: &Path| format!("--{name}={}", path.display());
        command.arg(option("config.file", &self.config)).arg(option("storage.tsdb.path", &self.dir.join("data")));
        command.arg(format!("--web.listen-address=127.0.0.1:{}", self.daemon.port())).arg("--log.level=warn");
        command
    }

    fn is_ready(&self) -> bool {
        self.get("/-/ready").is_some_and(|page| page.contains("Ready"))
    }
}

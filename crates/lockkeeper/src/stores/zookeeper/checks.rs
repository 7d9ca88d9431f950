//! What `lockkeeper doctor` asks the ensemble.

use super::ZooKeeperStore;
use super::error::map_err;
use crate::duration;
use crate::error::{Error, Result};
use crate::store::{Check, CheckState};
use crate::stores::shared::checks::{Topic, members, members_unknown};
use CheckState::{Note, Ok as Fine, Warn};
use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

const SESSION: Topic = Topic {
    id: "zookeeper-session",
    why: "A session ends this long after its last sign of life, and with it a crashed holder's locks.",
    fix: "Raise maxSessionTimeout at the servers, or ask for less with ?session_timeout=.",
};
const ACCESS: Topic = Topic {
    id: "zookeeper-access",
    why: "Nodes that any client may write let any client of the ensemble take a lock away, or forge one.",
    fix: "Put a login into the URL: zookeeper://USER:PASSWORD@…; what the keeper makes then belongs to that login.",
};
const LOAD: Topic = Topic {
    id: "zookeeper-load",
    why: "A server with a long queue answers heartbeats late, and sessions end although their holders live.",
    fix: "Give the ensemble disks of its own, or fewer clients.",
};

/// The node that lists the servers of an ensemble.
const CONFIG: &str = "/zookeeper/config";

/// How long one server may take to answer.
const LIMIT: Duration = Duration::from_secs(2);

/// So many requests under way, or so many milliseconds on average, are a queue that grows.
const BUSY: (u64, f64) = (100, 100.0);

impl ZooKeeperStore {
    pub(super) async fn examine(&self) -> Vec<Check> {
        let options = &self.core.options;
        let mut checks = vec![
            match self.servers().await {
                Ok(count) => members(count),
                Err(error) => members_unknown(CONFIG, &error),
            },
            self.session(),
            ACCESS.is(
                if options.private { Fine } else { Note },
                if options.private { "nodes belong to this login" } else { "any client may write the nodes of locks" },
            ),
        ];
        for server in options.servers.split(',') {
            let at = server.to_owned();
            let asked = self.core.host.handle.spawn_blocking({
                let at = at.clone();
                move || srvr(&at)
            });
            let check = match asked.await.unwrap_or_else(|e| Err(std::io::Error::other(e))) {
                Ok(text) => load(&text),
                Err(e) => LOAD.unknown("srvr", e),
            };
            checks.push(check.at(at));
        }
        checks
    }

    /// How many servers vote. A server that stands alone has an empty list.
    async fn servers(&self) -> Result<usize> {
        let session = self.core.session().await?;
        let read = tokio::time::timeout(LIMIT, session.client.get_data(CONFIG)).await;
        let (data, _) = read.map_err(|_| Error::unavailable("no answer in time"))?.map_err(map_err)?;
        let text = String::from_utf8_lossy(&data).into_owned();
        let voters = text.lines().filter(|line| line.starts_with("server.") && !line.contains(":observer"));
        Ok(voters.count().max(1))
    }

    fn session(&self) -> Check {
        let (asked, granted) = (self.core.options.session_timeout, self.timeout);
        let found = format!("asked for {}, granted {}", duration::short(asked), duration::short(granted));
        SESSION.bad_if(granted != asked, Warn, found)
    }
}

/// What a server says to the word `srvr`, which it may not allow.
fn srvr(server: &str) -> std::io::Result<String> {
    let none = || std::io::Error::other("the name has no address");
    let address = server.to_socket_addrs()?.next().ok_or_else(none)?;
    let mut stream = TcpStream::connect_timeout(&address, LIMIT)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.write_all(b"srvr")?;
    let mut text = String::new();
    stream.take(4096).read_to_string(&mut text)?;
    if text.contains("not executed because it is not in the whitelist") {
        return Err(std::io::Error::other("the server does not allow it (4lw.commands.whitelist)"));
    }
    Ok(text)
}

fn load(text: &str) -> Check {
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("").trim();
    let average: f64 = field("Latency min/avg/max:").split('/').nth(1).and_then(|n| n.parse().ok()).unwrap_or(0.0);
    let waiting: u64 = field("Outstanding:").parse().unwrap_or(0);
    let found = format!("{}; {waiting} requests outstanding, {average} ms on average", field("Mode:"));
    LOAD.bad_if(waiting > BUSY.0 || average > BUSY.1, Warn, found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_with_a_queue_is_told_of() {
        let said = |average: &str, waiting: &str| {
            load(&format!(
                "Zookeeper version: 3.8\nLatency min/avg/max: 0/{average}/9\nOutstanding: {waiting}\nMode: leader\n"
            ))
        };
        assert_eq!((said("0.5", "0").state, said("0.5", "101").state), (Fine, Warn));
        assert_eq!(said("250.0", "0").state, Warn);
        assert_eq!(said("1.5", "3").found, "leader; 3 requests outstanding, 1.5 ms on average");
    }
}

//! From what an agent says to an error of ours: one table.

use crate::error::{Error, ErrorKind};
use crate::name::escape;
use crate::stores::shared::http::Answer;

/// An answer that no Consul gives.
pub(super) fn not_consul(what: &str) -> Error {
    Error::new(ErrorKind::Unexpected, format!("{what} is not what Consul answers; is this its HTTP address?"))
        .in_store("consul")
}

/// An answer that says no.
pub(super) fn refused(answer: &Answer) -> Error {
    let said = String::from_utf8_lossy(&answer.body);
    error(answer.status.as_u16(), &said)
}

/// Consul tells most of its troubles with a 500 and a sentence.
pub(super) fn error(status: u16, said: &str) -> Error {
    let has = |text: &str| said.contains(text);
    let (kind, why) = match status {
        _ if has("Permission denied") || has("ACL not found") || has("token does not exist") => {
            (ErrorKind::Denied, "Consul refuses the token, or what it may do")
        }
        401 | 403 => (ErrorKind::Denied, "Consul refuses"),
        _ if has("Enterprise feature") => (ErrorKind::Unsupported, "this Consul has no namespaces or partitions"),
        _ if has("No path to datacenter") => (ErrorKind::InvalidConfig, "no such datacenter"),
        _ if has("Invalid Session TTL") => (ErrorKind::InvalidConfig, "the server does not allow such a TTL"),
        _ if has("Missing check") || has("is in critical state") => {
            (ErrorKind::InvalidConfig, "a session cannot have these checks")
        }
        // Also for a while after an agent has joined.
        _ if has("Missing node registration") => {
            (ErrorKind::Unavailable, "the agent's node is not registered in this datacenter, which its sessions need")
        }
        _ if has("No cluster leader") => (ErrorKind::Unavailable, "the cluster has no leader"),
        400 | 413 => (ErrorKind::InvalidConfig, "Consul does not accept the request"),
        404 | 405 => (ErrorKind::Unexpected, "Consul does not know the request; is this its HTTP address?"),
        429 | 500..=599 => (ErrorKind::Unavailable, "Consul has trouble"),
        _ => (ErrorKind::Unexpected, "Consul answers what it should not"),
    };
    let said: String = escape(said.trim().as_bytes()).chars().take(200).collect();
    let said = if said.is_empty() { format!("HTTP {status}") } else { said };
    Error::new(kind, format!("{why}: {said}")).in_store("consul")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_trouble_has_its_kind() {
        for (status, said, kind) in [
            (403, "Permission denied: lacks 'key:write'", ErrorKind::Denied),
            (403, "ACL not found", ErrorKind::Denied),
            (500, "rpc error: Permission denied", ErrorKind::Denied),
            (500, "No path to datacenter", ErrorKind::InvalidConfig),
            (500, "No cluster leader", ErrorKind::Unavailable),
            (500, "Missing node registration", ErrorKind::Unavailable),
            (500, "Invalid Session TTL '1000', must be between [10s=24h0m0s]", ErrorKind::InvalidConfig),
            (
                400,
                "Invalid query parameter: \"ns\" - Namespaces are a Consul Enterprise feature",
                ErrorKind::Unsupported,
            ),
            (429, "", ErrorKind::Unavailable),
            (502, "<html>\u{1b}[2J", ErrorKind::Unavailable),
            (301, "", ErrorKind::Unexpected),
        ] {
            let error = error(status, said);
            assert_eq!(error.kind(), kind, "{error}");
            assert!(!error.to_string().contains('\u{1b}'));
        }
        assert!(error(500, &"x".repeat(10_000)).to_string().len() < 300);
    }
}

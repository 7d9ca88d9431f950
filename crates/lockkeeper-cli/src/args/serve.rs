//! What `serve` is told.

use super::common::duration;
use clap::{Args, Subcommand};
use lockkeeper_server::auth::Rule;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct ServeArgs {
    #[command(subcommand)]
    pub(crate) command: Option<ServeCommand>,
    /// Where clients connect: an address, unix:PATH for a socket in the file system, or systemd for the socket that its
    /// socket unit has opened. An address that other machines can reach needs --tls-cert and --tokens.
    #[arg(long, value_name = "ADDRESS", value_parser = listen, default_value = "127.0.0.1:7420")]
    pub(crate) listen: Listen,
    /// Who may do what; without it everything is allowed, which is for loopback only. The file is read again when it
    /// changes.
    #[arg(long, value_name = "FILE")]
    pub(crate) tokens: Option<PathBuf>,
    /// The gateway's certificate, in PEM. It and the next two are read again when they change.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Its key, in PEM.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Let in only clients with a certificate of this authority.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) client_ca: Option<PathBuf>,
    /// Where clients reach this gateway past a balancer, so that they learn of hand-overs at once.
    #[arg(long, value_name = "URL")]
    pub(crate) advertise: Option<String>,
    /// The longest wait of one request.
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "25s")]
    pub(crate) max_wait: Duration,
    /// The longest TTL that a client may ask for.
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "5m")]
    pub(crate) max_ttl: Duration,
    /// How long /readyz says no before connections are refused, when the gateway is told to end.
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "5s")]
    pub(crate) drain: Duration,
    /// Where /metrics is served too, alone and without a token: an address that only Prometheus can reach.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) metrics_listen: Option<SocketAddr>,
    /// Where every break, every refusal of one and every log-in is written, a JSON object per line; - is stderr.
    #[arg(long, value_name = "FILE")]
    pub(crate) audit: Option<PathBuf>,
    /// No pages at /: the API alone.
    #[arg(long)]
    pub(crate) no_ui: bool,
}

/// Where clients connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Listen {
    Address(SocketAddr),
    Unix(PathBuf),
    Systemd,
}

fn listen(text: &str) -> Result<Listen, String> {
    match text.strip_prefix("unix:") {
        Some("") => Err("unix: needs a path, such as unix:/run/lockkeeper.sock".to_owned()),
        Some(path) => Ok(Listen::Unix(path.into())),
        None if text == "systemd" => Ok(Listen::Systemd),
        None => text.parse().map(Listen::Address).map_err(|_| {
            format!("'{text}' is not an address with a port, such as 127.0.0.1:7420, nor unix:PATH, nor systemd")
        }),
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum ServeCommand {
    /// Make a token: the secret for its client on stdout, once, and the lines for the tokens file.
    Token {
        /// What the token is called, in the tokens file and in the audit.
        #[arg(long)]
        id: String,
        /// Names and verbs, such as 'ci/=acquire,read'; again for more. Verbs: read, acquire, register, break.
        #[arg(long, value_name = "NAMES=VERBS", required = true)]
        allow: Vec<Rule>,
        /// The day from which it is refused, such as 2027-06-01 [default: never].
        #[arg(long, value_name = "DAY")]
        expires: Option<String>,
    },
}

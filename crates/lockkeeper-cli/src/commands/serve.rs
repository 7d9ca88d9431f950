//! `serve`: locks over HTTP, for programs in any language.

mod listen;

use crate::args::{ServeArgs, ServeCommand};
use crate::exit::Failure;
use crate::{output, store};
use listen::Place;
use lockkeeper_server::auth::{Rule, Tokens, make};
use lockkeeper_server::{Accept, Audit, Gateway, Settings, Tls};
use sd_notify::NotifyState;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// How often the tokens file and the certificates are looked at.
const LOOK: Duration = Duration::from_secs(2);

pub(crate) async fn serve(store: Option<&str>, args: ServeArgs) -> Result<u8, Failure> {
    if let Some(ServeCommand::Token { id, allow, expires }) = &args.command {
        return token(id, allow, expires.as_deref());
    }
    let place = Place::find(&args.listen)?;
    check(&args, place.address())?;
    let tokens = args.tokens.as_deref().map_or_else(|| Ok(Tokens::open()), Tokens::read)?;
    let tls = match (&args.tls_cert, &args.tls_key) {
        (Some(cert), Some(key)) => Some(Tls::read(cert, key, args.client_ca.as_deref())?),
        _ => None,
    };
    let audit = args.audit.as_deref().map_or_else(|| Ok(Audit::none()), audit)?;
    let mut settings = Settings::default();
    (settings.max_wait, settings.max_ttl) = (args.max_wait, args.max_ttl);
    settings.advertise = args.advertise.clone();
    settings.ui = !args.no_ui;
    settings.exporter.install()?;
    let mut end = End::new()?;
    let chosen = store::choose(store)?;
    chosen.notices.iter().for_each(|notice| output::say(notice));
    let opened = lockkeeper::store::open(chosen.url()).await?;
    let scheme = opened.info().scheme;
    let gateway = Gateway::new(opened, settings, tokens, audit)?;
    let opened = place.open().await?;
    let secure = if tls.is_some() { "https" } else { "http" };
    let secure = if opened.at.starts_with("unix:") { String::new() } else { format!("{secure}://") };
    output::say(&format!("serving {scheme} at {secure}{}", opened.at));
    if let Some(address) = args.metrics_listen {
        let (listener, at) = listen(address).await?;
        output::say(&format!("metrics at http://{at}/metrics"));
        let accept = Accept { gateway: gateway.clone(), listener, tls: None };
        tokio::spawn(accept.serve_metrics(std::future::pending()));
    }
    tokio::spawn(refresh(gateway.clone(), tls.clone()));
    tell_systemd(NotifyState::Ready);
    let (accept, drain) = (Accept { gateway: gateway.clone(), listener: opened.door, tls }, args.drain);
    accept
        .serve(async move {
            end.wait().await;
            gateway.drain();
            tell_systemd(NotifyState::Stopping);
            output::say("ending: new waits go elsewhere; a second signal ends at once");
            tokio::select! {
                () = tokio::time::sleep(drain) => {}
                () = end.wait() => {}
            }
        })
        .await;
    drop(opened.file);
    Ok(0)
}

/// Does nothing where no service manager listens. One that cannot be told finds out by its own time limits.
fn tell_systemd(state: NotifyState<'_>) {
    let _ = sd_notify::notify(&[state]);
}

async fn listen(address: SocketAddr) -> Result<(TcpListener, SocketAddr), Failure> {
    let bound = TcpListener::bind(address).await;
    let listener = bound.map_err(|e| Failure::config(format!("{address} cannot be listened on: {e}")))?;
    let at = listener.local_addr().map_err(|e| Failure::system(format!("the port is not known: {e}")))?;
    Ok((listener, at))
}

/// Refuses what would put locks and secrets on a network in the clear.
fn check(args: &ServeArgs, address: Option<SocketAddr>) -> Result<(), Failure> {
    let Some(address) = address.filter(|address| !address.ip().is_loopback()) else { return Ok(()) };
    if args.tls_cert.is_none() {
        let text = format!("{address} can be reached by other machines: --tls-cert and --tls-key are needed");
        return Err(Failure::config(text));
    }
    if args.tokens.is_none() && args.client_ca.is_none() {
        let text = format!("{address} can be reached by other machines: --tokens or --client-ca is needed");
        return Err(Failure::config(text));
    }
    Ok(())
}

fn token(id: &str, rules: &[Rule], expires: Option<&str>) -> Result<u8, Failure> {
    let made = make(id, rules, expires)?;
    output::print(&format!("# Give this to the client; it is shown only now.\n{}\n\n", made.secret))?;
    output::print(&format!("# Add this to the tokens file.\n{}", made.toml))?;
    Ok(0)
}

fn audit(path: &Path) -> Result<Audit, Failure> {
    if path == Path::new("-") {
        return Ok(Audit::to(std::io::stderr()));
    }
    let file = std::fs::File::options().create(true).append(true).open(path);
    let refused = |e| Failure::config(format!("the audit file {} cannot be written: {e}", path.display()));
    Ok(Audit::to(file.map_err(refused)?))
}

/// Reads the tokens file and the certificates again when they change.
async fn refresh(gateway: Arc<Gateway>, tls: Option<Tls>) {
    let (mut tokens, mut certificates) = (Told::default(), Told::default());
    loop {
        tokio::time::sleep(LOOK).await;
        tokens.tell("the tokens file was read again", gateway.refresh_tokens());
        if let Some(tls) = &tls {
            certificates.tell("the certificates were read again", tls.refresh());
        }
    }
}

/// A file that is looked at again and again.
#[derive(Default)]
struct Told(Option<String>);

impl Told {
    /// Says what a look has found. What is wrong is said once; everything stays as it was.
    fn tell(&mut self, news: &str, found: lockkeeper::Result<bool>) {
        match found {
            Ok(is_new) => {
                self.0 = None;
                if is_new {
                    output::say(news);
                }
            }
            Err(error) => {
                let text = error.to_string();
                if self.0.as_ref() != Some(&text) {
                    output::say(&text);
                    self.0 = Some(text);
                }
            }
        }
    }
}

/// The signals that end a service.
pub(super) struct End {
    interrupt: Signal,
    terminate: Signal,
}

impl End {
    pub(super) fn new() -> Result<Self, Failure> {
        let watch = |kind| signal(kind).map_err(|e| Failure::system(format!("signals cannot be watched: {e}")));
        Ok(Self { interrupt: watch(SignalKind::interrupt())?, terminate: watch(SignalKind::terminate())? })
    }

    pub(super) async fn wait(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

//! `serve`: locks over HTTP, for programs in any language.

use crate::args::{ServeArgs, ServeCommand};
use crate::exit::Failure;
use crate::{output, store};
use lockkeeper_server::auth::{Rule, Tokens, make};
use lockkeeper_server::{Accept, Audit, Gateway, Settings, Tls};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// How often the tokens file is looked at.
const LOOK: Duration = Duration::from_secs(2);

pub(crate) async fn serve(store: Option<&str>, args: ServeArgs) -> Result<u8, Failure> {
    if let Some(ServeCommand::Token { id, allow, expires }) = &args.command {
        return token(id, allow, expires.as_deref());
    }
    check(&args)?;
    let tokens = args.tokens.as_deref().map_or_else(|| Ok(Tokens::open()), Tokens::read)?;
    let tls = match (&args.tls_cert, &args.tls_key) {
        (Some(cert), Some(key)) => Some(Tls::read(cert, key, args.client_ca.as_deref())?),
        _ => None,
    };
    let audit = args.audit.as_deref().map_or_else(|| Ok(Audit::none()), audit)?;
    let mut settings = Settings::default();
    (settings.max_wait, settings.max_ttl) = (args.max_wait, args.max_ttl);
    settings.advertise = args.advertise.clone();
    let mut end = End::new()?;
    let chosen = store::choose(store)?;
    chosen.notices.iter().for_each(|notice| output::say(notice));
    let opened = lockkeeper::store::open(chosen.url()).await?;
    let scheme = opened.info().scheme;
    let gateway = Gateway::new(opened, settings, tokens, audit)?;
    let listener = TcpListener::bind(args.listen)
        .await
        .map_err(|e| Failure::config(format!("{} cannot be listened on: {e}", args.listen)))?;
    let at = listener.local_addr().map_err(|e| Failure::system(format!("the port is not known: {e}")))?;
    let secure = if tls.is_some() { "https" } else { "http" };
    output::say(&format!("serving {scheme} at {secure}://{at}"));
    tokio::spawn(refresh(gateway.clone()));
    let (accept, drain) = (Accept { gateway: gateway.clone(), listener, tls }, args.drain);
    accept
        .serve(async move {
            end.wait().await;
            gateway.drain();
            output::say("ending: new waits go elsewhere; a second signal ends at once");
            tokio::select! {
                () = tokio::time::sleep(drain) => {}
                () = end.wait() => {}
            }
        })
        .await;
    Ok(0)
}

/// Refuses what would put locks and secrets on a network in the clear.
fn check(args: &ServeArgs) -> Result<(), Failure> {
    if args.listen.ip().is_loopback() {
        return Ok(());
    }
    if args.tls_cert.is_none() {
        let text = format!("{} can be reached by other machines: --tls-cert and --tls-key are needed", args.listen);
        return Err(Failure::config(text));
    }
    if args.tokens.is_none() && args.client_ca.is_none() {
        let text = format!("{} can be reached by other machines: --tokens or --client-ca is needed", args.listen);
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

/// Reads the tokens file again when it changes.
async fn refresh(gateway: Arc<Gateway>) {
    let mut told = None;
    loop {
        tokio::time::sleep(LOOK).await;
        match gateway.refresh_tokens() {
            Ok(true) => output::say("the tokens file was read again"),
            Ok(false) => told = None,
            // Said once; the tokens stay as they were.
            Err(error) => {
                let text = error.to_string();
                if told.as_ref() != Some(&text) {
                    output::say(&text);
                    told = Some(text);
                }
            }
        }
    }
}

/// The signals that end a service.
struct End {
    interrupt: Signal,
    terminate: Signal,
}

impl End {
    fn new() -> Result<Self, Failure> {
        let watch = |kind| signal(kind).map_err(|e| Failure::system(format!("signals cannot be watched: {e}")));
        Ok(Self { interrupt: watch(SignalKind::interrupt())?, terminate: watch(SignalKind::terminate())? })
    }

    async fn wait(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

//! A store, and what a request needs to act on it.

use crate::audit::Audit;
use crate::auth::Tokens;
use crate::carried::Carried;
use crate::hints::Hints;
use crate::limits::Limits;
use crate::metrics::{Counted, Exporter, Metrics};
use crate::poll::Poll;
use crate::seen::Seen;
use crate::ui::{Entry, Through, Ui};
use axum::http::HeaderValue;
use lockkeeper::store::{Event, Sink};
use lockkeeper::wire::Info;
use lockkeeper::{Error, Keeper, Result, Store, StoreInfo};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{Mutex, watch};
use tokio::task::AbortHandle;

/// How often claims that were not asked for lately are forgotten.
const SWEEP_EVERY: Duration = Duration::from_secs(30);

/// How often the store is asked whether it answers, and how long it may take.
const PROBE_EVERY: Duration = Duration::from_secs(1);
const PROBE_LIMIT: Duration = Duration::from_secs(10);

/// What an operator can choose.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Settings {
    /// The longest wait of one request. Default: 25 s, below the idle limits of common proxies.
    pub max_wait: Duration,
    /// The longest TTL that a client may ask for. Default: 5 min.
    pub max_ttl: Duration,
    /// Where clients reach this gateway past a balancer, to be told of hand-overs at once. Default: not said.
    pub advertise: Option<String>,
    /// What `/metrics` renders. Default: one of its own, which is not installed for the process.
    pub exporter: Exporter,
    /// Whether there are pages at `/`. Default: yes.
    pub ui: bool,
}

impl Default for Settings {
    fn default() -> Self {
        let (max_wait, max_ttl) = (Duration::from_secs(25), Duration::from_secs(300));
        Self { max_wait, max_ttl, advertise: None, exporter: Exporter::default(), ui: true }
    }
}

/// A store behind HTTP.
#[derive(Debug)]
pub struct Gateway {
    /// Eight hexadecimal digits, fresh for every start.
    pub(crate) id: String,
    /// The id as every answer has it.
    pub(crate) mark: HeaderValue,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) info: StoreInfo,
    pub(crate) settings: Settings,
    pub(crate) tokens: Tokens,
    pub(crate) hints: Arc<Hints>,
    pub(crate) limits: Limits,
    pub(crate) audit: Audit,
    pub(crate) metrics: Metrics,
    /// What happened to locks, for the pages.
    pub(crate) seen: Arc<Seen>,
    pub(crate) poll: Arc<Poll>,
    pub(crate) ui: Ui,
    /// Whether there is more than the pages.
    pub(crate) api: bool,
    /// When the store was asked last, and what it said.
    probed: Mutex<Option<(Instant, Result<()>)>>,
    draining: AtomicBool,
    /// What listens and sweeps; ended with the gateway.
    tasks: [AbortHandle; 2],
    closing: watch::Sender<bool>,
}

impl Gateway {
    /// A gateway of a store. Its hand-overs are listened for on the current Tokio runtime.
    ///
    /// # Errors
    /// `Unsupported` for a store whose locks would end with the gateway.
    pub fn new(store: Arc<dyn Store>, settings: Settings, tokens: Tokens, audit: Audit) -> Result<Arc<Self>> {
        let info = store.info();
        if !info.portable {
            // etcd can keep them for any client too.
            let instead = if info.scheme == "etcd" { "serve 'etcd://…?lease=claim'" } else { "connect directly" };
            return Err(Error::unsupported(format!(
                "{} keeps locks for one client: a gateway would lose them when it restarts; {instead}, or serve \
                 PostgreSQL, MySQL, Redis or SQLite",
                info.scheme
            )));
        }
        let entry = if tokens.is_open() { Entry::Open } else { Entry::Tokens };
        Self::over(store, settings, tokens, audit, Ui::new(entry)?, true)
    }

    /// The pages alone, of any store: they look at locks and break them, and take none. With them comes a key, which
    /// opens them once as `/?key=KEY`.
    ///
    /// # Errors
    /// `Unavailable` when the system has no random source.
    pub fn pages(keeper: Keeper, audit: Audit) -> Result<(Arc<Self>, String)> {
        let (ui, key) = Ui::behind_a_key()?;
        let gateway = Self::over(Arc::new(Through(keeper)), Settings::default(), Tokens::open(), audit, ui, false)?;
        Ok((gateway, key))
    }

    fn over(
        store: Arc<dyn Store>,
        settings: Settings,
        tokens: Tokens,
        audit: Audit,
        ui: Ui,
        api: bool,
    ) -> Result<Arc<Self>> {
        let info = store.info();
        let mut id = [0; 4];
        getrandom::fill(&mut id).map_err(|e| Error::unavailable(format!("the system's random source failed: {e}")))?;
        let id = lockkeeper::wire::hex(&id);
        let mark = HeaderValue::try_from(&id).map_err(|e| Error::unavailable("the id is no header").with_source(e))?;
        let (metrics, pushes) = (Metrics::new(&settings.exporter), Metrics::pushes(&settings.exporter));
        let store: Arc<dyn Store> = Arc::new(Counted::new(store, &settings.exporter));
        let hints = Arc::new(Hints::default());
        let (seen, poll) = (Arc::new(Seen::default()), Arc::new(Poll::new(store.clone())));
        let (tended, told, sights) = (store.clone(), hints.clone(), seen.clone());
        let tends = tokio::spawn(async move {
            tended
                .tend(Sink::new(move |event| {
                    heard(&sights, &told, &event);
                    pushes(told.tell(&event));
                }))
                .await
        });
        let swept = hints.clone();
        let sweeps = tokio::spawn(async move {
            loop {
                tokio::time::sleep(SWEEP_EVERY).await;
                swept.sweep();
            }
        });
        let tasks = [tends.abort_handle(), sweeps.abort_handle()];
        let (limits, draining, closing) = (Limits::default(), AtomicBool::new(false), watch::Sender::new(false));
        Ok(Arc::new(Self {
            id,
            mark,
            store,
            info,
            settings,
            tokens,
            hints,
            limits,
            audit,
            metrics,
            seen,
            poll,
            ui,
            api,
            probed: Mutex::default(),
            draining,
            tasks,
            closing,
        }))
    }

    /// What it says of itself and its store.
    pub(crate) fn describe(&self) -> Info {
        let mut info = self.info.clone();
        info.ttl_ceiling = info.ttl_ceiling.min(self.settings.max_ttl);
        Info::of(&info, self.id.clone(), self.store.registers().is_some())
    }

    /// Reads the tokens file again if it has changed; whether it has.
    ///
    /// # Errors
    /// What is wrong with it. The tokens stay as they were.
    pub fn refresh_tokens(&self) -> Result<bool> {
        self.tokens.refresh()
    }

    /// Says to balancers that requests are better sent elsewhere; everything is still answered.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// Whether [`drain`](Self::drain) or [`close`](Self::close) was called.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed) || self.is_closing()
    }

    /// Answers no new waits, and ends those under way; each keeps its place in line.
    pub fn close(&self) {
        self.closing.send_replace(true);
    }

    /// Whether [`close`](Self::close) was called.
    pub(crate) fn is_closing(&self) -> bool {
        *self.closing.borrow()
    }

    /// Ends when [`close`](Self::close) is called.
    pub(crate) async fn closed(&self) {
        // The sender lives as long as this.
        let _ = self.closing.subscribe().wait_for(|closing| *closing).await;
    }

    /// Whether the store answers. It is asked once a second at most: a balancer needs no token to ask us.
    pub(crate) async fn store_answers(&self) -> Result<()> {
        // Held while the store is asked, so that all who ask meanwhile share one answer.
        let mut probed = self.probed.lock().await;
        if let Some((at, answer)) = probed.as_ref()
            && at.elapsed() < PROBE_EVERY
        {
            return answer.clone();
        }
        let probe = self.act(|store| async move { store.list(b"lk-ready/", None).await });
        let late = || Err(Error::unavailable("the store did not answer in time"));
        let answer = tokio::time::timeout(PROBE_LIMIT, probe).await.unwrap_or_else(|_| late());
        let answer = answer.and_then(|page| page.map(drop));
        *probed = Some((Instant::now(), answer.clone()));
        answer
    }

    /// Acts on the store. A client that hangs up does not cut the call in half.
    pub(crate) fn act<T, F>(&self, act: impl FnOnce(Arc<dyn Store>) -> F) -> Carried<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        Carried::new(act(self.store.clone()))
    }
}

/// Remembers a loss that the store tells of.
fn heard(seen: &Seen, hints: &Hints, event: &Event) {
    if let Event::Lost(holder, reason) = event
        && let Some(name) = hints.name_of(*holder)
    {
        seen.lost(*holder, &name, *reason);
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

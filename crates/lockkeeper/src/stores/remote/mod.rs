//! Locks of any store behind `lockkeeper serve`.
//!
//! # Algorithm
//! Every call is one request with a batch of claims; calls of one claim are gathered while requests are under way. The
//! gateway carries it out on its own store and keeps nothing of it, so that the next call may go to another gateway of the
//! same store, and a gateway that ends takes no lock with it. Hand-overs come as events on one stream that stays open.
//!
//! # Time
//! The engine's stamps travel to the store and back untouched: a lease counts from before the request was sent.
//!
//! # Layout
//! That of the store behind the gateway.
//!
//! # Guarantee
//! That of the store behind the gateway.

mod calls;
mod checks;
mod events;
#[cfg(test)]
mod fuzz;
mod gather;
mod options;
mod registers;

use self::gather::{Gather, Step};
use self::options::Options;
use self::registers::Registers;
use crate::error::{Error, Result};
use crate::name::LockName;
use crate::register::Register;
use crate::store::{
    Attempt, Break, Check, Claim, Cursor, Page, Record, Release, Renewal, Runtime, Sink, Store, StoreInfo,
};
use crate::stores::shared::http::Http;
use crate::stores::shared::timing::ASK_LIMIT;
use crate::stores::shared::{connecting, lock};
use crate::token::{HolderId, Token};
use crate::wire::{Answer, Info, KEEPER_HEADER, Problem, WireLock, WirePage};
use async_trait::async_trait;
use hyper::header::{HeaderName, HeaderValue};
use hyper::{Method, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The name of this store in errors and metrics, also without TLS.
const SCHEME: &str = "https";

/// A request and its answer pass through one more program: below this, an engine would give up calls that are only late.
const TTL_FLOOR: Duration = Duration::from_secs(1);

/// How much longer a hand-over may take than at the store itself: what a stream that has to be opened again costs.
const SLACK: Duration = Duration::from_secs(1);

/// What was asked for, or the problem that a gateway tells instead; an error when it told neither.
type Asked<T> = Result<Result<T, Problem>>;

fn refused(problem: Problem) -> Error {
    problem.error().in_store(SCHEME)
}

/// One place where gateways of the same store are reached.
#[derive(Debug)]
struct Place {
    http: Http,
    path: String,
}

/// The gateway that a client was given, and the one that tells it events, if that has said where it is.
#[derive(Debug)]
struct Core {
    options: Options,
    base: Arc<Place>,
    direct: Mutex<Option<Arc<Place>>>,
    info: StoreInfo,
    registers: bool,
}

/// Locks of the store behind a gateway.
///
/// # Cancellation
/// Dropping the future of a call gives it up; the gateway may still carry it out.
#[derive(Debug)]
pub struct RemoteStore {
    core: Arc<Core>,
    acquires: Arc<Gather<Attempt>>,
    releases: Arc<Gather<Release>>,
    registers: Registers,
}

static ACQUIRE: Step<Attempt> = Step { path: "try-acquire", read: Answer::attempt, each_name_once: true };

static RELEASE: Step<Release> = Step { path: "release", read: Answer::release, each_name_once: false };

impl RemoteStore {
    /// Connects to a gateway, and asks it what its store can do.
    ///
    /// # Errors
    /// `InvalidConfig` for a URL that cannot work. `Denied` when the gateway refuses the token or one side the other's
    /// certificate. `Unavailable` when it cannot be reached. `Unexpected` when something else answers.
    pub async fn connect(url: &str) -> Result<Self> {
        let parts = crate::url::parse(url)?;
        Self::from_parts(&parts.scheme, &parts.raw_place, &parts.options).await
    }

    pub(crate) async fn from_parts(scheme: &str, place: &str, pairs: &[(String, String)]) -> Result<Self> {
        let mut options = Options::parse(scheme, place, pairs)?;
        let keeper = HeaderValue::try_from(HolderId::random()?.to_hex()).map_err(|_| options::URL.bad("no id"))?;
        options.peer.headers.insert(HeaderName::from_static(KEEPER_HEADER), keeper);
        let server = options.peer.server();
        let base = Arc::new(Place::new(&options));
        let place = base.clone();
        let asked = connecting::ask(async move { place.get::<Info>("/v1/info").await }).await;
        let said = asked.map_err(|e| e.in_store(SCHEME).during("connect").at(&server))?;
        let store = said.store_info(SCHEME);
        let info = StoreInfo {
            servers: server,
            runtime: Runtime::Tokio,
            ttl_floor: store.ttl_floor.max(TTL_FLOOR),
            hand_over_slack: store.hand_over_slack + SLACK,
            ..store
        };
        let core = Core { options, base, direct: Mutex::default(), info, registers: said.registers };
        let core = Arc::new(core);
        let (acquires, releases) = (Gather::new(&ACQUIRE), Gather::new(&RELEASE));
        Ok(Self { registers: Registers(core.clone()), acquires, releases, core })
    }
}

impl Place {
    fn new(options: &Options) -> Self {
        Self { http: Http::new(options.peer.clone()), path: options.path.clone() }
    }

    /// One request: what was asked for, or the problem that the gateway tells.
    async fn ask<T: DeserializeOwned>(&self, method: Method, path: &str, body: Vec<u8>, limit: Duration) -> Asked<T> {
        let answer = self.http.send(method, &format!("{}{path}", self.path), body, limit).await?;
        if answer.status == StatusCode::OK {
            let read = serde_json::from_slice(&answer.body);
            return Ok(Ok(read.map_err(|e| self.http.peer.not_it("such JSON").with_source(e))?));
        }
        match serde_json::from_slice::<Problem>(&answer.body).ok().filter(|problem| !problem.kind.is_empty()) {
            Some(problem) => Ok(Err(problem)),
            // A balancer between us may answer in its own words.
            None if matches!(answer.status.as_u16(), 429 | 502..=504) => {
                Err(Error::unavailable(format!("the gateway cannot be reached: HTTP {}", answer.status))
                    .in_store(SCHEME))
            }
            None => Err(self.http.peer.not_it(&format!("HTTP {}", answer.status))),
        }
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        self.ask(Method::GET, path, Vec::new(), ASK_LIMIT).await?.map_err(refused)
    }

    async fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize, limit: Duration) -> Asked<T> {
        let body = serde_json::to_vec(body).map_err(|e| self.http.peer.not_it("a request").with_source(e))?;
        self.ask(Method::POST, path, body, limit).await
    }
}

impl Core {
    /// Where calls go: to the gateway with our stream of events, so that it is the one that is told of our hand-overs.
    fn place(&self) -> Arc<Place> {
        lock(&self.direct).clone().unwrap_or_else(|| self.base.clone())
    }

    /// Calls go by the URL that we were given again.
    fn lose_direct(&self) {
        *lock(&self.direct) = None;
    }

    /// The same error, after which the next call goes by the URL that we were given.
    fn failed(&self, error: Error) -> Error {
        if error.is_retryable() {
            self.lose_direct();
        }
        error
    }

    async fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize, limit: Duration) -> Asked<T> {
        self.place().post(path, body, limit).await.map_err(|e| self.failed(e))
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        self.place().get(path).await.map_err(|e| self.failed(e))
    }
}

/// A value as it stands in a query.
fn in_query(field: &str, bytes: &[u8]) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~".contains(&b);
    match std::str::from_utf8(bytes) {
        Ok(_) => format!("{field}={}", crate::text::encode(bytes, b'%', plain)),
        Err(_) => format!("{field}_hex={}", crate::wire::hex(bytes)),
    }
}

#[async_trait]
impl Store for RemoteStore {
    fn info(&self) -> StoreInfo {
        self.core.info.clone()
    }

    async fn try_acquire(&self, claims: &[Claim]) -> Vec<Result<Attempt>> {
        self.acquires.send(&self.core, claims).await
    }

    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Renewal>> {
        self.core.batch("renew", claims, Answer::renewal).await
    }

    async fn release(&self, claims: &[Claim]) -> Vec<Result<Release>> {
        self.releases.send(&self.core, claims).await
    }

    async fn inspect(&self, name: &LockName) -> Result<Option<Record>> {
        let path = format!("/v1/lock?{}", in_query("name", name.as_bytes()));
        let record: Record = self.core.get::<WireLock>(&path).await?.try_into()?;
        Ok(Some(record).filter(|record| !record.holders.is_empty() || record.waiting > 0))
    }

    async fn list(&self, prefix: &[u8], cursor: Option<&Cursor>) -> Result<Page> {
        let cursor = cursor.map_or_else(String::new, |cursor| format!("&cursor={}", crate::wire::hex(&cursor.0)));
        let path = format!("/v1/locks?{}{cursor}", in_query("prefix", prefix));
        self.core.get::<WirePage>(&path).await?.try_into()
    }

    async fn break_lock(&self, name: &LockName, token: Token) -> Result<Break> {
        let (text, hex) = crate::wire::named(name.as_bytes());
        let why = "broken through the https:// store";
        let body = json!({ "name": text, "name_hex": hex, "token": token.get(), "why": why });
        match self.core.post::<calls::Broken>("/v1/break", &body, ASK_LIMIT).await? {
            Ok(broken) => Ok(Break::Broken(Token::new(broken.next_token)?)),
            Err(problem) if problem.kind == "not-held" => Ok(Break::NotHeld),
            Err(problem) => Err(refused(problem)),
        }
    }

    async fn tend(&self, events: Sink) {
        self.core.listen(&events).await;
    }

    fn registers(&self) -> Option<&dyn Register> {
        self.core.registers.then_some(&self.registers as &dyn Register)
    }

    async fn checks(&self, _: Duration) -> Vec<Check> {
        self.examine().await
    }
}

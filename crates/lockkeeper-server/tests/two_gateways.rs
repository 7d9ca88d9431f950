//! The suite of `lockkeeper::conformance` through two gateways of one store. Each call goes to either of them, and the
//! client's clock is months away from the gateways'.

use lockkeeper::conformance::Subject;
use lockkeeper::register::{Entry, Written};
use lockkeeper::store::{
    Attempt, Break, Claim, Cursor, Event, Grant, Page, Record, Release, Renewal, Sink, Stamp, StoreInfo,
};
use lockkeeper::stores::remote::RemoteStore;
use lockkeeper::{LockName, Pass, Register, Result, Store, Token, conformance_suite};
use lockkeeper_server::auth::Tokens;
use lockkeeper_server::{Accept, Audit, Gateway, Settings};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use testkit::{EtcdServer, MysqlServer, PostgresServer, RedisServer, TempDir};
use tokio::net::TcpListener;
use tokio::sync::OnceCell;

conformance_suite!(sqlite, Gateways::new(None));
conformance_suite!(redis, Gateways::new(Some(REDIS.url())));
conformance_suite!(postgres, Gateways::new(Some(POSTGRES.url())));
conformance_suite!(etcd, Gateways::new(Some(ETCD.url() + "?lease=claim")));
conformance_suite!(mysql, Gateways::new(Some(MYSQL.url() + "?ssl-mode=disabled")));

static REDIS: LazyLock<&RedisServer> = LazyLock::new(|| testkit::shared(RedisServer::new()));
static ETCD: LazyLock<&EtcdServer> = LazyLock::new(|| EtcdServer::new().share());
static MYSQL: LazyLock<&MysqlServer> = LazyLock::new(|| MysqlServer::new().share());
static POSTGRES: LazyLock<PostgresServer> = LazyLock::new(|| {
    let server = PostgresServer::with(&["max_connections=400"]);
    server.end_with_us();
    server
});

/// How far the client's clock is from the gateways'.
const SKEW: Duration = Duration::from_secs(400 * 24 * 3600);

/// Two gateways of one store; they end with the test's runtime.
struct Gateways {
    url: String,
    _dir: TempDir,
    urls: OnceCell<[String; 2]>,
}

impl Gateways {
    /// Of the store at a URL, or of an SQLite file of its own.
    fn new(url: Option<String>) -> Self {
        let dir = TempDir::new();
        let url = url.unwrap_or_else(|| format!("sqlite:{}", dir.join("locks.db").display()));
        Self { url, _dir: dir, urls: OnceCell::new() }
    }
}

/// Starts a gateway on the current runtime; its URL.
async fn gateway(url: &str) -> String {
    let store = lockkeeper::store::open(url).await.expect("the store");
    let mut settings = Settings::default();
    settings.max_ttl = Duration::from_secs(30 * 24 * 3600);
    let gateway = Gateway::new(store, settings, Tokens::open(), Audit::none()).expect("a gateway");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    tokio::spawn(Accept { gateway, listener, tls: None }.serve(std::future::pending()));
    url
}

#[async_trait::async_trait]
impl Subject for Gateways {
    async fn open(&self) -> Arc<dyn Store> {
        let urls = self.urls.get_or_init(async || [gateway(&self.url).await, gateway(&self.url).await]).await;
        let a = RemoteStore::connect(&urls[0]).await.expect("connected");
        let b = RemoteStore::connect(&urls[1]).await.expect("connected");
        Arc::new(Either { ways: [a, b], next: AtomicUsize::new(0) })
    }
}

/// Sends each call to either gateway, in turn, and moves the clock.
#[derive(Debug)]
struct Either {
    ways: [RemoteStore; 2],
    next: AtomicUsize,
}

impl Either {
    fn way(&self) -> &RemoteStore {
        &self.ways[self.next.fetch_add(1, Ordering::Relaxed) % 2]
    }

    fn register(&self) -> &dyn Register {
        self.way().registers().expect("both gateways have them, or none")
    }
}

fn there(claims: &[Claim]) -> Vec<Claim> {
    let moved = |claim: &Claim| {
        let mut claim = claim.clone();
        claim.stamp = claim.stamp.after(SKEW);
        claim
    };
    claims.iter().map(moved).collect()
}

fn back(grant: Grant) -> Grant {
    let stamp =
        Stamp::from_micros(grant.stamp.as_micros().saturating_sub(SKEW.as_micros().try_into().expect("months")));
    Grant { stamp, ..grant }
}

#[async_trait::async_trait]
impl Store for Either {
    fn info(&self) -> StoreInfo {
        self.ways[0].info()
    }

    async fn try_acquire(&self, claims: &[Claim]) -> Vec<Result<Attempt>> {
        let answers = self.way().try_acquire(&there(claims)).await;
        let moved = |attempt| match attempt {
            Attempt::Granted(grant) => Attempt::Granted(back(grant)),
            other => other,
        };
        answers.into_iter().map(|answer| answer.map(moved)).collect()
    }

    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Renewal>> {
        let answers = self.way().renew(&there(claims)).await;
        let moved = |renewal| match renewal {
            Renewal::Granted(grant) => Renewal::Granted(back(grant)),
            other => other,
        };
        answers.into_iter().map(|answer| answer.map(moved)).collect()
    }

    async fn release(&self, claims: &[Claim]) -> Vec<Result<Release>> {
        self.way().release(&there(claims)).await
    }

    async fn inspect(&self, name: &LockName) -> Result<Option<Record>> {
        self.way().inspect(name).await
    }

    async fn list(&self, prefix: &[u8], cursor: Option<&Cursor>) -> Result<Page> {
        self.way().list(prefix, cursor).await
    }

    async fn break_lock(&self, name: &LockName, token: Token) -> Result<Break> {
        self.way().break_lock(name, token).await
    }

    async fn checks(&self, ttl: std::time::Duration) -> Vec<lockkeeper::store::Check> {
        self.way().checks(ttl).await
    }

    async fn tend(&self, events: Sink) {
        let sink = || {
            let events = events.clone();
            Sink::new(move |event| {
                events.tell(match event {
                    Event::Granted(holder, grant) => Event::Granted(holder, back(grant)),
                    other => other,
                });
            })
        };
        tokio::join!(self.ways[0].tend(sink()), self.ways[1].tend(sink()));
    }

    fn registers(&self) -> Option<&dyn Register> {
        self.ways.iter().all(|way| way.registers().is_some()).then_some(self)
    }
}

/// What one gateway has written or fenced is so at the other one.
#[async_trait::async_trait]
impl Register for Either {
    async fn enter(&self, key: &LockName, pass: &Pass) -> Result<Entry> {
        self.register().enter(key, pass).await
    }

    async fn write(&self, key: &LockName, pass: &Pass, value: &[u8], ttl: Option<Duration>) -> Result<Written> {
        self.register().write(key, pass, value, ttl).await
    }

    async fn read(&self, key: &LockName) -> Result<Option<Vec<u8>>> {
        self.register().read(key).await
    }
}

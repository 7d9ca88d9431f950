//! The grants of `docs/stores/etcd.md`, exactly as they are written there, are enough; and errors name those that are
//! missing.

use lockkeeper::{Error, ErrorKind, Keeper};
use std::time::Duration;
use testkit::{EtcdServer, SOON};

const PAGE: &str = include_str!("../../../../docs/stores/etcd.md");
const TTL: Duration = Duration::from_secs(6);

/// The arguments of `etcdctl role grant-permission` in each console block of the page that has some.
fn blocks() -> Vec<Vec<Vec<&'static str>>> {
    let consoles = PAGE.split("```").filter_map(|part| part.strip_prefix("console\n"));
    let grants = |console: &'static str| {
        let commands = console.lines().filter_map(|line| line.strip_prefix("$ etcdctl "));
        let grants = commands.filter(|command| command.starts_with("role grant-permission "));
        grants.map(|line| line.split(' ').map(|word| word.trim_matches('"')).collect()).collect::<Vec<_>>()
    };
    consoles.map(grants).filter(|grants| !grants.is_empty()).collect()
}

/// A server with authentication, whose user `ann` has these rights and no others.
fn server(grants: &[Vec<&str>]) -> EtcdServer {
    let mut server = EtcdServer::new();
    let ctl = |line: &str| server.ctl(&line.split(' ').collect::<Vec<_>>());
    for line in ["user add root:geheim", "user grant-role root root", "user add ann:streng", "role add locks"] {
        ctl(line);
    }
    for grant in grants {
        server.ctl(grant);
    }
    ctl("user grant-role ann locks");
    ctl("auth enable");
    server.login("root:geheim");
    server
}

async fn ann(server: &EtcdServer, more: &str) -> Keeper {
    let url = format!("etcd://ann:streng@127.0.0.1:{}{more}", server.port());
    Keeper::builder().ttl(TTL).connect(url).await.expect("connected")
}

/// All that a keeper does with a lock, its line and its register.
async fn uses(keeper: &Keeper, other: &Keeper, name: &str) {
    let lock = || keeper.lock(name).wait(SOON);
    let guard = lock().acquire().await.expect(name);
    let next = other.lock(name).wait(SOON);
    let next = tokio::spawn(async move { next.acquire().await });
    assert!(keeper.inspect(name).await.expect(name).is_some());
    let (register, pass) = (keeper.register(name), guard.pass().expect("Exclusive"));
    register.enter(&pass).await.expect(name);
    register.write(&pass, b"1", None).await.expect(name);
    assert_eq!(register.read().await.expect(name).as_deref(), Some(&b"1"[..]));
    guard.release().await.expect(name);
    next.await.expect("a task").expect(name).release().await.expect(name);
    lock().shared().acquire().await.expect(name).release().await.expect(name);
    let broken = lock().permits(2).acquire().await.expect(name);
    keeper.break_lock(name, broken.token()).await.expect(name);
}

async fn refused(keeper: &Keeper, name: &str) -> Error {
    let error = keeper.lock(name).try_acquire().await.map(|_| ()).expect_err(name);
    assert_eq!(error.kind(), ErrorKind::Denied, "{error:?}");
    error
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_pages_grant_for_all_names_covers_all_names_and_ls() {
    let [all, _] = blocks().try_into().expect("two blocks of grants");
    let server = server(&all);
    let (a, b) = (ann(&server, "").await, ann(&server, "?lease=claim").await);
    for name in ["billing", "billing/42", "/billing", "100%/x"] {
        uses(&a, &b, name).await;
        uses(&b, &a, name).await;
    }
    let guard = a.lock("billing/42").acquire().await.expect("granted");
    let listed = a.list("", None).await.expect("allowed");
    assert_eq!(listed.records.len(), 1, "{listed:?}");
    guard.release().await.expect("released");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_pages_grants_for_one_beginning_cover_its_names_and_errors_name_the_others() {
    let [_, some] = blocks().try_into().expect("two blocks of grants");
    let server = server(&some);
    let (a, b) = (ann(&server, "").await, ann(&server, "?lease=claim").await);
    for name in ["billing", "billing/42", "billing-nightly", "billing/a/100%"] {
        uses(&a, &b, name).await;
        uses(&b, &a, name).await;
    }
    let guards = [a.lock("billing").acquire().await, a.lock("billing/42").acquire().await];
    assert_eq!(a.list("billing", None).await.expect("allowed").records.len(), 2);
    assert_eq!(a.list("billing/", None).await.expect("allowed").records.len(), 1);
    drop(guards);
    for (keeper, name, prefix) in [(&a, "orders", "'orders/'"), (&b, "orders/1", "'/orders%2F1/'")] {
        let error = refused(keeper, name).await.to_string();
        assert!(error.contains(&format!("needs readwrite on the prefixes {prefix} and '/lk/'")), "{error}");
    }
    let error = a.list("orders", None).await.map(|_| ()).expect_err("not allowed").to_string();
    assert!(error.contains("needs read on the prefixes '/orders' and 'orders'"), "{error}");
    let error = a.list("", None).await.map(|_| ()).expect_err("not allowed").to_string();
    assert!(error.contains("needs read on the prefix ''"), "{error}");
    let native = [ann(&server, "?names=native").await, ann(&server, "?names=native&lease=claim").await];
    uses(&native[0], &native[1], "billing/43").await;
}

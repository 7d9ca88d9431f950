//! What stores of servers share; each store says which of it it needs.

#[cfg(any(
    feature = "consul",
    feature = "etcd",
    feature = "mysql",
    feature = "postgres",
    feature = "redis",
    feature = "zookeeper",
    feature = "remote"
))]
pub(super) mod address;
#[cfg(any(feature = "consul", feature = "etcd", feature = "zookeeper"))]
pub(super) mod batch;
#[cfg(any(
    feature = "consul",
    feature = "etcd",
    feature = "mysql",
    feature = "postgres",
    feature = "redis",
    feature = "remote",
    feature = "sqlite",
    feature = "zookeeper"
))]
pub(super) mod checks;
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(super) mod clean;
#[cfg(any(
    feature = "consul",
    feature = "etcd",
    feature = "mysql",
    feature = "postgres",
    feature = "redis",
    feature = "remote"
))]
pub(super) mod connecting;
#[cfg(any(feature = "etcd", feature = "postgres", feature = "redis"))]
pub(super) mod connections;
#[cfg(all(
    test,
    any(
        feature = "consul",
        feature = "etcd",
        feature = "mysql",
        feature = "postgres",
        feature = "redis",
        feature = "zookeeper"
    )
))]
pub(super) mod fuzz;
#[cfg(any(feature = "consul", feature = "remote"))]
pub(super) mod http;
#[cfg(any(feature = "consul", feature = "etcd", feature = "zookeeper"))]
pub(super) mod inbox;
#[cfg(all(
    test,
    any(
        feature = "consul",
        feature = "etcd",
        feature = "mysql",
        feature = "postgres",
        feature = "redis",
        feature = "remote",
        feature = "zookeeper"
    )
))]
pub(super) mod options_tests;
#[cfg(any(feature = "consul", feature = "etcd", feature = "zookeeper"))]
pub(super) mod register;
#[cfg(any(
    feature = "consul",
    feature = "etcd",
    feature = "mysql",
    feature = "postgres",
    feature = "redis",
    feature = "remote"
))]
pub(super) mod server;
#[cfg(any(feature = "consul", feature = "etcd"))]
pub(super) mod session;
#[cfg(any(feature = "consul", feature = "etcd"))]
pub(super) mod sessions;
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) mod shedlock;
#[cfg(any(feature = "postgres", feature = "redis"))]
pub(super) mod silence;
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(super) mod sql;
#[cfg(any(feature = "consul", feature = "remote"))]
pub(super) mod timers;
#[cfg(any(
    feature = "consul",
    feature = "etcd",
    feature = "mysql",
    feature = "postgres",
    feature = "redis",
    feature = "zookeeper",
    feature = "remote"
))]
pub(super) mod timing;
#[cfg(any(
    feature = "consul",
    feature = "etcd",
    feature = "mysql",
    feature = "postgres",
    feature = "redis",
    feature = "remote"
))]
pub(super) mod tls_files;

#[cfg(any(feature = "consul", feature = "remote"))]
pub(super) mod tls;

/// Locks a table whose steps are never left half-way, so that going on after a panic is safe.
#[cfg(any(feature = "consul", feature = "etcd", feature = "remote", feature = "zookeeper"))]
pub(super) fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

//! `fence install` again, by several at once, and over a fence of layout 1 as earlier versions installed it: what was seen
//! and who may enter stay.

mod common;

use common::{Place, one_sentence};
use testkit::{Ended, MysqlServer, PostgresServer, Proc};

const POSTGRES: &str = include_str!("layout1/postgres.sql");
const MYSQL: &str = include_str!("layout1/mysql.sql");
const SQLITE: &str = include_str!("layout1/sqlite.sql");

fn ends(place: &Place, args: &[&str]) -> Ended {
    Proc::start(&mut place.bare(args)).wait()
}

/// `orders/42` has seen 33 of holder `aa` before; then a Shared holder with 34 enters, and 33 is refused. `run` runs SQL
/// as the application, whose rights were granted on layout 1; `enter` and `shared` write the calls.
fn upgrades(
    place: &Place,
    url: &str,
    run: &dyn Fn(&str) -> Result<String, String>,
    enter: &dyn Fn(u64) -> String,
    shared: &dyn Fn(u64) -> String,
) {
    run(&enter(33)).expect("layout 1 lets it in");
    one_sentence(&ends(place, &["fence", "status", url]), 78, "has layout 1; first: lockkeeper fence install");
    let installed = ends(place, &["fence", "install", url]);
    assert!(installed.code == Some(0) && installed.stdout.contains("is brought up to date"), "{installed:?}");
    assert!(installed.stdout.contains("(layout 2)"), "{installed:?}");
    let again = ends(place, &["fence", "install", url]);
    assert!(again.code == Some(0) && again.stdout.contains("was installed already"), "{again:?}");
    let status = ends(place, &["fence", "status", url]).stdout;
    let row: Vec<_> = status.lines().nth(1).unwrap_or_default().split_whitespace().take(4).collect();
    assert_eq!(row, ["orders/42", "33", "-", "redis"], "{status}");
    assert!(run(&enter(32)).is_err_and(|e| e.contains("LK001")), "what was seen is kept");
    run(&enter(33)).expect("the holder of before");
    run(&shared(34)).expect("the Shared holder");
    assert!(run(&enter(33)).is_err_and(|e| e.contains("LK001") && e.contains("Shared")));
    run(&enter(35)).expect("the next holder");
}

#[test]
fn an_older_fence_in_postgres_is_brought_up_to_date_in_place() {
    let (place, server) = (Place::new(), PostgresServer::new());
    server.sql(POSTGRES);
    server.sql("CREATE ROLE app LOGIN; GRANT SELECT, INSERT, UPDATE ON lockkeeper_fences TO app");
    let run = |sql: &str| server.try_sql(&format!("SET ROLE app; {sql}"));
    let enter = |token| format!("SELECT lockkeeper_fence('orders/42', {token}, 'aa', 'redis')");
    let shared = |token| format!("SELECT lockkeeper_fence_shared('orders/42', {token}, 'redis')");
    upgrades(&place, &server.url(), &run, &enter, &shared);
}

#[test]
fn an_older_fence_in_mariadb_is_brought_up_to_date_in_place() {
    let (place, server) = (Place::new(), MysqlServer::new());
    server.sql(MYSQL);
    let execute = "GRANT EXECUTE ON PROCEDURE test.lockkeeper_fence TO app@'127.0.0.1';
        GRANT EXECUTE ON PROCEDURE test.lockkeeper_fence_shared TO app@'127.0.0.1'";
    server.sql(&format!(
        "CREATE USER app@'127.0.0.1'; GRANT SELECT, INSERT, UPDATE ON test.lockkeeper_fences TO app@'127.0.0.1'; {execute}"
    ));
    let app = server.url().replace("root@", "app@");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let run = |sql: &str| {
        use mysql_async::prelude::Queryable as _;
        runtime.block_on(async {
            let mut connection = mysql_async::Conn::from_url(&app).await.map_err(|e| e.to_string())?;
            let done = connection.query_drop(sql).await.map_err(|e| e.to_string());
            // MySQL forgets who may call a procedure that is replaced, and the command says so.
            if server.is_mysql() && done.as_ref().is_err_and(|e| e.contains("execute command denied")) {
                server.sql(execute);
                return connection.query_drop(sql).await.map(|()| String::new()).map_err(|e| e.to_string());
            }
            done.map(|()| String::new())
        })
    };
    let enter = |token| format!("CALL lockkeeper_fence('orders/42', {token}, 'aa', 'redis')");
    let shared = |token| format!("CALL lockkeeper_fence_shared('orders/42', {token}, 'redis')");
    upgrades(&place, &server.url(), &run, &enter, &shared);
}

#[test]
fn an_older_fence_in_sqlite_is_brought_up_to_date_in_place() {
    let place = Place::new();
    let connection = rusqlite::Connection::open(place.dir.join("app.db")).unwrap();
    connection.execute_batch(SQLITE).unwrap();
    let run = |sql: &str| connection.execute_batch(sql).map(|()| String::new()).map_err(|e| e.to_string());
    let enter = |token| {
        let fence = "INSERT INTO lockkeeper_fence (resource, token, holder, store)";
        format!("{fence} VALUES ('orders/42', {token}, 'aa', 'redis')")
    };
    let shared = |token| {
        format!("INSERT INTO lockkeeper_fence_shared (resource, token, store) VALUES ('orders/42', {token}, 'redis')")
    };
    upgrades(&place, "sqlite:app.db", &run, &enter, &shared);
}

/// A reset needs no newer layout: it is for emergencies.
#[test]
fn an_older_fence_can_be_reset() {
    let place = Place::new();
    let connection = rusqlite::Connection::open(place.dir.join("app.db")).unwrap();
    connection.execute_batch(SQLITE).unwrap();
    connection.execute_batch("INSERT INTO lockkeeper_fence (resource, token) VALUES ('x', 33)").unwrap();
    let reset = ends(&place, &["fence", "reset", "--all", "sqlite:app.db"]);
    assert!(reset.code == Some(0) && reset.stdout.contains("(1)"), "{reset:?}");
}

/// All instances of an application bring it up to date when they start.
#[test]
fn several_may_bring_it_up_to_date_at_once() {
    let place = Place::new();
    let (postgres, mariadb) = (PostgresServer::new(), MysqlServer::new());
    postgres.sql(POSTGRES);
    mariadb.sql(MYSQL);
    let file = rusqlite::Connection::open(place.dir.join("app.db")).unwrap();
    file.execute_batch(SQLITE).unwrap();
    for url in [postgres.url(), mariadb.url(), "sqlite:app.db".to_owned()] {
        let started: Vec<_> = (0..4).map(|_| Proc::start(&mut place.bare(&["fence", "install", &url]))).collect();
        for ended in started.into_iter().map(Proc::wait) {
            assert_eq!(ended.code, Some(0), "{url}: {ended:?}");
        }
    }
    postgres.sql("SELECT lockkeeper_fence_shared('x', 1)");
    mariadb.sql("CALL lockkeeper_fence_shared('x', 1, NULL)");
}

/// An application that may call the procedures may still do so after the script was run again.
#[test]
fn running_the_script_again_takes_no_rights_away() {
    let (place, server) = (Place::new(), MysqlServer::new());
    let script = ends(&place, &["fence", "install", "--print", "mysql:"]).stdout;
    server.sql(&script);
    server.sql(
        "CREATE USER app; GRANT EXECUTE ON PROCEDURE test.lockkeeper_fence TO app;
         GRANT EXECUTE ON PROCEDURE test.lockkeeper_fence_shared TO app",
    );
    server.sql(&script);
    let grants = server.sql("SHOW GRANTS FOR app");
    // MySQL cannot replace a procedure.
    let kept = if server.is_mysql() { 0 } else { 2 };
    assert_eq!(grants.matches("GRANT EXECUTE ON PROCEDURE").count(), kept, "{grants}");
}

/// Four at the same time, as when all instances of an application start.
#[test]
fn several_may_install_at_once() {
    let place = Place::new();
    let (postgres, mariadb) = (PostgresServer::new(), MysqlServer::new());
    rusqlite::Connection::open(place.dir.join("app.db")).unwrap().execute_batch("CREATE TABLE mine (x)").unwrap();
    for url in [postgres.url(), mariadb.url(), "sqlite:app.db".to_owned()] {
        for round in 0..3 {
            if round > 0 && url.starts_with("mysql") {
                mariadb.sql("DROP VIEW lockkeeper_fence_version");
            }
            let started: Vec<_> = (0..4).map(|_| Proc::start(&mut place.bare(&["fence", "install", &url]))).collect();
            for ended in started.into_iter().map(Proc::wait) {
                assert_eq!(ended.code, Some(0), "{url}: {ended:?}");
            }
        }
    }
    postgres.sql("SELECT lockkeeper_fence('x', 1)");
    mariadb.sql("CALL lockkeeper_fence('x', 1, NULL, NULL)");
}

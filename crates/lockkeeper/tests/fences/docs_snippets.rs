//! The code of docs/fencing.md does what the page says, in every language.

use crate::installed::installed;
use crate::{RUNTIME, Shared, mariadb};
use lockkeeper::fence::postgres as fence;
use lockkeeper::{ErrorKind, Keeper};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use testkit::{PostgresServer, Proc, SOON, TempDir};

static SERVER: Shared<PostgresServer> = Shared::new();

/// One with orders in it: the page's resource has a fixed name, so each test has a database of its own.
fn database(name: &str) -> (Arc<PostgresServer>, String) {
    let server = SERVER.get(PostgresServer::new);
    server.sql(&format!("CREATE DATABASE {name}"));
    let url = format!("{}{name}", server.url().trim_end_matches("postgres"));
    let orders = format!(
        "{}; CREATE TABLE orders (id int, total bigint); INSERT INTO orders VALUES (42, 17)",
        fence::INSTALL_SQL
    );
    RUNTIME.block_on(async {
        let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
        RUNTIME.spawn(connection);
        client.batch_execute(&orders).await.unwrap();
    });
    (server, url)
}

fn total(url: &str) -> i64 {
    RUNTIME.block_on(async {
        let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
        RUNTIME.spawn(connection);
        client.query_one("SELECT total FROM orders WHERE id = 42", &[]).await.unwrap().get(0)
    })
}

/// A piece of code from the page: the one in a language that mentions a word.
pub(crate) fn code(language: &str, word: &str) -> String {
    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/fencing.md")).unwrap();
    let opening = format!("```{language}\n");
    let pieces = page.split(&opening).skip(1).filter_map(|rest| rest.split("```").next());
    let found: Vec<_> = pieces.filter(|piece| piece.contains(word)).collect();
    assert_eq!(found.len(), 1, "{language} with {word}");
    found[0].to_owned()
}

/// Runs a program that calls `settle` and answers `done` or `stale`: the later token first, then the earlier.
fn settles_once(mut program: impl FnMut() -> Command) {
    for (token, answer) in [("34", "done"), ("34", "done"), ("33", "stale")] {
        let ended = Proc::start(program().args([token, "00c0ffee"])).wait_for(SOON * 2);
        assert_eq!((ended.code, ended.stdout.trim()), (Some(0), answer), "{ended:?}");
    }
}

mod rust {
    #![allow(clippy::needless_pass_by_ref_mut, reason = "as the page has it")]
    include!("docs_snippet.rs");

    pub(super) async fn run(
        client: &mut tokio_postgres::Client,
        guard: &lockkeeper::Guard,
    ) -> Result<(), lockkeeper::Error> {
        settle(client, guard).await
    }
}

#[test]
fn rust_on_postgres() {
    assert_eq!(
        code("rust", "tokio_postgres::Client"),
        include_str!("docs_snippet.rs"),
        "the page and docs_snippet.rs differ"
    );
    let (_server, url) = database("rust_on_postgres");
    RUNTIME.block_on(async {
        let (mut client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
        RUNTIME.spawn(connection);
        // Two keepers on separate stores, as after a failover that lost a grant: both hold.
        let keepers = [Keeper::connect("memory:").await.unwrap(), Keeper::connect("memory:").await.unwrap()];
        let earlier = keepers[0].lock("orders/42").acquire().await.unwrap();
        let later = keepers[1].lock("orders/42").acquire().await.unwrap();
        assert!(earlier.token() < later.token());
        rust::run(&mut client, &earlier).await.unwrap();
        rust::run(&mut client, &later).await.unwrap();
        assert_eq!(rust::run(&mut client, &earlier).await.unwrap_err().kind(), ErrorKind::Stale);
    });
    assert_eq!(total(&url), 19);
}

#[test]
fn python_on_postgres() {
    let (_server, url) = database("python_on_postgres");
    let dir = TempDir::new();
    dir.write("orders.py", &code("python", "psycopg"));
    let main = dir.write(
        "main.py",
        "import sys, psycopg, orders\n\
         with psycopg.connect(sys.argv[1], autocommit=True) as connection:\n    \
             try:\n        \
                 orders.settle(connection, int(sys.argv[2]), sys.argv[3])\n        \
                 print('done')\n    \
             except orders.Stale:\n        \
                 print('stale')\n",
    );
    let python = installed("python", &["requirements.txt"]).join("bin/python");
    settles_once(|| {
        let mut command = Command::new(&python);
        command.arg(&main).arg(&url);
        command
    });
    assert_eq!(total(&url), 19);
}

#[test]
fn node_on_postgres() {
    let (_server, url) = database("node_on_postgres");
    let dir = TempDir::new();
    dir.write("orders.mjs", &code("js", "lockkeeper_fence"));
    let main = dir.write(
        "main.mjs",
        "import pg from 'pg';\nimport { settle, Stale } from './orders.mjs';\n\
         const [url, token, holder] = process.argv.slice(2);\n\
         const client = new pg.Client(url);\nawait client.connect();\n\
         try {\n  await settle(client, token, holder);\n  console.log('done');\n\
         } catch (error) {\n  if (!(error instanceof Stale)) throw error;\n  console.log('stale');\n}\n\
         await client.end();\n",
    );
    let packages = installed("node", &["package.json"]).join("node_modules");
    std::os::unix::fs::symlink(packages, dir.join("node_modules")).unwrap();
    settles_once(|| {
        let mut command = Command::new("node");
        command.arg(&main).arg(&url);
        command
    });
    assert_eq!(total(&url), 19);
}

#[test]
#[ignore = "needs Java and a driver from Maven: scripts/test-extended"]
fn java_on_postgres() {
    let (_server, url) = database("java_on_postgres");
    let dir = TempDir::new();
    dir.write("Orders.java", &code("java", "lockkeeper_fence"));
    dir.write(
        "Main.java",
        "public class Main {\n  public static void main(String[] args) throws Exception {\n    \
         try (var connection = java.sql.DriverManager.getConnection(args[0])) {\n      \
         try {\n        Orders.settle(connection, Long.parseLong(args[1]), args[2]);\n        \
         System.out.println(\"done\");\n      \
         } catch (Orders.Stale stale) {\n        System.out.println(\"stale\");\n      }\n    }\n  }\n}\n",
    );
    let driver = installed("jdbc", &["pom.xml"]).join("target/lib");
    let made = Proc::start(Command::new("javac").current_dir(dir.path()).args(["Orders.java", "Main.java"]))
        .wait_for(SOON * 4);
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    let jdbc = url.replace("postgres://postgres@", "jdbc:postgresql://") + "?user=postgres";
    settles_once(|| {
        let mut command = Command::new("java");
        command.current_dir(dir.path()).args(["-cp", &format!(".:{}/*", driver.display()), "Main", &jdbc]);
        command
    });
    assert_eq!(total(&url), 19);
}

#[test]
fn python_on_sqlite() {
    let dir = TempDir::new();
    let file = dir.join("app.db");
    let orders = "CREATE TABLE orders (id INTEGER, total INTEGER); INSERT INTO orders VALUES (42, 17);";
    let connection = rusqlite::Connection::open(&file).unwrap();
    connection.execute_batch(&format!("{}{orders}", lockkeeper::fence::sqlite::INSTALL_SQL)).unwrap();
    dir.write("orders.py", &code("python", "sqlite3"));
    let main = dir.write(
        "main.py",
        "import sys, sqlite3, orders\n\
         connection = sqlite3.connect(sys.argv[1], isolation_level=None)\n\
         try:\n    \
             orders.settle(connection, int(sys.argv[2]), sys.argv[3])\n    \
             print('done')\n\
         except orders.Stale:\n    \
             print('stale')\n",
    );
    settles_once(|| {
        let mut command = Command::new("python3");
        command.arg(&main).arg(&file);
        command
    });
    let total: i64 = connection.query_row("SELECT total FROM orders", [], |row| row.get(0)).unwrap();
    assert_eq!(total, 19);
    // The plain SQL statements, too.
    connection.execute_batch("DELETE FROM lockkeeper_fences").unwrap();
    connection.execute_batch(&code("sql", "INSERT INTO lockkeeper_fence (")).unwrap();
}

#[test]
fn sql_on_postgres_and_mariadb() {
    let (_server, url) = database("sql_on_postgres");
    RUNTIME.block_on(async {
        let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
        RUNTIME.spawn(connection);
        client.batch_execute(&code("sql", "SELECT lockkeeper_fence('orders/42'")).await.unwrap();
    });
    assert_eq!(total(&url), 18);
    let server = mariadb::server();
    server.sql(
        "DROP TABLE IF EXISTS orders; CREATE TABLE orders (id int, total bigint); INSERT INTO orders VALUES (42, 17)",
    );
    server.sql(&code("sql", "CALL lockkeeper_fence("));
    assert_eq!(server.sql("SELECT total FROM orders"), "18");
}

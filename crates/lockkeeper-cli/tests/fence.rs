//! `fence install|status|reset` on real databases, and what it says when that cannot work.

mod common;

use common::{Place, one_sentence};
use mysql_async::prelude::Queryable as _;
use std::process::Command;
use testkit::{Ended, MysqlServer, PgBouncer, PostgresServer, Proc, TempDir, certificates};

fn ends(place: &Place, args: &[&str]) -> Ended {
    Proc::start(&mut place.bare(args)).wait()
}

/// Install twice, look, reset: the same on every database. `enter` runs SQL there.
fn round(place: &Place, url: &str, word: &str, enter: impl Fn()) {
    for args in [&["fence", "status", url] as &[&str], &["fence", "reset", "--all", url]] {
        one_sentence(&ends(place, args), 78, "first: lockkeeper fence install");
    }
    let installed = ends(place, &["fence", "install", url]);
    assert!(installed.code == Some(0) && installed.stdout.contains("the fence is installed in"), "{installed:?}");
    let again = ends(place, &["fence", "install", url]);
    assert!(again.code == Some(0) && again.stdout.contains("was installed already"), "{again:?}");
    let object = ends(place, &["fence", "install", "--json", url]).stdout;
    assert_eq!(object, format!("{{\"changed\":false,\"database\":\"{word}\",\"layout\":2,\"v\":1}}\n"));
    one_sentence(&ends(place, &["fence", "status", url]), 0, "no holder has entered a fence");
    enter();
    let table = ends(place, &["fence", "status", url]);
    let lines: Vec<_> = table.stdout.lines().collect();
    assert_eq!(lines.len(), 4, "{table:?}");
    assert!(lines[0].starts_with("RESOURCE") && lines[0].contains("TOKEN"), "{table:?}");
    let shared: Vec<_> = lines[3].split_whitespace().take(3).collect();
    assert_eq!(shared, ["orders/44", "-", "9"], "{table:?}");
    assert!(lines[1].contains("orders/42") && lines[1].contains("1763166000123456") && lines[1].contains("redis"));
    assert!(lines[1].trim_end().ends_with('Z'), "{table:?}");
    let one = ends(place, &["fence", "status", "--resource", "orders/43", "--json", url]).stdout;
    assert!(
        one.contains("\"resource\":\"orders/43\"") && one.contains("\"token\":7") && !one.contains("orders/42"),
        "{one}"
    );
    assert!(one.contains("\"shared\":8"), "{one}");
    // The holder id is a secret while the lock is held.
    assert!(!table.stdout.contains("00c0ffee") && !one.contains("00c0ffee"), "{table:?} {one}");
    let reset = ends(place, &["fence", "reset", "--resource", "orders/42", url]);
    assert!(reset.code == Some(0) && reset.stdout.contains("reset the fence of 'orders/42' (1)"), "{reset:?}");
    one_sentence(&ends(place, &["fence", "reset", "--resource", "orders/42", url]), 1, "nothing to reset");
    let rest = ends(place, &["fence", "reset", "--all", "--json", url]);
    assert_eq!((rest.code, rest.stdout.as_str()), (Some(0), "{\"reset\":2,\"v\":1}\n"));
}

#[test]
fn on_postgres() {
    let (place, server) = (Place::new(), PostgresServer::new());
    let enter = || {
        server.sql("SELECT lockkeeper_fence('orders/42', 1763166000123456, '00c0ffee', 'redis')");
        server.sql("SELECT lockkeeper_fence('orders/43', 7, holder => '00c0ffee')");
        server.sql("SELECT lockkeeper_fence_shared('orders/43', 8); SELECT lockkeeper_fence_shared('orders/44', 9)");
    };
    round(&place, &server.url(), "postgres", enter);

    // Another schema, by name.
    let elsewhere = format!("{}?schema=Else%20where", server.url());
    one_sentence(&ends(&place, &["fence", "install", &elsewhere]), 78, "no such schema 'Else where'");
    server.sql("CREATE SCHEMA \"Else where\"");
    assert_eq!(ends(&place, &["fence", "install", &elsewhere]).code, Some(0));
    server.sql("SELECT \"Else where\".lockkeeper_fence('orders/44', 7)");
    let shown = ends(&place, &["fence", "status", &elsewhere]).stdout;
    assert!(shown.contains("orders/44"), "{shown}");

    // A newer layout is left alone.
    server.sql("CREATE OR REPLACE VIEW public.lockkeeper_fence_version AS SELECT 3 AS version");
    one_sentence(&ends(&place, &["fence", "install", &server.url()]), 70, "of a newer lockkeeper");

    // No rights, wrong password, no such database, not that database.
    server.sql("CREATE ROLE weak LOGIN");
    server.sql("CREATE DATABASE other");
    let weak = server.url().replace("postgres@", "weak@").replace("/postgres", "/other");
    one_sentence(&ends(&place, &["fence", "install", &weak]), 77, "permission denied for schema public");
    let absent = format!("{}absent", server.url().trim_end_matches("postgres"));
    one_sentence(&ends(&place, &["fence", "install", &absent]), 78, "\"absent\" does not exist");
    let mysql = server.url().replace("postgres://", "mysql://");
    one_sentence(&ends(&place, &["fence", "install", &mysql]), 69, "");
}

/// The sentence of the stores, with host and port or the socket, and without the login's secret.
#[test]
fn a_server_that_is_down_is_named_by_host_and_port() {
    let place = Place::new();
    let port = testkit::free_port();
    let file = place.dir.write("login", "hunter2\n").display().to_string();
    for scheme in ["postgres", "mysql"] {
        for host in ["127.0.0.1", "localhost"] {
            let url = format!("{scheme}://u@{host}:{port}/x?password_file={file}");
            for command in ["install", "status"] {
                let ended = ends(&place, &["fence", command, &url]);
                one_sentence(&ended, 69, &format!("nothing listens at {host}:{port}"));
                assert!(!ended.stderr.contains("hunter2") && !ended.stderr.contains("os error"), "{ended:?}");
            }
        }
    }
    let absent = place.dir.join("absent").display().to_string();
    let socket = format!("postgres://u@/x?socket={absent}");
    one_sentence(&ends(&place, &["fence", "status", &socket]), 69, &format!("listens at {absent}/.s.PGSQL.5432"));
    let socket = format!("mysql://u@/x?socket={absent}");
    one_sentence(&ends(&place, &["fence", "status", &socket]), 69, &format!("nothing listens at {absent}"));
}

/// The script of docs/fencing.md, as a command under the lock; then the same with the token of an earlier holder.
#[test]
fn a_script_under_run_enters_with_what_it_is_given() {
    let (place, server) = (Place::new(), PostgresServer::new());
    assert_eq!(ends(&place, &["fence", "install", &server.url()]).code, Some(0));
    server.sql("CREATE TABLE orders (id int, total bigint); INSERT INTO orders VALUES (42, 17)");
    let page = include_str!("../../../docs/fencing.md");
    let script = page.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
    let script = script.filter(|code| code.contains("LOCKKEEPER_TOKEN")).collect::<String>();
    place.dir.write("settle.sh", &script);
    let run = |args: &[&str]| {
        let mut command = place.lockkeeper(args);
        command.env("PGHOST", "127.0.0.1").env("PGPORT", server.port().to_string());
        Proc::start(command.env("PGUSER", "postgres").env("PGDATABASE", "postgres")).wait()
    };
    let keep = "echo $LOCKKEEPER_TOKEN $LOCKKEEPER_HOLDER > first; sh settle.sh";
    let first = run(&["run", "orders/42", "--", "sh", "-c", keep]);
    assert_eq!(first.code, Some(0), "{first:?}");
    assert_eq!(run(&["run", "orders/42", "--", "sh", "settle.sh"]).code, Some(0));
    let late =
        "read LOCKKEEPER_TOKEN LOCKKEEPER_HOLDER < first; export LOCKKEEPER_TOKEN LOCKKEEPER_HOLDER; sh settle.sh";
    let late = run(&["run", "orders/42", "--", "sh", "-c", late]);
    assert!(late.code == Some(3) && late.stderr.contains("LK001 token"), "{late:?}");
    assert_eq!(server.sql("SELECT total FROM orders"), "19");
}

#[test]
fn a_password_comes_from_a_file_or_the_environment() {
    let (place, server) = (Place::new(), PostgresServer::new());
    server.sql("CREATE ROLE me LOGIN SUPERUSER PASSWORD 'hunt er@2'");
    // From now on passwords are asked for.
    let hba = server.sql("SHOW hba_file");
    let rules = "local all all trust\nhost all me 127.0.0.1/32 scram-sha-256\nhost all all 127.0.0.1/32 trust\n";
    std::fs::write(hba, rules).unwrap();
    server.sql("SELECT pg_reload_conf()");
    let url = server.url().replace("postgres@", "me@");
    testkit::eventually(testkit::SOON, "a password is asked for", || {
        ends(&place, &["fence", "status", &url]).stderr.contains("password")
    });
    let file = place.dir.write("password", "hunt er@2\n");
    let by_file = format!("{url}?password_file={}", file.display());
    let ended = ends(&place, &["fence", "install", &by_file]);
    assert!(ended.code == Some(0) && ended.stderr.is_empty(), "{ended:?}");
    let ended = Proc::start(place.bare(&["fence", "install", &url]).env("PGPASSWORD", "hunt er@2")).wait();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let whole = place.dir.write("url", &url.replace("me@", "me:hunt%20er%402@"));
    std::fs::set_permissions(&whole, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let ended = Proc::start(place.bare(&["fence", "install"]).env("LOCKKEEPER_DATABASE_FILE", &whole)).wait();
    assert!(ended.code == Some(0) && ended.stderr.is_empty(), "{ended:?}");
    let ended = Proc::start(place.bare(&["fence", "install"]).env("LOCKKEEPER_DATABASE", &url)).wait();
    assert!(!ended.stdout.contains("installed"), "{ended:?}");
    // On the command line it works too, but is warned of; and it never shows.
    for password in ["hunt%20er%402", "hunter3"] {
        let argument = url.replace("me@", &format!("me:{password}@"));
        let ended = ends(&place, &["fence", "install", &argument]);
        assert!(ended.stderr.contains("to every user who can list processes"), "{ended:?}");
        assert_eq!(ended.code, Some(if password == "hunter3" { 77 } else { 0 }), "{ended:?}");
        assert!(!format!("{ended:?}").contains("hunt"), "{ended:?}");
    }
}

#[test]
fn on_mariadb() {
    let (place, server) = (Place::new(), MysqlServer::new());
    let enter = || {
        server.sql("CALL lockkeeper_fence('orders/42', 1763166000123456, '00c0ffee', 'redis')");
        server.sql("CALL lockkeeper_fence('orders/43', 7, '00c0ffee', NULL)");
        server.sql("CALL lockkeeper_fence_shared('orders/43', 8, NULL)");
        server.sql("CALL lockkeeper_fence_shared('orders/44', 9, NULL)");
    };
    round(&place, &server.url(), "mysql", enter);
    server.sql("CREATE USER weak@'127.0.0.1' IDENTIFIED BY 'hunter2'; GRANT SELECT ON test.* TO weak@'127.0.0.1'");
    server.sql("DROP VIEW lockkeeper_fence_version");
    let weak = server.url().replace("root@", "weak@");
    one_sentence(&ends(&place, &["fence", "install", &weak]), 77, "Access denied");
    let denied = Proc::start(place.bare(&["fence", "install", &weak]).env("MYSQL_PWD", "hunter2")).wait();
    one_sentence(&denied, 77, "denied");
    assert!(!denied.stderr.contains("hunter2"));
    let absent = server.url().replace("/test", "/absent");
    one_sentence(&ends(&place, &["fence", "install", &absent]), 78, "Unknown database");
    let socket = format!("mysql://root@/test?socket={}", server.dir().join("socket").display());
    assert_eq!(ends(&place, &["fence", "install", &socket]).code, Some(0));
    let postgres = server.url().replace("mysql://", "postgres://");
    assert_eq!(ends(&place, &["fence", "install", &postgres]).code, Some(69));
}

#[test]
fn on_sqlite() {
    let place = Place::new();
    let file = place.dir.join("app.db");
    one_sentence(&ends(&place, &["fence", "install", "sqlite:app.db"]), 78, "there is no such file");
    assert!(!file.exists());
    let open = || rusqlite::Connection::open(&file).unwrap();
    open().execute_batch("CREATE TABLE mine (x)").unwrap();
    let enter = || {
        let fence = "INSERT INTO lockkeeper_fence (resource, token, holder, store) VALUES";
        open().execute_batch(&format!("{fence} ('orders/42', 1763166000123456, '00c0ffee', 'redis')")).unwrap();
        open().execute_batch(&format!("{fence} ('orders/43', 7, '00c0ffee', NULL)")).unwrap();
        let shared = "INSERT INTO lockkeeper_fence_shared (resource, token) VALUES";
        open().execute_batch(&format!("{shared} ('orders/43', 8); {shared} ('orders/44', 9)")).unwrap();
    };
    round(&place, "sqlite:app.db", "sqlite", enter);
    place.dir.write(
        "notes.db",
        "this is not a database, but some notes of mine, long enough to have a header of 100 bytes\n",
    );
    one_sentence(&ends(&place, &["fence", "install", "sqlite:notes.db"]), 70, "not a database");
    assert_ne!(ends(&place, &["fence", "install", "sqlite:."]).code, Some(0));
}

/// A URL that works for `--store` works here, and what cannot is told in the same words.
#[test]
fn urls_are_those_of_the_store() {
    let (place, postgres, mariadb) = (Place::new(), PostgresServer::new(), MysqlServer::new());
    let directory = postgres.dir().path().display().to_string().replace('/', "%2F");
    let socket = format!("postgres://postgres@{directory}:{}/postgres", postgres.port());
    let socket_too = format!("mysql://root@localhost/test?socket={}", mariadb.dir().join("socket").display());
    for url in [&socket, &socket_too, &format!("{}?ssl-mode=disabled", mariadb.url())] {
        assert_eq!(ends(&place, &["fence", "install", url]).code, Some(0), "{url}");
        assert_eq!(place.ends(&["run", "--store", url, "x", "--", "true"]).code, Some(0), "{url}");
    }
    let at = postgres.url();
    for (url, part) in [
        (format!("{at}?schema=public&schema=x"), "the option 'schema' is given twice"),
        (format!("{at}?sslmode=disable&sslmode=disable"), "the option 'sslmode' is given twice"),
        (format!("{at}?sslmode=verify-full&sslrootcert=absent"), "cannot read certificates from sslrootcert 'absent'"),
        (format!("{}?ssl-ca=absent", mariadb.url()), "cannot read certificates from ssl-ca 'absent'"),
        (format!("{}?ssl-mode=perhaps", mariadb.url()), "ssl-mode 'perhaps' is not known"),
        (at.replace("127.0.0.1", "127.0.0.1,127.0.0.1"), "several hosts"),
        (at.replace("127.0.0.1", "127.0.0.1:1,127.0.0.1"), "several hosts"),
        (mariadb.url().replace("127.0.0.1", "127.0.0.1:1,127.0.0.1"), "several hosts"),
    ] {
        one_sentence(&ends(&place, &["fence", "status", &url]), 78, part);
    }
}

#[test]
fn why_a_server_cannot_is_told_apart() {
    let (place, server) = (Place::new(), PostgresServer::new());
    server.sql("CREATE ROLE still SUPERUSER LOGIN; ALTER ROLE still SET default_transaction_read_only = on");
    let still = server.url().replace("postgres@", "still@");
    one_sentence(&ends(&place, &["fence", "install", &still]), 69, "read-only");
    std::fs::write(server.sql("SHOW hba_file"), "local all all trust\nhost all still 127.0.0.1/32 scram-sha-256\n")
        .unwrap();
    server.sql("SELECT pg_reload_conf()");
    testkit::eventually(testkit::SOON, "a password is asked for", || {
        ends(&place, &["fence", "status", &still]).stderr.contains("password")
    });
    one_sentence(&ends(&place, &["fence", "status", &still]), 77, "asks for a password, and none was given");
}

#[test]
fn the_servers_sql_mode_is_not_the_procedures() {
    let (place, server) = (Place::new(), MysqlServer::new());
    let modes: &[&str] = if server.is_mysql() { &["", "ANSI"] } else { &["", "ANSI", "ORACLE"] };
    for mode in modes {
        server.sql(&format!("SET GLOBAL sql_mode = '{mode}'; DROP VIEW IF EXISTS lockkeeper_fence_version"));
        let ended = ends(&place, &["fence", "install", &server.url()]);
        assert!(ended.code == Some(0) && ended.stdout.contains("is installed"), "{mode}: {ended:?}");
        server.sql("CALL lockkeeper_fence('x', 5, NULL, NULL)");
        let used =
            "SELECT DISTINCT sql_mode FROM information_schema.routines WHERE routine_name LIKE 'lockkeeper\\_fence%'";
        assert_eq!(server.sql(used), "STRICT_ALL_TABLES", "{mode}");
    }
}

#[test]
fn what_is_printed_can_be_run_by_somebody_else() {
    let place = Place::new();
    let text = |url: &str| {
        let ended = ends(&place, &["fence", "install", "--print", url]);
        assert!(ended.code == Some(0) && ended.stderr.is_empty(), "{ended:?}");
        ended.stdout
    };
    rusqlite::Connection::open_in_memory().unwrap().execute_batch(&text("sqlite:")).unwrap();
    let (postgres, mariadb) = (PostgresServer::new(), MysqlServer::new());
    postgres.sql(&text("postgres:"));
    mariadb.sql(&text("mariadb://host/db"));
    one_sentence(&ends(&place, &["fence", "status", &postgres.url()]), 0, "no holder has entered a fence");
    one_sentence(&ends(&place, &["fence", "status", &mariadb.url()]), 0, "no holder has entered a fence");
    assert_eq!(text("mysql:"), text("mariadb:"));
}

#[test]
fn wrong_command_lines() {
    let place = Place::new();
    for (args, code, part) in [
        (vec!["fence"], 64, "install, status or reset"),
        (vec!["fence", "dance"], 64, "known are install, status and reset"),
        (vec!["fence", "install"], 64, "name the database"),
        (vec!["fence", "reset", "sqlite:x"], 64, "--resource"),
        (vec!["fence", "reset", "--all", "--resource", "x", "sqlite:x"], 64, "cannot be used"),
        (vec!["fence", "install", "redis://:hunter2@h"], 78, ""),
        (vec!["fence", "install", "app.db"], 78, "begins with its kind"),
    ] {
        let ended = ends(&place, &args);
        assert_eq!(ended.code, Some(code), "{args:?}: {ended:?}");
        assert!(ended.stderr.contains(part) && !ended.stderr.contains("hunter2"), "{args:?}: {ended:?}");
    }
}

#[test]
fn tls_checks_the_server() {
    let place = Place::new();
    let mariadb = MysqlServer::with_tls_only();
    mariadb.sql("CREATE USER tls@'127.0.0.1' REQUIRE SSL; GRANT ALL ON test.* TO tls@'127.0.0.1'");
    let file = |name: &str| mariadb.dir().join(name).display().to_string();
    let url = mariadb.url().replace("root@", "tls@");
    trusted_only(&place, &url, &file("ca.crt"), &file("other.crt"));
    // A socket has none, whatever host the URL has besides.
    let socket = format!("mysql://root@db.internal/test?socket={}", file("socket"));
    assert_eq!(ends(&place, &["fence", "status", &socket]).code, Some(0));

    let postgres = PostgresServer::new();
    let dir = TempDir::new();
    certificates(&dir);
    let key = dir.join("server.key");
    // A server takes its key only if nobody else can read it.
    let own = "chmod 0600 \"$1\"; if [ \"$(id -u)\" = 0 ]; then chown postgres \"$1\"; fi";
    assert!(Command::new("sh").args(["-c", own, "sh"]).arg(&key).status().unwrap().success());
    let set = |name: &str, file: &std::path::Path| {
        postgres.sql(&format!("ALTER SYSTEM SET {name} = '{}'", file.display()));
    };
    set("ssl_cert_file", &dir.join("server.crt"));
    set("ssl_key_file", &key);
    postgres.sql("ALTER SYSTEM SET ssl = on");
    postgres.sql("SELECT pg_reload_conf()");
    testkit::eventually(testkit::SOON, "TLS is on", || postgres.sql("SHOW ssl") == "on");
    let file = |name: &str| dir.join(name).display().to_string();
    trusted_only(&place, &postgres.url(), &file("ca.crt"), &file("other.crt"));
}

fn trusted_only(place: &Place, url: &str, authority: &str, other: &str) {
    let good = ends(place, &["fence", "install", &format!("{url}?ca_file={authority}")]);
    assert_eq!(good.code, Some(0), "{good:?}");
    for wrong in [format!("{url}?ca_file={other}"), format!("{url}?sslmode=require")] {
        let ended = ends(place, &["fence", "status", &wrong]);
        assert!(ended.code == Some(69) && ended.stderr.contains("certificate"), "{wrong}: {ended:?}");
    }
    one_sentence(&ends(place, &["fence", "status", &format!("{url}?ca_file=absent")]), 78, "cannot read certificates");
}

/// Sessions of a pooler are somebody else's next: nothing of ours may stay in them.
#[test]
fn behind_a_pooler_nothing_is_left_in_its_sessions() {
    let (place, server) = (Place::new(), PostgresServer::new());
    server.sql("CREATE SCHEMA mine");
    let bouncer = PgBouncer::new(&server, 1);
    let url = format!("{}?schema=mine", bouncer.url());
    assert_eq!(ends(&place, &["fence", "install", &url]).code, Some(0));
    server.sql("SELECT mine.lockkeeper_fence('x', 1)");
    let status = ends(&place, &["fence", "status", &url]);
    assert!(status.code == Some(0) && status.stdout.contains('x'), "{status:?}");
    assert_eq!(ends(&place, &["fence", "reset", "--all", &url]).code, Some(0));
    let ask = "SELECT current_schema(), current_setting('lock_timeout')";
    let next = Proc::start(Command::new("psql").arg(bouncer.url()).args(["-qXAt", "-c", ask])).wait();
    assert_eq!(next.stdout.trim(), "public|0", "{next:?}");
}

/// A reset that waited in vain says so, and must not be done later, when nobody expects it any more.
#[test]
fn a_reset_that_was_given_up_is_not_done_later() {
    let place = Place::new();
    let (postgres, mariadb) = (PostgresServer::new(), MysqlServer::new());
    let file = rusqlite::Connection::open(place.dir.join("app.db")).unwrap();
    file.execute_batch("CREATE TABLE mine (x)").unwrap();
    let urls = [postgres.url(), mariadb.url(), "sqlite:app.db".to_owned()];
    for url in &urls {
        assert_eq!(ends(&place, &["fence", "install", url]).code, Some(0));
    }
    file.execute_batch("BEGIN; INSERT INTO lockkeeper_fence (resource, token) VALUES ('x', 34)").unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (one, mut two) = runtime.block_on(async {
        let (client, connection) = tokio_postgres::connect(&urls[0], tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        for text in ["SELECT lockkeeper_fence('x', 33)", "BEGIN", "SELECT lockkeeper_fence('x', 34)"] {
            client.batch_execute(text).await.unwrap();
        }
        let mut connection = mysql_async::Conn::from_url(&urls[1]).await.unwrap();
        for text in
            ["CALL lockkeeper_fence('x', 33, NULL, NULL)", "BEGIN", "CALL lockkeeper_fence('x', 34, NULL, NULL)"]
        {
            connection.query_drop(text).await.unwrap();
        }
        (client, connection)
    });
    let resets = urls.map(|url| Proc::start(&mut place.bare(&["fence", "reset", "--resource", "x", &url])));
    for ended in resets.map(Proc::wait) {
        one_sentence(&ended, 69, "has not finished within 10s; nothing was changed");
    }
    file.execute_batch("COMMIT").unwrap();
    runtime.block_on(async {
        one.batch_execute("COMMIT").await.unwrap();
        two.query_drop("COMMIT").await.unwrap();
    });
    let ours = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'lockkeeper'";
    testkit::eventually(testkit::SOON, "no session is left in PostgreSQL", || postgres.sql(ours) == "0");
    let theirs = "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE 'DELETE%'";
    testkit::eventually(testkit::SOON, "no session is left in MariaDB", || mariadb.sql(theirs) == "0");
    let count = file.query_row("SELECT count(*) FROM lockkeeper_fences", [], |row| row.get::<_, i64>(0));
    assert_eq!(count, Ok(1));
    assert_eq!(postgres.sql("SELECT token FROM lockkeeper_fences"), "34");
    assert_eq!(mariadb.sql("SELECT token FROM lockkeeper_fences"), "34");
}

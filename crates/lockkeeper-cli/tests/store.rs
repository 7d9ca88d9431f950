//! `store init` against real servers, and what a role without rights is told.

mod common;

use common::{Place, one_sentence};
use testkit::{Ended, MysqlServer, PostgresServer};

#[test]
fn a_privileged_role_makes_the_tables_and_another_uses_them() {
    let (place, server) = (Place::new(), PostgresServer::new());
    server.sql("CREATE ROLE app LOGIN");
    let (owner, app) = (server.url(), server.url().replace("postgres@", "app@"));
    let run = || place.ends(&["run", "--store", &app, "x", "--", "sh", "-c", "echo $LOCKKEEPER_TOKEN"]);
    one_sentence(&run(), 77, "run `lockkeeper store init URL` once");
    for _ in 0..2 {
        let made = place.ends(&["store", "init", &owner]);
        assert_eq!((made.code, made.stdout.as_str(), made.stderr.as_str()), (Some(0), "the store is ready\n", ""));
    }
    one_sentence(&run(), 77, "permission denied for schema lockkeeper");
    server.sql(
        "GRANT USAGE ON SCHEMA lockkeeper TO app;
         GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA lockkeeper TO app",
    );
    let ran = run();
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stdout.trim().parse::<u64>().is_ok_and(|token| token > 0), "{ran:?}");
    // Where nothing is needed, nothing is done.
    assert_eq!(place.ends(&["store", "init"]).code, Some(0));
}

/// A table that somebody has dropped: errors advise `store init`, so it must help.
#[test]
fn what_was_dropped_by_hand_is_made_again() {
    let (place, postgres, mariadb) = (Place::new(), PostgresServer::new(), MysqlServer::new());
    let init = |url: &str| place.ends(&["store", "init", url]);
    let run = |url: &str| place.ends(&["run", "--store", url, "x", "--", "true"]);
    let ready = |ended: &Ended| assert_eq!(ended.stdout, "the store is ready\n", "{ended:?}");
    let (url, shed) = (postgres.url(), format!("{}?layout=shedlock", postgres.url()));
    for dropped in
        ["TABLE lock", "TABLE claim", "TABLE register", "FUNCTION renew", "TABLE advisory", "TABLE shed", "VIEW locks"]
    {
        ready(&init(&url));
        let (kind, name) = dropped.split_once(' ').unwrap();
        postgres.sql(&format!("DROP {kind} lockkeeper.{name} CASCADE"));
        ready(&init(&url));
        for args in [["ls", "--store", &url], ["ls", "--store", &format!("{url}?mode=advisory")]] {
            assert_eq!(place.ends(&args).code, Some(0), "{dropped}");
        }
        for url in [&url, &shed] {
            assert_eq!(run(url).code, Some(0), "{dropped}: {:?}", run(url));
        }
    }
    // What is there is left as it is.
    let token = "SELECT token FROM lockkeeper.lock WHERE name = 'x'";
    let before = postgres.sql(token);
    ready(&init(&url));
    assert_eq!(postgres.sql(token), before);
    let url = mariadb.url();
    for dropped in ["TABLE lockkeeper_lock", "TABLE lockkeeper_claim", "PROCEDURE lockkeeper_step"] {
        ready(&init(&url));
        mariadb.sql(&format!("DROP {dropped}"));
        // Whether somebody holds or waits needs all of them; taking a free lock does not.
        one_sentence(&place.ends(&["ls", "--store", &url]), 70, "`lockkeeper store init` makes them");
        ready(&init(&url));
        assert_eq!(run(&url).code, Some(0), "{dropped}");
    }
    ready(&init(&format!("{url}?mode=get_lock")));
}

/// A role that may use a store, but not make it, learns whether everything is there.
#[test]
fn a_role_that_may_not_make_what_is_missing_is_told() {
    let (place, postgres, mariadb) = (Place::new(), PostgresServer::new(), MysqlServer::new());
    let init = |url: &str| place.ends(&["store", "init", url]);
    assert_eq!((init(&postgres.url()).code, init(&mariadb.url()).code), (Some(0), Some(0)));
    postgres.sql(
        "CREATE ROLE app LOGIN; GRANT USAGE ON SCHEMA lockkeeper TO app;
         GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA lockkeeper TO app",
    );
    mariadb.sql("CREATE USER app; GRANT SELECT, INSERT, UPDATE, DELETE, EXECUTE ON test.* TO app");
    let (app, too) = (postgres.url().replace("postgres@", "app@"), mariadb.url().replace("root@", "app@"));
    assert_eq!((init(&app).code, init(&too).code), (Some(0), Some(0)), "{:?} {:?}", init(&app), init(&too));
    postgres.sql("DROP TABLE lockkeeper.register");
    mariadb.sql("DROP TABLE lockkeeper_claim");
    one_sentence(&init(&app), 77, "lacks tables or functions, and this role may not make them");
    one_sentence(&init(&too), 70, "lockkeeper_claim");
}

/// Procedures know one table of ShedLock's, and one zone: whoever names others must get others.
#[test]
fn each_table_of_shedlock_is_the_one_that_was_named() {
    let (place, server) = (Place::new(), MysqlServer::new());
    let run = |options: &str, name: &str| {
        let url = format!("{}?layout=shedlock{options}", server.url());
        place.ends(&["run", "--store", &url, name, "--", "true"])
    };
    // A zone that cannot be is trouble for its own users only.
    one_sentence(&run("&time_zone=Mars/North", "x"), 78, "does not know time_zone");
    for (options, name) in [("", "a"), ("&table=one", "b"), ("&table=two", "c"), ("&table=one&time_zone=%2B05:00", "d")]
    {
        let ended = run(options, name);
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{options}");
    }
    for (table, names) in [("shedlock", "a"), ("one", "b\nd"), ("two", "c")] {
        assert_eq!(server.sql(&format!("SELECT name FROM {table} WHERE name <> 'x' ORDER BY name")), names, "{table}");
    }
    // What the server's zone calls now, five hours to the west of what it is.
    let d = "(SELECT locked_at FROM one WHERE name = 'd')";
    let off = format!("SELECT ROUND(TIMESTAMPDIFF(SECOND, {d}, locked_at) / 3600) FROM one WHERE name = 'b'");
    assert_eq!(server.sql(&off), "5");
}

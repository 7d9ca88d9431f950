//! PostgreSQL, a pooler before it, and MariaDB.

use super::Report;
use super::common::Place;
use testkit::{MysqlServer, PgBouncer, PostgresServer};

#[test]
fn a_postgres_that_does_not_wait_for_its_disk_and_a_pooler_are_found() {
    let (place, server) = (Place::new(), PostgresServer::with(&["fsync=on"]));
    let pooler = PgBouncer::new(&server, 2);
    server.sql("ALTER ROLE postgres SET synchronous_commit = off; ALTER ROLE postgres SET statement_timeout = '5s'");
    let bad = Report::of(&place, &pooler.url(), &[]);
    assert_eq!((bad.code, bad.json["guarantee"].as_str()), (1, Some("primary")), "{bad:?}");
    bad.is("postgres-durability", "warn");
    bad.is("postgres-timeouts", "warn");
    bad.found("postgres-timeouts", "statement_timeout 5.0s");
    bad.is("postgres-pooler", "note");
    bad.is("cycle", "ok");
    server.sql("ALTER ROLE postgres RESET ALL");
    let sessions = Report::of(&place, &format!("{}?mode=advisory", pooler.url()), &[]);
    for id in ["postgres-pooler", "cycle"] {
        sessions.is(id, "fail");
    }
    sessions.is("postgres-dead-clients", "note");
    let fine = Report::of(&place, &server.url(), &[]);
    for id in ["postgres-durability", "postgres-timeouts", "postgres-pooler", "postgres-rights", "clock-offset"] {
        fine.is(id, "ok");
    }
    assert_eq!((fine.code, fine.json["guarantee"].as_str()), (0, Some("durable")), "{fine:?}");
}

#[test]
fn a_role_without_a_right_is_found() {
    let (place, server) = (Place::new(), PostgresServer::new());
    assert_eq!(place.ends(&["store", "init", &server.url()]).code, Some(0));
    server.sql(
        "CREATE ROLE app LOGIN; GRANT USAGE ON SCHEMA lockkeeper TO app;
         GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA lockkeeper TO app",
    );
    let url = server.url().replace("postgres@", "app@");
    server.sql("REVOKE INSERT, UPDATE ON lockkeeper.register FROM app");
    let refused = Report::of(&place, &url, &[]);
    assert_eq!(refused.code, 2);
    refused.is("postgres-rights", "fail");
    refused.found("postgres-rights", "INSERT on register, UPDATE on register");
    refused.is("registers", "fail");
    // The servers of our tests do not wait for the disk.
    refused.is("postgres-durability", "warn");
    refused.found("postgres-durability", "fsync off");
    server.sql("GRANT INSERT, UPDATE ON lockkeeper.register TO app");
    let granted = Report::of(&place, &url, &[]);
    granted.is("postgres-rights", "ok");
    granted.is("registers", "ok");
}

#[test]
fn a_mariadb_that_forgets_or_refuses_is_found() {
    let (place, server) = (Place::new(), MysqlServer::new());
    let report = || Report::of(&place, &server.url(), &[]);
    assert_eq!(place.ends(&["store", "init", &server.url()]).code, Some(0));
    server.sql("ALTER TABLE lockkeeper_register ENGINE = MyISAM");
    server.sql("SET GLOBAL innodb_flush_log_at_trx_commit = 2; SET GLOBAL read_only = 1");
    let bad = report();
    bad.is("mysql-durability", "warn");
    bad.is("mysql-read-only", "fail");
    bad.is("mysql-engine", "fail");
    bad.found("mysql-engine", "lockkeeper_register is MyISAM");
    server.sql("SET GLOBAL innodb_flush_log_at_trx_commit = 1; SET GLOBAL read_only = 0");
    server.sql("ALTER TABLE lockkeeper_register ENGINE = InnoDB");
    let fine = report();
    for id in
        ["mysql-durability", "mysql-read-only", "mysql-one-server", "mysql-engine", "mysql-galera", "clock-offset"]
    {
        fine.is(id, "ok");
    }
    assert_eq!(fine.code, 0, "{fine:?}");
    let sessions = Report::of(&place, &format!("{}?mode=get_lock", server.url()), &[]);
    sessions.is("cycle", "ok");
    sessions.is("mysql-engine", "ok");
}

//! `store init` against real servers, and what a role without rights is told.

mod common;

use common::{Place, one_sentence};
use testkit::PostgresServer;

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

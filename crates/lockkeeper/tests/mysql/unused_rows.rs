//! What the MySQL stores remove when nothing uses it any more.

use lockkeeper::stores::mysql::MysqlStore;
use testkit::MysqlServer;

/// More than one round removes.
const OLD: u32 = 2500;

#[tokio::test]
async fn old_registers_and_session_rows_are_removed_round_by_round() {
    let server = MysqlServer::new();
    let store = MysqlStore::connect(&server.url()).await.expect("connected");
    let rows = |row: fn(u32) -> String| (0..OLD).map(row).collect::<Vec<_>>().join(",");
    let tables = [
        ("register", "(name, locked, token, holder, used)", rows(|i| format!("('old/{i}', 'lock', 1, 'x', 1)"))),
        (
            "session",
            "(name, lock_key, token, holder, session, since)",
            rows(|i| format!("('old/{i}', 'old/{i}', 1, 'x', 'x', 1)")),
        ),
    ];
    // Each by itself: one must not hide that the other has more.
    for (table, columns, rows) in tables {
        server.sql(&format!("INSERT INTO lockkeeper_{table} {columns} VALUES {rows}; COMMIT"));
        server.sql("UPDATE lockkeeper_layout SET cleaned = 0; COMMIT");
        let mut rounds = 1;
        while store.clean().await.expect("removed") {
            rounds += 1;
        }
        assert_eq!(server.sql(&format!("SELECT COUNT(*) FROM lockkeeper_{table}")), "0", "{table}");
        assert!(rounds <= 4, "{table}: {rounds}");
    }
}

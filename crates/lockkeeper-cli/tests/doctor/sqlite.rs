//! SQLite, what people read, and a gateway before it.

use super::Report;
use super::common::{Place, one_sentence};
use std::os::unix::fs::PermissionsExt;
use testkit::{Proc, SOON, SmallDisk, found};

fn url(place: &Place) -> String {
    format!("sqlite:{}", place.file().display())
}

fn chmod(place: &Place, mode: u32) {
    std::fs::set_permissions(place.file(), std::fs::Permissions::from_mode(mode)).expect("the file is ours");
}

#[test]
fn a_file_that_others_may_write_is_found() {
    let place = Place::new();
    let fine = Report::of(&place, &url(&place), &[]);
    assert_eq!((fine.code, fine.json["store"].as_str()), (0, Some("sqlite")), "{fine:?}");
    for id in ["sqlite-permissions", "sqlite-integrity", "sqlite-free-space", "registers", "renewal", "hand-over"] {
        fine.is(id, "ok");
    }
    chmod(&place, 0o666);
    let open = Report::of(&place, &url(&place), &[]);
    open.is("sqlite-permissions", "warn");
    open.found("sqlite-permissions", "666");
    chmod(&place, 0o600);
    Report::of(&place, &url(&place), &[]).is("sqlite-permissions", "ok");
    let file = rusqlite::Connection::open(place.file()).expect("the store is there");
    let others = |table: &str, column: &str| {
        let ask = format!("SELECT count(*) FROM {table} WHERE CAST({column} AS TEXT) NOT LIKE 'lk-doctor/%'");
        file.query_row(&ask, [], |row| row.get::<_, i64>(0)).expect("the table is there")
    };
    assert_eq!((others("lock", "name"), others("claim", "name"), others("register", "key")), (0, 0, 0));
}

#[test]
fn people_read_the_worst_first_and_the_promise_last() {
    let place = Place::new();
    let said = place.ends(&["doctor", "--ttl", "2s", "--require", "consensus", "--probes", "5"]);
    assert_eq!((said.code, said.stderr.as_str()), (Some(2), ""), "{said:?}");
    let lines: Vec<&str> = said.stdout.lines().collect();
    assert!(lines[0].starts_with("FAIL     guarantee: the store promises machine"), "{said:?}");
    assert!(lines[1].starts_with("         why: ") && lines[2].starts_with("         do:  "), "{said:?}");
    assert!(lines[3].starts_with("WARN     ttl: --ttl is 2.0s"), "{said:?}");
    let last = lines.last().copied().unwrap_or_default();
    assert!(last.starts_with("sqlite promises machine (") && last.ends_with("waiting for 3.0s at worst."), "{last}");
    let enough = place.ends(&["doctor", "--require", "machine", "--probes", "5"]);
    assert_eq!(enough.code, Some(0), "{enough:?}");
}

#[test]
fn what_cannot_be_examined_is_one_sentence() {
    let place = Place::new();
    one_sentence(&place.ends(&["doctor", "redis://127.0.0.1:1"]), 69, "nothing listens");
    one_sentence(&place.ends(&["doctor", "sqlite:/nowhere/locks.db"]), 78, "does not exist");
    one_sentence(&place.ends(&["doctor", "--require", "much"]), 64, "best-effort, process, machine");
    one_sentence(&place.ends(&["doctor", "--probes", "0"]), 64, "1..=100000");
    one_sentence(&place.ends(&["doctor", "--probes", "few"]), 64, "'few' is not a whole number");
    one_sentence(&place.ends(&["run", "--permits", "two", "x", "--", "true"]), 64, "'two' is not a whole number");
    one_sentence(&place.ends(&["--store", "sqlite:a", "doctor", "sqlite:b"]), 64, "cannot be used together");
}

#[test]
fn a_full_disk_is_found() {
    let Some(disk) = SmallDisk::own("sqlite::a_full_disk_is_found", 32) else { return };
    let place = Place::new();
    let url = format!("sqlite:{}", disk.path().join("locks.db").display());
    Report::of(&place, &url, &[]).is("sqlite-free-space", "ok");
    // While a client has the file open, another one can still read it.
    let script = "echo $$ > pid; while [ ! -e go ]; do sleep 0.01; done";
    let holder = Proc::start(&mut place.bare(&["run", "--store", &url, "x", "--", "sh", "-c", script]));
    place.text("pid");
    disk.fill();
    let full = Report::of(&place, &url, &[]);
    assert_eq!(full.code, 2);
    full.is("sqlite-free-space", "fail");
    disk.clear();
    let fine = Report::of(&place, &url, &[]);
    fine.is("sqlite-free-space", "ok");
    fine.is("cycle", "ok");
    place.dir.write("go", "");
    holder.wait();
}

#[test]
fn a_gateway_is_examined_as_what_it_is() {
    let place = Place::new();
    let gateway = place.start(&["serve", "--listen", "127.0.0.1:0", "--drain", "0s"]);
    let url = found(SOON, "it serves", || {
        Some(gateway.stderr().split("serving sqlite at ").nth(1)?.split_whitespace().next()?.to_owned())
    });
    let report = Report::of(&place, &url, &[]);
    assert_eq!((report.code, report.json["store"].as_str()), (0, Some("https")), "{report:?}");
    report.is("gateway", "note");
    report.found("gateway", "it serves sqlite, which promises machine");
    for id in ["gateway-tls", "gateway-count", "cycle", "registers"] {
        report.is(id, "ok");
    }
}

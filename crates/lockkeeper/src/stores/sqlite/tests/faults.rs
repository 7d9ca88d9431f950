//! Files that are bad, gone, full, busy or another program's: each is a typed error with a sentence that helps.

use super::*;
use std::process::Command;

fn open(path: &Path) -> Result<SqliteStore> {
    SqliteStore::open(path, SqliteOptions::default())
}

#[track_caller]
fn refused(path: &Path, kind: ErrorKind, part: &str) {
    let e = open(path).expect_err("an error");
    assert_eq!(e.kind(), kind, "{e}");
    assert!(e.to_string().contains(part), "{e}");
}

/// Mounts a small file system in memory for one test; `None`, with the reason printed, where that is not allowed.
struct Mount(Dir);

impl Mount {
    fn new(size: &str) -> Option<Self> {
        let dir = Dir::new();
        let ok = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"])
            .arg(&dir.0)
            .output()
            .is_ok_and(|output| output.status.success());
        if !ok {
            println!("skipped the part that mounts a file system: it needs root");
        }
        ok.then_some(Self(dir))
    }

    fn remount(&self, how: &str) {
        assert!(
            Command::new("mount").args(["-o", &format!("remount,{how}")]).arg(&self.0.0).status().unwrap().success()
        );
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Lazily: a worker may still be closing its files.
        let _ = Command::new("umount").arg("-l").arg(&self.0.0).status();
    }
}

#[test]
fn a_place_that_cannot_hold_a_database_is_named() {
    let dir = Dir::new();
    refused(&dir.0.join("missing/locks.db"), ErrorKind::InvalidConfig, "missing' does not exist");
    refused(&dir.0, ErrorKind::InvalidConfig, "is a directory");
    refused(Path::new("/"), ErrorKind::InvalidConfig, "does not name a file");
    #[cfg(target_os = "linux")]
    refused(Path::new("/proc/locks.db"), ErrorKind::Unavailable, "cannot be created");
}

#[cfg(unix)]
#[test]
fn the_file_is_its_owners_alone() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = Dir::new();
    let _store = dir.store();
    for end in ["", "-wal", "-shm"] {
        let path = format!("{}{end}", dir.file().display());
        assert_eq!(std::fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600, "{end}");
    }
}

#[test]
fn the_database_of_another_program_is_left_alone() {
    let dir = Dir::new();
    dir.sql().execute_batch("CREATE TABLE t (a)").unwrap();
    let before = std::fs::read(dir.file()).unwrap();
    refused(&dir.file(), ErrorKind::Foreign, "another program");
    assert_eq!(std::fs::read(dir.file()).unwrap(), before);
}

#[test]
fn a_newer_layout_is_told_with_both_versions() {
    let dir = Dir::new();
    drop(dir.store());
    dir.sql().execute_batch("PRAGMA user_version = 9").unwrap();
    refused(&dir.file(), ErrorKind::Unsupported, "has layout 9, and this build knows layouts up to 1");
}

#[test]
fn garbage_truncation_and_flipped_bits_are_never_repaired_by_forgetting() {
    let dir = Dir::new();
    std::fs::write(dir.file(), b"this is no database at all, but quite a long sentence of plain text").unwrap();
    refused(&dir.file(), ErrorKind::Foreign, "never re-created");
    std::fs::remove_file(dir.file()).unwrap();
    drop(dir.store());
    dir.sql().execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    let good = std::fs::read(dir.file()).unwrap();
    for length in [4096, good.len() / 2, good.len() - 4096, 100] {
        std::fs::write(dir.file(), &good[..length]).unwrap();
        let e = open(&dir.file()).err().unwrap_or_else(|| panic!("{length} bytes of {} pass", good.len()));
        assert!(matches!(e.kind(), ErrorKind::Unexpected | ErrorKind::Foreign), "{length}: {e}");
        assert!(e.to_string().contains("never re-created"), "{length}: {e}");
        assert_eq!(std::fs::metadata(dir.file()).unwrap().len(), length as u64, "{length}: the file was changed");
    }
    let mut random = fastrand::Rng::with_seed(7);
    for round in 0..60 {
        let mut bad = good.clone();
        for _ in 0..(good.len() / 1000).max(1) {
            let at = random.usize(..bad.len());
            bad[at] ^= 1 << random.u8(..8);
        }
        for end in ["-wal", "-shm"] {
            let _ = std::fs::remove_file(format!("{}{end}", dir.file().display()));
        }
        std::fs::write(dir.file(), &bad).unwrap();
        // Flips in unused space pass; what must not happen is a panic or a silently new database.
        if let Err(e) = open(&dir.file()) {
            assert!(
                matches!(e.kind(), ErrorKind::Unexpected | ErrorKind::Foreign | ErrorKind::Unsupported),
                "{round}: {e:?}"
            );
        }
    }
}

#[test]
fn an_emptied_file_with_a_log_is_damage() {
    let dir = Dir::new();
    let store = dir.store();
    std::fs::File::options().write(true).truncate(true).open(dir.file()).unwrap();
    refused(&dir.file(), ErrorKind::Unexpected, "empty although its log is not");
    std::fs::remove_file(dir.file()).unwrap();
    refused(&dir.file(), ErrorKind::Unexpected, "missing although its log is there");
    assert!(!dir.file().exists());
    drop(store);
}

#[tokio::test]
async fn a_damaged_row_fails_its_own_name_only() {
    let dir = Dir::new();
    let store = dir.store();
    let (bad, good) = (claim("bad"), claim("good"));
    granted(&store, &bad).await;
    dir.sql().execute_batch("UPDATE lock SET holder = x'01' WHERE name = CAST('bad' AS BLOB)").unwrap();
    let answers = store.try_acquire(&[claim("bad"), good]).await;
    let e = answers[0].as_ref().unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unexpected);
    assert!(e.to_string().contains("'bad'") && e.to_string().contains("damaged"), "{e}");
    assert!(matches!(answers[1], Ok(Attempt::Granted(_))));
    let e = store.list(b"", None).await.unwrap_err();
    assert!(e.to_string().contains("'bad'"), "the operator is told which name: {e}");
}

#[tokio::test]
async fn a_file_deleted_or_replaced_under_the_store_is_noticed_by_the_next_renewal() {
    let dir = Dir::new();
    for replaced in [false, true] {
        let store = dir.store();
        let c = claim("x");
        granted(&store, &c).await;
        let aside = dir.0.join("aside.db");
        std::fs::rename(dir.file(), &aside).unwrap();
        if replaced {
            std::fs::copy(&aside, dir.file()).unwrap();
        }
        let e = renew(&store, &c).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Foreign, "{e}");
        assert!(e.to_string().contains(if replaced { "was replaced" } else { "was deleted" }), "{e}");
        assert_eq!(acquire(&store, &claim("y")).await.unwrap_err().kind(), ErrorKind::Foreign);
        assert_eq!(dir.file().exists(), replaced, "never re-created");
        std::fs::rename(&aside, dir.file()).unwrap();
        assert_eq!(renew(&store, &c).await.unwrap(), Renewal::Renewed(c.ttl), "put back, it works again");
        release(&store, &c).await.unwrap();
    }
    let store = dir.store();
    let c = claim("x");
    granted(&store, &c).await;
    std::fs::remove_file(format!("{}-wal", dir.file().display())).unwrap();
    assert!(renew(&store, &c).await.unwrap_err().to_string().contains("-wal' was deleted"));
}

#[tokio::test]
async fn a_busy_database_is_unavailable_after_the_stated_time() {
    let dir = Dir::new();
    let options = SqliteOptions { busy: Duration::from_millis(60), ..SqliteOptions::default() };
    let store = SqliteStore::open(dir.file(), options).unwrap();
    let c = claim("x");
    granted(&store, &c).await;
    let sql = dir.sql();
    sql.execute_batch("BEGIN IMMEDIATE").unwrap();
    for op in [renew(&store, &c).await.map(drop), acquire(&store, &claim("x")).await.map(drop)] {
        let e = op.unwrap_err();
        assert!(e.is_retryable() && e.to_string().contains("busy by another process for 60ms"), "{e}");
        assert!(std::error::Error::source(&e).is_some(), "the driver's error is kept");
    }
    assert!(store.inspect(&name("x")).await.unwrap().is_some(), "reads go on");
    sql.execute_batch("COMMIT").unwrap();
    assert_eq!(renew(&store, &c).await.unwrap(), Renewal::Renewed(c.ttl));
}

/// Run as a child of the test below: opens the file it is told and takes a lock of its own.
#[tokio::test]
async fn one_of_many_creators() {
    let Some(path) = std::env::var_os("LOCKKEEPER_TEST_CREATE") else { return };
    let store = open(Path::new(&path)).unwrap();
    granted(&store, &claim(&std::process::id().to_string())).await;
}

#[tokio::test]
async fn many_processes_may_create_the_file_at_once() {
    for _ in 0..5 {
        let dir = Dir::new();
        let children: Vec<_> = (0..4)
            .map(|_| {
                Command::new(std::env::current_exe().unwrap())
                    .arg("one_of_many_creators")
                    .env("LOCKKEEPER_TEST_CREATE", dir.file())
                    .stdout(std::process::Stdio::null())
                    .spawn()
                    .unwrap()
            })
            .collect();
        for mut child in children {
            assert!(child.wait().unwrap().success());
        }
        assert_eq!(dir.store().list(b"", None).await.unwrap().records.len(), 4);
    }
}

#[test]
fn many_threads_may_create_the_file_at_once() {
    for _ in 0..10 {
        let dir = Dir::new();
        std::thread::scope(|scope| {
            for _ in 0..6 {
                scope.spawn(|| dir.store());
            }
        });
    }
}

/// Fills what is left, takes and releases until the store says that the disk is full, then makes room again.
async fn full_disk(store: &SqliteStore, make_room: impl FnOnce()) {
    let kept = claim("kept");
    let grant = granted(store, &kept).await;
    let mut error = None;
    for i in 0..20_000 {
        if let Err(e) = acquire(store, &claim(&format!("{i}/{}", "x".repeat(400)))).await {
            error = Some(e);
            break;
        }
    }
    let e = error.expect("the disk fills up");
    assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
    assert!(e.message().contains("disk") && e.message().contains("is full"), "{e}");
    assert!(store.inspect(&name("kept")).await.unwrap().is_some(), "reads go on");
    make_room();
    assert_eq!(granted(store, &kept).await.token, grant.token);
    assert_eq!(release(store, &kept).await.unwrap(), Release::Released);
}

#[tokio::test]
async fn a_full_disk_is_said_and_survived() {
    let Some(mount) = Mount::new("512k") else { return };
    let store = mount.0.store();
    full_disk(&store, || mount.remount("size=4m")).await;
    drop(store);
}

/// The same without a file system of its own: a limit on the pages of the database.
#[tokio::test]
async fn a_full_database_is_said_and_survived() {
    let dir = Dir::new();
    let mut opened = schema::open(&dir.file(), &SqliteOptions::default()).unwrap();
    let pages: i64 = opened.conn.query_row("PRAGMA page_count", [], |row| row.get(0)).unwrap();
    opened.conn.pragma_update(None, "max_page_count", pages).unwrap();
    let mut filled = Ok(0);
    for i in 0..1000 {
        let tx = opened.conn.transaction().unwrap();
        filled = tx.execute(
            "INSERT INTO register VALUES (?1, x'78', 1, zeroblob(16), 0, NULL, zeroblob(4000))",
            [format!("{i}").as_bytes()],
        );
        if filled.is_err() {
            break;
        }
        tx.commit().unwrap();
    }
    let e = opened.place.map_err(filled.unwrap_err());
    assert_eq!(e.kind(), ErrorKind::Unavailable);
    assert!(e.to_string().contains("is full"), "{e}");
    let store = dir.store();
    granted(&store, &claim("x")).await;
}

#[tokio::test]
async fn a_disk_without_room_for_a_new_database_is_full() {
    let Some(mount) = Mount::new("16k") else { return };
    let e = open(&mount.0.file()).expect_err("no room");
    assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
    assert!(e.to_string().contains("is full"), "{e}");
}

#[tokio::test]
async fn what_cannot_be_written_is_denied() {
    let Some(mount) = Mount::new("4m") else { return };
    mount.remount("ro");
    refused(&mount.0.file(), ErrorKind::Denied, "cannot be created");
    mount.remount("rw");
    drop(mount.0.store());
    mount.remount("ro");
    refused(&mount.0.file(), ErrorKind::Denied, "cannot be written");
}

#[tokio::test]
async fn an_acquire_whose_caller_is_gone_does_not_happen() {
    let dir = Dir::new();
    let (store, sql) = (dir.store(), dir.sql());
    sql.execute_batch("BEGIN IMMEDIATE").unwrap();
    let (first, gone) = (claim("first"), claim("gone"));
    let mut waiting = std::pin::pin!(acquire(&store, &first));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(waiting.as_mut().poll(&mut context).is_pending());
    {
        let mut given_up = std::pin::pin!(acquire(&store, &gone));
        assert!(given_up.as_mut().poll(&mut context).is_pending());
    }
    // An operator's transaction, or a process that was stopped inside its own, ends.
    sql.execute_batch("ROLLBACK").unwrap();
    assert!(matches!(waiting.await, Ok(Attempt::Granted(_))));
    // Asked after it, so answered after it.
    assert!(matches!(acquire(&store, &claim("last")).await, Ok(Attempt::Granted(_))));
    let names: i64 = sql.query_row("SELECT count(*) FROM lock WHERE name = x'676f6e65'", [], |row| row.get(0)).unwrap();
    assert_eq!(names, 0, "no keeper asks for it any more");
}

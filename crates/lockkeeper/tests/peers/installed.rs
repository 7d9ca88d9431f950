//! Where the packages are that tests run beside ours.

use std::path::{Path, PathBuf};

/// Where `scripts/peers` has put what it made from these files.
pub(crate) fn installed(what: &str, files: &[&str]) -> PathBuf {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || Path::new(&std::env::var_os("HOME").expect("HOME or XDG_CACHE_HOME is set")).join(".cache");
    let place = cache.unwrap_or_else(home).join("lockkeeper/peers").join(what);
    let lists = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers");
    // What is built has a folder of its own; what is only installed has a list beside the others.
    let lists = if lists.join(what).is_dir() { lists.join(what) } else { lists };
    for file in files {
        let wanted = std::fs::read(lists.join(file)).expect("ours");
        let found = std::fs::read(place.join(file)).ok();
        let command = if ["python", "node", "kazoo", "sqlx"].contains(&what) {
            "scripts/peers"
        } else {
            "scripts/peers --extended"
        };
        assert!(found == Some(wanted), "{} has not what {file} asks for: run {command}", place.display());
    }
    place
}

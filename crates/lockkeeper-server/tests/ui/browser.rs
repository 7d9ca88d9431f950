//! The pages in a real browser: `browser.mjs` is what it does.

use crate::Site;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where `scripts/peers` has put the packages of `package.json`.
fn packages() -> PathBuf {
    let list = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ui/package.json");
    let place = testkit::cached("peers/browser");
    let same = std::fs::read(place.join("package.json")).ok() == std::fs::read(list).ok();
    assert!(same, "the packages of tests/ui/package.json are not in {}: run scripts/peers", place.display());
    place
}

/// With `LOCKKEEPER_SCREENSHOTS` set, the pictures of docs/dashboard.md are made anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_pages_work_in_a_browser() {
    let rules: &[(&str, &[&str])] = &[("ops", &["*=read,break"]), ("app", &["*=acquire"])];
    let (site, secrets) = Site::guarded(rules).await;
    // Beside its packages, where node looks for them; outside the tree, which tests leave alone.
    std::os::unix::fs::symlink(packages().join("node_modules"), site.dir.join("node_modules")).expect("ours");
    let script = site.dir.write("browser.mjs", include_str!("browser.mjs"));
    // It waits at most half a minute for anything, and for many things.
    let mut node = Command::new("timeout");
    node.args(["300", "node"]).arg(script).current_dir(site.dir.path());
    node.env("URL", format!("http://127.0.0.1:{}", site.port)).env("OPS", &secrets[0]).env("APP", &secrets[1]);
    if std::env::var_os("LOCKKEEPER_SCREENSHOTS").is_some() {
        node.env("PICTURES", concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/images"));
    }
    let ended = tokio::task::spawn_blocking(move || node.output()).await.expect("waited").expect("timeout and node");
    let said = String::from_utf8_lossy(&ended.stdout) + String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{said}");
    assert!(site.audit().contains("broken in a browser"), "{}", site.audit());
}

//! `serve --listen`: a socket in the file system, and certificates that change.

mod common;

use common::{Place, one_sentence};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use testkit::{Proc, SOON, Signal, found};

fn says(process: &Proc, text: &str) {
    found(SOON, text, || process.stderr().contains(text).then_some(()));
}

fn ready(place: &Place) -> String {
    let mut curl = Command::new("curl");
    curl.args(["-sS", "--unix-socket", "gw.sock", "http://localhost/readyz"]);
    Proc::start(curl.current_dir(place.dir.path())).wait().stdout
}

#[test]
fn a_socket_in_the_file_system_is_made_for_one_gateway_and_removed_by_it() {
    let place = Place::new();
    let serve = ["serve", "--listen", "unix:gw.sock", "--drain", "0s"];
    let first = place.start(&serve);
    says(&first, "serving sqlite at unix:gw.sock");
    assert_eq!(ready(&place), "ready\n");
    let mode = std::fs::metadata(place.dir.join("gw.sock")).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
    one_sentence(&place.ends(&serve), 78, "unix:gw.sock cannot be listened on");
    assert_eq!(ready(&place), "ready\n", "the first one was left alone");
    // A gateway that was killed leaves its socket behind. The next one takes its place, and removes it at its end.
    drop(first);
    assert!(place.dir.join("gw.sock").exists());
    let second = place.start(&serve);
    says(&second, "serving sqlite at unix:gw.sock");
    assert_eq!(ready(&place), "ready\n");
    second.signal(Signal::TERM);
    assert_eq!(second.wait().code, Some(0));
    assert!(!place.dir.join("gw.sock").exists());
    // What is no socket is never replaced.
    place.dir.write("gw.sock", "a file");
    one_sentence(&place.ends(&serve), 78, "unix:gw.sock cannot be listened on");
    assert_eq!(place.text("gw.sock"), "a file");
    one_sentence(&place.ends(&["serve", "--listen", "unix:"]), 64, "needs a path");
    one_sentence(&place.ends(&["serve", "--listen", "systemd"]), 78, "systemd has opened no socket");
}

#[test]
fn a_new_certificate_is_served_without_a_restart() {
    let (place, next) = (Place::new(), testkit::TempDir::new());
    testkit::certificates(&place.dir);
    testkit::certificates(&next);
    let serve = ["serve", "--listen", "127.0.0.1:0", "--tls-cert", "server.crt", "--tls-key", "server.key"];
    let gateway = place.start(&serve);
    says(&gateway, "serving sqlite at https://");
    let said = gateway.stderr();
    let url = said.split_whitespace().find(|word| word.starts_with("https://")).expect("a URL").to_owned();
    let trusts = |dir: &testkit::TempDir| {
        let mut curl = Command::new("curl");
        curl.arg("-sS").arg("--cacert").arg(dir.join("ca.crt")).arg(format!("{url}/healthz"));
        Proc::start(&mut curl).wait().code == Some(0)
    };
    assert!(trusts(&place.dir) && !trusts(&next));
    for file in ["server.crt", "server.key"] {
        std::fs::copy(next.join(file), place.dir.join(file)).expect("ours");
    }
    says(&gateway, "the certificates were read again");
    assert!(trusts(&next) && !trusts(&place.dir));
}

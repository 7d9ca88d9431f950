//! `ui`, and `serve` without pages.

mod common;

use common::{Place, one_sentence};
use std::process::Command;
use testkit::{Ended, Proc, SOON, Signal, eventually, found};

fn curl(args: &[&str]) -> Ended {
    let mut curl = Command::new("curl");
    curl.args(["-sS", "-o", "-", "-w", "\n%{http_code}"]).args(args);
    Proc::start(&mut curl).wait()
}

/// The address that was printed.
fn address(ui: &Proc) -> String {
    found(SOON, "an address", || ui.stdout().strip_suffix('\n').map(str::to_owned))
}

#[test]
fn it_shows_the_locks_to_the_browser_that_has_the_key_and_ends_when_told_to() {
    let place = Place::new();
    let holder = place.holder("orders/42", &["--label", "night"]);
    let ui = place.start(&["ui"]);
    let url = address(&ui);
    let (site, key) = url.split_once("/?key=").expect("a key");
    assert!(site.starts_with("http://127.0.0.1:") && key.len() == 64, "{url}");
    assert!(!ui.stderr().contains(key), "what is logged may be read by others: {}", ui.stderr());
    assert!(curl(&[site]).stdout.ends_with("303"), "without the key there is no page");
    let jar = place.dir.join("jar");
    let jar = jar.to_str().expect("UTF-8");
    let page = curl(&["-c", jar, &url]);
    assert!(page.stdout.contains("orders/42") && page.stdout.ends_with("200"), "{page:?}");
    assert!(curl(&[&url]).stdout.ends_with("303"), "the key counts once");
    let page = curl(&["-b", jar, &format!("{site}/lock?name=orders/42")]);
    assert!(page.stdout.contains("night") && page.stdout.contains(&place.text("token")), "{page:?}");
    assert!(curl(&["-b", jar, &format!("{site}/v1/info")]).stdout.ends_with("404"), "it takes no locks");
    // An open stream does not keep it.
    let mut stream = Command::new("curl");
    let stream = Proc::start(stream.args(["-sN", "-b", jar, &format!("{site}/live/locks")]));
    eventually(SOON, "the stream", || stream.stdout().contains("orders/42"));
    ui.signal(Signal::INT);
    let ended = ui.wait();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    place.dir.write("go", "");
    assert_eq!(holder.wait().code, Some(0));
}

#[test]
fn mistakes_are_told_in_a_sentence() {
    let place = Place::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("bound").port().to_string();
    one_sentence(&place.ends(&["ui", "--port", &port]), 78, "cannot be listened on");
    one_sentence(&place.ends(&["ui", "--port", "70000"]), 64, "--port");
    one_sentence(&place.ends(&["ui", "--store", "memory:"]), 78, "lives inside one process");
    one_sentence(&place.ends(&["ui", "--store", "redis://127.0.0.1:1"]), 69, "nothing listens");
}

#[test]
fn a_gateway_has_pages_unless_it_is_told_not_to() {
    let place = Place::new();
    for (option, status) in [(&[][..], "200"), (&["--no-ui"][..], "404")] {
        let gateway = place.start(&[&["serve", "--listen", "127.0.0.1:0", "--drain", "0s"], option].concat());
        let url = found(SOON, "it serves", || {
            Some(gateway.stderr().split("serving sqlite at ").nth(1)?.split_whitespace().next()?.to_owned())
        });
        let page = curl(&[&url]);
        assert!(page.stdout.ends_with(status), "{page:?}");
    }
}

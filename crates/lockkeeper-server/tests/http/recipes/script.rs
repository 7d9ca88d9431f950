//! The script of docs/server.md, as it stands there.

use crate::Served;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_script_of_the_page_charges_once() {
    let served = Served::new().await;
    let page = include_str!("../../../../../docs/server.md");
    let script =
        page.split("script.rs -->\n```sh\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a script");
    served.dir.write("script.sh", script);
    let work = served.dir.write("charge.sh", "#!/bin/sh\necho charged >> charges\necho '{\"id\": 17}'\n");
    std::fs::set_permissions(&work, std::fs::Permissions::from_mode(0o700)).expect("ours");
    let run = async || -> Output {
        let mut command = Command::new("bash");
        command.arg("script.sh").current_dir(served.dir.path()).env("URL", &served.url);
        tokio::task::spawn_blocking(move || command.output().expect("bash and curl")).await.expect("it ended")
    };
    let first = run().await;
    assert!(
        first.status.success() && String::from_utf8_lossy(&first.stdout).contains("\"state\":\"done\""),
        "{first:?}"
    );
    let again = run().await;
    let told = String::from_utf8_lossy(&again.stdout).into_owned();
    assert!(again.status.success() && told.contains("\"result\":{\"id\": 17}"), "{again:?}");
    let charges = std::fs::read_to_string(served.dir.join("charges")).expect("it was written");
    assert_eq!(charges, "charged\n");
}

//! The examples that need no server, as processes: each checks its own outcome.

use std::process::Command;

#[test]
fn examples_run() {
    // Beside the programs of the tests: `cargo test` builds both.
    let here = std::env::current_exe().expect("this program has a file");
    let folder = here.ancestors().nth(2).expect("the folder of the build").join("examples");
    for name in ["first", "skip_if_busy", "transfer", "work_queue", "quota", "opentelemetry"] {
        let program = folder.join(name);
        assert!(
            program.exists(),
            "{} is not built: cargo test builds it, or cargo build --examples",
            program.display()
        );
        let ended = Command::new(program).output().expect("it starts");
        assert!(ended.status.success(), "{name}: {}", String::from_utf8_lossy(&ended.stderr));
        assert!(!ended.stdout.is_empty(), "{name} says what it does");
    }
}

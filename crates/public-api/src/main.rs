//! Compares the library's public API with `docs/public-api.txt`; with `--update` writes it.
//!
//! Rustdoc describes the API as JSON. That output is unstable: its format has a number, and `FORMATS` has those that were
//! read correctly. With any other number the comparison is left out, and the program says so.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command for people")]

mod items;
mod signature;

use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

/// The formats that were read correctly: of Rust 1.95 and of the nightly compilers around it.
const FORMATS: [u64; 1] = [57];

const LIST: &str = "docs/public-api.txt";
const UPDATE: &str = "scripts/public-api --update";

/// Set for the copy of this program that cargo runs in place of rustdoc.
const AS_RUSTDOC: &str = "PUBLIC_API_AS_RUSTDOC";

fn main() -> ExitCode {
    if std::env::var_os(AS_RUSTDOC).is_some() {
        return rustdoc();
    }
    let update = match std::env::args().nth(1).as_deref() {
        None => false,
        Some("--update") => true,
        Some(other) => return fail(&format!("'{other}' is not an argument; '--update' is the only one")),
    };
    let json = match described() {
        Ok(json) => json,
        Err(error) => return fail(&error),
    };
    let format = json["format_version"].as_u64().unwrap_or_default();
    if !FORMATS.contains(&format) {
        println!("LEFT OUT: the public API was not compared. This compiler's rustdoc writes format {format};");
        println!("crates/public-api reads {FORMATS:?}. Add {format} to FORMATS if the list it writes is right.");
        return if update { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    }
    let list = items::list(&json);
    let path = root().join(LIST);
    if update {
        return match std::fs::write(&path, &list) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(&format!("{LIST}: {error}")),
        };
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    if written == list {
        println!("{} public items, as {LIST} has them", list.lines().count());
        return ExitCode::SUCCESS;
    }
    let (old, new): (Vec<&str>, Vec<&str>) = (written.lines().collect(), list.lines().collect());
    old.iter().filter(|line| !new.contains(line)).for_each(|line| println!("-{line}"));
    new.iter().filter(|line| !old.contains(line)).for_each(|line| println!("+{line}"));
    fail(&format!("the public API is not what {LIST} has. If that is meant: {UPDATE}"))
}

fn fail(error: &str) -> ExitCode {
    eprintln!("error: {error}");
    ExitCode::FAILURE
}

/// Asked when it runs: checkouts that share a target directory share this program.
fn root() -> PathBuf {
    std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(PathBuf::new, PathBuf::from).join("../..")
}

/// A stable rustdoc writes JSON only if it is told that this is known to be unstable. Cargo must not see the variable: it would
/// compile every dependency anew.
fn rustdoc() -> ExitCode {
    let mut rustdoc = Command::new("rustdoc");
    let status = rustdoc.args(std::env::args_os().skip(1)).env("RUSTC_BOOTSTRAP", "1").env_remove(AS_RUSTDOC).status();
    match status {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => fail(&format!("rustdoc: {error}")),
    }
}

/// What rustdoc says of the library with all features.
fn described() -> Result<Value, String> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // The whole workspace, as the other steps build it: what they have compiled is used again.
    cargo.current_dir(root()).args(["doc", "--quiet", "--locked", "--workspace", "--no-deps", "--all-features"]);
    // `cargo run` sets these; build scripts that look at them, such as ring's, would run again, now and at the next build.
    for (name, _) in std::env::vars_os() {
        if ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|start| name.to_string_lossy().starts_with(start)) {
            cargo.env_remove(name);
        }
    }
    let ourselves = std::env::current_exe().map_err(|error| format!("this program is gone: {error}"))?;
    cargo.env("RUSTDOC", ourselves).env(AS_RUSTDOC, "1");
    cargo.env("RUSTDOCFLAGS", "-Z unstable-options --output-format json");
    match cargo.status() {
        Ok(status) if status.success() => {}
        Ok(status) => return Err(format!("cargo doc: {status}")),
        Err(error) => return Err(format!("cargo doc: {error}")),
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    let file = target.join("doc/lockkeeper.json");
    let text = std::fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    serde_json::from_str(&text).map_err(|error| format!("{}: {error}", file.display()))
}

//! Fuzz target: no command line makes it panic, and a wrong one is told in one sentence.

use super::{Parsed, parse};
use crate::exit::USAGE;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;

#[test]
fn any_command_line_is_understood_or_told_in_one_sentence() {
    testkit::fuzz("cli_args", |bytes| {
        let words = bytes.split(|byte| *byte == b'\n').map(|word| OsString::from_vec(word.to_vec()));
        let argv: Vec<OsString> = std::iter::once(OsString::from("lockkeeper")).chain(words).collect();
        let _ = crate::wants_json(&argv);
        match parse(&argv) {
            Ok(Parsed::Cli(cli)) => drop(format!("{cli:?}")),
            Ok(Parsed::Text(text)) => assert!(!text.is_empty()),
            Err(failure) => {
                assert_eq!(failure.code, USAGE);
                let text = &failure.text;
                assert!(!text.is_empty() && !text.chars().any(char::is_control), "{text:?}");
                let hidden = |word: &OsString| is_hidden(&word.to_string_lossy());
                if argv.iter().all(hidden) {
                    assert!(!text.contains("geheim"), "{text}");
                }
            }
        }
    });
}

/// Whether the secret of the corpus is not in this word, or is the password of a URL in it.
fn is_hidden(word: &str) -> bool {
    let before = word.rfind("geheim").is_none_or(|at| word[at..].contains('@'));
    let behind = word.find("geheim").is_none_or(|at| word[..at].contains("://"));
    before && behind
}

/// The error showed the whole word.
#[test]
fn a_url_in_the_wrong_place_does_not_tell_its_password() {
    for line in [
        "--storeredis://u:geheim@h ls",
        "show a redis://u:geheim@h/1",
        "redis://u:geheim@h",
        "run redis://u:geheim@h x",
    ] {
        let argv: Vec<OsString> = ["lockkeeper"].into_iter().chain(line.split(' ')).map(OsString::from).collect();
        let Err(failure) = parse(&argv) else { panic!("{line}") };
        assert!(!failure.text.contains("geheim"), "{line}: {}", failure.text);
    }
}

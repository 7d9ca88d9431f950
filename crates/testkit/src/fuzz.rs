//! Parsers under inputs that no honest client writes: a corpus that is replayed, and changed inputs from it.
//!
//! A corpus is `crates/lockkeeper/fuzz-corpus/TARGET.txt`: one input a line, with Rust's escapes for bytes. The changes
//! are random; the seed is printed, and `LOCKKEEPER_SEED` repeats it. An input that failed once belongs into the corpus.

#![allow(clippy::print_stdout, reason = "for tests: the seed")]

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// How many changed inputs a target gets. All targets together take seconds.
const CASES: u32 = 2000;

/// What breaks parsers: separators, escapes cut short, numbers at their limits, text that is none.
const PIECES: [&[u8]; 30] = [
    b":",
    b"/",
    b"%",
    b"%2",
    b"%zz",
    b"~",
    b"~2F",
    b"\0",
    b"\n",
    b"\r\n",
    b" ",
    b"\xff",
    b"\xc3",
    "é".as_bytes(),
    b"?",
    b"&",
    b"=",
    b"@",
    b"[",
    b"]",
    b"{",
    b"}",
    b",",
    b"\"",
    b"-",
    b"-1",
    b"0",
    b"18446744073709551615",
    b"9223372036854775808",
    b"00000000000000000000000000000007",
];

/// Shows its bytes as the corpus writes them.
#[derive(Clone)]
struct Input(Vec<u8>);

impl fmt::Debug for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.escape_ascii())
    }
}

#[derive(Clone, Debug)]
enum Change {
    Set(Index, u8),
    Put(Index, Index),
    Cut(Index, usize),
    Repeat(Index, usize),
    /// Goes on as another input of the corpus does.
    Cross(Index, Index),
}

/// Gives `check` every input of the corpus `target`, then changed ones; it must not panic.
///
/// # Panics
/// When `check` does, with the smallest input that was found.
pub fn fuzz(target: &str, check: impl Fn(&[u8])) {
    let corpus = corpus(target);
    for input in &corpus {
        // The panic's own words have been printed.
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| check(input))) {
            println!("fuzz-corpus/{target}.txt: {}", input.escape_ascii());
            resume_unwind(panic);
        }
    }
    let seed = std::env::var("LOCKKEEPER_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| std::process::id().into());
    println!("{target}: {} inputs and {CASES} changed ones from LOCKKEEPER_SEED={seed}", corpus.len());
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&u64::to_le_bytes(seed));
    let config = Config { cases: CASES, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    let tested = runner.run(&inputs(corpus), |input| {
        check(&input.0);
        Ok(())
    });
    match tested {
        Ok(()) => {}
        Err(TestError::Fail(why, input)) => {
            panic!("{target}: {why}\nLOCKKEEPER_SEED={seed}; a line for fuzz-corpus/{target}.txt:\n{input:?}")
        }
        Err(TestError::Abort(why)) => panic!("{target}: {why}"),
    }
}

/// The same for parsers of text: what is no UTF-8 is made so.
///
/// # Panics
/// As [`fuzz`].
pub fn fuzz_text(target: &str, check: impl Fn(&str)) {
    fuzz(target, |input| check(&String::from_utf8_lossy(input)));
}

fn inputs(corpus: Vec<Vec<u8>>) -> impl Strategy<Value = Input> {
    let change = prop_oneof![
        (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Change::Set(at, byte)),
        (any::<Index>(), any::<Index>()).prop_map(|(at, piece)| Change::Put(at, piece)),
        (any::<Index>(), 1..12_usize).prop_map(|(at, count)| Change::Cut(at, count)),
        (any::<Index>(), 1..40_usize).prop_map(|(at, count)| Change::Repeat(at, count)),
        (any::<Index>(), any::<Index>()).prop_map(|(at, other)| Change::Cross(at, other)),
    ];
    (any::<Index>(), vec(change, 0..6)).prop_map(move |(which, changes)| {
        let mut input = which.get(&corpus).clone();
        changes.iter().for_each(|change| change.apply(&mut input, &corpus));
        Input(input)
    })
}

impl Change {
    fn apply(&self, input: &mut Vec<u8>, corpus: &[Vec<u8>]) {
        let len = input.len();
        let place = |at: &Index| at.index(len + 1);
        match self {
            Self::Set(at, byte) => {
                if let Some(old) = input.get_mut(place(at)) {
                    *old = *byte;
                }
            }
            Self::Put(at, piece) => drop(input.splice(place(at)..place(at), piece.get(&PIECES).iter().copied())),
            Self::Cut(at, count) => drop(input.drain(place(at)..(place(at) + count).min(len))),
            Self::Repeat(at, count) => {
                let part = input[place(at)..(place(at) + count).min(len)].to_vec();
                input.splice(place(at)..place(at), part);
            }
            Self::Cross(at, other) => {
                let other = other.get(corpus);
                input.truncate(place(at));
                input.extend(other.get(at.index(other.len() + 1)..).unwrap_or_default());
            }
        }
    }
}

/// The inputs of a target, and an empty one.
fn corpus(target: &str) -> Vec<Vec<u8>> {
    let path = format!("{}/../lockkeeper/fuzz-corpus/{target}.txt", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("fuzz-corpus/{target}.txt: {e}"));
    std::iter::once(Vec::new()).chain(text.lines().map(unescape)).collect()
}

/// The inverse of `escape_ascii`; other bytes stay as they are.
fn unescape(line: &str) -> Vec<u8> {
    let (mut out, mut rest) = (Vec::new(), line.bytes());
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        out.push(match rest.next() {
            Some(b'n') => b'\n',
            Some(b'r') => b'\r',
            Some(b't') => b'\t',
            Some(b'x') => {
                let digits: String = rest.by_ref().take(2).map(char::from).collect();
                u8::from_str_radix(&digits, 16).unwrap_or_else(|_| panic!("a bad escape in {line}"))
            }
            Some(other) => other,
            None => panic!("a lone backslash at the end of {line}"),
        });
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_come_back() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(unescape(&all.escape_ascii().to_string()), all);
    }

    #[test]
    fn a_panic_is_found_and_its_input_made_small() {
        let check = |input: &[u8]| assert!(!input.windows(3).any(|w| w == b"%zz"), "broken");
        let found = catch_unwind(|| fuzz("names", check)).unwrap_err();
        let text = found.downcast_ref::<String>().map_or("", String::as_str);
        assert!(text.contains("broken") && text.contains("LOCKKEEPER_SEED="), "{text}");
    }
}

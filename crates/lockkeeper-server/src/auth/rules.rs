//! Rules of a token: which names, which verbs.

use serde::{Deserialize, Serialize};

/// What can be allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verb {
    /// To look at locks and registers.
    Read,
    /// To acquire, renew and release, and to hear of one's own claims.
    Acquire,
    /// To enter and write registers.
    Register,
    /// To break locks.
    Break,
}

/// Verbs on names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// `*` is every name; what ends with `/` is everything below it; anything else is exactly that name.
    pub names: String,
    /// What is allowed there.
    pub verbs: Vec<Verb>,
}

impl Rule {
    pub(super) fn all() -> Self {
        let verbs = vec![Verb::Read, Verb::Acquire, Verb::Register, Verb::Break];
        Self { names: "*".into(), verbs }
    }

    pub(super) fn has(&self, verb: Verb) -> bool {
        self.verbs.contains(&verb)
    }

    /// Compared byte by byte: two spellings of one letter are two names, as they are for locks.
    pub(super) fn allows(&self, verb: Verb, name: &[u8]) -> bool {
        let names = self.names.as_bytes();
        let fits = match names {
            b"*" => true,
            [.., b'/'] => name.starts_with(names) && name.len() > names.len(),
            _ => name == names,
        };
        fits && self.has(verb)
    }
}

/// `NAMES=VERB,VERB`, as a command line has it.
impl std::str::FromStr for Rule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("'{text}' is not a rule; one looks like ci/=acquire,read");
        let (names, verbs) = text.rsplit_once('=').ok_or_else(bad)?;
        if names.is_empty() {
            return Err(bad());
        }
        let verb = |word: &str| {
            let known = "read, acquire, register, break";
            serde_json::from_value(word.into()).map_err(|_| format!("'{word}' is not a verb; known are {known}"))
        };
        Ok(Self { names: names.into(), verbs: verbs.split(',').map(verb).collect::<Result<_, _>>()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_compared_as_they_are() {
        let rule = |names: &str| Rule { names: names.into(), verbs: vec![Verb::Acquire] };
        for (names, name, fits) in [
            ("*", "anything", true),
            ("a/", "a/b", true),
            ("a/", "a/../b", true),
            ("a/", "a", false),
            ("a/", "a/", false),
            ("a/", "ab", false),
            ("a/", "A/b", false),
            ("a/", "\0a/b", false),
            ("a", "a", true),
            ("a", "a/b", false),
            ("a", "a\0", false),
            ("caf\u{e9}", "cafe\u{301}", false),
            ("*/", "a/b", false),
        ] {
            assert_eq!(rule(names).allows(Verb::Acquire, name.as_bytes()), fits, "{names} {name}");
            assert!(!rule(names).allows(Verb::Break, name.as_bytes()));
        }
    }

    #[test]
    fn a_rule_is_written_in_one_word() {
        let rule: Rule = "a=b/=acquire,read".parse().expect("a rule");
        assert_eq!(rule, Rule { names: "a=b/".into(), verbs: vec![Verb::Acquire, Verb::Read] });
        for wrong in ["", "a", "=read", "a=", "a=fly"] {
            assert!(wrong.parse::<Rule>().is_err(), "{wrong}");
        }
    }
}

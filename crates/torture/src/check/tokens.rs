//! (b) Tokens are unique per name, and a grant that was answered before another was asked for has the lower one.

use super::read::{Attempt, History};
use super::slice::{self, who};
use super::spells::Spells;
use super::{Finding, Property, Verdict};
use crate::history::Wanted;
use std::collections::HashMap;

fn token(attempt: &Attempt) -> u64 {
    attempt.grant.as_ref().map_or(0, |grant| grant.token)
}

/// Judges the tokens of exclusive grants. Other clients have none (0).
pub(super) fn check(history: &History, spells: &Spells<'_>, verdict: &mut Verdict) {
    let mut found = |sentence: String, one: &Attempt, other: &Attempt| {
        let mut lines = vec![slice::asked(other)];
        lines.extend(slice::granted(history, one));
        lines.extend(slice::granted(history, other));
        let excuse = spells.fallen(one, other);
        lines.extend(excuse.map(|spell| slice::fault(history, spell)));
        let (slice, excused) = (slice::slice(history, lines), excuse.is_some());
        verdict.findings.push(Finding { property: Property::Tokens, sentence, slice, excused });
    };
    for (name, attempts) in history.names() {
        let with_token = |attempt: &&Attempt| attempt.wanted == Wanted::Exclusive && token(attempt) != 0;
        // By the time of asking.
        let asked: Vec<&Attempt> = attempts.into_iter().filter(with_token).collect();
        let mut answered = asked.clone();
        answered.sort_by_key(|attempt| attempt.grant.as_ref().map(|grant| grant.at));

        let mut seen: HashMap<u64, &Attempt> = HashMap::new();
        for attempt in &answered {
            if let Some(other) = seen.insert(token(attempt), attempt) {
                let (one, other) = (*attempt, other);
                let sentence =
                    format!("{} and {} both got token {} of '{name}'", who(other.op), who(one.op), token(one));
                found(sentence, other, one);
            }
        }

        // The highest token of all answers before the moment of asking is enough to compare with.
        let mut before = answered.iter().copied().peekable();
        let mut highest: Option<&Attempt> = None;
        for attempt in asked {
            let earlier = |other: &&Attempt| other.grant.as_ref().is_some_and(|grant| grant.at < attempt.asked);
            while let Some(other) = before.next_if(earlier) {
                if highest.is_none_or(|highest| token(other) > token(highest)) {
                    highest = Some(other);
                }
            }
            if let Some(other) = highest.filter(|highest| token(highest) > token(attempt)) {
                let (old, new) = (token(other), token(attempt));
                let sentence = format!(
                    "{} got token {new} of '{name}', asked for after {} had been given token {old}",
                    who(attempt.op),
                    who(other.op)
                );
                found(sentence, other, attempt);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample::{Sample, findings};
    use super::*;

    fn three() -> Sample {
        let mut s = Sample::new();
        s.held(1, "a", (0, 10, 20), 5);
        s.held(2, "a", (5, 30, 40), 6);
        s.held(3, "b", (50, 60, 70), 2);
        s
    }

    #[test]
    fn rising_tokens_are_clean_and_names_do_not_meet() {
        assert_eq!(three().verdict().findings, []);
        let mut s = three();
        // Two other clients, without tokens.
        s.held(4, "a", (50, 60, 70), 0);
        s.held(5, "a", (71, 72, 73), 0);
        assert_eq!(s.verdict().findings, []);
    }

    #[test]
    fn a_token_given_twice_is_found() {
        let mut s = three();
        s.held(4, "a", (35, 60, 70), 6);
        let verdict = s.verdict();
        assert_eq!(verdict.violations(Property::Tokens), 1);
        let tokens: Vec<_> = verdict.findings.iter().filter(|f| f.property == Property::Tokens).collect();
        assert_eq!(tokens[0].sentence, "worker 0, op 2 and worker 0, op 4 both got token 6 of 'a'");
        assert_eq!(
            tokens[0].slice,
            [
                "+0.030000s worker 0, op 2: has 'a', token 6, until +1.030000s",
                "+0.035000s worker 0, op 4: asks for 'a', exclusive",
                "+0.060000s worker 0, op 4: has 'a', token 6, until +1.060000s",
            ]
        );
    }

    #[test]
    fn a_token_that_falls_is_found_against_the_highest_before() {
        let mut s = three();
        s.held(4, "a", (31, 60, 70), 4);
        let found = findings(&s.verdict());
        let sentence = "(b) worker 0, op 4 got token 4 of 'a', asked for after worker 0, op 2 had been given token 6\n";
        assert!(found.starts_with(sentence), "{found}");
        // Asked for before the other was answered: either order is right, the tokens must only differ.
        let mut s = three();
        s.held(4, "a", (29, 60, 70), 4);
        assert_eq!(s.verdict().violations(Property::Tokens), 1, "still after op 1");
        let mut s = Sample::new();
        s.held(1, "a", (0, 10, 20), 6);
        s.held(2, "a", (5, 30, 40), 5);
        assert_eq!(s.verdict().violations(Property::Tokens), 0);
    }
}

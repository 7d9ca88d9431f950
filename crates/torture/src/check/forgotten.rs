//! What a store forgets by a fault, and what that excuses: a write over a value that another one had replaced (a), and
//! a token that falls (b, g). Each excuse ends when nothing can come of the fault any more.

use super::read::{Attempt, History, Kv};
use super::spells::{Spell, Spells};
use crate::history::{Class, Nanos};

const SECOND: Nanos = 1_000_000_000;

impl History {
    /// When the holder that makes a write was granted its lock.
    fn granted(&self, kv: &Kv) -> Nanos {
        self.attempt(kv.op).and_then(|attempt| attempt.grant.as_ref()).map_or(kv.sent, |grant| grant.at)
    }

    /// Not before this moment a write reached the store. Earlier harnesses wrote down only when its holder was granted.
    fn sent(&self, kv: &Kv) -> Nanos {
        self.granted(kv).max(kv.sent)
    }
}

impl Spell<'_> {
    /// By how many seconds a clock was ahead; behind when it is negative.
    fn seconds(&self) -> i64 {
        let words = if self.fault.class == Class::Clock { self.fault.detail.as_str() } else { "" };
        words.split(' ').next().and_then(|seconds| seconds.parse().ok()).unwrap_or(0)
    }
}

impl<'a> Spells<'a> {
    /// Whether a fault took data of the store back to an earlier state, or away.
    fn takes_back(&self, spell: &Spell<'a>) -> bool {
        let detail = &spell.fault.detail;
        let does = match spell.fault.class {
            // Of an operator's acts only this one: others cost connections or single locks.
            Class::Admin => detail.starts_with("FLUSHALL"),
            // A disk that is full or frozen forgets nothing.
            Class::Disk => detail.contains("torn") || detail.contains("flipped"),
            // A worker that is cut off changes nothing in the store.
            Class::Partition => detail.starts_with("between servers"),
            _ => true,
        };
        does && !spell.failed && self.history.meta.takes_back(spell.fault.class)
    }

    /// The faults that took data, each with the last moment at which it can have taken what was written before.
    fn losses(&self) -> impl DoubleEndedIterator<Item = (&Spell<'a>, Nanos)> {
        // A primary of a cluster that was away goes on for a moment, until it hears that another one has its place.
        let echo = if self.history.meta.mode == "redis-cluster" { self.history.ttl() } else { 0 };
        let taken = self.all.iter().filter(move |spell| self.takes_back(spell));
        taken.map(move |spell| (spell, spell.until + echo))
    }

    /// The fault that took a register back between two writes over the same value; `all` are those that count.
    ///
    /// It explains the first write after it, and one of a holder that was in already: the fence that would refuse that
    /// one is gone too. Then the register has a new state, and a write over an older one is a lost update as ever.
    pub(super) fn taken_back(&self, all: &[&Kv], old: &Kv, new: &Kv) -> Option<&Spell<'a>> {
        let (was_in, sent) = (self.history.granted(new), self.history.sent(new));
        let explains = |(spell, lost): &(&Spell<'a>, Nanos)| {
            let after = |kv: &&Kv| self.history.sent(kv) > *lost && kv.at <= sent && kv.value != new.value;
            let between = self.history.sent(old) <= *lost && spell.fault.at <= new.at;
            between && (was_in <= *lost || !all.iter().any(after))
        };
        self.losses().rfind(explains).map(|(spell, _)| spell)
    }

    /// A fault that can have taken what was written between two moments.
    pub(super) fn lost_between(&self, from: Nanos, to: Nanos) -> Option<&Spell<'a>> {
        self.losses().rfind(|(spell, lost)| *lost >= from && spell.fault.at <= to).map(|(spell, _)| spell)
    }

    /// The fault by which a token may be lower than one that was given earlier. A server gives the number after the last
    /// one, or the time of its clock in µs if that is higher. So a token falls only if the last number was lost after the
    /// old token was drawn, and the clock at the new one is behind it. The latter is so until the right time has caught
    /// up: by the seconds that a clock was ahead at the old token, and by those that one is behind now.
    pub(super) fn fallen(&self, old: &Attempt, new: &Attempt) -> Option<&Spell<'a>> {
        let (high, low) = (old.grant.as_ref()?, new.grant.as_ref()?);
        // When a token was drawn is not known: between the question and the answer.
        let between = |(spell, lost): &(&Spell<'a>, Nanos)| spell.fault.at <= low.at && old.asked <= *lost;
        let (lost, _) = self.losses().rfind(between)?;
        let behind = self
            .jumps()
            .filter(|(spell, seconds)| *seconds < 0 && spell.fault.at <= low.at && spell.until >= new.asked);
        let behind = behind.map(|(_, seconds)| seconds.unsigned_abs() * SECOND).max().unwrap_or(0);
        let ahead = self.jumps().filter(|(spell, seconds)| {
            *seconds > 0 && spell.fault.at <= high.at && !self.emptied(spell.until, old.asked)
        });
        let ahead = ahead.map(|(spell, seconds)| spell.until.min(high.at) + seconds.unsigned_abs() * SECOND);
        let caught_up = ahead.chain((behind > 0).then_some(high.at)).max()? + behind;
        (new.asked <= caught_up).then_some(lost)
    }

    /// Steps of servers' clocks, in seconds, where a mode says by its excuses that it counts on a clock.
    fn jumps(&self) -> impl Iterator<Item = (&Spell<'a>, i64)> {
        let counts = self.history.meta.excuses.contains(&Class::Clock);
        self.all.iter().filter(move |_| counts).map(|spell| (spell, spell.seconds()))
    }

    /// Whether the only server was wiped from one moment to another: then nothing is left of tokens that a wrong clock
    /// gave before. Of Redlock's five, four remember.
    fn emptied(&self, from: Nanos, to: Nanos) -> bool {
        let within = |spell: &Spell<'a>| spell.fault.at >= from && spell.until <= to;
        let mut wipes = self.all.iter().filter(|spell| spell.fault.class == Class::WipeNode);
        self.history.meta.mode != "redlock5" && wipes.any(within)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Property;
    use super::super::sample::{Sample, findings};
    use crate::history::{Class, Forgets, What};

    /// Two writes over one state, at 30 and at 70.
    fn forgets(classes: &[Class]) -> Sample {
        granted_at(65, classes)
    }

    fn granted_at(granted: u64, classes: &[Class]) -> Sample {
        let mut s = Sample::new();
        s.meta.forgets = Forgets::By(classes.to_vec());
        s.kv(1, 10, None, "v1", Some(true));
        s.kv(3, 30, Some("v1"), "v3", Some(true));
        s.asked(7, granted - 5, "a").granted(7, granted, 9);
        s.kv(7, 70, Some("v1"), "v7", Some(true));
        s
    }

    fn violations(mut s: Sample, class: Class, detail: &str, time: (u64, u64)) -> usize {
        s.fault(1, class, if class == Class::Admin { "all" } else { "node 0" }, detail, time);
        s.verdict().violations(Property::Fence)
    }

    #[test]
    fn only_a_loss_between_two_writes_over_one_value_excuses_the_second() {
        let run = |time| violations(forgets(&[Class::WipeNode]), Class::WipeNode, "wiped", time);
        assert_eq!((run((40, 50)), run((70, 80))), (0, 0));
        assert_eq!(run((71, 80)), 1, "the second was written before");
        assert_eq!((run((29, 29)), run((20, 28))), (0, 1), "the first was sent at 29");
    }

    #[test]
    fn the_first_write_after_a_loss_is_excused_and_no_later_one() {
        let run = |granted| {
            let mut s = granted_at(granted, &[Class::WipeNode]);
            s.fault(1, Class::WipeNode, "node 0", "wiped", (40, 50));
            s.kv(5, 60, None, "v5", Some(true));
            let verdict = s.verdict();
            (verdict.violations(Property::Fence), verdict.findings.len())
        };
        assert_eq!(run(51), (1, 2), "a lost update as ever");
        assert_eq!(run(50), (0, 2), "it was in before, and the fence that would refuse it is lost");
        let mut s = forgets(&[Class::WipeNode]);
        s.fault(1, Class::WipeNode, "node 0", "wiped", (40, 50));
        s.kv(8, 80, Some("v1"), "v8", Some(true));
        assert_eq!(
            findings(&s.verdict()),
            "(a) worker 0, op 3 and worker 0, op 7 both wrote over 'v1' in 'a'\n\
             | +0.030000s worker 0, op 3: writes 'v3' over 'v1' in 'a': accepted\n\
             | +0.040000s fault 1 until +0.050000s: wipe-node, node 0: wiped\n\
             | +0.070000s worker 0, op 7: writes 'v7' over 'v1' in 'a': accepted\n\
             (a) worker 0, op 7 and worker 0, op 8 both wrote over 'v1' in 'a'\n\
             | +0.070000s worker 0, op 7: writes 'v7' over 'v1' in 'a': accepted\n\
             | +0.080000s worker 0, op 8: writes 'v8' over 'v1' in 'a': accepted\n"
        );
        assert_eq!(s.verdict().violations(Property::Fence), 1);
    }

    #[test]
    fn an_earlier_history_says_only_when_a_writer_was_granted_its_lock() {
        let run = |granted: u64| {
            let mut s = forgets(&[Class::WipeNode]);
            s.asked(3, 11, "a").granted(3, granted, 5);
            for event in &mut s.events {
                if let What::Kv { sent, .. } = &mut event.what {
                    *sent = 0;
                }
            }
            violations(s, Class::WipeNode, "wiped", (26, 28))
        };
        assert_eq!((run(28), run(29)), (0, 1));
    }

    #[test]
    fn a_write_without_reader_and_answer_ends_no_excuse() {
        let run = |accepted| {
            let mut s = forgets(&[Class::WipeNode]);
            s.fault(1, Class::WipeNode, "node 0", "wiped", (40, 50));
            s.kv(5, 60, Some("v0"), "v5", accepted);
            s.verdict().violations(Property::Fence)
        };
        assert_eq!((run(None), run(Some(false)), run(Some(true))), (0, 0, 1));
    }

    #[test]
    fn what_takes_data_back_is_said_by_the_mode_and_by_the_words_of_the_fault() {
        let run = |classes: &[Class], class, detail| violations(forgets(classes), class, detail, (40, 50));
        let killed = |by| run(&[by], Class::KillNode, "SIGKILL");
        assert_eq!((killed(Class::KillNode), killed(Class::WipeNode)), (0, 1), "else its log is whole");
        let any = |class, detail| run(&Class::ALL, class, detail);
        assert_eq!((any(Class::Admin, "FLUSHALL"), any(Class::Admin, "SCRIPT FLUSH")), (0, 1));
        assert_eq!((any(Class::Disk, "bits of the log flipped"), any(Class::Disk, "frozen")), (0, 1));
        let servers = "between servers, from the servers";
        assert_eq!((any(Class::Partition, servers), any(Class::Partition, "both ways")), (0, 1));
    }

    #[test]
    fn a_clock_step_excuses_no_lost_update() {
        // As an earlier harness wrote of PostgreSQL and of Redis.
        let run = |excuses: &[Class], class| {
            let mut s = forgets(&[]);
            (s.meta.forgets, s.meta.excuses) = (Forgets::Ever(true), excuses.to_vec());
            violations(s, class, "+7 s", (40, 50))
        };
        assert_eq!(run(&[Class::Admin, Class::Clock], Class::Clock), 1);
        assert_eq!(run(&[Class::Admin, Class::Clock, Class::WipeNode], Class::WipeNode), 0);
    }

    #[test]
    fn a_primary_that_comes_back_takes_writes_for_a_moment() {
        let run = |mode: &str| {
            let mut s = forgets(&[Class::PauseNode]);
            s.meta.mode = mode.to_owned();
            violations(s, Class::PauseNode, "SIGSTOP", (20, 28))
        };
        assert_eq!((run("redis-cluster"), run("sample")), (0, 1));
    }

    /// Token 6 is asked for at 5,000 and answered at 6,000; then the faults, and token 5 at `asked` and 100 later.
    fn falls(asked: u64, faults: &[(Class, &str, (u64, u64))]) -> usize {
        falls_on("sample", asked, faults)
    }

    fn falls_on(mode: &str, asked: u64, faults: &[(Class, &str, (u64, u64))]) -> usize {
        let mut s = Sample::new();
        s.meta.mode = mode.to_owned();
        s.meta.excuses = vec![Class::Clock, Class::WipeNode];
        s.meta.forgets = Forgets::By(vec![Class::WipeNode, Class::Admin]);
        s.held(1, "a", (5_000, 6_000, 6_010), 6);
        s.held(2, "a", (asked, asked + 100, asked + 110), 5);
        for (number, (class, detail, time)) in (1..).zip(faults) {
            s.fault(number, *class, "all", detail, *time);
        }
        let verdict = s.verdict();
        let [linear, tokens] = [Property::Linear, Property::Tokens].map(|property| verdict.violations(property));
        assert!(linear <= tokens, "(g) has excuses of its own besides: {}", findings(&verdict));
        tokens
    }

    const WIPED: (Class, &str, (u64, u64)) = (Class::WipeNode, "wiped", (7_000, 8_000));

    #[test]
    fn only_a_wrong_clock_and_lost_data_together_excuse_a_token_that_falls() {
        let ahead = (Class::Clock, "+20 s", (2_000, 3_000));
        assert_eq!(falls(9_000, &[ahead, WIPED]), 0);
        assert_eq!(falls(9_000, &[ahead, (Class::Admin, "FLUSHALL", (7_000, 7_001))]), 0);
        assert_eq!((falls(9_000, &[ahead]), falls(9_000, &[WIPED])), (1, 1));
        assert_eq!(falls(9_000, &[ahead, (Class::WipeNode, "wiped", (4_000, 4_999))]), 1, "the older token is younger");
        assert_eq!(falls(9_000, &[ahead, (Class::WipeNode, "wiped", (9_101, 9_200))]), 1, "it fell before");
        assert_eq!(
            falls(9_000, &[(Class::Clock, "+20 s", (6_001, 6_500)), WIPED]),
            1,
            "the older token is of a right time"
        );
    }

    #[test]
    fn a_token_falls_only_until_the_clock_has_caught_up() {
        // The old token is at most of 3 s and 20 s.
        let ahead = |time| (Class::Clock, "+20 s", time);
        assert_eq!(
            (falls(23_000, &[ahead((2_000, 3_000)), WIPED]), falls(23_001, &[ahead((2_000, 3_000)), WIPED])),
            (0, 1)
        );
        // Drawn while it was ahead: of 6 s and 20 s.
        assert_eq!(
            (falls(26_000, &[ahead((2_000, 6_500)), WIPED]), falls(26_001, &[ahead((2_000, 6_500)), WIPED])),
            (0, 1)
        );
    }

    #[test]
    fn a_clock_that_is_behind_excuses_only_what_it_gives() {
        let behind = |time| (Class::Clock, "-5 s", time);
        assert_eq!(falls(9_000, &[WIPED, behind((8_500, 9_000))]), 0, "forgotten, and then told a wrong time");
        assert_eq!(falls(9_000, &[WIPED, behind((8_500, 8_999))]), 1, "it is right again");
        assert_eq!(falls(9_000, &[WIPED, behind((9_101, 9_200))]), 1, "it was right then");
        // What it says is later than the older token.
        assert_eq!(
            (falls(11_000, &[WIPED, behind((8_500, 12_000))]), falls(11_001, &[WIPED, behind((8_500, 12_000))])),
            (0, 1)
        );
        // One after the other: the older token is of 23 s, and it is at most 28 s where the clock says so.
        let both = [(Class::Clock, "+20 s", (2_000, 3_000)), WIPED, behind((8_500, 30_000))];
        assert_eq!((falls(28_000, &both), falls(28_001, &both)), (0, 1));
    }

    #[test]
    fn a_wipe_of_the_only_server_ends_what_a_wrong_clock_gave() {
        let faults = [(Class::Clock, "+20 s", (1_000, 2_000)), (Class::WipeNode, "wiped", (2_500, 3_000)), WIPED];
        assert_eq!((falls(9_000, &faults), falls_on("redlock5", 9_000, &faults)), (1, 0));
        let during = [(Class::Clock, "+20 s", (1_000, 2_600)), (Class::WipeNode, "wiped", (2_500, 3_000)), WIPED];
        assert_eq!(falls(9_000, &during), 0, "it went on to be wrong");
    }
}

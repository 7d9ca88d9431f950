//! Random histories of a lock that does what it promises. The checkers must find nothing in them.

use super::sample::{MS, Sample};
use super::{Property, Verdict};
use crate::history::{Class, Ending, Event, Nanos, Op, Request, Served, Wanted, What};
use fastrand::Rng;

/// A history being written. Each name has its own line of holds, one after another; times are nanoseconds.
struct Author {
    rng: Rng,
    sample: Sample,
    count: u64,
}

const TTL: Nanos = 1_000 * MS;

impl Author {
    fn new(seed: u64) -> Self {
        Self { rng: Rng::with_seed(seed), sample: Sample::new(), count: 0 }
    }

    fn up_to(&mut self, most: Nanos) -> Nanos {
        self.rng.u64(0..=most)
    }

    fn event(&mut self, at: Nanos, what: What) {
        self.sample.events.push(Event { at, what });
    }

    /// Asks some time before `at`, is granted at `at`, and knows it a little later: that moment.
    fn grant(&mut self, name: &str, wanted: Wanted, at: Nanos, token: u64) -> (Op, Nanos) {
        self.count += 1;
        // Of a worker of its own: some abort.
        let op = self.count << 32;
        let waited = self.up_to(3 * TTL);
        self.event(at.saturating_sub(waited), What::Asked { op, name: name.to_owned(), wanted, ttl_ms: 0 });
        let known = at + self.up_to(5 * MS);
        let holder = format!("holder-{op}");
        self.event(known, What::Granted { op, token, holder, valid_until: at + TTL });
        (op, known)
    }

    /// Keeps what it was granted at `at` for a while and ends it in some way. Returns when the store lets the next one in.
    fn keep_and_end(&mut self, op: Op, at: Nanos, known: Nanos) -> Nanos {
        let (mut now, mut lease) = (known, at + TTL);
        for _ in 0..self.rng.u32(0..4) {
            now += self.up_to((lease - now) / 2);
            lease = now + TTL;
            let valid_until = lease - self.rng.u64(1..20) * MS;
            self.event(now, What::Kept { op, valid_until });
        }
        let end = now + self.up_to((lease - now) / 2);
        match self.rng.u8(0..6) {
            0..3 => {
                self.event(end, What::Ending { op, how: Ending::Release });
                let free = end + self.up_to(MS);
                let answered = free + self.up_to(MS);
                self.event(answered, What::Ended { op, outcome: "released".to_owned() });
                free
            }
            3 => {
                self.event(end, What::Ending { op, how: Ending::Drop });
                end + self.up_to(20 * MS)
            }
            4 => {
                self.event(end, What::Ending { op, how: Ending::Abort });
                lease
            }
            // Not renewed any more, and told so later than the next holder is let in.
            _ => {
                let told = lease + self.up_to(TTL);
                self.event(told, What::Lost { op, reason: "gone".to_owned() });
                lease
            }
        }
    }

    fn attempt_in_vain(&mut self, name: &str, at: Nanos) {
        self.count += 1;
        let (op, later) = (self.count << 32, at + self.up_to(TTL));
        self.event(at, What::Asked { op, name: name.to_owned(), wanted: Wanted::Exclusive, ttl_ms: 0 });
        match self.rng.u8(0..4) {
            0 => self.event(later, What::Refused { op, kind: "busy".to_owned(), said: String::new() }),
            1 => self.event(later, What::Refused { op, kind: "unavailable".to_owned(), said: String::new() }),
            2 => self.event(later, What::Abandoned { op }),
            _ => {}
        }
    }

    /// A section on the registers: read and written while held, now and then written once more when it is too late.
    fn section(&mut self, op: Op, token: u64, at: Nanos, registers: &mut Registers) {
        let (fenced, naked) = (registers.fenced, registers.naked);
        registers.serve(at, op, token, Request::Enter { accepted: true });
        registers.serve(at + 1, op, token, Request::Read { fenced, naked });
        if let Some((op, token, fenced_base, naked_base)) = registers.late.take() {
            let (fenced_was, naked_was) = (registers.fenced, registers.naked);
            let request = Request::Write { accepted: false, fenced_base, fenced_was, naked_base, naked_was };
            registers.serve(at + 2, op, token, request);
            registers.naked += 1;
        }
        if self.rng.u8(0..5) == 0 {
            registers.late = Some((op, token, fenced, naked));
            return;
        }
        let naked_was = registers.naked;
        let (fenced_base, fenced_was, naked_base) = (fenced, fenced, naked);
        let request = Request::Write { accepted: true, fenced_base, fenced_was, naked_base, naked_was };
        registers.serve(at + 3, op, token, request);
        (registers.fenced, registers.naked) = (fenced + 1, naked_was + 1);
    }

    /// Holds of one kind after another, and registers with them if they are exclusive.
    fn exclusive(&mut self, name: &str, holds: u64, tokens: bool) {
        let mut registers = Registers { name: name.to_owned(), ..Registers::default() };
        let (mut now, mut token) = (0, 0);
        for _ in 0..holds {
            now += self.up_to(10 * MS);
            token += self.rng.u64(1..1_000);
            let shown = if tokens { token } else { 0 };
            let (op, known) = self.grant(name, Wanted::Exclusive, now, shown);
            if tokens {
                self.section(op, token, known, &mut registers);
            }
            if self.rng.u8(0..4) == 0 {
                self.attempt_in_vain(name, known);
            }
            now = self.keep_and_end(op, now, known);
        }
        self.sample.served.append(&mut registers.lines);
    }

    /// So many lines of permits beside each other; readers are permits without a limit.
    fn beside(&mut self, name: &str, wanted: Wanted, lines: u64, holds: u64) {
        for _ in 0..lines {
            let mut now = 0;
            for _ in 0..holds {
                now += self.up_to(10 * MS);
                let (op, known) = self.grant(name, wanted, now, 0);
                now = self.keep_and_end(op, now, known);
            }
        }
    }

    fn verdict(mut self) -> Verdict {
        self.sample.events.sort_by_key(|event| event.at);
        self.sample.served.sort_by_key(|line| line.at);
        (1..).zip(&mut self.sample.served).for_each(|(seq, line)| line.seq = seq);
        self.sample.verdict()
    }
}

#[derive(Default)]
struct Registers {
    name: String,
    lines: Vec<Served>,
    fenced: u64,
    naked: u64,
    /// A holder that has read, but not written yet: what it will ask for when another holder has been there.
    late: Option<(Op, u64, u64, u64)>,
}

impl Registers {
    fn serve(&mut self, at: Nanos, op: Op, token: u64, request: Request) {
        let (name, holder) = (self.name.clone(), format!("holder-{op}"));
        self.lines.push(Served { at, seq: 0, op, name, token, holder, request });
    }
}

#[test]
fn histories_of_a_right_lock_are_clean() {
    for seed in 0..150 {
        let mut author = Author::new(seed);
        author.exclusive("a", 60, true);
        author.exclusive("other client", 40, false);
        author.beside("permits", Wanted::Permit(3), 3, 20);
        author.beside("readers", Wanted::Shared, 8, 10);
        let verdict = author.verdict();
        assert_eq!(verdict.findings, [], "seed {seed}");
        assert_eq!(verdict.counts.not_searched, 0, "seed {seed}");
        assert_eq!((verdict.counts.overlaps, verdict.counts.lost_fenced), (0, 0));
    }
}

/// Each broken in one way, each must be found by the checkers that are meant for it.
#[test]
fn histories_of_a_broken_lock_are_not() {
    for seed in 0..50 {
        let run = |change: &dyn Fn(&mut Sample)| {
            let mut author = Author::new(seed);
            author.exclusive("a", 60, true);
            author.sample.events.sort_by_key(|event| event.at);
            change(&mut author.sample);
            author.verdict()
        };
        let found = |verdict: &Verdict, property| verdict.violations(property) > 0;
        let falls = run(&|sample| {
            let tokens = sample.events.iter_mut().filter_map(|event| match &mut event.what {
                What::Granted { token, .. } => Some(token),
                _ => None,
            });
            *tokens.last().unwrap() = 1;
        });
        assert!(found(&falls, Property::Tokens) && found(&falls, Property::Linear), "seed {seed}");
        let long = run(&|sample| {
            let first = sample.events.iter().position(|event| matches!(event.what, What::Granted { .. })).unwrap();
            let What::Granted { op, .. } = sample.events[first].what else { return };
            let after = |what: &What| match what {
                What::Kept { op, .. } | What::Ending { op, .. } | What::Lost { op, .. } => Some(*op),
                _ => None,
            };
            sample.events.retain(|event| after(&event.what) != Some(op));
            let at = sample.events[first].at;
            sample.events.push(Event { at: at + 1, what: What::Kept { op, valid_until: at + 20 * TTL } });
        });
        assert!(found(&long, Property::Exclusion) && found(&long, Property::Linear), "seed {seed}");
        let accepted = run(&|sample| {
            let late = sample.served.iter_mut().find_map(|line| match &mut line.request {
                Request::Write { accepted, .. } if !*accepted => Some(accepted),
                _ => None,
            });
            *late.unwrap() = true;
        });
        assert!(found(&accepted, Property::Fence), "seed {seed}");
    }
}

/// 300,000 operations, to be timed by hand.
#[test]
#[ignore = "takes seconds; run it when a checker has changed, and look at the time"]
fn a_long_history_is_checked_in_seconds() {
    let mut author = Author::new(7);
    (0..4).for_each(|n| author.exclusive(&format!("a{n}"), 50_000, true));
    author.exclusive("other client", 30_000, false);
    author.beside("permits", Wanted::Permit(3), 3, 10_000);
    author.sample.fault(1, Class::Delay, "all", "hold", (5, 6));
    let began = std::time::Instant::now();
    let verdict = author.verdict();
    println!("{} operations in {:?}", verdict.counts.operations, began.elapsed());
    assert_eq!((verdict.findings.as_slice(), verdict.counts.not_searched), (&[][..], 0));
}

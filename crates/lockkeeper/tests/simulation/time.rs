//! Time: the store's, and that of each keeper, whose clock runs a little faster or slower.

use crate::schedule::{Checked, Simulation};
use crate::truth::Time;
use std::time::Duration;

/// No message is on its way for longer: tombstones last longer than that.
pub const LONGEST_DELAY: Time = 30_000_000;
/// All clocks begin here.
const START: Time = 1_000_000_000;

impl Simulation<'_> {
    pub fn now(&self) -> Time {
        self.world.lock().now
    }

    pub fn local(&self, keeper: usize) -> Time {
        self.clocks[keeper].stamp().as_micros()
    }

    pub fn local_at(&self, keeper: usize, now: Time) -> Time {
        START + now.saturating_add_signed(now as i64 * self.rates[keeper] / 1000)
    }

    /// The next timer of any keeper, in true time.
    pub fn next_timer(&self) -> Option<Time> {
        let now = self.now();
        let all = (0..self.clocks.len()).filter_map(|keeper| {
            let at = self.clocks[keeper].next_timer()?.as_micros();
            let mut time =
                (at.saturating_sub(START) * 1000 / (1000_u64).saturating_add_signed(self.rates[keeper])).max(now);
            while self.local_at(keeper, time) < at {
                time += 1;
            }
            Some(time)
        });
        all.min()
    }

    /// Time never passes while a keeper could go on, unless its process may stand still.
    pub fn pass_time(&mut self) -> Checked {
        if !self.faults().pauses || self.choices.pick(2) == 0 {
            self.drain()?;
        }
        let (now, next) = (self.now(), self.next_timer());
        let mut to = match self.choices.pick(7) {
            0 | 1 => next.unwrap_or(now),
            // Shortly before or after the end of a lease.
            2 | 3 => {
                let near = self.choices.of(&[0, 9_000, 7_000, 8_000, 13_000, 28_000]);
                let first = self.world.lock().truth.leases.first().map(|lease| lease.ends);
                first.map_or(now, |ends| ends.saturating_sub(8_000) + near)
            }
            4 => now + 20_000,
            5 => now + 300_000,
            _ => now + 5_000_000,
        };
        if !self.faults().pauses {
            to = next.map_or(to, |next| next.min(to));
        }
        self.move_to(to);
        Ok(())
    }

    pub fn move_to(&mut self, to: Time) {
        let mut inner = self.world.lock();
        inner.now = inner.now.max(to);
        let now = inner.now;
        inner.say(|| "time passes".to_owned());
        while let Some(at) = inner.messages.iter().position(|m| now - m.sent > LONGEST_DELAY) {
            inner.lose(at, false);
        }
        inner.store_steps();
        drop(inner);
        for keeper in 0..self.clocks.len() {
            let by = self.local_at(keeper, now).saturating_sub(self.local(keeper));
            self.clocks[keeper].move_on(Duration::from_micros(by));
        }
    }
}

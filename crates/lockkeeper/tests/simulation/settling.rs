//! After the faults: every caller must come to an end, and nothing of it may be left.

use crate::checks;
use crate::schedule::{Checked, Simulation};
use crate::tasks::{Doing, Task};
use crate::time::LONGEST_DELAY;
use lockkeeper::testing::Clock;

impl Simulation<'_> {
    /// Faults stop, callers give their locks back: every caller must come to an end.
    pub fn settle(&mut self) -> Checked {
        self.healed = true;
        self.world.lock().say(|| "faults stop".to_owned());
        let limit = self.now() + 8 * LONGEST_DELAY;
        for task in &mut self.tasks {
            task.left = 0;
        }
        loop {
            self.drain()?;
            checks::beliefs(self)?;
            checks::losses_are_told(self)?;
            let held = self.tasks.iter().position(|task| matches!(task.doing, Doing::Holding { .. }));
            if let Some(at) = held {
                match self.choices.pick(2) {
                    0 => self.let_go(at),
                    _ => self.drop_doing(at, "drops its guard"),
                }
                continue;
            }
            if self.tasks.iter().all(Task::is_done) {
                break;
            }
            let next = self.next_timer().ok_or("a caller waits for ever: no timer is set")?;
            if next > limit {
                return Err("a caller waits for ever: it was not served long after the faults had stopped".to_owned());
            }
            self.move_to(next);
        }
        Ok(())
    }

    /// All callers have ended: nothing of them may be left.
    pub fn end(&mut self) -> Checked {
        if self.style.is_calm() {
            checks::nothing_left(self, "without any fault")?;
            checks::store_is_empty(self)?;
        }
        let limit = self.now() + 2 * LONGEST_DELAY;
        while checks::nothing_left(self, "").is_err() {
            match self.next_timer().filter(|next| *next <= limit) {
                Some(next) => self.move_to(next),
                None => return checks::nothing_left(self, "long after the last caller's end"),
            }
            self.drain()?;
        }
        checks::no_leaks(self)?;
        let later = self.now() + 2 * LONGEST_DELAY;
        self.move_to(later);
        self.drain()?;
        checks::nothing_left(self, "after its own end")?;
        checks::store_is_empty(self)?;
        self.keepers.clear();
        self.drain()?;
        match self.clocks.iter().map(Clock::jobs).sum::<usize>() {
            0 => Ok(()),
            left => Err(format!("{left} jobs are left after the keepers' end")),
        }
    }
}

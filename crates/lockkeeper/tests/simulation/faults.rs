//! What happens to messages, and in the store.

use crate::network::What;
use crate::schedule::Simulation;
use lockkeeper::store::Event;
use lockkeeper::{LockName, LossReason};

impl Simulation<'_> {
    /// Something happens to a message.
    pub fn mishap(&mut self) {
        let mut inner = self.world.lock();
        let count = inner.messages.len();
        if count == 0 {
            return;
        }
        let at = self.choices.pick(count);
        match self.choices.pick(6) {
            4 | 5 if self.faults().losses => inner.cut(at),
            0 | 1 if self.faults().losses => {
                let told = self.choices.pick(2) == 0;
                inner.lose(at, told);
            }
            2 if self.faults().copies => inner.copy(at),
            3 if self.faults().copies => {
                if let What::Hint { keeper, event } = &inner.messages[at].what {
                    let (keeper, event) = (*keeper, event.clone());
                    inner.hint(keeper, event);
                }
            }
            _ => {}
        }
    }

    /// Something happens in the store; false where that is not allowed.
    pub fn store_fault(&mut self) -> bool {
        if !self.faults().store_faults {
            return false;
        }
        let mut inner = self.world.lock();
        let keeper = self.choices.pick(self.keepers.len());
        match self.choices.pick(6) {
            0 | 1 if !inner.truth.leases.is_empty() => {
                let at = self.choices.pick(inner.truth.leases.len());
                let (broken, told) = (self.choices.pick(2) == 0, self.choices.pick(2) == 0);
                let owner = inner.truth.leases[at].keeper;
                let holder = inner.truth.take_away(at, broken);
                inner.say(|| format!("a lease of keeper {owner} is {}", if broken { "broken" } else { "lost" }));
                if told {
                    let reason = if broken { LossReason::Broken } else { LossReason::Gone };
                    inner.told_over.push(holder);
                    inner.hint(owner, Event::Lost(holder, reason));
                }
                inner.store_steps();
            }
            2 => {
                inner.say(|| format!("the session of keeper {keeper} ends"));
                while let Some(at) = inner.truth.leases.iter().position(|lease| lease.keeper == keeper) {
                    inner.truth.take_away(at, false);
                }
                inner.truth.waiters.retain(|waiter| waiter.keeper != keeper);
                inner.sessions_over.push(keeper);
                inner.hint(keeper, Event::SessionLost);
                inner.store_steps();
            }
            3 => inner.hint(keeper, Event::Disconnected),
            4 => inner.hint(keeper, Event::Reconnected),
            _ => inner.hint(keeper, Event::Wake(LockName::new("a").unwrap())),
        }
        true
    }
}

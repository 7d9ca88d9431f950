//! What a keeper does with its claim and its session, and what the server makes of it.

use super::{Call, Id, Life, Message, Role, Said, Sessions, State, TTL, Told, Variant};
use lockkeeper::Token;
use lockkeeper::clock::Stamp;
use lockkeeper::machine::hold::{self, Hold, Phase};
use lockkeeper::machine::queue;
use lockkeeper::store::{Grant, LossReason};

impl Sessions {
    /// One step of the queue, and what follows from it.
    pub(super) fn step(&self, s: &mut State, k: u8, input: queue::Input) {
        let fresh = u64::from(s.keeper(k).keys + 1);
        for output in s.keeper(k).queue.step(input, fresh) {
            match output {
                queue::Output::Try { claim, .. } => {
                    let keeper = s.keeper(k);
                    keeper.keys = keeper.keys.max(claim as u8);
                    keeper.claim = Some((claim as u8, Role::Trying));
                    let call = if s.is_fresh(k) { Call::Create } else { Call::KeepAlive };
                    s.ask(k, call, None);
                }
                queue::Output::Grant { task, .. } => {
                    s.keeper(k).tasks[task as usize] = Life::Has;
                    self.step(s, k, queue::Input::Taken(task));
                }
                queue::Output::Drop(claim) => {
                    s.keeper(k).claim.take_if(|(key, _)| u64::from(*key) == claim);
                    s.ask(k, Call::Delete, Some(claim as u8));
                }
                queue::Output::Busy(_) => {}
            }
        }
    }

    /// The claim is not in the store any more.
    fn gone(&self, s: &mut State, k: u8) {
        match s.keeper(k).claim {
            Some((_, Role::Held(_))) => self.hold(s, k, hold::Input::Gone(LossReason::Gone)),
            Some((key, _)) => {
                s.keeper(k).claim = None;
                self.step(s, k, queue::Input::Answer(key.into(), queue::Answer::Gone));
            }
            None => {}
        }
    }

    fn granted(&self, s: &mut State, k: u8, token: u64, called: Stamp) {
        let now = s.now;
        let keeper = s.keeper(k);
        let Some((key, _)) = keeper.claim else { return };
        let stamp = if self.variant == Variant::GrantFromLook { called } else { keeper.acked };
        let grant = Grant { token: Token::new(token).expect("a small token"), stamp, lease: TTL };
        let hold = Hold::new(&grant, TTL, None);
        if hold.deadline() <= now && self.variant != Variant::LateGrant {
            // Too late to be worth anything.
            s.ask(k, Call::Delete, None);
            return self.gone(s, k);
        }
        keeper.claim = Some((key, Role::Held(hold)));
        self.step(s, k, queue::Input::Answer(key.into(), queue::Answer::Granted));
    }

    pub(super) fn hold(&self, s: &mut State, k: u8, input: hold::Input) {
        let (now, most) = (s.now, self.upkeep);
        let keeper = s.keeper(k);
        let Some((key, Role::Held(hold))) = &mut keeper.claim else { return };
        let key = *key;
        let outputs = hold.step(now, input);
        let renew = outputs.iter().any(|o| matches!(o, hold::Output::Renew { .. }));
        if renew && keeper.upkeep == most {
            hold.step(now, hold::Input::Failed);
        }
        let over = matches!(hold.phase(), Phase::Lost(_));
        if renew && keeper.upkeep < most {
            keeper.upkeep += 1;
            s.ask(k, Call::KeepAlive, None);
        }
        if outputs.contains(&hold::Output::Release) {
            s.ask(k, Call::Delete, None);
        }
        if over {
            let keeper = s.keeper(k);
            keeper.claim = None;
            keeper.tasks.iter_mut().filter(|t| **t == Life::Has).for_each(|t| *t = Life::Over);
            self.step(s, k, queue::Input::Ended(key.into()));
        }
    }

    /// What the keeper's thread does when it looks at the clock.
    pub(super) fn wake(&self, s: &mut State, k: u8) {
        let now = s.now;
        let keeper = s.keeper(k);
        match &keeper.claim {
            Some((_, Role::Held(hold))) if hold.wake_at().is_some_and(|at| at <= now) => {
                self.hold(s, k, hold::Input::Tick);
            }
            Some((_, Role::Waiting(_))) if keeper.sent.after(TTL / 3) <= now && keeper.upkeep < self.upkeep => {
                keeper.upkeep += 1;
                s.ask(k, Call::KeepAlive, None);
            }
            _ => {}
        }
    }

    /// What the keeper's timers would ask, if it brings anything new.
    pub(super) fn upkeep(&self, s: &State, k: u8) -> Option<Call> {
        let keeper = &s.keepers[usize::from(k)];
        let id = s.id(k, None);
        let is_call = |m: &Message| matches!(m, Message::Ask(id, ..) | Message::Answer(id, ..) if id.keeper == k);
        if s.network.iter().any(is_call) {
            return None;
        }
        let call = match keeper.claim.map(|(_, role)| role) {
            None => None,
            Some(Role::Trying) if s.is_fresh(k) => Some(Call::Create),
            Some(Role::Trying) => Some(Call::KeepAlive),
            Some(Role::Waiting(created)) => match s.server.clone().look(id, created, self.variant) {
                Said::Waits(_) => None,
                Said::NoSession => Some(Call::KeepAlive),
                Said::Missing if self.variant == Variant::PredecessorOnly => None,
                _ => Some(Call::Look(created)),
            },
            Some(Role::Held(_)) => {
                let noticed = !s.server.has(id) && self.variant != Variant::PredecessorOnly;
                (noticed || !s.server.is_alive(id)).then_some(Call::KeepAlive)
            }
        };
        let left = match s.server.keys(id) {
            Said::Keys(bits) => bits & !(1 << id.key),
            _ => 0,
        };
        call.or((left != 0 && self.variant != Variant::NoSweep).then_some(Call::List))
    }

    pub(super) fn at_server(&self, s: &mut State, id: Id, call: Call, stamp: Stamp) {
        let said = match call {
            Call::Create => s.server.create(id, self.variant),
            Call::Look(created) => s.server.look(id, created, self.variant),
            Call::KeepAlive => {
                let until = s.now.after(TTL);
                s.server.keep_alive(id, until)
            }
            Call::List => s.server.keys(id),
            Call::Delete => {
                let told = s.server.delete(id);
                return s.tell(told);
            }
        };
        s.send(Message::Answer(id, stamp, said));
    }

    pub(super) fn at_keeper(&self, s: &mut State, id: Id, stamp: Stamp, said: Said) {
        let (k, now) = (id.keeper, s.now);
        let own = s.id(k, None);
        let keeper = s.keeper(k);
        if keeper.session != id.session {
            return;
        }
        match (said, keeper.claim.map(|(_, role)| role)) {
            (Said::NoSession, _) => {
                keeper.session += 1;
                (keeper.acked, keeper.sent) = (now, now);
                let session = (k, keeper.session, now.after(TTL));
                s.server.sessions.push(session);
                s.server.sessions.sort_unstable();
                self.gone(s, k);
            }
            (Said::Alive(there), role) => {
                let stamp = if self.variant == Variant::FromReceipt { now } else { stamp };
                keeper.acked = keeper.acked.max(stamp);
                match role {
                    Some(Role::Held(_)) if id != own => {}
                    Some(Role::Held(_)) if there || self.variant == Variant::PredecessorOnly => {
                        self.hold(s, k, hold::Input::Renewed { stamp, lease: TTL });
                    }
                    Some(Role::Held(_)) => self.gone(s, k),
                    _ => {}
                }
            }
            (Said::Keys(bits), _) => {
                // A claim is known here before its key can be there, so what is in no claim now is a leftover.
                let owned = if self.variant == Variant::SweepByOldList { id.key } else { own.key };
                for key in (1..=keeper.keys).filter(|key| bits & (1 << key) != 0 && *key != owned) {
                    s.ask(k, Call::Delete, Some(key));
                }
            }
            (_, Some(role)) if id == own => match (said, role) {
                (Said::Holds(token), Role::Trying | Role::Waiting(_)) => self.granted(s, k, token, stamp),
                (Said::Waits(created), Role::Trying) => {
                    keeper.claim = Some((id.key, Role::Waiting(created)));
                    self.step(s, k, queue::Input::Answer(id.key.into(), queue::Answer::Held));
                }
                (Said::Missing, Role::Waiting(_)) => self.gone(s, k),
                _ => {}
            },
            _ => {}
        }
    }

    pub(super) fn hint(&self, s: &mut State, id: Id, told: Told) {
        let Some((_, role)) = s.keeper(id.keeper).claim.filter(|_| s.id(id.keeper, None) == id) else { return };
        match (told, role) {
            (Told::Gone, _) if self.variant != Variant::PredecessorOnly => self.gone(s, id.keeper),
            (Told::Wake, Role::Waiting(_)) if self.variant == Variant::GrantedByEvent => {
                let (token, now) = (s.server.revision, s.now);
                self.granted(s, id.keeper, token, now);
            }
            (Told::Wake, Role::Waiting(created)) => s.ask(id.keeper, Call::Look(created), None),
            _ => {}
        }
    }
}

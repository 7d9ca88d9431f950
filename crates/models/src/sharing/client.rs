//! What a client does with its claim.

use super::{Call, Id, Message, Role, Said, Sharing, State, TTL};
use lockkeeper::Token;
use lockkeeper::clock::Stamp;
use lockkeeper::machine::hold::{self, Hold, Phase};
use lockkeeper::store::{Grant, LossReason};

impl Sharing {
    /// Sends a call of the client's claim, stamped.
    pub(super) fn ask(&self, s: &mut State, c: u8, call: Call) {
        let (id, now) = (s.id(c), s.now);
        let Some(mode) = self.mode(s, c) else { return };
        let stamp = match call {
            Call::Release(_) => Stamp::default(),
            Call::Acquire | Call::Renew => now,
        };
        if call == Call::Acquire {
            s.client(c).sent += 1;
        }
        s.client(c).stamp = now;
        s.send(Message::Ask(id, call, mode, stamp));
    }

    /// Asks for the lock, with a claim that is new.
    pub(super) fn begin(&self, s: &mut State, c: u8) {
        let client = s.client(c);
        client.key += 1;
        (client.sent, client.answered, client.role) = (0, 0, Role::Trying);
        self.ask(s, c, Call::Acquire);
    }

    /// Releases the claim. A client that wants the lock still begins anew.
    pub(super) fn end(&self, s: &mut State, c: u8, done: bool) {
        let unsettled = s.client(c).answered < s.client(c).sent;
        self.ask(s, c, Call::Release(unsettled));
        self.over(s, c, done);
    }

    fn over(&self, s: &mut State, c: u8, done: bool) {
        if !done {
            return self.begin(s, c);
        }
        let client = s.client(c);
        client.task += 1;
        (client.role, client.sent, client.answered, client.stamp) = (Role::Idle, 0, 0, Stamp::default());
    }

    /// The store has it no more. If an acquire of it may be under way, only a tombstone ends it.
    fn gone(&self, s: &mut State, c: u8) {
        let held = matches!(s.client(c).role, Role::Held(_));
        let unsettled = s.client(c).answered < s.client(c).sent;
        if unsettled { self.end(s, c, held) } else { self.over(s, c, held) }
    }

    pub(super) fn hold(&self, s: &mut State, c: u8, input: hold::Input) {
        let (now, most) = (s.now, self.upkeep);
        let client = s.client(c);
        let Role::Held(hold) = &mut client.role else { return };
        let outputs = hold.step(now, input);
        let renew = outputs.iter().any(|o| matches!(o, hold::Output::Renew { .. }));
        if renew && client.upkeep == most {
            hold.step(now, hold::Input::Failed);
        }
        let lost = matches!(hold.phase(), Phase::Lost(_));
        if renew && client.upkeep < most {
            client.upkeep += 1;
            self.ask(s, c, Call::Renew);
        }
        match (lost, outputs.contains(&hold::Output::Release)) {
            (true, true) => self.end(s, c, true),
            (true, false) => self.gone(s, c),
            _ => {}
        }
    }

    /// What the client's timers do when it looks at the clock.
    pub(super) fn wake(&self, s: &mut State, c: u8) {
        let (now, most) = (s.now, self.upkeep);
        let client = s.client(c);
        match &client.role {
            Role::Held(hold) if hold.wake_at().is_some_and(|at| at <= now) => self.hold(s, c, hold::Input::Tick),
            Role::Waiting if client.stamp.after(TTL / 3) <= now && client.upkeep < most => {
                client.upkeep += 1;
                self.ask(s, c, Call::Renew);
            }
            _ => {}
        }
    }

    pub(super) fn at_client(&self, s: &mut State, id: Id, said: Said, stamp: Stamp) {
        let (c, now) = (id.client, s.now);
        let client = s.client(c);
        match (client.role, said) {
            (Role::Trying | Role::Waiting, Said::Yours(lease)) => {
                if client.role == Role::Trying {
                    client.answered += 1;
                }
                // Who holds matters here, and not with which number: the store compares those.
                let grant = Grant { token: Token::MAX, stamp, lease };
                let hold = Hold::new(&grant, TTL, None);
                if hold.deadline() <= now {
                    return self.end(s, c, false);
                }
                client.role = Role::Held(hold);
            }
            (Role::Trying, Said::Waits) => {
                client.answered += 1;
                client.role = Role::Waiting;
            }
            (Role::Trying, Said::Gone) => {
                client.answered += 1;
                self.gone(s, c);
            }
            (Role::Waiting, Said::Gone) => self.gone(s, c),
            (Role::Held(_), Said::Yours(lease)) => self.hold(s, c, hold::Input::Renewed { stamp, lease }),
            (Role::Held(_), Said::Gone) => self.hold(s, c, hold::Input::Gone(LossReason::Gone)),
            _ => {}
        }
    }

    /// Forgets answers that no client listens to: those to an old claim, to an older acquire, and to the dead.
    pub(super) fn tidy(&self, s: &mut State) {
        let clients = &s.clients;
        s.network.retain(|message| {
            let Message::Answer(id, call, said, stamp) = message else { return true };
            let client = &clients[usize::from(id.client)];
            let current = client.alive && client.key == id.key;
            current
                && match client.role {
                    Role::Idle => false,
                    Role::Trying => *call == Call::Acquire && *stamp == client.stamp,
                    Role::Waiting | Role::Held(_) => *call == Call::Renew && *said != Said::Waits,
                }
        });
    }
}

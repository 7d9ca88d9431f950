//! D: keepers with several tasks each, in line for one lock. Tasks give up at any time, a keeper may die, requests get
//! lost and overtake each other. A living keeper repeats what was lost.
//!
//! Time is coarse: one step of it is a whole lease. A claim that its keeper knows is kept alive over it; every other
//! claim has ended after it.

use crate::claim;
use lockkeeper::clock::Stamp;
use lockkeeper::machine::hold;
use lockkeeper::machine::queue::{self, Queue, Task};
use lockkeeper::machine::slot::{At, Slot};
use lockkeeper::store::{Attempt, Grant, Renewal};
use lockkeeper::{HolderId, Mode};
use stateright::{Model, Property};
use std::time::Duration;

/// What ships, or a way to get it wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// As it is.
    Shipped,
    /// When the head gives up, its place in line goes with it and the next task starts at the back.
    PlaceLost,
    /// A cancel is sent once, and the session keeps the claim alive if the cancel is lost.
    CancelOnce,
    /// A claim counts as settled once any of its acquires was answered, though another is still under way.
    SettledByAnyAnswer,
    /// A push that comes after its lease ends the claim, also when it is back in line by then.
    LatePush,
    /// A local task that comes while a claim waits starts one of its own.
    ClaimPerTask,
}

/// The model and its bounds.
#[derive(Clone, Debug)]
pub struct Handover {
    /// Which one.
    pub variant: Variant,
    /// A keeper's next claim does not wait for the answer to the release before it.
    pub ordered: bool,
    /// The tasks of each keeper, by mode.
    pub tasks: Vec<Vec<Mode>>,
    /// How many requests and pushes may be lost.
    pub losses: u8,
    /// How many keepers may die.
    pub deaths: u8,
    /// How many leases pass.
    pub ages: u8,
    /// How many tasks may give up.
    pub cancels: u8,
}

const TTL: Duration = Duration::from_secs(10);

/// A task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Life {
    /// Not started.
    New,
    /// Wants the lock.
    Wants,
    /// Has it, with this claim.
    Has(u64),
    /// Released it, or gave up.
    Over,
}

/// What a keeper does with a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Acquires sent, and the stamp of the last.
    Trying(u8, Stamp),
    /// In line.
    Waiting,
    /// Granted.
    Held,
    /// In the to-release set.
    Ending,
}

/// A claim of a keeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Known {
    key: u64,
    mode: Mode,
    role: Role,
    sent: u8,
    answered: u8,
}

/// One keeper.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Keeper {
    alive: bool,
    queue: Queue,
    tasks: Vec<Life>,
    claims: Vec<Known>,
    keys: u64,
    owed: Option<Owed>,
}

/// A task that inherited a place in line.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Owed {
    task: u64,
    place: HolderId,
    /// The claims that were before it then.
    ahead: Vec<HolderId>,
}

/// A message on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Message {
    /// `try_acquire`: keeper, claim, when it was sent.
    Acquire(u8, u64, Stamp),
    /// `release`: keeper, claim, `unsettled`.
    Release(u8, u64, bool),
    /// The answer to an acquire: keeper, claim, the call's stamp, what.
    Answer(u8, u64, Stamp, Said),
    /// A grant handed over: keeper, claim, the stamp it echoes.
    Push(u8, u64, Stamp),
}

/// The answer to an acquire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Said {
    /// Granted, for this long.
    Granted(Duration),
    /// In line.
    Held,
    /// Cancelled before.
    Cancelled,
}

/// One state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    slot: Slot,
    keepers: Vec<Keeper>,
    network: Vec<Message>,
    losses: u8,
    deaths: u8,
    ages: u8,
    cancels: u8,
    overtaken: bool,
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// A task arrives: keeper, task.
    Start(u8, u64),
    /// A task gives up.
    Cancel(u8, u64),
    /// A task is done with the lock.
    Finish(u8, u64),
    /// A keeper repeats a release that got lost.
    ReleaseAgain(u8, u64),
    /// A task repeats an acquire that got lost.
    TryAgain(u8, u64),
    /// A keeper keeps its waiting claim alive, and learns what became of it.
    KeepAlive(u8, u64),
    /// A keeper dies.
    Die(u8),
    /// A whole lease passes.
    Age,
    /// A message arrives.
    Deliver(Message),
    /// A message is lost.
    Lose(Message),
}

fn id(k: u8, key: u64) -> HolderId {
    HolderId::from_u128(u128::from(k) << 64 | u128::from(key))
}

fn owner(id: HolderId) -> (u8, u64) {
    let number = id.to_u128();
    ((number >> 64) as u8, number as u64)
}

impl State {
    fn now(&self) -> Stamp {
        Stamp::default().after(TTL * u32::from(self.ages + 1))
    }

    fn send(&mut self, message: Message) {
        self.network.push(message);
        self.network.sort_unstable();
    }

    fn keeper(&mut self, k: u8) -> &mut Keeper {
        &mut self.keepers[usize::from(k)]
    }

    fn known(&mut self, k: u8, key: u64) -> Option<&mut Known> {
        self.keeper(k).claims.iter_mut().find(|c| c.key == key)
    }

    /// Whether the keeper is alive and still has something to do with this claim.
    fn is_known(&self, holder: HolderId) -> bool {
        let (k, key) = owner(holder);
        let keeper = &self.keepers[usize::from(k)];
        keeper.alive && keeper.claims.iter().any(|c| c.key == key && c.role != Role::Ending)
    }

    fn is_alive(&self, holder: HolderId) -> bool {
        self.keepers[usize::from(owner(holder).0)].alive
    }

    fn under_way(&self, what: impl Fn(&Message) -> bool) -> bool {
        self.network.iter().any(what)
    }
}

impl Handover {
    fn mode(&self, k: u8, task: u64) -> Mode {
        self.tasks[usize::from(k)][task as usize]
    }

    /// Runs one step of the store, sends what it pushes, and notes who overtook whom.
    fn at_store<T>(&self, s: &mut State, k: u8, now: Stamp, step: impl FnOnce(&mut Slot, At) -> T) -> T {
        let before = s.slot.clone();
        let answer = step(&mut s.slot, At { now, wall_us: 0, keeper: u64::from(k) });
        let pushed: Vec<_> = s.slot.handed().filter(|(_, id, _)| !before.handed().any(|(_, b, _)| b == *id)).collect();
        for (_, holder, grant) in pushed {
            let (k, key) = owner(holder);
            s.send(Message::Push(k, key, grant.stamp));
        }
        let new: Vec<_> =
            s.slot.holders.iter().map(|h| h.id).filter(|id| !before.holders.iter().any(|h| h.id == *id)).collect();
        for holder in new {
            let (by, _) = owner(holder);
            let holds = |id: HolderId| s.slot.holders.iter().any(|h| h.id == id);
            let overtakes = |(k, keeper): (usize, &Keeper)| {
                let owed = |o: &Owed| !o.ahead.contains(&holder) && !holds(o.place);
                k != usize::from(by) && keeper.alive && keeper.owed.as_ref().is_some_and(owed)
            };
            s.overtaken |= s.keepers.iter().enumerate().any(overtakes);
        }
        answer
    }

    fn claim(&self, k: u8, known: &Known, stamp: Stamp) -> lockkeeper::store::Claim {
        let mut claim = claim(id(k, known.key), TTL, stamp);
        claim.mode = known.mode;
        claim
    }

    fn step(&self, s: &mut State, k: u8, input: queue::Input) {
        let keeper = s.keeper(k);
        keeper.keys += 1;
        let fresh = keeper.keys;
        let outputs = keeper.queue.step(input, fresh);
        if keeper.queue.pending().is_none_or(|p| p.claim != fresh) {
            keeper.keys -= 1;
        }
        for output in outputs {
            match output {
                queue::Output::Try { task, claim } => self.acquire(s, k, task, claim),
                queue::Output::Grant { task, claim } => {
                    let keeper = s.keeper(k);
                    keeper.tasks[task as usize] = Life::Has(claim);
                    keeper.owed.take_if(|owed| owed.task == task);
                    self.step(s, k, queue::Input::Taken(task));
                }
                queue::Output::Busy(task) => s.keeper(k).tasks[task as usize] = Life::Over,
                queue::Output::Drop(claim) => self.end(s, k, claim),
            }
        }
    }

    fn acquire(&self, s: &mut State, k: u8, task: u64, key: u64) {
        let now = s.now();
        let mode = self.mode(k, task);
        if s.known(k, key).is_none() {
            s.keeper(k).claims.push(Known { key, mode, role: Role::Trying(0, now), sent: 0, answered: 0 });
        }
        let Some(known) = s.known(k, key) else { return };
        known.sent += 1;
        known.role = Role::Trying(known.sent, now);
        s.send(Message::Acquire(k, key, now));
    }

    fn unsettled(&self, known: &Known) -> bool {
        match self.variant {
            Variant::SettledByAnyAnswer => known.answered == 0,
            _ => known.answered < known.sent,
        }
    }

    fn end(&self, s: &mut State, k: u8, key: u64) {
        let Some(known) = s.known(k, key) else { return };
        if known.role == Role::Ending {
            return;
        }
        let follows = self.ordered && known.role == Role::Held;
        known.role = Role::Ending;
        let unsettled = self.unsettled(known);
        s.send(Message::Release(k, key, unsettled));
        if follows {
            self.step(s, k, queue::Input::Ended(key));
        }
        if self.variant == Variant::CancelOnce {
            s.keeper(k).claims.retain(|c| c.key != key);
            self.step(s, k, queue::Input::Ended(key));
        }
    }

    /// The store does not have the claim. If an acquire of it may be under way, only a tombstone ends it.
    fn gone(&self, s: &mut State, k: u8, key: u64) {
        if s.known(k, key).is_some_and(|c| self.unsettled(c)) {
            self.end(s, k, key);
        } else {
            self.forget(s, k, key);
        }
        self.step(s, k, queue::Input::Answer(key, queue::Answer::Gone));
    }

    fn forget(&self, s: &mut State, k: u8, key: u64) {
        s.keeper(k).claims.retain(|c| c.key != key);
    }

    fn granted(&self, s: &mut State, k: u8, key: u64, stamp: Stamp, lease: Duration) {
        if hold::deadline(stamp, lease) <= s.now() {
            self.end(s, k, key);
            self.step(s, k, queue::Input::Answer(key, queue::Answer::Gone));
            return;
        }
        if let Some(known) = s.known(k, key) {
            known.role = Role::Held;
        }
        self.step(s, k, queue::Input::Answer(key, queue::Answer::Granted));
    }

    fn leave(&self, s: &mut State, k: u8, task: u64) {
        let now = s.now();
        let place = s.keeper(k).queue.pending().filter(|p| p.task == task && p.waiting).map(|p| id(k, p.claim));
        // A place that ended before its keeper could keep it alive cannot be inherited. Nor can one whose acquire took
        // a whole lease to arrive, since its grant would have ended.
        let held = s.slot.holders.iter().filter(|h| h.expires > now).map(|h| h.id);
        let line: Vec<_> = held.chain(s.slot.waiters.iter().filter(|w| w.expires > now).map(|w| w.id)).collect();
        let handed = s.slot.handed().map(|(_, id, grant)| (id, grant.stamp));
        let stamps = handed.chain(s.slot.waiters.iter().map(|w| (w.id, w.stamp)));
        let fresh: Vec<_> = stamps.filter(|(_, stamp)| hold::deadline(*stamp, TTL) > now).map(|(id, _)| id).collect();
        let place = place.filter(|place| fresh.contains(place));
        let place = place.and_then(|place| Some((place, line.iter().position(|other| *other == place)?)));
        if self.variant == Variant::PlaceLost && place.is_some() {
            let behind: Vec<_> = s.keeper(k).queue.tasks().filter(|t| t.id != task).cloned().collect();
            for other in &behind {
                self.step(s, k, queue::Input::Leave(other.id));
            }
            self.step(s, k, queue::Input::Leave(task));
            for other in &behind {
                self.step(s, k, queue::Input::Enter(other.clone()));
            }
        } else {
            self.step(s, k, queue::Input::Leave(task));
        }
        let mode = self.mode(k, task);
        let keeper = s.keeper(k);
        if let Some((place, at)) = place {
            let heir = keeper.queue.tasks().find(|t| t.granted.is_none()).filter(|t| t.mode == mode);
            keeper.owed = heir.map(|heir| Owed { task: heir.id, place, ahead: line[..at].to_vec() });
        }
    }

    fn keep_alive(&self, s: &mut State, k: u8, key: u64, now: Stamp) {
        let Some(&mut known) = s.known(k, key) else { return };
        let claim = self.claim(k, &known, now);
        match self.at_store(s, k, now, |slot, at| slot.renew(&claim, at)).expect("a definite answer") {
            Renewal::Granted(Grant { stamp, lease, .. }) => self.granted(s, k, key, stamp, lease),
            Renewal::Waiting(_) => {}
            Renewal::Renewed(_) => self.granted(s, k, key, now, TTL),
            Renewal::Lost(_) => self.gone(s, k, key),
        }
    }

    /// Whether a keep-alive of this waiting claim would bring anything new.
    fn has_news(&self, s: &State, k: u8, known: &Known) -> bool {
        let mut slot = s.slot.clone();
        let at = At { now: s.now(), wall_us: 0, keeper: u64::from(k) };
        let handed = slot.handed().count();
        let answer = slot.renew(&self.claim(k, known, s.now()), at);
        !matches!(answer, Ok(Renewal::Waiting(_))) || slot.handed().count() != handed
    }

    fn age(&self, s: &mut State) {
        // Shortly before the lease ends, every keeper has renewed what it knows.
        let almost = s.now().after(TTL - Duration::from_secs(1));
        s.ages += 1;
        for k in 0..s.keepers.len() as u8 {
            if !s.keeper(k).alive {
                continue;
            }
            for known in s.keeper(k).claims.clone() {
                match known.role {
                    Role::Waiting => self.keep_alive(s, k, known.key, almost),
                    Role::Held => {
                        let claim = self.claim(k, &known, almost);
                        let _ = self.at_store(s, k, almost, |slot, at| slot.renew(&claim, at));
                    }
                    Role::Trying(..) | Role::Ending => {}
                }
            }
        }
        if self.variant == Variant::CancelOnce {
            let now = s.now();
            let session: Vec<bool> = s.keepers.iter().map(|k| k.alive).collect();
            let lives = |id: HolderId| session[usize::from(owner(id).0)];
            s.slot.holders.iter_mut().filter(|h| lives(h.id)).for_each(|h| h.expires = now.after(TTL));
            s.slot.waiters.iter_mut().filter(|w| lives(w.id)).for_each(|w| w.expires = now.after(TTL));
        }
    }

    fn deliver(&self, s: &mut State, message: Message) {
        let now = s.now();
        match message {
            Message::Acquire(k, key, stamp) => {
                let mut claim = claim(id(k, key), TTL, stamp);
                // The mode belongs to the claim, also when its keeper has forgotten it.
                claim.mode = s.known(k, key).map_or(Mode::Exclusive, |c| c.mode);
                let answer = self.at_store(s, k, now, |slot, at| slot.try_acquire(&claim, at));
                let said = match answer.expect("a definite answer") {
                    Attempt::Granted(grant) => Said::Granted(grant.lease),
                    Attempt::Held(_) => Said::Held,
                    Attempt::Cancelled => Said::Cancelled,
                };
                s.send(Message::Answer(k, key, stamp, said));
            }
            Message::Release(k, key, unsettled) => {
                let mut claim = claim(id(k, key), TTL, now);
                claim.unsettled = unsettled;
                let answer = self.at_store(s, k, now, |slot, at| slot.release(&claim, at));
                if !s.keeper(k).alive {
                    return;
                }
                answer.expect("a definite answer");
                self.forget(s, k, key);
                self.step(s, k, queue::Input::Ended(key));
            }
            Message::Answer(k, key, stamp, said) => {
                let Some(known) = s.known(k, key) else { return };
                known.answered += 1;
                match said {
                    Said::Granted(lease) => self.granted(s, k, key, stamp, lease),
                    Said::Held => {
                        known.role = Role::Waiting;
                        self.step(s, k, queue::Input::Answer(key, queue::Answer::Held));
                    }
                    Said::Cancelled => {
                        self.forget(s, k, key);
                        self.step(s, k, queue::Input::Answer(key, queue::Answer::Gone));
                    }
                }
            }
            Message::Push(k, key, stamp) => {
                // A push that comes after its lease does not tell the claim's present state; the keep-alive will.
                if hold::deadline(stamp, TTL) > now || self.variant == Variant::LatePush {
                    self.granted(s, k, key, stamp, TTL);
                }
            }
        }
    }

    /// Forgets messages that no keeper listens to. A push that comes before its answer is left to the keep-alive.
    fn tidy(&self, s: &mut State) {
        let keepers = &s.keepers;
        s.network.retain(|m| {
            let role = |k: u8, key: u64| {
                let keeper = &keepers[usize::from(k)];
                keeper.claims.iter().find(|c| c.key == key && keeper.alive).map(|c| c.role)
            };
            match *m {
                Message::Acquire(..) | Message::Release(..) => true,
                Message::Answer(k, key, stamp, _) => {
                    matches!(role(k, key), Some(Role::Trying(_, sent)) if sent == stamp)
                }
                Message::Push(k, key, _) => matches!(role(k, key), Some(Role::Trying(..) | Role::Waiting)),
            }
        });
        for keeper in &mut s.keepers {
            if !keeper.alive {
                (keeper.queue, keeper.owed) = (Queue::default(), None);
                keeper.claims.clear();
                keeper.tasks.fill(Life::Over);
            }
            keeper.owed.take_if(|owed| keeper.tasks[owed.task as usize] != Life::Wants);
        }
    }

    /// Nothing more will happen by itself.
    fn is_quiet(&self, s: &State) -> bool {
        let mut entries = s.slot.holders.iter().map(|h| h.id).chain(s.slot.waiters.iter().map(|w| w.id));
        let keepers = || (0u8..).zip(&s.keepers);
        s.network.is_empty()
            // The claims of a dead keeper end by time. A living keeper must leave none behind.
            && entries.all(|id| s.is_alive(id))
            && keepers().all(|(k, keeper)| {
                keeper.claims.iter().all(|c| match c.role {
                    Role::Trying(..) | Role::Ending => false,
                    Role::Waiting => !self.has_news(s, k, c),
                    Role::Held => true,
                })
            })
    }
}

impl Model for Handover {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let keeper = |tasks: &Vec<Mode>| Keeper {
            alive: true,
            queue: Queue::default(),
            tasks: vec![Life::New; tasks.len()],
            claims: Vec::new(),
            keys: 0,
            owed: None,
        };
        vec![State {
            slot: Slot::default(),
            keepers: self.tasks.iter().map(keeper).collect(),
            network: Vec::new(),
            losses: 0,
            deaths: 0,
            ages: 0,
            cancels: 0,
            overtaken: false,
        }]
    }

    fn actions(&self, s: &State, actions: &mut Vec<Action>) {
        for (k, keeper) in (0u8..).zip(&s.keepers).filter(|(_, keeper)| keeper.alive) {
            // The tasks of one keeper arrive in order: they are alike otherwise.
            let next = keeper.tasks.iter().position(|t| *t == Life::New);
            actions.extend(next.map(|t| Action::Start(k, t as u64)));
            for (t, life) in (0u64..).zip(&keeper.tasks) {
                match life {
                    Life::Wants if s.cancels < self.cancels => actions.push(Action::Cancel(k, t)),
                    Life::Has(_) => actions.push(Action::Finish(k, t)),
                    _ => {}
                }
            }
            for known in &keeper.claims {
                let key = known.key;
                match known.role {
                    Role::Ending if !s.under_way(|m| matches!(m, Message::Release(a, b, _) if (*a, *b) == (k, key))) => {
                        actions.push(Action::ReleaseAgain(k, key));
                    }
                    Role::Trying(..)
                        if !s.under_way(
                            |m| matches!(m, Message::Acquire(a, b, _) | Message::Answer(a, b, ..) if (*a, *b) == (k, key)),
                        ) =>
                    {
                        actions.push(Action::TryAgain(k, key));
                    }
                    Role::Waiting if self.has_news(s, k, known) => actions.push(Action::KeepAlive(k, key)),
                    _ => {}
                }
            }
            if s.deaths < self.deaths {
                actions.push(Action::Die(k));
            }
        }
        if s.ages < self.ages {
            actions.push(Action::Age);
        }
        let mut last = None;
        for &message in &s.network {
            if last.replace(message) == Some(message) {
                continue;
            }
            let early = matches!(message, Message::Push(k, key, _)
                if s.keepers[usize::from(k)].claims.iter().any(|c| c.key == key && matches!(c.role, Role::Trying(..))));
            if !early {
                actions.push(Action::Deliver(message));
            }
            if s.losses < self.losses {
                actions.push(Action::Lose(message));
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut s = last.clone();
        match action {
            Action::Start(k, task) => {
                let mode = self.mode(k, task);
                s.keeper(k).tasks[task as usize] = Life::Wants;
                if self.variant == Variant::ClaimPerTask && !s.keeper(k).queue.is_idle() {
                    let keeper = s.keeper(k);
                    keeper.keys += 1;
                    let key = keeper.keys;
                    self.acquire(&mut s, k, task, key);
                } else {
                    self.step(&mut s, k, queue::Input::Enter(Task { id: task, mode, waits: true, granted: None }));
                }
            }
            Action::Cancel(k, task) => {
                s.cancels += 1;
                s.keeper(k).tasks[task as usize] = Life::Over;
                self.leave(&mut s, k, task);
            }
            Action::Finish(k, task) => {
                let Life::Has(key) = s.keeper(k).tasks[task as usize] else { return None };
                s.keeper(k).tasks[task as usize] = Life::Over;
                self.end(&mut s, k, key);
            }
            Action::ReleaseAgain(k, key) => {
                let known = s.known(k, key)?;
                let unsettled = self.unsettled(known);
                s.send(Message::Release(k, key, unsettled));
            }
            Action::TryAgain(k, key) => {
                let task = s.keeper(k).queue.pending().filter(|p| p.claim == key)?.task;
                self.acquire(&mut s, k, task, key);
            }
            Action::KeepAlive(k, key) => {
                let now = s.now();
                self.keep_alive(&mut s, k, key, now);
            }
            Action::Die(k) => {
                s.deaths += 1;
                s.keeper(k).alive = false;
            }
            Action::Age => self.age(&mut s),
            Action::Deliver(message) | Action::Lose(message) => {
                let at = s.network.iter().position(|m| *m == message)?;
                s.network.remove(at);
                if matches!(action, Action::Deliver(_)) {
                    self.deliver(&mut s, message);
                } else {
                    s.losses += 1;
                    if let Message::Release(k, key, _) = message {
                        // The call failed, so the next task may try; the release itself is repeated.
                        self.step(&mut s, k, queue::Input::Ended(key));
                    }
                }
            }
        }
        self.tidy(&mut s);
        Some(s)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("exclusion", |m: &Handover, s: &State| {
                let has = m.having(s);
                has.len() <= 1 || has.iter().all(|mode| *mode == Mode::Shared)
            }),
            Property::always("one Exclusive claim per keeper", |_, s: &State| {
                s.keepers.iter().all(|keeper| {
                    let mut open = keeper.claims.iter().filter(|c| c.role != Role::Ending);
                    open.clone().count() <= 1 || open.all(|c| c.mode != Mode::Exclusive)
                })
            }),
            Property::always("no stall", |m: &Handover, s: &State| {
                let waits = s.keepers.iter().any(|k| k.alive && k.tasks.contains(&Life::Wants));
                !waits || !m.having(s).is_empty() || !m.is_quiet(s)
            }),
            Property::always("nothing is left behind", |m: &Handover, s: &State| {
                !m.is_quiet(s) || s.slot.holders.iter().all(|h| s.is_known(h.id))
            }),
            Property::always("an inherited place is not overtaken", |_, s: &State| !s.overtaken),
            Property::sometimes("every task of a keeper gets it", |m: &Handover, s: &State| {
                s.cancels == 0 && s.deaths == 0 && s.slot.token as usize >= m.tasks.iter().map(Vec::len).sum()
            }),
            Property::sometimes("a place is inherited", |m: &Handover, s: &State| {
                m.cancels == 0 || s.keepers.iter().any(|k| k.owed.is_some())
            }),
            Property::sometimes("a task gets it after another keeper died", |m: &Handover, s: &State| {
                m.deaths == 0 || (s.deaths > 0 && s.slot.token > 1 && !m.having(s).is_empty())
            }),
        ]
    }
}

impl Handover {
    /// How the tasks that have the lock hold it.
    fn having(&self, s: &State) -> Vec<Mode> {
        let mut modes = Vec::new();
        for (k, keeper) in (0u8..).zip(&s.keepers) {
            let has = (0u64..).zip(&keeper.tasks).filter(|(_, life)| matches!(life, Life::Has(_)));
            modes.extend(has.map(|(task, _)| self.mode(k, task)));
        }
        modes
    }
}

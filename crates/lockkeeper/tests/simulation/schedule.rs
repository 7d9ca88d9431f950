//! One schedule: keepers, callers and faults step by step, until all is quiet again.

use crate::checks;
use crate::choices::Choices;
use crate::network::{Line, World};
use crate::tasks::{Doing, Task, Wish};
use crate::truth::{Defect, Habits};
use lockkeeper::testing::Clock;
use lockkeeper::{Keeper, LossReason};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

/// Polls without an end mean that the engine spins.
const MOST_POLLS: usize = 20_000;

/// What may go wrong in a schedule.
#[derive(Clone, Copy, Debug, Default)]
pub struct Style {
    /// Messages are delayed.
    pub delays: bool,
    /// Messages are lost.
    pub losses: bool,
    /// Requests and hints arrive twice.
    pub copies: bool,
    /// A keeper's process stands still while time passes.
    pub pauses: bool,
    /// The store loses leases, operators break them, sessions end.
    pub store_faults: bool,
}

impl Style {
    fn draw(choices: &mut Choices) -> Self {
        let mut one = || choices.pick(2) == 1;
        Self { delays: one(), losses: one(), copies: one(), pauses: one(), store_faults: one() }
    }

    pub fn is_calm(&self) -> bool {
        !(self.delays || self.losses || self.copies || self.pauses || self.store_faults)
    }
}

pub struct Simulation<'a> {
    pub choices: &'a mut Choices,
    pub style: Style,
    pub world: World,
    pub clocks: Vec<Clock>,
    /// By how many thousandths each keeper's clock runs faster than the store's.
    pub rates: Vec<i64>,
    pub keepers: Vec<Keeper>,
    pub tasks: Vec<Task>,
    names: usize,
    /// Faults have stopped.
    pub healed: bool,
    pub tokens: checks::Tokens,
}

#[derive(Clone, Copy)]
enum Ready {
    Job(usize, u64),
    Task(usize),
}

pub type Checked = Result<(), String>;

/// Runs one schedule; says what was wrong.
pub fn run(choices: &mut Choices, defect: Option<Defect>, world: &World) -> Checked {
    // Pauses between attempts are random in the engine too.
    fastrand::seed(choices.pick(1 << 20) as u64);
    let mut simulation = Simulation::new(choices, defect, world);
    let steps = 6 + simulation.choices.pick(18);
    for _ in 0..steps {
        simulation.step()?;
        checks::beliefs(&simulation)?;
    }
    simulation.settle()?;
    simulation.end()
}

impl<'a> Simulation<'a> {
    fn new(choices: &'a mut Choices, defect: Option<Defect>, world: &World) -> Self {
        let style = Style::draw(choices);
        let mut one = || choices.pick(2) == 1;
        let habits = Habits { queue: one(), push: one(), ordered: one(), coy: one(), defect };
        let count = choices.of(&[1, 2, 2, 3]);
        {
            let mut inner = world.lock();
            inner.truth.habits = habits;
            inner.sinks = vec![None; count];
            inner.say(|| format!("{style:?} {habits:?} {count} keepers"));
        }
        let clocks: Vec<Clock> = (0..count).map(|_| Clock::by_hand()).collect();
        let rates = (0..count).map(|_| choices.of(&[0, -4, 4])).collect();
        let keepers = (0..count).map(|keeper| {
            let store = Arc::new(Line { world: world.clone(), keeper });
            // A drop does not wait for the thread that there is not.
            Keeper::builder().clock(&clocks[keeper]).drop_timeout(Duration::ZERO).open(store).unwrap()
        });
        let keepers: Vec<Keeper> = keepers.collect();
        let names = choices.of(&[1, 1, 2, 3]);
        let tasks = (0..=choices.pick(4)).map(|_| Task::new(choices.pick(count), 1 + choices.pick(2))).collect();
        let tokens = checks::Tokens::default();
        Self { choices, style, world: world.clone(), clocks, rates, keepers, tasks, names, healed: false, tokens }
    }

    /// What may go wrong now.
    pub fn faults(&self) -> Style {
        if self.healed { Style::default() } else { self.style }
    }

    /// One step of one of them.
    fn step(&mut self) -> Checked {
        match self.choices.pick(16) {
            0..=4 => {
                if !self.poll_one()? {
                    self.act_one()?;
                }
            }
            5..=8 => {
                if !self.deliver_one() {
                    self.act_one()?;
                }
            }
            9..=11 => self.act_one()?,
            12 | 13 => self.pass_time()?,
            14 => {
                self.mishap();
            }
            _ => {
                if !self.store_fault() {
                    self.pass_time()?;
                }
            }
        }
        Ok(())
    }

    fn ready(&self) -> Vec<Ready> {
        let mut ready = Vec::new();
        for (keeper, clock) in self.clocks.iter().enumerate() {
            ready.extend(clock.ready_jobs().into_iter().map(|job| Ready::Job(keeper, job)));
        }
        ready.extend((0..self.tasks.len()).filter(|task| self.tasks[*task].woken()).map(Ready::Task));
        ready
    }

    /// Polls one that was woken; sometimes a task that was not.
    fn poll_one(&mut self) -> Result<bool, String> {
        let ready = self.ready();
        if ready.is_empty() {
            return Ok(false);
        }
        let chosen = match self.choices.one_in(20) {
            true => Ready::Task(self.choices.pick(self.tasks.len())),
            false => self.choices.of(&ready),
        };
        match chosen {
            Ready::Job(keeper, job) => self.clocks[keeper].poll_job(job),
            Ready::Task(task) => self.poll_task(task)?,
        }
        Ok(true)
    }

    fn poll_task(&mut self, at: usize) -> Checked {
        let task = &mut self.tasks[at];
        match &mut task.doing {
            Doing::Nothing => {}
            Doing::Asking { asking, polls } => {
                *polls += 1;
                let impatient = task.wish.and_then(|wish| wish.patience).is_some_and(|patience| *polls >= patience);
                match asking.poll() {
                    Poll::Ready(answer) => return checks::asked(self, at, answer),
                    Poll::Pending if impatient => self.drop_doing(at, "drops its future"),
                    Poll::Pending => {}
                }
            }
            Doing::Holding { told: true, .. } => {}
            Doing::Holding { lost, told, .. } => {
                if let Poll::Ready(reason) = lost.poll() {
                    *told = true;
                    self.say(at, || format!("is told of its loss: {reason:?}"));
                    if reason == LossReason::Released {
                        return Err(format!("task {at} holds a lock that counts as released"));
                    }
                }
            }
            Doing::Releasing { releasing, holder, token } => {
                let (holder, token) = (*holder, *token);
                if let Poll::Ready(answer) = releasing.poll() {
                    return checks::released(self, at, answer, holder, token);
                }
            }
        }
        Ok(())
    }

    pub fn say(&self, task: usize, words: impl FnOnce() -> String) {
        self.world.lock().say(|| format!("task {task} of keeper {} {}", self.tasks[task].keeper, words()));
    }

    pub fn drop_doing(&mut self, at: usize, how: &str) {
        self.say(at, || how.to_owned());
        // Dropped after the words, because the engine's own follow.
        let doing = std::mem::replace(&mut self.tasks[at].doing, Doing::Nothing);
        drop(doing);
    }

    fn deliver_one(&mut self) -> bool {
        let count = self.world.lock().messages.len();
        if count == 0 {
            return false;
        }
        // Also after the faults have stopped: what is late then is overtaken by what follows.
        let at = if self.style.delays { self.choices.pick(count) } else { 0 };
        self.deliver(at);
        true
    }

    fn deliver(&self, at: usize) {
        let hint = self.world.lock().deliver(at);
        if let Some((sink, event)) = hint {
            sink.tell(event);
        }
    }

    /// A caller does something.
    fn act_one(&mut self) -> Checked {
        let at = self.choices.pick(self.tasks.len());
        match &self.tasks[at].doing {
            Doing::Nothing if self.tasks[at].left == 0 => return self.pass_time(),
            Doing::Nothing => {
                let wish = Wish::draw(self.choices, self.names);
                self.say(at, || format!("asks: {wish:?}"));
                let (keeper, now) = (self.tasks[at].keeper, self.local(self.tasks[at].keeper));
                self.tasks[at].ask(&self.keepers[keeper], wish, now);
            }
            Doing::Asking { .. } if self.choices.one_in(6) => self.drop_doing(at, "drops its future"),
            Doing::Asking { .. } => {}
            Doing::Holding { guard, .. } => match self.choices.pick(6) {
                0 => self.let_go(at),
                1 => self.drop_doing(at, "drops its guard"),
                2 => guard.lease().progress(),
                _ => {}
            },
            Doing::Releasing { .. } if self.choices.one_in(6) => self.drop_doing(at, "drops its release"),
            Doing::Releasing { .. } => {}
        }
        Ok(())
    }

    pub fn let_go(&mut self, at: usize) {
        self.say(at, || "releases".to_owned());
        self.tasks[at].release();
    }

    /// Polls all that can go on, and delivers all messages, or some where they may be delayed.
    pub fn drain(&mut self) -> Checked {
        for _ in 0..MOST_POLLS {
            let mut polled = false;
            for keeper in 0..self.clocks.len() {
                if let Some(job) = self.clocks[keeper].ready_job() {
                    self.clocks[keeper].poll_job(job);
                    polled = true;
                }
            }
            for task in 0..self.tasks.len() {
                if self.tasks[task].woken() {
                    self.poll_task(task)?;
                    polled = true;
                }
            }
            let stays = !polled && self.faults().delays && self.choices.pick(2) == 0;
            if stays || (!polled && !self.deliver_one()) {
                return Ok(());
            }
        }
        Err("the engine spins: it goes on without time and without messages".to_owned())
    }
}

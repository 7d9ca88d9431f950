//! Locks of the doctor's own: whether taking, renewing, handing over and fencing work, and how long they take.

use super::times::Times;
use crate::exit::Failure;
use lockkeeper::duration::short;
use lockkeeper::store::{Check, CheckState};
use lockkeeper::{Error, ErrorKind, Guard, HolderId, Keeper, Result, Token};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// All names of the doctor begin with this.
const NAMES: &str = "lk-doctor/";

/// How long taking and releasing may go on: a store that is slow has been seen to be slow by then.
const BUDGET: Duration = Duration::from_secs(10);

/// The most hand-overs, and how long all of them may take.
const HAND_OVERS: (usize, Duration) = (20, Duration::from_secs(5));

/// How long a step may take before it counts as failed.
const PATIENCE: Duration = Duration::from_secs(15);

/// A pushed hand-over takes a few round trips; a poll takes longer than this.
const SLOW_HAND_OVER: Duration = Duration::from_millis(200);

/// A lease must outlast this many slow calls, since a renewal may have to be repeated.
const CALLS_PER_TTL: u32 = 20;

/// Below this a pause of the process, its machine or its network easily outlasts a lease.
const SHORT_TTL: Duration = Duration::from_secs(10);

/// Stores whose tokens are the server's clock, in microseconds since 1970, wherever that is ahead of the last token.
const BY_CLOCK: [&str; 5] = ["sqlite", "redis", "redlock", "postgres", "mysql"];

/// How far such a token may be off the wall clock.
const DAY: u64 = 24 * 3600 * 1_000_000;

pub(super) struct Probe<'a> {
    keeper: &'a Keeper,
    other: &'a Keeper,
    name: String,
    ttl: Duration,
    tokens: Vec<Token>,
    pub(super) cycles: Times,
    pub(super) hand_overs: Times,
    /// The shortest TTL that suits how long calls take here.
    pub(super) advised: Option<Duration>,
}

impl<'a> Probe<'a> {
    pub(super) fn new(keeper: &'a Keeper, other: &'a Keeper, ttl: Duration) -> std::result::Result<Self, Failure> {
        // Not a holder's id, but the same need: a number that no other doctor has.
        let name = format!("{NAMES}{}", &HolderId::random()?.to_hex()[..16]);
        let (cycles, hand_overs) = (Times::default(), Times::default());
        Ok(Self { keeper, other, name, ttl, tokens: Vec::new(), cycles, hand_overs, advised: None })
    }

    /// Every step, as long as the one before has worked.
    pub(super) async fn run(&mut self, cycles: u32, ttl: Duration) -> Vec<Check> {
        let mut checks = vec![self.cycle(cycles).await];
        if self.cycles.is_empty() {
            return checks;
        }
        checks.push(self.advice(ttl));
        checks.push(self.tokens());
        checks.push(self.renewal().await);
        checks.push(self.hand_over(cycles).await);
        checks.push(self.registers().await);
        checks
    }

    /// Takes the lock. No other client knows its name, so that it is free.
    async fn take(&self, ttl: Duration) -> Result<Guard> {
        let lock = self.keeper.lock(&self.name).ttl(ttl).wait(PATIENCE);
        if !self.keeper.info().decisive {
            // A release may be answered before every server has carried it out.
            return lock.acquire().await;
        }
        let busy = || Error::new(ErrorKind::Unexpected, "a lock that was released is not free");
        lock.try_acquire().await?.ok_or_else(busy)
    }

    /// Takes and releases a lock, again and again.
    async fn cycle(&mut self, count: u32) -> Check {
        const WHY: &str = "A store that refuses this, or fails at it, keeps no locks for this login.";
        const FIX: &str = "Grant what was refused, or remedy what the server says.";
        let end = Instant::now() + BUDGET;
        let mut failed = None;
        // The first one opens connections and loads scripts: it is not measured.
        for i in 0..=count {
            let began = Instant::now();
            match self.once().await {
                Ok(token) => self.tokens.push(token),
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
            if i > 0 {
                self.cycles.push(began.elapsed());
            }
            if began >= end {
                break;
            }
        }
        let check = match failed {
            None => Check::new("cycle", CheckState::Ok, format!("a lock taken and released: {}", self.cycles.shown())),
            Some(error) => {
                self.cycles = Times::default();
                Check::new("cycle", CheckState::Fail, format!("a lock cannot be taken and released: {}", said(&error)))
            }
        };
        check.why(WHY).fix(FIX)
    }

    async fn once(&self) -> Result<Token> {
        let guard = self.take(self.ttl).await?;
        let token = guard.token();
        guard.release().await?;
        Ok(token)
    }

    fn advice(&mut self, ttl: Duration) -> Check {
        let info = self.keeper.info();
        let slow = self.cycles.percentile(99);
        let advised = info.ttl_floor.max(slow * CALLS_PER_TTL).max(SHORT_TTL).min(info.ttl_ceiling);
        self.advised = Some(advised);
        let state = if ttl < advised { CheckState::Warn } else { CheckState::Ok };
        let found = format!("--ttl is {}; at least {} suits this store", short(ttl), short(advised));
        Check::new("ttl", state, found)
            .why("A lease must outlast a few slow calls and a pause of the process, or locks are lost without need.")
            .fix("Choose a longer TTL, or find out why calls are slow.")
    }

    /// Whether each grant had a higher token than the one before, near to what the clock says.
    fn tokens(&self) -> Check {
        let wall =
            SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| u64::try_from(t.as_micros()).unwrap_or(0));
        let last = self.tokens.last().map_or(0, |token| token.get());
        let info = self.keeper.info();
        let by_clock = BY_CLOCK.contains(&&*info.tokens) && info.expiry == lockkeeper::store::Expiry::Lease;
        let (state, found) = if !self.tokens.is_sorted_by(|earlier, later| earlier < later) {
            (CheckState::Fail, "a later grant had a token that was not higher".to_owned())
        } else if by_clock && last.abs_diff(wall) > DAY {
            let off = short(Duration::from_micros(last.abs_diff(wall)));
            (CheckState::Fail, format!("token {last} is {off} off this machine's clock"))
        } else {
            (CheckState::Ok, format!("{} tokens, each higher than the one before", self.tokens.len()))
        };
        Check::new("tokens", state, found)
            .why("A fence knows late writers by their lower token. After a leap of the clock it may refuse all others.")
            .fix("Set the server's clock; after that, `lockkeeper fence reset` for fences that have seen such a token.")
    }

    /// Waits for one renewal, which keepers make by themselves.
    async fn renewal(&self) -> Check {
        let info = self.keeper.info();
        let ttl = Duration::from_secs(1).clamp(info.ttl_floor, info.ttl_ceiling);
        let renewed = async {
            let guard = self.take(ttl).await?;
            let began = Instant::now();
            // At its end a guard resolves too: the check after it tells.
            guard.lease().renewed().await;
            guard.check()?;
            guard.release().await?;
            Ok::<_, Error>(began.elapsed())
        };
        let renewed = tokio::time::timeout(PATIENCE, renewed).await;
        let (state, found) = match renewed {
            Ok(Ok(after)) => (CheckState::Ok, format!("a lease of {} was renewed after {}", short(ttl), short(after))),
            Ok(Err(error)) => (CheckState::Fail, format!("a lease of {} was not kept: {}", short(ttl), said(&error))),
            Err(_) => (CheckState::Fail, format!("a lease of {} was not renewed in {}", short(ttl), short(PATIENCE))),
        };
        Check::new("renewal", state, found)
            .why("A lock whose lease cannot be renewed is lost while its holder works.")
            .fix("Grant what was refused, or remedy what the server says.")
    }

    /// One keeper waits for what another one releases.
    async fn hand_over(&mut self, cycles: u32) -> Check {
        let most = HAND_OVERS.0.min(cycles as usize);
        let end = Instant::now() + HAND_OVERS.1;
        let mut failed = None;
        while self.hand_overs.count() < most && Instant::now() < end && failed.is_none() {
            match self.hand_over_once().await {
                Ok(time) => self.hand_overs.push(time),
                Err(error) => failed = Some(error),
            }
        }
        let slow = self.keeper.info().push && self.hand_overs.percentile(50) > SLOW_HAND_OVER;
        let (state, found) = match failed {
            Some(error) => (CheckState::Fail, format!("a waiter did not get the lock: {}", said(&error))),
            None if slow => (CheckState::Warn, format!("slow: {}", self.hand_overs.shown())),
            None => (CheckState::Ok, format!("from release to the waiter's grant: {}", self.hand_overs.shown())),
        };
        Check::new("hand-over", state, found)
            .why("Waiters are told of a release. Where that message is lost they have to ask, which takes longer.")
            .fix("Let this login listen: channels of Redis, LISTEN of PostgreSQL, a stream through every proxy.")
    }

    async fn hand_over_once(&self) -> Result<Duration> {
        let held = self.take(self.ttl).await?;
        let lock = self.other.lock(&self.name).ttl(self.ttl).wait(PATIENCE);
        let waiter = tokio::spawn(async move { lock.acquire().await.map(|guard| (guard, Instant::now())) });
        self.until_waiting().await?;
        let began = Instant::now();
        held.release().await?;
        let gone = |_| Error::unavailable("the waiting task has ended");
        let (guard, granted) = waiter.await.map_err(gone)??;
        guard.release().await?;
        Ok(granted.saturating_duration_since(began))
    }

    /// Until the store shows the waiter. Where waiters do not queue in the store: as long as one needs to be refused.
    async fn until_waiting(&self) -> Result<()> {
        const PAUSE: Duration = Duration::from_millis(5);
        let queue = self.keeper.info().queue;
        let end = Instant::now() + if queue { Duration::from_secs(2) } else { Duration::from_millis(50) };
        while Instant::now() < end {
            tokio::time::sleep(PAUSE).await;
            if queue && self.keeper.inspect(&self.name).await?.is_some_and(|record| record.waiting > 0) {
                return Ok(());
            }
        }
        Ok(())
    }

    /// A value behind a fence: a later holder writes, and an earlier one is refused.
    async fn registers(&self) -> Check {
        let tried = async {
            let register = self.keeper.register(&self.name);
            let early = self.take(self.ttl).await?;
            let old = early.pass()?;
            early.release().await?;
            let late = self.take(self.ttl).await?;
            let pass = late.pass()?;
            register.enter(&pass).await?;
            // Nothing is left after a minute, whatever happens to this process.
            register.write(&pass, b"lockkeeper doctor", Some(Duration::from_secs(60))).await?;
            let refused = register.write(&old, b"too late", None).await;
            late.release().await?;
            Ok::<_, Error>(refused)
        };
        let (state, found) = match tried.await {
            Ok(Err(stale)) if stale.kind() == ErrorKind::Stale => {
                (CheckState::Ok, "a late write was refused".to_owned())
            }
            Ok(_) => (CheckState::Fail, "a write with an earlier token was not refused".to_owned()),
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                (CheckState::Note, "the store keeps no registers".to_owned())
            }
            Err(error) => (CheckState::Fail, format!("a register cannot be used: {}", said(&error))),
        };
        Check::new("registers", state, found)
            .why("Elections, run-once and jobs keep their state in registers, which a late holder must not overwrite.")
            .fix("Grant what was refused; where a store has no registers, use those recipes on another one.")
    }
}

/// The error in one sentence. Its names are the doctor's own, and the library puts no secret into it.
fn said(error: &Error) -> String {
    error.message().to_owned()
}

//! The store: rounds of questions to all nodes, decided by [`quorum`](crate::machine::quorum).

use super::attempts::Attempts;
use super::node::{Ask, Fan, Nodes, is_silence};
use super::people;
use super::race::{Race, Scope, TOMB_EXTRA, fields, millis, odd, release_command, tomb, too_few, worse};
use super::scripts::{ACQUIRE, CONFIRM, RELEASE, RENEW, Script};
use super::settings::Settings;
use crate::clock::{system_now, wall_micros};
use crate::error::{Error, Result};
use crate::machine::quorum::{Outcome, Tally, Vote, propose, quorum};
use crate::name::LockName;
use crate::store::{
    Attempt, Break, Claim, Cursor, Guarantee, LossReason, Note, Page, Record, Release, Renewal, Runtime, Store,
    StoreInfo,
};
use crate::stores::redis::keys::Keys;
use crate::stores::shared::connecting;
use crate::token::{HolderId, Token};
use async_trait::async_trait;
use redis::{Cmd, Value};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

/// Locks on a majority of Redis or Valkey servers; see the [module](super).
#[derive(Debug)]
pub struct RedlockStore {
    nodes: Arc<Nodes>,
    max_ttl: Duration,
    timeout: Duration,
    attempts: Attempts,
    /// What tests add to the clock that proposals come from, in microseconds.
    skew: AtomicI64,
}

impl RedlockStore {
    /// Connects to the nodes of a URL such as `redlock://a:6379,b:6379,c:6379?max_ttl=60s`.
    ///
    /// # Errors
    /// `InvalidConfig` for a URL or a node that cannot work, `Denied` for a refused login, `Unsupported` for a server that
    /// is too old, `Unavailable` when fewer than a majority can be reached.
    pub async fn connect(url: &str) -> Result<Self> {
        let parts = crate::url::parse(url)?;
        Self::from_parts(&parts.raw_place, &parts.options).await
    }

    pub(crate) async fn from_parts(place: &str, pairs: &[(String, String)]) -> Result<Self> {
        let settings = Settings::parse(place, pairs).map_err(|e| e.in_store("redlock"))?;
        let count = settings.options.nodes.len();
        if count.is_multiple_of(2) {
            tracing::warn!(
                nodes = count,
                "an even number of Redlock nodes: one fewer would survive as many failures and split fewer votes"
            );
        }
        let store = Self {
            nodes: Arc::new(Nodes::new(settings.options, settings.max_ttl)),
            max_ttl: settings.max_ttl,
            timeout: settings.timeout,
            attempts: Attempts::default(),
            skew: AtomicI64::new(0),
        };
        let limit = store.timeout.max(Duration::from_secs(2));
        let nodes = store.nodes.clone();
        connecting::ask(check(nodes, limit)).await.map_err(|e| e.during("connect").in_store("redlock"))?;
        Ok(store)
    }

    /// Makes proposals come from a clock that is off by so many microseconds: what tests of tokens need.
    #[cfg(feature = "testing")]
    pub fn set_clock_skew(&self, micros: i64) {
        self.skew.store(micros, Ordering::Relaxed);
    }

    fn quorum(&self) -> usize {
        quorum(self.nodes.list.len())
    }

    /// How long one node may take: a quarter of the lease, so that the answer comes before the engine gives up.
    fn limit(&self, ttl: Duration) -> Duration {
        self.timeout.min((ttl / 4).max(Duration::from_millis(45)))
    }

    fn proposal(&self) -> u64 {
        let clock = wall_micros().saturating_add_signed(self.skew.load(Ordering::Relaxed));
        propose(clock)
    }

    /// Which nodes to ask. Silent ones are left out while the others can make a majority, and asked like any other when
    /// they cannot: health bounds the asking, it never changes what is needed.
    fn asked(&self, limit: Duration) -> Vec<bool> {
        let admitted: Vec<bool> = self.nodes.list.iter().map(|node| node.health.admits(limit)).collect();
        let enough = admitted.iter().filter(|a| **a).count() >= self.quorum();
        if enough { admitted } else { vec![true; admitted.len()] }
    }

    /// The same commands to all of `asked`, each tagged with its node.
    fn fan(&self, asked: &[bool], ask: &Ask) -> Fan<Tag> {
        let mut fan = Fan::new();
        for (node, _) in asked.iter().enumerate().filter(|(_, asked)| **asked) {
            let claims = (0..ask.commands.len()).collect();
            fan.push(Tag { node, claims, confirms: false }, self.nodes.ask(node, ask.clone()));
        }
        fan
    }

    fn question(&self, commands: Vec<Cmd>, script: &'static Script, limit: Duration, counted: bool) -> Ask {
        Ask { commands, script: Some(script), counted, limit, over: Arc::new(AtomicBool::new(false)) }
    }

    /// Takes back what claims have on any node; nobody waits for the answers.
    async fn undo(&self, claims: &[(&Claim, &Keys, Scope)]) {
        if claims.is_empty() {
            return;
        }
        let commands = claims.iter().map(|(claim, keys, scope)| release_command(claim, keys, Duration::ZERO, *scope));
        let ask = self.question(commands.collect(), &RELEASE, self.timeout, false);
        let mut fan = self.fan(&self.asked(self.timeout), &ask);
        fan.sent().await;
        fan.go_on_alone();
    }

    /// One round for many claims; `displaced` is the holder that a break takes the lock from.
    async fn acquire(&self, claims: &[Claim], displaced: Option<HolderId>) -> Vec<Result<Attempt>> {
        let begun = self.attempts.begin(claims);
        let nodes = self.nodes.list.len();
        let mut races: Vec<Race<'_>> = claims.iter().map(|claim| Race::new(claim, begun.number, nodes)).collect();
        let running: Vec<usize> = (0..races.len()).filter(|i| races[*i].answer.is_none()).collect();
        let limit = self.limit(claims.iter().map(|claim| claim.ttl).min().unwrap_or_default());
        let proposal = self.proposal().to_string();
        let commands = running.iter().map(|i| races[*i].acquire_command(&proposal, displaced)).collect();
        let ask = self.question(commands, &ACQUIRE, limit, true);
        let asked = self.asked(limit);
        let mut fan = if running.is_empty() { Fan::new() } else { self.fan(&asked, &ask) };
        for (node, _) in asked.iter().enumerate().filter(|(_, asked)| !**asked) {
            for i in &running {
                races[*i].vote(node, Vote::Failed);
            }
        }
        while races.iter().any(|race| race.answer.is_none()) {
            let Some((tag, answers)) = fan.next().await else { break };
            let mut confirmations: Vec<(usize, Vec<usize>, Vec<Cmd>)> = Vec::new();
            for (place, answer) in tag.claims.iter().zip(answers) {
                // The first question names places among the running claims, a confirmation the claims themselves.
                let i = if tag.confirms { *place } else { running[*place] };
                let Some((token, nodes)) = races[i].heard(tag.node, tag.confirms, answer) else { continue };
                for node in nodes {
                    let command = races[i].confirm_command(token);
                    match confirmations.iter_mut().find(|(n, ..)| *n == node) {
                        Some((_, claims, commands)) => {
                            claims.push(i);
                            commands.push(command);
                        }
                        None => confirmations.push((node, vec![i], vec![command])),
                    }
                }
            }
            for (node, claims, commands) in confirmations {
                let ask = self.question(commands, &CONFIRM, limit, true);
                fan.push(Tag { node, claims, confirms: true }, self.nodes.ask(node, ask));
            }
        }
        ask.over.store(true, Ordering::Relaxed);
        fan.go_on_alone();
        races.iter_mut().filter(|race| !begun.is_newest(race.claim)).for_each(Race::give_way);
        self.undo(&races.iter().filter_map(Race::undo).collect::<Vec<_>>()).await;
        let unanswered = |claim: &Claim| Err(Error::unavailable("too few nodes answered").for_lock(&claim.name));
        races.into_iter().map(|race| race.answer.unwrap_or_else(|| unanswered(race.claim))).collect()
    }

    /// Renewals and releases: the same commands to all nodes, one tally per claim.
    async fn tally<T>(
        &self,
        claims: &[Claim],
        script: &'static Script,
        counted: bool,
        command: impl Fn(&Claim, &Keys) -> Cmd,
        judge: impl Fn(&Tally) -> Outcome,
        answer: impl Fn(Outcome, &[Value]) -> T,
    ) -> Vec<Result<T>> {
        let keys: Vec<Result<Keys>> = claims.iter().map(|claim| Keys::of(&claim.name)).collect();
        let running: Vec<usize> = (0..claims.len()).filter(|i| keys[*i].is_ok()).collect();
        let limit = self.limit(claims.iter().map(|claim| claim.ttl).min().unwrap_or_default());
        let commands = running.iter().filter_map(|i| Some(command(&claims[*i], keys[*i].as_ref().ok()?))).collect();
        let ask = self.question(commands, script, limit, counted);
        let asked = self.asked(limit);
        let mut fan = if running.is_empty() { Fan::new() } else { self.fan(&asked, &ask) };
        let mut tallies = vec![Tally::new(self.nodes.list.len(), self.quorum()); running.len()];
        for _ in asked.iter().filter(|asked| !**asked) {
            tallies.iter_mut().for_each(|tally| tally.add(None));
        }
        let mut hints = vec![Vec::new(); running.len()];
        let mut errors: Vec<Option<Error>> = vec![None; running.len()];
        while tallies.iter().any(|tally| judge(tally) == Outcome::Open) {
            let Some((_, answers)) = fan.next().await else { break };
            for (i, answer) in answers.into_iter().enumerate() {
                match answer.and_then(fields) {
                    Ok((1, _)) => tallies[i].add(Some(true)),
                    Ok((_, hint)) => {
                        tallies[i].add(Some(false));
                        hints[i].extend(hint);
                    }
                    Err(error) => {
                        tallies[i].add(None);
                        errors[i] = worse(errors[i].take(), error);
                    }
                }
            }
        }
        fan.go_on_alone();
        let mut judged = tallies.iter().zip(hints).zip(errors);
        let finish = |(claim, keys): (&Claim, Result<Keys>)| {
            keys?;
            let Some(((tally, hint), error)) = judged.next() else { return Err(odd("too little")) };
            match judge(tally) {
                outcome @ (Outcome::Yes | Outcome::No) => Ok(answer(outcome, &hint)),
                Outcome::Open | Outcome::Unknown => Err(too_few(self.nodes.list.len(), error).for_lock(&claim.name)),
            }
        };
        claims.iter().zip(keys).map(finish).collect()
    }
}

/// Which node answers, and what about.
#[derive(Debug)]
struct Tag {
    node: usize,
    claims: Vec<usize>,
    confirms: bool,
}

/// Looks at every node once: one that cannot be a node is refused now, an outage only when it leaves no majority.
async fn check(nodes: Arc<Nodes>, limit: Duration) -> Result<()> {
    let count = nodes.list.len();
    let ping = Ask { commands: vec![redis::cmd("PING")], script: None, counted: false, limit, over: Arc::default() };
    let mut fan = Fan::new();
    for node in 0..count {
        fan.push(node, nodes.ask(node, ping.clone()));
    }
    let (mut answered, mut last) = (0, None);
    while let Some((_, mut answers)) = fan.next().await {
        match answers.pop() {
            Some(Ok(_)) => answered += 1,
            Some(Err(error)) if !is_silence(&error) => return Err(error),
            Some(Err(error)) => last = worse(last, error),
            None => {}
        }
    }
    if answered >= quorum(count) { Ok(()) } else { Err(too_few(count, last)) }
}

#[async_trait]
impl Store for RedlockStore {
    fn info(&self) -> StoreInfo {
        let evicts = self.nodes.evicts.load(Ordering::Relaxed);
        StoreInfo {
            servers: self.nodes.list.iter().map(|node| node.label.as_str()).collect::<Vec<_>>().join(", "),
            runtime: Runtime::Tokio,
            decisive: false,
            // A few round trips on a network, so that a renewal comes in time.
            ttl_floor: Duration::from_millis(200),
            ttl_ceiling: self.max_ttl,
            hand_over_slack: Duration::from_secs(1),
            ..StoreInfo::new("redlock", if evicts { Guarantee::BestEffort } else { Guarantee::Majority })
        }
    }

    async fn try_acquire(&self, claims: &[Claim]) -> Vec<Result<Attempt>> {
        self.acquire(claims, None).await
    }

    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Renewal>> {
        let now = self.attempts.number(claims);
        let command = |claim: &Claim, keys: &Keys| {
            let holder = claim.holder.to_hex();
            RENEW.call(&[&keys.lock, &tomb(&claim.name, &holder)], &[holder.as_bytes(), millis(claim.ttl).as_bytes()])
        };
        let answer = |outcome, hints: &[Value]| {
            if outcome == Outcome::Yes {
                return None;
            }
            let broken = hints.iter().any(|hint| matches!(hint, Value::BulkString(why) if why == b"b"));
            Some(if broken { LossReason::Broken } else { LossReason::Gone })
        };
        let answers = self.tally(claims, &RENEW, true, command, Tally::kept, answer).await;
        // A minority may still have it, and a lost claim is not released by anybody else. An attempt made later stays.
        let lost = claims.iter().zip(&answers).filter(|(_, answer)| matches!(answer, Ok(Some(_))));
        let lost: Vec<(&Claim, Keys)> = lost.filter_map(|(c, _)| Some((c, Keys::of(&c.name).ok()?))).collect();
        self.undo(&lost.iter().map(|(claim, keys)| (*claim, keys, Scope::UpTo(now))).collect::<Vec<_>>()).await;
        let renewal = |(claim, answer): (&Claim, Result<Option<LossReason>>)| {
            answer.map(|lost| lost.map_or(Renewal::Renewed(claim.ttl), Renewal::Lost))
        };
        claims.iter().zip(answers).map(renewal).collect()
    }

    async fn release(&self, claims: &[Claim]) -> Vec<Result<Release>> {
        let command = |claim: &Claim, keys: &Keys| {
            let life = if claim.unsettled { claim.ttl + TOMB_EXTRA } else { Duration::ZERO };
            release_command(claim, keys, life, Scope::Claim)
        };
        let answer = |outcome, _: &[Value]| if outcome == Outcome::Yes { Release::Released } else { Release::NotHeld };
        self.tally(claims, &RELEASE, false, command, Tally::ended, answer).await
    }

    async fn inspect(&self, name: &LockName) -> Result<Option<Record>> {
        Keys::of(name)?;
        Ok(people::look(&self.nodes, std::slice::from_ref(name)).await?.pop())
    }

    async fn list(&self, prefix: &[u8], cursor: Option<&Cursor>) -> Result<Page> {
        people::list(&self.nodes, prefix, cursor).await
    }

    /// Takes the lock over from the holder, like an acquisition that may displace it, and releases it.
    async fn break_lock(&self, name: &LockName, token: Token) -> Result<Break> {
        Keys::of(name)?;
        let Some(holder) = people::holder(&self.nodes, name, token).await? else { return Ok(Break::NotHeld) };
        let ttl = Duration::from_secs(10).min(self.max_ttl);
        let note = Arc::new(Note::new("", std::process::id(), "break"));
        let claim = [Claim::new(name.clone(), HolderId::random()?, ttl, system_now(), note)];
        match self.acquire(&claim, Some(holder)).await.pop() {
            Some(Ok(Attempt::Granted(grant))) => {
                // Too few answers: the short lease ends it.
                let _ = self.release(&claim).await;
                Ok(Break::Broken(grant.token))
            }
            Some(Ok(Attempt::Held(_) | Attempt::Cancelled)) => Ok(Break::NotHeld),
            Some(Err(error)) => Err(error),
            None => Err(odd("nothing")),
        }
    }
}

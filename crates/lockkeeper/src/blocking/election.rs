//! Leader election without `async`.

use super::{Keeper, block_on};
use crate::error::Result;
use crate::guard::Lease;
use crate::pass::Pass;
use crate::recipes::election::{self, After, Leader, Rounds};
use crate::store::LossReason;
use crate::token::Token;
use std::time::Duration;

impl Keeper {
    /// Describes an election; see [`crate::Keeper::election`].
    pub fn election(&self, name: impl AsRef<[u8]>) -> Election {
        Election(self.0.election(name))
    }
}

/// One leader among candidates; see [`election::Election`].
#[derive(Clone, Debug)]
#[must_use = "an election does nothing until it is campaigned in or looked at"]
pub struct Election(election::Election);

impl Election {
    /// See [`election::Election::ttl`].
    pub fn ttl(self, ttl: Duration) -> Self {
        Self(self.0.ttl(ttl))
    }

    /// See [`election::Election::wait`].
    pub fn wait(self, wait: Duration) -> Self {
        Self(self.0.wait(wait))
    }

    /// See [`election::Election::label`].
    pub fn label(self, label: impl Into<String>) -> Self {
        Self(self.0.label(label))
    }

    /// See [`election::Election::value`].
    pub fn value(self, value: impl Into<String>) -> Self {
        Self(self.0.value(value))
    }

    /// See [`election::Election::look_every`].
    pub fn look_every(self, look_every: Duration) -> Self {
        Self(self.0.look_every(look_every))
    }

    /// Waits until this candidate leads; see [`election::Election::campaign`].
    ///
    /// # Errors
    /// As [`election::Election::campaign`].
    pub fn campaign(&self, value: impl Into<String>) -> Result<Leadership> {
        block_on(self.0.campaign(value)).map(Leadership)
    }

    /// Who leads at this moment; see [`election::Election::leader`].
    ///
    /// # Errors
    /// As [`election::Election::leader`].
    pub fn leader(&self) -> Result<Option<Leader>> {
        block_on(self.0.leader())
    }

    /// Follows the leaders; see [`election::Election::observe`].
    pub fn observe(&self) -> Observer {
        Observer(self.0.observe())
    }

    /// Campaigns, runs `body` on this thread while this candidate leads, and campaigns again; see
    /// [`election::Election::lead`].
    ///
    /// Nothing can cancel blocking work: call [`Term::check`] before every step that matters, and return when it fails.
    /// The lock is released when the body has returned.
    ///
    /// ```
    /// use lockkeeper::blocking::Keeper;
    /// use lockkeeper::recipes::election::After;
    /// # fn main() -> lockkeeper::Result<()> {
    /// let keeper = Keeper::connect("memory:")?;
    /// let mut steps = 0;
    /// keeper.election("scheduler").lead(|term| {
    ///     while term.check().is_ok() {
    ///         steps += 1; // one step of the leader's work
    ///         if steps == 3 {
    ///             return After::Stop;
    ///         }
    ///     }
    ///     After::Again
    /// })?;
    /// # assert_eq!(steps, 3);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`election::Election::lead`].
    pub fn lead(&self, mut body: impl FnMut(Term) -> After) -> Result<()> {
        let mut rounds = Rounds::new(&self.0);
        loop {
            let leadership = block_on(rounds.win())?;
            let after = body(Term(leadership.handle()));
            if !block_on(rounds.end(leadership, after))? {
                return Ok(());
            }
        }
    }
}

/// A term that is held; see [`election::Leadership`].
#[derive(Debug)]
#[must_use = "a leadership that is dropped at once resigns at once"]
pub struct Leadership(election::Leadership);

impl Leadership {
    /// The number of the term; see [`election::Leadership::term`].
    pub fn term(&self) -> Token {
        self.0.term()
    }

    /// A read-only view of the lease.
    pub fn lease(&self) -> &Lease {
        self.0.lease()
    }

    /// What the leader shows at a fence.
    pub fn pass(&self) -> &Pass {
        self.0.pass()
    }

    /// Fails with `Lost` unless this candidate leads at this moment.
    ///
    /// # Errors
    /// `Lost` with the reason.
    pub fn check(&self) -> Result<()> {
        self.0.check()
    }

    /// Blocks until the term has ended.
    pub fn lost(&self) -> LossReason {
        block_on(self.0.lost())
    }

    /// Replaces the value that followers see; see [`election::Leadership::proclaim`].
    ///
    /// # Errors
    /// As [`election::Leadership::proclaim`].
    pub fn proclaim(&self, value: impl Into<String>) -> Result<()> {
        block_on(self.0.proclaim(value))
    }

    /// Ends the term; see [`election::Leadership::resign`].
    ///
    /// # Errors
    /// As [`election::Leadership::resign`].
    pub fn resign(self) -> Result<()> {
        block_on(self.0.resign())
    }

    /// Resigns, and waits until another candidate has won; see [`election::Leadership::step_down`].
    ///
    /// # Errors
    /// As [`election::Leadership::step_down`].
    pub fn step_down(self) -> Result<bool> {
        block_on(self.0.step_down())
    }
}

/// A view of a term, for the work that is done in it; see [`election::Term`].
#[derive(Clone, Debug)]
pub struct Term(election::Term);

impl Term {
    /// The number of the term; see [`election::Term::number`].
    pub fn number(&self) -> Token {
        self.0.number()
    }

    /// A read-only view of the lease.
    pub fn lease(&self) -> &Lease {
        self.0.lease()
    }

    /// What the leader shows at a fence.
    pub fn pass(&self) -> &Pass {
        self.0.pass()
    }

    /// Fails with `Lost` unless this candidate leads at this moment.
    ///
    /// # Errors
    /// `Lost` with the reason.
    pub fn check(&self) -> Result<()> {
        self.0.check()
    }

    /// Blocks until the lease runs short; see [`election::Term::ending`]. For a thread beside the body.
    pub fn ending(&self) {
        block_on(self.0.ending())
    }

    /// Replaces the value that followers see; see [`election::Term::proclaim`].
    ///
    /// # Errors
    /// As [`election::Term::proclaim`].
    pub fn proclaim(&self, value: impl Into<String>) -> Result<()> {
        block_on(self.0.proclaim(value))
    }
}

/// Follows the leaders of an election, as an iterator that blocks; see [`election::Observer`].
#[derive(Debug)]
#[must_use = "an observer does nothing until it is asked for the next leader"]
pub struct Observer(election::Observer);

impl Iterator for Observer {
    type Item = Result<Leader>;

    fn next(&mut self) -> Option<Result<Leader>> {
        block_on(self.0.next())
    }
}

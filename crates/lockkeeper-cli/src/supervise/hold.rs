//! What a command runs under: a lease and the id of its holder, for each lock. The lease that ends first speaks for all.

use lockkeeper::{Guard, HolderId, Lease, LockName, Mode, Pass, Phase, Result};
use std::future::{Future, poll_fn};
use std::task::Poll;

/// One lock that is held.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) lease: Lease,
    /// The id that the command shows at a fence.
    pub(crate) holder: HolderId,
}

impl Held {
    /// A lock that `guard` holds.
    pub(crate) fn of(guard: &Guard) -> Self {
        Self { lease: guard.lease().clone(), holder: guard.holder() }
    }

    /// A lock that a recipe holds.
    pub(crate) fn by(lease: &Lease, pass: &Pass) -> Self {
        Self { lease: lease.clone(), holder: pass.holder }
    }

    /// The token, if it orders writes. That of a Shared lock or a permit does not.
    pub(crate) fn token(&self) -> Option<lockkeeper::Token> {
        matches!(self.lease.mode(), Mode::Exclusive).then(|| self.lease.token())
    }

    /// Less than `1/part` of the lease is left.
    fn is_short(&self, part: u32) -> bool {
        self.lease.remaining() < self.lease.margin_base() / part
    }
}

/// All locks that a command runs under.
#[derive(Clone, Debug)]
pub(crate) struct Hold {
    /// The lock of the name on the command line.
    pub(crate) first: Held,
    /// The locks of `--also`.
    pub(crate) more: Vec<Held>,
}

impl From<Held> for Hold {
    fn from(first: Held) -> Self {
        Self { first, more: Vec::new() }
    }
}

impl Hold {
    /// Every lock, the one of the command line's name first.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Held> {
        std::iter::once(&self.first).chain(&self.more)
    }

    /// The name on the command line.
    pub(crate) fn name(&self) -> &LockName {
        self.first.lease.name()
    }

    /// The lease that ends first: the others do not matter once it has ended.
    pub(super) fn weakest(&self) -> &Lease {
        let more = self.more.iter().map(|held| &held.lease);
        more.fold(
            &self.first.lease,
            |weakest, lease| {
                if lease.remaining() < weakest.remaining() { lease } else { weakest }
            },
        )
    }

    pub(super) fn is_lost(&self) -> bool {
        self.all().any(|held| matches!(held.lease.phase(), Phase::Lost(_)))
    }

    pub(super) fn is_short(&self, part: u32) -> bool {
        self.all().any(|held| held.is_short(part))
    }

    /// Resolves when the last `1/part` of a lease has begun, or a lock was lost. Cancel safe.
    pub(crate) async fn last_part(&self, part: u32) {
        let mut ends: Vec<_> = self.all().map(|held| Box::pin(held.lease.last_part(part))).collect();
        poll_fn(|cx| {
            let ended = ends.iter_mut().any(|end| end.as_mut().poll(cx).is_ready());
            if ended { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// A lock handed over late has little of its lease left: its renewal comes first, or the command would be stopped at
    /// once.
    pub(super) async fn settle(&self) -> Result<()> {
        for held in self.all() {
            if held.is_short(2) {
                held.lease.renewed().await;
            }
            held.lease.check()?;
        }
        Ok(())
    }
}

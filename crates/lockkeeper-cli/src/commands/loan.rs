//! A recipe that calls its work, seen from outside: it lends what it holds, and gets back what came of it.
//!
//! A recipe drops its work when the lock is lost. A command must be ended, not dropped, so it runs beside the recipe and
//! not inside.

use std::pin::Pin;
use tokio::sync::{mpsc, oneshot};

/// The two sides of a loan.
pub(crate) fn loan<L, B>() -> (Lender<L, B>, Borrower<L, B>) {
    let (lend, lent) = mpsc::unbounded_channel();
    (Lender { lend }, Borrower { lent })
}

/// The recipe's side.
#[derive(Debug)]
pub(crate) struct Lender<L, B> {
    lend: mpsc::UnboundedSender<Lent<L, B>>,
}

/// What was lent.
#[derive(Debug)]
pub(crate) struct Lent<L, B> {
    pub(crate) what: L,
    give_back: oneshot::Sender<B>,
}

impl<L, B> Lender<L, B> {
    /// Lends, and waits for what comes back.
    pub(crate) fn lend(&self, what: L) -> impl Future<Output = B> + use<L, B> {
        let (give_back, came_back) = oneshot::channel();
        // When the other side is gone, the recipe is about to be dropped.
        let _ = self.lend.send(Lent { what, give_back });
        async {
            match came_back.await {
                Ok(back) => back,
                Err(_) => std::future::pending().await,
            }
        }
    }
}

impl<L, B> Lent<L, B> {
    /// Says what came of it. A recipe that has dropped its work does not hear it.
    pub(crate) fn give_back(self, what: B) {
        let _ = self.give_back.send(what);
    }

    /// Does what is to be done with the loan. Returns the recipe's own end too, if it did not wait for that.
    pub(crate) async fn beside<W, R>(
        &self,
        recipe: &mut Pin<&mut impl Future<Output = R>>,
        work: impl Future<Output = W>,
    ) -> (W, Option<R>) {
        let mut work = std::pin::pin!(work);
        let mut ended = None;
        loop {
            tokio::select! {
                biased;
                done = &mut work => return (done, ended),
                end = recipe.as_mut(), if ended.is_none() => ended = Some(end),
            }
        }
    }
}

/// The command's side.
#[derive(Debug)]
pub(crate) struct Borrower<L, B> {
    lent: mpsc::UnboundedReceiver<Lent<L, B>>,
}

/// What a recipe comes to next.
#[derive(Debug)]
pub(crate) enum Next<L, B, R> {
    /// It lends.
    Lent(Lent<L, B>),
    /// It has ended.
    Ended(R),
}

impl<L, B> Borrower<L, B> {
    /// Drives the recipe until it lends or ends. Cancel safe.
    pub(crate) async fn next<R>(&mut self, recipe: &mut Pin<&mut impl Future<Output = R>>) -> Next<L, B, R> {
        tokio::select! {
            biased;
            Some(lent) = self.lent.recv() => Next::Lent(lent),
            end = recipe.as_mut() => Next::Ended(end),
        }
    }
}

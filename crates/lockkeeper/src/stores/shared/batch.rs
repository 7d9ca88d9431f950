//! Batches of claims whose entries are answered side by side.

use crate::error::{Error, Result};
use crate::store::Claim;
use futures_util::future::join_all;

/// Asks for all claims at once. Every error names its lock. One claim, the usual case, costs no list of futures.
pub(in crate::stores) async fn together<'a, T, F: Future<Output = Result<T>>>(
    claims: &'a [Claim],
    ask: impl Fn(&'a Claim) -> F,
) -> Vec<Result<T>> {
    let named = async |claim: &'a Claim| ask(claim).await.map_err(|e| e.for_lock(&claim.name));
    match claims {
        [claim] => vec![named(claim).await],
        claims => join_all(claims.iter().map(named)).await,
    }
}

/// Puts answers that came in any order, each with the index of its claim, into the order of the claims.
pub(in crate::stores) fn in_order<T>(
    claims: &[Claim],
    store: &'static str,
    answers: impl IntoIterator<Item = (usize, Result<T>)>,
) -> Vec<Result<T>> {
    let unanswered = || Err(Error::unavailable("the call was left unanswered").in_store(store));
    let mut ordered: Vec<Result<T>> = claims.iter().map(|_| unanswered()).collect();
    for (at, answer) in answers {
        ordered[at] = answer;
    }
    claims.iter().zip(ordered).map(|(claim, answer)| answer.map_err(|e| e.for_lock(&claim.name))).collect()
}

//! Claims in batches, for clients with an engine of their own.

use super::Asking;
use crate::auth::Verb;
use crate::gateway::Gateway;
use crate::input::Posted;
use crate::refused::{Answered, Refused};
use axum::Json;
use axum::extract::State;
use lockkeeper::store::{Claim, Renewal};
use lockkeeper::wire::{Answer, Answers, Claims, MOST_CLAIMS};
use lockkeeper::{HolderId, Store};
use std::sync::Arc;

/// A batch that may be carried out, and who has sent it.
struct Batch {
    claims: Vec<Claim>,
    keeper: Option<HolderId>,
}

fn read(gateway: &Gateway, asking: &Asking, posted: Posted) -> Answered<Batch> {
    let keeper = posted.keeper()?;
    let wire: Claims = posted.json()?;
    if wire.claims.len() > MOST_CLAIMS {
        return Err(Refused::too_large(format!("a request has at most {MOST_CLAIMS} claims")));
    }
    let claims = wire.claims.into_iter().map(Claim::try_from).collect::<lockkeeper::Result<Vec<_>>>()?;
    for claim in &claims {
        asking.caller.need(Verb::Acquire, &claim.name)?;
        gateway.check(claim)?;
    }
    Ok(Batch { claims, keeper })
}

/// Remembers whom to tell.
fn note(gateway: &Gateway, asking: &Asking, batch: &Batch) {
    if let Some(keeper) = batch.keeper {
        let claims = batch.claims.iter().map(|claim| (claim.holder, claim.name.clone(), claim.ttl));
        gateway.hints.asked(keeper, &asking.caller.id, claims);
    }
}

/// Sends the claims in the order of their names, and answers in the order of the request.
async fn carry_out<F>(
    gateway: &Gateway,
    claims: Vec<Claim>,
    act: impl FnOnce(Arc<dyn Store>, Vec<Claim>) -> F,
) -> Answered<Json<Answers>>
where
    F: Future<Output = Vec<Answer>> + Send + 'static,
{
    let mut sorted: Vec<(usize, Claim)> = claims.into_iter().enumerate().collect();
    sorted.sort_by(|a, b| a.1.name.cmp(&b.1.name));
    let (places, claims): (Vec<usize>, Vec<Claim>) = sorted.into_iter().unzip();
    let answers = gateway.act(|store| act(store, claims)).await?;
    let mut placed: Vec<(usize, Answer)> = places.into_iter().zip(answers).collect();
    placed.sort_by_key(|(place, _)| *place);
    Ok(Json(Answers { answers: placed.into_iter().map(|(_, answer)| answer).collect() }))
}

pub(super) async fn try_acquire(
    State(gateway): State<Arc<Gateway>>,
    asking: Asking,
    posted: Posted,
) -> Answered<Json<Answers>> {
    let batch = read(&gateway, &asking, posted)?;
    let mut names: Vec<_> = batch.claims.iter().map(|claim| &claim.name).collect();
    names.sort();
    if names.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(Refused::invalid("a request asks for each name once"));
    }
    note(&gateway, &asking, &batch);
    carry_out(&gateway, batch.claims, |store, claims| async move {
        store.try_acquire(&claims).await.iter().map(Answer::of_attempt).collect()
    })
    .await
}

pub(super) async fn renew(
    State(gateway): State<Arc<Gateway>>,
    asking: Asking,
    posted: Posted,
) -> Answered<Json<Answers>> {
    let batch = read(&gateway, &asking, posted)?;
    note(&gateway, &asking, &batch);
    let seen = gateway.seen.clone();
    carry_out(&gateway, batch.claims, |store, claims| async move {
        let answers = store.renew(&claims).await;
        for (claim, answer) in claims.iter().zip(&answers) {
            if let Ok(Renewal::Lost(reason)) = answer {
                seen.lost(claim.holder, &claim.name, *reason);
            }
        }
        answers.iter().map(Answer::of_renewal).collect()
    })
    .await
}

pub(super) async fn release(
    State(gateway): State<Arc<Gateway>>,
    asking: Asking,
    posted: Posted,
) -> Answered<Json<Answers>> {
    let batch = read(&gateway, &asking, posted)?;
    for claim in &batch.claims {
        gateway.hints.forget(claim.holder);
    }
    carry_out(&gateway, batch.claims, |store, claims| async move {
        store.release(&claims).await.iter().map(Answer::of_release).collect()
    })
    .await
}

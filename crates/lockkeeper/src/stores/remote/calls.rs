//! Batches of claims, each in one request.

use super::{Core, refused};
use crate::error::Result;
use crate::store::Claim;
use crate::stores::shared::timing::call_limit;
use crate::wire::{Answer, Answers, Claims};
use serde::Deserialize;

/// The most claims of one request: with the longest names and labels they stay below what a gateway reads.
pub(super) const MOST_CLAIMS: usize = 250;

/// The answer to a break.
#[derive(Debug, Deserialize)]
pub(super) struct Broken {
    pub(super) next_token: u64,
}

impl Core {
    /// One answer for each claim; when a request fails, each of its claims has that error.
    pub(super) async fn batch<T>(
        &self,
        step: &str,
        claims: &[Claim],
        read: fn(Answer) -> Option<Result<T>>,
    ) -> Vec<Result<T>> {
        let path = format!("/v1/claims/{step}");
        let mut answers = Vec::with_capacity(claims.len());
        for part in claims.chunks(MOST_CLAIMS) {
            match self.part(&path, part).await {
                Ok(found) => answers.extend(found.into_iter().map(|answer| {
                    read(answer).unwrap_or_else(|| Err(self.base.http.peer.not_it("an answer to another question")))
                })),
                Err(error) => answers.extend(part.iter().map(|_| Err(error.clone()))),
            }
        }
        answers
    }

    async fn part(&self, path: &str, claims: &[Claim]) -> Result<Vec<Answer>> {
        let Some(shortest) = claims.iter().map(|claim| claim.ttl).min() else { return Ok(Vec::new()) };
        let body = Claims { claims: claims.iter().map(Into::into).collect() };
        let Answers { answers } = self.post(path, &body, call_limit(shortest)).await?.map_err(refused)?;
        if answers.len() != claims.len() {
            let text = format!("{} answers to {} claims", answers.len(), claims.len());
            return Err(self.base.http.peer.not_it(&text));
        }
        Ok(answers)
    }
}

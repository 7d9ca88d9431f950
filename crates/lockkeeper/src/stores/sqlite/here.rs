//! What a caller's own thread does itself, because it takes less time than to wake the store's thread. It never waits for
//! another process, nor for the disk.

use super::jobs::{Answer, Job, Op};
use super::worker::Worker;
use crate::error::Result;
use std::sync::atomic::Ordering;

/// The longest line that a caller's own thread hands over in: a step reads all of its rows.
const SHORT_LINE: u32 = 16;

impl Worker {
    /// A lone claim on the caller's own thread. `None` when it would have to wait, or when it takes more than one statement;
    /// then nothing has happened.
    pub(super) fn single_here(&mut self, op: &Op) -> Option<Answer> {
        if self.look_at_file(&[]).is_err() {
            return None;
        }
        // An error is left to the thread, which asks again and says what it was.
        let answer = self.at_once(|this| this.single(op)).ok().flatten()?;
        if let Op::Acquire(claims) | Op::Release(claims) = op {
            self.told.retain(|id, _| claims.iter().all(|claim| claim.holder != *id));
        }
        self.commits += 1;
        Some(answer)
    }

    /// A lone release that hands over, in the same manner, while the line is short.
    pub(super) fn release_here(&mut self, job: &Job) -> Option<Result<Answer>> {
        let Op::Release(claims) = &job.op else { return None };
        let [claim] = claims.as_slice() else { return None };
        if self.steps.place.check().is_err() {
            return None;
        }
        let batch = std::slice::from_ref(job);
        let answers = self.at_once(|this| {
            Ok(if this.steps.others(claim)? > SHORT_LINE { None } else { Some(this.transaction(batch)?) })
        });
        match answers {
            Ok(answers) => {
                let answer = answers?.pop()?;
                self.forget_told(batch);
                self.commits += 1;
                self.after_commit();
                Some(answer)
            }
            Err(e) => {
                drop(self.database_error(e));
                None
            }
        }
    }

    /// Works without waiting for another process.
    fn at_once<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> T {
        let patience = self.patience.swap(0, Ordering::Relaxed);
        let done = work(self);
        self.patience.store(patience, Ordering::Relaxed);
        done
    }
}

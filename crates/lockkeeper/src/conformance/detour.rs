//! A way to a store on which calls can be held up and delivered later.

use super::Hook;
use crate::store::Store;
use crate::testing::{Faults, Op};
use std::sync::Arc;

/// Two instances over the same locks, and what lies between one of them and its store.
pub struct Detour {
    /// Its calls go by `way`. Where there are several servers, those to one of them do.
    pub late: Arc<dyn Store>,
    /// Its calls go straight. Where there are several servers, it reaches only as many as it needs, among them the one
    /// behind `way`. So it notices when that server loses its claim.
    pub prompt: Arc<dyn Store>,
    /// What lies between.
    pub way: Box<dyn Way>,
}

/// Something that can hold up calls.
pub trait Way: Send + Sync {
    /// Holds up whatever is sent from now on.
    fn hold(&self);

    /// Whether something is held up.
    fn holds(&self) -> bool;

    /// Delivers what was held up, in the order it was sent, and lets everything pass from now on.
    fn deliver(&self) -> Hook<'_>;
}

impl Detour {
    /// For a store without a network: acquires are held up before they reach it.
    pub fn by_faults(late: Arc<dyn Store>, prompt: Arc<dyn Store>) -> Self {
        let (faults, late) = Faults::wrap(late);
        Self { late, prompt, way: Box::new(faults) }
    }
}

impl Way for Faults {
    fn hold(&self) {
        self.hold_request(Op::Acquire);
    }

    fn holds(&self) -> bool {
        self.asked(Op::Acquire) > self.done(Op::Acquire)
    }

    fn deliver(&self) -> Hook<'_> {
        Box::pin(async {
            self.let_go(Op::Acquire);
            self.until_done(Op::Acquire, self.asked(Op::Acquire)).await;
        })
    }
}

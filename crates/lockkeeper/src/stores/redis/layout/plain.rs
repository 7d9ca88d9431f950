//! A string at the name itself: what `SET K v NX PX` of any client excludes, and is excluded by.

use super::super::keys::Keys;
use super::super::script::{Script, scripts};
use super::{Layout, Step};
use crate::error::Result;
use crate::name::LockName;

scripts! { "../scripts/";
    ACQUIRE = "acquire_fast" "plain" "common" "acquire";
    RENEW = "renew_fast" "plain" "common" "renew";
    RELEASE = "release_head" "release_fast" "plain" "common" "release";
    BREAK = "plain" "common" "break";
    INSPECT = "inspect";
    RENEW_MANY = "renew_many";
}

#[derive(Debug)]
pub(super) struct Plain;

impl Layout for Plain {
    fn word(&self) -> &'static str {
        "plain"
    }

    fn keys(&self, name: &LockName, _: bool) -> Result<Keys> {
        Keys::of(name)
    }

    fn script(&self, step: Step) -> &'static Script {
        match step {
            Step::Acquire => &ACQUIRE,
            Step::Renew => &RENEW,
            Step::Release => &RELEASE,
            Step::Break => &BREAK,
            Step::Inspect => &INSPECT,
        }
    }

    fn renew_many(&self) -> Option<&'static Script> {
        Some(&RENEW_MANY)
    }
}

/// The texts of the scripts for acquire, renew and release: benchmarks send them by hand.
#[doc(hidden)]
pub fn texts() -> [&'static str; 3] {
    [ACQUIRE.text(), RENEW.text(), RELEASE.text()]
}

/// What does not depend on how the free lock is told.
pub(super) fn inspect() -> &'static Script {
    &INSPECT
}

/// The same.
pub(super) fn renew_many() -> &'static Script {
    &RENEW_MANY
}

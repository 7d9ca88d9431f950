//! What every command that runs another one begins with.

use crate::args::Common;
use crate::exit::{self, Failure};
use crate::output;
use crate::store::{self, Chosen};
use crate::supervise::{self, Signals, Wanted};
use crate::voice::Voice;
use lockkeeper::{Error, Keeper, LockName};
use serde_json::json;
use std::time::Duration;

/// How long the keeper may go on trying to release when its first try has failed.
const LATE_RELEASE: Duration = Duration::from_secs(1);

/// A store that was chosen and announced, before anything is asked of it.
#[derive(Debug)]
pub(crate) struct Begun {
    pub(crate) chosen: Chosen,
    pub(crate) voice: Voice,
}

impl Begun {
    /// Chooses the store, and says what there is to say about it.
    pub(crate) fn at(store: Option<&str>, common: &Common) -> Result<Self, Failure> {
        let voice = Voice::new(common.json);
        let chosen = store::choose(store)?;
        for notice in &chosen.notices {
            voice.tell("notice", notice, json!({ "message": notice }));
        }
        supervise::check()?;
        Ok(Self { chosen, voice })
    }

    /// Fails when this process runs under a `lockkeeper` that holds one of `names`. `true` when that one shares it.
    pub(crate) fn refuse(&self, names: &[LockName], shared: bool) -> Result<bool, Failure> {
        let mut nested = false;
        for name in names {
            nested |= supervise::refuse(Wanted { name, store: &self.chosen, shared })?;
        }
        Ok(nested)
    }

    /// Connects.
    pub(crate) async fn connect(self, common: &Common) -> Result<Ready, Failure> {
        let mut signals = Signals::listen()?;
        let mut builder = Keeper::builder().label(&common.label);
        if let Some(ttl) = common.ttl {
            builder = builder.ttl(ttl);
        }
        let keeper = tokio::select! {
            keeper = builder.connect(self.chosen.url()) => keeper?,
            number = signals.ending() => return Err(Failure::signalled(number)),
        };
        Ok(Ready { chosen: self.chosen, voice: self.voice, signals, keeper })
    }
}

/// Everything that is needed to take a lock and to run a command under it.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) chosen: Chosen,
    pub(crate) voice: Voice,
    pub(crate) signals: Signals,
    pub(crate) keeper: Keeper,
}

impl Ready {
    /// Tells what became of a release, after a command that has led to exit code `code`. If this is the `last` release,
    /// the keeper ends with it.
    pub(crate) async fn tell_released(&self, name: &LockName, released: Result<(), Error>, code: u8, last: bool) {
        // The server may have closed the connection meanwhile. The keeper tries again, and only a lasting failure is
        // reported.
        let again = last && released.as_ref().is_err_and(Error::is_retryable);
        let late = again && self.keeper.close(LATE_RELEASE).await.is_ok_and(|left| left.releasing == 0);
        match released {
            _ if code == exit::LOST => {}
            Err(error) if !late => self.voice.tell(
                "release-failed",
                &format!("the command has ended, but its lock was not released: {error}"),
                output::named(name, json!({ "message": error.to_string() })),
            ),
            _ => self.voice.tell("released", "", output::named(name, json!({}))),
        }
    }
}

//! The fence of a plain string in Redis or Valkey: check and write in one script.
//!
//! The value is your own key, which every client can read. Its fence is a hash beside it ([`fence_key`]). Redis keeps
//! the fence for 25 hours after the last Exclusive entry or write, or the last Shared entry that raised its mark. Enter
//! before the first read, then write with the same pass:
//!
//! | | `EVAL` [`SCRIPT`] `2 KEY FENCE_KEY …` | answers |
//! |---|---|---|
//! | enter | `enter TOKEN HOLDER STORE LIFE_MS` | the value |
//! | enter, Shared | `shared TOKEN '' STORE LIFE_MS` | the value |
//! | write | `write TOKEN HOLDER STORE LIFE_MS VALUE TTL_MS` | `OK` |
//!
//! HOLDER, STORE and TTL_MS may be empty. A refusal is an error whose first word is `LK001`, `LK002` or `LK003`.

#[cfg(feature = "fence-redis-1")]
use super::FenceError;
use super::Refusal;
#[cfg(feature = "fence-redis-1")]
use crate::pass::{Pass, SharedPass};
use crate::redis_slots::companion;
use std::time::Duration;

/// The script.
pub const SCRIPT: &str = include_str!("redis.lua");

/// How long Redis keeps a fence after the last entry or write that raised or confirmed it: a day, and an hour for
/// clocks that differ.
pub const LIFE: Duration = Duration::from_secs(25 * 3600);

/// The key of a value's fence, in the same slot of a Cluster: `lk:d:{KEY}`. For a key with a hash tag it is `lk:d/KEY`.
/// For a key with a `}` but no tag it is `lk:d!{N}KEY`, where N is the lowest number with its slot.
pub fn fence_key(key: &[u8]) -> Vec<u8> {
    companion(b'd', key)
}

/// Why the fence refused, by the first word of an error; `None` for the server's own errors.
pub fn refusal(code: &str) -> Option<Refusal> {
    Refusal::of_code(code)
}

/// Whether the first word of an error says that a later holder was here.
pub fn is_stale(code: &str) -> bool {
    refusal(code) == Some(Refusal::Stale)
}

/// Enters the fence of a key and reads its value, in one step: before anything else.
///
/// # Errors
/// `Refused` when the token is stale. Else the driver's error.
///
/// # Cancellation
/// It may or may not have entered; enter again.
#[cfg(feature = "fence-redis-1")]
pub async fn enter(
    connection: &mut (impl redis::aio::ConnectionLike + Send),
    key: impl AsRef<[u8]>,
    pass: &Pass,
) -> Result<Option<Vec<u8>>, FenceError<redis::RedisError>> {
    script().call(key.as_ref(), "enter", pass).invoke_async(connection).await.map_err(map_err)
}

/// Enters the fence of a key as a Shared holder and reads its value, in one step. A Shared holder may not write.
///
/// # Errors
/// `Refused` when a later Exclusive holder has entered. Else the driver's error.
///
/// # Cancellation
/// It may or may not have entered; enter again.
#[cfg(feature = "fence-redis-1")]
pub async fn enter_shared(
    connection: &mut (impl redis::aio::ConnectionLike + Send),
    key: impl AsRef<[u8]>,
    pass: &SharedPass,
) -> Result<Option<Vec<u8>>, FenceError<redis::RedisError>> {
    let script = script();
    let call = script.call_as(key.as_ref(), "shared", (pass.number(), "", pass.store_name()));
    call.invoke_async(connection).await.map_err(map_err)
}

/// Writes a value unless a later holder was here, in one step. `ttl` of `None` keeps it; the fence outlives it.
///
/// # Errors
/// `Refused` when the token is stale. Else the driver's error.
///
/// # Cancellation
/// It may or may not have been written. Wait for an answer before the next write: a late repeat would undo it.
#[cfg(feature = "fence-redis-1")]
pub async fn write(
    connection: &mut (impl redis::aio::ConnectionLike + Send),
    key: impl AsRef<[u8]>,
    pass: &Pass,
    value: impl AsRef<[u8]>,
    ttl: Option<Duration>,
) -> Result<(), FenceError<redis::RedisError>> {
    // A TTL below a millisecond must not become "none" or an error of the server's.
    let ttl = ttl.map_or_else(String::new, |ttl| ttl.as_millis().max(1).to_string());
    let script = script();
    let mut call = script.call(key.as_ref(), "write", pass);
    call.arg(value.as_ref()).arg(ttl);
    call.invoke_async::<()>(connection).await.map_err(map_err)
}

#[cfg(feature = "fence-redis-1")]
struct Fencing(redis::Script);

#[cfg(feature = "fence-redis-1")]
fn script() -> Fencing {
    crate::metrics::fence_used("redis");
    Fencing(redis::Script::new(SCRIPT))
}

#[cfg(feature = "fence-redis-1")]
impl Fencing {
    fn call(&self, key: &[u8], kind: &str, pass: &Pass) -> redis::ScriptInvocation<'_> {
        self.call_as(key, kind, (pass.number(), &pass.holder_hex().unwrap_or_default(), pass.store_name()))
    }

    /// `shown` is the token, the holder or "", and the store.
    fn call_as(&self, key: &[u8], kind: &str, shown: (i64, &str, Option<&str>)) -> redis::ScriptInvocation<'_> {
        let (token, holder, store) = shown;
        let mut call = self.0.prepare_invoke();
        call.key(key).key(fence_key(key)).arg(kind).arg(token).arg(holder).arg(store.unwrap_or_default());
        call.arg(LIFE.as_millis().to_string());
        call
    }
}

#[cfg(feature = "fence-redis-1")]
fn map_err(error: redis::RedisError) -> FenceError<redis::RedisError> {
    match error.code().and_then(refusal) {
        Some(refusal) => {
            let message = format!("{} {}", error.code().unwrap_or_default(), error.detail().unwrap_or_default());
            FenceError::refused("redis", refusal, message)
        }
        None => FenceError::Driver(error),
    }
}

#[cfg(feature = "fence-redis-1")]
pub(super) fn says_stale(error: &(dyn std::error::Error + 'static)) -> bool {
    error.downcast_ref::<FenceError<redis::RedisError>>().is_some_and(FenceError::is_stale)
        || error.downcast_ref::<redis::RedisError>().is_some_and(|error| error.code().is_some_and(is_stale))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis_slots::{SLOTS, crc16, tag};

    #[test]
    fn a_fence_is_in_the_slot_of_its_value() {
        assert_eq!(fence_key(b"stock"), b"lk:d:{stock}");
        assert_eq!(fence_key(b"shop{7}stock"), b"lk:d/shop{7}stock");
        let slot = |key: &[u8]| crc16(tag(key).unwrap_or(key)) % SLOTS;
        for key in [&b"stock"[..], b"shop{7}stock", b"odd{}", b"a}b", b"}", b"a}{b}", b"{", b"{}{x}"] {
            assert_eq!(slot(&fence_key(key)), slot(key), "{}", key.escape_ascii());
        }
    }
}

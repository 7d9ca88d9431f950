//! What one node does in one step. The lock's value is `lk1:HOLDER:TOKEN:TTL:SINCE:ATTEMPT:NOTE`; ATTEMPT is the number of
//! the one that took it, or with a `+` that of a newer one which found it taken by the same claim. It never falls: what an
//! older attempt says late, its undo too, finds a higher number and changes nothing.

use redis::Cmd;
use std::sync::LazyLock;

/// A script and its digest.
pub(super) struct Script {
    text: &'static str,
    hash: String,
}

impl Script {
    fn new(text: &'static str) -> Self {
        Self { text, hash: redis::Script::new(text).get_hash().to_owned() }
    }

    /// One run of it.
    pub(super) fn call(&self, keys: &[&[u8]], args: &[&[u8]]) -> Cmd {
        let mut cmd = redis::cmd("EVALSHA");
        cmd.arg(&self.hash).arg(keys.len()).arg(keys).arg(args);
        cmd
    }

    /// Makes it known to a server.
    pub(super) fn load(&self) -> Cmd {
        let mut cmd = redis::cmd("SCRIPT");
        cmd.arg("LOAD").arg(self.text);
        cmd
    }
}

/// Takes the lock if it is free. KEYS: lock, fence, tombstone of the holder, tombstone of the displaced holder. ARGV:
/// holder, proposal, ttl ms, attempt, note, displaced holder or nothing, life of its tombstone in ms. `{1, number}` taken,
/// `{2, number, left}` mine already, `{0, value, left}` somebody else's, `{3}` released before, `{4}` out of numbers.
pub(super) static ACQUIRE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "
if redis.call('EXISTS', KEYS[3]) == 1 then return {3} end
local value = redis.pcall('GET', KEYS[1])
if type(value) == 'table' then return {0, false, redis.call('PTTL', KEYS[1])} end
if value then
  local id, token, ttl, since, attempt, note =
    string.match(value, '^lk1:(%x+):(%d+):(%d+):(%d+):(%d*)[^:]*:(.*)$')
  local left = redis.call('PTTL', KEYS[1])
  -- Longer than it was ever set to: the clock stepped back.
  if ttl and left > tonumber(ttl) then
    redis.call('PEXPIRE', KEYS[1], ttl)
    left = tonumber(ttl)
  end
  if id == ARGV[1] then
    -- From now on this attempt's, if it is the newer: a late undo of the one before must not take it away.
    if tonumber(ARGV[4]) > (tonumber(attempt) or 0) then
      redis.call('SET', KEYS[1], 'lk1:' .. id .. ':' .. token .. ':' .. ttl .. ':' .. since .. ':' .. ARGV[4] .. '+:'
        .. note, 'KEEPTTL')
    end
    return {2, token, left}
  end
  -- Another client's may be of any length; none of ours is as long as this.
  if not id or id ~= ARGV[6] then return {0, string.sub(value, 1, 4096), left} end
  redis.call('SET', KEYS[4], 'b', 'PX', ARGV[7])
end
local time = redis.call('TIME')
local us = time[1] * 1000000 + time[2]
local last = redis.call('GET', KEYS[2])
local number, least = tonumber(ARGV[2]), us
if last then least = (tonumber(last) or 9007199254740991) + 1 end
if least > number then number = least end
if number > 9007199254740991 then return {4} end
local token = string.format('%.0f', number)
redis.call('SET', KEYS[2], token, 'PX', 90000000)
redis.call('SET', KEYS[1], 'lk1:' .. ARGV[1] .. ':' .. token .. ':' .. ARGV[3] .. ':' .. string.format('%.0f', us)
  .. ':' .. ARGV[4] .. ':' .. ARGV[5], 'PX', ARGV[3])
return {1, token}",
    )
});

/// Stores a number, if the claim still holds here. KEYS: lock, fence. ARGV: holder, number. `{1, number now}` or `{0}`.
pub(super) static CONFIRM: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "
local value = redis.pcall('GET', KEYS[1])
if type(value) ~= 'string' then return {0} end
local id, token, rest = string.match(value, '^lk1:(%x+):(%d+)(:.*)$')
if id ~= ARGV[1] then return {0} end
if tonumber(ARGV[2]) > tonumber(token) then
  token = ARGV[2]
  redis.call('SET', KEYS[1], 'lk1:' .. id .. ':' .. token .. rest, 'KEEPTTL')
  local last = tonumber(redis.call('GET', KEYS[2]) or 0) or 0
  if tonumber(token) > last then redis.call('SET', KEYS[2], token, 'PX', 90000000) end
end
return {1, token}",
    )
});

/// Prolongs the lease, if the claim still holds here. KEYS: lock, tombstone. ARGV: holder, ttl ms. `{1}`, or `{0, why}`
/// with `b` for broken.
pub(super) static RENEW: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "
local value = redis.pcall('GET', KEYS[1])
local id, token, ttl, rest
if type(value) == 'string' then id, token, ttl, rest = string.match(value, '^lk1:(%x+):(%d+):(%d+)(:.*)$') end
if id ~= ARGV[1] then return {0, redis.call('GET', KEYS[2])} end
if tonumber(ARGV[2]) > tonumber(ttl) then
  redis.call('SET', KEYS[1], 'lk1:' .. id .. ':' .. token .. ':' .. ARGV[2] .. rest, 'KEEPTTL')
end
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return {1}",
    )
});

/// Ends the claim here. KEYS: lock, tombstone. ARGV: holder, life of the tombstone in ms or 0, an attempt or nothing, and
/// what of it: `=` what exactly this attempt took, `<` whatever this one or an older one has. `{1}` if it held, else `{0}`.
pub(super) static RELEASE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "
if ARGV[2] ~= '0' then redis.call('SET', KEYS[2], 'r', 'PX', ARGV[2], 'NX') end
local value = redis.pcall('GET', KEYS[1])
if type(value) ~= 'string' then return {0} end
local id, attempt, found = string.match(value, '^lk1:(%x+):%d+:%d+:%d+:(%d*)([^:]*):')
if id ~= ARGV[1] then return {0} end
if ARGV[4] == '=' and (attempt ~= ARGV[3] or found ~= '') then return {0} end
if ARGV[4] == '<' and (tonumber(attempt) or 0) > tonumber(ARGV[3]) then return {0} end
redis.call('DEL', KEYS[1])
return {1}",
    )
});

/// The values of locks, for people. KEYS: locks. For each its value (`false` when free, `!` when of another type) and
/// what is left of its lease.
pub(super) static LOOK: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "
local seen = {}
for _, key in ipairs(KEYS) do
  local value = redis.pcall('GET', key)
  if type(value) == 'table' then value = '!' end
  if value and #value > 4096 then value = string.sub(value, 1, 4096) end
  seen[#seen + 1] = value
  seen[#seen + 1] = redis.call('PTTL', key)
end
return seen",
    )
});

/// All of them: loaded when a connection is opened, so that no call has to be sent twice.
pub(super) fn all() -> [&'static Script; 5] {
    [&ACQUIRE, &CONFIRM, &RENEW, &RELEASE, &LOOK]
}

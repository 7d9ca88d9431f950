-- Takes the lock if it is free.
-- KEYS: lock, fence, tombstone of the holder, tombstone of the displaced holder.
-- ARGV: holder, proposal, ttl ms, attempt, note, displaced holder or nothing, life of its tombstone in ms.
-- Replies: {1, number} taken; {2, number, left} this claim has it already; {0, value, left} another holder has it;
-- {3} released before; {4} out of numbers.
if redis.call('EXISTS', KEYS[3]) == 1 then return {3} end
local value = redis.pcall('GET', KEYS[1])
if type(value) == 'table' then return {0, false, redis.call('PTTL', KEYS[1])} end
if value then
  local id, token, ttl, since, attempt, note =
    string.match(value, '^lk1:(%x+):(%d+):(%d+):(%d+):(%d*)[^:]*:(.*)$')
  local left = redis.call('PTTL', KEYS[1])
  -- A lease longer than its TTL: the clock stepped back.
  if ttl and left > tonumber(ttl) then
    redis.call('PEXPIRE', KEYS[1], ttl)
    left = tonumber(ttl)
  end
  if id == ARGV[1] then
    -- The newer attempt owns it from now on: a late undo of an older one must not take it away.
    if tonumber(ARGV[4]) > (tonumber(attempt) or 0) then
      redis.call('SET', KEYS[1], 'lk1:' .. id .. ':' .. token .. ':' .. ttl .. ':' .. since .. ':' .. ARGV[4] .. '+:'
        .. note, 'KEEPTTL')
    end
    return {2, token, left}
  end
  -- Another program's value may have any length; ours are shorter than this.
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
return {1, token}

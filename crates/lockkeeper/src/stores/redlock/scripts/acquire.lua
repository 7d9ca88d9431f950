-- Takes the lock if it is free.
-- KEYS: lock; its fence, where the name has a brace.
-- ARGV: the value with the proposal in it, proposal, ttl ms; for a break also the holder that is displaced, and the life
-- of its tombstone in ms.
-- Replies: 1 taken with the proposal; {1, number} taken with this number; {2, number, left} this claim has it already;
-- {0, value, left} another holder has it; {3} released before; {4} out of numbers.
local lock, value = KEYS[1], ARGV[1]
local tail = KEYS[2] and string.sub(KEYS[2], 5) or ':{' .. lock .. '}'
local fence, holder, most = 'lk:f' .. tail, string.sub(value, 5, 36), 9007199254740991
local tomb = 'lk:x' .. tail .. ':' .. holder
if not redis.call('SET', lock, value, 'NX', 'PX', ARGV[3]) then
  if redis.call('EXISTS', tomb) == 1 then return {3} end
  local there = redis.pcall('GET', lock)
  if type(there) == 'table' then return {0, false, redis.call('PTTL', lock)} end
  local id, token, ttl, since, attempt, note =
    string.match(there, '^lk1:(%x+):(%d+):(%d+):(%d+):(%d*)[^:]*:(.*)$')
  local left = redis.call('PTTL', lock)
  -- A lease longer than its TTL: the clock stepped back.
  if ttl and left > tonumber(ttl) then
    redis.call('PEXPIRE', lock, ttl)
    left = tonumber(ttl)
  end
  if id == holder then
    -- The newer attempt owns it from now on: a late undo of an older one must not take it away.
    local newer = string.match(value, '^%d+:%d+:%d+:(%d+):', 38)
    if tonumber(newer) > (tonumber(attempt) or 0) then
      redis.call('SET', lock, 'lk1:' .. id .. ':' .. token .. ':' .. ttl .. ':' .. since .. ':' .. newer .. '+:' .. note,
        'KEEPTTL')
    end
    return {2, token, left}
  end
  -- Another program's value may have any length; ours are shorter than this.
  if not id or id ~= ARGV[4] then return {0, string.sub(there, 1, 4096), left} end
  local last = redis.call('GET', fence)
  if last and (tonumber(last) or most) >= most then return {4} end
  redis.call('SET', 'lk:x' .. tail .. ':' .. id, 'b', 'PX', ARGV[5])
  redis.call('SET', lock, value, 'PX', ARGV[3])
end
-- The lock is the claim's, with the proposal for its token. Is the proposal above all numbers of this name, and is the
-- claim still wanted? The first number of an hour also prolongs the fence: it lasts 25 hours and more.
local proposal, before = tonumber(ARGV[2]), redis.call('SET', fence, ARGV[2], 'KEEPTTL', 'GET')
local last, ended = before and (tonumber(before) or most), redis.call('EXISTS', tomb) == 1
if not ended and last and last < proposal and proposal - last <= proposal % 3600000000 then return 1 end
local least = last and last + 1
if not last then
  local time = redis.call('TIME')
  least = time[1] * 1000000 + time[2]
end
local number = least > proposal and least or proposal
if ended or number > most then
  redis.call('DEL', lock)
  if before then redis.call('SET', fence, before, 'KEEPTTL') else redis.call('DEL', fence) end
  return {ended and 3 or 4}
end
local token = string.format('%.0f', number)
redis.call('SET', fence, token, 'PX', 93600000)
if number == proposal then return 1 end
redis.call('SET', lock, string.sub(value, 1, 37) .. token .. string.sub(value, 38 + #ARGV[2]), 'KEEPTTL')
return {1, token}

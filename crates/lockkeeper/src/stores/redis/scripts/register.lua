-- Raises a fence, then reads or writes. KEYS: register. ARGV: lock, token, holder, r|w, value, ttl ms ('': for ever).
local V = KEYS[1]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local lock, seen, holder, ends, value = unpack(redis.call('HMGET', V, 'lock', 'token', 'holder', 'ends', 'value'))
if seen then
  if lock ~= ARGV[1] then return {2, lock} end
  local mine, theirs = tonumber(ARGV[2]), tonumber(seen)
  if mine < theirs or (mine == theirs and holder ~= ARGV[3]) then return {0, seen} end
end
if value and ends ~= '' and tonumber(ends) < now then value = false end
if ARGV[4] == 'w' then
  value, ends = ARGV[5], ''
  if ARGV[6] ~= '' then ends = string.format('%.0f', now + ARGV[6]) end
end
redis.call('HSET', V, 'lock', ARGV[1], 'token', ARGV[2], 'holder', ARGV[3])
if ARGV[4] == 'w' then redis.call('HSET', V, 'value', value, 'ends', ends) end
if not value then redis.call('HDEL', V, 'value', 'ends') end
-- The fence lives 25 hours after its last use, or as long as the value if that is longer.
if value and ends == '' then redis.call('PERSIST', V)
else
  local life = 90000000
  if value and tonumber(ends) - now > life then life = tonumber(ends) - now end
  redis.call('PEXPIRE', V, life)
end
return {1, value}

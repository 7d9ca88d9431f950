-- Prolongs the lease, if the claim still holds here.
-- KEYS: lock, tombstone. ARGV: holder, ttl ms. Replies: {1}, or {0, why} with `b` for broken.
local value = redis.pcall('GET', KEYS[1])
local id, token, ttl, rest
if type(value) == 'string' then id, token, ttl, rest = string.match(value, '^lk1:(%x+):(%d+):(%d+)(:.*)$') end
if id ~= ARGV[1] then return {0, redis.call('GET', KEYS[2])} end
if tonumber(ARGV[2]) > tonumber(ttl) then
  redis.call('SET', KEYS[1], 'lk1:' .. id .. ':' .. token .. ':' .. ARGV[2] .. rest, 'KEEPTTL')
end
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return {1}

-- Prolongs the lease, if the claim still holds here.
-- KEYS: lock; its fence, where the name has a brace. ARGV: `lk1:HOLDER:`, ttl ms.
-- Replies: 1, or {0, why} with `b` for broken.
local lock, value = KEYS[1], redis.pcall('GET', KEYS[1])
if type(value) == 'string' and string.sub(value, 1, 37) == ARGV[1] then
  local token, ttl, rest = string.match(value, '^(%d+):(%d+)(:.*)$', 38)
  if ttl == ARGV[2] then
    redis.call('PEXPIRE', lock, ttl)
    return 1
  elseif ttl then
    if tonumber(ARGV[2]) > tonumber(ttl) then
      redis.call('SET', lock, ARGV[1] .. token .. ':' .. ARGV[2] .. rest, 'KEEPTTL')
    end
    if redis.call('PTTL', lock) < tonumber(ARGV[2]) then redis.call('PEXPIRE', lock, ARGV[2]) end
    return 1
  end
end
local tail = KEYS[2] and string.sub(KEYS[2], 5) or ':{' .. lock .. '}'
return {0, redis.call('GET', 'lk:x' .. tail .. ':' .. string.sub(ARGV[1], 5, 36))}

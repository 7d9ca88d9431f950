-- Prolongs many Exclusive holders at once. KEYS: their locks. ARGV: ttl ms, then a holder for each lock.
-- Replies the places, from 1, of the locks that need a step of their own.
local rest = {}
local ttl = ARGV[1]
local form = '^%d+:' .. ttl .. ':%d+:%-:'
for i, key in ipairs(KEYS) do
  local value = redis.pcall('GET', key)
  if type(value) == 'string' and string.sub(value, 1, 37) == 'lk1:' .. ARGV[i + 1] .. ':'
      and string.find(value, form, 38) then
    redis.call('PEXPIRE', key, ttl)
  else rest[#rest + 1] = i end
end
return rest

-- Prolongs many Exclusive holders at once. KEYS: their locks. ARGV: ttl ms, then 'lk2:HOLDER' for each lock.
-- Replies 1, or the places, from 1, of the locks that need a step of their own.
local rest, ttl = {}, ARGV[1]
local form = ':' .. ttl .. ':'
local stop = 37 + #form
for i, key in ipairs(KEYS) do
  local value = redis.pcall('GET', key)
  if type(value) == 'string' and string.sub(value, 1, 36) == ARGV[i + 1] and string.sub(value, 38, stop) == form
      and string.byte(value, 37) ~= 104 then
    redis.call('PEXPIRE', key, ttl)
  else rest[#rest + 1] = i end
end
return #rest == 0 and 1 or rest

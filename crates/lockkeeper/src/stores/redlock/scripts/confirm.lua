-- Stores a number, if the claim still holds here.
-- KEYS: lock, fence. ARGV: holder, number. Replies: {1, number now} or {0}.
local value = redis.pcall('GET', KEYS[1])
if type(value) ~= 'string' then return {0} end
local id, token, rest = string.match(value, '^lk1:(%x+):(%d+)(:.*)$')
if id ~= ARGV[1] then return {0} end
if tonumber(ARGV[2]) > tonumber(token) then
  token = ARGV[2]
  redis.call('SET', KEYS[1], 'lk1:' .. id .. ':' .. token .. rest, 'KEEPTTL')
  local last = tonumber(redis.call('GET', KEYS[2]) or 0) or 0
  if tonumber(token) > last then redis.call('SET', KEYS[2], token, 'PX', 93600000) end
end
return {1, token}

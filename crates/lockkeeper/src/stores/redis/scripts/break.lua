-- Takes the lock away from the holders with one token. KEYS: lock, or lock, fence and queue. ARGV: token.
local token = ARGV[1]
purge()
local broken = {}
if kind == 'one' then
  if holder() == token then
    broken[1] = {string.sub(value, 5, 36), redis.call('PTTL', K)}
    kind = 'free'
  end
elseif kind == 'many' then
  local all = redis.call('HGETALL', H)
  for i = 1, #all, 2 do
    if parts(all[i + 1]) == token then
      broken[#broken + 1] = {all[i], redis.call('ZSCORE', R, all[i]) - now}
      redis.call('ZREM', R, all[i])
      redis.call('HDEL', H, all[i])
    end
  end
  if redis.call('ZCARD', R) == 0 then kind = 'free' end
end
for _, each in ipairs(broken) do
  redis.call('SET', tomb(each[1]), 'b', 'PX', math.max(0, each[2]) + 60000)
end
local above = false
if #broken > 0 then above = draw() end
advance()
settle()
if #broken == 0 then return {0} end
if not above then return {5} end
return {1, above}

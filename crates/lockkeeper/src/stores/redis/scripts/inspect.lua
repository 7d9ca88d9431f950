-- Everything about one name, for operators. Changes nothing. KEYS: lock, or lock, fence and queue.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local value = redis.pcall('GET', K)
if type(value) == 'table' then value = '!' end
local holders, waiters = {}, {}
if value == 'lk1s' or (value and string.match(value, '^lk1p%d+$')) then
  local all = redis.call('ZRANGEBYSCORE', 'lk:r' .. tail, string.format('%.0f', now), '+inf', 'WITHSCORES')
  for i = 1, #all, 2 do
    holders[#holders + 1] = redis.call('HGET', 'lk:h' .. tail, all[i]) or ''
    holders[#holders + 1] = string.format('%.0f', all[i + 1] - now)
  end
end
for _, id in ipairs(redis.call('ZRANGE', Q, 0, -1)) do
  local entry = redis.call('HGET', 'lk:w' .. tail, id)
  if entry and tonumber(string.match(entry, '^%d+')) >= now then
    waiters[#waiters + 1] = string.match(entry, '^%d+:%d+:%d+:(.*)$')
  end
end
return {value, redis.call('PTTL', K), holders, waiters}

-- Takes a lock if it is free. KEYS: lock, fence, queue. ARGV: holder, mode, ttl ms, queue 0|1, waiter life ms, stamp µs,
-- keeper, note. The common case first: Exclusive, nobody there, nobody waiting, no tombstone.
if ARGV[2] == 'x' and redis.pcall('GET', KEYS[1]) == false
    and redis.call('EXISTS', KEYS[3], 'lk:x' .. string.sub(KEYS[3], 5) .. ':' .. ARGV[1]) == 0 then
  local time = redis.call('TIME')
  local us = time[1] * 1000000 + time[2]
  local token = (tonumber(redis.call('GET', KEYS[2]) or 0) or 0) + 1
  if us > token then token = us end
  if token > 9007199254740991 then return {5} end
  token = string.format('%.0f', token)
  redis.call('SET', KEYS[2], token, 'PX', 90000000)
  redis.call('SET', KEYS[1], 'lk1:' .. ARGV[1] .. ':' .. token .. ':' .. ARGV[3] .. ':' .. string.format('%.0f', us)
    .. ':-:' .. ARGV[8], 'PX', ARGV[3])
  return {1, token, -1}
end

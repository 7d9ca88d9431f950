-- Takes a lock if it is free, or puts the claim into the line. KEYS: lock, fence, queue.
-- ARGV: holder, mode, ttl ms, queue 0|1, waiter life ms, stamp µs, channel, note.
-- The two common cases of an Exclusive claim come first: no holder, waiter or tombstone; and a new waiter behind an
-- Exclusive holder of ours.
if ARGV[2] == 'x' then
  local tail = string.sub(KEYS[3], 5)
  local tomb = 'lk:x' .. tail .. ':' .. ARGV[1]
  if redis.call('EXISTS', KEYS[1], KEYS[3], tomb) == 0 then
    local time = redis.call('TIME')
    local us = time[1] * 1000000 + time[2]
    local now = string.format('%.0f', us)
    local token, last = now, redis.call('SET', KEYS[2], now, 'PX', 90000000, 'GET')
    if last and (tonumber(last) or 0) >= us then
      local spent = last + 1 > 9007199254740991
      token = spent and last or string.format('%.0f', last + 1)
      redis.call('SET', KEYS[2], token, 'PX', 90000000)
      if spent then return {5} end
    end
    redis.call('SET', KEYS[1],
      'lk1:' .. ARGV[1] .. ':' .. token .. ':' .. ARGV[3] .. ':' .. now .. ':-:' .. ARGV[8], 'PX', ARGV[3])
    return {1, token, -1}
  end
  local value = ARGV[4] == '1' and redis.pcall('GET', KEYS[1])
  if type(value) == 'string' and string.sub(value, 1, 4) == 'lk1:' and string.sub(value, 5, 36) ~= ARGV[1]
      and redis.call('EXISTS', tomb) == 0 then
    local ttl = string.match(value, '^:%d+:(%d+):%d+:[h-]:', 37)
    local left = ttl and redis.call('PTTL', KEYS[1]) or -1
    -- A lease that needs clamping is left to the general case below.
    if left >= 0 and left <= tonumber(ttl) then
      local last = redis.call('ZREVRANGE', KEYS[3], 0, 0, 'WITHSCORES')
      -- ZADD adds nothing when the claim is in line already.
      if redis.call('ZADD', KEYS[3], 'NX', (last[2] or 0) + 1, ARGV[1]) == 1 then
        local time, waiters = redis.call('TIME'), 'lk:w' .. tail
        local ends = time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[5]
        redis.call('HSET', waiters, ARGV[1], string.format('%.0f', ends) .. ':' .. ARGV[5] .. ':' .. ARGV[6] .. ':x:'
          .. ARGV[7] .. ':' .. ARGV[8])
        redis.call('PEXPIRE', waiters, 60000)
        redis.call('PEXPIRE', KEYS[3], 60000)
        return {0, string.sub(value, 38), left, redis.call('ZCARD', KEYS[3])}
      end
    end
  end
end

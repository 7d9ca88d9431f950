-- Ends a claim, held or waiting. KEYS: lock, fence, queue. ARGV: holder, tombstone ms (0: none).
-- The common case first: an Exclusive holder, and no waiter or an Exclusive, living one at the head of the line.
if ARGV[2] == '0' then
  local value = redis.pcall('GET', KEYS[1])
  if type(value) == 'string' and string.sub(value, 1, 37) == 'lk1:' .. ARGV[1] .. ':' then
    local head = redis.call('ZPOPMIN', KEYS[3])
    if not head[1] then
      redis.call('DEL', KEYS[1])
      return {1}
    end
    local waiters = 'lk:w' .. string.sub(KEYS[3], 5)
    local entry = redis.call('HGET', waiters, head[1])
    local ends, life, stamp, channel, note
    if entry then ends, life, stamp, channel, note = string.match(entry, '^(%d+):(%d+):(%d+):x:(%w+):(.*)$') end
    local time = redis.call('TIME')
    local us = time[1] * 1000000 + time[2]
    local ahead = ends and ends * 1000 - us or -1
    if ahead >= 0 and ahead <= life * 1000 then
      local now = string.format('%.0f', us)
      local token, last = now, redis.call('SET', KEYS[2], now, 'PX', 90000000, 'GET')
      local spent = false
      if last and (tonumber(last) or 0) >= us then
        spent = last + 1 > 9007199254740991
        token = spent and last or string.format('%.0f', last + 1)
        redis.call('SET', KEYS[2], token, 'PX', 90000000)
      end
      if not spent then
        redis.call('HDEL', waiters, head[1])
        redis.call('SET', KEYS[1],
          'lk1:' .. head[1] .. ':' .. token .. ':' .. life .. ':' .. now .. ':h:' .. note, 'PX', life)
        redis.pcall('PUBLISH', 'lk:k:' .. channel, head[1] .. ':' .. token .. ':' .. stamp .. ':' .. life .. ':' .. KEYS[1])
        return {1}
      end
    end
    -- The head is dead, not Exclusive, or its life needs clamping: it goes back to its place.
    redis.call('ZADD', KEYS[3], head[2], head[1])
  end
end

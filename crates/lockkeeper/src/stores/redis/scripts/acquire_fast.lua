-- Takes locks that are free, and puts claims that wait into line. KEYS: a lock for each claim; one claim alone may name its
-- lock's fence and queue too, and in a Cluster all its keys.
-- ARGV, for each claim: 'lk2:HOLDER-:TTL:NOTE:', ttl ms, and MODE, or MODE:LIFE:STAMP:CHANNEL of a claim that waits.
-- Replies a token, or {code, …}; for several claims a list of them.
local count, all, us, clock = #ARGV / 3
if count > 1 then all = {} end
for each = 1, count do
  local K, head, ttl, more = KEYS[each], ARGV[3 * each - 2], ARGV[3 * each - 1], ARGV[3 * each]
  local me, tail, F, Q = string.sub(head, 5, 36)
  if count == 1 and KEYS[2] then
    F, Q = KEYS[2], KEYS[3]
    tail = string.sub(Q, 5)
  else
    tail = ':{' .. K .. '}'
    F, Q = 'lk:f' .. tail, 'lk:q' .. tail
  end
  local reply
  -- The two common cases of an Exclusive claim come first: no holder, waiter or tombstone; and a new waiter behind an
  -- Exclusive holder of ours.
  if string.byte(more) == 120 then
    local tomb = 'lk:x' .. tail .. ':' .. me
    if redis.call('EXISTS', K, Q, tomb) == 0 then
      if not us then
        local time = redis.call('TIME')
        us = time[1] * 1000000 + time[2]
        clock = time[1] .. string.sub('00000' .. time[2], -6)
      end
      local token, text = us, clock
      local last = redis.call('SET', F, clock, 'PX', '90000000', 'GET')
      if last and (tonumber(last) or 0) >= us then
        token = last + 1
        if token > 9007199254740991 then token = nil end
        text = token and string.format('%.0f', token) or last
        redis.call('SET', F, text, 'PX', '90000000')
      end
      if token then redis.call('SET', K, head .. text, 'PX', ttl) end
      reply = token or {5}
    else
      local value = more ~= 'x' and redis.pcall('GET', K)
      if type(value) == 'string' and string.sub(value, 1, 4) == 'lk2:' and string.sub(value, 5, 36) ~= me
          and redis.call('EXISTS', tomb) == 0 then
        local most = string.match(value, '^:(%d+):', 38)
        local left = most and redis.call('PTTL', K) or -1
        -- A lease that needs clamping is left to the general case below.
        if left >= 0 and left <= tonumber(most) then
          local last = redis.call('ZREVRANGE', Q, '0', '0', 'WITHSCORES')
          -- ZADD adds nothing when the claim is in line already.
          if redis.call('ZADD', Q, 'NX', (last[2] or 0) + 1, me) == 1 then
            local life, stamp, channel = string.match(more, '^x:(%d+):(%d+):(%w+)$')
            local time, waiters = redis.call('TIME'), 'lk:w' .. tail
            local ends = time[1] * 1000 + math.floor(time[2] / 1000) + life
            redis.call('HSET', waiters, me, string.format('%.0f', ends) .. ':' .. life .. ':' .. stamp .. ':x:'
              .. channel .. ':' .. string.match(head, '^:%d+:(.*):$', 38))
            redis.call('PEXPIRE', waiters, '60000')
            redis.call('PEXPIRE', Q, '60000')
            if string.byte(value, 37) == 45 then
              redis.call('SET', K, string.sub(value, 1, 36) .. 'w' .. string.sub(value, 38), 'KEEPTTL')
            end
            reply = {0, string.sub(value, 37), left, redis.call('ZCARD', Q)}
          end
        end
      end
    end
  end
  if not reply then reply = (function()

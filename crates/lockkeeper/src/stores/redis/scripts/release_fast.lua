  -- The common cases first: an Exclusive holder, and no waiter or an Exclusive, living one at the head of the line.
  local value = bury == '' and redis.pcall('GET', K)
  if type(value) == 'string' then
    if string.sub(value, 1, 37) == mine then
      redis.call('DEL', K)
      reply = 1
    elseif string.sub(value, 1, 36) == string.sub(mine, 1, 36) then
      if not Q then F, Q = 'lk:f:{' .. K .. '}', 'lk:q:{' .. K .. '}' end
      local head = redis.call('ZPOPMIN', Q)
      if not head[1] then
        redis.call('DEL', K)
        reply = 1
      else
        local waiters = 'lk:w' .. string.sub(Q, 5)
        local entry = redis.call('HGET', waiters, head[1])
        local ends, life, stamp, channel, note
        -- A channel that begins with z belongs to a keeper that knows values of version 2.
        if entry then ends, life, stamp, channel, note = string.match(entry, '^(%d+):(%d+):(%d+):x:(z%w+):(.*)$') end
        local time = redis.call('TIME')
        local us = time[1] * 1000000 + time[2]
        local ahead = ends and ends * 1000 - us or -1
        if ahead >= 0 and ahead <= life * 1000 then
          local token = time[1] .. string.sub('00000' .. time[2], -6)
          local last = redis.call('SET', F, token, 'PX', '90000000', 'GET')
          local spent = false
          if last and (tonumber(last) or 0) >= us then
            spent = last + 1 > 9007199254740991
            token = spent and last or string.format('%.0f', last + 1)
            redis.call('SET', F, token, 'PX', '90000000')
          end
          if not spent then
            redis.call('SET', K, 'lk2:' .. head[1] .. 'h:' .. life .. ':' .. note .. ':' .. token, 'PX', life)
            -- A server writes to clients in the reverse order in which they first have something to read. With a message of
            -- its own before the grant, the client that releases gets its answer after the grant has gone out.
            if own then redis.pcall('PUBLISH', 'lk:k:' .. own, '') end
            redis.pcall('PUBLISH', 'lk:k:' .. channel,
              head[1] .. ':' .. token .. ':' .. stamp .. ':' .. life .. ':' .. K)
            redis.call('HDEL', waiters, head[1])
            reply = 1
          end
        end
        -- The head is dead, not Exclusive, or its life needs clamping: it goes back to its place.
        if not reply then redis.call('ZADD', Q, head[2], head[1]) end
      end
    end
  end

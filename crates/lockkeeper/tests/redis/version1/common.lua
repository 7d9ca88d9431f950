-- The plain layout: no other program waits for a signal that a lock is free.
local signal = false
-- What all steps share: the state of one name, and how it changes.
local K, F, Q, me = KEYS[1], KEYS[2], KEYS[3], ARGV[1]
local tail = string.sub(Q, 5)
local W, R, H = 'lk:w' .. tail, 'lk:r' .. tail, 'lk:h' .. tail
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local us = time[1] * 1000000 + time[2]

local function tomb(id) return 'lk:x' .. tail .. ':' .. id end
local function num(n) return string.format('%.0f', n) end

-- kind: free; one (an Exclusive holder of ours); many (a marker for the holders in R and H, all of mode `many`);
-- foreign (another program's string); type (not a string).
local kind, value, many
local function look()
  value = redis.pcall('GET', K)
  if type(value) == 'table' then
    if string.sub(value.err, 1, 9) ~= 'WRONGTYPE' then error(value.err, 0) end
    kind = 'type'
  elseif not value then kind = 'free'
  elseif string.match(value, '^lk1:%x+:%d+:%d+:%d+:[h-]:') and string.sub(value, 37, 37) == ':' then kind = 'one'
  elseif value == 'lk1s' or string.match(value, '^lk1p%d+$') then
    kind, many = 'many', string.sub(value, 4)
  else kind = 'foreign' end
end
look()

local function parts(info)
  local token, ttl, since, flag, note = string.match(info, '^(%d+):(%d+):(%d+):([h-]):(.*)$')
  return token, tonumber(ttl), since, flag, note
end

-- The next token; nil when they have run out.
local function draw()
  local token = (tonumber(redis.call('GET', F) or 0) or 0) + 1
  if us > token then token = us end
  if token > 9007199254740991 then return nil end
  redis.call('SET', F, num(token), 'PX', 90000000)
  return num(token)
end

-- Makes the keys of many holders live at least as long as a lease of `ttl`.
local function span(ttl)
  if redis.call('PTTL', K) < ttl then redis.call('PEXPIRE', K, ttl) end
  for _, key in ipairs({R, H}) do
    if redis.call('PTTL', key) < ttl + 60000 then redis.call('PEXPIRE', key, ttl + 60000) end
  end
end

-- Makes `id` a holder.
local function put(id, mode, ttl, token, flag, note)
  local info = token .. ':' .. num(ttl) .. ':' .. num(us) .. ':' .. flag .. ':' .. note
  if mode == 'x' then
    kind, value = 'one', 'lk1:' .. id .. ':' .. info
    redis.call('SET', K, value, 'PX', ttl)
    return
  end
  if kind ~= 'many' then
    redis.call('DEL', R, H)
    kind, many, value = 'many', mode, 'lk1' .. mode
    redis.call('SET', K, value, 'PX', ttl)
  end
  redis.call('ZADD', R, num(now + ttl), id)
  redis.call('HSET', H, id, info)
  span(ttl)
end

-- Removes Shared and Permit holders whose lease has ended.
local function purge()
  if kind ~= 'many' then return end
  local dead = redis.call('ZRANGEBYSCORE', R, '-inf', '(' .. num(now))
  for _, id in ipairs(dead) do
    redis.call('HDEL', H, id)
    redis.call('ZREM', R, id)
  end
  if redis.call('ZCARD', R) == 0 then kind = 'free' end
end

local function fits(mode)
  if kind == 'free' then return true end
  if kind ~= 'many' or mode ~= many then return false end
  return mode == 's' or redis.call('ZCARD', R) < tonumber(string.sub(mode, 2))
end

-- One waiter: whether it lives, then the fields of its entry; nil when it is not in line. Where the clock stepped back,
-- its life is clamped.
local function waiter(id)
  local entry = redis.call('HGET', W, id)
  if not entry then return nil end
  local ends, life, stamp, mode, channel, note = string.match(entry, '^(%d+):(%d+):(%d+):(%w+):(%w+):(.*)$')
  ends, life = tonumber(ends), tonumber(life)
  if ends > now + life then
    ends = now + life
    redis.call('HSET', W, id, num(ends) .. string.sub(entry, string.find(entry, ':'), -1))
  end
  return ends >= now, life, stamp, mode, channel, note
end

local function leave(id, mode)
  redis.call('ZREM', Q, id)
  redis.call('HDEL', W, id)
  if string.sub(mode, 1, 1) == 'p' and redis.call('HINCRBY', W, '#n', -1) <= 0 then redis.call('HDEL', W, '#n', '#l') end
end

-- Removes waiters that died in line.
local function sweep()
  for _, id in ipairs(redis.call('ZRANGE', Q, 0, -1)) do
    local alive, _, _, mode = waiter(id)
    if not alive then leave(id, mode or 'x') end
  end
end

-- Writes a waiter's entry.
local function line(id, life, stamp, mode, channel, note)
  redis.call('HSET', W, id, num(now + life) .. ':' .. life .. ':' .. stamp .. ':' .. mode .. ':' .. channel .. ':' .. note)
  redis.call('PEXPIRE', W, 60000)
  redis.call('PEXPIRE', Q, 60000)
end

-- Grants the lock to waiters from the head of the line, as long as they fit; false when tokens have run out.
local function advance()
  purge()
  for _ = 1, 256 do
    local id = redis.call('ZRANGE', Q, 0, 0)[1]
    if not id then break end
    local alive, life, stamp, mode, channel, note = waiter(id)
    if not alive then leave(id, mode or 'x')
    elseif not fits(mode) then break
    else
      local token = draw()
      if not token then return false end
      leave(id, mode)
      put(id, mode, life, token, 'h', note)
      redis.pcall('PUBLISH', 'lk:k:' .. channel, id .. ':' .. token .. ':' .. stamp .. ':' .. num(life) .. ':' .. K)
    end
  end
  return true
end

-- Without a holder, deletes the key and signals other programs' waiters. With many holders, the key lives as long as the
-- last of them.
local function settle()
  if kind == 'free' then
    if value then
      redis.call('DEL', K, R, H)
      if signal then
        -- pcall: a release must not fail when memory is full. A waiter without a signal polls.
        redis.pcall('DEL', signal)
        redis.pcall('LPUSH', signal, 1)
        redis.pcall('PEXPIRE', signal, 1000)
      end
    end
  elseif kind == 'many' then
    local last = redis.call('ZREVRANGE', R, 0, 0, 'WITHSCORES')
    redis.call('PEXPIRE', K, math.max(1, last[2] - now))
  end
end

-- Who holds: token, TTL, since, flag and note; the lease left; the asking claim's place in line.
local function held(place)
  local info, left = '', -1
  if kind == 'many' then
    local last = redis.call('ZREVRANGE', R, 0, 0, 'WITHSCORES')
    info, left = redis.call('HGET', H, last[1]), last[2] - now
    local _, ttl = parts(info)
    if left > ttl then
      left = ttl
      redis.call('ZADD', R, num(now + ttl), last[1])
    end
  elseif kind == 'one' then
    info, left = string.sub(value, 38), redis.call('PTTL', K)
    local _, ttl = parts(info)
    if left > ttl or left < 0 then
      left = ttl
      redis.call('PEXPIRE', K, ttl)
    end
  elseif kind == 'foreign' then left = redis.call('PTTL', K) end
  return {0, info, num(left), place}
end

-- The grant of `id`, if it holds: token, TTL, since, flag, note.
local function grant(id)
  if kind == 'one' and string.sub(value, 5, 36) == id then return parts(string.sub(value, 38)) end
  if kind == 'many' then
    local info = redis.call('HGET', H, id)
    if info then return parts(info) end
  end
end

local function note_grant(id, token, ttl, since, flag, note)
  local info = token .. ':' .. num(ttl) .. ':' .. since .. ':' .. flag .. ':' .. note
  if kind == 'one' then
    value = 'lk1:' .. id .. ':' .. info
    redis.call('SET', K, value, 'KEEPTTL')
  else redis.call('HSET', H, id, info) end
end

local function left_of(id)
  if kind == 'one' then return redis.call('PTTL', K) end
  return redis.call('ZSCORE', R, id) - now
end

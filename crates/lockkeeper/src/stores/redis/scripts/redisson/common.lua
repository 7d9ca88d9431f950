-- What the steps share: one name as Redisson keeps it. KEYS: lock, token, queue (there is none; the names of our other
-- keys follow from it).
local K, T, me = KEYS[1], KEYS[2], ARGV[1]
local tail = string.sub(KEYS[3], 5)
local H = 'lk:h' .. tail
local time = redis.call('TIME')
local us = time[1] * 1000000 + time[2]
-- none, hash, or what another program keeps there.
local kind = redis.call('TYPE', K).ok

local function tomb(id) return 'lk:x' .. tail .. ':' .. id end
local function num(n) return string.format('%.0f', n) end

-- A client's UUID and a thread's number; no thread has the number 0.
local function field(id)
  return (string.gsub(id, '^(%x%x%x%x%x%x%x%x)(%x%x%x%x)(%x%x%x%x)(%x%x%x%x)', '%1-%2-%3-%4-')) .. ':0'
end

local function holds(id) return kind == 'hash' and redis.call('HEXISTS', K, field(id)) == 1 end

-- Who of ours holds, and its token, TTL, since, flag and note as text.
local function ours()
  local id, info = unpack(redis.call('HGETALL', H))
  if id and holds(id) then return id, info end
end

local function parts(info)
  local token, ttl, since, note = string.match(info or '', '^(%d+):(%d+):(%d+):%-:(.*)$')
  return token, tonumber(ttl), since, note
end

local function note_holder(id, token, ttl, since, note)
  redis.call('DEL', H)
  redis.call('HSET', H, id, token .. ':' .. num(ttl) .. ':' .. since .. ':-:' .. note)
  redis.call('PEXPIRE', H, ttl + 60000)
end

-- The next token; nil when they have run out. The key must not end: RFencedLock counts on from it.
local function draw()
  local token = (tonumber(redis.call('GET', T) or 0) or 0) + 1
  if us > token then token = us end
  if token > 9007199254740991 then return nil end
  redis.call('SET', T, num(token))
  return num(token)
end

local function named(prefix)
  if string.find(K, '{', 1, true) then return prefix .. ':' .. K end
  return prefix .. ':{' .. K .. '}'
end

-- Never fails: who is not told looks by itself.
local function tell(channel, message)
  redis.pcall('PUBLISH', channel, message)
  -- All keys are told in a Cluster only. There Redisson listens to the channels of a slot, if the server has such.
  if #KEYS > 3 then redis.pcall('SPUBLISH', channel, message) end
end

-- The lock is free: waiters of RLock and RFencedLock, of RReadWriteLock, and the first of RFairLock.
local function free()
  redis.call('DEL', K, H)
  local channel = named('redisson_lock__channel')
  tell(channel, '0')
  tell(named('redisson_rwlock'), '1')
  local head = redis.pcall('LINDEX', named('redisson_lock_queue'), 0)
  if type(head) == 'string' then tell(channel .. ':' .. head, '0') end
end

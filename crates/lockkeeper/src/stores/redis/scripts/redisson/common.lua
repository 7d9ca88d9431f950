-- What all steps share: one name as Redisson keeps it. KEYS: lock, token, queue. There is no queue: only the names of our
-- other keys are derived from its key. ARGV as in the plain layout, for one claim.
local K, T, me = KEYS[1], KEYS[2], string.sub(ARGV[1] or '', 5, 36)
local tail = string.sub(KEYS[3], 5)
local H = 'lk:h' .. tail
local time = redis.call('TIME')
local us = time[1] * 1000000 + time[2]
-- none, hash, or another program's type.
local kind = redis.call('TYPE', K).ok

local function tomb(id) return 'lk:x' .. tail .. ':' .. id end
local function num(n) return string.format('%.0f', n) end

-- A client's UUID and a thread's number; no thread has the number 0.
local function field(id)
  return (string.gsub(id, '^(%x%x%x%x%x%x%x%x)(%x%x%x%x)(%x%x%x%x)(%x%x%x%x)', '%1-%2-%3-%4-')) .. ':0'
end

local function holds(id) return kind == 'hash' and redis.call('HEXISTS', K, field(id)) == 1 end

-- The Lockkeeper client that holds: its id, and its token, TTL, since, flag and note as text.
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

-- The next token; nil when tokens have run out. The key has no TTL: RFencedLock counts on from it.
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

-- pcall: a release must not fail for a lost message. A waiter without a message polls.
local function tell(channel, message)
  redis.pcall('PUBLISH', channel, message)
  -- Only calls in a Cluster declare all keys. There Redisson listens to sharded channels, if the server has them.
  if #KEYS > 3 then redis.pcall('SPUBLISH', channel, message) end
end

-- Frees the lock, and tells waiters of RLock, RFencedLock and RReadWriteLock, and the first of RFairLock.
local function free()
  redis.call('DEL', K, H)
  local channel = named('redisson_lock__channel')
  tell(channel, '0')
  tell(named('redisson_rwlock'), '1')
  local head = redis.pcall('LINDEX', named('redisson_lock_queue'), 0)
  if type(head) == 'string' then tell(channel .. ':' .. head, '0') end
end

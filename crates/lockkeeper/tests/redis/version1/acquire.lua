local mode, ttl = ARGV[2], tonumber(ARGV[3])
if kind == 'type' then return {4, redis.call('TYPE', K).ok} end
if not advance() then return {5} end
if redis.call('EXISTS', tomb(me)) == 1 then settle() return {2} end
local token, was, since, flag, note = grant(me)
if token then
  -- Written even if nothing changes: a replica that has seen this write has seen the grant.
  note_grant(me, token, was, since, '-', note)
  -- At most the TTL: a clock that stepped back shows a longer lease.
  return {1, token, num(math.min(left_of(me), was))}
end
if string.sub(mode, 1, 1) == 'p' then
  local used = kind == 'many' and string.match(many, '^p(%d+)')
  if not used then
    used = redis.call('HGET', W, '#l')
    -- The waiters that set this limit may have died behind a living head, where no step looks.
    if used and 'p' .. used ~= mode then
      sweep()
      used = redis.call('HGET', W, '#l')
    end
  end
  if used and 'p' .. used ~= mode then return {3, used} end
end
local alive, _, _, queued = waiter(me)
if queued then
  if alive then
    line(me, ARGV[5], ARGV[6], mode, ARGV[7], ARGV[8])
    return held(redis.call('ZRANK', Q, me) + 1)
  end
  leave(me, queued)
end
if redis.call('EXISTS', Q) == 0 and fits(mode) then
  token = draw()
  if not token then return {5} end
  put(me, mode, ttl, token, '-', ARGV[8])
  return {1, token, -1}
end
if ARGV[4] == '0' then return held(0) end
local last = redis.call('ZREVRANGE', Q, 0, 0, 'WITHSCORES')
redis.call('ZADD', Q, (last[2] or 0) + 1, me)
if string.sub(mode, 1, 1) == 'p' then
  redis.call('HINCRBY', W, '#n', 1)
  redis.call('HSET', W, '#l', string.sub(mode, 2))
end
line(me, ARGV[5], ARGV[6], mode, ARGV[7], ARGV[8])
return held(redis.call('ZCARD', Q))

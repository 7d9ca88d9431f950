local ttl, note = tonumber(ARGV[2]), string.match(ARGV[1], '^:%d+:(.*):$', 38)
local alive, life, stamp, mode, channel = waiter(me)
if kind == 'type' then
  if alive then return {4, redis.call('TYPE', K).ok} end
else
  -- Refresh the place first: the step below must not remove a waiter whose keep-alive came in time.
  if alive then
    local life2, stamp2, channel2 = string.match(ARGV[3], ':(%d+):(%d+):(%w+)$')
    line(me, life2 or life, stamp2 or stamp, mode, channel2 or channel, note)
  end
  if not advance() then return {5} end
  local token, was, since, flag, was_note = grant(me)
  if token then
    -- Never shorter: a delayed renewal must not shorten the lease that a later one gave.
    local longest = math.max(ttl, math.min(left_of(me), was))
    note_grant(me, token, longest, since, flag, was_note)
    if kind == 'one' then redis.call('PEXPIRE', K, longest)
    else
      redis.call('ZADD', R, num(now + longest), me)
      span(longest)
    end
    if flag == 'h' then return {2, token} end
    return 1
  end
  if alive then return held(redis.call('ZRANK', Q, me) + 1) end
  if mode then leave(me, mode) end
  settle()
end
return {3, redis.call('GET', tomb(me)) or 'g'}

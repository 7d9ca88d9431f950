local ttl = tonumber(ARGV[3])
local alive, _, _, mode = waiter(me)
if kind == 'type' then
  if alive then return {4, redis.call('TYPE', K).ok} end
else
  -- Refresh the place first: the step below must not remove a waiter whose keep-alive came in time.
  if alive then line(me, ARGV[5], ARGV[6], mode, ARGV[7], ARGV[8]) end
  if not advance() then return {5} end
  local token, was, since, flag, note = grant(me)
  if token then
    -- Never shorter: a delayed renewal must not shorten the lease that a later one gave.
    local longest = math.max(ttl, math.min(left_of(me), was))
    note_grant(me, token, longest, since, '-', note)
    if kind == 'one' then redis.call('PEXPIRE', K, longest)
    else
      redis.call('ZADD', R, num(now + longest), me)
      span(longest)
    end
    if flag == 'h' then return {2, token} end
    return {1}
  end
  if alive then return held(redis.call('ZRANK', Q, me) + 1) end
  if mode then leave(me, mode) end
  settle()
end
return {3, redis.call('GET', tomb(me)) or 'g'}

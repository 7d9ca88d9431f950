-- Prolongs a claim that is held.
if holds(me) then
  local token, was, since, note = parts(redis.call('HGET', H, me))
  -- Never shorter: a delayed renewal must not shorten the lease that a later one gave.
  local longest = math.max(tonumber(ARGV[2]), math.min(redis.call('PTTL', K), was or 0))
  redis.call('PEXPIRE', K, longest)
  if token then note_holder(me, token, longest, since, note) end
  return {1}
end
return {3, redis.call('GET', tomb(me)) or 'g'}

-- Takes a lock if it is free.
local ttl, about = tonumber(ARGV[2]), string.match(ARGV[1], '^:%d+:(.*):$', 38)
if kind ~= 'none' and kind ~= 'hash' then return {4, kind} end
if redis.call('EXISTS', tomb(me)) == 1 then return {2} end
if holds(me) then
  local token, was = parts(redis.call('HGET', H, me))
  if not token then
    token, was = draw(), ttl
    if not token then return {5} end
    note_holder(me, token, ttl, num(us), about)
  end
  -- Written even if nothing changes: a replica that has seen this write has seen the grant.
  redis.call('HSET', K, field(me), 1)
  -- At most the TTL: a clock that stepped back shows a longer lease.
  return {1, token, num(math.min(redis.call('PTTL', K), was))}
end
if kind == 'none' then
  local token = draw()
  if not token then return {5} end
  redis.call('HSET', K, field(me), 1, 'mode', 'write')
  redis.call('PEXPIRE', K, ttl)
  note_holder(me, token, ttl, num(us), about)
  return {1, token, -1}
end
local id, info = ours()
local left = redis.call('PTTL', K)
if id then
  -- A clock that was set back leaves a lease longer than its TTL.
  local _, most = parts(info)
  if most and (left > most or left < 0) then
    left = most
    redis.call('PEXPIRE', K, most)
  end
end
return {0, id and info or '', num(left), 0}

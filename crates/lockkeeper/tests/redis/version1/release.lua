purge()
local found = 0
if grant(me) then
  found = 1
  if kind == 'one' then kind = 'free'
  else
    redis.call('ZREM', R, me)
    redis.call('HDEL', H, me)
    if redis.call('ZCARD', R) == 0 then kind = 'free' end
  end
end
local alive, _, _, mode = waiter(me)
if mode then
  leave(me, mode)
  if alive then found = 1 end
end
-- Even if the claim was found: the acquire that made it may have been a repeat of one still on its way.
if ARGV[2] ~= '0' then redis.call('SET', tomb(me), 'r', 'PX', ARGV[2], 'NX') end
advance()
settle()
return {found}

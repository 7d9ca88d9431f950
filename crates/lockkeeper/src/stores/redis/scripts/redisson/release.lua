-- Ends a claim.
local found = 0
if holds(me) then
  found = 1
  free()
end
-- Even if the claim was found: the acquire that made it may have been a repeat of one still on its way.
if ARGV[2] ~= '' then redis.call('SET', tomb(me), 'r', 'PX', ARGV[2], 'NX') end
return {found}

-- Takes the lock away from the holder with one token. ARGV: token.
local id, info = ours()
if not id or parts(info) ~= ARGV[1] then return {0} end
redis.call('SET', tomb(id), 'b', 'PX', math.max(0, redis.call('PTTL', K)) + 60000)
local above = draw()
free()
if not above then return {5} end
return {1, above}

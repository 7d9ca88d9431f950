-- Ends the claim here.
-- KEYS: lock, tombstone. ARGV: holder, life of the tombstone in ms or 0, an attempt or nothing, and its scope:
-- `=` only what exactly this attempt took, `<` what this or an older attempt has. Replies: {1} if it held, else {0}.
if ARGV[2] ~= '0' then redis.call('SET', KEYS[2], 'r', 'PX', ARGV[2], 'NX') end
local value = redis.pcall('GET', KEYS[1])
if type(value) ~= 'string' then return {0} end
local id, attempt, found = string.match(value, '^lk1:(%x+):%d+:%d+:%d+:(%d*)([^:]*):')
if id ~= ARGV[1] then return {0} end
if ARGV[4] == '=' and (attempt ~= ARGV[3] or found ~= '') then return {0} end
if ARGV[4] == '<' and (tonumber(attempt) or 0) > tonumber(ARGV[3]) then return {0} end
redis.call('DEL', KEYS[1])
return {1}

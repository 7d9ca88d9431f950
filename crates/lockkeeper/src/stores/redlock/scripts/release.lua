-- Ends the claim here.
-- KEYS: lock; and the tombstone, if one is to be left. ARGV: `lk1:HOLDER:`; for an undo also an attempt and its scope:
-- `=` only what exactly this attempt took, `<` what this or an older attempt has; else nothing, nothing; then the life
-- of the tombstone in ms. Replies: 1 if it held, else 0.
if KEYS[2] then redis.call('SET', KEYS[2], 'r', 'PX', ARGV[4], 'NX') end
local value = redis.pcall('GET', KEYS[1])
if type(value) ~= 'string' or string.sub(value, 1, 37) ~= ARGV[1] then return 0 end
if ARGV[2] and ARGV[2] ~= '' then
  local attempt, found = string.match(value, '^%d+:%d+:%d+:(%d*)([^:]*):', 38)
  if ARGV[3] == '=' and (attempt ~= ARGV[2] or found ~= '') then return 0 end
  if ARGV[3] == '<' and (tonumber(attempt) or 0) > tonumber(ARGV[2]) then return 0 end
end
redis.call('DEL', KEYS[1])
return 1

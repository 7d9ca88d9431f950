-- Prolongs a claim, held or waiting. KEYS and ARGV as for one claim's acquire. The common case first: an Exclusive holder.
do
  local value, form = redis.pcall('GET', KEYS[1]), ':' .. ARGV[2] .. ':'
  if type(value) == 'string' and string.sub(value, 1, 36) == string.sub(ARGV[1], 1, 36)
      and string.byte(value, 37) ~= 104 and string.sub(value, 38, 37 + #form) == form then
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
    return 1
  end
end
local me = string.sub(ARGV[1], 5, 36)

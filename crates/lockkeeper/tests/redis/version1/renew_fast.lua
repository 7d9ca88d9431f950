-- Prolongs a claim, held or waiting. KEYS and ARGV as for an acquire. The common case first: an Exclusive holder.
do
  local value = redis.pcall('GET', KEYS[1])
  local mine = 'lk1:' .. ARGV[1] .. ':'
  if type(value) == 'string' and string.sub(value, 1, 37) == mine then
    local _, stop = string.find(value, '^%d+:' .. ARGV[3] .. ':%d+:%-:', 38)
    if stop then
      redis.call('PEXPIRE', KEYS[1], ARGV[3])
      return {1}
    end
  end
end

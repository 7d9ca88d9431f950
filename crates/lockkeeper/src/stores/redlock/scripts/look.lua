-- The values of locks, for operators. KEYS: locks.
-- Replies for each lock its value (false when free, `!` when of another type) and what is left of its lease.
local seen = {}
for _, key in ipairs(KEYS) do
  local value = redis.pcall('GET', key)
  if type(value) == 'table' then value = '!' end
  if value and #value > 4096 then value = string.sub(value, 1, 4096) end
  seen[#seen + 1] = value
  seen[#seen + 1] = redis.call('PTTL', key)
end
return seen

-- Everything about one name, for operators, in the form of the plain layout. Changes nothing.
local value = false
if kind ~= 'none' then
  local id, info = ours()
  value = id and 'lk1:' .. id .. ':' .. info or '!'
end
return {value, redis.call('PTTL', K), {}, {}}

-- The common case first: an Exclusive holder, nobody waiting.
do
  local value = redis.pcall('GET', KEYS[1])
  if ARGV[2] == '0' and type(value) == 'string' and string.sub(value, 1, 37) == 'lk1:' .. ARGV[1] .. ':'
      and redis.call('EXISTS', KEYS[3]) == 0 then
    redis.call('DEL', KEYS[1])
    return {1}
  end
end

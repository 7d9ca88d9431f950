-- A register's value. KEYS: register.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local ends, value = unpack(redis.call('HMGET', KEYS[1], 'ends', 'value'))
if value and ends ~= '' and tonumber(ends) < now then value = false end
return {1, value}

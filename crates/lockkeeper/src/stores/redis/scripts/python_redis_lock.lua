-- The layout of python-redis-lock: the list that its waiters sleep on.
local signal = 'lock-signal:' .. string.sub(KEYS[1], 6)

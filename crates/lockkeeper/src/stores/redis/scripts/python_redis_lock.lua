-- The layout of python-redis-lock: its waiters sleep on this list.
local signal = 'lock-signal:' .. string.sub(K, 6)

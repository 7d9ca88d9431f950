local K, F, Q = KEYS[1], KEYS[2], KEYS[3]
if not Q then F, Q = 'lk:f:{' .. K .. '}', 'lk:q:{' .. K .. '}' end
local tail = string.sub(Q, 5)

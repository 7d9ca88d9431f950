  if not reply then reply = (function()
local me = string.sub(mine, 5, 36)
if not Q then F, Q = 'lk:f:{' .. K .. '}', 'lk:q:{' .. K .. '}' end
local tail = string.sub(Q, 5)

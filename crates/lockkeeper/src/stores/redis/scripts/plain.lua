-- The plain layout: no other program waits for a signal that a lock is free.
local signal = false

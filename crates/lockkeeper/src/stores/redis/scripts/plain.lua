-- The plain layout: nobody has to be told that a lock is free.
local signal = false

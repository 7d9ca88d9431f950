-- Ends claims, held or waiting. KEYS as for an acquire. ARGV, for each claim: 'lk2:HOLDER-', and the tombstone's life in
-- ms; without a tombstone the channel of the client's connection, or nothing. Replies 1 if the claim was there, 0 if not, or
-- {code, …}; for several claims a list of them.
local count, all = #ARGV / 2
if count > 1 then all = {} end
for each = 1, count do
  local K, mine, bury = KEYS[each], ARGV[2 * each - 1], ARGV[2 * each]
  local F, Q, reply, own
  if string.byte(bury) == 122 then own, bury = bury, '' end
  if count == 1 and KEYS[2] then F, Q = KEYS[2], KEYS[3] end

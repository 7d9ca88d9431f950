-- Lockkeeper's fence for a plain string in Redis: check and write in one step.
-- KEYS: the value, its fence (one slot in a Cluster).
-- ARGV: enter | shared | write, token, holder or '', store or '', life of the fence in ms; for write: value, ttl in ms or ''.
local kind, token, holder, store = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
if token == nil or token < 1 or token > 9007199254740991 or token % 1 ~= 0 then
  return redis.error_reply('LK003 tokens are whole numbers from 1 to 9007199254740991')
end
local seen = redis.call('HMGET', KEYS[2], 'token', 'holder', 'store', 'shared')
if seen[3] and store ~= '' and seen[3] ~= store then
  return redis.error_reply("LK002 the fence has seen numbers of store '" .. seen[3] .. "', and a token of '" .. store .. "' does not compare")
end
local highest, shared = tonumber(seen[1] or 0), tonumber(seen[4] or 0)
if highest > token then
  return redis.error_reply('LK001 token ' .. ARGV[2] .. ' is stale: the fence has seen ' .. seen[1] .. ', a later holder was here')
end
if kind ~= 'shared' then
  if highest == token and seen[2] ~= holder then
    return redis.error_reply('LK001 token ' .. ARGV[2] .. ' is stale: another holder has shown it')
  end
  if shared >= token then
    return redis.error_reply('LK001 token ' .. ARGV[2] .. ' is stale: a Shared holder with ' .. seen[4] .. ' has entered since')
  end
  redis.call('HSET', KEYS[2], 'token', ARGV[2], 'holder', holder)
elseif shared < token then
  -- The mark that an Exclusive token must be above.
  redis.call('HSET', KEYS[2], 'shared', ARGV[2])
end
if kind ~= 'shared' or shared < token then
  if store ~= '' then redis.call('HSET', KEYS[2], 'store', store) end
  redis.call('PEXPIRE', KEYS[2], ARGV[5])
end
if kind ~= 'write' then
  return redis.call('GET', KEYS[1])
end
if ARGV[7] == '' then
  redis.call('SET', KEYS[1], ARGV[6])
else
  redis.call('SET', KEYS[1], ARGV[6], 'PX', ARGV[7])
end
return 'OK'

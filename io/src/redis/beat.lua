-- A heartbeat, or a goodbye. Gives the whole fleet.
-- KEYS  1 the fleet   2 names that were decommissioned
-- ARGV  1 replica   2 "live" or "drained"   3 the process's nonce   4 its card, JSON   5 the fleet's time to live, ms
-- Gives {now µs, own entry as it was before or "", {name, entry, …}, {name, removed at µs, …}};
-- an entry is "<beat µs> <live|drained> <nonce> <card>".
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000000 + time[2])
local before = redis.call('HGET', KEYS[1], ARGV[1])
-- A goodbye is not said for a successor that has our name already.
local is_ours = not before or string.match(before, '^%d+ %a+ ([^ ]+) ') == ARGV[3]
if ARGV[2] == 'live' or is_ours then
  redis.call('HSET', KEYS[1], ARGV[1], now .. ' ' .. ARGV[2] .. ' ' .. ARGV[3] .. ' ' .. ARGV[4])
end
redis.call('PEXPIRE', KEYS[1], ARGV[5])
return {now, before or '', redis.call('HGETALL', KEYS[1]), redis.call('HGETALL', KEYS[2])}

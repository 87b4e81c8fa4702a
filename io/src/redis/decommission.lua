-- Takes a replica off the fleet, unless it is alive.
-- KEYS  1 the fleet   2 names that were decommissioned
-- ARGV  1 replica   2 the liveness window, µs   3 "1" to remove it alive   4 a removal is remembered so long, ms
-- Gives {"live"} and changes nothing, or {"gone", now µs, the entry that was removed or ""}.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local entry = redis.call('HGET', KEYS[1], ARGV[1])
if entry and ARGV[3] ~= '1' then
  local beat, state = string.match(entry, '^(%d+) (%a+) ')
  if state == 'live' and now - tonumber(beat) <= tonumber(ARGV[2]) then return {'live'} end
end
redis.call('HDEL', KEYS[1], ARGV[1])
local removals = redis.call('HGETALL', KEYS[2])
for at = 1, #removals, 2 do
  if now - (tonumber(removals[at + 1]) or 0) > tonumber(ARGV[4]) * 1000 then redis.call('HDEL', KEYS[2], removals[at]) end
end
local at = string.format('%.0f', now)
redis.call('HSET', KEYS[2], ARGV[1], at)
redis.call('PEXPIRE', KEYS[2], ARGV[4])
return {'gone', at, entry or ''}

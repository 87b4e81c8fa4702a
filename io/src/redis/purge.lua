-- Removes the cells that one replica published last in one scope, up to its removal, and notes its name, so that nobody who
-- still remembers them brings them back. What it has published since, because it lives, stays.
-- KEYS  1 cells of the scope in the period   2 the period's index   3 names that were purged
-- ARGV  1 replica   2 scope   3 a purge is remembered so long, ms   4 when it was removed, µs
-- Gives {ledger, cell, …} of what was removed.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local removed_at = tonumber(ARGV[4])
local noted = redis.call('HGET', KEYS[3], ARGV[1])
if (tonumber(noted or '-1') or -1) < removed_at then redis.call('HSET', KEYS[3], ARGV[1], ARGV[4]) end
if not noted then
  local names = redis.call('HGETALL', KEYS[3])
  for at = 1, #names, 2 do
    if now - (tonumber(names[at + 1]) or 0) > tonumber(ARGV[3]) * 1000 then redis.call('HDEL', KEYS[3], names[at]) end
  end
end
redis.call('PEXPIRE', KEYS[3], ARGV[3])
local cells = redis.call('HGETALL', KEYS[1])
local removed = {}
for at = 1, #cells, 2 do
  local beat, replica = string.match(cells[at + 1], '(%d+) ([^ ]+)$')
  if replica == ARGV[1] and tonumber(beat) <= removed_at then
    redis.call('HDEL', KEYS[1], cells[at])
    removed[#removed + 1] = cells[at]
    removed[#removed + 1] = cells[at + 1]
  end
end
if #removed > 0 then
  local top = redis.call('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES')
  local score = now
  if top[2] and tonumber(top[2]) >= score then score = tonumber(top[2]) + 1 end
  -- XX: an index that is not there must not be made without an expiry.
  redis.call('ZADD', KEYS[2], 'XX', string.format('%.0f', score), ARGV[2])
end
return removed

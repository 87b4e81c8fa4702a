-- Brings one ledger's cell back into a store that lost it, as another replica remembers it. Never over a larger one, never
-- over a newer one, and not what was purged by name since.
-- KEYS  1 cells of the scope in the period   2 the period's index   3 the store's generation   4 names that were purged
-- ARGV  1 ledger   2 replica   3 burn   4 rows   5 rows new in it   6 beat µs   7 expiry, Unix ms   8 scope
-- Gives what publish.lua gives. The cell is not among them: it was purged.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local is_wanted = tonumber(redis.call('HGET', KEYS[4], ARGV[2]) or '-1') < tonumber(ARGV[6])
local old = redis.call('HGET', KEYS[1], ARGV[1])
if old then
  local burn, beat = string.match(old, '^(%d+) %d+ %d+ (%d+) ')
  if burn then
    local is_more = #ARGV[3] > #burn or (#ARGV[3] == #burn and ARGV[3] > burn)
    is_wanted = is_wanted and is_more and tonumber(beat) <= tonumber(ARGV[6])
  end
end
if is_wanted then
  redis.call('HSET', KEYS[1], ARGV[1], table.concat({ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[2]}, ' '))
  redis.call('PEXPIREAT', KEYS[1], ARGV[7])
  local top = redis.call('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES')
  local score = now
  if top[2] and tonumber(top[2]) >= score then score = tonumber(top[2]) + 1 end
  redis.call('ZADD', KEYS[2], string.format('%.0f', score), ARGV[8])
  redis.call('PEXPIREAT', KEYS[2], ARGV[7])
end
local reply = redis.call('HGETALL', KEYS[1])
table.insert(reply, 1, string.format('%.0f', tonumber(redis.call('ZSCORE', KEYS[2], ARGV[8]) or '0')))
table.insert(reply, 1, redis.call('GET', KEYS[3]) or '0')
table.insert(reply, 1, string.format('%.0f', now))
return reply

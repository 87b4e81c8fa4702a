-- Every cell of one scope. Writes nothing.
-- KEYS  1 cells of the scope in the period   2 the period's index   3 the store's generation
-- ARGV  1 scope
-- Gives what publish.lua gives.
local time = redis.call('TIME')
local score = redis.call('ZSCORE', KEYS[2], ARGV[1])
local reply = redis.call('HGETALL', KEYS[1])
table.insert(reply, 1, string.format('%.0f', tonumber(score or '0')))
table.insert(reply, 1, redis.call('GET', KEYS[3]) or '0')
table.insert(reply, 1, string.format('%.0f', time[1] * 1000000 + time[2]))
return reply

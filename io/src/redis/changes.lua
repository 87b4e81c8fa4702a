-- Which scopes anybody changed since, in each of the running periods.
-- KEYS  1 the store's generation   2… the periods' indexes
-- ARGV  1 at most so many per index   2 the generation's time to live, ms   3… read up to this score, per index
-- Gives {now µs, generation, {scope, score, …}, …}. A new generation says that the store began from nothing.
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000000 + time[2])
local generation = redis.call('GET', KEYS[1])
if not generation then generation = now end
redis.call('SET', KEYS[1], generation, 'PX', ARGV[2])
local reply = {now, generation}
for at = 2, #KEYS do
  reply[at + 1] = redis.call('ZRANGEBYSCORE', KEYS[at], '(' .. ARGV[at + 1], '+inf', 'WITHSCORES', 'LIMIT', 0, ARGV[1])
end
return reply

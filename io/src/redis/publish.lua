-- One ledger's burn of one scope: sets its cell, notes the scope in the period's index, gives every cell.
-- KEYS  1 cells of the scope in the period   2 the period's index   3 the store's generation
-- ARGV  1 ledger   2 replica   3 burn   4 rows   5 expiry, Unix ms   6 scope   7 "1" for the first one of a process
-- Gives {now µs, generation or 0, score, ledger, cell, ledger, cell, …}; a cell is "<burn> <rows> <rows new in it> <beat µs> <replica>".
-- Sums stay text: a Lua number is exact to 2^53 only.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local burn, rows, flushed = ARGV[3], ARGV[4], ARGV[4]
local old = redis.call('HGET', KEYS[1], ARGV[1])
if old then
  local old_burn, old_rows = string.match(old, '^(%d+) (%d+) ')
  if old_burn then
    local is_more = #old_burn > #burn or (#old_burn == #burn and old_burn > burn)
    if ARGV[7] == '1' and is_more then
      burn = old_burn -- the ledger lost rows that were published: they were spent all the same
      if tonumber(old_rows) > tonumber(rows) then rows = old_rows end
    end
    flushed = string.format('%.0f', math.max(tonumber(rows) - tonumber(old_rows), 0))
  end
end
local beat = string.format('%.0f', now)
redis.call('HSET', KEYS[1], ARGV[1], burn .. ' ' .. rows .. ' ' .. flushed .. ' ' .. beat .. ' ' .. ARGV[2])
redis.call('PEXPIREAT', KEYS[1], ARGV[5])
-- Scores only grow, whatever the clock does: a reader that has read up to one misses nothing after it.
local top = redis.call('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES')
local score = now
if top[2] and tonumber(top[2]) >= score then score = tonumber(top[2]) + 1 end
redis.call('ZADD', KEYS[2], string.format('%.0f', score), ARGV[6])
redis.call('PEXPIREAT', KEYS[2], ARGV[5])
local reply = redis.call('HGETALL', KEYS[1])
table.insert(reply, 1, string.format('%.0f', score))
table.insert(reply, 1, redis.call('GET', KEYS[3]) or '0')
table.insert(reply, 1, beat)
return reply

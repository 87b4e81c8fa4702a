-- fixed_window. KEYS[1] holds `index:count` of the present window; no key means nothing was counted in it. ARGV[1], three
-- doubles: the period in µs, the amount, what a call counts. ARGV[2]: how many such calls, one after the other, if not
-- one. Replies for each whether it was admitted, the count after it, and the µs until the window closes.
local period, amount, cost = struct.unpack('<ddd', ARGV[1])
local elapsed = math.fmod(now, period)
local index, count, ahead = (now - elapsed) / period, 0, 0
local held = redis.call('GET', KEYS[1])
local at, counted = string.match(held or '', '^(%d+):(%d+)$')
if at then
    at, counted = tonumber(at), tonumber(counted)
    if at == index then
        count = counted
    elseif at > index and at - index <= 4096 then
        index, count, ahead = at, counted, at - index -- the clock stepped back: the window stays open
    end
end
local closes = period - elapsed + ahead * period
local reply, changed = {}, false
for nth = 1, ARGV[2] or 1 do
    local admitted = 0
    if cost == 0 then
        admitted = 1 -- a look: never refused, writes nothing
    elseif count + cost <= amount then
        admitted, count, changed = 1, count + cost, true
    end
    reply[nth * 3 - 2], reply[nth * 3 - 1], reply[nth * 3] = admitted, count, closes
end
if changed then
    local expires_ms = math.max(1, math.ceil(closes / 1000))
    redis.call('SET', KEYS[1], string.format('%.0f:%.0f', index, count), 'PX', expires_ms)
end
return reply

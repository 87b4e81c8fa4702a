-- sliding_window. KEYS[1] holds `index:previous:current`; no key means nothing was counted in either window. ARGV[1], three
-- doubles: the period in µs, the amount, what a call counts. ARGV[2]: how many such calls, one after the other, if not
-- one. Replies for each whether it was admitted, both counts after it, the µs of the previous window that the last period
-- overlaps, and the µs until the present one closes.
local period, amount, cost = struct.unpack('<ddd', ARGV[1])
local elapsed = math.fmod(now, period)
local index, previous, current, ahead = (now - elapsed) / period, 0, 0, 0
local held = redis.call('GET', KEYS[1])
local at, before, counted = string.match(held or '', '^(%d+):(%d+):(%d+)$')
if at then
    at, before, counted = tonumber(at), tonumber(before), tonumber(counted)
    if at == index then
        previous, current = before, counted
    elseif at == index - 1 then
        previous = counted
    elseif at > index and at - index <= 4096 then
        index, previous, current, ahead = at, before, counted, at - index -- the clock stepped back
    end
end
local overlap = period - elapsed
if ahead > 0 then
    overlap = period
end
-- ceil(previous * overlap / period), exactly. A product beyond 2^52 does not fit a double: there, one bit of `previous`
-- (20 at most) at a time, with a remainder that stays below the period.
local weight, rest = 0, 0
if previous * overlap < 4503599627370496 then
    rest = math.fmod(previous * overlap, period)
    weight = (previous * overlap - rest) / period
else
    local bit = 524288
    while bit >= 1 do
        weight, rest = weight * 2, rest * 2
        if rest >= period then
            weight, rest = weight + 1, rest - period
        end
        if math.fmod(math.floor(previous / bit), 2) == 1 then
            rest = rest + overlap
            if rest >= period then
                weight, rest = weight + 1, rest - period
            end
        end
        bit = bit / 2
    end
end
if rest > 0 then
    weight = weight + 1
end
local closes = period - elapsed + ahead * period
local reply, changed = {}, false
for nth = 1, ARGV[2] or 1 do
    local admitted = 0
    if cost == 0 then
        admitted = 1 -- a look: never refused, writes nothing
    elseif current + weight + cost <= amount then
        admitted, current, changed = 1, current + cost, true
    end
    local at = nth * 5
    reply[at - 4], reply[at - 3], reply[at - 2], reply[at - 1], reply[at] = admitted, previous, current, overlap, closes
end
if changed then
    local state = string.format('%.0f:%.0f:%.0f', index, previous, current)
    local expires_ms = math.max(1, math.ceil((closes + period) / 1000))
    redis.call('SET', KEYS[1], state, 'PX', expires_ms)
end
return reply

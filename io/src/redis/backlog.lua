-- gcra and token_bucket. KEYS[1] holds the instant at which the backlog is gone, in µs of this server's clock; no key
-- means no backlog. ARGV[1], three doubles: what a call adds, the most there may be, how far ahead no clock of ours can
-- have written; all in µs. ARGV[2]: how many such calls, one after the other, if not one. Replies the backlog after it, b,
-- for a call that was admitted, and -1 - b for one that was not; of several calls an array.
local cost, tau, damage = struct.unpack('<ddd', ARGV[1])
local held = redis.call('GET', KEYS[1])
local tat = held and tonumber(held) or now
local changed = false
if tat > now + damage then
    tat, changed = now + tau, true -- the clock stepped back, or the burst shrank: at most one full wait
elseif not (tat >= now) then
    tat = now
end
local reply
for nth = 1, ARGV[2] or 1 do
    local backlog = tat + cost - now
    if cost == 0 then
        changed = false -- a look: never refused, writes nothing
    elseif backlog <= tau then
        tat, changed = tat + cost, true
    else
        backlog = now - tat - 1
    end
    if nth == 1 then
        reply = backlog
    elseif nth == 2 then
        reply = {reply, backlog}
    else
        reply[nth] = backlog
    end
end
if changed then
    -- The server writes whole numbers in full up to 10^17.
    redis.call('SET', KEYS[1], tat, 'PX', math.ceil((tat - now) / 1000))
end
return reply

-- gcra and token_bucket. KEYS[1] holds the instant at which the backlog is gone, in µs of this server's clock; no key
-- means no backlog. ARGV[1], three doubles: what the call adds, the most there may be, how far ahead no clock of ours can
-- have written; all in µs. Replies the backlog after it, b, where it was admitted, and -1 - b where it was not.
local cost, tau, damage = struct.unpack('<ddd', ARGV[1])
local held = redis.call('GET', KEYS[1])
local tat = held and tonumber(held) or now
local changed = false
if tat > now + damage then
    tat, changed = now + tau, true -- the clock stepped back, or the burst shrank: at most one full wait
elseif not (tat >= now) then
    tat = now
end
local backlog = tat + cost - now
if cost == 0 then
    changed = false -- a look: never refused, writes nothing
elseif backlog <= tau then
    tat, changed = tat + cost, true
else
    backlog = now - tat - 1
end
if changed then
    -- The server writes whole numbers in full up to 10^17.
    redis.call('SET', KEYS[1], tat, 'PX', math.ceil((tat - now) / 1000))
end
return backlog

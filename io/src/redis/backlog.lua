-- gcra and token_bucket. KEYS[1] holds the instant at which the backlog is gone, in µs of this server's clock; no key
-- means no backlog. ARGV: what the call adds, the most there may be, how far ahead no clock of ours can have written; all
-- in µs. Replies whether it was admitted and the backlog after it.
local cost, tau, damage = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local held = redis.call('GET', KEYS[1])
local tat = held and tonumber(held) or now
local changed = false
if tat > now + damage then
    tat, changed = now + tau, true -- the clock stepped back, or the burst shrank: at most one full wait
elseif not (tat >= now) then
    tat = now
end
local admitted = 0
if cost == 0 then
    admitted, changed = 1, false -- a look: never refused, writes nothing
elseif tat + cost <= now + tau then
    admitted, tat, changed = 1, tat + cost, true
end
if changed then
    local expires_ms = math.max(1, math.ceil((tat - now) / 1000))
    redis.call('SET', KEYS[1], tat, 'PX', expires_ms) -- the server writes whole numbers in full up to 10^17
end
return {admitted, tat - now}

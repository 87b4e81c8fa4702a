-- The time every replica agrees on: this server's, in whole µs. Exact in a double until the year 2255.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

-- Refresh a lease, or take it again where it is gone (Redis was emptied); never touch another's.
-- KEYS[1] lease  ARGV[1] holder  ARGV[2] lifetime in ms.  Returns 1 if the lease is the holder's now.
local holder = redis.call('GET', KEYS[1])
if holder == false or holder == ARGV[1] then
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  return 1
end
return 0

-- Give a lease up, unless another holds it by now.  KEYS[1] lease  ARGV[1] holder
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0

#!/bin/sh
# Every service's entry: secrets from the shared volume become settings, unless they are given, and the demo has its own.
set -e
if [ -z "$HIDDENSTREAM_REDIS" ] && [ -r /secrets/redis_password ]; then
  HIDDENSTREAM_REDIS="redis://:$(cat /secrets/redis_password)@redis:6379/0"
  export HIDDENSTREAM_REDIS
fi
if [ -z "$MODEL" ]; then # small batches: many shards, so that there is something to watch and to share
  export HIDDENSTREAM_TOKEN_BUDGET="${HIDDENSTREAM_TOKEN_BUDGET:-2048}"
  export HIDDENSTREAM_MAX_LENGTH="${HIDDENSTREAM_MAX_LENGTH:-1024}"
  # CPUs without instructions for it are several times slower in bfloat16
  grep -qE 'amx_bf16|avx512_bf16' /proc/cpuinfo && dtype=bfloat16 || dtype=float32
  export HIDDENSTREAM_DTYPE="${HIDDENSTREAM_DTYPE:-$dtype}"
  export HIDDENSTREAM_STORE_DTYPE="${HIDDENSTREAM_STORE_DTYPE:-bfloat16}"
  export HIDDENSTREAM_OVER_LONG="${HIDDENSTREAM_OVER_LONG:-truncate}"
fi
exec hiddenstream "$@"

#!/bin/sh
# Every service's entry: makes settings from the secrets' volume and from MODEL, DATA and RUN; the demo has its own.
set -e
if [ -z "$HIDDENSTREAM_REDIS" ] && [ -r /secrets/redis_password ]; then
  export HIDDENSTREAM_REDIS="redis://:$(cat /secrets/redis_password)@redis:6379/0"
fi
if [ -n "$MODEL" ]; then
  : "${HIDDENSTREAM_MODEL:=$MODEL}" "${HIDDENSTREAM_DATA:=/data/input}" "${RUN:=extraction}"
else
  # CPUs without instructions for it are several times slower in bfloat16.
  grep -qE 'amx_bf16|avx512_bf16' /proc/cpuinfo && dtype=bfloat16 || dtype=float32
  : "${HIDDENSTREAM_MODEL:=/models/model}" "${HIDDENSTREAM_DATA:=/data/input/conversations.jsonl}" "${RUN:=demo}"
  : "${HIDDENSTREAM_DTYPE:=$dtype}" "${HIDDENSTREAM_STORE_DTYPE:=bfloat16}"
  # Small batches: many shards, so that there is something to watch and to share.
  : "${HIDDENSTREAM_TOKEN_BUDGET:=2048}" "${HIDDENSTREAM_MAX_LENGTH:=1024}" "${HIDDENSTREAM_OVER_LONG:=truncate}"
  export HIDDENSTREAM_DTYPE HIDDENSTREAM_STORE_DTYPE
  export HIDDENSTREAM_TOKEN_BUDGET HIDDENSTREAM_MAX_LENGTH HIDDENSTREAM_OVER_LONG
fi
: "${HIDDENSTREAM_RUN:=$RUN}" "${HIDDENSTREAM_RUN_DIRECTORY:=/runs/$RUN}" "${HIDDENSTREAM_LOG_FILE:=/runs/$RUN/logs/sink.jsonl}"
export HIDDENSTREAM_MODEL HIDDENSTREAM_DATA HIDDENSTREAM_RUN HIDDENSTREAM_RUN_DIRECTORY HIDDENSTREAM_LOG_FILE
exec hiddenstream "$@"

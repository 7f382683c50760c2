#!/usr/bin/env bash
# Starts the stack in the background: with GPUs if this host's driver shows some, and as the user whose folder OUT is.
#   docker/up.sh [arguments of `docker compose up`, for example --scale gpu_worker=4]
set -euo pipefail
cd "$(dirname "$0")/.."
setting() { # from the environment, else from .env
  local given=${!1-}
  [ -n "$given" ] || given=$(sed -n "s/^$1=//p" .env 2>/dev/null | tail -1 | sed "s/[[:space:]]#.*//; s/[[:space:]]*$//; s/^[\"']//; s/[\"']$//")
  echo "$given"
}
for name in DATA MODELS; do
  path=$(setting $name)
  if [ -n "$path" ] && [ ! -e "$path" ]; then
    echo "$name=$path: there is no such file or folder; Docker would make an empty one" >&2
    exit 2
  fi
done
out=$(setting OUT)
if [ -n "$out" ] && [ -z "$(setting RUN_AS)" ]; then
  case $out in */*) mkdir -p "$out"; RUN_AS=$(stat -c %u:%g "$out"); export RUN_AS ;; esac
fi
files=(-f docker-compose.yml)
if [ -d /proc/driver/nvidia/gpus ]; then files+=(-f compose.gpu.yaml); fi
docker compose "${files[@]}" up --detach --build "$@"
bind=$(setting BIND) status_port=$(setting STATUS_PORT) grafana_port=$(setting GRAFANA_PORT)
echo "status page: http://${bind:-127.0.0.1}:${status_port:-8080}"
echo "Grafana:     http://${bind:-127.0.0.1}:${grafana_port:-3000}"

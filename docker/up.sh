#!/usr/bin/env bash
# Starts the stack in the background: with GPUs if this host's driver shows some, and as the user whose folder OUT is.
#   docker/up.sh [arguments of `docker compose up`, for example --scale gpu_worker=4]
# What it finds out it writes to .env, so that plain `docker compose` commands do the same from then on.
set -euo pipefail
cd "$(dirname "$0")/.."
setting() { # from the environment, else from .env
  local given=${!1-}
  [ -n "$given" ] || given=$(sed -n "s/^$1=//p" .env 2>/dev/null | tail -1 | sed "s/[[:space:]]#.*//; s/[[:space:]]*$//; s/^[\"']//; s/[\"']$//")
  echo "$given"
}
remember() {
  echo "$1=$2" >>.env
  echo "wrote $1=$2 to .env: $3"
}
path_of() { # of a setting, ~ expanded; refuses what Compose would take for the name of a volume
  local path
  path=$(setting "$1")
  path=${path/#\~/$HOME}
  case $path in
    "" | /* | ./* | ../*) echo "$path" ;;
    *) echo "$1=$path: begin with ./ or /" >&2; exit 2 ;;
  esac
}
data=$(path_of DATA)
models=$(path_of MODELS)
out=$(path_of OUT)
for path in "$data" "$models"; do
  if [ -n "$path" ] && [ ! -e "$path" ]; then
    echo "$path: there is no such file or folder; Docker would make an empty one" >&2
    exit 2
  fi
done
if [ -n "$out" ] && [ -z "$(setting RUN_AS)" ]; then
  mkdir -p "$out"
  remember RUN_AS "$(stat -c %u:%g "$out")" "the services run as the owner of OUT"
fi
if [ -d /proc/driver/nvidia/gpus ] && [ -z "$(setting COMPOSE_FILE)" ]; then
  remember COMPOSE_FILE docker-compose.yml:compose.gpu.yaml "this host has NVIDIA GPUs"
fi
docker compose up --detach --build "$@"
bind=$(setting BIND) status_port=$(setting STATUS_PORT) grafana_port=$(setting GRAFANA_PORT)
echo "status page: http://${bind:-127.0.0.1}:${status_port:-8080}"
echo "Grafana:     http://${bind:-127.0.0.1}:${grafana_port:-3000}"

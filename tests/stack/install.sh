#!/usr/bin/env bash
# Installs what the stack tests need from Debian's packages, where it is missing and we may: a Docker engine, Prometheus,
# Chromium, and mmdebstrap for base images where no image registry can be reached.
set -euo pipefail
missing=()
for pair in dockerd:docker.io iptables:iptables mmdebstrap:mmdebstrap prometheus:prometheus promtool:prometheus \
  chromium:chromium; do
  command -v "${pair%%:*}" >/dev/null || missing+=("${pair##*:}")
done
[ ${#missing[@]} -gt 0 ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "missing: ${missing[*]}; as root of a Debian machine this script installs them" >&2
  exit 0 # what runs without them runs; the rest says what it misses
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${missing[@]}" fonts-dejavu-core >/dev/null

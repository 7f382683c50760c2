#!/usr/bin/env bash
# Makes an image that stands in for a public one, from Debian packages, on a machine that reaches no image registry.
#   stand_in_image.sh python TAG
#   stand_in_image.sh redis|prometheus TAG PYTHON_TAG
# Needs root, a running Docker engine, and mmdebstrap or, for Prometheus, prometheus on PATH. They are Debian's builds
# under the public images' names: they show that the files of this project work with these programs, no more.
set -euo pipefail
kind=$1 tag=$2 python_tag=${3-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

make_python() {
  local mirror names certificates
  mirror=$(awk '/^URIs:/ {print $2; exit}' /etc/apt/sources.list.d/debian.sources 2>/dev/null || true)
  [ -n "$mirror" ] || mirror=$(awk '/^deb / {print $2; exit}' /etc/apt/sources.list)
  names='ln -s /usr/bin/python3 "$1/usr/local/bin/python"; ln -s /usr/bin/pip3 "$1/usr/local/bin/pip"'
  certificates='cp /etc/ssl/certs/ca-certificates.crt "$1/etc/ssl/certs/ca-certificates.crt"'
  mmdebstrap --quiet --variant=minbase --mode=root \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' \
    --include=ca-certificates,python3-minimal,python3-pip,python3-venv \
    --customize-hook="$names" \
    --customize-hook="rm -f \"\$1\"/usr/lib/python3.*/EXTERNALLY-MANAGED; $certificates" \
    bookworm - "$mirror" |
    docker import --change 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' \
      --change 'ENV LANG=C.UTF-8' --change 'ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt' \
      --change 'CMD ["python3"]' - "$tag" >/dev/null
}

build() { DOCKER_BUILDKIT=0 docker build --quiet --network host --tag "$tag" "$work" >/dev/null; }

make_redis() {
  cat >"$work/Dockerfile" <<DOCKERFILE
FROM $python_tag
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends redis-server >/dev/null && rm -rf /var/lib/apt/lists/*
WORKDIR /data
CMD ["redis-server"]
DOCKERFILE
  build
}

make_prometheus() {
  cp "$(command -v prometheus)" "$(command -v promtool)" "$work/"
  cat >"$work/Dockerfile" <<DOCKERFILE
FROM $python_tag
COPY prometheus promtool /bin/
RUN mkdir /prometheus && chown 65534:65534 /prometheus
USER 65534
WORKDIR /prometheus
ENTRYPOINT ["/bin/prometheus"]
CMD ["--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/prometheus"]
DOCKERFILE
  build
}

"make_$kind"

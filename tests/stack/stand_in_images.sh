#!/usr/bin/env bash
# Makes images that stand in for the public ones, from Debian packages, on a machine that reaches no image registry.
#   stand_in_images.sh PYTHON_TAG REDIS_TAG PROMETHEUS_TAG
# Needs root, a running Docker engine, mmdebstrap, and prometheus on PATH. They are Debian's builds under the public
# images' names: what they show is that the files of this project work with them, not that the public images do.
set -euo pipefail
python_tag=$1 redis_tag=$2 prometheus_tag=$3
mirror=$(awk '/^URIs:/ {print $2; exit}' /etc/apt/sources.list.d/debian.sources 2>/dev/null || true)
[ -n "$mirror" ] || mirror=$(awk '/^deb / {print $2; exit}' /etc/apt/sources.list)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

skip_documents=(--dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*'
  --dpkgopt='path-exclude=/usr/share/locale/*')
as_the_public_image_names_them='ln -s /usr/bin/python3 "$1/usr/local/bin/python"; ln -s /usr/bin/pip3 "$1/usr/local/bin/pip"'
certificates='cp /etc/ssl/certs/ca-certificates.crt "$1/etc/ssl/certs/ca-certificates.crt"'
mmdebstrap --quiet --variant=minbase --mode=root "${skip_documents[@]}" \
  --include=ca-certificates,python3-minimal,python3-pip,python3-venv \
  --customize-hook="$as_the_public_image_names_them" \
  --customize-hook="rm -f \"\$1\"/usr/lib/python3.*/EXTERNALLY-MANAGED; $certificates" \
  bookworm - "$mirror" |
  docker import --change 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' \
    --change 'ENV LANG=C.UTF-8' --change 'ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt' \
    --change 'CMD ["python3"]' - "$python_tag" >/dev/null

build() { DOCKER_BUILDKIT=0 docker build --quiet --network host --tag "$1" "$work" >/dev/null; }

cat >"$work/Dockerfile" <<DOCKERFILE
FROM $python_tag
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends redis-server >/dev/null && rm -rf /var/lib/apt/lists/*
WORKDIR /data
CMD ["redis-server"]
DOCKERFILE
build "$redis_tag"

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
build "$prometheus_tag"

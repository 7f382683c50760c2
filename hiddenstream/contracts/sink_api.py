"""The sink's HTTP interface: paths and reasons. No I/O here.

    PUT  /v1/runs/{run}/shards/{shard}   body: a shard file. 201 committed, 200 was there already
    HEAD /v1/runs/{run}/shards/{shard}   200 it is there, 404 it is not
    PUT  /v1/runs/{run}/files/{name}     body: a run file. 201 stored, 200 there was one already and it stays
    GET  /v1/runs/{run}/files/{name}     200 and the file's bytes, 404 there is none
    HEAD /v1/runs/{run}/files/{name}     200 it is there, 404 it is not
    GET  /v1/runs/{run}                  identity and progress, JSON
    GET  /healthz                        200 once it serves

Every answer but HEAD's and a run file's has a JSON body; a refusal's is {"reason": ..., "message": ...}. 503 and 507
carry Retry-After and mean "the same request later"; every other 4xx means "never".
"""

from __future__ import annotations

RUN_FILES = ("reference", "final_norm", "heads")  # each RUN_DIR/NAME.safetensors
MAX_RUN_FILE_BYTES = {
    "reference": 1 << 30,
    "final_norm": 1 << 30,
    "heads": 64 << 30,  # embedding and lm_head of 248,320 x 5,120 in bfloat16 are 5 GB
}
RETRY_STATUSES = frozenset({503, 507})
SHARD_REFUSALS = {
    "unauthorized": 401,
    "not_found": 404,
    "wrong_run": 409,
    "wrong_fingerprint": 409,
    "no_such_shard": 404,
    "wrong_digest": 422,
    "wrong_taps": 422,
    "wrong_shape": 422,
    "wrong_samples": 422,
    "wrong_hash": 422,
    "wrong_length": 422,
    "malformed": 400,
    "length_required": 411,
    "too_large": 413,
    "disk_full": 507,
    "not_ready": 503,
}


def run_path(run: str) -> str:
    """Return the path of a run's identity and progress."""
    return f"/v1/runs/{run}"


def shard_path(run: str, shard: int) -> str:
    """Return the path of one shard."""
    return f"/v1/runs/{run}/shards/{shard:06d}"


def run_file_path(run: str, name: str) -> str:
    """Return the path of one of a run's files."""
    return f"/v1/runs/{run}/files/{name}"

"""One small shard of two samples in every wire form. Whoever changes these bytes changes the format version."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import xxhash

from hiddenstream.contracts.commit import CommitLine, Quarantined
from hiddenstream.contracts.job import ExtractionJob
from hiddenstream.contracts.run_file import RawTensor
from hiddenstream.contracts.samples import PackedSamples
from hiddenstream.contracts.shard import ShardMetadata, encode_header, sample_tensors, shard_layout

SAMPLES = PackedSamples(
    ids=("a", "é"),
    token_counts=np.array([2, 1]),
    tokens=np.array([5, 6, 7], np.int32),
    mask_counts=np.array([2, 0]),
    masks=np.array([0, 1], np.uint8),
)
DIGEST = "b51d31f9fae3b857a785502055dc9673"
JOB = ExtractionJob(run="r", fingerprint="0123456789abcdef", shard=3, delivery="d1", token_budget=64, samples=SAMPLES)
JOB_BYTES = bytes.fromhex(
    "8ba6736368656d6101a372756ea172ab66696e6765727072696e74b030313233343536373839616263646566a5736861726403a8"
    "64656c6976657279a26431ac746f6b656e5f62756467657440a369647392a161a2c3a9ac746f6b656e5f636f756e7473c4100200"
    "0000000000000100000000000000a6746f6b656e73c40c050000000600000007000000ab6d61736b5f636f756e7473c410020000"
    "00000000000000000000000000a56d61736b73c4020001"
)
TENSOR_BYTES = bytes.fromhex(
    "0000000000000000020000000000000002000000000000000100000000000000"  # sample_rows
    "000000000000000002000000000000000200000000000000"  # mask_offsets
    "050000000600000007000000"  # input_ids
    "803f004040408040a040c040"  # hidden_states: 1, 2, 3, 4, 5, 6 in bfloat16
    "0001"  # loss_mask
)
HEADER_BYTES = (
    b"\xb8\x02\x00\x00\x00\x00\x00\x00"
    b'{"__metadata__":{"format_version":"1","run":"r","fingerprint":"0123456789abcdef","plan_id":"p","shard":"3",'
    b'"delivery":"d1","digest":"b51d31f9fae3b857a785502055dc9673","taps":"[\\"block.1\\"]",'
    b'"xxh3":"6710cfc32ab227da135eb783381764b1","sample_ids":"[\\"a\\", \\"\\\\u00e9\\"]","quarantined":"[]",'
    b'"made_by":"{\\"worker\\": \\"w\\"}"},'
    b'"sample_rows":{"dtype":"I64","shape":[2,2],"data_offsets":[0,32]},'
    b'"mask_offsets":{"dtype":"I64","shape":[3],"data_offsets":[32,56]},'
    b'"input_ids":{"dtype":"I32","shape":[3],"data_offsets":[56,68]},'
    b'"hidden_states":{"dtype":"BF16","shape":[3,1,2],"data_offsets":[68,80]},'
    b'"loss_mask":{"dtype":"U8","shape":[2],"data_offsets":[80,82]}}'
).ljust(704)
LAYOUT = shard_layout(samples=2, tokens=3, mask_values=2, states=(1, 2, "bfloat16"))
METADATA = ShardMetadata(
    format_version=1,
    run="r",
    fingerprint="0123456789abcdef",
    plan_id="p",
    shard=3,
    delivery="d1",
    digest=DIGEST,
    taps=("block.1",),
    xxh3="6710cfc32ab227da135eb783381764b1",
    sample_ids=("a", "é"),
    quarantined=(),
    made_by={"worker": "w"},
)
COMMIT = CommitLine(
    shard=3,
    file_bytes=786,
    xxh3="6710cfc32ab227da135eb783381764b1",
    header_xxh3="8795ab841527c2c1a46b6db1c2b88c95",
    tokens=3,
    samples=2,
    quarantined=(Quarantined(id="b", reason="non_finite", detail="NaN"),),
    delivery="d1",
    made_by={"worker": "w"},
    receive_seconds=0.5,
    fsync_seconds=0.25,
    time="2026-01-01T00:00:00.000Z",
)
COMMIT_BYTES = (
    b'{"delivery":"d1","file_bytes":786,"fsync_seconds":0.25,"header_xxh3":"8795ab841527c2c1a46b6db1c2b88c95",'
    b'"made_by":{"worker":"w"},"quarantined":[{"detail":"NaN","id":"b","reason":"non_finite"}],'
    b'"receive_seconds":0.5,"samples":2,"shard":3,"time":"2026-01-01T00:00:00.000Z","tokens":3,'
    b'"xxh3":"6710cfc32ab227da135eb783381764b1","check":"e7ceeb26a52e90c2"}\n'
)


def a_shard_file(states: bytes = TENSOR_BYTES[68:80]) -> bytes:
    """Return the small shard with other states."""
    tensors = {**sample_tensors(SAMPLES), "hidden_states": states}
    body = b"".join(tensors[name] for name in LAYOUT.tensors)
    return encode_header(LAYOUT, replace(METADATA, xxh3=xxhash.xxh3_128_hexdigest(body))) + body


RUN_FILE_TENSORS = {
    "weight": RawTensor(dtype="bfloat16", shape=(3,), data=bytes.fromhex("803f00404040")),
    "bias": RawTensor(dtype="float32", shape=(2,), data=bytes.fromhex("0000003f00000040")),
}
RUN_FILE_FACTS = {"class": "é"}
RUN_FILE_BYTES = (
    b"\x38\x01\x00\x00\x00\x00\x00\x00"
    + (
        b'{"__metadata__":{"format_version":"1","file":"final_norm","run":"r","fingerprint":"6917a092f494a504",'
        b'"xxh3":"0c4424dc2a716f26c0c125601e5187f9","class":"\\u00e9"},'
        b'"bias":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},'
        b'"weight":{"dtype":"BF16","shape":[3],"data_offsets":[8,14]}}'
    ).ljust(312)
    + bytes.fromhex("0000003f00000040803f00404040")
)

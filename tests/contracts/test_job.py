"""The job on the queue: its bytes, and what is refused."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hiddenstream.contracts.errors import WireError
from hiddenstream.contracts.job import ExtractionJob
from tests.contracts.golden import JOB, JOB_BYTES
from tests.contracts.strategies import damaged, packed_samples, same_samples


def test_a_job_has_these_bytes():
    """The wire form may only change together with its schema number."""
    assert JOB.encode() == JOB_BYTES


@given(packed_samples(), st.integers(0, 2**40))
def test_a_job_comes_back_as_it_was(samples, shard):
    """Any ids, tokens and masks survive the queue."""
    job = replace(JOB, samples=samples, shard=shard)

    back = ExtractionJob.decode(job.encode())

    assert same_samples(samples, back.samples)
    assert (job.run, job.fingerprint, shard, "d1", 64) == (
        back.run,
        back.fingerprint,
        back.shard,
        back.delivery,
        back.token_budget,
    )


@given(damaged(JOB_BYTES))
def test_damaged_bytes_end_in_a_job_or_a_wire_error(payload):
    """Nothing that Redis may hold raises anything else."""
    with contextlib.suppress(WireError):
        assert ExtractionJob.decode(payload).samples.token_counts.sum() > 0


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(max_size=24),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=4,
)


@given(st.sampled_from(sorted(msgpack.unpackb(JOB_BYTES))), PLAIN)
def test_a_field_of_another_type_is_refused_or_valid(field, value):
    """Whatever one field holds instead, the job is refused by WireError or means what it says."""
    wire = {**msgpack.unpackb(JOB_BYTES), field: value}

    with contextlib.suppress(WireError):
        assert isinstance(ExtractionJob.decode(msgpack.packb(wire)).shard, int)


@pytest.mark.parametrize("field", sorted(msgpack.unpackb(JOB_BYTES)))
def test_a_missing_field_is_refused(field):
    """No field has a default on the wire."""
    wire = msgpack.unpackb(JOB_BYTES)
    del wire[field]

    with pytest.raises(WireError):
        ExtractionJob.decode(msgpack.packb(wire))


@pytest.mark.parametrize("schema", [0, 2, None, True, 1.0, "1"])
def test_another_schema_says_so(schema):
    """Producer and worker of different versions are told so."""
    wire = {**msgpack.unpackb(JOB_BYTES), "schema": schema}

    with pytest.raises(WireError, match="different versions"):
        ExtractionJob.decode(msgpack.packb(wire))

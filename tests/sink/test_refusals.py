"""Shards and requests that are refused, and what they leave behind: nothing."""

from __future__ import annotations

import logging

import pytest
import xxhash

from hiddenstream.contracts.commit import Quarantined
from hiddenstream.contracts.shard import decode_header, encode_header, header_length, shard_layout
from hiddenstream.contracts.sink_api import SHARD_REFUSALS, run_path, shard_path
from tests.factories import a_run, a_shard
from tests.sink.harness import a_head, a_sink, ask, connect, files_left, metric, put, reply_on


def with_tensors(data: bytes, change) -> bytes:
    """Return a shard whose tensor bytes were changed and whose checksum fits them."""
    begin = header_length(data)
    layout, metadata = decode_header(data[:begin])
    tensors = bytearray(data[begin:])
    change(layout, tensors)
    changed = {name: getattr(metadata, name) for name in metadata.__slots__}
    return encode_header(layout, type(metadata)(**{**changed, "xxh3": xxhash.xxh3_128_hexdigest(tensors)})) + tensors


def flip(name: str):
    """Return a change of the first byte of one tensor."""

    def change(layout, tensors):
        tensors[layout.tensors[name].begin] ^= 1

    return change


def of_dtype(data: bytes, dtype: str) -> bytes:
    """Return shard 0 with states of another dtype."""
    _, metadata = decode_header(data[: header_length(data)])
    layout = shard_layout(samples=2, tokens=4, mask_values=4, states=(2, 4, dtype))
    return encode_header(layout, metadata) + bytes(layout.tensor_bytes)


def quarantined(*ids: str) -> tuple[Quarantined, ...]:
    return tuple(Quarantined(id=i, reason="all_zero", detail="") for i in ids)


BAD_SHARDS = {
    "wrong checksum": ("wrong_hash", lambda p: a_shard(p, 0, xxh3="0" * 32)),
    "a flipped bit": ("wrong_hash", lambda p: a_shard(p, 0)[:-1] + bytes([a_shard(p, 0)[-1] ^ 1])),
    "a byte too many": ("wrong_length", lambda p: a_shard(p, 0) + b"\0"),
    "a byte too few": ("wrong_length", lambda p: a_shard(p, 0)[:-1]),
    "less than a header": ("wrong_length", lambda p: a_shard(p, 0)[:100]),
    "four bytes": ("wrong_length", lambda p: b"\0" * 4),
    "another run": ("wrong_run", lambda p: a_shard(p, 0, run="other")),
    "another fingerprint": ("wrong_fingerprint", lambda p: a_shard(p, 0, fingerprint="0" * 16)),
    "another plan": ("wrong_fingerprint", lambda p: a_shard(p, 0, plan_id="0" * 32)),
    "another format": ("wrong_fingerprint", lambda p: a_shard(p, 0, format_version=2)),
    "other taps": ("wrong_taps", lambda p: a_shard(p, 0, taps=("block.1", "block.3"))),
    "another dtype": ("wrong_shape", lambda p: of_dtype(a_shard(p, 0), "float16")),
    "another digest": ("wrong_digest", lambda p: a_shard(p, 0, digest="0" * 32)),
    "another shard": ("wrong_samples", lambda p: a_shard(p, 1)),
    "ids in another order": ("wrong_samples", lambda p: a_shard(p, 0, sample_ids=("s1", "s0"))),
    "a foreign id": ("wrong_samples", lambda p: a_shard(p, 0, sample_ids=("s0", "s9"))),
    "an id missing": ("wrong_samples", lambda p: a_shard(p, 0, sample_ids=("s0",))),
    "a sample both stored and quarantined": (
        "wrong_samples",
        lambda p: a_shard(p, 0, quarantined=quarantined("s0"), sample_ids=("s0", "s1")),
    ),
    "a sample neither stored nor quarantined": ("wrong_samples", lambda p: a_shard(p, 0, sample_ids=())),
    "a foreign quarantined sample": ("wrong_samples", lambda p: a_shard(p, 0, quarantined=quarantined("s2"))),
    "a sample quarantined twice": ("wrong_samples", lambda p: a_shard(p, 0, quarantined=quarantined("s0", "s0"))),
    "other tokens": ("wrong_samples", lambda p: with_tensors(a_shard(p, 0), flip("input_ids"))),
    "another mask": ("wrong_samples", lambda p: with_tensors(a_shard(p, 0), flip("loss_mask"))),
    "other rows": ("wrong_samples", lambda p: with_tensors(a_shard(p, 0), flip("sample_rows"))),
    "other mask offsets": ("wrong_samples", lambda p: with_tensors(a_shard(p, 0), flip("mask_offsets"))),
    "no JSON": ("malformed", lambda p: a_shard(p, 0).replace(b"{", b"[", 1)),
    "a header of no sensible length": ("malformed", lambda p: b"\xff" * 8 + a_shard(p, 0)[8:]),
    "a lone surrogate for an id": ("wrong_samples", lambda p: a_shard(p, 0, sample_ids=("\ud800", "s1"))),
}


@pytest.mark.parametrize("case", BAD_SHARDS)
def test_a_shard_that_does_not_fit_is_refused_and_leaves_nothing(paths, case):
    """Each way of not fitting has its reason, is counted, and leaves neither file nor ledger line."""
    reason, bad = BAD_SHARDS[case]

    with a_sink(paths) as sink:
        reply = put(sink.port, 0, bad(paths))
        counted = metric(sink, "refusals_total", reason=reason)

    assert (SHARD_REFUSALS[reason], reason) == (reply.status, reply.content["reason"]), reply.content
    assert files_left(paths) == []
    assert counted == 1


def test_a_refusal_names_both_values(paths):
    """Who reads a refusal sees what the run has and what the shard has."""
    with a_sink(paths) as sink:
        message = put(sink.port, 0, a_shard(paths, 0, fingerprint="f" * 16)).content["message"]

    assert paths.read_record().identity.fingerprint in message
    assert "f" * 16 in message


def test_a_refused_shard_can_be_sent_again(paths):
    """A refusal takes nothing from the shard: a good upload of it is stored."""
    with a_sink(paths) as sink:
        statuses = [put(sink.port, 0, data).status for data in (a_shard(paths, 0, xxh3="0" * 32), a_shard(paths, 0))]

    assert statuses == [422, 201]


def test_a_wide_shard_is_refused_before_its_states_are_received(tmp_path):
    """A header that does not fit is answered while the client still sends, and the client gets the answer."""
    paths = a_run(tmp_path / "run", shards=((100_000,),))
    data = a_shard(paths, 0, fingerprint="0" * 16)

    with a_sink(paths) as sink, connect(sink.port) as client:
        client.sendall(a_head(0, len(data)) + data[: header_length(data)])
        reply = reply_on(client)

    assert reply.content["reason"] == "wrong_fingerprint"


def test_a_client_that_sends_everything_first_still_reads_its_refusal(tmp_path):
    """A refused upload is read to its end rather than reset, so that the reason arrives."""
    paths = a_run(tmp_path / "run", shards=((700_000,),))  # more than the sockets' buffers hold

    with a_sink(paths) as sink:
        reply = put(sink.port, 0, a_shard(paths, 0, fingerprint="0" * 16))

    assert reply.content["reason"] == "wrong_fingerprint"


@pytest.mark.parametrize(
    ("headers", "reason"),
    [(("Content-Length: 99999999999999999999",), "too_large"), (("Transfer-Encoding: chunked",), "length_required")],
)
def test_a_body_of_no_bounded_length_is_refused_unread(paths, headers, reason):
    """A length over what the shard can have, or none, is refused before anything is received."""
    head = f"PUT {shard_path('test', 0)} HTTP/1.1\r\nHost: sink\r\n" + "\r\n".join(headers) + "\r\n\r\n"

    with a_sink(paths) as sink, connect(sink.port) as client:
        client.sendall(head.encode())
        reply = reply_on(client)

    assert (SHARD_REFUSALS[reason], reason) == (reply.status, reply.content["reason"])
    assert files_left(paths) == []


def test_an_upload_without_any_length_is_refused(paths):
    """A PUT without Content-Length is answered with 411."""
    with a_sink(paths) as sink, connect(sink.port) as client:
        client.sendall(f"PUT {shard_path('test', 0)} HTTP/1.1\r\nHost: sink\r\n\r\n".encode())

        assert reply_on(client).status == 411


@pytest.mark.parametrize("authorization", [None, "Bearer wrong", "Basic c2VjcmV0", "secret", "Bearer secret2"])
def test_every_route_but_healthz_wants_the_token(paths, authorization, caplog):
    """Without the right token nothing is told and nothing is stored, and the token is never logged."""
    headers = {"Authorization": authorization} if authorization else {}
    caplog.set_level(logging.INFO)

    with a_sink(paths, token="secret") as sink:
        replies = [
            put(sink.port, 0, a_shard(paths, 0), headers),
            ask(sink.port, "HEAD", shard_path("test", 0), headers=headers),
            ask(sink.port, "GET", run_path("test"), headers=headers),
        ]
        health = ask(sink.port, "GET", "/healthz", headers=headers)

    assert [reply.status for reply in replies] == [401, 401, 401]
    assert health.status == 200
    assert files_left(paths) == []
    assert not [record for record in caplog.records if "secret" in str(record.__dict__)]


def test_the_right_token_opens_the_door(paths, tmp_path):
    """A token from a file lets an upload in."""
    (tmp_path / "token").write_text("from-a-file\n")

    with a_sink(paths, token_file=tmp_path / "token") as sink:
        reply = put(sink.port, 0, a_shard(paths, 0), {"Authorization": "Bearer from-a-file"})

    assert reply.status == 201


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("PUT", "/v1/runs/other/shards/000000", 409),
        ("HEAD", "/v1/runs/other/shards/000000", 409),
        ("GET", "/v1/runs/other", 409),
        ("PUT", "/v1/runs/test/shards/000002", 404),
        ("PUT", "/v1/runs/test/shards/0", 404),
        ("PUT", "/v1/runs/test/shards/..%2f..%2fx", 404),
        ("PUT", "/v1/runs/test/shards/" + "9" * 5000, 404),
        ("PUT", "/v1/runs/../shards/000000", 404),
        ("GET", "/v1/runs/test/shards/000000", 404),
        ("POST", "/v1/runs/test", 404),
        ("DELETE", "/v1/runs/test/shards/000000", 404),
        ("GET", "/", 404),
    ],
)
def test_paths_that_are_nothing_are_refused(paths, method, path, status):
    """What is no route of the interface, another run or an unplanned shard never touches the disk."""
    with a_sink(paths) as sink:
        reply = ask(sink.port, method, path, a_shard(paths, 0) if method == "PUT" else None)

    assert status == reply.status
    assert files_left(paths) == []


def test_the_disk_reserve_is_never_used(paths):
    """An upload that would touch the reserve is put off with 507, and the client told when to come again."""
    with a_sink(paths, reserve_bytes=1 << 62) as sink:
        reply = put(sink.port, 0, a_shard(paths, 0))

    assert (reply.status, reply.content["reason"], reply.headers["Retry-After"]) == (507, "disk_full", "5")
    assert files_left(paths) == []

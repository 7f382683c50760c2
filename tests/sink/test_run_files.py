"""Files that workers make once per run: stored like shards, given back as they are, checked on their way in."""

from __future__ import annotations

import http.client
import os
import threading
from dataclasses import replace

import pytest

from gpu_worker.sink_client import SinkClient, SinkRefused, SinkUnavailable
from hiddenstream.contracts.run_file import RawTensor, encode_run_file
from hiddenstream.contracts.sink_api import MAX_RUN_FILE_BYTES, RUN_FILES, run_file_path
from tests.factories import a_run_file
from tests.sink.harness import LOCALHOST, a_sink, a_sink_process, ask, connect, files_left, metric, reply_on, wait_for


def client_of(port, *, token=None):
    return SinkClient(f"http://{LOCALHOST}:{port}", "test", token)


def stored(paths, name):
    file = paths.run_file(name)
    return file.read_bytes() if file.exists() else None


@pytest.mark.parametrize("name", RUN_FILES)
def test_a_run_file_is_stored_once_and_given_back(paths, name):
    """The first one wins, the second is told so and dropped, and all get the first one's bytes."""
    first, second = a_run_file(paths, name), a_run_file(paths, name, value=2)

    with a_sink(paths) as sink:
        client = client_of(sink.port)
        before = (client.has_file(name), client.fetch_file(name))
        told = [client.put_file(name, pieces) for pieces in (first, second)]
        after = (client.has_file(name), client.fetch_file(name))

    assert (False, None) == before
    assert ["committed", "duplicate"] == told
    assert (True, b"".join(first)) == after
    assert b"".join(first) == stored(paths, name)
    assert [] == files_left(paths)


def test_a_run_file_is_there_after_a_crash_of_the_sink(paths):
    """A sink that is killed right after its answer has stored the file; the next one gives it back."""
    pieces = a_run_file(paths, "reference")
    with a_sink_process(paths) as (process, port):
        client_of(port).put_file("reference", pieces)
        process.kill()

    with a_sink_process(paths) as (_, port):
        assert b"".join(pieces) == client_of(port).fetch_file("reference")


def test_of_many_at_once_one_is_stored(paths):
    """Uploads that race end as one commit; the file is whole and the same for all."""
    told = []
    with a_sink(paths) as sink:

        def send(value):
            told.append(client_of(sink.port).put_file("reference", a_run_file(paths, "reference", value=value)))

        threads = [threading.Thread(target=send, args=(value,)) for value in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert ["committed", *["duplicate"] * 5] == sorted(told)
    assert stored(paths, "reference") in [b"".join(a_run_file(paths, "reference", value=v)) for v in range(6)]
    assert [] == files_left(paths)


def test_a_file_that_is_there_is_answered_before_its_body(paths):
    """Who waits for leave to send a second one is told 200 at once."""
    data = b"".join(a_run_file(paths, "heads"))
    head = f"PUT {run_file_path('test', 'heads')} HTTP/1.1\r\nHost: sink\r\nContent-Length: {len(data)}\r\n"

    with a_sink(paths) as sink:
        client_of(sink.port).put_file("heads", [data])
        with connect(sink.port) as client:
            client.sendall((head + "Expect: 100-continue\r\n\r\n").encode())
            reply = reply_on(client)

    assert (200, "duplicate") == (reply.status, reply.content["status"])


@pytest.mark.parametrize("damage", [b"", b"\0" * 100, "bit"], ids=["empty", "zeros", "a flipped bit"])
def test_a_damaged_file_gives_way_to_a_whole_one(paths, damage):
    """The first one wins only as long as it verifies; what does not is kept beside."""
    pieces = a_run_file(paths, "final_norm")
    whole = b"".join(pieces)
    paths.run_file("final_norm").write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]) if damage == "bit" else damage)

    with a_sink(paths) as sink:
        told = client_of(sink.port).put_file("final_norm", pieces)

    assert "committed" == told
    assert whole == stored(paths, "final_norm")
    assert 1 == len([name for name in files_left(paths) if name.startswith("damaged/final_norm.")])


def changed(paths, **fields):
    record = paths.read_record()
    identity = fields.pop("hidden_size", None)
    if identity:
        record = replace(record, identity=replace(record.identity, hidden_size=identity))
    tensors = {"weight": RawTensor(dtype="uint8", shape=(2,), data=b"\1\2")}
    return b"".join(encode_run_file("final_norm", replace(record, **fields), tensors, {}))


@pytest.mark.parametrize(
    ("make", "status", "reason"),
    [
        (lambda paths: changed(paths, run="another"), 409, "wrong_run"),
        (lambda paths: changed(paths, hidden_size=999), 409, "wrong_fingerprint"),
        (lambda paths: b"".join(a_run_file(paths, "heads")), 400, "malformed"),
        (lambda paths: b"\0" * 100, 400, "malformed"),
        (lambda paths: changed(paths)[:-1] + b"\7", 422, "wrong_hash"),
        (lambda paths: changed(paths) + b"\7", 422, "wrong_length"),
        (lambda paths: changed(paths)[:-1], 422, "wrong_length"),
        (lambda paths: changed(paths)[:100], 422, "wrong_length"),
        (lambda paths: b"\7", 422, "wrong_length"),
    ],
    ids=["run", "fingerprint", "another file", "zeros", "bit", "long", "short", "in the header", "one byte"],
)
def test_what_is_not_this_run_s_file_is_refused(paths, make, status, reason):
    """Each fault has its reason, is counted, and leaves nothing behind."""
    with a_sink(paths) as sink:
        reply = ask(sink.port, "PUT", run_file_path("test", "final_norm"), make(paths))
        counted = metric(sink, "refusals_total", reason=reason)

    assert (status, reason, 1) == (reply.status, reply.content["reason"], counted)
    assert (None, []) == (stored(paths, "final_norm"), files_left(paths))


def test_a_file_over_its_limit_is_refused_unread(paths):
    """Each name has its own limit; what announces more is answered before it is sent."""
    assert MAX_RUN_FILE_BYTES.keys() == set(RUN_FILES)
    with a_sink(paths) as sink:
        for name, limit in MAX_RUN_FILE_BYTES.items():
            with connect(sink.port) as client:
                head = f"PUT {run_file_path('test', name)} HTTP/1.1\r\nHost: s\r\nContent-Length: {limit + 1}\r\n\r\n"
                client.sendall(head.encode())
                reply = reply_on(client)

            assert (413, "too_large") == (reply.status, reply.content["reason"])


@pytest.mark.parametrize("name", ["other", "run", "reference.safetensors", "..", "%2e%2e", ""])
@pytest.mark.parametrize("method", ["GET", "PUT", "HEAD", "DELETE"])
def test_a_name_outside_the_closed_set_is_not_found(paths, name, method):
    """Nothing else of the run directory can be read or written by a name."""
    with a_sink(paths) as sink:
        reply = ask(sink.port, method, run_file_path("test", name), b"12345678" if method == "PUT" else None)

    assert 404 == reply.status


def test_the_token_guards_run_files(paths):
    """Without the token there is neither reading nor writing."""
    with a_sink(paths, token="right") as sink:
        stranger = client_of(sink.port, token="wrong")
        calls = (
            lambda: stranger.has_file("heads"),
            lambda: stranger.fetch_file("heads"),
            lambda: stranger.put_file("heads", a_run_file(paths, "heads")),
        )
        for call in calls:
            with pytest.raises(SinkRefused) as refused:
                call()
            assert 401 == refused.value.status
        assert "committed" == client_of(sink.port, token="right").put_file("heads", a_run_file(paths, "heads"))


def test_a_short_disk_refuses_a_run_file_for_now(paths):
    """The reserve holds for run files, too, and the client may come again."""
    with a_sink(paths, reserve_bytes=1 << 60) as sink, pytest.raises(SinkUnavailable, match="disk_full"):
        client_of(sink.port).put_file("reference", a_run_file(paths, "reference"))

    assert stored(paths, "reference") is None


def test_an_upload_that_breaks_off_leaves_nothing(paths):
    """A client that goes away in mid-body is noticed, and its file is gone."""
    data = b"".join(a_run_file(paths, "heads"))
    head = f"PUT {run_file_path('test', 'heads')} HTTP/1.1\r\nHost: sink\r\nContent-Length: {len(data)}\r\n\r\n"
    with a_sink(paths) as sink:
        with connect(sink.port) as client:
            client.sendall(head.encode() + data[:-1])
        # the same sink still serves, and nothing is in the way
        assert "committed" == client_of(sink.port).put_file("heads", [data])

    assert (data, []) == (stored(paths, "heads"), files_left(paths))


def test_a_large_file_comes_back_whole(paths):
    """A file beyond any buffer is streamed by the sink and put together by the client."""
    record = paths.read_record()
    tensors = {"states": RawTensor(dtype="uint8", shape=(20_000_000,), data=bytes(range(250)) * 80_000)}
    pieces = encode_run_file("reference", record, tensors, {})

    with a_sink(paths) as sink:
        client = client_of(sink.port)
        client.put_file("reference", pieces)
        found = client.fetch_file("reference")

    assert b"".join(pieces) == found


def test_a_connection_that_was_given_a_file_is_ended(paths):
    """The answer says so, and the next request of the client goes over a new connection."""
    with a_sink(paths) as sink:
        client_of(sink.port).put_file("reference", a_run_file(paths, "reference"))
        connection = http.client.HTTPConnection(LOCALHOST, sink.port, timeout=20)
        connection.request("GET", run_file_path("test", "reference"))
        answer = connection.getresponse()
        answer.read()

        assert ("close", True) == (answer.getheader("Connection"), answer.isclosed())
        connection.close()


def test_a_file_is_never_half_there(paths):
    """Until its last byte has come and verifies, the name does not exist."""
    data = b"".join(a_run_file(paths, "reference"))
    head = f"PUT {run_file_path('test', 'reference')} HTTP/1.1\r\nHost: sink\r\nContent-Length: {len(data)}\r\n\r\n"

    with a_sink(paths) as sink, connect(sink.port) as client:
        client.sendall(head.encode() + data[:-1])
        wait_for(lambda: [f for f in paths.incoming.rglob("reference-*") if f.stat().st_size == len(data) - 1])
        before = stored(paths, "reference")
        client.sendall(data[-1:])
        status = reply_on(client).status

    assert (None, 201, data) == (before, status, stored(paths, "reference"))


def test_nothing_is_promised_before_it_is_durable(paths, monkeypatch):
    """The file is synced before it gets its name, and the name before the answer; also for who comes second."""
    order: list[str] = []  # a power cut can't be had in a test, so the real calls are watched

    def watched_fsync(descriptor, fsync=os.fsync):
        order.append("sync " + os.path.relpath(os.readlink(f"/proc/self/fd/{descriptor}"), paths.root))
        fsync(descriptor)

    def watched_link(source, target, link=os.link):
        order.append("link " + os.path.relpath(target, paths.root))
        link(source, target)

    with a_sink(paths) as sink:
        client_of(sink.port).put_file("heads", a_run_file(paths, "heads"))  # makes the folders
        monkeypatch.setattr(os, "fsync", watched_fsync)
        monkeypatch.setattr(os, "link", watched_link)
        client_of(sink.port).put_file("reference", a_run_file(paths, "reference"))
        order.append("answer")
        reply = ask(sink.port, "PUT", run_file_path("test", "reference"), b"".join(a_run_file(paths, "reference")))
        order.append(f"answer {reply.status}")

    first = ["sync incoming/sink/reference-1.part", "link reference.safetensors", "sync .", "answer"]
    link = "link reference.safetensors"
    second = ["sync incoming/sink/reference-2.part", link, "sync .", link, "sync .", "answer 200"]  # makes damaged/
    assert first + second == order

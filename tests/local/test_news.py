"""What of the services' logs reaches the terminal."""

from __future__ import annotations

import json

import pytest

from hiddenstream.local import news as news_module
from hiddenstream.local.news import News


@pytest.fixture
def said():
    """What was said."""
    return []


def write(log, *entries):
    with open(log, "a") as file:
        file.writelines(json.dumps(entry) + "\n" for entry in entries)


def test_errors_are_said_at_once_and_not_again(tmp_path, said):
    """An error is said with its facts; the same one is not repeated soon."""
    log = tmp_path / "worker-0.jsonl"
    news = News(said.append)
    write(log, *[{"level": "error", "event": "engine_died", "exit_code": -9}] * 3)

    news.read("worker-0", log)

    assert ["worker-0: engine died (exit_code: -9)"] == said


def test_only_a_wait_that_lasts_is_said(tmp_path, said, monkeypatch):
    """Services wait for each other when they start, which is no news; a wait of seconds is."""
    log = tmp_path / "producer.jsonl"
    news = News(said.append)
    entry = {"level": "warning", "event": "redis_waited_for", "message": "cannot reach Redis"}
    clock = iter([0.0, 1.0, 6.0, 7.0])
    monkeypatch.setattr(news_module.time, "monotonic", lambda: next(clock))
    heard = []
    for _ in range(4):
        write(log, entry)
        news.read("producer", log)
        heard.append(len(said))

    assert [0, 0, 1, 1] == heard
    assert ["producer: redis waited for (message: cannot reach Redis)"] == said


def test_a_torn_line_and_foreign_text_are_passed_over(tmp_path, said):
    """A line that is being written is read when it is whole; what is no JSON is none of ours."""
    log = tmp_path / "sink.jsonl"
    news = News(said.append)
    log.write_text('Traceback\n{"level": "error", ')
    news.read("sink", log)
    with open(log, "a") as file:
        file.write('"event": "sink_failed", "message": "no"}\n')
    news.read("sink", log)

    assert ["sink: sink failed (message: no)"] == said


def test_an_earlier_run_s_log_is_old_news(tmp_path, said):
    """What was logged before this run is skipped."""
    log = tmp_path / "sink.jsonl"
    write(log, {"level": "error", "event": "sink_failed"})
    news = News(said.append)
    news.skip(log)

    news.read("sink", log)

    assert [] == said


def test_the_page_s_address_is_noted(tmp_path, said):
    """Where the producer serves its page is kept, and said by whoever shows it."""
    log = tmp_path / "producer.jsonl"
    write(log, {"level": "info", "event": "status_page_served", "url": "http://127.0.0.1:8080/"})
    news = News(said.append)

    news.read("producer", log)

    assert "http://127.0.0.1:8080/" == news.status_url
    assert [] == said

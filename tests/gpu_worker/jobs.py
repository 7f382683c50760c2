"""Jobs that RQ finds by their dotted path."""

from __future__ import annotations

ran: list[bytes] = []


def note(payload: bytes) -> None:
    """Note that this ran."""
    ran.append(payload)


def fail(payload: bytes) -> None:
    """Note that this ran, and raise."""
    ran.append(payload)
    raise RuntimeError("this job fails")


class RunsWhenUnpickled:
    """What an attacker would put on the queue."""

    def __reduce__(self):
        return note, (b"unpickled",)

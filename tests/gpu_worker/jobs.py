"""What jobs could name."""

from __future__ import annotations

ran: list[bytes] = []


def note(payload: bytes) -> None:
    """Note that this ran."""
    ran.append(payload)


def fail(*_: object) -> None:
    """Note that this ran, which it must not."""
    ran.append(b"called by name")


class RunsWhenUnpickled:
    """What an attacker would put on the queue."""

    def __reduce__(self):
        return note, (b"unpickled",)

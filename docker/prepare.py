"""What must be there before the services start: their secrets and, where no MODEL is set, the demo's input.

Runs to its end at every `docker compose up`, and changes nothing that is there.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

SECRETS = Path("/secrets")
INPUTS = Path("/inputs")


def main() -> None:
    """Write what is missing."""
    keep_secret("sink_token", os.environ.get("SINK_TOKEN", ""))
    password = keep_secret("redis_password", os.environ.get("REDIS_PASSWORD", ""))
    write(SECRETS / "redis.conf", f"requirepass {password}\n")
    if os.environ.get("MODEL"):
        print("MODEL is set: no demo input is made", flush=True)
        return
    from demo.prepare import CONVERSATIONS, prepare

    prepare(INPUTS, conversations=int(os.environ.get("DEMO_CONVERSATIONS") or CONVERSATIONS))
    print("the demo's model and conversations are in the volume 'inputs'", flush=True)


def keep_secret(name: str, given: str) -> str:
    """Return a secret: as given, else as it was, else made now."""
    file = SECRETS / name
    secret = given or (file.read_text() if file.exists() else secrets.token_hex(24))
    if not secret.isalnum():
        raise SystemExit(f"{name}: use letters and digits only; it becomes part of a URL and of a configuration file")
    write(file, secret)
    return secret


def write(file: Path, text: str) -> None:
    """Write a file whole, readable by the services, which run as other users; only they mount the volume."""
    partial = file.with_suffix(".partial")
    partial.write_text(text)
    partial.chmod(0o444)
    partial.replace(file)


if __name__ == "__main__":
    main()

"""What must be there before the services start: secrets, volumes that they may write, and the demo's input.

Runs as root, with no right but to give files away, at every `docker compose up`. What is in order it leaves.
"""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path

SECRETS, INPUTS, RUNS = Path("/secrets"), Path("/inputs"), Path("/runs")
OWN_VOLUMES = (INPUTS, Path("/cache"), Path("/compile"))


def main() -> None:
    """Make what is missing."""
    model, data, out = (os.environ.get(name, "") for name in ("MODEL", "DATA", "OUT"))
    if bool(model) != bool(data):
        sys.exit("set MODEL and DATA both, for a run of your own, or neither, for the demo")
    keep_secret("sink_token", os.environ.get("SINK_TOKEN", ""))
    password = keep_secret("redis_password", os.environ.get("REDIS_PASSWORD", ""))
    write(SECRETS / "redis.conf", f"requirepass {password}\n")
    if not model:
        prepare_demo()
    owner, group = owner_of(os.environ["RUN_AS"])
    for volume in OWN_VOLUMES if out else (*OWN_VOLUMES, RUNS):
        give(volume, owner, group)
    if out:
        give_output_folder(out, owner, group)


def prepare_demo() -> None:
    """Make the demo's model and conversations."""
    from demo.prepare import CONVERSATIONS, prepare

    prepare(INPUTS, conversations=int(os.environ.get("DEMO_CONVERSATIONS") or CONVERSATIONS))
    print("the demo's model and conversations are in the volume 'inputs'", flush=True)


def keep_secret(name: str, given: str) -> str:
    """Return a secret: as given, else as it was, else made now."""
    file = SECRETS / name
    secret = given or (file.read_text() if file.exists() else secrets.token_hex(24))
    if not secret.isalnum():
        sys.exit(f"{name}: use letters and digits only; it becomes part of a URL and of a configuration file")
    write(file, secret)
    return secret


def write(file: Path, text: str) -> None:
    """Write a file whole, readable by the services, which run as other users; only they mount the volume."""
    if file.exists() and file.read_text() == text:
        return
    partial = file.with_suffix(".partial")
    partial.write_text(text)
    partial.chmod(0o444)
    partial.replace(file)


def owner_of(run_as: str) -> tuple[int, int]:
    """Return user and group of RUN_AS, as in 1000:1000."""
    user, _, group = run_as.partition(":")
    if not user.isdecimal() or not (group or user).isdecimal():
        sys.exit(f"RUN_AS={run_as}: give numbers, as in RUN_AS=1000:1000")
    return int(user), int(group or user)


def give(volume: Path, owner: int, group: int) -> None:
    """Give a volume with all in it to the services' user, unless it is theirs."""
    for path in (volume, *volume.rglob("*")):
        found = path.lstat()
        if (found.st_uid, found.st_gid) != (owner, group):
            os.chown(path, owner, group, follow_symlinks=False)


def give_output_folder(out: str, owner: int, group: int) -> None:
    """Give OUT to the services' user if Docker has just made it; somebody's own folder is left as it is."""
    found = RUNS.stat()
    if found.st_uid == owner or (found.st_gid == group and found.st_mode & 0o020) or found.st_mode & 0o002:
        return
    if found.st_uid == 0 and not any(RUNS.iterdir()):
        os.chown(RUNS, owner, group)
        return
    sys.exit(
        f"OUT={out} belongs to user {found.st_uid}, and the services run as user {owner}, who may not write there;"
        f" set RUN_AS={found.st_uid}:{found.st_gid} in .env"
    )


if __name__ == "__main__":
    main()

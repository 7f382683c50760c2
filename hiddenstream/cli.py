"""The ``hiddenstream`` command. Subcommands are imported when they are called, so ``status`` never loads torch."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from hiddenstream.chassis.settings import refuse_unknown_environment
from hiddenstream.contracts.errors import HiddenstreamError

# name: module of its main(arguments), its settings' class, what it does
COMMANDS = {
    "run": ("hiddenstream.local.run_command", "RunSettings", "the whole pipeline on this machine"),
    "plan": (
        "producer.plan_command",
        "PlanCommandFlags",
        "read the data, cut it into shards, show what that comes to",
    ),
    "produce": ("producer.produce", "ProduceSettings", "deliver a run's shards through Redis until all are stored"),
    "work": ("gpu_worker.work", "WorkerSettings", "take shards, run the model, send the states"),
    "sink": ("sink.serve", "SinkSettings", "receive shards and store them durably"),
    "status": ("hiddenstream.status_command", "StatusSettings", "how far a run is, from its directory alone"),
    "verify": ("hiddenstream.verify_command", "VerifySettings", "prove that a run is whole, to the last byte"),
}


def main() -> int:
    """Run the command line of this process; return its exit code."""
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0 if arguments else 2
    if arguments[0] not in COMMANDS:
        print(f"hiddenstream: there is no command {arguments[0]!r}\n\n{_overview()}", file=sys.stderr)
        return 2
    return run_command(arguments[0], arguments[1:])


def run_command(name: str, arguments: Sequence[str]) -> int:
    """Run one subcommand; errors of ours become one line and an exit code."""
    try:
        module = importlib.import_module(COMMANDS[name][0])
        refuse_unknown_environment(os.environ, _known_settings() if _has_own_variables() else [])
        code: int = module.main(arguments)
    except HiddenstreamError as error:
        print(f"hiddenstream {name}: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # whoever read our output has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        print(f"hiddenstream {name}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"hiddenstream {name}: interrupted", file=sys.stderr)
        return 130
    return code


def settings_of(name: str) -> type:
    """Return the settings' class of a command."""
    module, kind, _ = COMMANDS[name]
    settings: type = getattr(importlib.import_module(module), kind)
    return settings


def _known_settings() -> list[type]:
    return [settings_of(name) for name in COMMANDS]


def _has_own_variables() -> bool:
    return any(name.startswith("HIDDENSTREAM_") for name in os.environ)


def _overview() -> str:
    lines = [f"  {name:<9} {about}" for name, (_, _, about) in COMMANDS.items()]
    return "\n".join(
        [
            "hiddenstream: hidden states of a frozen language model, for every token of a corpus, on disk",
            "",
            *lines,
            "",
            "hiddenstream COMMAND --help says more. Exit codes: 0 complete, 1 error, 2 usage, 3 complete with",
            "quarantined samples, 4 not complete.",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())

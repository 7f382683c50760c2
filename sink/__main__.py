"""``python -m sink`` equals ``hiddenstream sink``."""

import sys

from hiddenstream.cli import run_command

sys.exit(run_command("sink", sys.argv[1:]))

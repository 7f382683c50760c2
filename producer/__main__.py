"""``python -m producer`` equals ``hiddenstream produce``."""

import sys

from hiddenstream.cli import run_command

sys.exit(run_command("produce", sys.argv[1:]))

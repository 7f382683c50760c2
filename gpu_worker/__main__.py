"""``python -m gpu_worker`` equals ``hiddenstream work``."""

import sys

from hiddenstream.cli import run_command

sys.exit(run_command("work", sys.argv[1:]))

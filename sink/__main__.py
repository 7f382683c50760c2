"""``python -m sink``."""

import sys

from sink.serve import main

sys.exit(main())

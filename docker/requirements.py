"""Print the requirements that pyproject.toml names: those of the package, or those of one extra.

python requirements.py PYPROJECT [EXTRA]

An image installs them before it copies the code, so that a change of code does not install everything anew.
"""

from __future__ import annotations

import sys
import tomllib

with open(sys.argv[1], "rb") as file:
    project = tomllib.load(file)["project"]
wanted = project["optional-dependencies"][sys.argv[2]] if len(sys.argv) > 2 else project["dependencies"]
print(*(line for line in wanted if not line.startswith(project["name"])), sep="\n")

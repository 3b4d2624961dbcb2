"""The soak: files and messages at a steady rate, kills, and a look at everything that could grow."""

import sys
from pathlib import Path

# the servers and the drivers that can be killed are the tests' own
sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))

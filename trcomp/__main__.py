"""`python -m trcomp` is the command `trcomp`."""

from __future__ import annotations

import sys

from trcomp.cli import main

if __name__ == "__main__":
    sys.exit(main())

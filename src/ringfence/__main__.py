"""`python -m ringfence`: the same as the `ringfence` command."""

from __future__ import annotations

import sys

from ringfence.interfaces.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

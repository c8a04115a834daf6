"""`python -m ringfence`: the same as the `ringfence` command."""

from __future__ import annotations

from ringfence.interfaces.cli.main import command

if __name__ == "__main__":
    command()

"""Entry point of `python -m flows.cli`, equivalent to `flywheel`."""

from __future__ import annotations

from flows.cli import main

if __name__ == "__main__":
    main()

"""A picture of a home's report, for pages: `python docs/picture.py HOME [--to docs/report.png]`, drawn by Chromium without a network."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from flows.report import build_report
from warehouse import Lake

TO = Path(__file__).parent / "report.png"
WIDTH, HEIGHT = 1280, 1000


def draw(home: Path, to: Path) -> None:
    """Write the report of `home` anew, and the top of it as a PNG of `WIDTH` x `HEIGHT` pixels."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("picture.py: there is no chromium on this machine; install it, or open the report in a browser.")
    with Lake(home, read_only=True) as lake:
        page = build_report(lake, home / "report.html")
    with TemporaryDirectory() as profile:
        flags = ("headless=new", "no-sandbox", "disable-gpu", "hide-scrollbars", "virtual-time-budget=5000", f"user-data-dir={profile}")
        where = (f"--screenshot={to.resolve()}", f"--window-size={WIDTH},{HEIGHT}", page.resolve().as_uri())
        subprocess.run([chromium, *(f"--{flag}" for flag in flags), *where], check=True, capture_output=True, timeout=120)


def main() -> None:
    """Draw what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("home", type=Path)
    parser.add_argument("--to", type=Path, default=TO)
    options = parser.parse_args()
    draw(options.home, options.to)
    print(options.to)


if __name__ == "__main__":
    main()

"""Takes the pictures in docs/ of pages that `posgap demo` made, in a headless Chromium.

    python benchmarks/screenshots.py [runs/demo]

sweep-report.png is the report of base and distilled model, sweep-examples.png the map of the base's examples, and
comparison-examples.png both models side by side, and their difference.
"""

import argparse
import sys
from pathlib import Path

from report import ROOT

sys.path.append(str(ROOT / "tests"))
from chromium import Page, browser, program

WIDTH = 1240


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("demo", nargs="?", type=Path, default=ROOT / "runs" / "demo")
    options = parser.parse_args()
    if not program():
        raise SystemExit("no Chromium on PATH")
    with browser() as page:
        report_pictures(page, options.demo.resolve())


def report_pictures(page: Page, demo: Path) -> None:
    runs = "seed-*/pipeline/*"
    base = _newest(demo, f"{runs}/merge/out/sweep.html")
    compared = _newest(demo, f"{runs}/*/compare-*/out/comparison.html")
    for name, file, tab, height in (
        ("sweep-report", demo / "curves.html", "result", 1180),
        ("sweep-examples", base, "examples", 900),
        ("comparison-examples", compared, "examples", 900),
    ):
        page.open("about:blank#")
        page.open(f"{file.as_uri()}#{tab}", WIDTH, height)
        page.wait("document.getElementById('explorer').dataset.ready === 'yes'")
        page.settle()
        page.screenshot(ROOT / "docs" / f"{name}.png")


def _newest(folder: Path, pattern: str) -> Path:
    """The newest file of a pattern."""
    return max(folder.glob(pattern), key=lambda file: file.stat().st_mtime)


if __name__ == "__main__":
    main()

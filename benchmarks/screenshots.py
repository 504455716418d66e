"""Takes the pictures in docs/ of pages that posgap made, in a headless Chromium.

    python benchmarks/screenshots.py [runs/demo] [--look runs/smollm2]

Of the demo, sweep-examples.png is the map of the base's examples, and comparison-examples.png both models side by
side, and their difference. Of a first look, `posgap sweep MODEL`, sweep-report.png is the page.
"""

import argparse
import sys
from pathlib import Path

from report import ROOT

sys.path.append(str(ROOT / "tests" / "helpers"))
from chromium import Page, browser, program

WIDTH = 1240


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("demo", nargs="?", type=Path, default=ROOT / "runs" / "demo")
    parser.add_argument("--look", type=Path, help="folder of a first look; the demo's pictures are then left")
    options = parser.parse_args()
    if not program():
        raise SystemExit("no Chromium on PATH")
    with browser() as page:
        if options.look:
            picture(page, "sweep-report", options.look.resolve() / "sweep.html", "result", 900)
        else:
            demo_pictures(page, options.demo.resolve())


def demo_pictures(page: Page, demo: Path) -> None:
    runs = "seed-*/pipeline/*"
    base = _newest(demo, f"{runs}/merge/out/sweep.html")
    compared = _newest(demo, f"{runs}/*/compare-*/out/comparison.html")
    picture(page, "sweep-examples", base, "examples", 900)
    picture(page, "comparison-examples", compared, "examples", 900)


def picture(page: Page, name: str, file: Path, tab: str, height: int) -> None:
    """Takes a tab of a page, so many pixels high, as `docs/NAME.png`."""
    page.open("about:blank#")
    page.open(f"{file.as_uri()}#{tab}", WIDTH, height)
    page.wait("document.getElementById('explorer').dataset.ready === 'yes'")
    page.screenshot(ROOT / "docs" / f"{name}.png")


def _newest(folder: Path, pattern: str) -> Path:
    """The newest file of a pattern."""
    return max(folder.glob(pattern), key=lambda file: file.stat().st_mtime)


if __name__ == "__main__":
    main()

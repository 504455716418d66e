"""Takes the pictures of pages that stand in docs/, of what `posgap demo` or `make docs` made, in a headless Chromium.

    python benchmarks/screenshots.py [runs/demo]
    python benchmarks/screenshots.py --site [build/site]

sweep-report.png is the report of base and distilled model, sweep-examples.png the map of the base's examples, and
comparison-examples.png both models side by side, and their difference. With --site it is three pages of the
documentation, as a desk and as a phone show them: site-index-1400.png, site-index-390.png and so on.
"""

import argparse
import sys
from pathlib import Path

from report import ROOT

sys.path.append(str(ROOT / "tests"))
from chromium import Page, browser, program

WIDTH = 1240
SITE = ("index", "rag", "commands")  # the start, a guide, a page of reference
WINDOWS = ((1400, 900), (390, 844))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("demo", nargs="?", type=Path, default=ROOT / "runs" / "demo")
    parser.add_argument(
        "--site", nargs="?", type=Path, const=ROOT / "build" / "site", help="of the documentation's site"
    )
    options = parser.parse_args()
    if not program():
        raise SystemExit("no Chromium on PATH")
    with browser() as page:
        if options.site:
            site_pictures(page, options.site.resolve())
        else:
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


def site_pictures(page: Page, site: Path) -> None:
    for name in SITE:
        for width, height in WINDOWS:
            page.open((site / f"{name}.html").as_uri(), width, height)
            page.settle()
            page.screenshot(ROOT / "docs" / f"site-{name}-{width}.png")


def _newest(folder: Path, pattern: str) -> Path:
    """The newest file of a pattern."""
    return max(folder.glob(pattern), key=lambda file: file.stat().st_mtime)


if __name__ == "__main__":
    main()

"""Takes the pictures in docs/ that posgap drew, and those of its pages, in a headless Chromium.

    python benchmarks/screenshots.py [runs/demo] [--transcripts build/transcripts]

Of the demo, position-gap.png has the curves, sweep-report.png and sweep-examples.png are the page of the base, and
comparison-examples.png both models side by side. Of the run of the guides' commands (`transcripts.py`), length-map.png
is of the model, gate-refused.png a verdict, and mlflow-version.png the version in MLflow. rag-curve.png and
rag-mitigate.png are of a made log (`READER`, `RAG_APP`).
"""

import argparse
import base64
import json
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from report import ROOT

sys.path.append(str(ROOT / "tests" / "helpers"))
from chromium import Page, browser, program
from mlflow_server import serving

WIDTH = 1240
RAG_APP = """def answer(question, passages):
    \"\"\"Reads the first and the last passage alone.\"\"\"
    name = question.split()[-1].strip("?")
    return next((p.text for p in (passages[0], passages[-1]) if name in p.text), "unknown")
"""

READER = """import zlib

CHANCES = 95, 80, 62, 50, 42, 40, 42, 50, 60, 75  # in percent, to read a passage at each position


def answer(question, passages):
    name = question.split()[-1].strip("?")
    place = next(place for place, passage in enumerate(passages) if name in passage.text)
    return passages[place].text if zlib.crc32(question.encode()) % 100 < CHANCES[place] else "unknown"
"""
BASELINES = "as-retrieved,oracle,random"
LENGTHS = "60,100,140,180,220"  # in tokens; the model was trained on 20 records, which take 86


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("demo", nargs="?", type=Path, default=ROOT / "runs" / "demo")
    parser.add_argument("--transcripts", type=Path, default=ROOT / "build" / "transcripts")
    options = parser.parse_args()
    if not program():
        raise SystemExit("no Chromium on PATH")
    with browser() as page, tempfile.TemporaryDirectory() as folder:
        demo_pictures(page, options.demo.resolve(), Path(folder))
        transcripts = options.transcripts.resolve()
        mlflow_picture(page, transcripts, Path(folder))
        sweep = ["--model", "small", "--task", "kv", "--examples", "eval.jsonl.gz", "--max-new-tokens", "3"]
        sweep += ["--lengths", LENGTHS, "--depths", "5", "--label", "small"]
        drawn(transcripts, "length-map", "lengths.png", *sweep)
        picture(page, "gate-refused", transcripts / "run/refused/gate.html", "verdict", 1010)
        write_log(Path(folder))
        sweep = ["python:reader:answer", "--examples", "log.jsonl", "--n-docs", "10", "--baselines", BASELINES]
        drawn(Path(folder), "rag-curve", "sweep.png", *sweep, "--label", "the simulated reader")
        picture(page, "rag-mitigate", compare_on_a_log(Path(folder)), "change", 1010)


def demo_pictures(page: Page, demo: Path, folder: Path) -> None:
    """Takes the demo's curves, the pages of its base, and of the comparison with it."""
    shutil.copy(demo / "curves.png", ROOT / "docs" / "position-gap.png")
    runs = "seed-*/pipeline/*"
    base = _newest(demo, f"{runs}/merge/out/sweep.html")
    trained = _newest(demo, f"{runs}/*/merge-*/out/sweep.html")
    run(folder, "compare", str(base.parent), str(trained.parent), "--out", "compared")
    picture(page, "sweep-report", base, "result", 900)
    picture(page, "sweep-examples", base, "examples", 900)
    picture(page, "comparison-examples", folder / "compared/comparison.html", "examples", 900)


def mlflow_picture(page: Page, transcripts: Path, folder: Path) -> None:
    """Takes the page in MLflow of the version that docs/registry.md promotes, without what stands left and right."""
    with serving(folder, str(folder), transcripts / "mlflow.db") as (address, _):
        page.open(f"{address}/#/models/my-model/versions/1", 1700, 1250)
        page.wait("document.body.innerText.includes('Position gap')")
        page.js("new Promise((done) => setTimeout(done, 5000))")
        clip = {"x": 200, "y": 10, "width": 1080, "height": 1240, "scale": 0.8}
        shown = page.call("Page.captureScreenshot", clip=clip)
        (ROOT / "docs" / "mlflow-version.png").write_bytes(base64.b64decode(shown["data"]))


def drawn(folder: Path, name: str, file: str, *options: str) -> None:
    """Runs a sweep in `folder`, and takes its picture `file` as `docs/NAME.png`."""
    run(folder, "sweep", *options, "--out", name, "--force")
    shutil.copy(folder / name / file, ROOT / "docs" / f"{name}.png")


def run(folder: Path, *words: str) -> None:
    """Runs posgap in `folder`."""
    subprocess.run([str(Path(sys.executable).with_name("posgap")), *words], cwd=folder, check=True)


def write_log(folder: Path) -> None:
    """Writes a made retrieval log of 200 questions with ten passages each, and the applications that answer them."""
    draw = random.Random(0)
    rows = []
    for number in range(200):
        names = [f"N{number}x{other}" for other in range(10)]
        passages = [f"{name} lives in house {draw.randrange(100, 1000)}." for name in names]
        rank = min(int(draw.expovariate(0.6)), 9)
        passages.insert(rank, passages.pop(0))
        answer = passages[rank].split()[-1].strip(".")
        rows.append({"question": f"In which house lives {names[0]}?", "answers": [answer], "contexts": passages})
    (folder / "log.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    (folder / "edges.py").write_text(RAG_APP, encoding="utf-8")
    (folder / "reader.py").write_text(READER, encoding="utf-8")


def compare_on_a_log(folder: Path) -> Path:
    """Compares mitigations of `RAG_APP` on the log, and returns the page."""
    options = ["--task", "rag", "--examples", "log.jsonl", "--n-docs", "8", "--budget", "5m", "--out", "mitigate"]
    run(folder, "mitigate", "--model", "python:edges:answer", *options)
    return folder / "mitigate" / "mitigate.html"


def picture(page: Page, name: str, file: Path, tab: str, height: int) -> None:
    """Takes a tab of a page, so many pixels high, as `docs/NAME.png`."""
    page.open("about:blank#")
    page.open(f"{file.as_uri()}#{tab}", WIDTH, height)
    page.wait("!document.getElementById('explorer') || document.getElementById('explorer').dataset.ready === 'yes'")
    page.screenshot(ROOT / "docs" / f"{name}.png")


def _newest(folder: Path, pattern: str) -> Path:
    """The newest file of a pattern."""
    return max(folder.glob(pattern), key=lambda file: file.stat().st_mtime)


if __name__ == "__main__":
    main()

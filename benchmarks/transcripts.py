"""Runs the console blocks of pages again, one after another, and puts what they print now into the pages.

    python benchmarks/transcripts.py first-look first-log first-gate rag --wheel WHEEL --model FOLDER [--write]
    python benchmarks/transcripts.py distillation gate registry --demo runs/demo [--write]
    python benchmarks/transcripts.py pretrained [--write]

With `--wheel` a shell runs them in an empty folder, and posgap is what the page's own first command installs of the
wheel; `--model` stands in for a model of the hub, under the name `small`. With `--demo` they run in a folder that has
the demo's model as `small` and its examples as `train.jsonl.gz` and `eval.jsonl.gz`. Commands that name a file below
`~/` or an address of a server stay as they are. With neither option all run in this clone.

The page says what is shown. A block with `...` shows the lines that it has, with new figures; of others all lines, or
the first and last of many. Blocks of `csv` and `python` are files, whose name the text before them gives. Where a
command no longer prints a line of the page, that is said, and `--write` ends with exit code 1 and leaves the page.
Without `--write` any other line is such a difference too, unless figures alone differ.
"""

import argparse
import difflib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path

from report import ROOT, machine

from posgap.foundation.files import atomic

SHOWN = 16  # lines of what a command says, at most
LEFT_OUT = "..."
BLOCK = re.compile(r"^```console\n\$ ([^\n]+)\n(.*?)^```\n(\n\d+ s, exit code \d+\.\n)?", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"`([\w.]+)`[^`]*\n```(?:csv|python)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
WHEN = re.compile(r"^Run again by `benchmarks/transcripts.py` on .*$", re.MULTILINE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("pages", nargs="+", help="names of pages in docs/, whose commands run in one folder")
    parser.add_argument("--wheel", type=Path, help="posgap as the first command installs it")
    parser.add_argument("--model", type=Path, help="folder of the model that the page calls `small`")
    parser.add_argument("--demo", type=Path, help="the demo's folder, whose model and examples the page uses")
    parser.add_argument("--only", default="", help="run only commands in which this stands; the page's date stays")
    parser.add_argument("--write", action="store_true", help="write the page, rather than show it")
    arguments = parser.parse_args()
    pages = [ROOT / "docs" / f"{page}.md" for page in arguments.pages]
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "MLFLOW", "POSGAP"))}
    with tempfile.TemporaryDirectory(prefix="transcripts-") as folder:
        work, programs = ROOT, Path(sys.executable).parent
        if arguments.wheel:
            work = Path(folder) / "work"
            work.mkdir()
            programs = work / "env" / "bin"
            shutil.copy(arguments.wheel, work)
            shutil.copytree(arguments.model, work / "small")
            environment |= {"POSGAP_CACHE": folder, "PIP_CONSTRAINT": str(ROOT / "constraints.txt")}
            for page in pages:
                for name, text in FILE.findall(page.read_text(encoding="utf-8")):
                    (work / name).write_text(text, encoding="utf-8")
        if arguments.demo:
            work = workspace(arguments.demo, ROOT / "build" / "transcripts")
            environment |= {"POSGAP_CACHE": folder, "MLFLOW_TRACKING_URI": "sqlite:///mlflow.db"}
        environment["PATH"] = f"{programs}:{os.defpath}"
        leave = ("~/", "http://", "s3://", "...") if work != ROOT else ()
        is_stale = False
        for page in pages:
            before = page.read_text(encoding="utf-8")
            text, missing = again(before, work, environment, arguments.only, leave)
            if not arguments.write:
                missing += [line for line in difflib.ndiff(form(before), form(text)) if line[0] in "+-"]
            for line in missing:
                print(f"{page.name}: differs: {line}", file=sys.stderr)
            is_stale = is_stale or bool(missing)
            if not arguments.write:
                print(text)
            elif not missing:
                with atomic(page) as partial:
                    partial.write_text(text, encoding="utf-8")
    if is_stale:
        raise SystemExit("a page shows lines that posgap no longer prints: take them out, or mend what prints them")


def workspace(demo: Path, work: Path) -> Path:
    """Copies the demo's model and examples into a new folder, which `screenshots.py` reads, by the names of pages."""
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    (seed,) = demo.glob("seed-0-*")
    shutil.copytree(seed / "model", work / "small")
    for name in ("train", "eval"):
        shutil.copy(next(seed.glob(f"{name}-*.jsonl.gz")), work / f"{name}.jsonl.gz")
    return work


def form(page: str) -> list[str]:
    """Returns what the commands of a page print, without the figures of a run, and their exit codes."""
    lines = []
    for command, said, ended in BLOCK.findall(page):
        lines += [f"$ {command}", *(like(line) for line in said.splitlines()), ended.partition("exit code")[2].strip()]
    return lines


def again(
    page: str, work: Path, environment: Mapping[str, str], only: str = "", leave: Sequence[str] = ()
) -> tuple[str, list[str]]:
    """Runs the commands of a page, except those with a text of `leave`, and returns the page with what they print now.

    Also returns lines of blocks with `...` that are no longer printed. The page's date becomes today's, unless `only`
    some commands were run.
    """
    gone: list[str] = []

    def run(block: re.Match[str]) -> str:
        command, before, ended = block.groups()
        if only not in command or any(text in command for text in leave):
            return block[0]
        print(f"$ {command}", file=sys.stderr, flush=True)
        began = time.monotonic()
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=work,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        said = done.stdout.replace(f"{work.parent}/", "/").replace(str(Path.home()), "~")
        text, missing = shown(before.splitlines(), list(lines_of(said)))
        gone.extend(missing)
        end = f"\n{time.monotonic() - began:.0f} s, exit code {done.returncode}.\n" if ended else ""
        return f"```console\n$ {command}\n{text}```\n{end}"

    when = f"Run again by `benchmarks/transcripts.py` on {date.today()}, {machine()}."
    text = BLOCK.sub(run, page)
    return text if only else WHEN.sub(when, text), gone


def lines_of(said: str) -> Iterator[str]:
    """What a person sees at the end: of lines that replaced each other the last, and no colours."""
    for line in said.split("\n"):
        if (plain := re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", line.rpartition("\r")[2])).strip():
            yield plain


def like(line: str) -> str:
    """A line without what another run or machine has of its own: figures, bars, and where they are best and worst."""
    bars = set("█▏▎▍▌▋▊▉")
    words = [word for word in line.split() if not set(word) <= bars and word not in ("best", "worst")]
    position = words.pop(0) if bars & set(line) else ""  # by which a curve's line is found
    return position + re.sub(r"[+-]?\d[\d.,]*(?<![.,])", "#", " ".join(words))


def shown(before: Sequence[str], now: Sequence[str]) -> tuple[str, list[str]]:
    """The lines of a block that showed `before` of a command that prints `now`, and those of `before` that it no longer
    prints."""
    if LEFT_OUT not in before:
        half = SHOWN // 2
        lines = [*now[:half], LEFT_OUT, *now[-half:]] if len(now) > SHOWN else now
        return "".join(f"{line}\n" for line in lines), []
    lines, missing, at = list[str](), list[str](), 0
    for line in before:
        if line == LEFT_OUT or not line:
            continue
        found = next((i for i in range(at, len(now)) if like(now[i]) == like(line)), None)
        if found is None:
            missing.append(line)
            continue
        lines += [*([LEFT_OUT] if found > at else []), now[found]]
        at = found + 1
    lines += [LEFT_OUT] if at < len(now) else []
    return "".join(f"{line}\n" for line in lines), missing


if __name__ == "__main__":
    main()

"""A new user's first hour, walked from a wheel in an environment that has nothing else: docs/transcript.md.

    python benchmarks/first_hour.py --wheel build/dist/posgap-*.whl --model FOLDER [--write]

Every command of the three ways of docs/index.md is run as it stands there, by a shell in an empty folder, and what it
shows is kept, the middle of what is long left out. `--model` stands in for the models of the hub that docs/index.md
names, under the name `small`.
"""

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import date
from pathlib import Path

from report import ROOT

from posgap.foundation.files import atomic

SHOWN = 24  # lines of what a command says, at most
LOG = """\
question,answer,rank,passage
Who got the first Nobel Prize in Physics?,Wilhelm Röntgen,1,Marie Curie shared the prize in 1903.
Who got the first Nobel Prize in Physics?,Wilhelm Röntgen,2,Wilhelm Röntgen received it in 1901.
Who got the first Nobel Prize in Physics?,Wilhelm Röntgen,3,The prize is awarded in Stockholm.
"""
IN_PYTHON = """\
import posgap

swept = posgap.sweep("small", "kv.jsonl.gz", task="kv", n_docs=20)
print(swept.gap, swept.mean)
swept.report("small.html")
"""
WAYS = {
    "A laptop and a small model": [
        "posgap doctor",
        "posgap data make kv --n-examples 40 --out made.jsonl.gz",
        "posgap data import --format litm-kv --input made.jsonl.gz --key-digits 2 --value-digits 1 --out kv.jsonl.gz",
        "posgap sweep --task kv --examples kv.jsonl.gz --n-docs 20 --model small --label small --out run/small",
        "posgap sweep --task kv --examples kv.jsonl.gz --n-docs 20 --model small --label small --out run/small",
        "posgap plan sweep --detect 3",
        "python first.py",
    ],
    "One GPU and your own retrieval log": [
        "posgap sweep --task rag --examples log.csv --n-docs 3 --model small --out run/rag",
        "posgap mitigate --task kv --examples kv.jsonl.gz --n-docs 20 --model small --budget 2m --out run/mitigate",
    ],
    "A team that wants a gate": [
        "posgap check --model small --task kv --examples kv.jsonl.gz --max-gap 10 --junit check.xml --out run/check",
    ],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--wheel", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True, help="folder of a small model")
    parser.add_argument("--write", action="store_true", help="write docs/transcript.md")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="first-hour-") as folder:
        text = "\n".join(page(Path(folder), arguments.wheel.resolve(), arguments.model.resolve()))
    print(text)
    if arguments.write:
        with atomic(ROOT / "docs" / "transcript.md") as partial:
            partial.write_text(text, encoding="utf-8")


def page(folder: Path, wheel: Path, model: Path) -> Iterator[str]:
    """The lines of the page, which come as the commands end."""
    yield f"""\
# The first hour: a transcript

Written by `benchmarks/first_hour.py` on {date.today()}, {os.cpu_count()} CPU cores, Python {platform.python_version()}:
the [three ways in](index.md), walked with the wheel in an environment that has nothing else. `small` is a tiny model
that was trained to look up values by keys, in place of one from the hub. It cannot answer questions in words, so the
retrieval log shows how the command goes and not what it finds. A few lines of long outputs are kept. Of the packages,
two are pip and setuptools, which every environment has.

## Installation
"""
    environment = folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    work = folder / "work"
    work.mkdir()
    shutil.copytree(model, work / "small")
    (work / "log.csv").write_text(LOG, encoding="utf-8")
    (work / "first.py").write_text(IN_PYTHON, encoding="utf-8")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "MLFLOW", "POSGAP"))}
    kept |= {
        "PATH": f"{environment / 'bin'}:{os.defpath}",
        "VIRTUAL_ENV": str(environment),
        "POSGAP_CACHE": str(folder),
    }
    pip = f"{environment}/bin/pip --disable-pip-version-check install --quiet --constraint {ROOT / 'constraints.txt'}"
    sizes, seconds = [], []
    for what in ("torch", str(wheel)):
        began = time.monotonic()
        subprocess.run(f"{pip} {what}", shell=True, check=True, cwd=work)
        seconds.append(time.monotonic() - began)
        (packages,) = environment.glob("lib/python*/site-packages")
        number = len(list(packages.glob("*.dist-info")))
        sizes.append((number, sum(file.stat().st_size for file in packages.rglob("*") if not file.is_symlink())))
    yield "| | packages | MB | seconds |\n|---|---:|---:|---:|"
    for what, (number, size), spent in zip(("torch alone", "with posgap"), sizes, seconds):
        yield f"| {what} | {number} | {size / 1e6:,.0f} | {spent:.0f} |"
    for way, commands in WAYS.items():
        yield f"\n## {way}\n"
        if "log.csv" in " ".join(commands):
            yield f"`log.csv` holds\n\n```csv\n{LOG}```\n"
        for command in commands:
            if command.endswith("first.py"):
                yield f"`first.py` holds\n\n```python\n{IN_PYTHON}```\n"
            began = time.monotonic()
            done = subprocess.run(
                ["bash", "-c", command], cwd=work, env=kept, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
            spent = time.monotonic() - began
            said = shown(done.stdout.replace(str(folder), ""))
            yield f"```console\n$ {command}\n{said}```\n\n{spent:.0f} s, exit code {done.returncode}.\n"
    written = sorted(file.relative_to(work).as_posix() for file in work.glob("*"))
    yield f"In the folder there are now {', '.join(f'`{name}`' for name in written)}."


def shown(said: str) -> str:
    """What a person sees at the end: of lines that replaced each other the last, of many lines the first and last."""
    lines = [re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", line.rpartition("\r")[2]) for line in said.split("\n")]
    lines = [line for line in lines if line.strip()]
    if len(lines) > SHOWN:
        lines = [*lines[: SHOWN // 2], "...", *lines[-SHOWN // 2 :]]
    return "".join(f"{line}\n" for line in lines)


if __name__ == "__main__":
    main()

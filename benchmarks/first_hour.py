"""A new user's first hour, walked from a wheel in an environment that has nothing else: a section of docs/steps.md.

    python benchmarks/first_hour.py --wheel build/dist/posgap-*.whl --model FOLDER [--write]

Every command of WAYS is run by a shell in an empty folder, and what it shows is kept, the middle of what is long left
out. `--model` stands in for a model of the hub, under the name `small`.
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

from report import ROOT, write_section

SHOWN = 16  # lines of what a command says, at most
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
# The section as it is written, but for its head and for what follows each command, which is a line that begins with $.
WAYS = f"""
### A laptop and a small model

`posgap doctor` says what your machine can do, and what to install for the rest.

$ posgap doctor

Make forty questions. A prompt holds records of a key and a value, in JSON, and asks for the value of one key.

$ posgap data make kv --n-examples 40 --out made.jsonl.gz

Turn them into examples. Two options cut the digits for the tiny model; leave them out for yours.

$ posgap data import --format litm-kv --input made.jsonl.gz --key-digits 2 --value-digits 1 --out kv.jsonl.gz

Ask the model each question with the answer at every one of 20 positions. The *mean* is the accuracy over all positions,
in percent. The *gap* is the accuracy at the best position minus that at the worst, in points, with its 95 % interval.

$ posgap sweep --task kv --examples kv.jsonl.gz --n-docs 20 --model small --label small --out run/small

Open `run/small/sweep.html` for the curve and every single answer; it needs no network. The same command again does
nothing:

$ posgap sweep --task kv --examples kv.jsonl.gz --n-docs 20 --model small --label small --out run/small

With forty examples the interval is wide. How many does it take to see a gap of 3 points?

$ posgap plan sweep --detect 3

In Python the same sweep is a call. `first.py` holds

```python
{IN_PYTHON}```

$ python first.py

### One GPU and your own retrieval log

Write what your retriever returned into a table, `log.csv`, with a row for each passage. These lines only show the
layout: a log should hold some hundred questions.

```csv
{LOG}```

A sweep moves the relevant passages through the prompt:

$ posgap sweep --task rag --examples log.csv --n-docs 3 --model small --out run/rag

Where the gap is large, try the remedies that need no training, within the time that you give:

$ posgap mitigate --task kv --examples kv.jsonl.gz --n-docs 20 --model small --budget 2m --out run/mitigate

### A team that wants a gate

One command of any CI sweeps and judges. Its exit code is the [verdict](gate.md#what-it-says).

$ posgap check --model small --task kv --examples kv.jsonl.gz --max-gap 10 --junit check.xml --out run/check
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--wheel", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True, help="folder of a small model")
    parser.add_argument("--write", action="store_true", help="write the section of docs/steps.md")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="first-hour-") as folder:
        text = "\n".join(page(Path(folder), arguments.wheel.resolve(), arguments.model.resolve()))
    if arguments.write:
        write_section("steps", "first-hour", text)
    else:
        print(text)


def page(folder: Path, wheel: Path, model: Path) -> Iterator[str]:
    """The lines of the page, which come as the commands end."""
    yield f"""\
## The first hour

Written by `benchmarks/first_hour.py` on {date.today()}, {os.cpu_count()} cores, Python {platform.python_version()},
with the wheel in an environment that has nothing else. `small` is a tiny model that was trained to look up values by
keys; take one from the hub, like `Qwen/Qwen3-0.6B`. It cannot answer questions in words, so the retrieval log shows how
the command goes and not what it finds. Of the packages, two are pip and setuptools, which every environment has.
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
    for line in WAYS.splitlines():
        yield answered(line.removeprefix("$ "), work, kept) if line.startswith("$ ") else line
    written = sorted(file.relative_to(work).as_posix() for file in work.glob("*"))
    yield f"\nIn the folder there are now {', '.join(f'`{name}`' for name in written)}."


def answered(command: str, work: Path, environment: dict[str, str]) -> str:
    """A command as it stands on the page, and what came of it."""
    began = time.monotonic()
    done = subprocess.run(
        ["bash", "-c", command], cwd=work, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    said = shown(done.stdout.replace(str(work.parent), ""))
    return f"```console\n$ {command}\n{said}```\n\n{time.monotonic() - began:.0f} s, exit code {done.returncode}."


def shown(said: str) -> str:
    """What a person sees at the end: of lines that replaced each other the last, of many lines the first and last."""
    lines = [re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", line.rpartition("\r")[2]) for line in said.split("\n")]
    lines = [line for line in lines if line.strip()]
    if len(lines) > SHOWN:
        lines = [*lines[: SHOWN // 2], "...", *lines[-SHOWN // 2 :]]
    return "".join(f"{line}\n" for line in lines)


if __name__ == "__main__":
    main()

"""What the scripts that write sections of the pages in docs/ share: sections, their rows in docs/figures.md, tables."""

import json
import os
import platform
import re
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from statistics import mean, stdev

from posgap.foundation.files import atomic

ROOT = Path(__file__).resolve().parents[1]
FIGURES = ROOT / "docs" / "figures.md"
_COLUMNS = ("section", "command", "takes", "date", "machine", "spread")
_HEADS = {
    "results": """\
# Results

What posgap finds and mends, measured on models that were trained from scratch for it. Every section is written by the
script that it names; do not edit. [One page](figures.md) lists command, time, day, machine and spread of each.

Accuracy is in points. The gap is the best minus the worst of all placements swept. Where several seeds ran, cells are
mean ± standard deviation over seeds. Each seed is another base model, trained from scratch, with data of its own.

Sections of 21 November 2026 (distillation, scaling, the tiny model in the rollout) are of the training engine before
it was rewritten on the 22nd, and were not run again since: methods, losses and numbers of updates are the same.
""",
    "benchmarks": """\
# Benchmarks

What posgap costs in time and memory. Every section is written by the script that it names; do not edit. [One
page](figures.md) lists command, time, day, machine and spread of each. Ratios are of two runs side by side on one
machine, each in a process of its own where memory is compared.
""",
}


def write_section(page: str, name: str, text: str) -> None:
    """Puts `text` under the section `name` of docs/<page>.md, in place of what was there."""
    path = ROOT / "docs" / f"{page}.md"
    old = path.read_text() if path.is_file() else _HEADS[page]
    section = f"<!-- {name} -->\n{text.strip()}\n<!-- /{name} -->\n"
    place = re.search(rf"<!-- {name} -->\n.*?<!-- /{name} -->\n", old, re.DOTALL)
    new = old[: place.start()] + section + old[place.end() :] if place else f"{old}\n{section}"
    with atomic(path) as partial:
        partial.write_text(new)
    if f"{page}/{name}" in listed():
        note(f"{page}/{name}", date=str(date.today()), machine=machine())
    print(text.strip())


def listed() -> dict[str, dict[str, str]]:
    """The rows of docs/figures.md: the cells of each section by their columns."""
    found = {}
    for line in FIGURES.read_text().splitlines():
        if name := re.match(r"\| \[([^\]]+)\]", line):
            found[name[1]] = dict(zip(_COLUMNS, line.strip("| ").split(" | "), strict=True))
    return found


def note(section: str, **cells: str) -> None:
    """Puts cells into the row of a section in docs/figures.md."""
    old = listed()[section]
    row = [f"| {' | '.join(each.values())} |" for each in (old, old | cells)]
    with atomic(FIGURES) as partial:
        partial.write_text(FIGURES.read_text().replace(*row))


def machine() -> str:
    """The processor, its cores, and how many programs wanted one of them in the last minutes."""
    models = re.findall(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return f"{os.cpu_count()} cores, {models[0] if models else platform.machine()}, load {os.getloadavg()[2]:.1f}"


def conclude(name: str, text: str, lines: Sequence[str], figures: dict, write: bool, page: str = "benchmarks") -> None:
    """Prints what a benchmark saw, its figures as JSON last; `write` puts them under `text` into docs/<page>.md."""
    said = "\n".join(lines)
    if write:
        seen = said if said.startswith("|") else f"```\n{said}\n```"
        write_section(page, name, f"{text.strip().format(date=date.today())}\n\n{seen}\n\n`{json.dumps(figures)}`")
    else:
        print(said)
    print(json.dumps(figures))


def spread(values: Sequence[float]) -> str:
    """Mean ± standard deviation, or the value itself where there is one."""
    return f"{mean(values):.1f} ± {stdev(values):.1f}" if len(values) > 1 else f"{values[0]:.1f}"

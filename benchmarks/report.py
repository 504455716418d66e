"""What the scripts that measure share: where their figures go, the commands in docs/results.md, tables."""

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
RESULTS = ROOT / "docs" / "results.md"
WRITTEN = ROOT / "build" / "results"
TABLES = ROOT / "benchmarks" / "tables"
_COLUMNS = ("section", "command", "takes", "date", "machine", "spread")


def write_section(name: str, text: str) -> None:
    """Writes figures of docs/results.md to `WRITTEN`, with day and machine: a person takes over what that page says."""
    WRITTEN.mkdir(parents=True, exist_ok=True)
    with atomic(WRITTEN / f"{name}.md") as partial:
        partial.write_text(f"{date.today()}, {machine()}\n\n{text.strip()}\n")
    print(text.strip())


def write_table(name: str, text: str) -> None:
    """Writes a table, which `make tables` puts into the page that has its place."""
    with atomic(TABLES / f"{name}.md") as partial:
        partial.write_text(f"{text.strip()}\n")
    print(text.strip())


def listed() -> dict[str, dict[str, str]]:
    """The rows of the last section of docs/results.md: the cells of each set of figures by their columns."""
    found = {}
    for line in RESULTS.read_text(encoding="utf-8").splitlines():
        if name := re.match(r"\| \[([\w-]+)\]\(#", line):
            found[name[1]] = dict(zip(_COLUMNS, line.strip("| ").split(" | "), strict=True))
    return found


def machine() -> str:
    """The processor, its cores, and how many programs wanted one of them in the last minutes."""
    models = re.findall(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return f"{os.cpu_count()} cores, {models[0] if models else platform.machine()}, load {os.getloadavg()[2]:.1f}"


def conclude(name: str, text: str, lines: Sequence[str], figures: dict, write: bool) -> None:
    """Prints what a benchmark saw, its figures as JSON last; `write` puts them under `text` (`write_section`)."""
    said = "\n".join(lines)
    if write:
        seen = said if said.startswith("|") else f"```\n{said}\n```"
        write_section(name, f"{text.strip().format(date=date.today())}\n\n{seen}\n\n`{json.dumps(figures)}`")
    else:
        print(said)
    print(json.dumps(figures))


def spread(values: Sequence[float]) -> str:
    """Mean ± standard deviation, or the value itself where there is one."""
    return f"{mean(values):.1f} ± {stdev(values):.1f}" if len(values) > 1 else f"{values[0]:.1f}"

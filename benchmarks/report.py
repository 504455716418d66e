"""What the scripts that write docs/results.md share: sections, tables, mean and spread."""

import re
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev

from posgap.files import atomic

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results.md"
_HEAD = """\
# Results

Every section is written by the script it names; do not edit. Accuracy is in points. The gap is the
best minus the worst of all placements swept. Where several seeds ran, cells are mean ± standard
deviation over seeds; each seed is another base model, trained from scratch, with data of its own.
"""


def write_section(name: str, text: str) -> None:
    """Puts `text` under the section `name` of docs/results.md, in place of what was there."""
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    old = RESULTS.read_text() if RESULTS.is_file() else ""
    sections = dict(re.findall(r"<!-- (\S+) -->\n(.*?)<!-- /\1 -->", old, re.DOTALL)) | {name: text.strip() + "\n"}
    body = "\n".join(f"<!-- {key} -->\n{value}<!-- /{key} -->\n" for key, value in sections.items())
    with atomic(RESULTS) as partial:
        partial.write_text(f"{_HEAD}\n{body}")
    print(f"{begin}\n{text.strip()}\n{end}")


def spread(values: Sequence[float]) -> str:
    """Mean ± standard deviation, or the value itself where there is one."""
    return f"{mean(values):.1f} ± {stdev(values):.1f}" if len(values) > 1 else f"{values[0]:.1f}"


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, its columns aligned in the source too; all but the first to the right."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        padded = [c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True))]
        return f"| {' | '.join(padded)} |"

    rule = "|".join(["-" * (widths[0] + 2), *("-" * (w + 1) + ":" for w in widths[1:])])
    return "\n".join([line(head), f"|{rule}|", *map(line, rows)])

"""The report: one self-contained HTML page on one sweep or several."""

import base64
import hashlib
import math
import re
from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib import resources
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from posgap import __version__
from posgap.foundation.files import atomic
from posgap.foundation.heavy_types import Environment
from posgap.generation.backends import in_use
from posgap.measurement.comparison import Comparison
from posgap.measurement.page_examples import PageExamples
from posgap.measurement.statistics import ends
from posgap.measurement.summary import SIGNED, p_value, summary_text
from posgap.measurement.sweeps import Sweep
from posgap.tasks.metrics import METRICS
from posgap.tasks.placements import in_order
from posgap.tasks.positions import format_positions

# Round steps between the labels of an axis.
_STEPS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
_SOURCE_MAP = re.compile(r"//# sourceMappingURL=\S+\s*$")
_MAP = ("embedded", "saving", "filters", "map", "cell", "explorer")  # scripts, in the order of their dependencies
NOTHING = "–"  # in a cell
_WIDTHS = (720, 340)  # of a chart in pixels, on a wide screen and on a narrow one


def write_report(
    sweeps: Sequence[Sweep],
    png: Path,
    html: Path,
    title: str,
    explored: PageExamples | None = None,
    comparison: Comparison | None = None,
) -> None:
    """Writes the picture of `sweeps`, or of their differences, as PNG, and their page."""
    from posgap.measurement.plots import picture_of, placement_differences, save_picture

    save_picture(placement_differences(comparison) if comparison else picture_of(sweeps), png)
    save_page(page(sweeps, title, explored, comparison), html)


def save_page(text: str, html: Path) -> None:
    """Writes a page; what UTF-8 cannot write, half of a surrogate pair, becomes a question mark."""
    with atomic(html) as partial:
        partial.write_text(text, encoding="utf-8", errors="replace")


def page(
    sweeps: Sequence[Sweep],
    title: str,
    explored: PageExamples | None = None,
    comparison: Comparison | None = None,
) -> str:
    """The page as text, with examples to explore and the differences to the first sweep; it needs nothing beside
    itself."""
    models = ", ".join(dict.fromkeys(sweep.display_name for sweep in sweeps))
    return render_page(
        "posgap.measurement",
        "report.html.j2",
        sweeps,
        explored,
        title=title,
        below=f"{models}: task {sweeps[0].task}, {sweeps[0].sample_text}" if comparison else "",
        comparison=comparison,
        facts=_list_facts(sweeps),
        category_heads=[head for sweep in sweeps for head in (sweep.label, "gap within")],
        categories=_list_categories(sweeps),
        differences_by_position=_list_differences(comparison) if comparison else [],
        difference_axes=_difference_axes(comparison) if comparison else [],
    )


class Cell(NamedTuple):
    """A cell of a table: its text, and what follows in small letters."""

    text: str
    small: str = ""


def _with_interval(value: float, ci95: Sequence[float], form: str = ".1f") -> Cell:
    return Cell(f"{value:{form}}", ends(ci95, form))


Row = tuple[str, Sequence[Cell]]  # of a table: its name, and a cell for each sweep


def _list_facts(sweeps: Sequence[Sweep]) -> list[Row]:
    """Returns the rows below "Gap and mean"; it includes rows on shapes and mitigations only if a sweep has one."""
    cells: dict[str, Callable[[Sweep], Cell]] = {
        "gap": lambda sweep: _with_interval(sweep.gap, sweep.gap_ci95),
        "gap of a flat model": lambda sweep: Cell(f"{sweep.gap_noise:.1f}"),
        "mean": lambda sweep: _with_interval(sweep.mean, sweep.mean_ci95),
        "best position": lambda sweep: Cell(f"{format_positions(sweep.advantageous)}: {max(sweep.accuracy):.1f}"),
        "worst position": lambda sweep: Cell(f"{format_positions(sweep.worst.placement)}: {sweep.worst.accuracy:.1f}"),
    }
    for name in in_order(chain.from_iterable(sweep.baselines for sweep in sweeps)):
        cells[name] = partial(_describe_baseline, name)
    cells["flatness"] = lambda sweep: Cell(p_value(sweep.flatness.p))
    if any(sweep.shape for sweep in sweeps):
        cells["shape"] = lambda sweep: Cell(sweep.named_shape.name if sweep.named_shape else NOTHING)
    if any(sweep.mitigation for sweep in sweeps):
        cells["asked by"] = lambda sweep: Cell(sweep.mitigation.phrase if sweep.mitigation else NOTHING)
    cells["examples"] = lambda sweep: Cell(sweep.sample_text)
    return [(name, [cell_of(sweep) for sweep in sweeps]) for name, cell_of in cells.items()]


def _describe_baseline(name: str, sweep: Sweep) -> Cell:
    """Returns the accuracy of a baseline, and how it differs from the mean and the best position."""
    asked = sweep.baselines.get(name)
    if asked is None:
        return Cell(NOTHING)
    parts = [ends(asked.ci95), f"{asked.over_mean:+.1f} from the mean, {ends(asked.over_mean_ci95, SIGNED)}"]
    if asked.best_over_ci95:
        parts.append(f"best position {asked.best_over:+.1f} to it, {ends(asked.best_over_ci95, SIGNED)}")
    return Cell(f"{asked.accuracy:.1f}", "; ".join(parts))


def _list_categories(sweeps: Sequence[Sweep]) -> list[Row]:
    """Returns the rows below "Accuracy by category": two cells for each sweep."""
    common = set(sweeps[0].by_category).intersection(*(sweep.by_category for sweep in sweeps))
    rows: list[Row] = []
    for name in (each for each in sweeps[0].by_category if each in common):
        figures = [sweep.by_category[name] for sweep in sweeps]
        pairs = ((_with_interval(each.accuracy, each.ci95), Cell(f"{each.gap:.1f}")) for each in figures)
        rows.append((name, list(chain.from_iterable(pairs))))
    return rows


def _list_differences(comparison: Comparison) -> list[Row]:
    """Returns the rows below "Differences by position": a cell for each model."""
    models = comparison.differences
    rows: list[Row] = [
        ("mean", [_with_interval(each.mean, each.mean_ci95, SIGNED) for each in models]),
        ("gap", [_with_interval(each.gap, each.gap_ci95, SIGNED) for each in models]),
    ]
    for at, name in enumerate(comparison.placement_names):
        rows.append((name, [_with_interval(each.accuracy[at], each.ci95[at], SIGNED) for each in models]))
    return rows


def render_page(
    package: str, template: str, sweeps: Sequence[Sweep], explored: PageExamples | None, **more: Any
) -> str:
    """The page that a template of a package makes of `sweeps`, with its curves, tabs and examples."""
    page = templates(package).get_template(template)
    scripts = _scripts(bool(explored))
    return page.render(
        sweeps=sweeps,
        explored=explored,
        scripts=scripts,
        content_policy=content_policy(scripts),
        licence=_file("preact/LICENSE"),
        version=__version__,
        **charts(sweeps),
        **more,
    )


def content_policy(scripts: Sequence[str] = ()) -> str:
    """Returns the Content-Security-Policy of a page: only these scripts run in it, and it loads nothing from elsewhere,
    whatever a model's answer in it says."""
    hashes = [f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" for script in scripts]
    allowed = f"script-src {' '.join(hashes)}; " if hashes else ""
    return f"default-src 'none'; {allowed}style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


@cache
def _scripts(explored: bool) -> list[str]:
    """Returns the scripts of a page: its tabs and, if there are examples to explore, Preact and their map."""
    if not explored:
        return [_file("tabs.js")]
    # The last lines of Preact's files name source maps, which no page has beside it.
    preact = [_SOURCE_MAP.sub("", _file(f"preact/{name}.umd.js")) for name in ("preact", "hooks")]
    of_map = "\n".join(_file(f"{name}.js") for name in _MAP)
    return [_file("tabs.js"), *preact, f'(() => {{\n"use strict";\n{of_map}}})();']


def _file(name: str) -> str:
    return (resources.files("posgap.measurement") / "templates" / name).read_text("utf-8")


@cache
def templates(package: str) -> Environment:
    """Returns the page templates in a package's folder `templates`; they may include the templates of this package."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader(name) for name in (package, "posgap.measurement")]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"positions": format_positions, "summary": summary_text}
    environment.filters["in_use"] = in_use
    environment.filters["metric_help"] = lambda name: METRICS[name].help if name in METRICS.names() else "scores"
    return environment


def charts(sweeps: Sequence[Sweep]) -> dict[str, list]:
    """Returns what pages show of `sweeps`: for the template `accuracy.html.j2` the axes of curves, or the grids of
    pairs. If all sweeps have the same placements, also the rows of "Accuracy by position"."""
    most_docs = max((sweep.n_docs for sweep in sweeps), default=1)
    axes = [(width, _ticks(most_docs, width)) for width in _WIDTHS]
    by_placement: list[Row] = []
    if len({tuple(sweep.placement_names) for sweep in sweeps}) == 1:
        for at, name in enumerate(sweeps[0].placement_names):
            by_placement.append((name, [_with_interval(sweep.accuracy[at], sweep.ci95[at]) for sweep in sweeps]))
    return {"axes": axes, "grids": [_grid(sweep) for sweep in sweeps if sweep.categories], "by_placement": by_placement}


def _ticks(n_docs: int, width: int) -> list[int]:
    """Positions to name on an axis `width` pixels wide: the first, round ones, and the last."""
    step = next(step for step in _STEPS if n_docs / step * 36 <= width or step == _STEPS[-1])
    between = [place for place in range(step, n_docs, step) if place > 1 and n_docs - place >= step / 2]
    return [1, *between, n_docs][: n_docs or 1]


def _difference_axes(comparison: Comparison) -> list[tuple[int, int, list[int]]]:
    """For each width: every how many placements one is named, and the points with a line, 0 among them."""
    ends = [end for model in comparison.differences for interval in model.ci95 for end in interval]
    least = min(0.0, *ends)
    most = max(0.0, *ends)
    step = next(step for step in _STEPS if 6 * step >= most - least)
    room = 36 if len(comparison.placements[0]) == 1 else 60
    lines = [step * i for i in range(math.floor(least / step), max(1, math.ceil(most / step)) + 1)]
    return [(width, math.ceil(len(comparison.placement_names) * room / width), lines) for width in _WIDTHS]


def _grid(sweep: Sweep) -> dict:
    """Accuracy by the first hop's position (row) and the second's (column)."""
    sides = [(placement[0], placement[-1]) for placement in sweep.placements]
    accuracy_of = dict(zip(sides, sweep.accuracy))
    across = sorted({column for _, column in sides})
    downs = sorted({row for row, _ in sides})
    rows = [(down, [accuracy_of.get((down, column)) for column in across]) for down in downs]
    return {"label": sweep.label, "columns": across, "rows": rows}

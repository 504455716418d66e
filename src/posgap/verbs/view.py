"""`posgap view`: one page that lists and compares the sweeps, checks, verdicts and mitigations below a folder."""

import logging
import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from posgap.foundation.bounds import read_bytes
from posgap.foundation.errors import PosgapError, shorten
from posgap.foundation.files import digest_path
from posgap.foundation.locations import MODELS, is_registered, page_address
from posgap.foundation.printing import show
from posgap.gating.decision_page import GATE_PAGE
from posgap.gating.verdict import GATE_FILE, read_verdict
from posgap.measurement.report import render_page, save_page
from posgap.measurement.summary import position_sentence
from posgap.measurement.sweeps import SWEEP_FILE, SWEEP_PAGE, Sweep, read_sweep
from posgap.mitigations.search.report import MITIGATE_FILE, MITIGATE_PAGE, read_mitigate
from posgap.options.view import ViewConfig
from posgap.tracking.history import show_history
from posgap.verbs.check import CHECK_FILE, PAGE_FILE
from posgap.verbs.inspect_logs import SUFFIX, is_position_log, sweep_of_log

log = logging.getLogger(__name__)
INDEX = "index.html"
_MARK = 'content="posgap view"'  # tells the page from one by another program


class Row(NamedTuple):
    """A result: what wrote it, its folder below the shown one, its page there, its outcome in words, its sweep, if that
    is there too, and the settings that distinguish it from others with its label."""

    kind: str
    folder: str
    page: str
    outcome: str
    sweep: Sweep | None
    differs: str = ""

    @property
    def gap(self) -> float:
        """The sweep's gap; 0 if there is none."""
        return self.sweep.gap if self.sweep else 0.0

    @property
    def address(self) -> str:
        """The address of its page, from the index."""
        return quote(f"{self.folder}/{self.page}")

    @property
    def points(self) -> str:
        """The curve of single positions for a picture of 100 by 100; empty if there is none."""
        s = self.sweep
        if not s or len(s.placements) < 2:
            return ""
        places = s.positions if not s.categories else list(range(1, len(s.placements) + 1))
        most = s.n_docs if not s.categories else len(places)
        return " ".join(f"{100 * (at - 0.5) / most:.1f},{100 - a:.1f}" for at, a in zip(places, s.accuracy))


class Group(NamedTuple):
    """Results of the same examples, so their figures can be compared; the `title` names the task and its examples."""

    title: str
    rows: list[Row]


def view(config: ViewConfig) -> None:
    """Writes `index.html` into the folder, and prints its address; prints the history of a registered model."""
    name = str(config.folder)
    if is_registered(name):
        show_history(name.removeprefix(MODELS))
        return
    page = config.folder / INDEX
    if page.exists() and _MARK.encode() not in read_bytes(page)[:1000]:
        raise PosgapError(f"{page}: exists and is not a page of `posgap view`; move it, or view a folder above")
    found = list(rows(config.folder))
    if not found:
        raise PosgapError(f"{config.folder}: has no sweep, check, verdict or mitigation in it or below it")
    title = f"Results in {config.folder.resolve().name}: {len(found)}"
    shown = [row.sweep for row in found if row.sweep]
    groups = group_by_question(found)
    save_page(render_page("posgap.verbs", "index.html.j2", shown, None, title=title, groups=groups), page)
    address = page_address(config.folder, INDEX)
    show(f"{len(found)} results: {address}", {"results": len(found), "page": address})


def rows(top: Path) -> Iterator[Row]:
    """The results below a folder, by folder, each once: a pipeline and MLflow keep copies. The sweep in the folder of a
    check, a verdict or a mitigation is on its page already. Unreadable results are reported and left out."""
    seen: set[str] = set()
    for place, folders, names in os.walk(top):
        folder = Path(place)
        name = os.path.relpath(place, top)
        folders += _swept_logs(folder, names)
        folders[:] = sorted({each for each in folders if not each.startswith((".", "mlartifacts"))})
        for file in READERS.keys() & set(names):
            if file != SWEEP_FILE:
                folders.clear()
            try:
                content = digest_path(folder / file)
                if content in seen:
                    continue
                seen.add(content)
                yield READERS[file](folder, name)
            except PosgapError as error:
                log.warning("left out: %s", error)


def _swept_logs(folder: Path, names: Sequence[str]) -> Iterator[str]:
    """Yields the names of the folders that the sweeps in Inspect's logs are written to."""
    for name in sorted(names):
        try:
            if name.endswith(SUFFIX) and is_position_log(folder / name):
                yield sweep_of_log(folder / name).parent.name
        except PosgapError as error:
            log.warning("left out: %s", error)


def _sweep_row(folder: Path, name: str) -> Row:
    sweep = read_sweep(folder)
    return Row("sweep", name, SWEEP_PAGE, position_sentence(sweep), sweep)


def _check_row(folder: Path, name: str) -> Row:
    # A verdict of `check` has the fields of one of `gate`, in a file of another name.
    return Row("check", name, PAGE_FILE, read_verdict(folder / CHECK_FILE).outcome, _read_part(folder, "sweep"))


def _gate_row(folder: Path, name: str) -> Row:
    return Row("gate", name, GATE_PAGE, read_verdict(folder).outcome, _read_part(folder, "candidate"))


def _mitigate_row(folder: Path, name: str) -> Row:
    return Row("mitigate", name, MITIGATE_PAGE, read_mitigate(folder).headline, _read_part(folder, "sweeps/base"))


def _read_part(folder: Path, part: str) -> Sweep | None:
    """The sweep of this name in a folder; None if it is not there."""
    return read_sweep(folder / part) if (folder / part / SWEEP_FILE).is_file() else None


READERS = {SWEEP_FILE: _sweep_row, CHECK_FILE: _check_row, GATE_FILE: _gate_row, MITIGATE_FILE: _mitigate_row}


def group_by_question(found: list[Row]) -> list[Group]:
    """Groups results by their examples and settings, the largest gap first; those without a sweep at hand come last."""
    groups: dict[tuple, list[Row]] = {}
    for row in found:
        s = row.sweep
        read = f"{s.filled.tokens:,} tokens" if s and s.filled else f"{s.n_docs} documents" if s else ""
        groups.setdefault((s.task, s.n_docs, read, s.n_examples, s.examples_digest) if s else (), []).append(row)
    named = []
    for key, of in sorted(groups.items(), key=lambda item: (not item[0], item[0])):
        title = f"Task {key[0]}, {key[3]:,} examples, {key[2]}" if key else "Without a sweep below this folder"
        named.append(Group(title, sorted(map(partial(_tell_apart, of), of), key=lambda row: -row.gap)))
    return named


def _tell_apart(others: Sequence[Row], row: Row) -> Row:
    """Returns the row with the settings of its sweep that differ from others with the same label."""
    if row.sweep is None:
        return row
    alike = [each.sweep.settings for each in others if each.sweep and each.sweep.label == row.sweep.label]
    own = row.sweep.settings
    differing = [name for name in own if any(each.get(name, own[name]) != own[name] for each in alike)]
    return row._replace(differs=", ".join(f"{name} {shorten(str(own[name]))}" for name in differing))

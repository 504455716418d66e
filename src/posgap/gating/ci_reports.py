"""What continuous integration shows of a check: JUnit XML, a Markdown summary, and text."""

import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple
from xml.etree import ElementTree

from posgap.foundation.errors import PosgapError
from posgap.foundation.files import atomic, delete_path
from posgap.foundation.printing import colour_word
from posgap.foundation.redaction import redact
from posgap.gating.rules import CHECK_RULES, Ruling
from posgap.gating.verdict import OFTEN, Verdict, against, markdown
from posgap.measurement.sweeps import Sweep
from posgap.measurement.text_curve import text_curve

SUMMARY_VARIABLE = "GITHUB_STEP_SUMMARY"  # names the file to which the steps of a GitHub job add their summaries
# All characters but those that XML may hold, and those that move a terminal's cursor: U+0085, U+2028, U+2029 and C1.
_UNSAFE = re.compile("[^\t\n\x20-\x7e\xa0-\u2027\u202f-\u2065\u206a-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class CheckResult:
    """A check of `model`: its verdict and sweep, or, where there are none, the `complaint` why it has none."""

    model: str
    verdict: Verdict | None = None
    sweep: Sweep | None = None
    complaint: str = ""


class _TestCase(NamedTuple):
    name: str
    kind: Literal["", "failure", "error"]
    message: str


def junit(checked: CheckResult) -> str:
    """JUnit XML with a test case for each rule, and one for whether enough was swept.

    A broken rule is a failure. A rule of which the evidence says neither, and a check that broke off, are errors, as
    nothing was shown then: CI must not take them for passed, as it takes what is skipped. So is too little evidence,
    but where a rule is broken for certain all the same: that is one fault, not two.
    """
    cases = _test_cases(checked)
    counts = Counter(case.kind for case in cases)
    numbers = {"tests": str(len(cases)), "failures": str(counts["failure"]), "errors": str(counts["error"])}
    attributes = {"name": "posgap check", **numbers}
    suites = ElementTree.Element("testsuites", attributes)
    suite = ElementTree.SubElement(suites, "testsuite", attributes | {"name": _safe(checked.model), "skipped": "0"})
    for case in cases:
        shown = ElementTree.SubElement(suite, "testcase", classname="posgap.check", name=_safe(case.name))
        if case.kind:
            fault = ElementTree.SubElement(shown, case.kind, message=_safe(case.message), type=case.kind)
            fault.text = _safe(case.message)
        else:
            ElementTree.SubElement(shown, "system-out").text = _safe(case.message)
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def _test_cases(checked: CheckResult) -> list[_TestCase]:
    if checked.verdict is None:
        return [_TestCase("sweep", "error", checked.complaint)]
    wanting = checked.verdict.wanting
    lacks = bool(wanting) and checked.verdict.outcome != "refused"
    enough = _TestCase("evidence: enough was swept", "error" if lacks else "", wanting or "enough was swept")
    return [enough, *map(_test_case, checked.verdict.rules)]


def _test_case(ruling: Ruling) -> _TestCase:
    kinds: dict[str, Literal["", "failure", "error"]] = {"pass": "", "fail": "failure", "unsure": "error"}
    needs = f"; a flat model passes this rule in {OFTEN} with {ruling.needs} examples" if ruling.needs else ""
    message = f"{against(ruling)}; {ruling.sentence}{needs}"
    return _TestCase(f"{ruling.name}: {CHECK_RULES[ruling.name].help}", kinds[ruling.outcome], message)


def step_summary(checked: CheckResult) -> str:
    """Markdown with the verdict, the figures and the curve as text: for a step summary, or a comment on a change."""
    model = _as_code(checked.model)
    if checked.verdict is None or checked.sweep is None:
        return f"{_MARKS['markdown']}\n# No verdict on {model}\n\n{_as_code(checked.complaint)}\n"
    rules = markdown(checked.verdict).partition("\n")[2].strip()
    heading = f"# {checked.verdict.outcome.capitalize()}: {model}"
    curve = f"```text\n{text_curve(checked.sweep)}\n```"
    return f"{_MARKS['markdown']}\n{heading}\n\n{rules}\n\n{_sweep_line(checked.sweep)}\n\n{curve}\n"


def terminal_text(checked: CheckResult) -> str:
    """Returns what a check prints in a terminal: the curve, the figures, and a line for each rule."""
    assert checked.verdict and checked.sweep
    rules = [
        f"{colour_word(f'{ruling.outcome:<7}', sys.stdout)}{against(ruling)}; {ruling.sentence}"
        for ruling in checked.verdict.rules
    ]
    evidence_gaps = [checked.verdict.wanting] if checked.verdict.wanting else []
    lines = [text_curve(checked.sweep), "", _sweep_line(checked.sweep), "", *rules, *evidence_gaps]
    if checked.verdict.passed:  # what was not admitted ends the command with a line that says why
        lines.append(f"{colour_word('admitted', sys.stdout)}: {' '.join(_safe(checked.model).split())}")
    return "\n".join(lines)


def _sweep_line(sweep: Sweep) -> str:
    (low, high), (least, most) = sweep.gap_ci95, sweep.mean_ci95
    figures = (
        f"gap {sweep.gap:.1f} points ({low:.1f} to {high:.1f}), mean {sweep.mean:.1f} ({least:.1f} to {most:.1f}), "
        f"of {sweep.sample_text} of the task {sweep.task} with {sweep.n_docs} documents"
    )
    unanswered = sweep.outcomes.phrase(sweep.placements) if sweep.outcomes else ""
    return f"{figures}; {unanswered}" if unanswered else figures


_REPORTS: dict[str, Callable[[CheckResult], str]] = {"junit": junit, "markdown": step_summary}
# What stands in each report, and tells it from a file that somebody else wrote.
_MARKS = {"junit": 'name="posgap check"', "markdown": "<!-- posgap check -->"}


class Reports:
    """The files in which a check is to be reported, by kind.

    A report of an earlier check goes away at once: should this check be killed, nobody takes that one for its report.
    `PosgapError` where something else is in the place of a report, where two reports have one place, and where one
    lies in `out`, the folder of the check's output.
    """

    def __init__(self, places: Mapping[str, Path | None], out: Path):
        self.places = {kind: place for kind, place in places.items() if place}
        for kind, place in self.places.items():
            if out.resolve() in (place.resolve(), *place.resolve().parents):
                raise PosgapError(f"--{kind}: {place}: is, or lies in, the output folder {out}; write beside it")
        if len({place.resolve() for place in self.places.values()}) < len(self.places):
            raise PosgapError("--junit and --markdown name one file; give each its own")
        for kind, place in self.places.items():
            if place.is_dir() or (place.exists() and not self._adds(place) and not _is_report(place, kind)):
                raise PosgapError(f"--{kind}: {place}: is there, and no report of `posgap check`; name another file")
        for place in self.places.values():
            place.parent.mkdir(parents=True, exist_ok=True)  # where it cannot be written, that is said before any work
            if not self._adds(place):
                delete_path(place)

    def write(self, checked: CheckResult) -> None:
        """Writes all of them, each whole or not at all."""
        for kind, place in self.places.items():
            report = _REPORTS[kind](checked)
            if self._adds(place):
                with open(place, "a", encoding="utf-8") as file:
                    file.write(report)
                continue
            with atomic(place) as partial:
                partial.write_text(report, encoding="utf-8")

    @staticmethod
    def _adds(place: Path) -> bool:
        summary = os.environ.get(SUMMARY_VARIABLE, "")
        return bool(summary) and place.resolve() == Path(summary).resolve()


def _is_report(place: Path, kind: str) -> bool:
    with open(place, encoding="utf-8", errors="replace") as file:
        return _MARKS[kind] in file.read(1000)


def _safe(words: str) -> str:
    """The text without secrets, and without characters that break a report or act on a terminal."""
    return _UNSAFE.sub("\ufffd", redact(words))


def _as_code(words: str) -> str:
    """The text in one line of Markdown's code, where nothing in it means anything."""
    line = " ".join(_safe(words).split()) or "-"
    longest = max(map(len, re.findall("`+", line)), default=0)
    fence = "`" * (longest + 1)
    return f"{fence} {line} {fence}" if longest else f"{fence}{line}{fence}"

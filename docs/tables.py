"""Writes the tables of the pages in docs/: `python docs/tables.py` fills what stands between `<!-- table: NAME -->` and
`<!-- /table -->`, from the code or from what a benchmark wrote into benchmarks/tables/."""

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import get_args, get_origin

from pydantic import BaseModel

from posgap.foundation.tables import markdown
from posgap.gating.verdict import Verdict
from posgap.measurement.comparison import Comparison
from posgap.measurement.lengths import LengthMap
from posgap.measurement.sweeps import Sweep
from posgap.options.base import Config
from posgap.options.preflight import PreflightConfig
from posgap.pipelines import forms
from posgap.pipelines.compilation import load
from posgap.pipelines.forms import WatchFormConfig
from posgap.pipelines.resources import secret_keys
from posgap.rollout.files import Measurement, Prediction
from posgap.scaling.scaling_file import Scaling
from posgap.tasks.responses import Response

ROOT = Path(__file__).resolve().parents[1]
MEASURED = ROOT / "benchmarks" / "tables"  # written by the scripts beside it
PLACE = re.compile(r"^<!-- table: ([\w-]+) -->\n(.*?)^<!-- /table -->$", re.MULTILINE | re.DOTALL)
_COPY = re.compile(r"-\d+$")  # KFP's number of a further executor of the same component
RECORDS: dict[str, type[BaseModel]] = {  # whose fields the page of files shows
    "sweep": Sweep,
    "lengths": LengthMap,
    "comparison": Comparison,
    "responses": Response,
    "scaling": Scaling,
    "gate": Verdict,
    "measurement": Measurement,
    "prediction": Prediction,
}


def main() -> None:
    for page in sorted((ROOT / "docs").glob("*.md")):
        text = page.read_text(encoding="utf-8")
        filled = fill(text)
        if filled != text:
            page.write_text(filled, encoding="utf-8")
            print(f"{page.relative_to(ROOT)}: tables written")


def fill(text: str) -> str:
    """Returns a page's text with each of its tables as it is now."""
    return PLACE.sub(lambda place: f"<!-- table: {place[1]} -->\n\n{table(place[1])}\n\n<!-- /table -->", text)


def table(name: str) -> str:
    """Returns the table `name`, made from the code, or else as a benchmark wrote it."""
    return MADE[name]() if name in MADE else (MEASURED / f"{name}.md").read_text(encoding="utf-8").strip()


def _form(config: type[Config]) -> str:
    """A pipeline's form."""
    fields = forms.fields_of(config)
    rows = [[f"`{name}`", _default(field.default), field.description] for name, field in sorted(fields.items())]
    return markdown(["field", "default", "meaning"], rows, left=3)


def _default(value) -> str:
    return f"`{value}`" if isinstance(value, str | int | float) and str(value) else ""


def _fields(record: type[BaseModel]) -> str:
    """A file's fields, those of the records within it behind a dot; a record that stands twice is described once."""
    return markdown(["field", "meaning"], [[f"`{name}`", text] for name, text in _described(record, "", set())], left=2)


def _described(record: type[BaseModel], before: str, seen: set[type[BaseModel]]) -> Iterator[tuple[str, str]]:
    seen.add(record)
    for name, field in record.model_fields.items():
        inner = next(_records(field.annotation), None)
        if not field.description:
            continue
        yield before + name, field.description
        if inner and not any(issubclass(each, inner) for each in seen):
            many = get_origin(field.annotation) in (list, dict)
            yield from _described(inner, f"{before}{name}{'[]' if many else ''}.", seen)
    for name, computed in record.model_computed_fields.items():
        yield before + name, _phrase(computed.description or "")


def _records(annotation: object) -> Iterator[type[BaseModel]]:
    """The records that a field holds, singly, in a list or by name."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _records(part)


def _phrase(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:].rstrip(".")


def _secrets() -> str:
    """The secrets of each executor of the compiled pipelines; one that several steps have as a copy stands once."""
    rows = dict[tuple[str, str, str], int]()
    for name in forms.FORMS:
        compiled = load(None, name)
        for label in compiled.executors:
            if secrets := secret_keys(compiled.settings(label)):
                row = (_COPY.sub("", label), name, ", ".join(f"`{secret}`" for secret in sorted(secrets)))
                rows[row] = rows.get(row, 0) + 1
    cells = [[f"`{label}`", name, str(number), secrets] for (label, name, secrets), number in rows.items()]
    return markdown(["executor", "pipeline", "copies", "secrets"], cells, left=4)


MADE: dict[str, Callable[[], str]] = {
    "form": lambda: _form(PreflightConfig),
    "watch-form": lambda: _form(WatchFormConfig),
    "secrets": _secrets,
    **{f"fields-{name}": partial(_fields, record) for name, record in RECORDS.items()},
}


if __name__ == "__main__":
    main()

"""What the site has beside the files of docs/: a page of all commands, tables of code and data, links outside of it."""

import re
import tomllib
from collections.abc import Callable, Iterator
from functools import partial
from inspect import cleandoc
from pathlib import Path
from typing import get_args, get_origin

import click
from mkdocs.structure.files import File, Files
from pydantic import BaseModel

from posgap.cli.main import build
from posgap.foundation.config import Config
from posgap.foundation.tables import markdown
from posgap.gating.verdict import Verdict
from posgap.measurement.comparison import Comparison
from posgap.measurement.diagnoses import Diagnosis
from posgap.measurement.lengths import LengthMap
from posgap.measurement.sweeps import Sweep
from posgap.pipelines import forms
from posgap.pipelines.compilation import load
from posgap.pipelines.config import WatchFormConfig
from posgap.pipelines.resources import secret_keys
from posgap.preflight.config import PreflightConfig
from posgap.rollout.files import Measurement, Prediction
from posgap.scaling.scaling_file import Scaling
from posgap.tasks.responses import Response

_ROOT = Path(__file__).resolve().parents[1]
_MEASURED = _ROOT / "benchmarks" / "tables"  # written by the scripts beside it
_OUTSIDE = re.compile(r"\[([^]]+)\]\(\.\./([^)]+)\)")
_TABLE = re.compile(r"^<!-- table: ([\w-]+) -->$", re.MULTILINE)
_COPY = re.compile(r"-\d+$")  # KFP's number of a further executor of the same component
RECORDS: dict[str, type[BaseModel]] = {  # whose fields the page of files shows
    "sweep": Sweep,
    "lengths": LengthMap,
    "comparison": Comparison,
    "diagnosis": Diagnosis,
    "responses": Response,
    "scaling": Scaling,
    "gate": Verdict,
    "measurement": Measurement,
    "prediction": Prediction,
}
_LEAD = """# Commands

Every command with its options and their defaults, as `--help` prints them. The entry points of the MLproject, the
components of the pipeline and the functions in Python have the same names.
"""


def on_files(files: Files, config) -> Files:
    files.append(File.generated(config, "commands.md", content="\n".join([_LEAD, *_sections(build(), "posgap", None)])))
    return files


def on_page_markdown(text: str, page, config, files) -> str:
    whole = _TABLE.sub(lambda found: table(found[1]), text)
    return outside(whole, config.repo_url)


def on_config(config):
    """The repository's address is that of the package; without one the site has no link to it."""
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    config.repo_url = project["tool"]["posgap"]["repository"].rstrip("/") or None
    return config


def outside(text: str, repository: str | None) -> str:
    """A page whose links out of docs/ lead into the repository; where that has no address, it names the files."""
    if not repository:
        return _OUTSIDE.sub(_named, text)
    return _OUTSIDE.sub(rf"[\1]({repository}/blob/main/\2)", text)


def _named(link: re.Match[str]) -> str:
    """A link's words and, unless they are its name, the file that it leads to."""
    words, file = link[1], link[2].partition("#")[0]
    return words if words.strip("`/") == file.strip("/") else f"{words} (`{file}`)"


def table(name: str) -> str:
    """The table that stands in a page for `<!-- table: name -->`: made of the code, else what a benchmark wrote."""
    return _MADE[name]() if name in _MADE else (_MEASURED / f"{name}.md").read_text(encoding="utf-8")


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


_MADE: dict[str, Callable[[], str]] = {
    "form": lambda: _form(PreflightConfig),
    "watch-form": lambda: _form(WatchFormConfig),
    "secrets": _secrets,
    **{f"fields-{name}": partial(_fields, record) for name, record in RECORDS.items()},
}


def _sections(command: click.Command, name: str, parent: click.Context | None):
    """The section of a command and of all below it, whose options are a list of definitions: a phone can show that."""
    context = click.Context(command, info_name=name.rsplit(" ")[-1], parent=parent)
    if parent:
        text = [cleandoc(part) for part in (command.help, command.epilog) if part]
        usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
        yield "\n\n".join([f"{'###' if parent.parent else '##'} {name}", f"`{usage}`", *text, ""])
        for option in filter(None, (each.get_help_record(context) for each in command.get_params(context))):
            yield "`{}`\n:   {}\n".format(*option)
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            yield from _sections(command.get_command(context, each), f"{name} {each}", context)


def on_post_page(output: str, page, config) -> str:
    # Material would ask GitHub for the repository's stars whenever a page is opened.
    return output.replace('data-md-component="source"', "")

"""A model folder with a mitigation in its config, and what lies beside: who it was searched on, and a warning."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from posgap.errors import PosgapError
from posgap.files import Record, read_model, read_object, write_json
from posgap.mitigations.mitigation import ModelMitigation, Settings
from posgap.storage.lineage import training_examples, write_training_examples
from posgap.tasks.content import among
from posgap.tasks.examples import AnyExample

APPLIED_FILE = "mitigation.json"


class Applied(Record):
    """The mitigation that a model folder was written with, and the contents of the examples by which its settings were
    chosen; none where somebody gave them."""

    name: str
    settings: dict
    model: str
    model_digest: str
    example_contents: list[str]


def write_mitigated_model(
    model: Path, mitigation: ModelMitigation, settings: Settings, applied: Applied, out: Path
) -> None:
    """Copies a model folder into `out` with the mitigation in `config.json`, `mitigation.json`, the examples by which
    its settings were chosen, and, unless whatever loads the folder serves it, a warning in the model card."""
    from posgap.models.in_force import written  # which needs torch, as reading a folder does not

    copy_model(model, out)
    write_json(out / "config.json", written(read_object(out / "config.json"), mitigation.name, settings))
    write_json(out / APPLIED_FILE, applied.model_dump(mode="json"))
    write_training_examples(out, training_examples(model).union(applied.example_contents))
    if "anything" not in mitigation.served_by:
        chosen = json.dumps(settings.model_dump(mode="json"))
        warn_in_card(out, _WARNING.format(name=mitigation.name, settings=chosen, help=mitigation.help))


def refuse_chosen_by(model: Path, examples: Sequence[AnyExample]) -> None:
    """Raises `PosgapError` if the settings of a model's mitigation were chosen by any of `examples`."""
    file = Path(model) / APPLIED_FILE
    if not file.exists():
        return
    applied = read_model(Applied, file, APPLIED_FILE)
    if chosen := among(examples, applied.example_contents):
        raise PosgapError(
            f"{model}: the settings of {applied.name} were chosen by {len(chosen)} of these examples "
            f"({chosen[0].id}, ...); measure it on others"
        )


def copy_model(model: Path, out: Path) -> None:
    """Copies a model folder into `out`, without the manifest of whoever made it."""
    shutil.copytree(model, out, dirs_exist_ok=True, ignore=shutil.ignore_patterns("manifest.json", ".*"))


def warn_in_card(out: Path, warning: str) -> None:
    """Puts a warning before the text of the model card in `out`, behind its YAML front matter."""
    card = out / "README.md"
    # Whoever wrote it, in what encoding.
    text = card.read_text(encoding="utf-8", errors="surrogateescape") if card.exists() else ""
    front, body = _front_matter(text)
    card.write_text(front + warning + body, encoding="utf-8", errors="surrogateescape")


def _front_matter(card: str) -> tuple[str, str]:
    """Splits a model card into its YAML front matter and its text."""
    if not card.startswith("---\n") or (end := card.find("\n---\n", 4)) < 0:
        return "", card
    return card[: end + 5], card[end + 5 :]


_WARNING = """\
> **This model has a mitigation: {name}** ({help}), with the settings `{settings}`. transformers does not know it, and
> loads the model **without**. Load it with [posgap](https://pypi.org/project/posgap/): `posgap.load_model(path)`.

"""

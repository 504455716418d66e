"""A model folder with a mitigation in its config, and its companions: the examples of its search, and a warning."""

import json
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path

from posgap.foundation.errors import PosgapError
from posgap.foundation.files import Record, read_model, write_json
from posgap.mitigations.mitigation import ModelMitigation, Settings
from posgap.models.closing import close_config, is_closed, read_config, write_closable_config
from posgap.storage.lineage import training_examples, write_training_examples
from posgap.tasks.content import with_content_keys
from posgap.tasks.examples import AnyExample

APPLIED_FILE = "mitigation.json"


class MitigationRecord(Record):
    """A model folder's mitigation, and the contents of the examples that chose its settings; none if the settings were
    given."""

    name: str
    settings: dict
    model: str
    model_digest: str
    example_contents: list[str]


def write_mitigated_model(
    model: Path, mitigation: ModelMitigation, settings: Settings, applied: MitigationRecord, out: Path
) -> None:
    """Copies a model folder into `out` with the mitigation in `config.json`, `mitigation.json` and the examples that
    chose its settings. The model card says what serves it, unless any loader does."""
    copy_with_mitigation(model, mitigation, settings, training_examples(model).union(applied.example_contents), out)
    write_json(out / APPLIED_FILE, applied.model_dump(mode="json"))


def copy_with_mitigation(
    model: Path, mitigation: ModelMitigation, settings: Settings, seen: Collection[str], out: Path
) -> None:
    """Copies a model folder into `out` with the mitigation in `config.json`, the contents of the examples that it has
    `seen`, and, if only posgap applies the mitigation, a note in the model card."""
    copy_model(model, out)
    config = mitigation.write_config(read_config(out), settings)
    write_closable_config(out, config)
    _let_tokenizer_read(out, _context(model), _context(out))
    write_training_examples(out, seen)
    if is_closed(close_config(config)):
        chosen = json.dumps(settings.model_dump(mode="json"))
        warn_in_card(out, _WARNING.format(name=mitigation.name, settings=chosen, help=mitigation.help))


def _context(folder: Path) -> int:
    """The tokens that a model declares to read; 0 if it declares none."""
    from posgap.models.loading import load_config  # imports torch

    return getattr(load_config(str(folder)).get_text_config(), "max_position_embeddings", None) or 0


def _let_tokenizer_read(folder: Path, before: int, now: int) -> None:
    """Makes the tokenizer declare the model's length `now`, in place of the one `before`; a shorter one was somebody's
    choice, and stays."""
    file = folder / "tokenizer_config.json"
    # Not by our reader: most declare 10^30 tokens, which is more than it takes for a number.
    own = json.loads(file.read_bytes()) if now > before and file.is_file() else {}
    if before <= (own.get("model_max_length") or now) < now:
        write_json(file, own | {"model_max_length": now})


def refuse_chosen_by(model: Path, examples: Sequence[AnyExample]) -> None:
    """Raises `PosgapError` if the settings of a model's mitigation were chosen by any of `examples`."""
    file = Path(model) / APPLIED_FILE
    if not file.exists():
        return
    applied = read_model(MitigationRecord, file, APPLIED_FILE)
    if chosen := with_content_keys(examples, applied.example_contents):
        raise PosgapError(
            f"{model}: the settings of {applied.name} were chosen by {len(chosen)} of these examples "
            f"({chosen[0].id}, ...); measure it on others"
        )


def copy_model(model: Path, out: Path) -> None:
    """Copies a model folder into `out`, without its maker's manifest."""
    shutil.copytree(model, out, dirs_exist_ok=True, ignore=shutil.ignore_patterns("manifest.json", ".*"))


def warn_in_card(out: Path, warning: str) -> None:
    """Puts a warning before the text of the model card in `out`, behind its YAML front matter."""
    card = out / "README.md"
    # Written by others, in any encoding.
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
> refuses the model. Install posgap, and load it by `posgap.load_model(path)`.

"""

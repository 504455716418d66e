"""`posgap push`: a model with the sweeps of it, on the Hugging Face hub."""

import logging
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, cast

import httpx2
from huggingface_hub import CommitOperationAdd, HfApi, ModelCard, ModelCardData, get_token
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError
from yaml import YAMLError

from posgap.foundation.errors import PosgapError, shortened
from posgap.foundation.printing import show
from posgap.measurement.model_card import DATASET, TAGS, results, section
from posgap.measurement.sweeps import SWEEP_FILE, Sweep, read_sweep
from posgap.peers.config import HubPushConfig
from posgap.storage.cache import MANIFEST
from posgap.storage.inputs import OnDisk, source

log = logging.getLogger(__name__)
CARD = "README.md"
_BEGIN, _END = "<!-- posgap: what follows is replaced by `posgap push` -->", "<!-- posgap: end -->"
_OURS = re.compile(f"{re.escape(_BEGIN)}.*?{re.escape(_END)}\n?", re.DOTALL)
_PICTURE, _REPORT = "sweep.png", "sweep.html"  # which shows prompts and responses


class _Swept(NamedTuple):
    """A sweep, the folder that it gets on the hub, and what is pushed into it: what people read, by name."""

    figures: Sweep
    there: str
    files: dict[str, Path]


def push(config: HubPushConfig) -> None:
    """Pushes all of it in one commit, and prints the commit's address; with `dry_run` prints what that would be.

    Raises `PosgapError` where a sweep is of another model, and where the hub refuses.
    """
    swept = _sweeps(config)
    files = _files(config, swept)
    here = card(_card_in(files), config.to, swept)
    if config.dry_run:
        sizes = {name: path.stat().st_size for name, path in sorted(files.items())}
        listed = "\n".join(f"{name}  {size:,} bytes" for name, size in sizes.items())
        show(f"{listed}\n{CARD}:\n\n{here}".rstrip("\n"), {"files": sizes, "card": here})
        return
    if not (token := get_token()):
        raise PosgapError("the hub's token: set HF_TOKEN (a token that may write, from huggingface.co/settings/tokens)")
    api, revision = HfApi(token=token, library_name="posgap"), config.revision or "main"
    with _refusals(config.to), tempfile.TemporaryDirectory(prefix="posgap-") as place:
        api.create_repo(config.to, private=config.private or None, exist_ok=True)
        if config.revision:
            api.create_branch(config.to, branch=config.revision, exist_ok=True)
        there = _card_there(api, config.to, revision, Path(place))
        text = card(there, config.to, swept) if there else here
        written: Mapping[str, Path | bytes] = files | {CARD: text.encode()}
        operations = [CommitOperationAdd(name, path) for name, path in sorted(written.items())]
        title = f"Position gap {swept[0].figures.gap:.1f} points, measured by posgap"
        commit = api.create_commit(config.to, operations, commit_message=title, revision=revision)
    show(str(commit.commit_url), {"commit": str(commit.commit_url)})


def card(text: str, name: str, swept: Sequence[_Swept]) -> str:
    """A model's card (README.md) with the figures of sweeps, in its `model-index` and in a part of its own.

    What else the card says stays; an empty one begins with the model's name. Raises `PosgapError` where the metadata of
    the card cannot be read.
    """
    try:
        made = ModelCard(text or f"---\nlibrary_name: transformers\n---\n\n# {name.rpartition('/')[2]}\n")
    except (ValueError, YAMLError) as error:
        reason = shortened(str(error))
        raise PosgapError(f"{CARD}: its metadata, between two lines of ---, cannot be read: {reason}") from None
    data = cast(ModelCardData, made.data)
    others = [result for result in data.eval_results or [] if not result.dataset_type.startswith(DATASET)]
    data.eval_results = [*others, *(result for sweep in swept for result in results(sweep.figures))]
    data.model_name = data.model_name or name.rpartition("/")[2]
    data.tags = list(dict.fromkeys([*(data.tags or []), *TAGS]))
    data.library_name = data.library_name or "transformers"
    parts = [_part(sweep) for sweep in swept]
    if any(sweep.figures.scaling for sweep in swept):
        parts.append(
            "The model has RoPE factors in its `config.json`, which plain transformers leaves out: load it by "
            "`posgap.load_model`.\n"
        )
    ours = "\n".join([_BEGIN, *parts, _END, ""])
    body = made.text
    made.text = _OURS.sub(lambda _: ours, body, count=1) if _OURS.search(body) else f"{body.rstrip()}\n\n{ours}"
    return str(made)


def _part(swept: _Swept) -> str:
    links = [f"[{name}]({swept.there}/{name})" for name in swept.files if name != _PICTURE]
    picture = f"{swept.there}/{_PICTURE}" if _PICTURE in swept.files else ""
    return f"{section(swept.figures, picture)}\nMore: {', '.join(links)}.\n"


def _sweeps(config: HubPushConfig) -> list[_Swept]:
    model, swept = source(config.model).digest(), list[_Swept]()
    for location in config.sweeps:
        folder = cast(Path, source(location).fetch())
        figures = read_sweep(folder)
        figures.require_model_alone(location, "a model's card is to say what the model does: push a sweep without one")
        if model and figures.model_digest and figures.model_digest != model:
            raise PosgapError(
                f"{location}: is a sweep of {shortened(figures.model)}, which is another model than {config.model}, or "
                "has changed since: sweep again what is to be pushed"
            )
        if not figures.model_digest:
            log.warning("%s: does not say by any digest which model it is of; it is taken for this one's", location)
        at = f"{figures.filled.tokens}-tokens" if figures.filled else figures.n_docs
        there = f"posgap/{figures.task}-{at}"
        taken = sum(re.sub(r"\.\d+$", "", other.there) == there for other in swept)
        names = [SWEEP_FILE, _PICTURE, *([_REPORT] if config.report else [])]
        files = {name: folder / name for name in names if (folder / name).is_file()}
        swept.append(_Swept(figures, f"{there}.{taken + 1}" if taken else there, files))
    return swept


def _files(config: HubPushConfig, swept: Sequence[_Swept]) -> dict[str, Path]:
    """What is pushed, by its name there: the model's files, with its card as it is here, and those of the sweeps."""
    folder = source(config.model).fetch()
    if not isinstance(folder, Path) or not (folder / "config.json").is_file():
        raise PosgapError(f"{config.model}: is no folder of a model, with a config.json")
    hidden = re.compile(r"(^|/)\.")
    files = {name: folder / name for name in OnDisk(folder).sizes() if name != MANIFEST and not hidden.search(name)}
    for sweep in swept:
        files |= {f"{sweep.there}/{name}": path for name, path in sweep.files.items()}
    return files


def _card_in(files: Mapping[str, Path]) -> str:
    """The card in the model's folder; empty for none."""
    return _text(files[CARD]) if CARD in files else ""


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise PosgapError(f"{CARD}: is no text in UTF-8; save it as that") from None


def _card_there(api: HfApi, name: str, revision: str, place: Path) -> str:
    """The card that the model has on the hub already; empty for none."""
    try:
        file = api.hf_hub_download(name, CARD, revision=revision, local_dir=place)
    except (EntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError):
        return ""
    return _text(Path(file))


@contextmanager
def _refusals(name: str) -> Iterator[None]:
    """What the hub refuses, and that it cannot be reached, in a line."""
    try:
        yield
    except HfHubHTTPError as error:
        reason = error.server_message or (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise PosgapError(
            f"{name}: the hub refuses ({error.response.status_code}): {shortened(reason)}; does the token in HF_TOKEN "
            "write there?"
        ) from None
    except (httpx2.TransportError, OSError, RuntimeError) as error:
        reason = shortened(f"{type(error).__name__}: {error}")
        raise PosgapError(f"{name}: the hub cannot be reached ({reason}); nothing was committed") from None

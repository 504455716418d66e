"""`posgap champion`: a sweep of the registered champion, which candidates are compared with and which `watch` judges.

It runs several stages: if the champion was not swept with these settings, it is swept now. Champions' sweeps are kept
in the cache, keyed by what decides them.
"""

import logging
import shutil
from pathlib import Path
from typing import ClassVar

from pydantic import ValidationError

from posgap import __version__
from posgap.foundation.errors import PosgapError, first_fault
from posgap.foundation.files import Record, atomic, delete_path, digest_of, digest_path, read_model, write_json
from posgap.foundation.heavy_types import ModelVersion
from posgap.foundation.locations import MODELS, Location
from posgap.gating.evidence import ANCHOR, GUARD_FILE, GUARDS, TEXT_FILE
from posgap.gating.guards import MeasuredGuard
from posgap.generation.backends import BACKENDS
from posgap.measurement.comparability import list_differences
from posgap.measurement.evidence import Evidence
from posgap.measurement.page_examples import pack_folders
from posgap.measurement.plain_text import TextScores, read_texts, score_model
from posgap.measurement.sweep_folder import write_readable
from posgap.measurement.sweeps import SWEEP_FILE, Sweep, read_sweep
from posgap.models.precision import device_class
from posgap.options.champion import ChampionConfig
from posgap.options.sweep import SweepConfig
from posgap.storage.cache import MANIFEST, fetch_location, lock_mark
from posgap.storage.inputs import source
from posgap.storage.lineage import examples_of, find_from
from posgap.tracking import registry
from posgap.tracking.runs import Run
from posgap.tracking.sweeps import log_sweep
from posgap.tracking.version_record import anchor_of, judged_sweep, swept_champions
from posgap.verbs.frame import stage
from posgap.verbs.sweep import sweep_model

log = logging.getLogger(__name__)
CHAMPION_FILE = "champion.json"


class _CachedSweepConfig(SweepConfig):
    is_costly: ClassVar[bool] = False  # a cached one is made again if other examples are given


class SweptVersion(Record):
    """The contents of `champion.json`: which version of a registered model was swept; null if there was no champion.

    `promoted_mean_ci95` is the interval of its mean at promotion, if MLflow has it.
    """

    name: str
    version: str | None
    promoted_mean_ci95: tuple[float, float] | None = None


@stage
def champion(config: ChampionConfig, out: Path, run: Run) -> None:
    """Writes a sweep of the registered champion, and `champion.json`: its name and version.

    It has the settings of the sweep `like`, else those of its promotion. If the registered model has no champion there
    is no sweep, and the version is null. `PosgapError` if it cannot be swept, or its settings are unknown.
    """
    version = registry.get_version(config.name, config.version) if config.version else registry.to_beat(config.name)
    if version is None:
        write_json(out / CHAMPION_FILE, SweptVersion(name=config.name, version=None).model_dump())
        log.info("%s has no champion, so there is nothing to sweep", config.name)
        run.artifact(out)
        return
    if config.like:
        swept = sweep_like(version, config.like, config.examples)
    else:
        swept = _on_other_examples(version, config.examples)
    shutil.copytree(fetch_location(swept), out, ignore=shutil.ignore_patterns(MANIFEST, ".*"), dirs_exist_ok=True)
    promoted = _promoted_with(version)
    before = read_sweep(promoted).mean_ci95 if promoted else None
    judged = SweptVersion(name=config.name, version=str(version.version), promoted_mean_ci95=before)
    write_json(out / CHAMPION_FILE, judged.model_dump())
    figures = read_sweep(out)
    # A promoted sweep is kept for its verdict, without its pages.
    write_readable(figures, out, pack_folders([Evidence(out)]))
    log_sweep(figures, run)
    run.tags({"posgap.version": str(version.version)})
    run.artifact(out)


def says_there_is_none(folder: Location) -> bool:
    """Whether a folder is from `champion`, and says that there was no champion to be swept."""
    file = source(folder).local_file(CHAMPION_FILE)
    return file is not None and read_model(SweptVersion, file, CHAMPION_FILE).version is None


def sweep_like(version: ModelVersion, like: Location, examples: Location | None = None) -> Location:
    """A sweep of a registered version with another sweep's settings, and the same for its guards: the sweep that it was
    promoted with, or a new one.

    If the best champion up to that version is another one, its sweep is in the folder as `anchor`. `examples` are those
    of the other sweep, if its manifest does not say where they are.
    """
    parts = _sweep_with_guards(version, like, examples)
    best = anchor_of(version)
    if best is not None:
        log.info("the best champion so far is version %s: the candidate is also compared with it", best.version)
        parts |= {f"{ANCHOR}/{name}": folder for name, folder in _sweep_with_guards(best, like, examples).items()}
    if len(parts) == 1:
        return parts[""]
    digests = [
        digest_path(next(filter(Path.is_file, (folder / SWEEP_FILE, folder / TEXT_FILE)))) for folder in parts.values()
    ]
    both = _folder(version) / f"beside-{digest_of([*parts, *digests])[:16]}"
    with lock_mark(_folder(version).name):
        if not both.is_dir():
            with atomic(both) as partial:
                for name, folder in parts.items():
                    own = partial / name if name else partial
                    shutil.copytree(
                        folder, own, ignore=shutil.ignore_patterns(MANIFEST, ".*", GUARDS), dirs_exist_ok=True
                    )
    return both


def _sweep_with_guards(version: ModelVersion, like: Location, examples: Location | None) -> dict[str, Path]:
    """The folders of a version's sweep like another one, by "", and of its guards, by their places below that."""
    there = Path(fetch_location(like))
    examples = examples or examples_of(like)
    promoted = _promoted_with(version)
    folders = {"": Path(fetch_location(_sweep_one_like(version, there, examples, promoted)))}
    for guard in sorted(there.glob(f"{GUARDS}/*")):
        name = f"{GUARDS}/{guard.name}"
        kept = promoted / name if promoted and (promoted / name).is_dir() else None
        place = read_model(MeasuredGuard, guard, GUARD_FILE).place
        if not (guard / TEXT_FILE).is_file():
            at = find_from(place, there) if place else examples
            folders[name] = Path(fetch_location(_sweep_one_like(version, guard, at, kept)))
        else:
            folders[name] = _score_texts_like(version, guard, kept, find_from(place, there))
    return folders


def _score_texts_like(version: ModelVersion, like: Path, kept: Path | None, place: Location) -> Path:
    """The folder of a version's scores of the plain texts that another model was asked, which lie at `place`."""
    asked = read_model(TextScores, like, TEXT_FILE)
    known = read_model(TextScores, kept, TEXT_FILE) if kept and (kept / TEXT_FILE).is_file() else None
    if kept and known and known.scores.keys() == asked.scores.keys() and known.dtype == asked.dtype:
        return kept
    out = _folder(version) / f"texts-{digest_of([__version__, sorted(asked.scores), asked.dtype])[:16]}"
    with lock_mark(_folder(version).name):
        if out.is_dir():
            return out
        texts = [text for text in read_texts(Path(fetch_location(place))) if digest_of(text) in asked.scores]
        if len(texts) < len(asked.scores):
            raise PosgapError(f"{place}: not the texts that {like} is of; sweep the candidate again")
        with atomic(out) as partial:
            partial.mkdir()
            model = registry.bring_model(f"{MODELS}{version.name}/{version.version}", partial / "model")
            scores = score_model(str(model), asked.dtype, texts)
            told = {"label": "champion", "model": f"{MODELS}{version.name}/{version.version}", "scores": scores}
            told |= {"model_digest": digest_path(model), "device": device_class()}
            delete_path(partial / "model")
            write_json(partial / TEXT_FILE, asked.model_copy(update=told).model_dump(mode="json"))
    return out


def _sweep_one_like(version: ModelVersion, like: Path, examples: Location | None, promoted: Path | None) -> Location:
    asked = read_sweep(like)
    if promoted and not list_differences(read_sweep(promoted), asked):
        log.info("using the sweep with which the champion was promoted: it asked the same")
        return promoted
    if examples is None:
        raise PosgapError(
            f"{version.name} version {version.version}: was not swept on the candidate's examples, and {like} "
            "does not name their file; give it by --examples"
        )
    return _sweep_version(version, asked, examples, asked.examples_digest)


def _on_other_examples(version: ModelVersion, examples: Location) -> Location:
    """A sweep of a registered version, asked as when it was promoted, but on these examples."""
    promoted = _promoted_with(version)
    if promoted is None:
        raise PosgapError(
            f"{version.name} version {version.version}: MLflow does not say how it was swept; give a sweep "
            "that it is to be asked like, with --like"
        )
    return _sweep_version(version, read_sweep(promoted), examples, source(examples).digest())


def _folder(version: ModelVersion) -> Path:
    """Returns the local folder of what is known of a version."""
    return swept_champions() / digest_of(registry.identity(version))[:16]


def _promoted_with(version: ModelVersion) -> Path | None:
    """Returns the sweep with which a version was promoted, from MLflow; None if it is missing or was changed."""
    folder = _folder(version)
    run = version.tags.get(registry.PROMOTION_RUN, "")
    kept = folder / f"sweep-{digest_of(run)[:16]}"
    with lock_mark(folder.name):
        for _ in range(2):  # the content may come from a broken download
            there = judged_sweep(version, kept)
            if there:
                return there
            delete_path(kept)
    log.warning("%s version %s: MLflow lacks the sweep that it was promoted with", version.name, version.version)
    return None


def _sweep_version(version: ModelVersion, like: Sweep, examples: Location, content: str) -> Location:
    """A sweep of a registered version with the settings of another, on examples that have this content."""
    where = f"{version.name} version {version.version}"
    settings = like.settings | {"shard": "", "label": "champion"}
    if not BACKENDS[settings.get("backend", SweepConfig.default("backend"))].local:
        raise PosgapError(
            f"{where}: the candidate was swept at an endpoint, the champion was not; sweep the champion there in "
            "the same way, and give its folder as --champion"
        )
    log.info("the champion is swept on %s", examples)
    folder = _folder(version)
    out = folder / digest_of([__version__, settings, content])[:16]
    try:
        named = {"model": f"{MODELS}{version.name}/{version.version}", "examples": examples, "out": out}
        asked = _CachedSweepConfig(**settings | named)
    except ValidationError as error:
        raise PosgapError(f"{where}: settings of {like.label}: {first_fault(error)}; sweep that again") from None
    # Candidates that are judged side by side need the champion's sweep once.
    with lock_mark(folder.name):
        return sweep_model(asked)

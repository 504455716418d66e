"""Measures the guards of a policy beside a sweep."""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from posgap.data.reading import read_examples
from posgap.distillation.methods import label_of
from posgap.foundation.errors import Contradiction, PosgapError
from posgap.foundation.files import write_json
from posgap.foundation.locations import as_location, with_uris
from posgap.foundation.printing import RESULT
from posgap.gating.demands import Guard
from posgap.gating.evidence import GUARD_FILE, TEXT_FILE
from posgap.gating.guards import MeasuredGuard, describe, placements_of
from posgap.measurement.plain_text import TextScores, read_texts, score_model
from posgap.models.precision import device_class
from posgap.options.sweep import SweepConfig
from posgap.storage.inputs import source
from posgap.tasks.examples import AnyExample
from posgap.tasks.prompts import TextPromptBuilder

log = logging.getLogger(__name__)


def _guard_config(config: SweepConfig, name: str, guard: Guard) -> SweepConfig:
    """The sweep of a guard on examples, which asks as `config` does in all else. Raises `PosgapError` if its file is
    another than its sha256 names."""
    task = guard.task or config.task
    n_docs = guard.n_docs or 2 * config.n_docs
    asked = {"task": task, "n_docs": n_docs, "positions": placements_of(guard, task, n_docs), "limit": guard.limit}
    asked |= {"shard": "", "baselines": []}
    if task != config.task:
        asked |= {"metric": "", "max_new_tokens": 0}
    if guard.examples:
        asked["examples"] = _fetch(name, guard)
    return SweepConfig(**config.model_dump(exclude={"guards"}) | asked)


def _why_not_asked(builder: TextPromptBuilder, config: SweepConfig, examples: Sequence[AnyExample]) -> str:
    """Returns why the examples do not make prompts of this many documents; empty if they do."""
    try:
        for placement in builder.task.choose_placements(config.n_docs, config.positions):
            for example in examples[: config.limit]:
                if len(builder.documents(example, placement)) < config.n_docs:
                    return f"example {example.id} has fewer than {config.n_docs} documents"
                builder.prompt(example, placement)
    except PosgapError as error:  # too many for the task, or for the model's context
        return str(error)
    return ""


class AskableGuard(NamedTuple):
    """A guard on examples, and what asks it."""

    name: str
    guard: Guard
    config: SweepConfig
    builder: TextPromptBuilder
    examples: Sequence[AnyExample]


def askable_guards(config: SweepConfig, examples: Sequence[AnyExample]) -> Iterator[AskableGuard]:
    """Yields the guards on examples, beside a sweep of these `examples`. One that its policy asks only where that is
    possible is left out where it is not; any other raises `PosgapError` there."""
    for name, guard in config.guards.items():
        if guard.text:
            continue
        of_guard = _guard_config(config, name, guard)
        others = read_examples(of_guard.examples) if guard.examples else examples
        builder = of_guard.builder()
        why_not = _why_not_asked(builder, of_guard, others)
        if not why_not:
            yield AskableGuard(name, guard, of_guard, builder, others)
        elif guard.where_possible:
            log.warning("guard %s is left out: %s", name, why_not)
        else:
            raise PosgapError(f"guard {name}: {why_not}")


def write_guard(place: Path, guard: Guard) -> None:
    """Writes beside a guard's measurement its settings and the place of its examples."""
    measured = MeasuredGuard(guard=guard, place=with_uris(guard.place) if guard.place else "")
    write_json(place / GUARD_FILE, measured.model_dump(mode="json"))


def measure_texts(config: SweepConfig, out: Path) -> None:
    """Measures the guards on plain text, each into a folder in `out`."""
    for name, guard in config.guards.items():
        if not guard.text:
            continue
        texts = read_texts(_fetch(name, guard))[: guard.limit]
        scores = TextScores(
            label=config.label or label_of(config.model, ""),
            model=with_uris(config.model),
            model_digest=config.digest("model"),
            dtype=config.dtype,
            device=device_class(),
            scores=score_model(config.model, config.dtype, texts),
        )
        (out / name).mkdir(parents=True)
        write_json(out / name / TEXT_FILE, scores.model_dump(mode="json"))
        write_guard(out / name, guard)
        log.log(RESULT, "guard %s: %s: %.3f nats a token", name, describe(scores), scores.mean)


def _fetch(name: str, guard: Guard) -> Path:
    there = source(as_location(guard.place))
    if guard.sha256 not in ("", there.digest()):
        raise Contradiction(f"guard {name}: {guard.place} is another file than its sha256 names")
    return Path(there.fetch())

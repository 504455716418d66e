"""A first look at a model's position gap, `posgap sweep MODEL`: which made examples two minutes allow."""

import json
import logging
import shlex
import time
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from posgap.data.made import made_examples, making_command
from posgap.data.readers import litm_kv_examples
from posgap.data.reading import read_examples, write_examples
from posgap.data.synthetic import uuid_records
from posgap.foundation.errors import PosgapError
from posgap.foundation.locations import is_uri, with_uris
from posgap.generation.backends import BACKENDS, open_generator
from posgap.generation.generator import Generator, Sampling
from posgap.measurement.predictions import outcome_of, read_predictions, swept_rows
from posgap.measurement.sweep_run import list_placements
from posgap.options.sweep import SweepConfig, SweepVerbConfig
from posgap.storage.cache import MANIFEST
from posgap.tasks.examples import AnyExample
from posgap.tasks.placements import spaced_positions
from posgap.tasks.prompts import Prompt, TextPromptBuilder
from posgap.tasks.registry import TASKS
from posgap.verbs.inputs import with_local_paths

log = logging.getLogger(__name__)
SECONDS = 110.0  # that a first look may take, its model's loading included: pages take the rest of two minutes
SIZES = (5, 10, 20)  # documents in a prompt: the largest that leaves time is taken
CHOICES = 4  # named items, few of them in a prompt
EXAMPLES, POSITIONS = 20, 5
MIN_EXAMPLES, MIN_POSITIONS = 4, 3  # if even the shortest prompts take too long, or an example has many
DIGITS, ANSWER = 8, 32  # of keys and values, which small models can copy, and tokens of an answer with room for words
RELIABLE = 300  # examples of the real thing, as `check` makes them
OF_EXAMPLES = ("lengths", "estimate", "baselines", "samples", "mitigation", "shard")  # options that need given ones


def choose_first_look(config: SweepVerbConfig) -> tuple[SweepConfig, Generator | None]:
    """Makes as many examples as two minutes allow, beside `config.out`. Returns the sweep of these examples, and the
    generator that was timed, if it is a local model that is loaded by now.

    Examples of an earlier look with the same settings are reused. Raises `PosgapError` for options that need given
    examples, and if another finished sweep is there.
    """
    for name in OF_EXAMPLES:
        if getattr(config, name) != config.default(name):
            raise PosgapError(f"--{name}: is of examples; give --examples")
    if is_uri(config.out):
        raise PosgapError("--out: made examples are written beside it: write to this machine, or give --examples")
    if config.task == "kv" and "max_new_tokens" not in config.model_fields_set:
        config = config.model_copy(update={"max_new_tokens": ANSWER})
    file = Path(f"{config.out}.examples.jsonl.gz")
    generator = None
    examples = _find_made(config, file)
    if not examples:
        if not config.force and (Path(config.out) / MANIFEST).exists():
            raise PosgapError(
                f"{config.out}: has a finished sweep of other examples than a first look would take; --force "
                "replaces it, another --out keeps it"
            )
        examples, generator = _choose_examples(config)
        write_examples(file, examples)
    n_docs = _count_documents(examples)
    positions = _choose_positions(config, n_docs, len(examples))
    return config.with_examples(file, n_docs=n_docs, positions=positions), generator


def _find_made(config: SweepVerbConfig, file: Path) -> list[AnyExample]:
    """Returns the examples of an earlier look with the same settings, which then resumes or is complete."""
    if config.force or not file.exists():
        return []
    examples = read_examples(file)
    n_docs = _count_documents(examples)
    is_other = "n_docs" in config.model_fields_set and n_docs != config.n_docs
    return [] if is_other or examples != _make(config, len(examples), n_docs) else examples


def _count_documents(examples: Sequence[AnyExample]) -> int:
    return len(examples[0].gold) + len(examples[0].distractors)


def _choose_positions(config: SweepVerbConfig, n_docs: int, examples: int) -> list[str]:
    """Chooses the positions for this number of examples; the fewest examples get fewer positions."""
    task = TASKS[config.task]
    if config.positions or task.n_gold > 1 or task.slot_names:
        return config.positions
    count = POSITIONS if examples > MIN_EXAMPLES else MIN_POSITIONS
    return [str(position) for position in spaced_positions(n_docs, count)]


class Size(NamedTuple):
    """A number of documents, how many prompts an example has then, and the seconds that one of them takes."""

    n_docs: int
    prompts: int
    seconds: float

    @property
    def examples(self) -> int:
        """The number of examples that have as many prompts as `EXAMPLES` at `POSITIONS`."""
        return min(EXAMPLES, max(MIN_EXAMPLES, EXAMPLES * POSITIONS // self.prompts))

    @property
    def needed(self) -> float:
        """The seconds that these examples take."""
        return self.examples * self.prompts * self.seconds


def _choose_examples(config: SweepVerbConfig) -> tuple[list[AnyExample], Generator | None]:
    """Makes examples of the largest size that leaves time for enough of them. Returns the generator that was timed too,
    if it is of a model on this machine, which is not to be loaded again."""
    log.info("first look at %s with made examples: timing some prompts", with_uris(config.model))
    ends = time.monotonic() + SECONDS
    builder, generator = _open(config)
    size = _choose_size(config, builder, generator, ends)
    each = size.prompts * size.seconds
    count = min(size.examples, max(MIN_EXAMPLES, int((ends - time.monotonic()) / each)))
    prompts = count * (len(_choose_positions(config, size.n_docs, count)) or size.prompts)
    log.info(
        "using %d examples of %d documents: %d prompts, about %.0f s",
        count, size.n_docs, prompts, prompts * size.seconds,
    )  # fmt: skip
    return _make(config, count, size.n_docs), generator if BACKENDS[config.backend].local else None


@with_local_paths
def _open(config: SweepVerbConfig) -> tuple[TextPromptBuilder, Generator]:
    settled = config.resolve_auto()
    builder = settled.builder()
    return builder, open_generator(settled.access(), builder)


def _choose_size(config: SweepVerbConfig, builder: TextPromptBuilder, generator: Generator, ends: float) -> Size:
    """Times an example of each size, the shortest first, and returns the largest that leaves time until `ends` of the
    monotonic clock, or else the shortest. Twice as many documents are taken to need twice the time or more.

    Raises `PosgapError` if none fits into the model's context, or none gets an answer.
    """
    sizes = [config.n_docs] if "n_docs" in config.model_fields_set else SIZES
    if TASKS[config.task].slot_names and len(sizes) > 1:
        sizes = [CHOICES]
    chosen: Size | None = None
    for n_docs in sizes:
        if chosen and 2 * chosen.needed > ends - time.monotonic():
            break
        try:
            prompts = _build_prompts(config, builder, n_docs)
        except PosgapError:
            if chosen is None:
                raise
            break
        if chosen is None:
            _time(config, builder, generator, prompts[:1])  # the first prompts load the model, and warm it up
            one = _time(config, builder, generator, prompts[-1:])
            if one * MIN_EXAMPLES * len(prompts) > ends - time.monotonic():
                return Size(n_docs, len(prompts), one)
        size = Size(n_docs, len(prompts), _time(config, builder, generator, prompts[:POSITIONS]))
        if chosen and size.needed > ends - time.monotonic():
            break
        chosen = size
    assert chosen
    return chosen


def _build_prompts(config: SweepVerbConfig, builder: TextPromptBuilder, n_docs: int) -> list[Prompt]:
    """Builds the prompts of an example at every placement."""
    (example,) = _make(config, 1, n_docs)
    placements = list_placements(builder, n_docs, _choose_positions(config, n_docs, EXAMPLES))
    return [builder.prompt(example, placement) for placement in placements]


def _time(
    config: SweepVerbConfig, builder: TextPromptBuilder, generator: Generator, prompts: Sequence[Prompt]
) -> float:
    """Returns the seconds that each of an example's prompts takes, asked together as a sweep does. `PosgapError` if
    none gets an answer: no sweep would come of it."""
    began = time.monotonic()
    completions = [completion for _, _, completion in generator.generate([prompts], Sampling.for_builder(builder))]
    if all(completion.outcome == "failed" for completion in completions):
        raise PosgapError(
            f"{with_uris(config.model)}: no answer to the first prompt: {completions[-1].reason}; try again when the "
            "endpoint works"
        )
    return max(time.monotonic() - began, 1e-6) / len(prompts)


def _make(config: SweepVerbConfig, count: int, n_docs: int) -> list[AnyExample]:
    """Makes examples; key-value records get short keys and values, so that more fit into the time."""
    if config.task != "kv":
        return list(made_examples(TASKS[config.task], count, n_docs, config.seed))
    rows = enumerate(uuid_records(count, n_docs, config.seed), start=1)
    return list(chain.from_iterable(litm_kv_examples(row, "made", line, DIGITS, DIGITS) for line, row in rows))


def reliable_commands(config: SweepConfig, place: Path) -> list[str]:
    """Returns the commands that make enough examples, and sweep the model with them as this first look asked it."""
    task = TASKS[config.task]
    # Files named after the look, so that they do not replace others in the folder.
    file = f"{config.out}-{RELIABLE}.examples.jsonl.gz"
    making = [making_command(task, RELIABLE, config.n_docs, config.seed, shlex.quote(file))]
    if config.task == "kv":
        made = f"{config.out}-{RELIABLE}.made.jsonl.gz"
        making = [
            making_command(task, RELIABLE, config.n_docs, config.seed, shlex.quote(made)),
            f"posgap data import --format litm-kv --input {shlex.quote(made)} --key-digits {DIGITS} "
            f"--value-digits {DIGITS} --out {shlex.quote(file)}",
        ]
    words = ["--task", config.task, "--examples", file, "--n-docs", str(config.n_docs)]
    limit = config.max_new_tokens
    if _are_cut(place):
        limit = 2 * (limit or task.max_new_tokens)
    words += ["--max-new-tokens", str(limit)] if limit else []
    named = ["posgap", "sweep", "--model", with_uris(config.model)]
    return [*making, shlex.join([*named, *_list_options(config), *words, "--out", f"{config.out}-{RELIABLE}"])]


def _are_cut(place: Path) -> bool:
    """Says whether at least half of the answers are cut, as `Probe.findings` says it, and so need a higher limit."""
    rows = swept_rows(read_predictions(place))
    is_cut = [row.get("cut") or outcome_of(row) == "truncated" for row in rows if not row["correct"]]
    return 2 * sum(map(bool, is_cut)) >= len(rows)


_OF_A_LOOK = {"task", "n_docs", "positions", "limit", "max_new_tokens"}  # the real measurement sets these differently


def _list_options(config: SweepConfig) -> list[str]:
    """Returns the words of all other options that are no defaults. The values of headers, which may be secrets, are
    left to be filled in; values hidden in manifests are hidden here too."""
    words: list[str] = []
    for name, value in config.parameter_values().items():
        if value == config.default(name) or name in _OF_A_LOOK or (name == "backend" and config.base_url):
            continue
        if name == "header":
            values = [f"{each}=VALUE" for each in config.header]
        elif isinstance(value, dict) or name == "stop":
            values = [json.dumps(value)]
        else:
            values = [",".join(map(str, value)) if isinstance(value, list) else str(value)]
        for each in values:
            words += [f"--{name.replace('_', '-')}", each]
    return words

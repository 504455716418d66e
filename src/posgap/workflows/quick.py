"""`posgap sweep MODEL`: a first look at a model's position gap, on made examples, in about two minutes.

With examples it is the stage `sweep` and no more.
"""

import json
import logging
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from posgap.data.made import made_examples, making_command
from posgap.foundation.errors import PosgapError
from posgap.foundation.files import work_folder, write_json
from posgap.foundation.locations import Location, is_uri, with_uris
from posgap.foundation.printing import show
from posgap.generation.backends import BACKENDS, open_generator, staying_open
from posgap.generation.generator import Generator, Sampling
from posgap.measurement.config import SweepConfig
from posgap.measurement.mitigated import Question
from posgap.measurement.pilot import Setting
from posgap.measurement.probe import in_words
from posgap.measurement.sweeping import baseline_placements, mitigated_by, placements_of
from posgap.measurement.sweeps import (
    SWEEP_PAGE,
    outcome_of,
    read_predictions,
    read_sweep,
    swept_rows,
)
from posgap.measurement.text_curve import text_curve
from posgap.stages.frame import identity_now, is_complete
from posgap.stages.sweep import sweep as sweep_stage
from posgap.storage.inputs import with_local_paths
from posgap.storage.manifests import read_record
from posgap.tasks.examples import AnyExample
from posgap.tasks.placements import Placement, spaced_positions
from posgap.tasks.prompts import Prompt, TextPromptBuilder
from posgap.tasks.reading import read_examples, write_examples
from posgap.tasks.registry import TASKS
from posgap.tasks.task import Task
from posgap.workflows.config import SweepVerbConfig

log = logging.getLogger(__name__)
SECONDS = 120.0  # that the prompts of a first look may take
POSITIONS = 5  # at most, spread evenly
DOCUMENTS = (20, 15, 10, 7, 5)  # in a prompt: the first number that leaves time for enough examples
CHOICES = 4  # items that have names, of which a prompt has few
DIGITS, ANSWER = 8, 32  # of keys and values, which small models can copy, and tokens of an answer with room for words
ENOUGH, MIN_EXAMPLES = 20, 4
MAX_EXAMPLES = 100
MAX_PAID = 200  # prompts of an endpoint, which may cost money, beside those that are timed
RELIABLE = 300  # examples of the real thing, as `check` makes them


def sweep(config: SweepVerbConfig) -> Location:
    """Sweeps a model. Without examples some are made: as many, and as long, as the model's context and two minutes
    allow. It prints the curve then, where the page is, and the commands for figures to rely on."""
    given = {name: getattr(config, name) for name in config.model_fields_set}
    if config.examples is not None:
        return sweep_stage(SweepConfig(**given))
    if config.task == "kv":
        given.setdefault("max_new_tokens", ANSWER)
    if is_uri(config.out):
        raise PosgapError("--out: made examples are written beside it: write to this machine, or give --examples")
    given["examples"] = Path(f"{config.out}.examples.jsonl.gz")
    return _look(SweepConfig(**given), "n_docs" in given)


def _look(config: SweepConfig, n_docs_given: bool) -> Location:
    if config.lengths or config.estimate:
        raise PosgapError(f"--{'lengths' if config.lengths else 'estimate'}: is of examples; give --examples")
    if made := _made_before(config, n_docs_given):
        place = sweep_stage(made)
    else:
        made, generator = _fitted(config, n_docs_given)
        with staying_open(generator):
            place = sweep_stage(made)
    _show(made, Path(place))
    return place


def _made_before(config: SweepConfig, n_docs_given: bool) -> SweepConfig | None:
    """The sweep of examples that an earlier look made, where it is asked for again, and is under way or complete."""
    if not Path(config.examples).exists():
        return None
    examples = read_examples(config.examples)
    n_docs = len(examples[0].gold) + len(examples[0].distractors)
    if n_docs_given and n_docs != config.n_docs:
        return None
    before = config.model_copy(update={"n_docs": n_docs, "positions": _positions(config, n_docs)})
    is_under_way = read_record(_record(config)).get("identity") == identity_now("sweep", before)
    return before if is_under_way or (not config.force and is_complete("sweep", before)) else None


def _record(config: SweepConfig) -> Path:
    """The file beside the answers so far that says of which sweep they are; it goes when that is complete."""
    return work_folder(Path(config.out)) / "look.json"


def _positions(config: SweepConfig, n_docs: int) -> list[str]:
    task = TASKS[config.task]
    if config.positions or task.n_gold > 1 or task.slot_names:
        return config.positions
    return [str(position) for position in spaced_positions(n_docs, POSITIONS)]


class Timed(NamedTuple):
    """How long a prompt and its response take, and how many tokens or characters the prompt has."""

    seconds: float
    size: int

    def of(self, size: int) -> float:
        """The seconds that a prompt of this size takes, which is no less than this one by its share."""
        return self.seconds * max(size / self.size, 1.0)


def _fitted(config: SweepConfig, n_docs_given: bool) -> tuple[SweepConfig, Generator]:
    """The sweep of as many made examples as there is time for, by some prompts of the shortest kind, which are timed,
    and what answered them. The examples are written."""
    task = TASKS[config.task]
    log.info("a first look at %s, with made examples: the first prompts are timed", with_uris(config.model))
    numbers = [config.n_docs] if n_docs_given else _numbers(task)
    build, generator, timed, sizes = _tried(config, numbers)
    left = SECONDS - timed.seconds
    n_docs = next((n for n in numbers if n in sizes and _affordable(config, build, n, timed, sizes, left) >= ENOUGH), 0)
    n_docs = n_docs or min(sizes)
    each = _asked(config, build, n_docs)
    most = MAX_EXAMPLES if BACKENDS[config.backend].local else min(MAX_EXAMPLES, MAX_PAID // each)
    n_examples = min(max(_affordable(config, build, n_docs, timed, sizes, left), MIN_EXAMPLES), most)
    fitted = config.model_copy(update={"n_docs": n_docs, "positions": _positions(config, n_docs)})
    write_examples(Path(config.examples), _made(config, n_examples, n_docs))
    _record(config).parent.mkdir(parents=True, exist_ok=True)
    write_json(_record(config), {"identity": identity_now("sweep", fitted)})
    log.info(
        "%d prompts: %d made examples of %d documents, each at %d placements; by the first ones this takes %s",
        n_examples * each, n_examples, n_docs, len(_placements(config, build, n_docs)),
        in_words(n_examples * each * timed.of(sizes[n_docs])),
    )  # fmt: skip
    return fitted, generator


def _numbers(task: Task) -> Sequence[int]:
    """The numbers of documents to choose from; of items that have names there are few."""
    return [CHOICES] if task.slot_names else DOCUMENTS


@with_local_paths
def _tried_here(config: SweepConfig) -> tuple[TextPromptBuilder, Generator]:
    settled = config.settled()
    build = BACKENDS[config.backend].builder(settled)
    return build, open_generator(settled, build)


def _tried(config: SweepConfig, numbers: Sequence[int]) -> tuple[TextPromptBuilder, Generator, Timed, dict[int, int]]:
    """The builder of the model's prompts, what answers them, how long the shortest kind takes, and the size of each
    kind that fits."""
    with TemporaryDirectory(prefix="posgap-") as folder:  # nothing is left behind where there is no such model
        examples = Path(folder) / "examples.jsonl.gz"
        write_examples(examples, _made(config, 1, min(numbers)))
        build, generator = _tried_here(config.model_copy(update={"examples": examples}))
    sizes: dict[int, int] = {}
    complaint: PosgapError | None = None
    is_paid = not BACKENDS[config.backend].local
    for n_docs in numbers:
        try:
            if is_paid and (each := _asked(config, build, n_docs)) > MAX_PAID:
                raise PosgapError(
                    f"a first look asks an endpoint at most {MAX_PAID} prompts, and these options make {each} of one "
                    "example; give examples by --examples"
                )
            sizes[n_docs] = _size(_prompts(config, build, n_docs)[0])
        except PosgapError as error:
            complaint = error
    if not sizes:
        assert complaint
        raise complaint
    most = POSITIONS if is_paid else None
    of = with_uris(config.model)
    timed = _timed(of, generator, build, *(_prompts(config, build, min(sizes), number)[:most] for number in (0, 1)))
    return build, generator, timed, sizes


def _made(config: SweepConfig, number: int, n_docs: int) -> list[AnyExample]:
    """So many made examples; records of few digits, of which more are asked about in the time."""
    if config.task == "kv":
        return [*Setting(n_docs, DIGITS).examples(number, config.seed)]
    return list(made_examples(TASKS[config.task], number, n_docs, config.seed))


def _prompts(config: SweepConfig, build: TextPromptBuilder, n_docs: int, number: int = 0) -> list[Prompt]:
    """The prompts of the made example of that number at every placement."""
    example = _made(config, number + 1, n_docs)[number]
    return [build.prompt(example, at) for at in _placements(config, build, n_docs)]


def _placements(config: SweepConfig, build: TextPromptBuilder, n_docs: int) -> list[Placement]:
    return placements_of(build, n_docs, _positions(config, n_docs), config.shard)


def _asked(config: SweepConfig, build: TextPromptBuilder, n_docs: int) -> int:
    """How many prompts the sweep asks of an example: of all samples, baselines, and orders of a mitigation."""
    (example,) = _made(config, 1, n_docs)
    baselines = baseline_placements(build, config.baselines, n_docs, config.shard)
    everywhere, mitigated = [*_placements(config, build, n_docs), *baselines], mitigated_by(config, build)
    if mitigated is None:
        return len(everywhere) * config.samples
    return sum(len(mitigated.asked(Question(example, at, 0)).prompts) for at in everywhere) * config.samples


def _size(prompt: Prompt) -> int:
    return len(prompt.token_ids) or len(prompt.text)


def _timed(
    of: str, generator: Generator, build: TextPromptBuilder, first: Sequence[Prompt], second: Sequence[Prompt]
) -> Timed:
    """The seconds of a prompt, by an example's prompts together, as the sweep asks them. What is asked first warms up:
    where that is quick, a second example is timed."""
    sampling = Sampling.of(build)
    seconds = _seconds(of, generator, first, sampling) / len(first)
    if seconds * len(first) < SECONDS / 6:
        seconds = _seconds(of, generator, second, sampling) / len(second)
    return Timed(seconds, _size(first[0]))


def _seconds(of: str, generator: Generator, prompts: Sequence[Prompt], sampling: Sampling) -> float:
    """What the prompts take. Raises `PosgapError` where none gets an answer, of which no sweep would come either."""
    began = time.monotonic()
    completions = [completion for _, _, completion in generator.generate([prompts], sampling)]
    if all(completion.outcome == "failed" for completion in completions):
        raise PosgapError(
            f"{of}: no answer to the first {len(prompts)} prompts, the last time: {completions[-1].reason}; "
            "try again when the endpoint works"
        )
    return max(time.monotonic() - began, 1e-6)


def _affordable(
    config: SweepConfig, build: TextPromptBuilder, n_docs: int, timed: Timed, sizes: dict[int, int], seconds: float
) -> int:
    """For how many examples of so many documents there is time."""
    return int(seconds / (_asked(config, build, n_docs) * timed.of(sizes[n_docs])))


def _show(config: SweepConfig, place: Path) -> None:
    """Prints the curve, the figures, the page's address, and the commands for figures to rely on."""
    swept = read_sweep(place)
    page = (place / SWEEP_PAGE).resolve().as_uri()
    lines = [
        text_curve(swept),
        "",
        f"gap {swept.gap:.1f} points ({swept.gap_ci95[0]:.1f} to {swept.gap_ci95[1]:.1f}), "
        f"mean {swept.mean:.1f} ({swept.mean_ci95[0]:.1f} to {swept.mean_ci95[1]:.1f}), "
        f"of {swept.n_examples} made examples",
        f"page: {page}",
        "",
        f"A first look. For figures to rely on, with {RELIABLE} examples at every position:",
        *(f"  {command}" for command in _real_thing(config, place)),
    ]
    show("\n".join(lines), swept.model_dump(mode="json", exclude_defaults=True))


def _real_thing(config: SweepConfig, place: Path) -> list[str]:
    """The commands that make enough examples, and sweep the model with them as this first look asked it."""
    task = TASKS[config.task]
    file = f"{task.synthetic}.jsonl.gz"
    making = [making_command(task, RELIABLE, config.n_docs, config.seed, file)]
    if config.task == "kv":
        making = Setting(config.n_docs, DIGITS).making(RELIABLE, config.seed)
    words = ["--task", config.task, "--examples", file, "--n-docs", str(config.n_docs)]
    limit = config.max_new_tokens
    if _are_cut(place):
        limit = 2 * (limit or task.max_new_tokens)
    words += ["--max-new-tokens", str(limit)] if limit else []
    named = ["posgap", "sweep", "--model", with_uris(config.model)]
    return [*making, shlex.join([*named, *_chosen(config), *words, "--out", f"{config.out}-{RELIABLE}"])]


def _are_cut(place: Path) -> bool:
    """Whether at least half of the answers are cut, as `Probe.findings` says it, and so need a higher limit."""
    rows = swept_rows(read_predictions(place))
    is_cut = [row.get("cut") or outcome_of(row) == "truncated" for row in rows if not row["correct"]]
    return 2 * sum(map(bool, is_cut)) >= len(rows)


_OF_A_LOOK = {"task", "n_docs", "positions", "limit", "max_new_tokens"}  # which the real thing has otherwise


def _chosen(config: SweepConfig) -> list[str]:
    """The words of all other options that are no defaults. The values of headers, which may be secrets, are left to be
    filled in, and what is hidden in manifests is hidden here too."""
    words: list[str] = []
    for name, value in config.chosen().items():
        if value == config.default(name) or name in _OF_A_LOOK or (name == "backend" and config.base_url):
            continue
        if name == "header":
            values = [f"{each}=VALUE" for each in config.header]
        elif isinstance(value, dict) or name == "stop":
            values = [json.dumps(value)]
        else:
            values = [",".join(map(str, value)) if isinstance(value, list) else str(value)]
        words += [word for each in values for word in (f"--{name.replace('_', '-')}", each)]
    return words

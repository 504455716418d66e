"""The data verbs: making data, importing files as examples, fetching public files, finding the version to take."""

import logging
from collections.abc import Callable, Iterator
from itertools import takewhile
from pathlib import Path

from posgap.data.bm25 import with_ranked_distractors
from posgap.data.config import (
    FetchConfig,
    ImportConfig,
    MakeChoiceConfig,
    MakeKVConfig,
    MakeNeedleConfig,
    MakeQAConfig,
    MakeSpansConfig,
    MakeTwoHopConfig,
    NewestConfig,
    ReleaseConfig,
)
from posgap.data.distractors import with_distractors
from posgap.data.fetching import fetched
from posgap.data.made import made
from posgap.data.multihop_readers import read_hotpotqa, read_musique
from posgap.data.passage_readers import read_dpr, read_own
from posgap.data.readers import read_litm_kv, read_litm_qa
from posgap.data.sources import SOURCES
from posgap.data.uuids import uuid_records
from posgap.foundation.errors import PosgapError
from posgap.foundation.files import read_rows, write_jsonl
from posgap.foundation.locations import Location
from posgap.foundation.printing import RESULT, keep, show
from posgap.storage.outputs import writes_file
from posgap.storage.versions import newest as newest_version
from posgap.storage.versions import release as release_version
from posgap.tasks.choice_files import LAYOUTS
from posgap.tasks.examples import AnyExample, Example, KVExample, RankedExample
from posgap.tasks.reading import read_examples, told_apart, write_examples
from posgap.tasks.retrieval_logs import Reading, ranked_examples, read_labels, without_answering

log = logging.getLogger(__name__)
_READERS: dict[str, Callable[[Path], Iterator[tuple[int, AnyExample | None]]]] = {
    "litm-qa": read_litm_qa,
    "dpr": read_dpr,
    "own": read_own,
    "hotpotqa": read_hotpotqa,
    "2wiki": read_hotpotqa,  # the same format
    "musique": read_musique,
    **{name: layout.read for name, layout in LAYOUTS.items()},
}
# What an example lacks that a reader leaves out.
_WITHOUT = {
    "dpr": "without a passage that contains the answer",
    **{name: layout.left_out for name, layout in LAYOUTS.items()},
}
_NOT_TWO = "that do not rest on two documents"


@writes_file
def make_kv(config: MakeKVConfig, file: Path) -> str:
    """Writes `config.n_examples` lines of UUID records."""
    write_jsonl(file, uuid_records(config.n_examples, config.n_keys, config.seed))
    return f"wrote {config.n_examples} examples of {config.n_keys} records"


@writes_file
def make_two_hop(config: MakeTwoHopConfig, file: Path) -> str:
    """Writes `config.n_examples` different two-hop examples."""
    write_examples(file, made(config))
    return f"wrote {config.n_examples} examples of {config.n_docs} documents"


@writes_file
def make_choice(config: MakeChoiceConfig, file: Path) -> str:
    """Writes `config.n_examples` different questions with items to choose from."""
    write_examples(file, made(config))
    return f"wrote {config.n_examples} examples of {config.n_docs} items"


@writes_file
def make_qa(config: MakeQAConfig, file: Path) -> str:
    """Writes the examples of `config.examples` with distractors from each other's gold documents."""
    questions = read_examples(config.examples)
    examples = [_without_distractors(e) for e in questions if not isinstance(e, KVExample)]
    if len(examples) < len(questions):
        raise PosgapError(
            f"{config.examples}: holds key-value records, but distractors are drawn from passages; make key-value data "
            "with `make kv`"
        )
    if config.distractors == "bm25":
        given = with_ranked_distractors(examples, config.n_docs)
    else:
        given = with_distractors(examples, config.n_docs, config.seed)
    made = [example for example in given if example is not None]
    if not made:
        raise PosgapError(
            f"{config.examples}: for no question are there {config.n_docs - 1} passages of other questions without its "
            "answer; lower n_docs or give more questions"
        )
    if len(made) < len(examples):
        log.info("left out %d: too few passages without their answer", len(examples) - len(made))
    write_examples(file, made)
    return f"wrote {len(made)} examples of {config.n_docs} documents"


def _without_distractors(example: Example | RankedExample) -> Example:
    """The question with its gold documents alone."""
    return Example(id=example.id, question=example.question, answers=example.answers, gold=example.gold, distractors=[])


@writes_file
def make_needle(config: MakeNeedleConfig, file: Path) -> str:
    """Writes `config.n_examples` needle examples, for the task `qa`."""
    write_examples(file, made(config))
    return f"wrote {config.n_examples} examples of {config.n_docs} documents"


@writes_file
def make_spans(config: MakeSpansConfig, file: Path) -> str:
    """Writes `config.n_examples` examples of several needles, for the tasks `spans`."""
    write_examples(file, made(config))
    return f"wrote {config.n_examples} examples of {config.n_docs} documents, {config.needles} of which are asked for"


def fetch(config: FetchConfig) -> Path:
    """Downloads a public file into the cache and prints its path."""
    source = SOURCES[config.name]
    path = fetched(source)
    log.info("next: posgap data import --format %s --input %s --out EXAMPLES", source.format, path)
    show(str(path), {"file": str(path), "format": source.format})
    return path


def newest(config: NewestConfig) -> Location:
    """Prints the location of the newest complete data version."""
    version = newest_version(config.prefix)
    log.info("version %s", version.name)
    show(str(version.location), {"version": version.name, "location": str(version.location)})
    return version.location


def release(config: ReleaseConfig) -> Location:
    """Has a data version be the one that is taken."""
    version = release_version(config.version, config.instead_of)
    keep({"version": version.name, "location": str(version.location)})
    log.log(RESULT, "version %s of %s is released", version.name, version.location)
    return version.location


@writes_file
def import_examples(config: ImportConfig, file: Path) -> str:
    """Writes the examples of a public file, or of some of its lines.

    Examples without the gold documents of their format (two hops, or one passage), or with fewer than
    `config.min_docs` documents, are left out and counted in the log.
    """
    numbered: Iterator[tuple[int, AnyExample | None]]
    reading = Reading()
    if config.format == "litm-kv":
        numbered = read_litm_kv(config.input, config.key_digits, config.value_digits, config.queries, config.seed)
    elif config.format == "rag":
        labels = read_labels(config.answers) if config.answers else {}
        numbered = ranked_examples(read_rows(config.input), str(config.input), labels, config.relevant, reading)
        if config.answering == "drop":
            numbered = without_answering(numbered, reading)
    else:
        numbered = _READERS[config.format](config.input)
    without = _WITHOUT.get(config.format, _NOT_TWO)
    small = f"with fewer than {config.min_docs} documents"
    left_out = {without: 0, small: 0}

    def usable() -> Iterator[tuple[int, AnyExample]]:
        number = 0
        for line, example in takewhile(lambda each: not config.last or each[0] <= config.last, numbered):
            if line < config.first:
                continue
            if example is None:
                left_out[without] += 1
            elif len(example.gold) + len(example.distractors) < config.min_docs:
                left_out[small] += 1
            else:
                number += 1
                yield line, example
        if not number:
            raise PosgapError(
                f"{config.input}: no examples to import in lines {config.first} to {config.last or 'the end'}"
                + (f"; {sum(left_out.values())} were left out" if any(left_out.values()) else "")
                + "".join(f"; {sentence}" for sentence in reading.sentences())
            )

    # One at a time, so that memory stays flat however long the file is.
    imported = write_examples(file, (example for _, example in told_apart(config.input, usable())))
    for why, number in left_out.items():
        if number:
            log.info("left out %d %s", number, why)
    for sentence in reading.sentences():
        log.info("%s", sentence)
    return f"imported {imported} examples from {config.input}"

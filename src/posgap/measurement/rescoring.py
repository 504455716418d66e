"""Checks whether a sweep follows from its responses, examples and metric: every response is scored again.

The figures of a sweep follow from the scores in its rows, and so does a verdict. Rows written by hand, or by a faulty
metric, could have any score.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from posgap.data.import_report import ImportReport
from posgap.data.reading import read_examples
from posgap.foundation.errors import Contradiction, NotAlike, NotFound, PosgapError, shorten
from posgap.foundation.locations import Location
from posgap.measurement.evidence import Evidence
from posgap.measurement.predictions import outcome_of, read_predictions
from posgap.measurement.sweeps import Sweep
from posgap.storage.cache import fetch_location
from posgap.storage.lineage import examples_of
from posgap.tasks.content import content_keys, examples_digest, find_groups
from posgap.tasks.echo import find_copying
from posgap.tasks.examples import AnyExample
from posgap.tasks.placements import Placement
from posgap.tasks.prompts import TextPromptBuilder
from posgap.tasks.task import PromptOrder

_AGREE = 1e-6  # allowed difference of scores from another machine


def swept_examples(
    folder: Path, given: Location | None = None, manifest_of: Path | None = None
) -> dict[str, AnyExample]:
    """Returns the examples of the sweep in `folder` by their content, read from the file `given`, or from the one that
    the manifest names. If a copy of a sweep has no manifest, the one in the folder `manifest_of` is read.

    Raises `PosgapError` if the examples are missing, or differ from the swept ones.
    """
    evidence = Evidence(folder)
    sweep = evidence.sweep
    place = given or examples_of(manifest_of or folder)
    try:
        # The sweep has already reported how a log was read.
        examples = read_examples(fetch_location(place), ImportReport()) if place else []
    except (PosgapError, OSError) as error:
        if given:
            raise
        raise NotFound(
            f"its examples are missing ({error}, here or in a folder above it); give them by --examples",
            at=str(folder),
        ) from None
    if not examples:
        raise NotFound("names no examples; give them with --examples", at=str(folder))
    found: dict[str, AnyExample] = {}
    for content, example in zip(content_keys(examples), examples):
        found.setdefault(content, example)
    swept = [found[content] for content in evidence.contents if content in found]
    if examples_digest(swept, 0 if sweep.filled else sweep.n_docs, sweep.asked.shuffle) != sweep.examples_digest:
        raise NotAlike(
            f"not the examples of {folder}: {len(swept)} of {sweep.n_examples} are here; give the swept "
            "file by --examples",
            at=str(place),
        )
    return {content: found[content] for content in evidence.contents}


def require_scores(evidence: Evidence, examples: Mapping[str, AnyExample]) -> None:
    """Scores every response of a sweep again with the metric installed here, finds its example by content, and checks
    again whether it repeats the prompt.

    Raises `PosgapError`, naming the first row, if a score differs, a row hides an echo, or other examples count as a
    group.
    """
    path = evidence.path
    sweep = evidence.sweep
    if find_groups(examples.values()) != sweep.groups:
        raise Contradiction("its groups of related examples are not those of the file; sweep again", at=str(path))
    scored = metric_scorer(sweep)
    repeats = echo_finder(sweep)
    for row in read_predictions(path):
        at = Placement(tuple(row["placement"]), sweep.n_docs, row.get("baseline", ""))
        where = f"{path}: {row['id']} at {at.name}"
        said = outcome_of(row) == "answered"
        score = scored(row["response"], examples[row["content"]], at) if said else 0.0
        if not math.isclose(row["correct"], score, abs_tol=_AGREE):
            response = shorten(repr(row["response"]))
            raise Contradiction(
                f"the score of {response} is {score:g} and not {row['correct']:g}, which the sweep has; sweep again",
                at=where,
            )
        if said and row.get("echo") is False and repeats(row["response"], examples[row["content"]], at):
            raise Contradiction(
                "the response repeats the prompt, but the sweep says it does not; sweep again", at=where
            )


def echo_finder(sweep: Sweep) -> Callable[[str, AnyExample, Placement], bool]:
    """Returns a function that says whether a response to an example at a placement repeats the prompt. It ignores
    filled prompts, as their filler is not among the examples."""
    builder = TextPromptBuilder(sweep.asked_task, 0, PromptOrder(sweep.asked.question, sweep.asked.shuffle))

    def repeats(response: str, example: AnyExample, at: Placement) -> bool:
        right = builder.task.right_answers(example, at)
        return not sweep.filled and find_copying(partial(builder.text, example, at), response, right).echo

    return repeats


def metric_scorer(sweep: Sweep) -> Callable[[str, AnyExample, Placement], float]:
    """Returns a function that scores a response to an example at a placement as a sweep did."""
    task = sweep.asked_task
    return lambda response, example, at: task.score(response, task.right_answers(example, at), sweep.metric)

"""Counts how often a model was judged. Sweeping more examples and judging again gives another chance to pass by luck.

The looks are counted in posgap's cache, and each verdict says which one it was.
"""

from pathlib import Path

from posgap.foundation.files import digest_of, digest_path, read_json, write_json
from posgap.foundation.locations import cache_folder
from posgap.gating.verdict import Verdict
from posgap.measurement.sweeps import Sweep
from posgap.models.tensors import digest_of_tensors
from posgap.storage.cache import lock_mark


def attempt_number(sweep: Sweep) -> int | None:
    """Returns the number of this look at the sweep's model, from 1 on; None if its looks are not counted.

    Earlier looks are verdicts on another question (`_question`) that could have admitted the model's weights and did
    not; a repeated question keeps its number. Looks at a model without a digest (behind an endpoint, or on the hub) are
    not counted: it may have changed.
    """
    if not is_counted(sweep):
        return None
    before = _refused_questions(sweep)
    question = _question(sweep)
    return before.index(question) + 1 if question in before else len(before) + 1


def record_attempt(verdict: Verdict, sweep: Sweep) -> None:
    """Records the question of a verdict that did not admit the model though it could have: its evidence has no gaps."""
    if verdict.passed or verdict.evidence_gaps or not is_counted(sweep):
        return
    with lock_mark(f"looks-{_model_key(sweep)}"):
        before = _refused_questions(sweep)
        question = _question(sweep)
        if question not in before:
            write_json(cache_folder() / "looks" / f"{_model_key(sweep)}.json", [*before, question])


def _refused_questions(sweep: Sweep) -> list[str]:
    """Returns the digests of the questions that did not admit the sweep's model, oldest first.

    These come from `record_attempt`: refusals, and verdicts with an unsure rule.
    """
    file = cache_folder() / "looks" / f"{_model_key(sweep)}.json"
    return read_json(file) if file.is_file() else []


def is_counted(sweep: Sweep) -> bool:
    """Whether looks at the sweep's model are counted: it is known by its digest."""
    return bool(sweep.model_digest)


def _question(sweep: Sweep) -> str:
    """Returns a digest of prompts and examples: of everything that makes other answers likely."""
    asked = sweep.asked.model_dump(mode="json")
    return digest_of([sweep.examples_digest, sweep.task, sweep.metric, sweep.n_docs, sweep.placements, asked])


def _model_key(sweep: Sweep) -> str:
    """Returns a key that tells models apart: of their tensors, in whatever files they are; or the folder's digest, if
    these are not available."""
    known = cache_folder() / "tensors" / f"{sweep.model_digest}.json"
    if known.is_file():
        return read_json(known)[:16]
    folder = Path(sweep.model)
    if not folder.is_dir() or digest_path(folder) != sweep.model_digest:
        return sweep.model_digest[:16]
    weights = digest_of_tensors(folder) or sweep.model_digest
    write_json(known, weights)  # so that many gigabytes are read once
    return weights[:16]

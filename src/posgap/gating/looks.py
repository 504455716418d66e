"""How often a model was judged. Whoever sweeps more examples and judges again has another chance to pass by luck.

The looks are counted in posgap's cache, and each verdict says which one it was.
"""

from posgap.foundation.files import digest_of, read_json, write_json
from posgap.foundation.locations import cache_folder
from posgap.gating.verdict import Verdict
from posgap.generation.backends import BACKENDS
from posgap.measurement.config import SweepConfig
from posgap.measurement.sweeps import Sweep
from posgap.storage.cache import lock_mark


def attempt_number(sweep: Sweep) -> int | None:
    """Which look at the sweep's model this is, from 1 on.

    Those before it were verdicts on other examples of the same task and number of documents that could have admitted
    the model, and did not. Looks at an endpoint are not counted: nobody knows whether its model is still the same.
    None says so.
    """
    if not is_counted(sweep):
        return None
    before = _refused_examples(sweep)
    return before.index(sweep.examples_digest) + 1 if sweep.examples_digest in before else len(before) + 1


def record_attempt(verdict: Verdict, sweep: Sweep) -> None:
    """Counts a verdict that could have admitted the sweep's model and did not."""
    if verdict.passed or verdict.evidence_gaps or not is_counted(sweep):
        return
    with lock_mark(f"looks-{_model_key(sweep)}"):
        before = _refused_examples(sweep)
        if sweep.examples_digest not in before:
            write_json(cache_folder() / "looks" / f"{_model_key(sweep)}.json", [*before, sweep.examples_digest])


def _refused_examples(sweep: Sweep) -> list[str]:
    """The examples, by digest, on which the sweep's model was judged and not admitted, in that order."""
    file = cache_folder() / "looks" / f"{_model_key(sweep)}.json"
    return read_json(file) if file.is_file() else []


def is_counted(sweep: Sweep) -> bool:
    """Whether looks at the sweep's model are counted: it is on this machine, and known by its digest."""
    backend = sweep.settings.get("backend", SweepConfig.default("backend"))
    known = backend in BACKENDS.names() and BACKENDS[backend].local
    return known and bool(sweep.model_digest)


def _model_key(sweep: Sweep) -> str:
    return digest_of([sweep.model_digest, sweep.task, sweep.n_docs])[:16]

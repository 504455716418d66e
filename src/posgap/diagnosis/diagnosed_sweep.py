"""A finished sweep, read back for diagnosis: its examples, prompts and outcomes."""

from dataclasses import dataclass

import numpy as np

from posgap.foundation.errors import PosgapError
from posgap.foundation.files import parse_as
from posgap.generation.backends import BACKENDS
from posgap.generation.generator import Completion
from posgap.generation.setup import builder_of
from posgap.measurement.config import DiagnoseConfig, SweepConfig
from posgap.measurement.evidence import Evidence
from posgap.measurement.filling import as_filled
from posgap.measurement.predictions import Prediction, read_predictions, swept_rows
from posgap.measurement.probe import Probe, observe
from posgap.measurement.sweeps import Sweep, read_sweep
from posgap.tasks.content import examples_digest
from posgap.tasks.examples import AnyExample
from posgap.tasks.placements import Placement
from posgap.tasks.prompts import PromptBuilder
from posgap.tasks.reading import read_examples

_RESPONSES = 64  # by which it is told after what words a model answers


@dataclass(frozen=True)
class DiagnosedSweep:
    """A sweep with its examples in the sweep's order, or the first of them, their scores `correct [E, P]`, the builder
    of its prompts, their rows of its predictions file, and its metric."""

    sweep: Sweep
    examples: list[AnyExample]
    correct: np.ndarray
    builder: PromptBuilder
    predictions: list[Prediction]
    metric: str

    @property
    def placements(self) -> list[Placement]:
        """The sweep's placements, P in all."""
        return [Placement(tuple(positions), self.sweep.n_docs) for positions in self.sweep.placements]

    @property
    def preamble(self) -> str:
        """After what words the model answers, by its first responses; empty where it answers at once."""
        by_id = {example.id: example for example in self.examples}
        answered = [row for row in self.predictions if "outcome" not in row]
        first = []
        for row in answered[:_RESPONSES]:
            placement = Placement(tuple(row["placement"]), self.sweep.n_docs)
            completion = Completion(row["response"], [], cut=row.get("cut", False))
            first.append(observe(self.builder, by_id[row["id"]], placement, completion, self.metric))
        return Probe(first).preamble

    @property
    def best_index(self) -> int:
        """The index of the advantageous placement."""
        return self.sweep.placements.index(self.sweep.advantageous)

    def score_response(self, response: str, example: AnyExample, placement: Placement) -> float:
        """The score of a response at a placement under the sweep's metric."""
        return self.builder.task.score(response, self.builder.task.right_answers(example, placement), self.metric)


def read_diagnosed_sweep(config: DiagnoseConfig) -> DiagnosedSweep:
    """Reads the sweep that `config` names, and of it the first examples that `config` limits it to; raises
    `PosgapError` if examples, model or prompts are not the sweep's."""
    sweep = read_sweep(config.sweep)
    if sweep.grading:
        raise PosgapError(f"{config.sweep}: is graded by a model; diagnose the sweep that it was made from")
    sweep.require_model_alone(config.sweep, "diagnose a sweep without one")
    paths = {"examples": config.examples, "model": config.model, "out": config.sweep}
    was = parse_as(SweepConfig, sweep.settings | paths, f"{config.sweep}: settings")
    if not BACKENDS[was.backend].local:
        raise PosgapError(
            f"{config.sweep}: swept through an endpoint, which gives no token ids; sweep the model itself"
        )
    if was.temperature:
        raise PosgapError(f"{config.sweep}: has responses that were drawn; sweep without a temperature to diagnose")
    everything = read_examples(config.examples)
    builder = as_filled(was.lengths, was.depths, was.seed, builder_of(was), everything)
    evidence = Evidence(config.sweep, sweep)
    ids, correct = evidence.ids, evidence.scores
    by_id = {example.id: example for example in everything}
    examples = [by_id[id] for id in ids if id in by_id]
    now = {
        "examples": (examples_digest(examples, sweep.n_digested, was.shuffle), sweep.examples_digest),
        "model": (config.digest("model"), sweep.model_digest),
        "prompts": (builder.digest(), sweep.prompt_digest),
    }
    for what, (digest_now, digest_swept) in now.items():
        if digest_now != digest_swept:
            raise PosgapError(
                f"{config.sweep}: was swept with other {what} than those given here; give the {what} of the sweep"
            )
    limit = config.limit or len(ids)
    among = set(ids[:limit])
    predictions = [row for row in swept_rows(read_predictions(config.sweep)) if row["id"] in among]
    return DiagnosedSweep(sweep, examples[:limit], correct[:limit], builder, predictions, was.metric)

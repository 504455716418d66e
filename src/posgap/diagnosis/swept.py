"""What was swept, taken up again: the same examples, prompts and outcomes."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from posgap.choices import BACKENDS
from posgap.config import DiagnoseConfig, SweepConfig
from posgap.errors import PosgapError
from posgap.files import digest, read_jsonl
from posgap.measurement.sweeps import PREDICTIONS_FILE, Sweep, read_correct, read_sweep
from posgap.tasks.examples import AnyExample, examples_file, read_examples
from posgap.tasks.placements import Placement
from posgap.tasks.prompts import PromptBuilder
from posgap.tasks.setup import order_of, prompt_builder


@dataclass(frozen=True)
class Swept:
    """A sweep with its examples in order, `correct [E, P]`, the builder of its prompts, and the rows
    of its predictions."""

    sweep: Sweep
    examples: list[AnyExample]
    correct: np.ndarray
    build: PromptBuilder
    predictions: list[dict]
    metric: str

    @property
    def placements(self) -> list[Placement]:
        return [Placement(tuple(positions), self.sweep.n_docs) for positions in self.sweep.placements]

    @property
    def best(self) -> int:
        """The index of the advantageous placement."""
        return self.sweep.placements.index(self.sweep.advantageous)

    def score(self, response: str, example: AnyExample) -> float:
        return self.build.task.score(response, example, self.metric)


def read_swept(config: DiagnoseConfig) -> Swept:
    """The sweep of `config`; `PosgapError` where examples, model or prompts are not the sweep's own."""
    sweep = read_sweep(config.sweep)
    was = SweepConfig(**sweep.settings, examples=config.examples, model=config.model, out=config.sweep)
    if not BACKENDS[was.backend].local:
        raise PosgapError(f"{config.sweep}: swept through an endpoint, which shows no tokens; sweep the model itself")
    build = prompt_builder(was.task, was.model, was.max_new_tokens, order_of(was))
    model = Path(config.model)
    now = {
        "examples": (digest(examples_file(config.examples)), sweep.examples_digest),
        "model": (digest(model) if model.exists() else "", sweep.model_digest),
        "prompts": (build.digest(), sweep.prompt_digest),
    }
    for what, (found, wanted) in now.items():
        if found != wanted:
            raise PosgapError(f"{config.sweep}: its {what} are not those given; give what was swept")
    folder = config.sweep if config.sweep.is_dir() else config.sweep.parent
    predictions = [row for _, row in read_jsonl(folder / PREDICTIONS_FILE)]
    ids, correct = read_correct(config.sweep)
    examples = {example.id: example for example in read_examples(config.examples)}
    return Swept(sweep, [examples[i] for i in ids], correct, build, predictions, was.metric)

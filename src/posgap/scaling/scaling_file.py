"""The scaling file, `scaling.json`, and the model folder that carries its factors."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from posgap.foundation.errors import PosgapError
from posgap.foundation.files import Record, parsed, read_model, write_json
from posgap.mitigations.applied import refuse_chosen_by, write_with
from posgap.mitigations.lpes import LPES, LayerFactors
from posgap.models.factors import check_factors
from posgap.storage.lineage import training_examples
from posgap.tasks.content import among
from posgap.tasks.examples import AnyExample

SCALING_FILE = "scaling.json"
MAX_UNLIKE = 0.05  # share of prompts at which forcing and generation may differ; in 32 bits an exact match never does


class Spoken(Record):
    """Fitness and accuracy of the factors found, and without factors, as responses say that were generated."""

    fitness: float
    accuracy: list[float]
    unscaled_fitness: float
    unscaled_accuracy: list[float]


class Forced(Record):
    """Whether teacher forcing judges the best candidates as it should: how many of `prompts` were right by it and as
    generated, and at how many the two differ."""

    prompts: int
    right: int
    generated_right: int
    differ: int

    @classmethod
    def of(cls, forced: np.ndarray, generated: np.ndarray) -> "Forced":
        """From scores of the same questions, in the same order: those by forcing, and those of what was generated."""
        by_forcing, spoken = forced == 1, generated == 1
        return cls(
            prompts=forced.size,
            right=int(by_forcing.sum()),
            generated_right=int(spoken.sum()),
            differ=int((by_forcing != spoken).sum()),
        )

    @property
    def unlike(self) -> bool:
        """Whether they differ at more than `MAX_UNLIKE` of the prompts."""
        return self.differ > MAX_UNLIKE * self.prompts

    @property
    def told(self) -> str:
        """What was found, in words."""
        return (
            f"of {self.prompts} prompts to the best candidates {self.right} are right by teacher forcing and "
            f"{self.generated_right} as generated; the two differ at {self.differ}"
        )


class Holdout(Record):
    """Examples that the search was kept from, by their contents, and accuracy at its positions with the factors found
    and without factors."""

    examples: int
    contents: list[str]
    accuracy: list[float]
    unscaled_accuracy: list[float]


class Scaling(Record):
    """RoPE factors, the curve they lie on, and the search that chose them. Accuracies are in points.

    `factors` holds one factor per layer. `generated` is there where the search was by teacher forcing in 16 bits, which
    loses right answers to ties; `forced` compares teacher forcing with generation for the best candidates, and is there
    where the search began by it. `search_gain` is what the factors gain in fitness on the examples that chose them, and
    so too much; `gain`, with its 95 % interval, is what they gain on those of `holdout`. All three are None where
    nothing was kept aside or, as `search_gain`, in files of an older posgap.
    """

    model: str
    model_digest: str
    task: str
    n_docs: int
    metric: str
    positions: list[int]
    curve: dict
    control_points: list[float]
    factors: list[float]
    objective: str
    weights: str
    fitness: float
    accuracy: list[float]
    unscaled_fitness: float
    unscaled_accuracy: list[float]
    forward_passes: int
    history: list[dict]
    examples_digest: str
    example_contents: list[str]
    prompt_digest: str
    settings: dict
    generated: Spoken | None = None
    forced: Forced | None = None
    search_gain: float | None = None
    gain: float | None = None
    gain_ci95: tuple[float, float] | None = None
    holdout: Holdout | None = None

    @property
    def gained(self) -> str:
        """What the factors gain, in words."""
        if set(self.factors) == {1.0}:
            return "nothing: all are 1, since none that were tried did better than the model as it is"
        own = f"{self.search_gain:+.1f} in fitness on the {len(self.example_contents)} examples that chose them"
        if self.gain is None or self.gain_ci95 is None or self.holdout is None:
            return f"{own}, which is too high; none were kept aside to say by how much"
        low, high = self.gain_ci95
        unsure = "" if low > 0 or high < 0 else ", so it may be nothing"
        return f"{own}, {self.gain:+.1f} ({low:+.1f} to {high:+.1f}) on the {self.holdout.examples} kept aside{unsure}"


class _Bounds(Record):
    """Of every curve: what no factor may lie beyond."""

    low: float
    high: float


def read_scaling(path: Path) -> Scaling:
    """Reads a scaling from a folder that `scale search` wrote, or from its `scaling.json`.

    Raises `PosgapError` if a factor lies outside the bounds of its curve.
    """
    scaling = read_model(Scaling, path, SCALING_FILE)
    bounds = parsed(_Bounds, scaling.curve, f"{path}: the curve")
    check_factors(scaling.factors, len(scaling.factors), str(path))
    for layer, factor in enumerate(scaling.factors):
        if not bounds.low <= factor <= bounds.high:
            side = f"below the bound {bounds.low:g}" if factor < bounds.low else f"above the bound {bounds.high:g}"
            raise PosgapError(f"{path}: the factor of layer {layer}, {factor:g}, is {side}; search again")
    return scaling


def write_scaling(scaling: Scaling, folder: Path) -> None:
    """Writes a scaling into a folder, where `read_scaling` finds it."""
    write_json(folder / SCALING_FILE, scaling.model_dump(mode="json"))


def write_scaled_model(model: Path, scaling: Scaling, out: Path) -> None:
    """Copies a model folder into `out` with the factors in `config.json`, the scaling file, the examples that it was
    searched on, and, unless whatever loads the folder applies the factors, a word in the model card of what does."""
    settings = LayerFactors(factors=scaling.factors)
    write_with(model, LPES, settings, training_examples(model).union(scaling.example_contents), out)
    write_scaling(scaling, out)


def refuse_searched(model: Path, examples: Sequence[AnyExample]) -> None:
    """Raises `PosgapError` if a model's scaling was searched on any of `examples`, or its mitigation chosen by any."""
    refuse_chosen_by(model, examples)
    file = Path(model) / SCALING_FILE
    if file.exists() and (searched := among(examples, read_scaling(file).example_contents)):
        raise PosgapError(
            f"{model}: its scaling was searched on {len(searched)} of these examples ({searched[0].id}, ...); "
            "measure it on examples that the search has not seen"
        )

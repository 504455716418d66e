"""The scaling file, `scaling.json`, and the model folder that carries its factors."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from pydantic import Field

from posgap.foundation.errors import Malformed, PosgapError
from posgap.foundation.files import Record, parse_as, read_model, write_json
from posgap.mitigations.applied import copy_with_mitigation, refuse_chosen_by
from posgap.mitigations.lpes import LPES, LayerFactors
from posgap.models.factors import check_factors
from posgap.storage.lineage import training_examples
from posgap.tasks.content import with_content_keys
from posgap.tasks.examples import AnyExample

SCALING_FILE = "scaling.json"
MAX_UNLIKE = 0.05  # share of prompts at which forcing and generation may differ; exact matches in 32 bits never do


class GeneratedFitness(Record):
    """Fitness and accuracy as generated responses give them."""

    fitness: float = Field(description="fitness with the factors")
    accuracy: list[float] = Field(description="accuracy with the factors, at each position")
    unscaled_fitness: float = Field(description="fitness without the factors")
    unscaled_accuracy: list[float] = Field(description="accuracy without the factors, at each position")


class ForcingCheck(Record):
    """Compares teacher forcing's scores of the best candidates with generation's."""

    prompts: int = Field(description="number of prompts")
    right: int = Field(description="prompts that are right by teacher forcing")
    generated_right: int = Field(description="prompts that are right by generation")
    differ: int = Field(description="prompts on which the two disagree")

    @classmethod
    def from_scores(cls, forced: np.ndarray, generated: np.ndarray) -> "ForcingCheck":
        """Compares two lists of scores of the same questions, in the same order: by forcing, and by generation."""
        by_forcing = forced == 1
        spoken = generated == 1
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
    def summary(self) -> str:
        """The finding, in words."""
        return (
            f"of {self.prompts} prompts to the best candidates {self.right} are right by teacher forcing and "
            f"{self.generated_right} as generated; the two differ at {self.differ}"
        )


class Holdout(Record):
    """Examples that the search was kept from."""

    examples: int = Field(description="number of held-out examples")
    contents: list[str] = Field(description="digests of the held-out examples' contents")
    accuracy: list[float] = Field(description="accuracy with the factors, at each position")
    unscaled_accuracy: list[float] = Field(description="accuracy without the factors, at each position")


class Scaling(Record):
    """RoPE factors, the curve they lie on, and the search that chose them. Accuracies are in points."""

    model: str = Field(description="address of the model")
    model_digest: str = Field(description="sha256 of the only model that the factors apply to")
    task: str = Field(description="name of the task")
    n_docs: int = Field(description="documents in a prompt")
    metric: str = Field(description="metric that scored the answers")
    positions: list[int] = Field(description="positions of the gold document")
    curve: dict = Field(description="kind, order and bounds of the curve")
    control_points: list[float] = Field(description="heights of the curve's control points")
    factors: list[float] = Field(description="one factor for each layer, by which its rotary positions are divided")
    objective: str = Field(description="what fitness is: mean, uniform or worst (older files: mean_minus_gap)")
    weights: str = Field(description="weights of the positions in a mean: middle or uniform")
    fitness: float = Field(description="fitness with the factors, on the examples that chose them")
    accuracy: list[float] = Field(description="accuracy with the factors on those examples, at each position")
    unscaled_fitness: float = Field(description="fitness without factors, on those examples")
    unscaled_accuracy: list[float] = Field(description="accuracy without factors on those examples, at each position")
    forward_passes: int = Field(description="number of prompts that went through the model")
    history: list[dict] = Field(description="one row for each generation")
    examples_digest: str = Field(description="sha256 of the examples' contents")
    example_contents: list[str] = Field(description="digests of the contents of the examples that chose the factors")
    prompt_digest: str = Field(description="sha256 of the wording, chat template and vocabulary")
    settings: dict = Field(description="all parameters of the search")
    generated: GeneratedFitness | None = Field(
        None, description="figures by generation, if the search used teacher forcing in 16 bits"
    )
    forced: ForcingCheck | None = Field(
        None,
        description="if it began by teacher forcing: how far that agrees with generation",
    )
    search_gain: float | None = Field(
        None, description="gain on the examples that chose the factors, which is biased upwards"
    )
    gain: float | None = Field(None, description="gain on the held-out examples")
    gain_ci95: tuple[float, float] | None = Field(
        None, description="95 % interval of the gain on the held-out examples"
    )
    holdout: Holdout | None = Field(
        None, description="figures on a quarter of the examples, held out; null with fewer than 8 examples"
    )

    @property
    def gain_in_words(self) -> str:
        """The gain of the factors, in words."""
        if set(self.factors) == {1.0}:
            return "nothing: all factors are 1, since no candidate was better than the unmodified model"
        own = f"{self.search_gain:+.1f} in fitness on the {len(self.example_contents)} examples that chose them"
        if self.gain is None or self.gain_ci95 is None or self.holdout is None:
            return f"{own}, which is too high; none were kept aside to say by how much"
        low, high = self.gain_ci95
        unsure = "" if low > 0 or high < 0 else ", so it may be nothing"
        return f"{own}, {self.gain:+.1f} ({low:+.1f} to {high:+.1f}) on the {self.holdout.examples} kept aside{unsure}"


class _Bounds(Record):
    """The bounds of a curve, which no factor may lie beyond."""

    low: float
    high: float


def read_scaling(path: Path) -> Scaling:
    """Reads a scaling from a folder that `scale search` wrote, or from its `scaling.json`.

    Raises `PosgapError` if a factor lies outside the bounds of its curve.
    """
    scaling = read_model(Scaling, path, SCALING_FILE)
    bounds = parse_as(_Bounds, scaling.curve, f"{path}: the curve")
    check_factors(scaling.factors, len(scaling.factors), str(path))
    for layer, factor in enumerate(scaling.factors):
        if not bounds.low <= factor <= bounds.high:
            side = f"below the bound {bounds.low:g}" if factor < bounds.low else f"above the bound {bounds.high:g}"
            raise Malformed(f"{path}: the factor of layer {layer}, {factor:g}, is {side}; search again")
    return scaling


def write_scaling(scaling: Scaling, folder: Path) -> None:
    """Writes a scaling into a folder, for `read_scaling`."""
    write_json(folder / SCALING_FILE, scaling.model_dump(mode="json"))


def write_scaled_model(model: Path, scaling: Scaling, out: Path) -> None:
    """Copies a model folder into `out` with the factors in `config.json`, the scaling file, and the examples of the
    search. If loaders do not apply the factors by themselves, a note in the model card says what does."""
    settings = LayerFactors(factors=scaling.factors)
    copy_with_mitigation(model, LPES, settings, training_examples(model).union(scaling.example_contents), out)
    write_scaling(scaling, out)


def refuse_searched_on(model: Path, examples: Sequence[AnyExample]) -> None:
    """Raises `PosgapError` if a model's scaling was searched on any of `examples`, or its mitigation chosen by any."""
    refuse_chosen_by(model, examples)
    file = Path(model) / SCALING_FILE
    searched = with_content_keys(examples, read_scaling(file).example_contents) if file.exists() else []
    if searched:
        raise PosgapError(
            f"{model}: its scaling was searched on {len(searched)} of these examples ({searched[0].id}, ...); "
            "measure it on examples that the search has not seen"
        )

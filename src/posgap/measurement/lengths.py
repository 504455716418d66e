"""Accuracy by length and depth: the sweeps of one model at several lengths of its prompts, and how long these may get.

Each sweep is an ordinary sweep folder, named by its length in tokens, within the whole's folder.
"""

from collections.abc import Sequence, Sized
from pathlib import Path
from typing import Self

import numpy as np
from pydantic import Field, model_validator

from posgap.foundation.files import Record, read_model
from posgap.measurement import statistics
from posgap.measurement.evidence import Evidence
from posgap.measurement.statistics import Points
from posgap.measurement.sweeps import LENGTHS_FILE

LENGTHS_PAGE, LENGTHS_PICTURE = "lengths.html", "lengths.png"


class EffectiveLength(Record):
    """The longest length, in tokens, with a small gap there and at every shorter swept length; 0 if there is none."""

    most_gap: Points = Field(description="the allowed gap, in points")
    tokens: int = Field(ge=0, description="largest length whose measured gap is allowed")
    low: int = Field(ge=0, description="largest length by the upper bounds of the gaps")
    high: int = Field(ge=0, description="largest length by the lower bounds of the gaps; each end errs in at most 5 %")

    def tokens_named(self, asked: Sequence[int]) -> str:
        """The figure in words, given the swept lengths."""
        return self._named(self.tokens, asked)

    def ends_named(self, asked: Sequence[int]) -> str:
        """Its lower and its upper end in words."""
        ends = dict.fromkeys(self._named(end, asked) for end in (self.low, self.high))
        return " to ".join(ends)

    def sentence(self, asked: Sequence[int]) -> str:
        """All of it as a sentence."""
        bounds = f"(95 % bounds of the effective length: {self.ends_named(asked)})"
        if not self.tokens:
            return f"The measured gap is more than {self.most_gap:g} points at {min(asked):,} tokens already {bounds}."
        return (
            f"The measured gap is at most {self.most_gap:g} points up to a length of "
            f"{self.tokens_named(asked)} tokens {bounds}."
        )

    @staticmethod
    def _named(tokens: int, asked: Sequence[int]) -> str:
        if not tokens:
            return f"under {min(asked):,}"
        return f"{tokens:,}" + (" or more" if tokens == max(asked) else "")


class LengthMap(Record):
    """The result of a model's sweeps at several lengths, the shortest first."""

    task: str = Field(description="name of the task")
    model: str = Field(description="address of the model")
    label: str = Field(description="name of the model in reports")
    metric: str = Field(description="metric that scored the answers")
    context: int = Field(ge=1, description="the model's context in tokens")
    n_examples: int = Field(ge=1, description="number of examples")
    lengths: list[str] = Field(min_length=1, description="the requested lengths")
    tokens: list[int] = Field(description="largest number of tokens of a prompt and its longest answer, at each length")
    depths: list[float] = Field(min_length=1, description="share of the filler before the gold document, in percent")
    documents: list[int] = Field(description="documents in the first example's prompt, at each length")
    prompt_tokens: list[float | None] = Field(description="mean number of tokens of a prompt, at each length")
    accuracy: list[list[Points]] = Field(description="accuracy at each length and depth, in percent")
    ci95: list[list[tuple[Points, Points]]] = Field(description="95 % interval of each accuracy")
    mean: list[Points] = Field(description="mean accuracy over depths, at each length")
    mean_ci95: list[tuple[Points, Points]] = Field(description="95 % interval of each mean")
    gap: list[Points] = Field(description="gap at each length, in points")
    gap_ci95: list[tuple[Points, Points]] = Field(description="95 % interval of each gap")
    gap_noise: list[Points] = Field(description="gap that chance alone would show, at each length")
    effective: EffectiveLength = Field(description="the effective length")

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        for name, values in self:
            if isinstance(values, list) and name != "depths" and len(values) != len(self.lengths):
                raise ValueError(f"{name}: {len(values)} for {len(self.lengths)} lengths")
        rows: list[Sized] = [*self.accuracy, *self.ci95]
        if any(len(row) != len(self.depths) for row in rows):
            raise ValueError("accuracy: not of every depth")
        if sorted(set(self.tokens)) != self.tokens:
            raise ValueError("tokens: must grow from each length to the next")
        return self

    @property
    def title(self) -> str:
        """The heading of the page."""
        return f"{self.label}: accuracy by length and depth"

    @property
    def depth_names(self) -> list[str]:
        """The depths as text."""
        return [f"{depth:.3g} %" for depth in self.depths]

    def summary_text(self) -> list[str]:
        """Sentences with the figures that matter."""
        worst = int(np.argmax(self.gap))
        most = max(high for _, high in self.gap_ci95)
        return [
            self.effective.sentence(self.tokens),
            f"It is largest at {self.tokens[worst]:,} tokens: {self.gap[worst]:.1f} points (95 % interval at this "
            f"length {statistics.ends(self.gap_ci95[worst])}; 95 % bound for all lengths {most:.1f}). "
            f"The mean over the depths is {self.mean[0]:.1f} % at {self.tokens[0]:,} tokens and {self.mean[-1]:.1f} % "
            f"at {self.tokens[-1]:,}, of the same {self.n_examples} examples; the model's context is "
            f"{self.context:,} tokens.",
        ]


def effective_length(tokens: Sequence[int], correct: Sequence[np.ndarray], most_gap: float) -> EffectiveLength:
    """Returns the effective length of scores `correct [L][E, D]` at these lengths in tokens, the shortest first.

    Lengths are tested in order until a bound exceeds `most_gap`. The lower end is the last length before an upper 95 %
    bound exceeds it; it is too high in at most 5 % (a fixed sequence of tests). The upper end is the last length before
    a lower bound exceeds it; it is too low in at most 5 %, since all lower bounds hold together (Bonferroni).
    """
    pairs = max(1, correct[0].shape[1] * (correct[0].shape[1] - 1)) * len(correct)
    gaps = [statistics.gap(statistics.accuracy(scores)) for scores in correct]
    highs = [statistics.gap_upper_end(scores) for scores in correct]
    lows = [statistics.gap_lower_bound(scores, statistics.LEVEL / pairs) for scores in correct]
    low = _longest(tokens, highs, most_gap)
    high = _longest(tokens, lows, most_gap)
    return EffectiveLength(most_gap=most_gap, tokens=_longest(tokens, gaps, most_gap), low=low, high=high)


def _longest(tokens: Sequence[int], bounds: Sequence[float], most: float) -> int:
    """Returns the last length before the first one with a bound above `most`; 0 if that is the first."""
    exceeding = next((at for at, bound in enumerate(bounds) if bound > most), len(bounds))
    return tokens[exceeding - 1] if exceeding else 0


def length_map(evidence: Sequence[Evidence], context: int, most_gap: float) -> LengthMap:
    """The map of sweeps at several lengths, the shortest first, of a model that reads `context` tokens."""
    sweeps = [each.sweep for each in evidence]
    fills = [sweep.filled for sweep in sweeps if sweep.filled]
    first = sweeps[0]
    tokens = [fill.tokens for fill in fills]
    names = ("accuracy", "ci95", "mean", "mean_ci95", "gap", "gap_ci95", "gap_noise")
    by_length: dict[str, list] = {name: [getattr(sweep, name) for sweep in sweeps] for name in names}
    return LengthMap(
        **first.model_dump(include={"task", "model", "label", "metric", "n_examples"}),
        context=context,
        lengths=[fill.length for fill in fills],
        tokens=tokens,
        depths=fills[0].depths,
        documents=[fill.documents for fill in fills],
        prompt_tokens=[sweep.spent and round(sweep.spent.prompt_tokens / sweep.spent.prompts, 2) for sweep in sweeps],
        **by_length,
        effective=effective_length(tokens, [each.correct for each in evidence], most_gap),
    )


def read_lengths(path: Path) -> LengthMap:
    """Reads the map from the folder that `sweep` wrote, or from its `lengths.json`."""
    return read_model(LengthMap, path, LENGTHS_FILE)


def is_of_lengths(path: Path) -> bool:
    """Whether a folder or file holds sweeps at several lengths."""
    return (path / LENGTHS_FILE).is_file() if path.is_dir() else path.name == LENGTHS_FILE


def folder_at(folder: Path, tokens: int) -> Path:
    """Returns the folder of one length's sweep within the whole's folder."""
    return folder / str(tokens)

"""The record that `sweep.json` holds."""

from collections.abc import Mapping, Sized
from itertools import chain
from pathlib import Path
from typing import Any, Self

import numpy as np
from pydantic import Field, model_validator

from posgap.foundation.errors import Contradiction, PosgapError
from posgap.foundation.files import Record, read_model
from posgap.foundation.locations import last_name
from posgap.foundation.printing import format_count
from posgap.generation.backends import BACKENDS
from posgap.generation.pace import EndpointPace
from posgap.generation.served import EndpointIdentity
from posgap.measurement import statistics
from posgap.measurement.filling import FillRecord
from posgap.measurement.option_bias import OptionBias
from posgap.measurement.outcomes import OutcomeCounts, Outcomes
from posgap.measurement.same_place import SamePlace
from posgap.measurement.shape import Shape
from posgap.measurement.spending import TokenTotals
from posgap.measurement.statistics import Points
from posgap.tasks.positions import format_positions
from posgap.tasks.prompts import TextPromptBuilder
from posgap.tasks.registry import TASKS
from posgap.tasks.task import Task

SWEEP_FILE, SWEEP_PAGE = "sweep.json", "sweep.html"
LENGTHS_FILE = "lengths.json"  # of a folder of sweeps, each at another length


class Worst(Record):
    """The placement with the lowest accuracy."""

    placement: list[int] = Field(description="the worst placement")
    accuracy: Points = Field(description="accuracy at that placement, in percent")


class Flatness(Record):
    """Whether accuracy is the same at every placement, by `statistics.flatness_p`: a small `p` says it is not."""

    p: float = Field(description="p-value of the claim that accuracy is the same at every placement")

    @property
    def is_refuted(self) -> bool:
        """Whether position matters, at the 5 % level."""
        return self.p < statistics.LEVEL


class CategoryFigures(Record):
    """Mean accuracy over the placements of a category of pairs, and the gap among them, in points."""

    accuracy: Points
    ci95: tuple[Points, Points]
    gap: Points


class BaselineFigures(Record):
    """Accuracy of a sweep's examples, asked once each in another way."""

    accuracy: Points = Field(description="accuracy, in percent")
    ci95: tuple[Points, Points] = Field(description="95 % interval of the accuracy")
    over_mean: float = Field(description="paired difference from the mean over placements, in points")
    over_mean_ci95: tuple[float, float] = Field(description="95 % interval of that difference")
    best_over: float | None = Field(
        None,
        description="by how much the best placement, chosen on one half of the examples, beats it on the other, in "
        "points",
    )
    best_over_ci95: tuple[float, float] | None = Field(None, description="95 % interval of that difference")
    outcomes: OutcomeCounts = Field(description="counts of how the prompts ended")


class PromptSettings(Record):
    """How a sweep's prompts were made and answered."""

    prompt: str = Field(description="digest of the task's wording")
    template: str = Field(description="digest of the chat template; empty if there is none")
    question: str = Field(description="where the question stands in the prompt")
    shuffle: int = Field(description="seed of the distractors' order")
    max_new_tokens: int = Field(description="token limit of an answer")
    decoding: str = Field(description="greedy, or the sampling settings")
    system: str = Field("", description="the system message")
    template_args: dict = Field({}, description="arguments of the chat template")
    date: str = Field("", description="the date given to a template that asks for today")
    max_thinking_tokens: int = Field(0, description="token limit of thoughts")
    stop: list[str] = Field([], description="strings that end a response")
    body: dict = Field({}, description="fields added to an endpoint's requests")
    samples: int = Field(1, ge=1, description="number of responses to each prompt")
    dtype: str = Field("", description="precision of a local model")
    device: str = Field("", description="kind of device of a local model: cpu or cuda")

    @classmethod
    def from_builder(cls, builder: TextPromptBuilder, decoding: str = "greedy", body: dict | None = None) -> Self:
        """Returns the settings of this builder's prompts, with these fields in the requests to an endpoint, and this
        decoding."""
        return cls(
            prompt=builder.task.wording(),
            template=builder.template,
            question=builder.order.question,
            shuffle=builder.order.shuffle,
            max_new_tokens=builder.max_new_tokens,
            decoding=decoding,
            max_thinking_tokens=builder.max_thinking_tokens,
            stop=list(builder.stop),
            body=body or {},
            **builder.shown_framing,
        )


class AppliedMitigation(Record):
    """The prompt mitigation of a sweep, and its settings."""

    name: str
    settings: dict

    @property
    def phrase(self) -> str:
        """The name, with the settings if it has some."""
        chosen = ", ".join(f"{name} {value}" for name, value in self.settings.items())
        return f"{self.name} ({chosen})" if chosen else self.name


class Sweep(Record):
    """The settings of a sweep, and its accuracy in points at every placement."""

    task: str = Field(description="name of the task")
    model: str = Field(description="address of the model")
    label: str = Field(description="name of the model in reports")
    scaling: dict | None = Field(description="RoPE factors of a scaled model")
    metric: str = Field(description="metric that scored the answers")
    n_docs: int = Field(ge=1, description="documents in a prompt; for filled prompts, the number of depths")
    n_examples: int = Field(ge=1, description="number of examples")
    groups: list[list[str]] = Field(
        [], description="contents of examples that share a question, gold text or records; each group counts once"
    )
    placements: list[list[int]] = Field(
        min_length=1, description="positions of the gold documents, such as `[[1], [2]]` or `[[1, 2], [6, 7]]`"
    )
    accuracy: list[Points] = Field(description="accuracy at each placement, in percent")
    ci95: list[tuple[Points, Points]] = Field(description="95 % interval of each accuracy")
    mean: Points = Field(description="mean accuracy over placements")
    mean_ci95: tuple[Points, Points] = Field(description="95 % interval of the mean")
    gap: Points = Field(description="best minus worst placement, in points")
    gap_ci95: tuple[Points, Points] = Field(description="95 % interval of the gap")
    gap_noise: Points = Field(description="gap that chance alone would show")
    flatness: Flatness = Field(description="test of whether accuracy is the same at every placement")
    shape: Shape | None = Field(None, description="the outer thirds of the positions against the middle; not for pairs")
    worst: Worst = Field(description="the worst placement and its accuracy")
    outcomes: Outcomes | None = Field(
        None, description="how prompts ended, in all and by placement; null in files of an older posgap"
    )
    choices: OptionBias | None = Field(None, description="which slots the responses name, if the task asks for one")
    same_place: SamePlace | None = Field(
        None, description="the position whose item most wrong answers name, and how many do; null if there is none"
    )
    baselines: dict[str, BaselineFigures] = Field(
        {}, description="figures of the same examples, asked once in other ways"
    )
    categories: list[str] = Field([], description="category of each placement of two gold documents")
    by_category: dict[str, CategoryFigures] = Field({}, description="accuracy, interval and gap of each category")
    examples_digest: str = Field(description="sha256 of what the examples put into prompts, in whatever file and order")
    model_digest: str = Field(description="sha256 of the model folder")
    ancestors: list[str] = Field([], description="sha256s, or names on the hub, of all that posgap made the model from")
    prompt_digest: str = Field(description="sha256 of the wording, chat template and vocabulary")
    asked: PromptSettings = Field(description="how prompts were made and answered")
    settings: dict = Field(description="every parameter of the sweep")
    served: EndpointIdentity | None = Field(None, description="what an endpoint reported about itself")
    pace: EndpointPace | None = Field(None, description="how fast an endpoint answered; null for merged parts")
    spent: TokenTotals | None = Field(
        None, description="prompts, tokens and seconds; counts a prompt that placements share for each"
    )
    filled: FillRecord | None = Field(None, description="length, tokens, depths and filler of a sweep at a length")
    mitigation: AppliedMitigation | None = Field(None, description="mitigation of the prompts, if any")
    definition: str = Field("", description="the task, if it came from a file")

    @property
    def asked_task(self) -> Task:
        """The task; `PosgapError` if it is one of a package that is not installed here, or came from a file and goes
        by another one's name."""
        if not self.definition:
            return TASKS[self.task]
        task = TASKS[self.definition]
        if task.name != self.task or task.name in TASKS.names():
            raise Contradiction(
                f"the sweep's task {task.name} came from a file, and is not the task {self.task}; sweep again"
            )
        return task

    @model_validator(mode="before")
    @classmethod
    def _has_no_judge(cls, values: Any) -> Any:
        """Refuses a sweep that an older posgap had a model score: its responses cannot be scored again here."""
        if isinstance(values, Mapping) and values.get("grading"):
            raise ValueError(
                "grading: a judge scored this sweep, which posgap no longer supports; give the sweep that was judged"
            )
        return values

    @model_validator(mode="after")
    def _check_placements(self) -> Self:
        kinds = {len(placement) for placement in self.placements}
        if 0 in kinds or len(kinds) > 1 or len(set(self.placement_names)) < len(self.placement_names):
            raise ValueError("placements: must differ, and have the same number of gold documents")
        for placement in self.placements:
            if len(set(placement)) < len(placement) or not all(1 <= place <= self.n_docs for place in placement):
                raise ValueError(f"placements: {format_positions(placement)} is not a placement among {self.n_docs}")
        figures: dict[str, Sized] = {
            "accuracy": self.accuracy,
            "ci95": self.ci95,
            "categories": self.categories or self.placements,
            "outcomes": self.outcomes.by_placement if self.outcomes else self.placements,
        }
        for name, values in figures.items():
            if len(values) != len(self.placements):
                raise ValueError(f"{name}: {len(values)} for {len(self.placements)} placements")
        grouped = list(chain.from_iterable(self.groups))
        if len(set(grouped)) < len(grouped) or self.n_independent < 1 or any(len(group) < 2 for group in self.groups):
            raise ValueError("groups: must have two or more different examples each")
        if self.worst.placement not in self.placements:
            raise ValueError("worst: no placement of this sweep")
        asked = self.n_examples * self.asked.samples
        if self.outcomes and {counts.prompts for counts in self.outcomes.by_placement} != {asked}:
            raise ValueError(f"outcomes: not of {asked} prompts at each placement")
        return self

    @property
    def positions(self) -> list[int]:
        """The gold document's position of each single placement."""
        return [placement[0] for placement in self.placements]

    @property
    def placement_names(self) -> list[str]:
        """Each placement as text: "7", or "3+7"; of filled prompts the depth, "25 %"."""
        if self.filled:
            return [self.filled.depth_names[number - 1] for number in self.positions]
        return [format_positions(placement) for placement in self.placements]

    @property
    def n_independent(self) -> int:
        """Returns the number of independent units: groups, and examples without a group."""
        return self.n_examples - sum(len(group) - 1 for group in self.groups)

    @property
    def sample_text(self) -> str:
        """The number of examples, and of groups, such as "100 examples in 20 groups"."""
        groups = f" in {format_count(self.n_independent, 'group')}" if self.groups else ""
        return f"{format_count(self.n_examples, 'example')}{groups}"

    @property
    def named_shape(self) -> Shape | None:
        """The shape, if position certainly matters; older sweeps have one without that condition."""
        return self.shape if self.flatness.is_refuted else None

    @property
    def title(self) -> str:
        """The heading of the sweep's page: the model, the task, and how many examples there are."""
        at = f" at {self.filled.tokens:,} tokens" if self.filled else ""
        return f"{self.display_name}{at}: task {self.task}, {self.sample_text}"

    @property
    def display_name(self) -> str:
        """The model's name for readers: the last part of its name and, if it has one, the label. A pipeline calls each
        model's folder `out`, which is no name."""
        name = last_name(self.model)
        if name == "out" and self.label:
            return self.label
        return name if self.label in (name, "model") else f"{name} ({self.label})"

    @property
    def advantageous(self) -> list[int]:
        """The placement with the highest accuracy; the first of equals."""
        return self.placements[int(np.argmax(self.accuracy))]

    def require_model(self, where: object) -> None:
        """Raises `PosgapError` if no model answered, but an application."""
        backend = self.settings.get("backend")
        if backend in BACKENDS.names() and not BACKENDS[backend].is_model:
            raise PosgapError(
                f"{where}: is a sweep of an application, {self.model}, which a registry cannot serve; `posgap "
                "check` judges it"
            )

    def require_model_alone(self, where: object, instead: str) -> None:
        """Raises `PosgapError` if a mitigation was used, since the sweep then does not measure the model alone, or if
        an application answered. The message names `where` the sweep is and what to do `instead`."""
        self.require_model(where)
        if self.mitigation:
            raise PosgapError(
                f"{where}: used the mitigation {self.mitigation.phrase}, so it does not measure the model alone; "
                f"{instead}"
            )


def read_sweep(path: Path) -> Sweep:
    """Reads a sweep from the folder the stage wrote, or from its `sweep.json`."""
    if (path / LENGTHS_FILE).is_file():
        first = min(path.glob(f"*/{SWEEP_FILE}"), default=path / "4096" / SWEEP_FILE).parent
        raise PosgapError(f"holds sweeps at several lengths; name the folder of one, like {first}", at=str(path))
    if not (path / SWEEP_FILE).exists() and (path / "sweep" / SWEEP_FILE).is_file():
        raise PosgapError(f"holds a sweep beside its verdict; name {path / 'sweep'}", at=str(path))
    return read_model(Sweep, path, SWEEP_FILE)

"""The sweep file: `sweep.json` with `predictions.jsonl` beside it."""

import copy
from collections.abc import Iterable, Mapping, Sequence, Sized
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Annotated, NamedTuple, NotRequired, Self, cast

import numpy as np
from pydantic import ConfigDict, Field, model_validator, with_config
from typing_extensions import TypedDict

from posgap.foundation.errors import PosgapError, Rejection
from posgap.foundation.files import Record, read_model, read_models
from posgap.foundation.locations import Location, last_name
from posgap.generation.generator import Completion, Outcome
from posgap.generation.served import EndpointIdentity
from posgap.measurement import statistics
from posgap.measurement.filling import FillRecord
from posgap.measurement.gradings import Grading
from posgap.measurement.grid import Grid, grid_of
from posgap.measurement.option_bias import OptionBias
from posgap.measurement.outcomes import Ending, OutcomeCounts, Outcomes
from posgap.measurement.same_place import SamePlace
from posgap.measurement.shape import Shape, shape_of
from posgap.measurement.spending import TokenTotals
from posgap.measurement.statistics import Points
from posgap.tasks.echo import Copying, Others
from posgap.tasks.examples import AnyExample
from posgap.tasks.placements import Placement, in_order
from posgap.tasks.positions import format_positions
from posgap.tasks.prompts import TextPromptBuilder
from posgap.tasks.registry import TASKS
from posgap.tasks.spans import CATEGORY
from posgap.tasks.task import Task

SWEEP_FILE, PREDICTIONS_FILE, SWEEP_PAGE = "sweep.json", "predictions.jsonl", "sweep.html"
LENGTHS_FILE = "lengths.json"  # of a folder of sweeps, each at another length


class Worst(Record):
    """The placement with the lowest accuracy."""

    placement: list[int] = Field(description="where")
    accuracy: Points = Field(description="points there")


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

    accuracy: Points = Field(description="percent right")
    ci95: tuple[Points, Points] = Field(description="its interval")
    over_mean: float = Field(description="paired difference to the mean over placements")
    over_mean_ci95: tuple[float, float] = Field(description="its interval")
    best_over: float | None = Field(
        None, description="how far the best placement, chosen on one half of the examples, exceeds it on the other"
    )
    best_over_ci95: tuple[float, float] | None = Field(None, description="its interval")
    outcomes: OutcomeCounts = Field(description="how the prompts ended")


class PromptSettings(Record):
    """How a sweep's prompts were made and answered."""

    prompt: str = Field(description="digest of the task's wording")
    template: str = Field(description="digest of the chat template; empty without one")
    question: str = Field(description="where the question stands")
    shuffle: int = Field(description="seed of the distractors' order")
    max_new_tokens: int = Field(description="the limit of an answer")
    decoding: str = Field(description="greedy, or how responses were drawn")
    system: str = Field("", description="the system message")
    template_args: dict = Field({}, description="arguments of the chat template")
    date: str = Field("", description="what a template that asks for today was told")
    max_thinking_tokens: int = Field(0, description="the limit of thoughts")
    stop: list[str] = Field([], description="strings at which responses end")
    body: dict = Field({}, description="fields added to an endpoint's requests")
    samples: int = Field(1, ge=1, description="responses to each prompt")
    dtype: str = Field("", description="precision of a model on this machine")
    device: str = Field("", description="cpu or cuda")

    @classmethod
    def from_builder(cls, builder: TextPromptBuilder, decoding: str = "greedy", body: dict | None = None) -> Self:
        """What prompts of this builder ask, with these fields in the requests to an endpoint, and this decoding."""
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
    """The mitigation of prompts by which a sweep asked, and its settings."""

    name: str
    settings: dict

    @property
    def phrase(self) -> str:
        """Its name, with its settings where it has some."""
        chosen = ", ".join(f"{name} {value}" for name, value in self.settings.items())
        return f"{self.name} ({chosen})" if chosen else self.name


class Sweep(Record):
    """What was asked of a model, and its accuracy in points at every placement."""

    task: str = Field(description="the task")
    model: str = Field(description="the model")
    label: str = Field(description="its name in reports")
    scaling: dict | None = Field(description="RoPE factors of a scaled model")
    metric: str = Field(description="how answers were scored")
    n_docs: int = Field(ge=1, description="documents in a prompt; of filled prompts, the number of depths")
    n_examples: int = Field(ge=1, description="number of examples")
    placements: list[list[int]] = Field(
        min_length=1, description="positions of the gold documents, such as `[[1], [2]]` or `[[1, 2], [6, 7]]`"
    )
    accuracy: list[Points] = Field(description="points at each placement")
    ci95: list[tuple[Points, Points]] = Field(description="their intervals")
    mean: Points = Field(description="mean over placements")
    mean_ci95: tuple[Points, Points] = Field(description="its interval")
    gap: Points = Field(description="best minus worst placement")
    gap_ci95: tuple[Points, Points] = Field(description="its interval")
    gap_noise: Points = Field(description="the gap that chance alone would show")
    flatness: Flatness = Field(description="whether position matters")
    shape: Shape | None = Field(None, description="the outer thirds of the positions against the middle; not for pairs")
    worst: Worst = Field(description="the worst placement")
    outcomes: Outcomes | None = Field(
        None, description="how prompts ended, in all and by placement; null in files of an older posgap"
    )
    choices: OptionBias | None = Field(None, description="which slots responses name, where the task has them name one")
    same_place: SamePlace | None = Field(
        None, description="where most wrong answers name the item at one position: which, and how many"
    )
    baselines: dict[str, BaselineFigures] = Field({}, description="the same examples, asked in another way")
    categories: list[str] = Field([], description="of each placement of two gold documents")
    by_category: dict[str, CategoryFigures] = Field({}, description="accuracy, interval and gap of each category")
    grid: Grid | None = Field(
        None, description="effects of position and of distance, where all pairs of both were asked"
    )
    examples_digest: str = Field(description="sha256 of what the examples put into prompts, in whatever file and order")
    model_digest: str = Field(description="sha256 of the model folder")
    ancestors: list[str] = Field([], description="sha256s, or names on the hub, of all that posgap made the model from")
    prompt_digest: str = Field(description="sha256 of wording, template and vocabulary")
    asked: PromptSettings = Field(description="how prompts were made and answered")
    settings: dict = Field(description="every parameter of the sweep")
    served: EndpointIdentity | None = Field(None, description="what an endpoint said of itself")
    spent: TokenTotals | None = Field(None, description="prompts, tokens and seconds")
    grading: Grading | None = Field(None, description="of a graded sweep: judge, prompts, agreement")
    filled: FillRecord | None = Field(None, description="of a sweep at a length: length, tokens, depths, filler")
    mitigation: AppliedMitigation | None = Field(None, description="by which mitigation of prompts the model was asked")
    definition: str = Field("", description="the task, where it came from a file")

    @property
    def asked_task(self) -> Task:
        """The task; `PosgapError` where it is one of a package that is not installed here, or came from a file and goes
        by another one's name."""
        if not self.definition:
            return TASKS[self.task]
        task = TASKS[self.definition]
        if task.name != self.task or task.name in TASKS.names():
            raise PosgapError(
                f"the sweep's task {task.name} came from a file, and is not the task {self.task}; sweep again"
            )
        return task

    @model_validator(mode="after")
    def _check_placements(self) -> Self:
        kinds = {len(placement) for placement in self.placements}
        if 0 in kinds or len(kinds) > 1 or len(set(self.placement_names)) < len(self.placement_names):
            raise ValueError("placements: some are there twice, or not all have as many gold documents")
        for placement in self.placements:
            if len(set(placement)) < len(placement) or not all(1 <= place <= self.n_docs for place in placement):
                raise ValueError(f"placements: {format_positions(placement)} is no placement among {self.n_docs}")
        figures: dict[str, Sized] = {
            "accuracy": self.accuracy,
            "ci95": self.ci95,
            "categories": self.categories or self.placements,
            "outcomes": self.outcomes.by_placement if self.outcomes else self.placements,
        }
        for name, values in figures.items():
            if len(values) != len(self.placements):
                raise ValueError(f"{name}: {len(values)} for {len(self.placements)} placements")
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
    def n_digested(self) -> int:
        """How many of an example's documents its part in the examples' digest is of; 0: all."""
        return 0 if self.filled else self.n_docs

    @property
    def named_shape(self) -> Shape | None:
        """The shape, where position matters for certain; older sweeps have one without that."""
        return self.shape if self.flatness.is_refuted else None

    @property
    def title(self) -> str:
        """What stands above the sweep's page: the model, the task, and how many examples there are."""
        at = f" at {self.filled.tokens:,} tokens" if self.filled else ""
        return f"{self.display_name}{at}: task {self.task}, n = {self.n_examples:,}"

    @property
    def display_name(self) -> str:
        """The model as a reader knows it: the last part of its name and, where it has one, the label beside it."""
        name = last_name(self.model)
        return name if self.label in (name, "model") else f"{name} ({self.label})"

    @property
    def advantageous(self) -> list[int]:
        """The placement with the highest accuracy; the first of equals."""
        return self.placements[int(np.argmax(self.accuracy))]

    def require_model_alone(self, where: object, instead: str) -> None:
        """Raises `PosgapError` where it was asked by a mitigation, so that it says nothing of the model alone; it names
        `where` the sweep is and what to do `instead`."""
        if self.mitigation:
            raise PosgapError(
                f"{where}: was asked by the mitigation {self.mitigation.phrase}, so that it is not of the model alone; "
                f"{instead}"
            )


def summarize(correct: np.ndarray, placements: list[list[int]], seed: int, categories: Sequence[str] = ()) -> dict:
    """The statistics of a sweep from `correct [E, P]`, and the placements' categories, if they have some, under the
    field names of `Sweep`."""
    accuracy = statistics.accuracy(correct)
    worst = int(np.argmin(accuracy))
    flatness = Flatness(p=statistics.flatness_p(correct))
    return {
        "n_examples": len(correct),
        "placements": placements,
        "accuracy": accuracy.tolist(),
        "ci95": statistics.mean_interval(correct).tolist(),
        "mean": float(accuracy.mean()),
        "mean_ci95": statistics.mean_interval(correct.mean(axis=1)).tolist(),
        "gap": statistics.gap(accuracy),
        "gap_ci95": statistics.gap_interval(correct),
        "gap_noise": statistics.gap_noise(correct, np.random.default_rng(seed)),
        "flatness": flatness,
        "worst": {"placement": placements[worst], "accuracy": float(accuracy[worst])},
        **(
            _of_categories(correct, categories)
            if any(categories)
            else {"shape": shape_of(correct, [placement[0] for placement in placements], uneven=flatness.is_refuted)}
        ),
        **_of_grid(correct, placements, seed, categories),
    }


def _of_categories(correct: np.ndarray, categories: Sequence[str]) -> dict:
    """The figures of each category from `correct [E, P]`, those there are in order."""
    figures = {}
    for name in in_order(categories):
        within = correct[:, [i for i, own in enumerate(categories) if own == name]]
        accuracy = statistics.accuracy(within)
        figures[name] = {
            "accuracy": float(accuracy.mean()),
            "ci95": statistics.mean_interval(within.mean(axis=1)).tolist(),
            "gap": statistics.gap(accuracy),
        }
    return {"categories": list(categories), "by_category": figures}


def _of_grid(correct: np.ndarray, placements: list[list[int]], seed: int, categories: Sequence[str]) -> dict:
    """What position and distance do apart, where the categories are distances."""
    of_distances = all(name.startswith(CATEGORY) for name in categories)
    return {"grid": grid_of(correct, placements, seed)} if categories and of_distances else {}


def read_sweep(path: Path) -> Sweep:
    """Reads a sweep from the folder the stage wrote, or from its `sweep.json`."""
    if (path / LENGTHS_FILE).is_file():
        first = min(path.glob(f"*/{SWEEP_FILE}"), default=path / "4096" / SWEEP_FILE).parent
        raise PosgapError(f"{path}: holds sweeps at several lengths; name the folder of one, like {first}")
    if not (path / SWEEP_FILE).exists() and (path / "sweep" / SWEEP_FILE).is_file():
        raise PosgapError(f"{path}: holds a sweep beside its verdict; name {path / 'sweep'}")
    return read_model(Sweep, path, SWEEP_FILE)


@with_config(ConfigDict(extra="allow", allow_inf_nan=False))
class Prediction(TypedDict):
    """A line of `predictions.jsonl`: the response to an example at a placement, and its score from 0 to 1.

    The fields of a completion that are as usual are left out: `outcome` where it was answered, `thoughts` and `reason`
    where there are none, `cut` where the limit of tokens did not end the response, `others` where no other candidate is
    named beside the right answer. `echo` says whether an answer repeats the prompt; an older posgap did not look.
    `sample` counts the responses to one prompt, from 0, which is left out. A prompt of a `baseline` has no placement.
    """

    id: str
    content: str
    placement: list[int]
    response: str
    correct: bool | Annotated[float, Field(ge=0, le=1)]
    outcome: NotRequired[Outcome]
    thoughts: NotRequired[str]
    reason: NotRequired[str]
    cut: NotRequired[bool]
    others: NotRequired[Others]
    sample: NotRequired[Annotated[int, Field(ge=0)]]
    baseline: NotRequired[str]
    echo: NotRequired[bool]


def make_prediction(
    example: AnyExample,
    content: str,
    placement: Placement,
    sample: int,
    completion: Completion,
    score: float,
    copied: Copying,
) -> Prediction:
    """The line of `predictions.jsonl` for a completion, of which it is known what it copies; where it is no answer its
    score counts for nothing."""
    answered = completion.outcome == "answered"
    row: Prediction = {
        "id": example.id,
        "content": content,
        "placement": list(placement.positions),
        "response": completion.text,
        "correct": score if answered else False,
    }
    unusual = {
        "outcome": "" if answered else completion.outcome,
        "thoughts": completion.thoughts,
        "reason": completion.reason,
        "cut": completion.cut,
        "others": copied.others if answered else "",
        "sample": sample,
        "baseline": placement.baseline,
    }
    kept = {name: value for name, value in unusual.items() if value}
    return cast(Prediction, row | kept | ({"echo": copied.echo} if answered else {}))


def read_predictions(path: Path) -> list[Prediction]:
    """The predictions of a sweep, of which `path` is the folder or the `sweep.json`."""
    folder = path if path.is_dir() else path.parent
    return [row for _, row in read_models(Prediction, folder, PREDICTIONS_FILE)]


def swept_rows(predictions: Iterable[Prediction]) -> list[Prediction]:
    """Those of the sweep's placements, without those of baselines."""
    return [row for row in predictions if "baseline" not in row]


def outcome_of(row: Prediction) -> Outcome:
    """How a prompt ended. What is said to be answered and has no text was not: older sweeps did not tell."""
    outcome = row.get("outcome", "answered")
    return "empty" if outcome == "answered" and not row["response"].strip() else outcome


def ending_of(row: Prediction) -> Ending:
    """How a prompt ended, and what its answer copies."""
    return Ending(outcome_of(row), row.get("cut", False), row.get("echo"), row.get("others", ""))


def outcomes_of(predictions: Iterable[Prediction], placements: Sequence[Sequence[int]]) -> Outcomes:
    """How the prompts of these predictions ended, counted at each placement."""
    endings: dict[tuple[int, ...], list[Ending]] = {tuple(placement): [] for placement in placements}
    for row in swept_rows(predictions):
        endings[tuple(row["placement"])].append(ending_of(row))
    return Outcomes.at([OutcomeCounts.count(of_placement) for of_placement in endings.values()])


def no_figures_error(
    what: str,
    outcomes: Outcomes,
    placements: Sequence[Sequence[int]],
    most: float,
    often: str,
    kept: str,
    out: Location,
) -> Rejection:
    """The error that says why there are no figures of `what`: more prompts went unanswered at a placement than `most`
    percent, `often` for this reason. Its folder, beside `out`, has the predictions; `kept` is what need not be asked
    again."""
    said = f"; most often: {often}" if often else ""
    return Rejection(
        f"{what}: no figures: {outcomes.phrase(placements)}, and {most:g} % is allowed{said}. See "
        f"{out}.rejected/{PREDICTIONS_FILE}. The {kept} are kept: the same command asks again for what failed alone, "
        "and with a higher --max-unanswered makes do with these"
    )


def _scores_of(predictions: Sequence[Prediction], sweep: Sweep, path: Path) -> tuple[list[str], list[str], np.ndarray]:
    """Example ids [E], their contents [E] and scores `correct [E, P]` of a sweep, which is at `path`; `PosgapError`
    where the predictions are not all of it."""
    column = {tuple(p): i for i, p in enumerate(sweep.placements)}
    samples = sweep.asked.samples
    scores: dict[str, list[float | None]] = {}  # of every placement and sample
    contents: dict[str, str] = {}
    for row in swept_rows(predictions):
        where, sample = tuple(row["placement"]), row.get("sample", 0)
        of_example = scores.setdefault(row["id"], [None] * (len(column) * samples))
        if where not in column or sample >= samples or of_example[column[where] * samples + sample] is not None:
            fault = "was predicted twice" if where in column and sample < samples else "is no placement of this sweep"
            raise PosgapError(f"{path}: predictions of {row['id']}: {format_positions(where)} {fault}")
        if contents.setdefault(row["id"], row["content"]) != row["content"]:
            raise PosgapError(f"{path}: predictions of {row['id']}: of examples of different content; sweep again")
        if row["correct"] and row.get("outcome", "answered") != "answered":
            place = format_positions(where)
            raise PosgapError(f"{path}: predictions of {row['id']}: {row['outcome']} at {place}, and yet right")
        of_example[column[where] * samples + sample] = row["correct"]
    if any(None in of_example for of_example in scores.values()) or len(scores) != sweep.n_examples:
        raise PosgapError(f"{path}: predictions are missing; sweep again with --force")
    correct = np.array(list(scores.values()), dtype=float).reshape(len(scores), len(column), samples).mean(axis=2)
    return list(scores), list(contents.values()), correct


class BaselineScores(NamedTuple):
    """The scores [E] of a baseline, of examples in the order of those of the placements, and how its prompts ended."""

    scores: np.ndarray
    outcomes: OutcomeCounts


def baseline_scores(
    predictions: Iterable[Prediction], ids: Sequence[str], samples: int, where: object
) -> dict[str, BaselineScores]:
    """The scores of each baseline among these predictions of the examples `ids` [E]; `PosgapError`, which names
    `where`, where a baseline's predictions are not all of them."""
    rows: dict[str, dict[str, list[Prediction]]] = {}
    for row in predictions:
        if "baseline" in row:
            rows.setdefault(row["baseline"], {}).setdefault(row["id"], []).append(row)
    found = {}
    for name, by_id in rows.items():
        if by_id.keys() != set(ids) or any(len(of_example) != samples for of_example in by_id.values()):
            raise PosgapError(f"{where}: predictions of {name} are not one of each example; sweep again")
        endings = map(ending_of, chain.from_iterable(by_id.values()))
        scores = np.array([np.mean(list(map(itemgetter("correct"), by_id[id]))) for id in ids])
        found[name] = BaselineScores(scores, OutcomeCounts.count(endings))
    return found


def baselines_of(baselines: Mapping[str, BaselineScores], correct: np.ndarray) -> dict[str, BaselineFigures]:
    """The figures of baselines of examples whose scores at the placements are `correct [E, P]`."""
    figures = {}
    for name, (scores, outcomes) in baselines.items():
        over, over_ci95 = statistics.paired_difference(scores, correct.mean(axis=1))
        best, best_ci95 = None, None
        if correct.shape[1] > 1 and len(correct) > 1:
            at_best = correct[np.arange(len(correct)), statistics.extremes_elsewhere(correct)[0]]
            best, best_ci95 = statistics.paired_difference(at_best, scores)
        figures[name] = BaselineFigures(
            accuracy=float(100 * scores.mean()),
            ci95=statistics.mean_interval(scores).tolist(),
            over_mean=over,
            over_mean_ci95=over_ci95,
            best_over=best,
            best_over_ci95=best_ci95,
            outcomes=outcomes,
        )
    return figures


class Evidence:
    """A sweep with the `ids` [E] and `contents` [E] of its examples, its scores `correct [E, P]` with columns as in its
    `placements`, how its prompts ended, and the scores of its baselines, all as its predictions say.

    Sweep and predictions are read from `path`, which messages name, where they are not given. Raises `PosgapError`
    where the predictions are not all of the sweep's.
    """

    def __init__(self, path: Path, sweep: Sweep | None = None, predictions: Sequence[Prediction] | None = None):
        self.path = path
        self.sweep = sweep or read_sweep(path)
        predictions = read_predictions(path) if predictions is None else predictions
        self.ids, self.contents, self.correct = _scores_of(predictions, self.sweep, path)
        self.outcomes = outcomes_of(predictions, self.sweep.placements)
        self.baselines = baseline_scores(predictions, self.ids, self.sweep.asked.samples, path)

    def relabel(self, label: str) -> "Evidence":
        """Returns a copy whose sweep has this label."""
        other = copy.copy(self)
        other.sweep = self.sweep.model_copy(update={"label": label})
        return other

    def reorder_like(self, reference: "Evidence") -> "Evidence":
        """Returns a copy whose examples stand in the reference's order; `PosgapError` if these are other examples."""
        if sorted(self.contents) != sorted(reference.contents):
            raise PosgapError(f"{self.path} and {reference.path}: predictions of other examples; sweep both again")
        order = np.empty(len(self.contents), dtype=int)
        order[np.argsort(reference.contents, kind="stable")] = np.argsort(self.contents, kind="stable")
        ordered = copy.copy(self)
        ordered.ids, ordered.contents = [self.ids[i] for i in order], list(reference.contents)
        ordered.correct = self.correct[order]
        ordered.baselines = {name: each._replace(scores=each.scores[order]) for name, each in self.baselines.items()}
        return ordered

"""The file `mitigate.json`: the result of every mitigation, and which to use for which purpose."""

import json
import shlex
from collections.abc import Sequence
from math import ceil
from pathlib import Path

from pydantic import Field

from posgap.foundation.fields import FUNCTION, is_function
from posgap.foundation.files import Record, read_model
from posgap.foundation.locations import with_uris
from posgap.foundation.printing import format_count
from posgap.generation.application import Application, load_function
from posgap.measurement.comparison import Difference
from posgap.measurement.settings import SweepSettings
from posgap.measurement.sweeps import Sweep
from posgap.mitigations.mitigation import Mitigation, Settings
from posgap.mitigations.registry import MITIGATIONS, PROMPT_MITIGATIONS

MITIGATE_FILE, MITIGATE_PAGE = "mitigate.json", "mitigate.html"


class Cost(Record):
    """An answer's cost with a mitigation as a multiple of its cost without: `prefill` until the first token, and
    `decode` for each further one, over all the answer's prompts, as medians of paired measurements; `answer` for a
    prompt and a few tokens together. `memory` is the peak, on a GPU only."""

    prefill: float
    decode: float
    answer: float
    memory: float | None = None


class RetrievedGain(Record):
    """A mitigation in the retriever's order on the held-out questions, compared with that order alone: accuracy, and
    the paired gain, in points; and how many questions it `won` and `lost`."""

    accuracy: float
    gain: float
    gain_ci95: tuple[float, float]
    won: int
    lost: int


class Measurement(Record):
    """A mitigation on the held-out examples: the difference to the unmodified model, with intervals that hold for all
    measured mitigations together, also in the retriever's order, if there is one; the cost of an answer (None for a
    model elsewhere); and the multiple of prompt tokens per answer (None if not counted). An answer takes `calls`
    prompts."""

    difference: Difference
    over_retrieved: RetrievedGain | None = None
    mean: float
    gap: float
    gap_ci95: tuple[float, float]
    cost: Cost | None
    tokens: float | None
    calls: int = 1

    @property
    def relative_cost(self) -> float:
        """Returns the cost of an answer as a multiple: of time, else (a remote model) of tokens, else of calls."""
        return self.cost.answer if self.cost else self.tokens or self.calls

    @property
    def price(self) -> str:
        """The cost of an answer, in words."""
        calls = "one call, as before" if self.calls == 1 else f"{self.calls} calls in place of one"
        more = ""
        if self.cost:
            more = f", {self.cost.answer:.2f} times the time"
        elif self.tokens:
            more = f", {self.tokens:.2f} times the tokens"
        return f"{calls}{more}"

    @property
    def gain(self) -> float:
        """The gain in points: in the retriever's order, or without one in the mean over positions."""
        return self.over_retrieved.gain if self.over_retrieved else self.difference.mean

    @property
    def gain_ci95(self) -> tuple[float, float]:
        """The interval of `gain`."""
        return self.over_retrieved.gain_ci95 if self.over_retrieved else self.difference.mean_ci95


class MitigationOutcome(Record):
    """A mitigation by its name and its best settings. Gains are in mean accuracy over the unmodified model, in points:
    on the examples that its settings were tried on (`selection_gain`, the best of `tried`, so biased upwards), and in
    `measured` on held-out examples. `reason` says why it was not tried or not measured; empty if it was. `order_free`
    says that the order of documents makes no difference, so its gap of 0 is no gain. To apply it, there is a
    `usage_command`, or `usage_code` for the application that asks."""

    name: str
    level: str
    source: str
    cost: str
    order_free: bool = False
    served_by: list[str]
    settings: dict = Field({})
    tried: int = 0
    selection_gain: float | None = None
    measured: Measurement | None = None
    reason: str = ""
    command: str = ""
    code: str = ""

    @property
    def parsed_settings(self) -> Settings:
        """The settings, as the mitigation takes them."""
        return MITIGATIONS[self.name].settings(**self.settings)

    @property
    def helps(self) -> bool:
        """Whether it is certainly better on the held-out examples: in its gain, or, without a retriever's order, in its
        gap with a mean that is not certainly lower."""
        if not self.measured:
            return False
        return self.measured.gain_ci95[0] > 0 or (self.narrows and not self.measured.over_retrieved)

    @property
    def may_help(self) -> bool:
        """Whether it gained at least a point on the held-out examples, and these are too few to say so for certain."""
        if not self.measured or self.helps:
            return False
        return self.measured.gain >= 1 and self.measured.gain_ci95[0] <= 0

    @property
    def narrows(self) -> bool:
        """Whether its gap on the held-out examples is certainly smaller, and not by construction, and its mean not
        certainly lower."""
        if not self.measured or self.order_free:
            return False
        d = self.measured.difference
        return d.gap_ci95[1] < 0 and d.mean_ci95[1] >= 0

    @property
    def gains(self) -> str:
        """Its gain and its cost in words; only of one that was measured."""
        m = self.measured
        assert m
        gain = f"{m.gain:+.1f} points ({m.gain_ci95[0]:+.1f} to {m.gain_ci95[1]:+.1f})"
        if m.over_retrieved:
            won = format_count(m.over_retrieved.won, "question")
            lost = m.over_retrieved.lost
            gain += f" over as retrieved, {won} won and {lost} lost"
        else:
            d = m.difference
            gap = f"{d.gap:+.1f} ({d.gap_ci95[0]:+.1f} to {d.gap_ci95[1]:+.1f})"
            gain = f"mean {gain}, gap {'0 by construction' if self.order_free else gap}"
        return f"{gain}; an answer takes {m.price}"

    @property
    def label(self) -> str:
        """The mitigation's name on pages, which marks a baseline."""
        return f"{self.name} (a baseline)" if self.source.startswith("a baseline") else self.name

    @property
    def verdict_in_words(self) -> str:
        """The verdict of its intervals, in words; on the positions, if these and not a retriever's order are tested."""
        assert self.measured
        by_position = not (self.order_free or self.measured.over_retrieved)
        return self.measured.difference.verdict if by_position else f"{self.name}: {self.gains}."


class MisplacedQuestion(Record):
    """A question that is answered wrongly as retrieved, and rightly with its relevant passages elsewhere: `right_at`
    these positions. Its relevant passages stand at `ranks` as retrieved."""

    id: str
    question: str
    ranks: list[int]
    right_at: list[str]
    response: str


class RetrievedOrder(Record):
    """The unmodified model in the retriever's order, on the held-out questions: its accuracy, and how much higher it is
    with the relevant passages at the best position, in points; None with one position. `moved` are the questions that
    position costs; those that are right at most positions come first."""

    accuracy: float
    ci95: tuple[float, float]
    best_over: float | None
    best_over_ci95: tuple[float, float] | None
    moved: list[MisplacedQuestion]

    @property
    def cost(self) -> str:
        """The cost of position, in words: the points that the relevant passages at the best position would add."""
        if self.best_over is None or self.best_over_ci95 is None:
            return f"As retrieved the model answers {self.accuracy:.1f} % ({self.ci95[0]:.1f} to {self.ci95[1]:.1f})"
        low, high = self.best_over_ci95
        points = f"{self.best_over:.1f} points ({low:.1f} to {high:.1f})"
        return f"Position costs {points}" if low > 0 else f"Whether position costs anything cannot be told: {points}"

    def sentences(self, examples: int) -> list[str]:
        """Says how many questions are right, and how many position costs."""
        right = f"{self.accuracy:.1f} % of {examples} questions ({self.ci95[0]:.1f} to {self.ci95[1]:.1f})"
        said = [f"As retrieved the model answers {right}."]
        if self.moved:
            are_wrong = "question is" if len(self.moved) == 1 else "questions are"
            said.append(f"{len(self.moved)} {are_wrong} wrong as retrieved and right at another position.")
        return said


class MitigateResult(Record):
    """The whole comparison. `examples` are the sizes of the halves. `chosen_by` has the contents of the examples that
    chose the settings: do not measure a mitigated model on them. `seconds` of the budget were spent. The backend of the
    model `elsewhere`; empty for a model in memory. `choice` is the recommended mitigation: among the certainly better
    ones, the one with the largest gain; empty if there is none."""

    model: str
    model_digest: str
    task: str
    n_docs: int
    elsewhere: str = ""
    budget: str
    seconds: float
    examples: dict[str, int]
    chosen_by: list[str]
    base_mean: float
    base_gap: float
    base_gap_ci95: tuple[float, float]
    retrieved: RetrievedOrder | None = None
    found: list[MitigationOutcome]
    choice: str = ""

    @property
    def measured_outcomes(self) -> list[MitigationOutcome]:
        """The outcomes measured on the held-out examples, the best on the selection first."""
        return [each for each in self.found if each.measured]

    @property
    def helpful_outcomes(self) -> list[MitigationOutcome]:
        """The certainly better ones, the largest gain first."""
        return rank_helpful(self.found)

    @property
    def title(self) -> str:
        """The heading of the page."""
        return f"Mitigations of {Path(self.model).name}: task {self.task}, {self.examples['held_out']:,} questions"

    @property
    def reference(self) -> str:
        """The thing that gains are over, in words."""
        return "as retrieved" if self.retrieved else "the model as it is"

    @property
    def headline(self) -> str:
        """Says in a sentence what position costs and what to do about it."""
        low, high = self.base_gap_ci95
        gap = f"The gap is {self.base_gap:.1f} points ({low:.1f} to {high:.1f})"
        return f"{self.retrieved.cost if self.retrieved else gap}, and {self.advice}."

    @property
    def advice(self) -> str:
        """Says what to do: use what helps most; ask more questions if there may be a gain; else leave the model
        unmodified."""
        if self.helpful_outcomes:
            best = self.helpful_outcomes[0]
            return f"{best.name} helps: {best.gains}"
        open_ones = [each for each in self.measured_outcomes if each.may_help]
        if not open_ones:
            names = ", ".join(each.name for each in self.measured_outcomes)
            return f"none of the measured mitigations certainly helps ({names}): keep the model unchanged"
        best = max(open_ones, key=lambda each: each.measured.gain if each.measured else 0.0)
        assert best.measured
        gain = best.measured.gain
        (low, high) = best.measured.gain_ci95
        # An interval narrows with the root of the number, and settings are chosen on as many others again.
        needed = 10 * ceil(sum(self.examples.values()) * ((gain - low) / gain) ** 2 / 10)
        return (
            f"{self.examples['held_out']} questions are too few to tell whether {best.name} helps: it gained "
            f"{gain:+.1f} points ({low:+.1f} to {high:+.1f}), and about {needed:,} questions in all would tell"
        )


def rank_helpful(found: Sequence[MitigationOutcome]) -> list[MitigationOutcome]:
    """Returns the certainly better ones, the largest gain first, in a tie the lowest cost."""

    def order(each: MitigationOutcome) -> tuple[float, float]:
        assert each.measured
        return -round(each.measured.gain, 6), each.measured.relative_cost

    return sorted((each for each in found if each.helps), key=order)


def read_mitigate(path: Path) -> MitigateResult:
    """Reads a comparison of mitigations from the folder `mitigate` wrote, or from its `mitigate.json`."""
    return read_model(MitigateResult, path, MITIGATE_FILE)


def blank_outcome(mitigation: Mitigation) -> MitigationOutcome:
    """Returns a mitigation with its description alone, before anything is measured."""
    return MitigationOutcome(
        name=mitigation.name,
        level=mitigation.level,
        source=mitigation.source,
        cost=mitigation.cost,
        order_free=mitigation.order_free,
        served_by=list(mitigation.served_by),
    )


def usage_command(found: MitigationOutcome, settings: SweepSettings) -> str:
    """The command that applies a mitigation, if there is one: it writes a model folder with it or, if only posgap can
    ask that way, sweeps the model with it."""
    name = found.name
    model = with_uris(settings.model)
    if MITIGATIONS[name].of_model:
        parts = ["posgap", "apply", "--model", model, "--found", str(settings.out), "--mitigation", name]
        return shlex.join([*parts, "--out", f"model-{name}"])
    if usage_code(found):
        return ""
    parts = ["posgap", "sweep", "--model", model, "--task", settings.task, "--n-docs", str(settings.n_docs)]
    parts += ["--mitigation", name, "--mitigation-settings", json.dumps(found.settings)]
    return shlex.join([*parts, "--examples", with_uris(str(settings.examples)), "--out", f"sweep-{name}"])


def usage_code(found: MitigationOutcome, model: str = "") -> str:
    """Returns what an application does in plain Python, around its function if the `model` is one that takes passages;
    empty if it cannot."""
    if MITIGATIONS[found.name].of_model:
        return ""
    mitigation = PROMPT_MITIGATIONS[found.name]
    code = mitigation.write_code(found.parsed_settings)
    if not code or not is_function(model):
        return code
    application = Application(load_function(model), model)
    if "passages" not in application.wanted:
        return code
    module, _, name = model.removeprefix(FUNCTION).partition(":")
    first, dot, _ = name.partition(".")
    lines = [f"from {module} import {first}" + ("" if dot or name == "answer" else " as answer")]
    lines += ["from posgap import text_of"] if "text_of" in mitigation.call else []
    lines += [f"\nanswer = {name}"] if dot else []
    header, call = "def mended(question, passages):", mitigation.call
    if application.is_async:
        header, call = f"async {header}", call.replace("answer(", "await answer(")
    return "\n".join([*lines, "", code, header, f"    return {call}", ""])


def format_figures(sweep: Sweep) -> str:
    """A sweep's figures in a line."""
    return f"mean {sweep.mean:.1f}, gap {sweep.gap:.1f} ({sweep.gap_ci95[0]:.1f} to {sweep.gap_ci95[1]:.1f})"

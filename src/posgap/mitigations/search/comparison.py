"""A comparison under way: the model answers both halves of the examples, unmodified and under mitigations. All answers
are kept beside the output as they come, so an interrupted comparison resumes."""

import json
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from posgap.data.reading import write_examples
from posgap.foundation.errors import PosgapError
from posgap.foundation.files import Record, digest_of, read_model, work_folder, write_json
from posgap.foundation.interruption import RESUMES
from posgap.generation.served import MUST_STAY, EndpointChanged, EndpointIdentity
from posgap.measurement.evidence import Evidence
from posgap.measurement.page_examples import pack_sweep
from posgap.measurement.probe import FirstAnswers
from posgap.measurement.settings import SweepSettings
from posgap.measurement.sweep_folder import write_sweep
from posgap.measurement.sweep_run import SweepRun
from posgap.measurement.thinking import LOOK, FirstThoughts
from posgap.mitigations.mitigation import Settings
from posgap.mitigations.registry import MITIGATIONS
from posgap.mitigations.search.budget import FILLED, Clock, fit_examples
from posgap.mitigations.search.compared_model import BASE, ComparedModel
from posgap.mitigations.search.report import MitigationOutcome, format_figures
from posgap.mitigations.search.splits import MIN_EXAMPLES, Splits
from posgap.models.factors import config_factors
from posgap.scaling.search_settings import SearchSettings
from posgap.storage.lineage import training_examples
from posgap.tasks.content import content_keys

log = logging.getLogger(__name__)


class Trial(Record):
    """Settings of a mitigation, or the unmodified model, and their mean accuracy in points on the selection half."""

    name: str
    settings: dict
    mean: float
    seconds: float


class _State(Record):
    """What is kept beside the answers: the time spent, the start of each trial, the finished trials, the number of
    examples in each half that the time allows, and an endpoint's statements about itself."""

    identity: str
    seconds: float = 0.0
    began: dict[str, float] = Field({})
    trials: dict[str, Trial] = Field({})
    sizes: dict[str, int] = Field({})
    served: EndpointIdentity = EndpointIdentity()


@dataclass
class Comparison:
    """The comparison of a model's mitigations within the time of a clock. `splits` are the examples that the time
    allows.

    `key` has the parameters that decide answers, and `search` says how LPES searches its factors.
    """

    model: ComparedModel
    splits: Splits
    clock: Clock
    model_digest: str
    key: Mapping[str, Any]
    search: SearchSettings

    def __post_init__(self) -> None:
        model = self.model
        self.all = self.splits
        self.folder = work_folder(model.settings.out)
        self.folder.mkdir(parents=True, exist_ok=True)
        for half, examples in self.splits._asdict().items():
            write_examples(self._half_file(half), examples)
        self._state_file = self.folder / "tried.json"
        total = len(self.splits.selection) * len(model.trial_placements)
        self._first_answers = FirstAnswers(model.builder, total, model.settings.metric)
        self.state = _State(identity=self._identify())
        self._resume()

    def try_base(self, until: float) -> Trial:
        """Tries the unmodified model on the selection's examples until `until`; the rest are left out."""
        if self.has_tried(BASE):
            return self.try_settings(BASE)
        size = self.state.sizes.get("selection", MIN_EXAMPLES)
        asked = 0
        began = self.state.began.setdefault(_trial_key(BASE, None), self.clock.seconds_spent)
        while asked < size:
            self._take("selection", size)
            sweep_run, _ = self._answer_half("selection", BASE, None)
            spent = self.clock.seconds_spent
            asked = size
            size = fit_examples(asked, len(self.all.selection), (spent - began) / asked, until - spent)
        if asked < len(self.all.selection):
            log.warning(
                "the budget allows %d of %d examples to choose settings; the rest is for measuring",
                *(asked, len(self.all.selection)),
            )
        return self._note(BASE, None, sweep_run)

    def try_settings(self, name: str, settings: Settings | None = None) -> Trial:
        """Returns the trial of a mitigation's settings, or of the unmodified model, on the selection's examples."""
        key = _trial_key(name, settings)
        if key not in self.state.trials:
            self.state.began.setdefault(key, self.clock.seconds_spent)
            sweep_run, _ = self._answer_half("selection", name, settings)
            self._note(name, settings, sweep_run)
        return self.state.trials[key]

    def _note(self, name: str, settings: Settings | None, sweep_run: SweepRun) -> Trial:
        """Returns the trial that a sweep of the selection's examples is, and keeps it."""
        key = _trial_key(name, settings)
        scores = [row["correct"] for row in sweep_run.predictions]
        seconds = self.clock.seconds_spent - self.state.began[key]
        trial = Trial(name=name, settings=_dump_settings(settings), mean=100 * float(np.mean(scores)), seconds=seconds)
        self.state.trials[key] = trial
        self.save_state()
        return trial

    def has_tried(self, name: str, settings: Settings | None = None) -> bool:
        """Returns whether these settings of a mitigation, or without any given, some of its settings, were tried."""
        if settings:
            return _trial_key(name, settings) in self.state.trials
        return any(trial.name == name for trial in self.state.trials.values())

    def seconds_to_sweep(self, name: str, settings: Settings | None = None) -> float:
        """Returns the seconds that the sweep of a held-out example will take, by what the trial took."""
        each = self.try_settings(name, settings).seconds / len(self.splits.selection)
        return each * self.model.sweeps_per_trial

    def fit_held_out(self, finalists: Sequence[MitigationOutcome]) -> None:
        """Drops held-out examples until there is time to ask the unmodified model and all finalists."""
        if "held_out" in self.state.sizes:
            return
        self._hold_out_the_rest()
        n = len(self.all.held_out)
        left = FILLED * self.clock.seconds_left
        each = self.seconds_to_sweep(BASE) + sum(
            self.seconds_to_sweep(one.name, one.parsed_settings) for one in finalists
        )
        size = min(n, max(MIN_EXAMPLES, int(left / each))) if each else n
        self._take("held_out", size)
        if size < n:
            log.warning(
                "%d of %d held-out examples are measured: all would take about %.0f s, and %.0f s are left; give a "
                "longer --budget for more",
                *(size, n, each * n, self.clock.seconds_left),
            )

    def sweep_held_out(self, name: str, settings: Settings | None, out: Path) -> Evidence:
        """Sweeps the held-out examples, under a mitigation or with the unmodified model, into the folder `out`."""
        sweep_run, factors = self._answer_half("held_out", name, settings)
        sweep = sweep_run.summarize(name, factors)
        predictions = sweep_run.predictions
        out.mkdir(parents=True)
        seen = set(content_keys(self.splits.selection)) if settings else set()
        explored = pack_sweep(sweep, predictions, sweep_run.examples)
        write_sweep(sweep, predictions, training_examples(sweep_run.settings.model) | seen, out, explored)
        log.info("%s, held-out examples: %s", name, format_figures(sweep))
        return Evidence(out, sweep, predictions)

    def save_state(self) -> None:
        """Writes down the trials, and the time spent."""
        state = self.state.model_copy(update={"seconds": self.clock.seconds_spent})
        write_json(self._state_file, state.model_dump(mode="json"))

    def _identify(self) -> str:
        """Returns a digest of all that decides the answers."""
        builder = self.model.builder
        asked = [self.model.settings.metric or builder.task.metric, [at.name for at in self.model.trial_placements]]
        return digest_of([self.key, self.model_digest, builder.digest(), *asked, *map(content_keys, self.all)])

    def _resume(self) -> None:
        if not self._state_file.exists():
            return
        state = read_model(_State, self._state_file, self._state_file.name)
        if state.identity == self.state.identity:
            self.state = state
            self.clock.add_earlier(state.seconds)
            for half, size in state.sizes.items():
                if half == "held_out":
                    self._hold_out_the_rest()
                self._take(half, size)

    def _half_file(self, half: str) -> Path:
        return self.folder / f"{half}.jsonl"

    def _hold_out_the_rest(self) -> None:
        """Adds to the held-out examples those that the choice of settings had no time for."""
        rest = self.all.selection[len(self.splits.selection) :]
        self.all = self.all._replace(held_out=[*self.all.held_out, *rest])
        write_examples(self._half_file("held_out"), self.all.held_out)

    def _take(self, half: str, size: int) -> None:
        """Takes the first examples of a half, and leaves the others out."""
        self.state.sizes[half] = size
        self.splits = self.splits._replace(**{half: getattr(self.all, half)[:size]})
        self.save_state()

    def _answer_half(self, half: str, name: str, settings: Settings | None) -> tuple[SweepRun, Sequence | None]:
        """Sweeps a half of the examples under a mitigation, or with the unmodified model. Returns the sweep and its
        RoPE factors."""
        model = self.model
        examples = getattr(self.splits, half)
        placements = model.trial_placements if half == "selection" else model.placements
        model_digest = self._model_digest(name, settings)
        asked = self._sweep_settings(half, name, settings)
        sweep_run = SweepRun(asked, model.builder, examples, placements, model_digest)
        # If the user has not set the model's thinking, its first answers must not end within thoughts.
        are_first = half == "selection" and name == BASE and len(examples) * len(placements) >= LOOK
        must_end = are_first and not FirstThoughts.for_prompts(model.builder, LOOK).is_over
        try:
            with model.with_mitigation(name, settings) as generator:
                sweep_run.run(lambda: generator, "raise" if must_end else "go on", self._first_answers)
                factors = config_factors(model.in_memory.config) if model.in_memory else None
        finally:
            self.save_state()
        if sweep_run.served:
            self._require_same(sweep_run.served)
            self._require_answers(name, half, sweep_run)
        return sweep_run, factors

    def _sweep_settings(self, half: str, name: str, settings: Settings | None) -> SweepSettings:
        """Returns the settings for sweeping a half of the examples; its answers are kept in their own folder."""
        changes: dict[str, Any] = {"label": name}
        if self.model.as_retrieved and half == "held_out":
            changes["baselines"] = [self.model.as_retrieved.name]
        if settings and not MITIGATIONS[name].of_model:
            changes |= {"mitigation": name, "mitigation_settings": _dump_settings(settings)}
        asked = self.model.settings.with_parameters(**changes)
        return replace(asked, examples=self._half_file(half), out=self.folder / half / name)

    def _model_digest(self, name: str, settings: Settings | None) -> str:
        """Returns the digest of the model, which under a mitigation of models is another than the one in the folder."""
        if settings and MITIGATIONS[name].of_model:
            return digest_of([self.model_digest, name, _dump_settings(settings)])
        return self.model_digest

    def _require_answers(self, name: str, half: str, sweep_run: SweepRun) -> None:
        """Raises `PosgapError` if an endpoint left more unanswered at a placement than may be: as wrong answers they
        would count for or against a mitigation."""
        most = self.model.settings.max_unanswered
        unanswered = Counter(str(row["placement"]) for row in sweep_run.predictions if "outcome" in row)
        n = len(getattr(self.splits, half))
        worst = max(unanswered.values(), default=0)
        if 100 * worst > most * n:
            raise PosgapError(
                f"{self.model.settings.model}: {name}: {worst} of {n} questions at a placement are unanswered, "
                f"most often: {sweep_run.most_frequent_reason}; at most {most:g} % may be "
                f"(--max-unanswered). The answers are kept: {RESUMES}"
            )

    def _require_same(self, now: EndpointIdentity) -> None:
        """Raises `EndpointChanged` if an endpoint says that it is another than it said before."""
        access = self.model.settings.access
        before = self.state.served
        for name in MUST_STAY[access.parameters["identity"]]:
            others = set(now.values_of(name)).difference(before.values_of(name))
            if before.values_of(name) and others:
                raise EndpointChanged(
                    f"{access.model}: its {name} changed from {before.values_of(name)[-1]} to {min(others)}",
                    "model" if name == "fingerprint" else "any",
                )
        self.state = self.state.model_copy(update={"served": now})


def _trial_key(name: str, settings: Settings | None) -> str:
    return f"{name} {json.dumps(_dump_settings(settings), sort_keys=True)}"


def _dump_settings(settings: Settings | None) -> dict:
    return settings.model_dump(mode="json") if settings else {}

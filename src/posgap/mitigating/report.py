"""The file `mitigate.json`: what came of every mitigation, and what to take for which purpose."""

import json
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from pydantic import Field

from posgap.foundation.choices import SECRET
from posgap.foundation.files import Record, read_model
from posgap.foundation.locations import with_uris
from posgap.generation.backends import BACKENDS
from posgap.measurement.comparison import Difference
from posgap.measurement.sweeps import Sweep
from posgap.mitigating.config import MitigateConfig
from posgap.mitigating.timing import Cost
from posgap.mitigations.mitigation import Mitigation
from posgap.mitigations.registry import MITIGATIONS
from posgap.scaling.fitness import Objective

MITIGATE_FILE = "mitigate.json"


class Measured(Record):
    """A mitigation on the held-out examples: the difference to the model as it is, whose intervals hold for all that
    were measured together; what an answer costs, None of a model elsewhere, and prompt tokens an answer, as a multiple;
    None where nobody counted. An answer takes so many `calls`, of which each is a prompt."""

    difference: Difference
    mean: float
    gap: float
    gap_ci95: tuple[float, float]
    cost: Cost | None
    tokens: float | None
    calls: int = 1

    @property
    def paid(self) -> float:
        """What an answer takes, as a multiple: time, or of a model elsewhere tokens, or calls where nobody counted."""
        return self.cost.answer if self.cost else self.tokens or self.calls

    @property
    def unit(self) -> str:
        """Of what `paid` is a multiple."""
        return "time" if self.cost else "prompt tokens" if self.tokens else "calls"

    @property
    def price(self) -> str:
        """What an answer takes, in words."""
        if self.cost:
            return f"an answer takes {self.cost.answer:.2f} times as long"
        tokens = f" and {self.tokens:.2f} times the prompt tokens" if self.tokens else ""
        return f"an answer takes {self.calls} call{'s' * (self.calls > 1)}{tokens}"


class Found(Record):
    """A mitigation by its name and the settings that did best. Gains are in mean accuracy over the model as it is, in
    points: on the examples on which its settings were tried (`search_gain`, the best of `tried`, so too high), on those
    on which the best were tried again (`selection_gain`), and in `measured` on held-out examples. `reason` says
    why it was not tried or not measured; empty where it was. `curve` says on which curve over depth factors of layers
    lie."""

    name: str
    level: str
    source: str
    cost: str
    served_by: list[str]
    settings: dict = Field({})
    curve: str = ""
    tried: int = 0
    search_gain: float | None = None
    selection_gain: float | None = None
    measured: Measured | None = None
    reason: str = ""
    command: str = ""

    @property
    def helps(self) -> bool:
        """Whether it is for certain better on the held-out examples: in its mean, or in its gap with a mean that is not
        for certain lower."""
        if not self.measured:
            return False
        return self.measured.difference.mean_ci95[0] > 0 or self.narrows

    @property
    def narrows(self) -> bool:
        """Whether its gap on the held-out examples is for certain smaller, and its mean not for certain lower."""
        if not self.measured:
            return False
        d = self.measured.difference
        return d.gap_ci95[1] < 0 and d.mean_ci95[1] >= 0


class Advice(Record):
    """What to take for a purpose: the mitigation's name, empty where none will do, with the reason and the command."""

    purpose: str
    name: str
    why: str
    command: str


class Mitigate(Record):
    """The whole comparison. `examples` are the sizes of the parts, `chosen_by` the contents of those by which settings
    were chosen: on them the model is not to be measured with a mitigation. `seconds` of the budget were spent. The
    backend that asked the model `elsewhere`; empty for a model in memory."""

    model: str
    model_digest: str
    task: str
    n_docs: int
    objective: str
    elsewhere: str = ""
    budget: str
    seconds: float
    examples: dict[str, int]
    chosen_by: list[str]
    base_mean: float
    base_gap: float
    base_gap_ci95: tuple[float, float]
    found: list[Found]
    advice: list[Advice]

    @property
    def measured(self) -> list[Found]:
        """Those that were measured on the held-out examples, the best on the selection first."""
        return [each for each in self.found if each.measured]

    @property
    def unit(self) -> str:
        """In what the cost of answers is compared."""
        return self.measured[0].measured.unit if self.measured and self.measured[0].measured else "time"

    @property
    def title(self) -> str:
        """What stands above the page."""
        return f"Mitigations of {Path(self.model).name}: {len(self.measured)} of {len(self.found)} measured"

    @property
    def headline(self) -> str:
        """What came of it, in a sentence."""
        measured = ", ".join(each.name for each in self.measured)
        helping = ", ".join(each.name for each in self.measured if each.helps)
        if helping:
            family = f", all {len(self.measured)} taken together" if len(self.measured) > 1 else ""
            return f"For certain better than the model as it is, on held-out examples{family}: {helping}."
        return f"Of {measured or 'all that were tried'}, nothing is for certain better than the model as it is."

    @property
    def taken(self) -> list[Advice]:
        """The advice that names a mitigation, each mitigation once."""
        return list({each.name: each for each in reversed(self.advice) if each.name}.values())[::-1]


class Purpose(NamedTuple):
    """What one may want a mitigation for: which ones are for it (`fits`), and by which objective the best of those is
    picked to be measured. By the gap alone a model that is wrong everywhere would be the best; so it is mean minus
    gap."""

    name: str
    fits: Callable[[Found], bool]
    by: Objective = "mean"


# In the order in which the best for each are measured, as long as there is time.
PURPOSES = (
    Purpose("the highest mean", lambda found: True),
    Purpose("no cost", lambda found: found.cost == "nothing"),
    Purpose("the smallest gap", lambda found: True, "mean_minus_gap"),
    Purpose("nothing can be installed where it is served", lambda found: "anything" in found.served_by),
    Purpose("served by vLLM", lambda found: bool({"vllm", "anything"} & set(found.served_by))),
    Purpose("an endpoint that only takes prompts", lambda found: "endpoints" in found.served_by),
)


def read_mitigate(path: Path) -> Mitigate:
    """Reads a comparison of mitigations from the folder `mitigate` wrote, or from its `mitigate.json`."""
    return read_model(Mitigate, path, MITIGATE_FILE)


def described(mitigation: Mitigation) -> Found:
    """A mitigation of which nothing is known yet but what it says of itself."""
    return Found(
        name=mitigation.name,
        level=mitigation.level,
        source=mitigation.source,
        cost=mitigation.cost,
        served_by=list(mitigation.served_by),
    )


def command(name: str, settings: dict, config: MitigateConfig) -> str:
    """The command that makes a mitigation's use possible: a model folder that has it, or a sweep that asks by it."""
    model = with_uris(config.model)
    if MITIGATIONS[name].of_model:
        parts = ["posgap", "apply", "--model", model, "--found", str(config.out), "--mitigation", name]
        return shlex.join([*parts, "--out", f"model-{name}"])
    parts = ["posgap", "sweep", "--model", model]
    if not BACKENDS[config.backend].local:
        parts += ["--backend", config.backend, *_own_options(config)]
    parts += ["--task", config.task, "--n-docs", str(config.n_docs)]
    parts += ["--mitigation", name, "--mitigation-settings", json.dumps(settings)]
    return shlex.join([*parts, "--examples", "EXAMPLES", "--out", f"sweep-{name}"])


def _own_options(config: MitigateConfig) -> list[str]:
    """The options of the backend itself that are not as by default; none that is a secret."""
    said, options = config.recorded(), list[str]()
    for name, field in BACKENDS[config.backend].parameters.model_fields.items():
        value = said[name]
        if SECRET not in field.metadata and getattr(config, name) != config.default(name):
            text = value if isinstance(value, str) else json.dumps(value)
            option = f"--{name.replace('_', '-')}"
            options += [f"{option}={text}"] if isinstance(value, bool) else [option, text]
    return options


def advice(found: Sequence[Found]) -> list[Advice]:
    """What to take for which purpose, of those that are for certain better than the model as it is."""
    return [_advised(purpose, found) for purpose in PURPOSES]


def _advised(purpose: Purpose, found: Sequence[Found]) -> Advice:
    fitting = [each for each in found if purpose.fits(each)]
    measured = [each for each in fitting if each.measured]
    by_gap = purpose.by == "mean_minus_gap"
    helping = [each for each in measured if (each.narrows if by_gap else each.helps)]
    if not helping:
        how = "has for certain a smaller gap, at no certain loss in the mean," if by_gap else "is for certain better"
        why = _why_none(measured or fitting, bool(measured), how)
        return Advice(purpose=purpose.name, name="", why=why, command="")
    best = min(helping, key=_gap) if by_gap else max(helping, key=_mean)
    assert best.measured
    d = best.measured.difference
    why = (
        f"mean {d.mean:+.1f} points ({d.mean_ci95[0]:+.1f} to {d.mean_ci95[1]:+.1f}), gap {d.gap:+.1f} "
        f"({d.gap_ci95[0]:+.1f} to {d.gap_ci95[1]:+.1f}), {best.measured.price}"
    )
    return Advice(purpose=purpose.name, name=best.name, why=why, command=best.command)


def _why_none(fitting: Sequence[Found], measured: bool, how: str) -> str:
    names = ", ".join(each.name for each in fitting)
    if not fitting:
        return "none of those to be tried is for it"
    if not measured:
        return f"{names}: not measured; the reasons stand with all that was tried"
    return f"of what was measured ({names}) nothing {how} than the model as it is"


def _mean(found: Found) -> float:
    assert found.measured
    return found.measured.difference.mean


def _gap(found: Found) -> float:
    assert found.measured
    return found.measured.difference.gap


def labelled(sweep: Sweep) -> str:
    """A sweep's figures in a line."""
    return f"mean {sweep.mean:.1f}, gap {sweep.gap:.1f} ({sweep.gap_ci95[0]:.1f} to {sweep.gap_ci95[1]:.1f})"

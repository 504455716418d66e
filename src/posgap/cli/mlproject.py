"""MLproject's entry points, written from the configs: `python -m posgap.cli.mlproject > MLproject`."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from posgap.cli.main import is_argument
from posgap.cli.verbs import STAGES, words
from posgap.demo.config import DemoConfig
from posgap.foundation.config import NO_PARAMETERS, Config
from posgap.foundation.fields import plain_type
from posgap.rollout.config import RolloutCompareConfig, RolloutMeasureConfig, RolloutPredictConfig
from posgap.scaling.config import ScaleApplyConfig, ScaleSearchConfig

_HEAD = """\
# Written by `make mlproject` from the configs of src/posgap, where every default is kept. One stage:
#   mlflow run . -e sweep --env-manager local -P examples=E -P model=M -P out=O
name: posgap

python_env: infra/python_env.yaml

entry_points:
"""


@dataclass(frozen=True)
class Step:
    """One verb. `given` are options that its entry point fixes, in which `{out}` may stand; all others are
    parameters of the entry point, unless `closed`."""

    words: str
    config: type[Config]
    given: Mapping[str, str] = field(default_factory=dict)
    closed: bool = False

    def parameters(self) -> list[str]:
        return [] if self.closed else [n for n in self.config.model_fields if n not in (*NO_PARAMETERS, *self.given)]

    def command(self) -> str:
        options = []
        for name in [*self.given, *self.parameters()]:
            options.append(_option(name, self.config) + self.given.get(name, f"{{{name}}}"))  # MLflow quotes the values
        return f"posgap {self.words} {' '.join(options)}"


def _option(name: str, owner: type[Config]) -> str:
    """What stands before a field's value on the command line."""
    info = owner.model_fields[name]
    if is_argument(info):
        return ""
    return f"--{name.replace('_', '-')}{'=' if plain_type(info) is bool else ' '}"


def entry_point(name: str, *steps: Step, **defaults: Any) -> str:
    """One entry point: the typed parameters of its steps, and their verbs one after the other."""
    parameters = {"out": _parameter("out", steps[0].config, defaults)}
    for step in steps:
        for each in step.parameters():
            parameters.setdefault(each, _parameter(each, step.config, defaults))
    command = json.dumps(" && ".join(step.command() for step in steps))
    return "\n".join([f"  {name}:", "    parameters:", *parameters.values(), f"    command: {command}", ""])


def _parameter(name: str, owner: type[Config], defaults: Mapping[str, Any]) -> str:
    info = owner.model_fields[name]
    kind = "float" if plain_type(info) in (int, float) else "string"
    required = info.is_required() and name not in defaults
    default = "" if required else f", default: {_literal(defaults.get(name, owner.default(name)))}"
    return f"      {name}: {{type: {kind}{default}}}"


def _literal(value: object) -> str:
    if value == []:
        return '""'
    if isinstance(value, dict | list):
        value = json.dumps(value)
    return json.dumps(value if isinstance(value, int | float | str) else str(value))


def mlproject() -> str:
    """The whole MLproject file."""
    demo = Step("demo", DemoConfig)
    points = [entry_point("demo", demo), entry_point("smoke", demo, out="runs/smoke", smoke=True)]
    points += [entry_point(name, Step(" ".join(words(name)), verb.config)) for name, verb in STAGES.items()]
    return _HEAD + "\n".join([*points, entry_point("scale", *_SCALE), entry_point("rollout", *_ROLLOUT)])


# Search and application, into {out}/search and {out}/model.
_SCALE = (
    Step("scale search", ScaleSearchConfig, {"out": "{out}/search"}),
    Step("scale apply", ScaleApplyConfig, {"scaling": "{out}/search", "out": "{out}/model"}),
)
# What a model does, what the theory says of a model like it, and the one beside the other.
_MEASUREMENT, _PREDICTION = "{out}/measurement", "{out}/prediction"
_LIKE_IT = {"encoding": "measured", "residual": "measured", "content": "mean"}
_ROLLOUT = (
    Step("rollout measure", RolloutMeasureConfig, {"out": _MEASUREMENT}),
    Step(
        "rollout predict",
        RolloutPredictConfig,
        {"measurement": _MEASUREMENT, "out": _PREDICTION, "seed": "{seed}", **_LIKE_IT},
        closed=True,
    ),
    Step(
        "rollout compare",
        RolloutCompareConfig,
        {"measurement": _MEASUREMENT, "prediction": _PREDICTION, "out": "{out}/comparison"},
    ),
)


if __name__ == "__main__":
    print(mlproject(), end="")

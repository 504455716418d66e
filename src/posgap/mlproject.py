"""MLproject's entry points, written from the configs: `python -m posgap.mlproject > MLproject`."""

import json

from posgap.cli import STAGES, is_argument, words
from posgap.config import Config, DemoConfig

_HEAD = """\
# Written by `make mlproject` from src/posgap/config.py, where every default is kept. One stage:
#   mlflow run . -e sweep --env-manager local -P examples=E -P model=M -P out=O
name: posgap

python_env: infra/python_env.yaml

entry_points:
"""


def entry_point(name: str, config: type[Config]) -> str:
    """One entry point: typed parameters and the verb that takes them all."""
    parameters, options = [], []
    for field, info in config.model_fields.items():
        if field == "force":
            continue
        kind = "float" if info.annotation in (int, float) else "string"
        default = "" if info.is_required() else f", default: {_literal(config.default(field))}"
        parameters.append(f"      {field}: {{type: {kind}{default}}}")
        option = "" if is_argument(info) else f"--{field.replace('_', '-')} "
        options.append(f"{option}{{{field}}}")  # MLflow quotes the values
    command = f'"posgap {" ".join(words(name))} {" ".join(options)}"'
    return "\n".join([f"  {name}:", "    parameters:", *parameters, f"    command: {command}", ""])


def _literal(value: object) -> str:
    if value is None or value == []:
        return '""'
    return json.dumps(value if isinstance(value, int | float | str) else str(value))


def mlproject() -> str:
    """The whole MLproject file."""
    verbs = {"demo": DemoConfig} | {name: config for name, (config, _) in STAGES.items()}
    return _HEAD + "\n".join(entry_point(name, config) for name, config in verbs.items())


if __name__ == "__main__":
    print(mlproject(), end="")

"""MLproject's entry points, written from the configs: `python -m posgap.cli.mlproject > MLproject`."""

import json

from pydantic.fields import FieldInfo

from posgap.cli.main import is_argument
from posgap.foundation.fields import plain_type
from posgap.options.base import NO_PARAMETERS, Config
from posgap.options.table import VERBS

_HEAD = """\
# Written by `make mlproject` from the configs of src/posgap, where every default is kept. One verb:
#   mlflow run . -e sweep --experiment-name posgap --env-manager local -P examples=E -P model=M -P out=O
name: posgap

python_env: infra/python_env.yaml

entry_points:
"""
POINTS = ("demo", "check", "sweep", "mitigate", "teacher", "distill", "gate", "promote")
# MLflow quotes the value. It becomes words again as a shell would have them, and nothing in it is run by one.
_WORDS = "import os, shlex, sys; os.execvp('posgap', ['posgap', *shlex.split(sys.argv[1])])"
_ANY = f"""
  # Any other verb: mlflow run . -e verb --env-manager local -P arguments="merge run/a run/b --out run/base"
  verb:
    parameters:
      arguments: {{type: string}}
    command: "python -c \\"{_WORDS}\\" {{arguments}}"
"""


def mlproject() -> str:
    """The whole MLproject file."""
    return _HEAD + "\n".join(map(entry_point, POINTS)) + _ANY


def entry_point(verb: str) -> str:
    """The entry point of a verb: its typed parameters, and its command."""
    config = VERBS[verb].config
    fields = {name: info for name, info in config.options().items() if name not in NO_PARAMETERS}
    parameters = [_parameter(name, config) for name in fields]
    options = " ".join(f"{_option(name, info)}{{{name}}}" for name, info in fields.items())  # MLflow quotes the values
    command = json.dumps(f"posgap {verb} {options}")
    return "\n".join([f"  {verb}:", "    parameters:", *parameters, f"    command: {command}", ""])


def _option(name: str, info: FieldInfo) -> str:
    """Returns the words before a field's value on the command line."""
    if is_argument(info):
        return ""
    return f"--{name.replace('_', '-')}{'=' if plain_type(info) is bool else ' '}"


def _parameter(name: str, config: type[Config]) -> str:
    info = config.model_fields[name]
    kind = "float" if plain_type(info) in (int, float) else "string"
    default = "" if config.must_be_said(name) else f", default: {_literal(config.default(name))}"
    return f"      {name}: {{type: {kind}{default}}}"


def _literal(value: object) -> str:
    if value == []:
        return '""'
    if isinstance(value, dict | list):
        value = json.dumps(value)
    return json.dumps(value if isinstance(value, int | float | str) else str(value))


if __name__ == "__main__":
    print(mlproject(), end="")

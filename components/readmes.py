"""The READMEs of the components, from docstrings and metadata: `python -m posgap.components.readmes`."""

import importlib
import inspect
import json
from pathlib import Path
from typing import Any

import jinja2
import yaml
from kfp.dsl.base_component import BaseComponent

HERE = Path(__file__).parent
# What KFP calls the types that a form shows.
_TYPES = {"String": "str", "Integer": "int", "Float": "float", "Boolean": "bool", "List": "list", "Dict": "dict"}

_TEMPLATE = """\
# {{ name }}

> Stability: {{ metadata.stability }}

## Overview

{{ overview }}

Image: `{{ image }}`

## Inputs

| name | type | default | description |
|---|---|---|---|
{% for row in inputs %}
| `{{ row.name }}` | {{ row.type }} | {{ row.default }} | {{ row.description }} |
{% endfor %}

## Outputs

| name | type |
|---|---|
{% for row in outputs %}
| `{{ row.name }}` | {{ row.type }} |
{% endfor %}

## Usage example

```python
from posgap.components.{{ name }} import {{ name }}
```

## Metadata

- Dependencies: {{ dependencies }}
- Tags: {{ metadata.tags | join(", ") }}
- Last verified: {{ metadata.lastVerified.date() }}

## Additional resources

{% for title, address in metadata.links.items() %}
- {{ title | replace("_", " ") }}: <{{ address }}>
{% endfor %}
"""


def names() -> list[str]:
    """Every component, by its folder."""
    return sorted(file.parent.name for file in HERE.glob("*/component.py"))


def load(name: str) -> BaseComponent:
    """A component by its name."""
    return getattr(importlib.import_module(f"posgap.components.{name}.component"), name)


def readme(name: str) -> str:
    """The README of a component."""
    made = load(name)
    spec, metadata = made.component_spec, yaml.safe_load((HERE / name / "metadata.yaml").read_text(encoding="utf-8"))
    services = [service for group in metadata["dependencies"].values() for service in group]
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    return environment.from_string(_TEMPLATE).render(
        name=name,
        metadata=metadata,
        overview=inspect.getdoc(made.python_func),
        image=spec.implementation.container.image,
        inputs=[_input(*item) for item in (spec.inputs or {}).items()],
        outputs=[{"name": key, "type": _type(output)} for key, output in (spec.outputs or {}).items()],
        dependencies=", ".join(f"{service['name']} {service['version']}" for service in services),
    )


def _input(name: str, parameter: Any) -> dict[str, str]:
    default = "" if parameter.default is None else f"`{json.dumps(parameter.default)}`"
    description = (parameter.description or "").replace("|", "\\|")
    return {"name": name, "type": _type(parameter), "default": default or _need(parameter), "description": description}


def _need(parameter: Any) -> str:
    return "optional" if parameter.optional else "required"


def _type(parameter: Any) -> str:
    short = parameter.type.partition("@")[0].removeprefix("system.")
    return f"list of {short}" if parameter.is_artifact_list else _TYPES.get(short, short)


if __name__ == "__main__":
    for component in names():
        (HERE / component / "README.md").write_text(readme(component), encoding="utf-8")

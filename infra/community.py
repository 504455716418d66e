"""The components as the community's registry wants them, in a checkout of kubeflow/pipelines-components.

    python infra/community.py ../pipelines-components --python ../pipelines-components/.venv/bin/python

The registry takes functions that stand alone: a file imports nothing of posgap at its top, the image is Python's, and
posgap is installed into it when a step starts. So each component is written out with all its parameters, its metadata
and owners, and a test that needs no posgap; the registry's own programs then write the READMEs and check everything.
"""

import argparse
import ast
import importlib
import inspect
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2
import yaml
from kfp.dsl.base_component import BaseComponent

import posgap.components
from posgap import __version__
from posgap.components.wrapper import CPU, SERVE, TRAIN, image

HERE = Path(posgap.components.__path__[0])
# The registry allows `python:<version>` and images of its own.
IMAGE = "python:3.11"
# As infra/images/Dockerfile has them; vLLM is not among them, since steps here generate by transformers.
_STEP = "mlflow,kfp,s3,tables,validate,cluster"
EXTRAS = {CPU: _STEP, TRAIN: "all", SERVE: _STEP}
_CATEGORIES = {
    "training": "apply distill mitigate scale_search teacher train_job",
    "data_processing": "data_version validate",
    "deployment": "preflight promote report",
}
# What an artifact is for that has no parameter of the stage behind it.
_SHOWN = {
    "dsl.Output[dsl.HTML]": "Page that the run page shows.",
    "dsl.Output[dsl.Markdown]": "Text that the run page shows.",
    "dsl.Output[dsl.Metrics]": "Figures that the run page shows.",
    "dsl.OutputPath(str)": "Output parameter of this name.",
    "dsl.PipelineTaskFinalStatus": "How the pipeline ended; KFP fills it in.",
}

_COMPONENT = '''\
"""KFP component `{{ name }}` of posgap."""

{% for line in imports %}
{{ line }}
{% endfor %}
{{ "\\n" if imports }}from kfp import dsl


@dsl.component(
    base_image="{{ image }}",
    packages_to_install=["{{ package }}"],
)
def {{ name }}(
{% for parameter in parameters %}
    {{ parameter }},
{% endfor %}
){{ returned }}:
    """{{ summary }}
{% if rest %}

{{ rest }}
{% endif %}

    Args:
{% for parameter, text in described.items() %}
        {{ parameter }}: {{ text }}
{% endfor %}
    """  # noqa: E501  a description is a cell of the README's table: one line
{{ body }}
'''

_TEST = '''\
"""Tests of the component `{{ name }}`; posgap itself is replaced."""

import inspect
import sys
from unittest import mock

from ..component import {{ name }}

REPLACED = (
{% for module in modules %}
    "{{ module }}",
{% endfor %}
)


def test_every_argument_reaches_the_stage():
    """The stage is given the config that is made of all arguments."""
    modules = {module: mock.MagicMock() for module in REPLACED}
    given = {parameter: mock.Mock() for parameter in inspect.signature({{ name }}.python_func).parameters}
    with mock.patch.dict(sys.modules, modules), mock.patch("pathlib.Path"):
        {{ name }}.python_func(**given)
    made = modules["posgap.kfp_steps.arguments"].to_config
    assert made.call_args.args == (modules["{{ config_module }}"].{{ config }}, given)
    assert made.return_value in modules["{{ stage_module }}"].{{ stage }}.call_args.args


def test_it_runs_in_the_registrys_image():
    """The image is one that the registry allows, and posgap is installed into it."""
    container = {{ name }}.component_spec.implementation.container
    command = " ".join([*container.command, *container.args])
    assert container.image == "{{ image }}"
    assert "{{ package }}" in command
'''


def write(registry: Path, package: str, owner: str) -> list[Path]:
    """Writes all components into a checkout of the registry, and returns their folders, relative to it.

    `package` is what pip is to install, with {extras} where the extras go. READMEs are the registry's own to write.
    """
    made = []
    for name in names():
        group = registry / "components" / category(name) / "posgap"
        folder, component = group / name, load(name)
        spec = package.format(extras=EXTRAS[_kind(component)])
        files = {
            folder / "component.py": component_source(component, spec),
            folder / "__init__.py": f'from .component import {name}\n\n__all__ = ["{name}"]\n',
            folder / "metadata.yaml": _metadata(name),
            folder / "tests" / "__init__.py": "",
            folder / "tests" / "test_component_unit.py": _test_source(component, spec),
            group / "__init__.py": "",
        }
        owners = {place / "OWNERS": f"approvers:\n  - {owner}\n" for place in (group, folder)}
        for file, text in (files | owners).items():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        made.append(folder.relative_to(registry))
    return made


def names() -> list[str]:
    """The names of all components: each has a module of its own beside `wrapper`."""
    return sorted(file.stem for file in HERE.glob("*.py") if file.stem not in ("__init__", "wrapper"))


def load(name: str) -> BaseComponent:
    """A component by its name."""
    return getattr(importlib.import_module(f"posgap.components.{name}"), name)


def _metadata(name: str) -> str:
    """The registry's metadata of a component, verified now, since its checks follow."""
    trainer = [{"name": "Trainer", "version": ">=2.3.0"}] if name == "train_job" else []
    address = "https://github.com/posgap/posgap"
    page = "rollout" if name.startswith("rollout") else "kubeflow"
    metadata = {
        "name": name,
        "stability": "alpha",
        "dependencies": {
            "kubeflow": [{"name": "Pipelines", "version": ">=2.17.0"}, *trainer],
            "external_services": [{"name": "MLflow", "version": ">=3.17.0"}],
        },
        "tags": [category(name).replace("_", "-"), "position-bias", "long-context"],
        "lastVerified": datetime.now(UTC),
        "links": {"documentation": f"{address}/blob/main/docs/{page}.md", "issue_tracker": f"{address}/issues"},
    }
    return yaml.dump(metadata, Dumper=_Indented, explicit_start=True, sort_keys=False, default_flow_style=False)


class _Indented(yaml.SafeDumper):
    """YAML as the registry's linter wants it: what a list has is indented."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


_Indented.add_representer(
    datetime, lambda dumper, day: dumper.represent_scalar("tag:yaml.org,2002:timestamp", f"{day:%Y-%m-%dT00:00:00Z}")
)


def category(name: str) -> str:
    """The registry's category of a component; most measure or explain."""
    return next((category for category, words in _CATEGORIES.items() if name in words.split()), "evaluation")


def component_source(component: BaseComponent, package: str) -> str:
    """A module with the component alone, all parameters with their defaults and descriptions written out."""
    function, spec = _definition(component), component.component_spec
    parameters = sorted(_parameters(component, function), key=lambda each: each[2] != "")  # required ones first
    summary, _, rest = re.sub(r"\s+", " ", inspect.cleandoc(ast.get_docstring(function) or "")).partition(". ")
    own = Path(HERE / f"{function.name}.py").read_text(encoding="utf-8")
    tops = (ast.unparse(each) for each in ast.parse(own).body if isinstance(each, ast.Import | ast.ImportFrom))
    signature = next(each for each in ast.parse(own).body if isinstance(each, ast.FunctionDef))
    returned = f" -> {ast.get_source_segment(own, signature.returns)}" if signature.returns else ""
    inputs = spec.inputs or {}
    return _rendered(
        _COMPONENT,
        name=function.name,
        imports=[line for line in tops if "kfp" not in line and "posgap" not in line],
        image=IMAGE,
        package=package,
        parameters=[f"{name}: {kind}{default}" for name, kind, default in parameters],
        returned=returned,
        summary=summary.rstrip(".") + ".",
        rest=textwrap.fill(rest, 116, initial_indent="    ", subsequent_indent="    "),
        described={name: _described(name, kind, inputs) for name, kind, _ in parameters},
        body="\n".join(_source(component).splitlines()[function.body[1].lineno - 1 :]),
    )


def _parameters(component: BaseComponent, function: ast.FunctionDef) -> Iterator[tuple[str, str, str]]:
    """Of each parameter its name, its type, and its default as it is written, which is empty where there is none."""
    arguments, inputs = function.args, component.component_spec.inputs or {}
    first = len(arguments.args) - len(arguments.defaults)
    for place, each in enumerate(arguments.args):
        assert each.annotation is not None
        given = inputs[each.arg].default if each.arg in inputs else None
        default = "" if given is None else f" = {_literal(given)}"
        if place >= first and not default:  # an artifact that may be missing
            default = f" = {ast.unparse(arguments.defaults[place - first])}"
        yield each.arg, ast.unparse(each.annotation), default


def _described(name: str, kind: str, inputs: dict[str, Any]) -> str:
    """One sentence of a parameter, without what would end a cell of a table."""
    text = (inputs[name].description if name in inputs else None) or _SHOWN.get(kind) or "Folder that the stage writes."
    return re.sub(r"\s+", " ", text).replace("|", "or")


def _test_source(component: BaseComponent, package: str) -> str:
    function = _definition(component)
    imported = [each for each in ast.walk(function) if isinstance(each, ast.ImportFrom)]
    modules = {f"{each.module}" for each in imported if f"{each.module}".startswith("posgap")}
    calls = [each for each in ast.walk(function) if isinstance(each, ast.Call)]
    made = next(each for each in calls if ast.unparse(each.func) == "to_config")
    stage = ast.unparse(next(each.func for each in calls if made in each.args))
    config = ast.unparse(made.args[0])

    def module_of(name: str) -> str | None:
        return next(each.module for each in imported if any(alias.name == name for alias in each.names))

    return _rendered(
        _TEST,
        name=function.name,
        modules=sorted({"posgap"} | modules),
        config=config,
        config_module=module_of(config),
        stage=stage,
        stage_module=module_of(stage),
        image=IMAGE,
        package=package,
    )


def _kind(component: BaseComponent) -> str:
    reference = component.component_spec.implementation.container.image
    return next(kind for kind in EXTRAS if image(kind) == reference)


def _source(component: BaseComponent) -> str:
    return inspect.getsource(component.python_func)


def _definition(component: BaseComponent) -> ast.FunctionDef:
    (definition,) = ast.parse(_source(component)).body
    assert isinstance(definition, ast.FunctionDef)
    return definition


def _literal(value: Any) -> str:
    """The value as ruff would write it."""
    if isinstance(value, str) and '"' not in value and "\\" not in value:
        return f'"{value}"'
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_literal(key)}: {_literal(each)}' for key, each in value.items())}}}"
    return repr(value)


def _rendered(template: str, **values: Any) -> str:
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    return environment.from_string(template).render(values)


def checks(folders: list[Path]) -> dict[str, list[list[str]]]:
    """The registry's own checks, by name: what is given to Python in its checkout."""
    groups = sorted({str(folder.parent) for folder in folders})
    readme, each = ["-m", "scripts.generate_readme"], [str(folder) for folder in folders]
    guard = ".github/scripts/check_imports"
    images = [word for one in each for word in ("--component", one)]
    return {
        "format": [["-m", "ruff", "format", "--check", *groups]],
        "lint": [["-m", "ruff", "check", *groups]],
        "yaml": [["-m", "yamllint", "--config-file", ".yamllint.yml", *groups]],
        "import guard": [[f"{guard}/check_imports.py", "--config", f"{guard}/import_exceptions.yaml", *groups]],
        "metadata": [["scripts/validate_metadata/validate_metadata.py", "--dir", group] for group in groups],
        "base images": [["-m", "scripts.validate_base_images.validate_base_images", *images]],
        "compilation": [
            [
                *("-m", "scripts.compile_check.compile_check", "--include-flagless"),
                *(word for group in groups for word in ("--path", group)),
            ]
        ],
        "READMEs": [[*readme, "--component", one] for one in each],
        "packages": [["-m", "scripts.validate_package_entries.validate_package_entries"]],
        "tests": [["-m", "scripts.tests.run_component_tests", *groups]],
    }


def main(arguments: list[str] | None = None) -> int:
    """Writes the components and runs the registry's programs on them; how many of its checks failed."""
    about = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python infra/community.py", description=about)
    parser.add_argument("registry", type=Path, help="checkout of kubeflow/pipelines-components")
    parser.add_argument(
        "--package",
        default=f"posgap[{{extras}}]=={__version__}",
        help="what pip is to install in a step, with {extras} where the extras go",
    )
    parser.add_argument("--owner", default="posgap-maintainers", help="GitHub name of who approves changes")
    parser.add_argument("--python", default=sys.executable, help="Python that has what the registry's programs need")
    given = parser.parse_args(arguments)
    if not (given.registry / "scripts" / "generate_readme").is_dir():
        parser.error(
            f"{given.registry}: no checkout of kubeflow/pipelines-components, scripts/generate_readme is missing"
        )
    folders = write(given.registry, given.package, given.owner)
    for folder in folders:
        if fault := _failed(given, ["-m", "scripts.generate_readme", "--component", str(folder), "--fix"]):
            parser.exit(2, f"the registry's generator of READMEs failed on {folder}:\n{fault}\n")
    if fault := _failed(given, ["-m", "scripts.sync_packages.sync_packages"]):
        parser.exit(2, f"the registry's list of packages could not be written:\n{fault}\n")
    failed = 0
    for name, commands in checks(folders).items():
        faults = [fault for command in commands if (fault := _failed(given, command))]
        print(f"{name}: {'failed' if faults else 'passed'}", *faults, sep="\n", flush=True)
        failed += bool(faults)
    return failed


def _failed(given: argparse.Namespace, words: list[str]) -> str:
    """What a program of the registry printed, if it failed."""
    done = subprocess.run([given.python, *words], cwd=given.registry, capture_output=True, text=True)
    return (done.stdout + done.stderr or f"exit code {done.returncode}") if done.returncode else ""


if __name__ == "__main__":
    sys.exit(main())

"""infra/community.py against the published rules of kubeflow/pipelines-components (docs/CONTRIBUTING.md there).

A checkout of that has programs which check the same: `make community`.
"""

import ast
import importlib
import re
import subprocess
import sys
from datetime import UTC, datetime
from functools import wraps

import pytest
import yaml
from conftest import ROOT

from posgap.cli.verbs import STAGES
from posgap.components.wrapper import CPU, SERVE, TRAIN, image

sys.path.append(str(ROOT / "infra"))
import community
from community import load

FIELDS = ["name", "stability", "dependencies", "lastVerified"]
OPTIONAL = {"tags", "ci", "links"}
# One of each kind: with artifacts that may be missing, a list of them, further outputs, a named tuple, an exit handler.
SOME = ("gate", "merge", "data_version", "preflight", "report", "compare", "validate", "distill")
# As its pyproject.toml has it, with the docstrings of Google.
RUFF = ["--isolated", "--line-length=120", "--select=E,W,F,I,D", "--ignore=D100,D104,D415"]


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    """A checkout with nothing but our components, and their folders in it."""
    root = tmp_path_factory.mktemp("registry")
    (root / "components").mkdir()
    (root / "components" / "__init__.py").touch()
    made = {folder.name: root / folder for folder in community.write(root, "posgap[{extras}]==9.9.9", "ada")}
    for folder in made.values():
        (folder.parent.parent / "__init__.py").touch()  # the registry's
    return root, made


@pytest.fixture(scope="module")
def modules(registry):
    """Some of the components and their tests, imported from the checkout."""
    root, made = registry
    with pytest.MonkeyPatch.context() as patch:
        ours = [name for name in sys.modules if name.partition(".")[0] == "components"]
        assert not ours
        patch.syspath_prepend(root)
        path = {name: ".".join(folder.relative_to(root).parts) for name, folder in made.items()}
        yield {
            name: (
                getattr(importlib.import_module(path[name]), name),
                importlib.import_module(f"{path[name]}.tests.test_component_unit"),
            )
            for name in SOME
        }
    for name in [name for name in sys.modules if name.partition(".")[0] == "components"]:
        del sys.modules[name]


def test_every_component_has_the_files_that_the_registry_requires(registry):
    root, made = registry
    assert made.keys() == STAGES.keys()
    for name, folder in made.items():
        assert folder.parent.name == "posgap" and folder.parents[2] == root / "components"
        files = {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}
        required = {"__init__.py", "component.py", "metadata.yaml", "OWNERS"}
        assert files == required | {"tests/__init__.py", "tests/test_component_unit.py"}, name
        for place in (folder, folder.parent):
            assert yaml.safe_load((place / "OWNERS").read_text())["approvers"] == ["ada"]


def test_metadata_has_its_fields_in_order_and_was_verified_within_a_year(registry):
    for folder in registry[1].values():
        metadata = yaml.safe_load((folder / "metadata.yaml").read_text())
        assert [field for field in metadata if field not in OPTIONAL] == FIELDS
        assert metadata["name"] == folder.name
        assert "Pipelines" in [each["name"] for each in metadata["dependencies"]["kubeflow"]]
        for service in (each for group in metadata["dependencies"].values() for each in group):
            assert re.fullmatch(r"(==|>=|<=)?\d+\.\d+\.\d+", service["version"])
        assert abs((datetime.now(UTC) - metadata["lastVerified"]).days) < 365


def test_nothing_but_the_standard_library_and_kfp_is_imported_at_the_top(registry):
    allowed = sys.stdlib_module_names | {"kfp", "pytest"}
    for file in registry[0].rglob("*.py"):
        top = [node for node in ast.parse(file.read_text()).body if isinstance(node, ast.Import | ast.ImportFrom)]
        for node in top:
            absolute = [node.module] if isinstance(node, ast.ImportFrom) and not node.level else []
            absolute += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert {name.partition(".")[0] for name in absolute} <= allowed, file


def test_the_registry_s_linter_finds_nothing(registry):
    ruff = [sys.executable, "-m", "ruff"]
    options = ["--config", 'lint.pydocstyle.convention = "google"']
    for command in (["check", *RUFF, *options], ["format", "--check", "--isolated", "--line-length=120"]):
        done = subprocess.run([*ruff, *command, registry[0]], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-3000:]


def test_a_component_takes_and_gives_what_ours_does(modules):
    kinds = {image(kind): listed for kind, listed in community.EXTRAS.items()}
    extras = {name: kinds[load(name).component_spec.implementation.container.image] for name in modules}
    for name, (written, _) in modules.items():
        theirs, ours = written.component_spec, load(name).component_spec
        for kind in ("inputs", "outputs"):
            mine, other = getattr(ours, kind) or {}, getattr(theirs, kind) or {}
            assert {key: (each.type, getattr(each, "is_artifact_list", None)) for key, each in mine.items()} == {
                key: (each.type, getattr(each, "is_artifact_list", None)) for key, each in other.items()
            }, name
        assert {key: (each.default, each.optional) for key, each in (ours.inputs or {}).items()} == {
            key: (each.default, each.optional) for key, each in (theirs.inputs or {}).items()
        }, name
        container = theirs.implementation.container
        assert re.fullmatch(r"(ghcr\.io/kubeflow/.*|python:\d+\.\d+.*)", container.image)
        assert f"posgap[{extras[name]}]==9.9.9" in " ".join(container.command)


def test_the_extras_of_a_step_are_those_of_its_image():
    text = (ROOT / "infra" / "images" / "Dockerfile").read_text()
    cpu, train = (line.replace(" ", ",") for line in re.findall(r"requirements\.py ([^-].*) >", text))
    assert {CPU: cpu, TRAIN: train, SERVE: cpu} == community.EXTRAS


def test_the_tests_that_go_with_a_component_pass_and_can_fail(modules):
    for _, tests in modules.values():
        tests.test_every_argument_reaches_the_stage()
        tests.test_it_runs_in_the_registrys_image()
    written, tests = modules["gate"]
    function = written.python_func
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(written, "python_func", wraps(function)(lambda **given: function(**given | {"max_gap": 1.0})))
        with pytest.raises(AssertionError):
            tests.test_every_argument_reaches_the_stage()

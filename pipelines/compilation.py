"""Compiles posgap's pipelines to YAML, which KFP's UI accepts and `submit` and `lint` read."""

import importlib
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from posgap.foundation.errors import PosgapError


def pipeline(name: str) -> Any:
    """This version's pipeline of this name, as its module makes it for the cluster of today."""
    # Creating the components takes half a second, and not every verb needs them.
    return getattr(importlib.import_module(f"posgap.pipelines.{name}"), name)


def compiled_text(pipeline: Any) -> str:
    """A pipeline as YAML: one document, and a second one if it has settings for Kubernetes.

    KFP writes neither times nor paths, and sorts everything, so equal pipelines give equal bytes. Raises `PosgapError`
    for a parameter without a description, since users could not fill it in on the form.
    """
    from kfp import compiler  # late: it takes half a second, and earlier refusals do not need it

    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        file = Path(folder, "pipeline.yaml")
        compiler.Compiler().compile(pipeline, str(file))
        # The comments at the head list dictionaries in varying order.
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
        text = "".join(line for line in lines if not line.startswith("#"))
    compiled = parse(text, pipeline.name)
    bare = sorted(name for name, spec in compiled.parameters.items() if not spec.get("description", "").strip())
    if bare:
        raise PosgapError(f"pipeline {compiled.name}: describe these parameters in its docstring: {', '.join(bare)}")
    return text


def for_server(text: str, kfp: str) -> str:
    """Returns a compiled pipeline in the form that a server of this version accepts.

    2.15 knows neither `literals` of a parameter (`pipeline_spec.proto`) nor the `securityContext` of an executor
    (`kubernetes_executor_config.proto`). It refuses the upload for the first, and would not start the step for the
    second. 2.16 knows everything that posgap's pipelines use, and shows no dropdown.
    """
    if kfp != "2.15":
        return text
    documents = list(yaml.safe_load_all(text))
    compiled = CompiledYaml(documents[0], documents[1] if documents[1:] else {})
    for parameter in compiled.parameters.values():
        parameter.pop("literals", None)
    for label in compiled.executors:
        compiled.settings(label).pop("securityContext", None)
    return yaml.safe_dump_all(documents)


@dataclass(frozen=True)
class CompiledYaml:
    """A compiled pipeline, with both documents of the YAML, and what names it on a KFP server it was uploaded to."""

    spec: dict[str, Any]
    platform: dict[str, Any]
    reference: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The pipeline's name."""
        return self.spec["pipelineInfo"]["name"]

    @property
    def root(self) -> str:
        """Returns the place of a run's outputs, which KFP's server reads only from a request; empty: in its own
        store."""
        return self.spec.get("defaultPipelineRoot", "")

    @property
    def parameters(self) -> dict[str, dict[str, Any]]:
        """The pipeline's parameters by name: type, description and default of each."""
        return self.spec["root"].get("inputDefinitions", {}).get("parameters", {})

    @property
    def executors(self) -> dict[str, dict[str, Any]]:
        """The executors of the steps, by label."""
        return self.spec["deploymentSpec"].get("executors", {})

    def settings(self, executor: str) -> dict[str, Any]:
        """An executor's settings for Kubernetes beyond its resources: volumes, secrets, pools."""
        kubernetes = self.platform.get("platforms", {}).get("kubernetes", {}).get("deploymentSpec", {})
        return kubernetes.get("executors", {}).get(executor, {})

    def dags(self) -> Iterator[dict[str, Any]]:
        """Yields the DAG of the root, and of every group such as a loop or a branch."""
        for component in (self.spec["root"], *self.spec.get("components", {}).values()):
            if "dag" in component:
                yield component["dag"]

    def without_cache(self) -> "CompiledYaml":
        """Returns a copy without caching in any step; KFP's own switch does not reach steps within groups."""
        spec = yaml.safe_load(yaml.safe_dump(self.spec))
        copy = CompiledYaml(spec, self.platform)
        for dag in copy.dags():
            for task in dag.get("tasks", {}).values():
                task.pop("cachingOptions", None)
        return copy

    @contextmanager
    def package(self) -> Iterator[str]:
        """The path of a temporary file with the pipeline, for KFP's client."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "pipeline.yaml")
            documents = [self.spec, self.platform] if self.platform else [self.spec]
            file.write_text(yaml.safe_dump_all(documents), encoding="utf-8")
            yield str(file)

    @contextmanager
    def source(self) -> Iterator[dict[str, str]]:
        """Returns what KFP's client must run: the uploaded version, else the file of `package`."""
        if self.reference:
            yield self.reference
            return
        with self.package() as package:
            yield {"pipeline_package_path": package}


def load(file: Path | None, name: str = "mitigation") -> CompiledYaml:
    """Reads a compiled pipeline from its file; without one, compiles this version's pipeline of that name."""
    if file is None:
        return parse(compiled_text(pipeline(name)), f"the pipeline {name}")
    try:
        return parse(file.read_text(encoding="utf-8"), str(file))
    except UnicodeDecodeError as error:
        raise PosgapError(f"{file}: not a compiled KFP pipeline: {error}") from None


def parse(text: str, where: str) -> CompiledYaml:
    """Parses both documents; raises `PosgapError` that names `where` if `text` is not a compiled pipeline."""
    from google.protobuf import json_format  # late, as above
    from kfp.pipeline_spec.pipeline_spec_pb2 import PipelineSpec, PlatformSpec

    try:
        spec, *rest = yaml.safe_load_all(text)
        platform = rest[0] if rest else {}
        json_format.ParseDict(spec, PipelineSpec())
        json_format.ParseDict(platform, PlatformSpec())
        compiled = CompiledYaml(spec, platform)
        _ = compiled.name, compiled.parameters, compiled.executors
    except (yaml.YAMLError, json_format.ParseError, ValueError, LookupError, TypeError, AttributeError) as error:
        reason = " ".join(str(error).split())[:200]
        hint = "write one with `posgap pipeline compile`"
        raise PosgapError(f"{where}: not a compiled KFP pipeline ({reason}); {hint}") from None
    return compiled

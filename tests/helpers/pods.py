"""Runs KFP components as pods do: inputs are brought from S3 into a folder that no other pod has, outputs go back."""

import itertools
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from kfp.dsl.base_component import BaseComponent
from s3 import keys

from posgap.foundation.locations import MOUNTS_VARIABLE, split_uri

_PLAIN = {"STRING", "NUMBER_INTEGER", "NUMBER_DOUBLE", "BOOLEAN", "LIST", "STRUCT", "String", "Integer", "Float"}
_PLAIN |= {"Boolean", "List", "Dict"}


def defaults(component: BaseComponent, given) -> dict[str, Any]:
    """Returns the defaults of a component's parameters that are not given."""
    inputs = component.component_spec.inputs.items()
    return {name: spec.default for name, spec in inputs if name not in given and spec.type in _PLAIN}


class Pods:
    """One pod a call of `run`; `root` is the pipeline root in S3. A pod's folder is gone when the pod is."""

    def __init__(self, root: str, folder: Path):
        self.root, self.folder, self.count = root, folder, itertools.count()
        self.client = boto3.client("s3")

    def run(self, component: BaseComponent, inputs: dict[str, Any], **parameters: Any) -> dict[str, Any]:
        """Runs a component in a pod of its own; `inputs` are addresses, or lists of them. Returns the addresses of its
        outputs, and what it returned as `Output`."""
        number = next(self.count)
        mount = self.folder / f"pod-{number}"
        artifacts = {name: self._bring(mount, uri) for name, uri in inputs.items()}
        outputs = {}
        for name, spec in (component.component_spec.outputs or {}).items():
            if spec.type not in _PLAIN:
                outputs[name] = self._artifact(mount, f"{self.root}/{number}-{component.name}/{name}")
                Path(outputs[name].path).parent.mkdir(parents=True, exist_ok=True)
        given = artifacts | outputs | parameters
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv(MOUNTS_VARIABLE, "")
            environment.setenv("POSGAP_CACHE", str(mount / "cache"))
            said = component.python_func(**given, **defaults(component, given))
        for output in outputs.values():
            self.put(Path(output.path), output.uri)
        shutil.rmtree(mount)
        self.metadata = {name: output.metadata for name, output in outputs.items()}  # of the last pod
        return {name: output.uri for name, output in outputs.items()} | {"Output": said}

    def put(self, path: Path, uri: str) -> str:
        """Uploads a file or folder as KFP's launcher does, and returns its address."""
        bucket, key = split_uri(uri)
        for file in path.rglob("*") if path.is_dir() else [path] if path.exists() else []:
            if file.is_file():
                name = file.relative_to(path).as_posix() if path.is_dir() else ""
                self.client.upload_file(str(file), bucket, f"{key}/{name}".rstrip("/"))
        return uri

    def _bring(self, mount: Path, uri: str | list[str]) -> Any:
        if isinstance(uri, list):
            return [self._bring(mount, each) for each in uri]
        bucket, _ = split_uri(uri)
        for key in keys(uri):
            place = mount / bucket / key
            place.parent.mkdir(parents=True, exist_ok=True)
            self.client.download_file(bucket, key, str(place))
        return self._artifact(mount, uri)

    @staticmethod
    def _artifact(mount: Path, uri: str) -> SimpleNamespace:
        path = str(mount / uri.removeprefix("s3://"))
        return SimpleNamespace(uri=uri, path=path, metadata={}, log_metric=lambda *_: None)

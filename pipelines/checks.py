"""Says what a run of a compiled pipeline would request from the cluster, and which of it would fail or looks wrong."""

import dataclasses
import logging
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from tabulate import tabulate

from posgap import __version__
from posgap.foundation.errors import PosgapError
from posgap.kubeflow.training_pool import amount
from posgap.options.cluster import ClusterConfig
from posgap.pipelines.compilation import CompiledYaml
from posgap.pipelines.resources import Resources, max_accelerators, resources, secret_keys
from posgap.pipelines.steps import UNKNOWN, Group, Step, tree

log = logging.getLogger(__name__)
_MOVING = {"", "latest", "main", "master", "stable", "nightly", "edge", "dev"}
_MAX_FIELDS = 12
_MIN_CPUS, _MIN_MEMORY = "2", "16Gi"  # for each of several accelerators
_IMAGE = re.compile(r"(?P<name>[^@]+?)(:(?P<tag>[^:/@]+))?(@(?P<digest>.+))?")


class Check:
    """A compiled pipeline with these arguments: its steps, their requests in all, and warnings.

    Raises `PosgapError` if KFP would accept the pipeline, but a run would end at one of its steps.
    """

    def __init__(self, compiled: CompiledYaml, arguments: Mapping[str, Any]):
        group = tree(compiled, arguments)
        steps = group.steps()
        faults = importer_complaints(compiled)
        for step in steps:
            faults += _name_in_each(step.name, unpassed_complaints(step))
        if faults:
            raise PosgapError(f"pipeline {compiled.name}: {'; '.join(faults)}")
        self.warnings = _name_in_each("form", form_complaints(compiled.parameters))
        for step in steps:
            self.warnings += _name_in_each(step.name, complaints(step))
        self.steps = list(map(resources, steps))
        self.warnings += image_warnings({step.image for step in self.steps})
        self.totals = _totals(self.steps, group)
        if compiled.root:
            self.totals["pipeline root"] = {compiled.root: ["all"]}

    @property
    def result(self) -> dict[str, Any]:
        """All of it as JSON."""
        steps = [dataclasses.asdict(step) for step in self.steps]
        return {"steps": steps, "totals": self.totals, "warnings": self.warnings}

    def log_warnings(self) -> None:
        """Logs the warnings, each in a line."""
        for warning in self.warnings:
            log.warning("%s", warning)


def _name_in_each(name: str, faults: Iterable[str]) -> list[str]:
    return [f"{name}: {fault}" for fault in faults]


def form_complaints(parameters: Mapping[str, dict[str, Any]]) -> list[str]:
    """Lists what makes the form hard to fill in; KFP's UI draws it from the parameters in the order of their names."""
    names = sorted(parameters)
    faults = []
    required = [name for name in names if "defaultValue" not in parameters[name]]
    behind = [name for name in required if name not in names[: len(required)]]
    if behind:
        faults.append(f"{', '.join(behind)}: without a default, but not among the first in the alphabet's order")
    if len(names) > _MAX_FIELDS:
        faults.append(f"{len(names)} fields, which are more than {_MAX_FIELDS}: one of YAML could take the rest")
    raw = [name for name in names if parameters[name].get("parameterType") in ("LIST", "STRUCT")]
    if raw:
        faults.append(f"{', '.join(raw)}: must be JSON, because plain text could be read as YAML")
    silent = [name for name in names if not parameters[name].get("description")]
    if silent:
        faults.append(f"{', '.join(silent)}: not described")
    return faults


def importer_complaints(compiled: CompiledYaml) -> list[str]:
    """Lists importers whose artifact or address KFP would not find, so that the run fails there.

    KFP 2.15 to 2.17 records an imported artifact under its task's display name, while consumers look for the task's key
    (`importer_launcher.go`, `resolve.go`). It resolves the address only from the inputs of the task's group.
    """
    faults = []
    for dag in compiled.dags():
        for key, task in dag["tasks"].items():
            label = compiled.spec["components"][task["componentRef"]["name"]].get("executorLabel")
            importer = compiled.executors.get(label, {}).get("importer")
            if importer is None:
                continue
            shown = task["taskInfo"]["name"]
            if shown != key:
                faults.append(f"{key}: an importer named {shown!r}, so no step finds its artifact")
            address = task.get("inputs", {}).get("parameters", {})
            passed = address.get(importer["artifactUri"].get("runtimeParameter"), {})
            if "taskOutputParameter" in passed:
                producer = passed["taskOutputParameter"]["producerTask"]
                faults.append(f"{key}: an importer beside {producer}, which gives its address; put it into a group")
    return faults


def complaints(step: Step) -> list[str]:
    """The probable faults of a step, each in a few words."""
    requested = resources(step)
    faults = []
    if requested.on_accelerator and not (requested.pool or requested.affinity):
        faults.append("requests an accelerator, but selects no nodes")
    if requested.on_accelerator and not requested.tolerations:
        faults.append("requests an accelerator, but tolerates no taint: nodes with accelerators usually have one")
    missing = [name for name in ("cpu", "memory") if not getattr(requested, name)]
    if missing:
        faults.append(f"requests no {' and no '.join(missing)}")
    faults += _share_complaints(requested)
    faults += _image_complaints(requested.image)
    if not step.settings.get("activeDeadlineSeconds"):
        faults.append("has no time limit: if it hangs, it holds its nodes for ever")
    if not step.settings.get("securityContext", {}).get("runAsNonRoot"):
        faults.append("may run as root, which a namespace with restricted pods refuses")
    return faults + _credential_complaints(step.settings)


def unpassed_complaints(step: Step) -> list[str]:
    """Lists values that the step uses and KFP does not pass to it: it compiles such a step, which then cannot start."""
    names = ", ".join(name.removeprefix("pipelinechannel--") for name in step.unpassed)
    return (
        [f"uses {names}, which KFP does not pass into the group around it: the step would not start"] if names else []
    )


def image_warnings(images: Iterable[str]) -> list[str]:
    """Lists the images of posgap's own registry that no release has: those of a version under development."""
    own = ClusterConfig.default("registry")
    missing = sorted(image for image in images if image.startswith(f"{own}/") and image.endswith(f":{__version__}"))
    if not missing or not re.search(r"dev|rc|[ab][0-9]", __version__):
        return []
    hint = "build and push them (`make images`), and name your registry in the cluster's file (POSGAP_CLUSTER)"
    return [f"no release has {', '.join(missing)}: {hint}"]


def _share_complaints(requested: Resources) -> list[str]:
    """Lists requests that are too small for each accelerator: a process of its own feeds it, which loads the model
    first."""
    number = requested.accelerators or 0
    faults = []

    def is_little(quantity: str, least: str) -> bool:
        return number > 1 and quantity not in ("", UNKNOWN) and amount(quantity) < number * amount(least)

    if is_little(requested.cpu, _MIN_CPUS):
        faults.append(f"requests {requested.cpu} CPUs for {number} accelerators, fewer than {_MIN_CPUS} for each")
    if is_little(requested.memory, _MIN_MEMORY):
        faults.append(
            f"requests {requested.memory} of memory for {number} accelerators, less than {_MIN_MEMORY} for each"
        )
    return faults


def _credential_complaints(settings: dict[str, Any]) -> list[str]:
    """A log-in in the place of another, like promotion's, is one only if the other is not there as well."""
    sources: dict[str, list[str]] = defaultdict(list)
    for secret, variables in secret_keys(settings).items():
        for variable in variables:
            sources[variable].append(secret)
    return [
        f"takes {variable} from the secrets {' and '.join(names)}; Kubernetes uses the last"
        for variable, names in sources.items()
        if len(names) > 1
    ]


def _image_complaints(image: str) -> list[str]:
    parts = _IMAGE.fullmatch(image)
    if parts is None or (parts["digest"] is None and (parts["tag"] or "") in _MOVING):
        return [f"image {image} is not pinned to a version"]
    ours = parts["name"].rsplit("/", 1)[-1].startswith("posgap")
    if ours and parts["tag"] and parts["tag"] != __version__:
        return [f"image {image} does not belong to this version, {__version__}"]
    return []


def _totals(steps: list[Resources], group: Group) -> dict[str, dict[str, list[str]]]:
    """Returns everything that is requested, by kind and name, with the steps that request it."""
    totals: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for step in steps:
        totals["images"][step.image].append(step.step)
        totals["pools"][_labels(step.pool)].append(step.step)
        for taint in map(_taint, step.tolerations):
            totals["tolerations"][taint].append(step.step)
        for volume in step.volumes:
            totals["volumes"][volume].append(step.step)
        for kind, names in step.needs.items():
            for name in names:
                totals[kind][name].append(step.step)
    most, sure = max_accelerators(group)
    totals["accelerators at once"][f"{'' if sure else 'at least '}{most}"] = [s.step for s in steps if s.on_accelerator]
    return {kind: dict(names) for kind, names in totals.items()}


def table(check: Check) -> str:
    """The check for people: a row for each step, the totals, and the warnings."""
    rows = [
        {
            "step": step.step,
            "image": step.image.rsplit("/", 1)[-1],
            "pool": _labels(step.pool),
            "cpu": step.cpu or "-",
            "memory": step.memory or "-",
            "accelerators": _accelerators(step),
            "retries": step.retries,
            "cache": "yes" if step.cached else "no",
        }
        for step in check.steps
    ]
    sums = []
    for kind, names in check.totals.items():
        for number, (name, by) in enumerate(names.items()):
            sums.append(("" if number else kind, name, ", ".join(by)))
    parts = [tabulate(rows, headers="keys", tablefmt="plain", disable_numparse=True)]
    parts.append(tabulate(sums, tablefmt="plain", disable_numparse=True))
    if check.warnings:
        parts.append("\n".join(f"warning: {warning}" for warning in check.warnings))
    return "\n\n".join("\n".join(map(str.rstrip, part.splitlines())) for part in parts)


def _labels(pool: dict[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in pool.items()) or "any"


def _taint(toleration: dict[str, Any]) -> str:
    value = f"={toleration['value']}" if toleration.get("value") else ""
    return f"{toleration.get('key', 'any')}{value}:{toleration.get('effect', 'any')}"


def _accelerators(step: Resources) -> str:
    if not step.on_accelerator:
        return "-"
    return f"{'?' if step.accelerators is None else step.accelerators} {step.accelerator}"

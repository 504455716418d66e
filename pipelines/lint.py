"""`posgap pipeline lint`: what a run would ask of the cluster, and what in it looks wrong."""

import dataclasses
import json
import re
from collections import defaultdict
from typing import Any

from tabulate import tabulate

from posgap import __version__
from posgap.config import PipelineLintConfig
from posgap.errors import LintFindings
from posgap.pipelines.arguments import checked
from posgap.pipelines.compilation import load
from posgap.pipelines.resources import Resources, most_accelerators, resources
from posgap.pipelines.steps import Group, Step, tree

_MOVING = {"", "latest", "main", "master", "stable", "nightly", "edge", "dev"}
_IMAGE = re.compile(r"(?P<name>[^@]+?)(:(?P<tag>[^:/@]+))?(@(?P<digest>.+))?")


def lint(config: PipelineLintConfig) -> None:
    """Prints steps, totals and warnings; raises `LintFindings` where there are warnings."""
    compiled = load(config.file)
    group = tree(compiled, checked(config, compiled.parameters))
    asked = [resources(step) for step in group.steps()]
    found = [f"{step.name}: {complaint}" for step in group.steps() for complaint in complaints(step)]
    totals = _totals(asked, group)
    print(_json(asked, totals, found) if config.format == "json" else _table(asked, totals, found))
    if found:
        raise LintFindings(f"pipeline {compiled.name}: {len(found)} warning{'s' if len(found) > 1 else ''}")


def complaints(step: Step) -> list[str]:
    """What looks wrong with a step, each in a few words."""
    asked, found = resources(step), []
    if asked.on_accelerator and not (asked.pool or asked.affinity):
        found.append("asks for an accelerator, but selects no nodes")
    if asked.on_accelerator and not asked.tolerations:
        found.append("asks for an accelerator, but tolerates no taint: nodes with accelerators usually have one")
    if missing := [name for name in ("cpu", "memory") if not getattr(asked, name)]:
        found.append(f"requests no {' and no '.join(missing)}")
    found += _image_complaints(asked.image)
    if names := ", ".join(name.removeprefix("pipelinechannel--") for name in step.unpassed):
        found.append(f"uses {names}, which KFP does not pass into the group around it: the step would not start")
    return found


def _image_complaints(image: str) -> list[str]:
    parts = _IMAGE.fullmatch(image)
    if parts is None or (parts["digest"] is None and (parts["tag"] or "") in _MOVING):
        return [f"image {image} is not pinned to a version"]
    ours = parts["name"].rsplit("/", 1)[-1].startswith("posgap")
    if ours and parts["tag"] and parts["tag"] != __version__:
        return [f"image {image} is not of this version, {__version__}"]
    return []


def _totals(asked: list[Resources], group: Group) -> dict[str, dict[str, list[str]]]:
    """By kind, what is asked for in all, and by which steps."""
    totals: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for one in asked:
        totals["images"][one.image].append(one.step)
        totals["pools"][_labels(one.pool)].append(one.step)
        for taint in map(_taint, one.tolerations):
            totals["tolerations"][taint].append(one.step)
        for volume in one.volumes:
            totals["volumes"][volume].append(one.step)
        for kind, names in one.needs.items():
            for name in names:
                totals[kind][name].append(one.step)
    most, sure = most_accelerators(group)
    totals["accelerators at once"][f"{'' if sure else 'at least '}{most}"] = [a.step for a in asked if a.on_accelerator]
    return {kind: dict(names) for kind, names in totals.items()}


def _table(asked: list[Resources], totals: dict[str, dict[str, list[str]]], found: list[str]) -> str:
    rows = [
        {
            "step": one.step,
            "image": one.image.rsplit("/", 1)[-1],
            "pool": _labels(one.pool),
            "cpu": one.cpu or "-",
            "memory": one.memory or "-",
            "accelerators": _accelerators(one),
            "retries": one.retries,
            "cache": "yes" if one.cached else "no",
        }
        for one in asked
    ]
    sums = [
        (kind if first else "", name, ", ".join(steps))
        for kind, names in totals.items()
        for first, (name, steps) in zip([True] + [False] * len(names), names.items())
    ]
    parts = [tabulate(rows, headers="keys", tablefmt="plain", disable_numparse=True)]
    parts.append(tabulate(sums, tablefmt="plain", disable_numparse=True))
    parts += ["\n".join(f"warning: {each}" for each in found)] if found else []
    return "\n\n".join("\n".join(line.rstrip() for line in part.splitlines()) for part in parts)


def _json(asked: list[Resources], totals: dict[str, dict[str, list[str]]], found: list[str]) -> str:
    steps = [dataclasses.asdict(one) for one in asked]
    return json.dumps({"steps": steps, "totals": totals, "warnings": found}, indent=2)


def _labels(pool: dict[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in pool.items()) or "any"


def _taint(toleration: dict[str, Any]) -> str:
    value = f"={toleration['value']}" if toleration.get("value") else ""
    return f"{toleration.get('key', 'any')}{value}:{toleration.get('effect', 'any')}"


def _accelerators(one: Resources) -> str:
    return f"{'?' if one.accelerators is None else one.accelerators} {one.accelerator}" if one.on_accelerator else "-"

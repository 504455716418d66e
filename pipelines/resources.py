"""The resources that a step requests, from its container and its Kubernetes settings."""

import functools
from dataclasses import dataclass
from typing import Any

from posgap.pipelines.steps import UNKNOWN, Group, Step


@dataclass(frozen=True)
class Resources:
    """The requests of one step; quantities are in Kubernetes' notation, empty if there is no request.

    `accelerators` is None if the number will be known only at run time. `affinity` says that nodes are chosen by an
    expression. `needs` lists, by kind, the objects that must exist in the cluster.
    """

    step: str
    image: str
    pool: dict[str, str]
    affinity: bool
    tolerations: list[dict[str, Any]]
    cpu: str
    memory: str
    accelerators: int | None
    accelerator: str
    volumes: list[str]
    needs: dict[str, list[str]]
    retries: int
    cached: bool

    @property
    def on_accelerator(self) -> bool:
        """Whether the step requests accelerators."""
        return self.accelerators != 0


def resources(step: Step) -> Resources:
    """The resources that a step requests."""
    limits = step.container.get("resources", {})
    settings = step.settings
    return Resources(
        step=step.name,
        image=step.container["image"],
        pool=_pool(settings),
        affinity="nodeAffinity" in settings,
        tolerations=[t for each in settings.get("tolerations", []) for t in _either(each, "tolerationJson")],
        cpu=_quantity(limits, "Cpu"),
        memory=_quantity(limits, "Memory"),
        accelerators=_accelerators(limits.get("accelerator", {})),
        accelerator=limits.get("accelerator", {}).get("resourceType", ""),
        volumes=_volumes(settings),
        needs=_needs(settings),
        retries=step.task.get("retryPolicy", {}).get("maxRetryCount", 0),
        cached=step.task.get("cachingOptions", {}).get("enableCache", False),
    )


def max_accelerators(group: Group) -> tuple[int, bool]:
    """Returns the largest number of accelerators in use at once, over all orders in which the steps can run, and
    whether it is exact. It is not if the length of a loop, or a step's number of accelerators, is known only at run
    time.
    """
    weights = {}
    exact = group.times is not None
    for name, member in group.members.items():
        weights[name], sure = max_accelerators(member) if isinstance(member, Group) else _weight(member)
        exact &= sure
    if group.exclusive:
        most = max(weights.values(), default=0)
    else:
        most = _heaviest([name for name in weights if weights[name]], weights, _ancestors(group.after))
    return most * (1 if group.times is None else group.times), exact


def _weight(step: Step) -> tuple[int, bool]:
    count = resources(step).accelerators
    return (1, False) if count is None else (count, True)


def _heaviest(names: list[str], weights: dict[str, int], before: dict[str, frozenset[str]]) -> int:
    """Returns the largest total weight of tasks that are independent of each other (a maximum-weight antichain)."""
    if not names:
        return 0
    first, *rest = names
    beside = [name for name in rest if name not in before[first] and first not in before[name]]
    return max(weights[first] + _heaviest(beside, weights, before), _heaviest(rest, weights, before))


def _ancestors(after: dict[str, list[str]]) -> dict[str, frozenset[str]]:
    @functools.cache
    def of(name: str) -> frozenset[str]:
        return frozenset(after[name]).union(*map(of, after[name]))

    return {name: of(name) for name in after}


def _quantity(limits: dict[str, Any], kind: str) -> str:
    """The request, or without one the limit, which Kubernetes then uses as the request."""
    return str(limits.get(f"resource{kind}Request") or limits.get(f"resource{kind}Limit") or "")


def _accelerators(limit: dict[str, Any]) -> int | None:
    count = limit.get("resourceCount", "0")
    return None if count == UNKNOWN else int(float(count or 0))


def _pool(settings: dict[str, Any]) -> dict[str, str]:
    selector = settings.get("nodeSelector", {})
    by_parameter = selector.get("nodeSelectorJson")
    if not by_parameter:
        return selector.get("labels", {})
    return by_parameter if isinstance(by_parameter, dict) else {UNKNOWN: UNKNOWN}


def _either(each: dict[str, Any], parameter: str) -> list[dict[str, Any]]:
    """A setting as a list: the setting itself, or the one or more that a pipeline parameter holds."""
    if parameter not in each:
        return [each]
    held = each[parameter]
    return held if isinstance(held, list) else [held if isinstance(held, dict) else {"key": UNKNOWN}]


def _volumes(settings: dict[str, Any]) -> list[str]:
    claims = [f"{mount['mountPath']}={_name(mount, 'pvcNameParameter')}" for mount in settings.get("pvcMount", [])]
    ephemeral = [f"{v['mountPath']}={v['size']}" for v in settings.get("genericEphemeralVolume", [])]
    empty = [
        f"{v['mountPath']}={' '.join(filter(None, [v.get('medium', 'disk'), v.get('sizeLimit')]))}"
        for v in settings.get("emptyDirMounts", [])
    ]
    return claims + ephemeral + empty


_KINDS = {
    "secrets": (("secretAsEnv", "secretAsVolume", "imagePullSecret"), "secretNameParameter", "secretName"),
    "config maps": (("configMapAsEnv", "configMapAsVolume"), "configMapNameParameter", "configMapName"),
    "claims": (("pvcMount",), "pvcNameParameter", "constant"),
}


def _needs(settings: dict[str, Any]) -> dict[str, list[str]]:
    needs = {}
    for kind, (fields, parameter, plain) in _KINDS.items():
        uses = [use for field in fields for use in settings.get(field, []) if not use.get("optional")]
        names = sorted({_name(use, parameter, plain) for use in uses})
        if names:
            needs[kind] = names
    return needs


def secret_keys(settings: dict[str, Any]) -> dict[str, list[str]]:
    """The environment variables that an executor takes from secrets, by the secret's name."""
    _, parameter, plain = _KINDS["secrets"]
    uses = settings.get("secretAsEnv", [])
    return {_name(use, parameter, plain): [key["envVar"] for key in use.get("keyToEnv", [])] for use in uses}


def _name(use: dict[str, Any], parameter: str, plain: str = "constant") -> str:
    return str(use.get(plain) or use.get(parameter) or UNKNOWN)

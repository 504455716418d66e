"""Who may reach whom by the NetworkPolicies of a cluster, worked out from the manifests.

By Kubernetes' rules (https://kubernetes.io/docs/concepts/services-networking/network-policies/): policies only ever
allow; whom none selects in a direction is free in it; a connection needs both the sender's and the receiver's leave.
What the rules leave open is taken at its worst: a block of addresses counts for pods that have one of them, too.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network

SIDES = {"Egress": ("egress", "to"), "Ingress": ("ingress", "from")}


@dataclass(frozen=True)
class Peer:
    """A pod, or with an empty namespace something outside of the cluster."""

    address: str
    namespace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


def reaches(policies: list[dict], source: Peer, target: Peer, port: int, protocol: str = "TCP") -> bool:
    """Whether the policies let `source` connect to this port of `target`."""
    return _lets(policies, "Egress", source, target, port, protocol) and _lets(
        policies, "Ingress", target, source, port, protocol
    )


def _lets(policies: list[dict], side: str, pod: Peer, other: Peer, port: int, protocol: str) -> bool:
    """Whether the pod's own policies for one direction allow a connection; outside of the cluster there are none."""
    rules, peers = SIDES[side]
    binding = [
        policy["spec"]
        for policy in policies
        if policy["metadata"]["namespace"] == pod.namespace
        and _selects(policy["spec"]["podSelector"], pod.labels)
        and side in policy["spec"].get("policyTypes", ["Ingress", *(["Egress"] if "egress" in policy["spec"] else [])])
    ]
    return not binding or any(
        (not rule.get(peers) or any(_is(each, other, pod.namespace) for each in rule[peers]))
        and (not rule.get("ports") or any(_opens(each, port, protocol) for each in rule["ports"]))
        for spec in binding
        for rule in spec.get(rules, [])
    )


def _is(peer: dict, other: Peer, namespace: str) -> bool:
    if block := peer.get("ipBlock"):
        address = ip_address(other.address)
        return address in ip_network(block["cidr"]) and not any(
            address in ip_network(each) for each in block.get("except", [])
        )
    # Both selectors of one entry must hold; without one for namespaces it is the policy's own.
    there = (
        _selects(peer["namespaceSelector"], {"kubernetes.io/metadata.name": other.namespace})
        if ("namespaceSelector" in peer)
        else other.namespace == namespace
    )
    return bool(other.namespace) and there and _selects(peer.get("podSelector", {}), other.labels)


def _opens(entry: dict, port: int, protocol: str) -> bool:
    ports = range(entry["port"], entry.get("endPort", entry["port"]) + 1) if "port" in entry else (port,)
    return entry.get("protocol", "TCP") == protocol and port in ports


def _selects(selector: dict, labels: Mapping[str, str]) -> bool:
    holds = {
        "In": lambda key, values: labels.get(key) in values,
        "NotIn": lambda key, values: labels.get(key) not in values,
        "Exists": lambda key, values: key in labels,
        "DoesNotExist": lambda key, values: key not in labels,
    }
    return selector.get("matchLabels", {}).items() <= dict(labels).items() and all(
        holds[each["operator"]](each["key"], each.get("values", [])) for each in selector.get("matchExpressions", [])
    )

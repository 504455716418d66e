"""Who may reach whom in the cluster, as infra/kubernetes' NetworkPolicies say: a table, worked out from them."""

from collections.abc import Iterable

import cluster
import pytest
from api_server import pod
from manifests import SECURED, each_overlay, needs_kubectl, of_kind, overlay, pod_templates
from network_rules import Peer, reaches

RUN = {"workflows.argoproj.io/workflow": "posgap-mitigation-x7k2p"}
OUTSIDE = {"the internet": "203.0.113.7", "the node's credentials": "169.254.169.254", "the VPC": "10.0.200.9"}
ELSEWHERE = {
    "KFP": ("kubeflow", {"app": "ml-pipeline"}),
    "KFP's UI": ("kubeflow", {"app": "ml-pipeline-ui"}),
    "DNS": ("kube-system", {"k8s-app": "kube-dns"}),
    "kube-system": ("kube-system", {"app": "metrics-server"}),
    "another namespace": ("team", RUN | {"app.kubernetes.io/name": "mlflow"}),
}
# Of SeaweedFS, the master (9333) and the filer (8888) ask for no keys.
PORTS = {
    "mlflow": [5000],
    "oauth2-proxy": [4443],
    "postgres": [5432],
    "s3": [8333, 8888, 9333],
    "training": [29500],
    "run": [8080],
    "KFP": [8887, 8888, 5432],
    "DNS": [53],
    "kube-system": [53, 443],
    "another namespace": [5000, 443],
    "the internet": [80, 443, 5432, 6443],
    "the node's credentials": [80, 443],
    "the VPC": [5432, 443],
}
# The Kubernetes API, S3 and the hub have addresses that change, so 443 is open to every address but the node's own
# credentials; by that rule a plugin may let through to pods, too.
ANY_443 = {"the internet 443", "the VPC 443", "kube-system 443", "another namespace 443"}
RUNS = {"DNS 53", "KFP 8887", "KFP 8888", "mlflow 5000", "the internet 6443"} | ANY_443
TRAINING = {"DNS 53", "mlflow 5000", "training 29500"} | ANY_443
DATABASE = {"the VPC 5432", "KFP 5432"}  # in EKS pods have addresses of the VPC, too
MAY_REACH = {
    "local": {
        "run": RUNS | {"s3 8333"},
        "training": TRAINING | {"s3 8333"},
        "mlflow": {"DNS 53", "postgres 5432", "s3 8333"},
        "mlflow-backup": {"DNS 53", "postgres 5432", "s3 8333"},
        "mlflow-migrate": {"DNS 53", "postgres 5432"},
        "postgres": {"DNS 53"},
        "s3": {"DNS 53"},
        "any other pod": {"DNS 53"},
        "KFP's UI": {"s3 8333"},
    },
    "aws": {
        "run": RUNS,
        "training": TRAINING,
        "mlflow": {"DNS 53"} | DATABASE | ANY_443,
        "mlflow-backup": {"DNS 53"} | DATABASE | ANY_443,
        "mlflow-migrate": {"DNS 53"} | DATABASE,
        "any other pod": {"DNS 53"},
    },
}


KNOCKING = {source: {"oauth2-proxy 4443"} for source in [*ELSEWHERE, *OUTSIDE]}
BY_COMPANY_LOG_IN = {"oauth2-proxy": {"DNS 53", "mlflow 5000"} | ANY_443} | KNOCKING
for place in ("local", "aws"):
    MAY_REACH[f"{place}{SECURED}"] = MAY_REACH[place] | BY_COMPANY_LOG_IN
MAY_REACH[f"local{SECURED}"]["KFP's UI"] = {"oauth2-proxy 4443", "s3 8333"}


def peers(objects: list[dict]) -> dict[str, Peer]:
    """The pods of an overlay by their label, those of runs, and what is around them."""
    ours = {template["metadata"]["labels"]["app.kubernetes.io/name"] for template in pod_templates(objects).values()}
    labels = {name: {"app.kubernetes.io/name": name} for name in sorted(ours)} | {"run": RUN, "any other pod": {}}
    here = {name: ("posgap", each) for name, each in labels.items()}
    numbered = enumerate((here | ELSEWHERE).items(), start=1)
    return {name: Peer(f"10.0.3.{number}", *where) for number, (name, where) in numbered} | {
        name: Peer(address) for name, address in OUTSIDE.items()
    }


def table(objects: list[dict], policies: list[dict]) -> dict[str, set[str]]:
    """What each may reach, as `name port`; without what nothing of ours has to do with."""
    known = peers(objects)
    return {
        source: {
            f"{target} {port}"
            for target, ports in PORTS.items()
            for port in ports
            if target in known
            and "posgap" in (known[source].namespace, known[target].namespace)
            and reaches(policies, known[source], known[target], port, "UDP" if port == 53 else "TCP")
        }
        for source in known
    }


@needs_kubectl
@each_overlay
def test_who_may_reach_whom(name):
    objects = overlay(name)
    policies = [*of_kind(objects, "NetworkPolicy").values()]
    assert {source: found for source, found in table(objects, policies).items() if found} == MAY_REACH[name]


@needs_kubectl
@each_overlay
def test_every_policy_makes_a_difference(name):
    objects = overlay(name)
    policies = of_kind(objects, "NetworkPolicy")
    for without in policies:
        others = [policy for each, policy in policies.items() if each != without]
        assert table(objects, others) != MAY_REACH[name], without


LISTEN = """
import socket, sys, threading
def listen(port, kind):
    own = socket.socket(socket.AF_INET, kind)
    own.bind(("", port))
    if kind == socket.SOCK_STREAM:
        own.listen()
    while True:
        own.accept()[0].close() if kind == socket.SOCK_STREAM else own.sendto(*own.recvfrom(1))
for port in sys.argv[1:]:
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        threading.Thread(target=listen, args=(int(port), kind)).start()
threading.Event().wait()
"""
KNOCK = """
import socket, sys
from concurrent.futures import ThreadPoolExecutor
def knock(line):
    *_, address, port = line.split()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM if port == "53" else socket.SOCK_STREAM) as own:
        own.settimeout(5)
        try:
            own.bind((sys.argv[1], 0))
            own.connect((address, int(port)))
            if port == "53":
                own.send(b"?")
                own.recv(1)
            print(line, end="")
        except OSError:
            pass
with ThreadPoolExecutor(32) as pool:
    list(pool.map(knock, sys.stdin))
"""


@pytest.mark.full
def test_pods_reach_whom_the_rules_say(node):
    """Where a network plugin enforces them: kube-router."""
    known = peers(overlay("local"))
    names = {each: f"peer-{number}" for number, each in enumerate(known) if known[each].namespace}
    pods = [listening(names[each], known[each].namespace, known[each].labels, PORTS.get(each, [])) for each in names]
    pods.append(listening("outside", "team", {}, {port for each in OUTSIDE for port in PORTS[each]}))

    def reached(source: str) -> set[str]:
        asked = [(target, port) for target in PORTS if target in known for port in PORTS[target]]
        near = [each for each in asked if "posgap" in (known[source].namespace, known[each[0]].namespace)]
        lines = "".join(f"{target} {there[target]} {port}\n" for target, port in near if target != source)
        where = ("-n", known[source].namespace or "team", "exec", "--stdin", names.get(source, "outside"))
        printed = node.kubectl(*where, "--", "python3", "-c", KNOCK, OUTSIDE.get(source, ""), text=lines)
        return {" ".join([*target, port]) for *target, _, port in map(str.split, printed.splitlines())}

    with cluster.pods(node, pods) as addresses:
        cluster.add_addresses(node, addresses["outside"], OUTSIDE.values())
        there = {each: addresses[names[each]] for each in names} | OUTSIDE
        # A new pod's address is told to each rule.
        node.wait_for(lambda: reached("run") == MAY_REACH["local"]["run"], 60)
        found = {source: reached(source) for source in known}
    # Whatever a pod may do, it reaches itself.
    others = {
        source: {each for each in may if each.rsplit(" ", 1)[0] != source} for source, may in MAY_REACH["local"].items()
    }
    assert {source: each for source, each in found.items() if each} == others


def listening(name: str, namespace: str, labels: dict, ports: Iterable[int]) -> dict:
    """A pod that listens, and is an endpoint of no Service."""
    container = {
        "image": cluster.PAUSE,
        "command": ["python3", "-c", LISTEN, *map(str, ports)],
        "resources": {"requests": {"cpu": "5m", "memory": "16Mi", "ephemeral-storage": "1Mi"}},
        "readinessProbe": {"exec": {"command": ["false"]}, "periodSeconds": 3600},
    }
    made = pod(name, labels, namespace, **container)
    # Everybody may listen on 53.
    made["spec"]["securityContext"]["sysctls"] = [{"name": "net.ipv4.ip_unprivileged_port_start", "value": "0"}]
    if namespace != "posgap":
        del made["spec"]["serviceAccountName"]
    return made


def policy(selector: dict, types: list[str], **rules: list) -> dict:
    return {"metadata": {"namespace": "a"}, "spec": {"podSelector": selector, "policyTypes": types} | rules}


ALL: dict = {}
FRONT, BACK = {"matchLabels": {"tier": "front"}}, {"matchLabels": {"tier": "back"}}
OF_B = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "b"}}}
NO_TIER = {"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]}
NOT_BACK = {"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["back"]}]}


@pytest.mark.parametrize(
    ("policies", "free"),
    [
        ([], "front b other outside"),
        ([policy(ALL, ["Ingress"])], ""),
        ([policy(ALL, ["Egress"])], "b outside"),
        ([policy(FRONT, ["Ingress"])], "front b other outside"),
        ([policy(BACK, ["Ingress"], ingress=[{}])], "front b other outside"),
        ([policy(BACK, ["Ingress"], ingress=[{"from": [{"podSelector": FRONT}]}])], "front"),
        ([policy(BACK, ["Ingress"], ingress=[{"from": [OF_B]}])], "b"),
        ([policy(BACK, ["Ingress"], ingress=[{"from": [OF_B | {"podSelector": NO_TIER}]}])], ""),
        ([policy(BACK, ["Ingress"], ingress=[{"from": [OF_B, {"podSelector": NO_TIER}]}])], "b other"),
        ([policy(BACK, ["Ingress"], ingress=[{"from": [{"podSelector": NOT_BACK}]}])], "front other"),
        ([policy(BACK, ["Ingress"], ingress=[{"from": [{"ipBlock": {"cidr": "203.0.113.0/24"}}]}])], "outside"),
        (
            [
                policy(
                    BACK,
                    ["Ingress"],
                    ingress=[{"from": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": ["10.0.0.0/8"]}}]}],
                )
            ],
            "outside",
        ),
        ([policy(BACK, ["Ingress"], ingress=[{"ports": [{"port": 80}]}])], "front b other outside"),
        ([policy(BACK, ["Ingress"], ingress=[{"ports": [{"port": 81}]}])], ""),
        ([policy(BACK, ["Ingress"], ingress=[{"ports": [{"port": 79, "endPort": 90}]}])], "front b other outside"),
        ([policy(BACK, ["Ingress"], ingress=[{"ports": [{"port": 80, "protocol": "UDP"}]}])], ""),
        ([policy(FRONT, ["Egress"], egress=[{"to": [{"podSelector": FRONT}]}])], "b other outside"),
        ([policy(ALL, ["Ingress"]), policy(BACK, ["Ingress"], ingress=[{"from": [OF_B]}])], "b"),
    ],
)
def test_the_rules_are_kubernetes_own(policies, free):
    back = Peer("10.0.0.9", "a", {"tier": "back"})
    callers = {
        "front": Peer("10.0.0.1", "a", {"tier": "front"}),
        "b": Peer("10.0.0.2", "b", {"tier": "front"}),
        "other": Peer("10.0.0.3", "a"),
        "outside": Peer("203.0.113.7"),
    }
    assert " ".join(name for name, caller in callers.items() if reaches(policies, caller, back, 80)) == free

"""infra/kubernetes on Kubernetes' own API server: `make api-server`."""

import os
import re
import subprocess

import api_server
import pytest
import yaml
from manifests import KUBERNETES, each_overlay, of_kind, overlay
from places import ROOT

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(
        os.environ.get("POSGAP_API_SERVER") != "1", reason="it is compiled first, for some minutes: make api-server"
    ),
]
README = (KUBERNETES / "README.md").read_text()
ABSENT = {"EC2NodeClass", "NodePool", "ExternalSecret", "SecretStore"}  # kinds of Karpenter and External Secrets
# Of the documented commands, those that need a node; and what KFP's profile controller makes in the namespace.
OF_A_NODE = ("kubectl label", "kubectl taint", "kubectl -n posgap rollout", "kubectl -n posgap exec")
LAUNCHER = "kubectl -n posgap create configmap kfp-launcher"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """An API server with the overlay `local`, applied by the commands of README.md."""
    section = re.search(r"^## local\n(.*?)^## ", README, re.MULTILINE | re.DOTALL)[1]
    lines = re.findall(r"^```sh\n(.*?)^```", section, re.MULTILINE | re.DOTALL)[0].splitlines()
    commands = "\n".join(line for line in lines if not line.startswith(OF_A_NODE))
    commands = re.sub(r"^(?=.*patch configmap kfp-launcher)", f"{LAUNCHER}\n", commands, flags=re.MULTILINE)
    with api_server.running(tmp_path_factory.mktemp("api")) as running:
        environment = running.environment() | {"HF_TOKEN": "none"}
        shell = ["bash", "-euo", "pipefail", "-c", commands]
        done = subprocess.run(shell, cwd=ROOT, env=environment, capture_output=True, text=True)
        # With `warn: restricted` the namespace warns of Deployments and Jobs whose pods it would refuse.
        assert done.returncode == 0 and "Warning" not in done.stderr, done.stderr
        yield running


@each_overlay
def test_every_object_is_admitted_without_a_warning(server, name):
    objects = [each for each in overlay(name) if each["kind"] not in ABSENT and each["kind"] != "Job"]
    jobs = of_kind(overlay(name), "Job").values()  # which cannot be changed
    objects += [each | {"metadata": each["metadata"] | {"name": "anew"}} for each in jobs]
    command = ["apply", "--server-side", "--dry-run=server", "--force-conflicts", "--filename", "-", "--output", "name"]
    admitted = server.kubectl(*command, text=yaml.safe_dump_all(objects)).splitlines()
    assert len(admitted) == len(objects)


WATCHING = ("get", "list", "watch")
MAY = {
    "posgap-pipeline": {
        "pods": WATCHING,
        "pods/log": ("get",),
        "events": ("list",),
        "trainjobs.trainer.kubeflow.org": ("create", *WATCHING, "delete"),
        "workloads.kueue.x-k8s.io": ("get", "list"),
        "workflows.argoproj.io": ("list",),
        "workflowtaskresults.argoproj.io": ("create", "patch"),
        "configmaps:kfp-launcher": ("get",),
        "secrets:mlpipeline-minio-artifact": ("get",),
        "clustertrainingruntimes.trainer.kubeflow.org:posgap-deepspeed": ("get",),
        "trainingruntimes.trainer.kubeflow.org:posgap-deepspeed": ("get",),
    },
    "posgap-scheduler": {
        "pipelines.pipelines.kubeflow.org": ("create", "get", "list"),
        "experiments.pipelines.kubeflow.org": ("create", "get", "list"),
        "runs.pipelines.kubeflow.org": ("create", "get", "list"),
        "jobs.pipelines.kubeflow.org": ("create", "get", "list", "enable", "disable", "delete"),
    },
    "posgap-train": {},
    "posgap-mlflow": {},
    "posgap-backup": {},
    "default": {},
}


def test_accounts_may_do_what_the_roles_say_and_no_more(server):
    everybody = allowed(server, "nobody-has-this-name")
    for account, may in MAY.items():
        granted = {(resource, verb) for resource, verbs in may.items() for verb in verbs}
        assert allowed(server, account) - everybody == granted, account


def allowed(server, account: str) -> set[tuple[str, str]]:
    """What `kubectl auth can-i --list` has for an account of the namespace: resources and verbs."""
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": "posgap"},
    }
    answer = server.create(review, "--validate=false", "--as", f"system:serviceaccount:posgap:{account}")
    return {
        (f"{resource}{group and '.'}{group}{name and ':'}{name}", verb)
        for rule in answer["status"]["resourceRules"]
        for resource in rule["resources"]
        for group in rule["apiGroups"]
        for name in rule.get("resourceNames") or [""]
        for verb in rule["verbs"]
    }


def test_the_documented_token_is_the_scheduler_s(server):
    command = re.search(r"^kubectl -n posgap (create token [^#]*)", README, re.MULTILINE)[1].split()
    spec = {"token": server.kubectl("-n", "posgap", *command).strip(), "audiences": ["pipelines.kubeflow.org"]}
    answer = server.create({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec})
    assert answer["status"]["user"]["username"] == "system:serviceaccount:posgap:posgap-scheduler"


def pod(labels: dict | None = None, **resources: dict) -> dict:
    """A pod that the namespace's rules let in."""
    confined = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    container = {"name": "main", "image": "any", "securityContext": confined, "resources": resources}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "any", "namespace": "posgap", "labels": labels or {}},
        "spec": {
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "serviceAccountName": "posgap-train",
            "containers": [container],
        },
    }


@pytest.fixture(scope="module")
def counted(server):
    """The server with the quota's count, which is the controller manager's to make."""
    hard = of_kind(overlay("local"), "ResourceQuota")["posgap"]["spec"]["hard"]
    status = yaml.safe_dump({"status": {"hard": hard, "used": dict.fromkeys(hard, "0")}})
    server.kubectl(
        "-n", "posgap", "patch", "resourcequota", "posgap", "--subresource=status", "--type=merge", "--patch", status
    )
    return server


def test_a_pod_that_waits_for_gpus_is_let_in_and_one_that_asks_for_nothing_gets_requests(counted):
    gpus = {"nvidia.com/gpu": "4"}
    admitted = counted.create(pod({"kueue.x-k8s.io/queue-name": "posgap-gpu"}, limits=gpus), "--dry-run=server")
    # KFP's and Argo's own containers ask for nothing.
    small = {"cpu": "100m", "memory": "256Mi", "ephemeral-storage": "1Gi"}
    assert admitted["spec"]["containers"][0]["resources"] == {"requests": gpus | small, "limits": gpus}


def test_the_namespace_refuses_what_is_too_large_or_not_confined(counted):
    assert "exceeded quota: posgap" in counted.refusal(pod(requests={"cpu": "321"}))
    free = pod()
    del free["spec"]["securityContext"]["runAsNonRoot"]
    assert 'violates PodSecurity "restricted:v1.32"' in counted.refusal(free)

"""infra/kubernetes on Kubernetes' own API server: `make api-server`."""

import re

import pytest
import yaml
from api_server import README, pod
from cluster import ON_A_NODE
from manifests import each_overlay, of_kind, overlay

pytestmark = pytest.mark.full
ABSENT = {"EC2NodeClass", "NodePool", "ExternalSecret", "SecretStore"}  # kinds of Karpenter and External Secrets


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


@pytest.fixture(scope="module")
def counted(server):
    """The server with the quota's count, which is the controller manager's to make."""
    if ON_A_NODE:
        return server
    hard = of_kind(overlay("local"), "ResourceQuota")["posgap"]["spec"]["hard"]
    status = yaml.safe_dump({"status": {"hard": hard, "used": dict.fromkeys(hard, "0")}})
    server.kubectl(
        "-n", "posgap", "patch", "resourcequota", "posgap", "--subresource=status", "--type=merge", "--patch", status
    )
    return server


def test_a_pod_that_waits_for_gpus_is_let_in_and_one_that_asks_for_nothing_gets_requests(counted):
    gpus = {"nvidia.com/gpu": "4"}
    admitted = counted.create(
        pod(labels={"kueue.x-k8s.io/queue-name": "posgap-gpu"}, resources={"limits": gpus}), "--dry-run=server"
    )
    # KFP's and Argo's own containers ask for nothing.
    small = {"cpu": "100m", "memory": "256Mi", "ephemeral-storage": "1Gi"}
    assert admitted["spec"]["containers"][0]["resources"] == {"requests": gpus | small, "limits": gpus}


def test_the_namespace_refuses_what_is_too_large_or_not_confined(counted):
    assert "exceeded quota: posgap" in counted.refusal(pod(resources={"requests": {"cpu": "321"}}))
    free = pod()
    del free["spec"]["securityContext"]["runAsNonRoot"]
    assert 'violates PodSecurity "restricted:v1.32"' in counted.refusal(free)

"""infra/kubernetes: what both overlays render to is valid, and agrees with itself and with posgap."""

import copy
import os
import re
import shutil
import subprocess

import jsonschema
import kubernetes_validate
import pytest
import yaml
from kubernetes.utils.quantity import parse_quantity
from manifests import (
    CLUSTER_SCOPED,
    KUBERNETES,
    SECURED,
    containers,
    custom_kinds,
    each_overlay,
    env_from,
    needs_kubectl,
    of_kind,
    overlay,
    pod_templates,
    render,
    tolerates,
    validate,
)

from posgap import __version__
from posgap.options.cluster import ClusterConfig

pytestmark = needs_kubectl
REFUSED = (jsonschema.ValidationError, kubernetes_validate.ValidationError, kubernetes_validate.SchemaNotFoundError)


@each_overlay
def test_every_manifest_is_valid(name):
    for manifest in overlay(name):
        validate(manifest)
    for manifest in render(KUBERNETES / "monitoring"):
        validate(manifest)
        assert manifest["metadata"]["namespace"] == "posgap"
    assert custom_kinds().keys() & {(each["apiVersion"], each["kind"]) for each in overlay(name)}


def test_no_schema_is_without_a_manifest():
    rendered = [*overlay("local"), *overlay("aws"), *render(KUBERNETES / "monitoring")]
    used = {(each["apiVersion"], each["kind"]) for each in rendered}
    assert custom_kinds().keys() <= used


@pytest.mark.parametrize(
    "kind, path, value",
    [
        ("Deployment", "spec.template.spec.containers.0.imagePullPolice", "Always"),
        ("Deployment", "spec.replicas", "one"),
        ("NetworkPolicy", "spec.policyTypes", "Egress"),
        ("NodePool", "spec.disruption.consolidationPolicy", "WhenUnused"),
        ("NodePool", "spec.template.metadata.labels", {"karpenter.sh/pool": "train"}),
        ("NodePool", "spec.template.spec.requirements.0", {"key": "kubernetes.io/arch", "operator": "In"}),
        ("EC2NodeClass", "spec.amiSelectorTerms.0.alias", "latest"),
        ("ResourceFlavor", "spec.tolerations.0.value", "true"),
        ("ClusterQueue", "spec.resourceGroups.0.flavors.0.resources.0.nominalQuota", "many"),
        ("LocalQueue", "spec.clusterqueue", "posgap-gpu"),
        ("LocalQueue", "metadata.label", {}),
        ("LocalQueue", "apiVersion", "kueue.x-k8s.io/v1"),
        ("ClusterTrainingRuntime", "spec.mlPolicy.torch.numProcPerNode", "auto"),
        (
            "ClusterTrainingRuntime",
            "spec.template.spec.replicatedJobs.0.template.spec.template.spec.containers.0.env.0",
            {"nam": "HOME"},
        ),
        ("SecretStore", "spec.provider.aws.service", "S3"),
        ("ExternalSecret", "spec.data.0.remoteRef", {"property": "username"}),
    ],
)
def test_a_broken_manifest_is_refused(kind, path, value):
    manifest = copy.deepcopy(next(iter(of_kind(overlay("aws"), kind).values())))
    validate(manifest)
    place, *rest, last = manifest, *path.split(".")
    for step in rest:
        place = place[int(step) if step.isdigit() else step]
    place[int(last) if last.isdigit() else last] = value
    with pytest.raises(REFUSED):
        validate(manifest)


@each_overlay
def test_objects_are_in_the_namespace_or_in_none(name):
    for manifest in overlay(name):
        schema = custom_kinds().get((manifest["apiVersion"], manifest["kind"]))
        cluster = schema["scope"] == "Cluster" if schema else manifest["kind"] in CLUSTER_SCOPED
        assert manifest["metadata"].get("namespace") == (None if cluster else "posgap"), manifest["metadata"]
    labels = of_kind(overlay(name), "Namespace")["posgap"]["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"


@each_overlay
def test_images_are_pinned_in_one_place_to_this_version(name):
    known = set()
    for each in yaml.safe_load((KUBERNETES / "images/kustomization.yaml").read_text())["images"]:
        known.add("@".join(filter(None, [f"{each['newName']}:{each['newTag']}", each.get("digest")])))
        assert "digest" in each or each["name"] == "seaweedfs" or each["name"].startswith("posgap-")
    used = {each["image"] for pod in pod_templates(overlay(name)).values() for each in containers(pod["spec"])}
    assert used <= known
    ours = {image for image in used if "/posgap/" in image}
    assert ours == {f"ghcr.io/posgap/posgap-{kind}:{__version__}" for kind in ("mlflow", "gpu-train")}


def gpus(objects: list[dict]) -> dict[str, int]:
    """The queue's GPUs by flavor."""
    (group,) = of_kind(objects, "ClusterQueue")["posgap-gpu"]["spec"]["resourceGroups"]
    return {
        flavor["name"]: int(resource["nominalQuota"])
        for flavor in group["flavors"]
        for resource in flavor["resources"]
        if resource["name"] == "nvidia.com/gpu"
    }


def test_training_pods_go_to_the_gpu_pools():
    objects = overlay("aws")
    pod = pod_templates(objects)["ClusterTrainingRuntime posgap-deepspeed"]["spec"]
    pools = {name: pool["spec"]["template"] for name, pool in of_kind(objects, "NodePool").items()}
    for name in gpus(objects):
        assert pools[name]["spec"]["taints"]
        assert all(tolerates(pod, taint) and not tolerates({}, taint) for taint in pools[name]["spec"]["taints"])
    assert pod["nodeSelector"].items() <= pools["posgap-train"]["metadata"]["labels"].items()
    assert "taints" not in pools["posgap-cpu"]["spec"]


def test_queue_and_pools_agree_on_the_gpus():
    objects = overlay("aws")
    pools, flavors = of_kind(objects, "NodePool"), of_kind(objects, "ResourceFlavor")
    assert gpus(objects) == {name: int(pools[name]["spec"]["limits"]["nvidia.com/gpu"]) for name in flavors}
    for name, flavor in flavors.items():
        template = pools[name]["spec"]["template"]
        assert flavor["spec"]["nodeLabels"].items() <= template["metadata"]["labels"].items()
        assert all(tolerates(flavor["spec"], taint) for taint in template["spec"]["taints"])


@each_overlay
def test_the_queue_admits_what_a_training_pod_requests(name):
    objects = overlay(name)
    (group,) = of_kind(objects, "ClusterQueue")["posgap-gpu"]["spec"]["resourceGroups"]
    pod = pod_templates(objects)["ClusterTrainingRuntime posgap-deepspeed"]["spec"]
    assert pod["containers"][0]["resources"]["requests"].keys() <= set(group["coveredResources"])
    for flavor in group["flavors"]:
        assert [resource["name"] for resource in flavor["resources"]] == group["coveredResources"]
        assert flavor["name"] in of_kind(objects, "ResourceFlavor")
    assert of_kind(objects, "LocalQueue")["posgap-gpu"]["spec"]["clusterQueue"] == "posgap-gpu"


@each_overlay
def test_the_quota_leaves_room_for_what_waits_in_the_queue(name):
    """A quota counts pods that Kueue holds back: the next one would be refused, not queued."""
    objects = overlay(name)
    hard = of_kind(objects, "ResourceQuota")["posgap"]["spec"]["hard"]
    (group,) = of_kind(objects, "ClusterQueue")["posgap-gpu"]["spec"]["resourceGroups"]
    for resource in group["coveredResources"]:
        quotas = [each for flavor in group["flavors"] for each in flavor["resources"] if each["name"] == resource]
        admitted = sum(parse_quantity(each["nominalQuota"]) for each in quotas)
        if resource == "nvidia.com/gpu":
            assert f"requests.{resource}" not in hard
        else:
            assert parse_quantity(hard[f"requests.{resource}"]) >= 9 * admitted, resource


@each_overlay
def test_no_pod_gets_the_variables_of_services(name):
    """S3_PORT, as Kubernetes sets it for a Service `s3`, is an option of SeaweedFS, and MLflow reads MLFLOW_ ones."""
    assert {pod["spec"].get("enableServiceLinks") for pod in pod_templates(overlay(name)).values()} == {False}


def test_a_stopped_training_pod_has_its_whole_time_for_a_checkpoint():
    pod = pod_templates(overlay("local"))["ClusterTrainingRuntime posgap-deepspeed"]["spec"]
    (seconds,) = [each["value"] for each in pod["containers"][0]["env"] if each["name"].endswith("SHUTDOWN_TIMEOUT")]
    assert 0.9 * pod["terminationGracePeriodSeconds"] < int(seconds) < pod["terminationGracePeriodSeconds"]


def test_training_never_goes_first_and_its_priority_can_be_a_label():
    """JobSet writes it into one, and "-1000" is none: no pod of a TrainJob was ever made."""
    classes = of_kind(overlay("local"), "PriorityClass")
    steps = 0  # pods without a class
    assert 0 <= classes["posgap-train"]["value"] <= steps < classes["posgap-platform"]["value"]
    assert classes["posgap-train"]["preemptionPolicy"] == "Never"


@pytest.mark.parametrize("job, container", [("mlflow-backup", "dump"), ("mlflow-restore", "restore")])
@pytest.mark.parametrize("refused, code", [(0, 0), (3, 0), (99, 1)])
def test_what_connects_to_the_database_waits_a_minute_for_it(tmp_path, job, container, refused, code):
    (command,) = [
        each["command"]
        for each in containers(pod_templates(overlay("local"))[f"CronJob {job}"]["spec"])
        if each["name"] == container
    ]
    stubs = {
        "sleep": "echo . >> slept",
        "pg_isready": f"[ $(cat slept 2> /dev/null | wc -l) -ge {refused} ]",
        "pg_restore": "exit 0",
    } | dict.fromkeys(("pg_dump", "psql"), f"pg_isready && echo done >> {tmp_path}/done")
    for name, line in stubs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    variables = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PGHOST": "database"}
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True)
    slept = (tmp_path / "slept").read_text().count(".") if refused else 0
    assert (done.returncode, slept) == (code, min(refused, 60))
    assert (tmp_path / "done").is_file() == (code == 0)
    assert done.stdout.count("PostgreSQL at database") == (refused > 0)


@each_overlay
def test_every_priority_class_is_a_pod_s(name):
    objects = overlay(name)
    applied = {pod["spec"]["priorityClassName"] for pod in pod_templates(objects).values()}
    assert applied == of_kind(objects, "PriorityClass").keys()


@each_overlay
def test_what_pods_refer_to_exists(name):
    objects = overlay(name)
    maps = of_kind(objects, "ConfigMap")
    assert {"MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "AWS_ENDPOINT_URL"} <= maps["posgap-env"]["data"].keys()
    for pod in pod_templates(objects).values():
        spec = pod["spec"]
        assert spec["priorityClassName"] in of_kind(objects, "PriorityClass")
        assert spec.get("serviceAccountName", "default") in of_kind(objects, "ServiceAccount")
        for container in containers(spec):
            assert env_from(container, "configMapRef") <= maps.keys()
            mounted = {mount["name"] for mount in container.get("volumeMounts", [])}
            assert mounted <= {volume["name"] for volume in spec["volumes"]}


@each_overlay
def test_mlflow_serves_the_name_that_clients_use_by_tls_or_without(name):
    server = pod_templates(overlay(name))["Deployment mlflow"]["spec"]["containers"][0]
    (hosts,) = [word.split("=")[1].split(",") for word in server["command"] if word.startswith("--allowed-hosts=")]
    scheme, _, host = of_kind(overlay(name), "ConfigMap")["posgap-env"]["data"]["MLFLOW_TRACKING_URI"].partition("://")
    asked = {server[probe]["httpGet"].get("scheme", "HTTP").lower() for probe in server if probe.endswith("Probe")}
    assert host in hosts and asked == {scheme} == {"https" if name.endswith(SECURED) else "http"}


def test_kfp_s_launcher_reaches_the_local_bucket_as_the_steps_do():
    patch = yaml.safe_load((KUBERNETES / "overlays/local/launcher.yaml").read_text())["data"]
    # These names, and `s3`, are those of KFP's backend/src/v2/config/s3.go, which ignores what it does not know.
    (default,) = yaml.safe_load(patch["providers"])["s3"].values()
    settings = {each["metadata"]["name"]: each["data"] for each in overlay("local") if each["kind"] == "ConfigMap"}
    assert default == {
        "endpoint": settings["posgap-env"]["AWS_ENDPOINT_URL"],
        "region": settings["posgap-env"]["AWS_REGION"],
        "forcePathStyle": True,
        "credentials": {"fromEnv": True},
    }
    mlflow = next(data for name, data in settings.items() if "MLFLOW_ARTIFACTS_DESTINATION" in data)
    bucket = mlflow["MLFLOW_ARTIFACTS_DESTINATION"].removesuffix("/mlflow")
    assert ClusterConfig().pipeline_root == f"{bucket}/kfp"


def test_settings_of_an_account_reach_every_place(tmp_path):
    shutil.copytree(KUBERNETES, tmp_path / "kubernetes")
    file = tmp_path / "kubernetes/overlays/aws/settings.env"
    settings = dict(line.split("=") for line in file.read_text().splitlines() if not line.startswith("#"))
    file.write_text("".join(f"{setting}=own-{setting.lower()}\n" for setting in settings))
    text = yaml.safe_dump_all(render(file.parent))
    for setting, value in settings.items():
        assert f"own-{setting.lower()}" in text
        assert not re.search(rf"\b{setting}\b", text)
        assert setting == "CLUSTER" or value not in text
    assert "settings" not in of_kind(overlay("aws"), "ConfigMap")


def test_alerts_look_at_what_is_there():
    """An alert of a misspelt name never fires, and nothing complains."""
    (alerts,) = render(KUBERNETES / "monitoring")
    asked = " ".join(rule["expr"] for group in alerts["spec"]["groups"] for rule in group["rules"])
    assert set(re.findall(r'namespace="(.*?)"', asked)) == {"posgap"}
    named = {each for names in re.findall(r'deployment=~?"(.*?)"', asked) for each in names.split("|")}
    assert named == of_kind(overlay("local"), "Deployment").keys()
    assert set(re.findall(r'cronjob="(.*?)"', asked)) == {"mlflow-backup"} <= of_kind(overlay("aws"), "CronJob").keys()


def test_on_aws_whatever_has_the_database_s_password_verifies_the_database():
    objects = overlay("aws")
    (settings,) = [
        each["data"]
        for name, each in of_kind(objects, "ConfigMap").items()
        if name.startswith("mlflow-") and "PGHOST" in each["data"]
    ]
    assert settings["PGSSLMODE"] == "verify-full"
    folder, _, _ = settings["PGSSLROOTCERT"].rpartition("/")
    asking = [
        {mount["mountPath"] for mount in container["volumeMounts"]}
        for pod in pod_templates(objects).values()
        for container in containers(pod["spec"])
        if "posgap-mlflow-db" in env_from(container, "secretRef")
    ]
    assert len(asking) == 5 and all(folder in mounted for mounted in asking)

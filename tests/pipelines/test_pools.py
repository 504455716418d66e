"""Where each step of the compiled pipeline runs, and what it finds there."""

import re

import pytest
import yaml
from places import ROOT

from posgap.components.making import CPU, SERVE, TRAIN, image
from posgap.foundation.errors import PosgapError
from posgap.kubeflow.training_pool import VARIABLE, requests
from posgap.options.cluster import AUTHORITY, MLFLOW_LOGIN, ClusterConfig
from posgap.options.preflight import PreflightConfig
from posgap.pipelines.checks import complaints
from posgap.pipelines.compilation import compiled_text, load, parse
from posgap.pipelines.mitigation import mitigation_pipeline
from posgap.pipelines.pools import cluster_config
from posgap.pipelines.resources import resources, secret_keys
from posgap.pipelines.steps import tree
from posgap.pipelines.watch import watch_pipeline

CLUSTER = ClusterConfig()
AMD = {"key": "amd.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
TRAINED = {"distill"}
MADE = ("mitigated", "distilled", "distilled and mitigated")
GATES, PROMOTIONS = ({f"{step} {made}" for made in MADE} for step in ("gate", "promote"))
SEARCHES = {"mitigate", "mitigate distilled"}
GENERATED = {"sweep base", "champion", *(f"sweep {made}" for made in MADE), "teacher"} | SEARCHES
UNCACHED = {"preflight", "report"} | GATES | PROMOTIONS
SMALL = {"preflight", "report", "validate eval", "validate train"}
RETRIED = TRAINED | GENERATED | GATES | PROMOTIONS
IMAGES = dict.fromkeys(TRAINED | SEARCHES, TRAIN) | dict.fromkeys(GENERATED - SEARCHES, SERVE)


@pytest.fixture(scope="module")
def steps():
    return {step.name: step for step in tree(load(None), {}).steps()}


def pool_of(name):
    if name.startswith("promote"):
        return CLUSTER.promote
    if name in SMALL | GATES:
        return CLUSTER.small
    return CLUSTER.train if name in TRAINED else CLUSTER.inference if name in GENERATED else CLUSTER.cpu


def secrets_for(name):
    """The secrets of the step of this name and no other. What changes the registered model has a log-in that may, and
    not that of the others; the hub's token is for what reads models or data, the webhook's address for the report."""
    login = "posgap-mlflow-promote" if name.startswith(("promote", "watch")) else "posgap-mlflow"
    secrets = {"posgap-s3": ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"], login: MLFLOW_LOGIN}
    if name.startswith(("apply", "validate")) or name in {"preflight", "data-version"} | GENERATED | TRAINED:
        secrets["posgap-hub"] = ["HF_TOKEN"]
    if name == "watch":
        secrets["posgap-kfp"] = ["KFP_TOKEN"]
    if name in GATES | PROMOTIONS:
        secrets["posgap-signing"] = ["POSGAP_SIGNING_KEY"]
    return secrets | ({"posgap-webhook": ["POSGAP_WEBHOOK_URL"]} if name == "report" else {})


@pytest.mark.full
def test_no_step_is_forgotten(steps):
    compiled = load(None)
    containers = {label for label, executor in compiled.executors.items() if "container" in executor}
    assert containers == compiled.platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"].keys()
    assert len(containers) == len(steps) == 25 and steps.keys() >= TRAINED | GENERATED | UNCACHED


def test_every_step_lies_on_its_pool_with_all_it_asks_for(steps):
    for name, step in steps.items():
        requested, pool = resources(step), pool_of(name)
        assert requested.pool == pool.nodes, name
        assert requested.tolerations == pool.tolerations, name
        assert (requested.cpu, requested.memory) == (pool.cpu, pool.memory), name
        assert int(step.settings["activeDeadlineSeconds"]) == pool.timeout > 0, name
        assert requested.image == image(IMAGES.get(name, CPU)), name
        assert requested.accelerators == (1 if pool.accelerator else 0) and requested.accelerator == pool.accelerator, (
            name
        )
        memory = [f"/dev/shm=Memory {pool.shared_memory}", f"/tmp=disk {pool.scratch}"] if pool.accelerator else []
        assert requested.volumes == memory, name
        marks = step.settings.get("podMetadata", {}).get("annotations", {})
        assert marks == ({"karpenter.sh/do-not-disrupt": "true"} if pool.accelerator else {}), name
        labels = step.settings.get("podMetadata", {}).get("labels", {})
        assert labels == ({"kueue.x-k8s.io/queue-name": "posgap-gpu"} if pool.accelerator else {}), name


def test_every_step_has_user_environment_secrets_and_the_run_s_id(steps):
    for name, step in steps.items():
        settings = step.settings
        assert settings["securityContext"] == {"runAsUser": "10001", "runAsGroup": "10001", "runAsNonRoot": True}, name
        (environment,) = settings["configMapAsEnv"]
        assert environment["configMapName"] == "posgap-env" and environment["optional"]
        (authority,) = settings["configMapAsVolume"]
        assert (authority["mountPath"], authority["optional"]) == (AUTHORITY, True), name
        assert {"MLFLOW_TRACKING_URI", "AWS_ENDPOINT_URL"} <= {entry["envVar"] for entry in environment["keyToEnv"]}
        assert secret_keys(settings) == secrets_for(name), name
        assert all(entry["optional"] for entry in settings["secretAsEnv"]), name
        run = {"name": "POSGAP_PIPELINE_RUN", "fieldPath": "metadata.labels['pipeline/runid']"}
        assert settings["fieldPathAsEnv"] == [run], name


@pytest.mark.parametrize("name", ["mitigation", "watch"])
def test_of_the_committed_executors_only_those_that_need_a_secret_have_it(name):
    compiled = load(ROOT / "pipelines" / f"{name}.yaml")
    held = {label: secret_keys(compiled.settings(label)) for label in compiled.executors}
    having = {secret: {label for label in held if secret in held[label]} for secret in ("posgap-webhook", "posgap-hub")}
    assert having["posgap-webhook"] == {"exec-report"}
    kinds = {re.sub(r"-\d+$", "", label) for label in having["posgap-hub"]}
    read_nothing = {f"exec-{kind}" for kind in ("merge", "gate", "promote", "report", "watch")}
    assert kinds and not kinds & read_nothing
    assert not {"posgap-webhook", "posgap-hub"} & CLUSTER.secrets.keys()


def test_retries_and_caching_are_where_they_help(steps):
    retried = {name for name, step in steps.items() if step.task.get("retryPolicy")}
    assert retried == RETRIED
    for name in retried:
        policy = dict(steps[name].task["retryPolicy"])
        # Argo ends all tries so long after the first one's pod was made: two that fail at the very end leave the third
        # its whole time, though each waits in the queue.
        last = int(policy.pop("backoffMaxDuration").removesuffix("s"))
        assert last >= 3 * (int(steps[name].settings["activeDeadlineSeconds"]) + 12 * 3600) + 60 + 120, name
        assert policy == {"maxRetryCount": 2, "backoffDuration": "60s", "backoffFactor": 2.0}
    assert {name for name, step in steps.items() if not resources(step).cached} == UNCACHED


def test_what_watches_lies_where_its_twins_do(steps):
    watching = {step.name: step for step in tree(load(None, "watch"), {}).steps()}
    assert watching.keys() == {"data-version", "champion", "watch", "report"}
    asked = {name: resources(step) for name, step in watching.items()}
    assert {name for name, step in asked.items() if step.cached} == {"champion"}
    for name in ("data-version", "champion", "report"):
        twin = resources(steps["preflight" if name == "data-version" else name])
        assert (asked[name].pool, asked[name].volumes, asked[name].image) == (twin.pool, twin.volumes, twin.image)
    assert asked["watch"].pool == CLUSTER.cpu.nodes and asked["watch"].accelerators == 0
    key = watching["champion"].task["inputs"]["parameters"]["cache_key"]
    assert key == {"componentInputParameter": "pipelinechannel--data-version-champion_key"}
    assert watching["watch"].settings["podMetadata"]["labels"] == {"access-ml-pipeline": "true"}
    assert not [complaint for step in watching.values() for complaint in complaints(step)]
    for name, step in watching.items():
        assert secret_keys(step.settings) == secrets_for(name), name


def test_nothing_looks_wrong_with_any_step(steps):
    assert not [complaint for step in steps.values() for complaint in complaints(step)]


@pytest.mark.full
def test_the_form_s_number_of_training_gpus_brings_cpus_and_memory():
    asked = {gpus: tree(load(None), {"gpus_train": gpus}).steps() for gpus in ("1", "8")}
    steps = {gpus: {step.name: resources(step) for step in steps} for gpus, steps in asked.items()}
    assert [steps[gpus]["distill"].accelerators for gpus in steps] == [1, 8]
    assert [(each["distill"].cpu, each["distill"].memory) for each in steps.values()] == [
        ("8", "64Gi"),
        ("64", "512Gi"),
    ]
    assert steps["1"]["sweep base"] == steps["8"]["sweep base"]
    limits = next(step.container["resources"] for step in asked["8"] if step.name == "distill")
    assert limits["resourceMemoryLimit"] == "512Gi"
    assert not [complaint for step in asked["8"] for complaint in complaints(step)]


@pytest.mark.full
def test_what_preflight_says_is_what_the_training_step_asks_for(tmp_path, monkeypatch):
    given = tree(load(None), {"gpus_train": "4"}).steps()
    (pool,) = (each["value"] for step in given for each in step.container.get("env", []) if each["name"] == VARIABLE)
    monkeypatch.setenv(VARIABLE, pool)
    form = PreflightConfig(data_train="a", data_eval="b", base_model="m", gpus_train="4", out=tmp_path)
    assert requests(form) == {"cpu": "32", "memory": "256Gi"}


@pytest.mark.full
def test_volumes_have_the_size_for_the_gpus_that_are_compiled_in(monkeypatch):
    gpus = {name: getattr(CLUSTER, name).model_copy(update={"accelerators": "4"}) for name in ("train", "inference")}
    compiled = parse(compiled_text(mitigation_pipeline(CLUSTER.model_copy(update=gpus))), "test")
    steps = {step.name: resources(step) for step in tree(compiled, {}).steps()}
    assert steps["distill"].volumes == ["/dev/shm=Memory 64Gi", "/tmp=disk 800Gi"]
    sweep = steps["sweep base"]
    assert sweep.volumes == ["/dev/shm=Memory 32Gi", "/tmp=disk 400Gi"] and (sweep.cpu, sweep.memory) == ("16", "128Gi")
    assert (steps["distill"].cpu, steps["distill"].memory) == ("32", "256Gi")


@pytest.mark.full
def test_everything_else_is_compiled_in_for_a_cluster(tmp_path, monkeypatch):
    file = tmp_path / "cluster.yaml"
    file.write_text(
        yaml.safe_dump(
            {
                "registry": "registry.example/ml",
                "pull_secret": "mine",
                "pipeline_root": "s3://lab/kfp",
                "secrets": {},
                **dict.fromkeys(("hub_secret", "kfp_secret", "webhook_secret", "signing_secret", "promote_secret"), ""),
                "inference": {
                    "timeout": 0,
                    "shared_memory": "2Gi",
                    "queue": "",
                    "accelerator": "amd.com/gpu",
                    "tolerations": [AMD],
                },
                "train": {"nodes": {"pool": "big"}, "accelerators": "8"},
                "cpu": {"nodes": {}},
            }
        )
    )
    monkeypatch.setenv("POSGAP_CLUSTER", str(file))
    compiled = parse(compiled_text(mitigation_pipeline(cluster_config())), "test")
    assert compiled.root == "s3://lab/kfp"
    assert compiled.parameters["gpus_train"]["defaultValue"] == "8"  # what a run may choose is the form's default
    steps = {step.name: step for step in tree(compiled, {}).steps()}
    requested = {name: resources(step) for name, step in steps.items()}
    assert requested["sweep base"].image == image(SERVE, "registry.example/ml")
    assert (requested["distill"].pool, requested["report"].pool) == ({"pool": "big"}, {})
    assert (
        requested["sweep base"].tolerations == [AMD] and requested["distill"].tolerations == CLUSTER.train.tolerations
    )
    assert requested["sweep base"].accelerator == "amd.com/gpu" and requested["distill"].accelerator == "nvidia.com/gpu"
    assert requested["sweep base"].volumes == [
        "/dev/shm=Memory 2Gi",
        f"/tmp=disk {CLUSTER.inference.scratch}",
    ]
    assert "activeDeadlineSeconds" not in steps["sweep base"].settings
    assert (requested["report"].memory, requested["promote distilled"].memory) == ("4Gi", "40Gi")
    assert "labels" not in steps["sweep base"].settings["podMetadata"]
    assert not [name for name, step in steps.items() if "secretAsEnv" in step.settings]
    assert requested["report"].needs == {"secrets": ["mine"]} and requested["report"].volumes == []


@pytest.mark.full
def test_a_run_that_the_watch_starts_is_for_its_cluster(monkeypatch):
    inference = CLUSTER.inference.model_copy(update={"queue": ""})
    cluster = CLUSTER.model_copy(update={"registry": "registry.example/ml", "inference": inference})
    steps = {step.name: step for step in tree(parse(compiled_text(watch_pipeline(cluster)), "test"), {}).steps()}
    environment = {each["name"]: each["value"] for each in steps["watch"].container["env"]}
    monkeypatch.setenv("POSGAP_CLUSTER", environment["POSGAP_CLUSTER"])
    assert cluster_config() == cluster


@pytest.mark.full
def test_where_there_is_a_trainer_the_step_that_trains_only_watches():
    compiled = parse(compiled_text(mitigation_pipeline(ClusterConfig(trainer=True))), "test")
    steps = {step.name: step for step in tree(compiled, {}).steps()}
    job = resources(steps["train-job"])
    assert "distill" not in steps and (job.pool, job.accelerators, job.retries) == (CLUSTER.small.nodes, 0, 2)
    assert int(steps["train-job"].settings["activeDeadlineSeconds"]) == CLUSTER.train.timeout
    assert steps["train-job"].settings["podMetadata"]["annotations"] == {"karpenter.sh/do-not-disrupt": "true"}
    assert steps["preflight"].task["inputs"]["parameters"]["trainer"] == {"runtimeValue": {"constant": True}}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("train: {gpus: 2}", "field `train.gpus`: "),
        ("cpu: {queue: posgap-cpu}", "field `cpu`: queue: "),
        ("train: {memory: 64 GB}", "field `train.memory`: "),
        ("pipeline_root: bucket/kfp", "field `pipeline_root`: "),
        ("user: 0", "field `user`: "),
        ("train: [", ""),
        ("- train", ""),
    ],
)
def test_a_cluster_that_cannot_be_meant_is_refused_in_one_line(tmp_path, monkeypatch, text, complaint):
    file = tmp_path / "cluster.yaml"
    file.write_text(text)
    monkeypatch.setenv("POSGAP_CLUSTER", str(file))
    with pytest.raises(PosgapError) as refused:
        cluster_config()
    assert complaint in str(refused.value) and str(file) in str(refused.value)


def test_every_cached_step_takes_a_digest_of_all_its_sources(steps):
    """In KFP's cache key stand image, program, parameters and the names of artifacts, but not what these hold."""
    cached = {name: step.task["inputs"]["parameters"] for name, step in steps.items() if resources(step).cached}
    keys = {name: given["cache_key"]["componentInputParameter"] for name, given in cached.items()}
    measured = {"validate eval", "sweep base", "curve base"}
    assert {name for name in keys if keys[name] == "pipelinechannel--preflight-eval_key"} == measured
    assert keys["champion"] == "pipelinechannel--preflight-champion_key"
    others = keys.keys() - measured - {"champion"}
    assert {keys[name] for name in others} == {"pipelinechannel--preflight-train_key"}

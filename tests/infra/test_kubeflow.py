"""posgap's pipelines on Kubeflow in a node, as docs/kubeflow.md has them: `make cluster`, with POSGAP_KFP.

The tests are in the order of a champion's life: the first makes it, the others leave it.
"""

import gzip
import json
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import kubeflow_node
import pytest
import yaml
from api_server import documented_command
from chromium import Page
from cluster import NODE
from kubeflow_node import UI
from kubeflow_steps import (
    CLUSTER,
    COLLEAGUE,
    DATA,
    WAITING,
    Posgap,
    add_colleague,
    forwarded,
    make_data,
    open_form,
    pages,
    parameters,
    text,
    upload,
    words,
)
from places import ROOT
from training_operators import workers

from posgap.pipelines.submission import ENDED

if "POSGAP_KFP" not in os.environ:
    reason = "KFP is built outside the repository, and POSGAP_KFP names the folder: infra/ci/README.md"
    pytest.skip(reason, allow_module_level=True)
pytestmark = pytest.mark.full
PICTURES = ROOT / "build" / "cluster" / "pictures"
STRANGER = "bob@example.com"
FIRST = {"champion": "1", "versions": ["1"]}
REGISTRY = """
import json, mlflow
client = mlflow.MlflowClient()
versions = [str(each.version) for each in client.search_model_versions("name='posgap'")]
champion = client.get_model_version_by_alias("posgap", "champion")
print(json.dumps({"champion": str(champion.version), "versions": versions}))
"""
# What KFP's pages are searched for.
LABELLED = "[...document.querySelectorAll('label')].find((x) => x.innerText.startsWith('{}')).parentElement"
BUTTON = "[...document.querySelectorAll('button')].find((x) => x.innerText === '{}')"
NODE_OF = "[...document.querySelectorAll('.react-flow__node *')].find((x) => x.innerText === '{}')"
EXPAND = """document.querySelector("button[title='{}'] [data-testid=expand-button]")"""
DONE = "document.querySelectorAll('[data-testid=CheckCircleIcon]').length"


class World:
    """A cluster with Kubeflow, posgap and its data."""

    def __init__(self, node, kubeflow, folder):
        self.node, self.kubeflow, self.folder = node, kubeflow, folder
        self.data = make_data(folder)
        upload(node, self.data)
        self.posgap = self.compiling_for("cluster")

    def compiling_for(self, name: str, **more: object) -> Posgap:
        """A `posgap` that compiles for this cluster, which has more."""
        cluster, file = yaml.safe_load(CLUSTER.read_text()), self.folder / f"{name}.yaml"
        for pool in cluster.values():
            pool["nodes"] = {"posgap.dev/pool": "cpu"}  # there is one node
        file.write_text(yaml.safe_dump(cluster | more))
        return Posgap(self.node, UI, file)

    def registry(self) -> dict:
        """The champion's version, and all versions."""
        login = 'MLFLOW_TRACKING_USERNAME=admin MLFLOW_TRACKING_PASSWORD="$MLFLOW_AUTH_ADMIN_PASSWORD"'
        command = f"{login} MLFLOW_TRACKING_URI=http://localhost:5000 python -"
        execute = ("-n", "posgap", "exec", "-i", "deployment/mlflow", "-c", "mlflow", "--", "sh", "-c", command)
        return json.loads(self.node.kubectl(*execute, text=REGISTRY))

    def pods(self, run: str) -> list[dict]:
        """The pods of a run, also those that have ended."""
        command = ("-n", "posgap", "get", "pods", f"--selector=pipeline/runid={run}", "--output=json")
        return json.loads(self.node.kubectl(*command))["items"]

    def pod_of(self, run: str, step: str) -> str:
        """Waits for a running pod of a step; returns its name."""
        of_step = re.compile(rf"[.]{step}(-\d+)?\(\d+\)[.]executor\(\d+\)$")
        deadline = time.monotonic() + 600
        while True:
            for pod in self.pods(run):
                name = pod["metadata"]["annotations"].get("workflows.argoproj.io/node-name", "")
                if of_step.search(name) and pod["status"]["phase"] == "Running":
                    return pod["metadata"]["name"]
            assert time.monotonic() < deadline and call(f"runs/{run}")[1].get("state") not in ENDED, step
            time.sleep(0.5)

    def runs(self) -> dict[str, dict]:
        """KFP's runs in the namespace, the newest first, by id."""
        _, found = call("runs?namespace=posgap&page_size=100&sort_by=created_at%20desc")
        return {each["run_id"]: each for each in found.get("runs", [])}

    def wait_for_run(self, run: str) -> str:
        """The state in which a run ended."""
        deadline = time.monotonic() + 900
        while (state := call(f"runs/{run}")[1].get("state")) not in ENDED:
            assert time.monotonic() < deadline, state
            time.sleep(2)
        return state

    @contextmanager
    def without(self, name: str) -> Iterator[None]:
        """Takes one of KFP's programs away, or one of the overlay's Deployments."""
        scale = ("-n", "posgap", "scale", f"deployment/{name}")
        if name in kubeflow_node.PROGRAMS:
            self.kubeflow.stop(name)
        else:
            self.node.kubectl(*scale, "--replicas=0")
        try:
            yield
        finally:
            if name in kubeflow_node.PROGRAMS:
                self.kubeflow.start(name)
            else:
                self.node.kubectl(*scale, "--replicas=1")
                self.node.kubectl("-n", "posgap", "rollout", "status", f"deployment/{name}", "--timeout=5m")


class Submitted:
    """A run that `submit --wait` follows."""

    def __init__(self, posgap: Posgap, *options: str, **settings: object):
        given = words(parameters(**settings))
        self.process = posgap.start("pipeline", "submit", *WAITING, "--smoke", *given, *options)
        self.said = ""
        while not (found := re.search(r"^run (\S+)$", self.said, re.MULTILINE)):
            line = self.process.stdout.readline()
            assert line, self.said
            self.said += line
        self.id = found[1]

    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def end(self, code: int = 0) -> str:
        """What it said until it ended with this exit code."""
        more, _ = self.process.communicate()
        assert self.process.returncode == code, self.said + more
        return self.said + more


def call(path: str, body: object = None, user: str = COLLEAGUE) -> tuple[int, dict]:
    """Status and answer of KFP's API to a user who has logged in."""
    headers = {"kubeflow-userid": user, "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{UI}/apis/v2beta1/{path}", data, headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refused:
        return refused.code, {}


def fill(page: Page, field: str, value: str) -> None:
    """Types into a field of KFP's form, or chooses from it."""
    if page.js(f"document.getElementById({field!r}).tagName") == "INPUT":
        page.js(f"document.getElementById({field!r}).select()")
        page.call("Input.insertText", text=value)
    else:
        page.click(f"#{field}")
        page.click(f"li[data-value={value!r}]")
        page.wait("!document.querySelector('li[data-value]')")  # the list covers what is below it


@pytest.fixture(scope="module")
def world(kubeflow, node, tmp_path_factory) -> World:
    folder = tmp_path_factory.mktemp("kubeflow")
    node.call("-n", "posgap", "delete", "rolebinding", "ada", "posgap-watch")  # in a cluster that is kept
    add_colleague(node)
    PICTURES.mkdir(parents=True, exist_ok=True)
    return World(node, kubeflow, folder)


def test_the_smoke_pipeline_makes_a_champion(world):
    run = Submitted(world.posgap)
    said = run.end()
    for step in ("validate train", "sweep base", "teacher", "distill", "gate distilled", "promote distilled", "report"):
        assert re.search(f"^posgap . {step} is done after", said, re.MULTILINE), said
    print(f"{said}{len(world.pods(run.id))} pods")
    assert world.registry() == FIRST


def test_a_colleague_starts_a_run_in_the_form_and_it_finds_nothing_new(world):
    file, before = world.folder / "mitigation.yaml", world.runs()
    address = world.posgap.upload_pipeline(file)
    experiments = call("experiments?namespace=posgap")[1]["experiments"]
    [experiment] = [each["experiment_id"] for each in experiments if each["display_name"] == "posgap"]
    with pages(COLLEAGUE) as page:
        open_form(page, file, address, PICTURES / "form.png", f"&experimentId={experiment}")
        for field, value in parameters(only_new=True).items():
            fill(page, field, text(value))
        page.js(f"{LABELLED.format('Service Account')}.querySelector('input').id = 'account'")
        fill(page, "account", "posgap-pipeline")
        page.screenshot(PICTURES / "form.png", whole=True)
        page.click("#startNewRunBtn")
        page.wait("location.hash.startsWith('#/runs/details/')")
    [run] = world.runs().keys() - before.keys()
    assert world.wait_for_run(run) == "SUCCEEDED"
    print(f"{len(world.pods(run))} pods")
    assert len(world.pods(run)) < 15
    assert world.registry() == FIRST


def test_a_colleague_reads_a_run_and_its_report(world):
    run = max(world.runs(), key=lambda each: len(world.pods(each)))
    with pages(COLLEAGUE) as page:
        page.open(f"{UI}/#/runs/details/{run}", width=2400, height=1200)
        page.click(f"js:{NODE_OF.format('summary')}")
        page.click(f"js:{BUTTON.format('Visualization')}")
        page.wait("document.body.innerText.includes('Champion of posgap: version 1')")
        page.screenshot(PICTURES / "report.png")
        page.click("[data-testid=CloseIcon]")
        for group in ("mitigation", "something to do"):
            page.click(f"js:{EXPAND.format(group)}")
        page.wait(f"{DONE} > 8")
        page.click(".react-flow__controls-fitview")
        page.await_inflight()
        page.screenshot(PICTURES / "run.png")


def test_another_team_may_neither_see_nor_start_runs(world):
    world.node.call("delete", "namespace", "theirs")
    world.node.kubectl("create", "namespace", "theirs")
    colleague = documented_command("What the cluster must have", "kubectl -n posgap create rolebinding ada")
    world.node.shell(colleague.replace("posgap", "theirs").replace(COLLEAGUE, STRANGER))
    [run, *_] = world.runs()
    mine = call(f"runs/{run}")[1]
    start = {key: mine[key] for key in mine if key.startswith(("experiment", "runtime", "pipeline_", "service"))}
    assert call("runs?namespace=theirs", user=STRANGER)[0] == 200
    for path, body in (
        ("runs?namespace=posgap", None),
        ("experiments?namespace=posgap", None),
        ("recurringruns?namespace=posgap", None),
        (f"runs/{run}", None),
        (f"runs/{run}:terminate", {}),
        ("runs", start | {"display_name": "of a stranger"}),
    ):
        assert call(path, body, STRANGER)[0] == 403, path
    assert "of a stranger" not in [each["display_name"] for each in world.runs().values()]


def test_a_schedule_fires_is_paused_replaced_and_deleted(world):
    def schedule(*words: str) -> str:
        return world.posgap.pipeline("schedule", "--namespace=posgap", *words)

    before = world.runs()
    assert "nightly: created" in schedule("nightly", *words(parameters(only_new=True)), "--cron=* * * * *")
    deadline = time.monotonic() + 180
    while not (fired := world.runs().keys() - before.keys()):
        assert time.monotonic() < deadline, "it does not fire"
        time.sleep(2)
    assert "nightly: paused" in schedule("nightly", "--action=pause")
    [run] = fired
    assert world.wait_for_run(run) == "SUCCEEDED"
    assert "nightly: replaced" in schedule("nightly", *words(parameters(only_new=True)), "--cron=0 3 * * *")
    listed = schedule()
    assert listed.count("nightly") == 1 and "0 0 3 * * *" in listed, listed
    assert "nightly: deleted" in schedule("nightly", "--action=delete")
    assert "nightly" not in schedule()
    assert world.runs().keys() - before.keys() == {run}  # none since it was paused, a minute or two ago


def test_a_run_whose_pods_are_evicted_or_killed_ends_with_the_same_model(world):
    run = Submitted(world.posgap, "--no-cache")
    for step in ("sweep", "teacher", "distill", "gate", "promote"):
        pod = world.pod_of(run.id, step)
        time.sleep(2)  # its program is at work
        if step == "sweep":
            world.node.kubectl("-n", "posgap", "label", "pod", pod, "drained=true")
            # The node has other pods, which could go nowhere else.
            drain = ("drain", NODE, "--pod-selector=drained=true", "--ignore-daemonsets", "--delete-emptydir-data")
            world.node.kubectl(*drain, "--force")
            world.node.kubectl("uncordon", NODE)
        else:
            world.node.kubectl("-n", "posgap", "delete", "pod", pod, "--grace-period=1", "--wait=false")
    print(run.end())
    assert world.registry() == FIRST  # the same weights are the same version


def test_a_run_outlives_a_minute_without_each_service(world):
    run = Submitted(world.posgap, "--no-cache")
    # KFP's agent tells its server of a run's steps again only minutes after that was away, so that comes first.
    for service in ("apiserver", "s3", "mlflow", "workflow-controller", "postgres"):
        assert not run.has_ended(), service
        print(f"{time.strftime('%X')} without {service}", flush=True)
        with world.without(service):
            time.sleep(60)
        print(f"{time.strftime('%X')} with {service}", flush=True)
    print(run.end())
    assert world.registry() == FIRST


@pytest.mark.parametrize("service", ["apiserver", "workflow-controller"])
def test_submit_says_that_a_run_goes_on_when_what_runs_it_is_gone_for_good(world, service):
    run = Submitted(world.posgap, "--timeout=60", "--param=only_new=true")
    with world.without(service):
        said = run.end(code=6)
    assert "it goes on" in said
    print(said)
    # KFP's agent waits longer after each failure, and would tell its server of the run's end only minutes later.
    world.kubeflow.stop("persistence_agent")
    world.kubeflow.start("persistence_agent")
    assert world.wait_for_run(run.id) == "SUCCEEDED"


@pytest.mark.parametrize("service", ["postgres", "mlflow", "s3"])
def test_a_run_that_loses_a_service_for_good_fails_and_promotes_nothing(world, service):
    run = Submitted(world.posgap)  # what comes before the gate is cached
    world.pod_of(run.id, "gate")
    with world.without(service):
        print(run.end(code=4))
    assert world.registry() == FIRST


def test_training_as_a_train_job_of_two_nodes(world):
    """The name is another one, since several processes train another model."""
    posgap = world.compiling_for("trainer", trainer=True)
    run = Submitted(posgap, "--param=registered_name=of-two-nodes", nodes=2, work="s3://posgap/work")
    world.pod_of(run.id, "train-job")
    world.node.wait_for(lambda: len(workers(world.node, "--field-selector=status.phase=Running")) == 2)
    said = run.end()
    print(said)
    for step in ("train-job", "promote distilled"):
        assert re.search(f"^posgap . {step} is done after", said, re.MULTILINE), said
    assert not workers(world.node)


def test_watch_starts_a_run_when_the_champion_has_left_its_policy_and_only_then(world):
    kubectl = partial(world.node.kubectl, "-n", "posgap")
    page = (ROOT / "docs" / "kubeflow.md").read_text()
    [command] = [line for line in page.splitlines() if "create rolebinding posgap-watch" in line]
    world.node.shell(command)
    # KFP alone has no PodDefault, which would give the step a token.
    token = kubectl("create", "token", "posgap-pipeline", "--audience=pipelines.kubeflow.org", "--duration=4h")
    world.node.call("-n", "posgap", "delete", "secret", "posgap-kfp")
    kubectl("create", "secret", "generic", "posgap-kfp", f"--from-literal=KFP_TOKEN={token}")
    there = json.dumps({"data": {"KFP_HOST": "http://ml-pipeline.kubeflow:8888"}})
    kubectl("patch", "configmap", "posgap-env", "--type=merge", f"--patch={there}")
    policy = world.folder / "policy.yaml"
    policy.write_text(
        "{max_gap: 100, min_mean: 3, mean_tolerance: 100, advantageous_tolerance: 100, least_examples: 1}"
    )
    with forwarded(world.node, "mlflow", "posgap", 5000) as address:
        login = world.node.secret("posgap-mlflow-promote")
        world.posgap.run("policy", "posgap", policy, MLFLOW_TRACKING_URI=address, **login)
    with gzip.open(world.data["data/eval.jsonl.gz"], "rt") as file:
        rows = [json.loads(line) for line in file]
    drifted = world.folder / "drifted.jsonl.gz"
    with gzip.open(drifted, "wt") as file:
        file.writelines(json.dumps(drift(each, digit)) + "\n" for each in rows for digit in range(7))
    upload(world.node, {"data/drifted.jsonl.gz": drifted})

    before = world.runs()
    watch = ("submit", "--pipeline=watch", *WAITING)
    mitigate = parameters(only_new=True, min_mean=3)  # as the policy has it; preflight refuses another
    form = {"registered_name": "posgap", "namespace": "posgap", "mitigate": mitigate}
    print(world.posgap.pipeline(*watch, *words(form | {"data_eval": DATA["data_eval"]})))
    after = world.runs()
    assert len(after) == len(before) + 1
    print(world.posgap.pipeline(*watch, *words(form | {"data_eval": "s3://posgap/data/drifted.jsonl.gz"}), code=4))
    started = [each for name, each in world.runs().items() if name not in after]
    [mitigation] = [each for each in started if each["display_name"].startswith("posgap-mitigation")]
    assert len(started) == 2 and world.wait_for_run(mitigation["run_id"]) == "SUCCEEDED"


def drift(row: dict, digit: int) -> dict:
    """The same example with values of two characters; the model has learnt to answer with one."""
    value = f"{row['value']}{digit}"
    records = [[key, f"{each}{digit}"] for key, each in row["records"]]
    return row | {"id": f"{row['id']}-{digit}", "records": records, "value": value, "answers": [value]}

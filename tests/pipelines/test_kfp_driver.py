"""KFP's own driver, importer and launcher take the compiled pipelines to the end (see helpers/kfp_driver.py).

Skipped where `POSGAP_KFP_BIN` names no folder with them; what they taught is held without them in test_pipeline_checks.
"""

import re
from pathlib import Path

import kfp_driver
import pytest
from kfp import dsl
from kfp_driver import BUCKET, ROOT, Kfp, Run, Step, play, s3_client, start_kfp
from toy_pipeline import report

from posgap import __version__
from posgap.options.cluster import ClusterConfig
from posgap.pipelines.compilation import compiled_text
from posgap.pipelines.mitigation import mitigation_pipeline

REASON = kfp_driver.explain_absence()
pytestmark = pytest.mark.skipif(bool(REASON), reason=REASON or "all is there")

PIPELINES = Path(__file__).resolve().parents[2] / "pipelines"
DATA = {"uri": f"s3://{BUCKET}/data/train.jsonl", "eval_uri": f"s3://{BUCKET}/data/eval.jsonl"}
FORMS = {
    "mitigation": {
        "base_model": f"s3://{BUCKET}/models/base",
        "data_train": DATA["uri"],
        "data_eval": DATA["eval_uri"],
        "registered_name": "champion",
    },
    "watch": {"data_eval": DATA["eval_uri"], "registered_name": "champion"},
}
# What preflight says where a test says nothing else: one method, in one part.
PLAN = {"trained": ["r1"], "mitigated": False, "layered": False, "parts": ["1/1"], "Output": True}
PLAN |= {"train_uri": DATA["uri"], "eval_uri": DATA["eval_uri"], "train_cpu": "8", "train_memory": "64Gi"}
REFUSED = {"gate": {"Output": False}}
NOTHING_NEW = {"preflight": PLAN | {"Output": False}}
NEVER_CACHED = {"preflight", "gate", "promote", "report"}
OURS = f"ghcr.io/posgap/posgap-cpu:{__version__}"


@pytest.fixture(scope="module")
def kfp(tmp_path_factory):
    with start_kfp(tmp_path_factory.mktemp("kfp")) as started:
        client = s3_client(started.s3)
        for key in ("models/base/config.json", "data/train.jsonl", "data/eval.jsonl"):
            client.put_object(Bucket=BUCKET, Key=key, Body=b"{}")
        yield started


def play_ours(kfp: Kfp, name: str = "mitigation", text: str = "", said=None, fails=None, **options) -> Run:
    """Plays a pipeline of ours. `said` has outputs by component, `fails` how many of its steps' first tries fail."""
    said, fails = {"preflight": PLAN, "data_version": DATA} | (said or {}), fails or {}

    def outcome(step: Step):
        kind = component(step.path)
        return None if step.attempt < fails.get(kind, 0) else said.get(kind, {})

    text = text or (PIPELINES / f"{name}.yaml").read_text()
    return play(kfp, text, FORMS[name], outcome, **{"cache": False, **options})


def component(path: str) -> str:
    """The component of a task, of whose keys KFP numbers all but the first."""
    return re.sub(r"-\d+$", "", path.rsplit("/", 1)[-1]).replace("-", "_")


def states(run: Run, name: str) -> list[str]:
    return [state for path, state in run.states.items() if component(path) == name]


def reported(run: Run) -> str:
    """What KFP tells `report` of the run's state."""
    return run.inputs["report"].parameters["status"]["state"]


@pytest.mark.parametrize(
    ("said", "fails", "root", "promoted", "state"),
    [
        pytest.param({}, {}, "Succeeded", ["Succeeded"], "COMPLETE", id="admitted"),
        pytest.param(REFUSED, {}, "Succeeded", [], "RUNNING", id="refused"),
        pytest.param(NOTHING_NEW, {}, "Succeeded", [], "RUNNING", id="nothing to do"),
        pytest.param({}, {"sweep": 2}, "Succeeded", ["Succeeded"], "COMPLETE", id="a third try, admitted"),
        # The failed try is what KFP has of the groups: nothing counts after a skipped branch.
        pytest.param(REFUSED, {"sweep": 1}, "Succeeded", [], "FAILED", id="a second try, refused"),
        pytest.param({}, {"sweep": 3}, "Failed", [], "FAILED", id="a sweep fails for good"),
        pytest.param({}, {"preflight": 1}, "Failed", [], "FAILED", id="preflight refuses"),
        pytest.param({}, {"promote": 3}, "Failed", ["Failed"], "FAILED", id="the promotion fails"),
    ],
)
def test_a_mitigation_run_resolves_to_its_end(kfp, said, fails, root, promoted, state):
    run = play_ours(kfp, said=said, fails=fails)
    assert run.errors == [] and run.absent == []
    assert run.states["root"] == root
    assert states(run, "promote") == promoted
    assert states(run, "report") == ["Succeeded"] and reported(run) == state
    for name, failed in fails.items():
        tried = [tries for path, tries in run.tries.items() if component(path) == name]
        assert set(tried) == {failed if root == "Failed" else failed + 1}


@pytest.mark.parametrize("trainer", [False, True], ids=["in the pod", "by Kubeflow Trainer"])
def test_each_step_is_given_what_its_own_branch_made(kfp, trainer):
    plan = {**PLAN, "mitigated": True, "layered": True, "parts": ["1/3", "2/3", "3/3"]}
    text = compiled_text(mitigation_pipeline(ClusterConfig(trainer=trainer)))
    run = play_ours(kfp, text=text, said={"preflight": plan})
    assert run.has_succeeded and run.absent == []
    swept = {}  # by the group around the loop
    for path, step in run.inputs.items():
        if component(path) == "sweep":
            swept.setdefault(re.sub(r"/for-loop-\d+\[\d+\]/sweep.*", "", path), []).append(step)
        if component(path) == "merge":
            assert len(step.artifacts["sweeps"]) == len(plan["parts"])  # dsl.Collected
    models = {}
    for group, steps in swept.items():
        assert [step.parameters["shard"] for step in steps] == plan["parts"]
        [models[group]] = {step.artifacts["model"][0] for step in steps}
    assert models.pop("exit-handler-1/condition-2") == FORMS["mitigation"]["base_model"]
    makers = {model.split("/")[-3] for model in models.values()}
    assert makers == {"train-job" if trainer else "distill", "apply", "apply-2"}
    promoted = {}
    for path, step in run.inputs.items():
        if component(path) == "promote":
            promoted[path.rsplit("/", 2)[0]] = step.artifacts["model"][0]
    assert promoted == models


@pytest.mark.parametrize(
    ("said", "fails", "root", "watched", "state"),
    [
        pytest.param({}, {}, "Succeeded", ["Succeeded"], "COMPLETE", id="within its policy"),
        pytest.param({}, {"watch": 1}, "Failed", ["Failed"], "FAILED", id="left its policy"),
        pytest.param({}, {"champion": 1}, "Succeeded", ["Succeeded"], "COMPLETE", id="a second try"),
    ],
)
def test_a_watch_run_resolves_to_its_end(kfp, said, fails, root, watched, state):
    run = play_ours(kfp, "watch", said=said, fails=fails)
    assert run.errors == [] and run.absent == []
    assert run.states["root"] == root
    assert states(run, "watch") == watched
    assert run.inputs["exit-handler-1/condition-2/champion"].artifacts == {"examples": [DATA["uri"]]}
    assert reported(run) == state


def test_a_second_run_takes_from_the_cache_all_but_what_judges_and_acts(kfp):
    first, second = play_ours(kfp, cache=True), play_ours(kfp, cache=True)
    assert second.has_succeeded and second.absent == []
    assert {component(path) for path in second.inputs} == NEVER_CACHED
    cached = [path for path, state in second.states.items() if state == "Cached"]
    assert set(cached) == {path for path in first.inputs if component(path) not in NEVER_CACHED}
    changed = {"preflight": {**PLAN, "eval_key": "new", "train_key": "new", "champion_key": "new"}}
    assert "Cached" not in play_ours(kfp, said=changed, cache=True).states.values()


@pytest.mark.parametrize("own", ["", f"s3://{BUCKET}/a/root"], ids=["the namespace's root", "the run's own root"])
def test_what_steps_write_lies_below_the_pipeline_root(kfp, own):
    run = play_ours(kfp, "watch", root=own)
    swept = run.inputs["exit-handler-1/condition-2/watch"].artifacts["champion"][0]
    assert swept.startswith(f"{own or ROOT}/posgap-watch/")
    found = s3_client(kfp.s3).get_object(Bucket=BUCKET, Key=swept.removeprefix(f"s3://{BUCKET}/"))
    assert found["Body"].read() == b"exit-handler-1/condition-2/champion\n"


def test_the_pod_of_a_training_is_as_preflight_says(kfp):
    run = play_ours(kfp, said={"preflight": {**PLAN, "train_cpu": "12", "train_memory": "96Gi"}})
    pod = next(pod for path, pod in run.pods.items() if component(path) == "distill")
    main = next(one for one in pod["containers"] if one["name"] == "main")
    assert main["resources"]["requests"] == {"cpu": "12", "memory": "96Gi"}
    assert main["resources"]["limits"] == {"memory": "96Gi", "nvidia.com/gpu": "1"}
    assert pod["nodeSelector"] == ClusterConfig().train.nodes
    assert pod["activeDeadlineSeconds"] == ClusterConfig().train.timeout
    assert "AWS_ENDPOINT_URL" in {one["name"] for one in main["env"]}


@dsl.component(base_image=OURS, install_kfp_package=False)
def find() -> str:
    return ""


@dsl.component(base_image=OURS, install_kfp_package=False)
def write(out: dsl.Output[dsl.Dataset]):
    pass


@dsl.component(base_image=OURS, install_kfp_package=False)
def read(examples: dsl.Input[dsl.Dataset]):
    pass


def play_small(kfp: Kfp, pipeline, said: str = DATA["uri"]) -> Run:
    def outcome(step: Step):
        return {"Output": said} if step.name == "find" else {}

    return play(kfp, compiled_text(pipeline), {}, outcome, cache=False)


def test_kfp_finds_an_imported_artifact_by_the_key_of_its_task_alone(kfp):
    @dsl.pipeline(name="named")
    def named():
        with dsl.ExitHandler(report()):
            imported = dsl.importer(artifact_uri=DATA["uri"], artifact_class=dsl.Dataset)
            read(examples=imported.set_display_name("train data").output)

    run = play_small(kfp, named)
    assert states(run, "importer") == ["Succeeded"] and states(run, "read") == ["Error"]
    assert re.search(r'cannot find producer task "importer_\d+"', run.errors[0])
    # Nothing that ran has failed, so the groups are as behind a branch that was skipped.
    assert run.states["root"] == "Failed" and run.inputs["report"].parameters["state"]["state"] == "RUNNING"


def test_kfp_gives_an_importer_its_address_from_the_inputs_of_its_group_alone(kfp):
    @dsl.pipeline(name="beside")
    def beside():
        read(examples=dsl.importer(artifact_uri=find().output, artifact_class=dsl.Dataset).output)

    @dsl.pipeline(name="below")
    def below():
        found = find().output
        with dsl.If(found != ""):
            read(examples=dsl.importer(artifact_uri=found, artifact_class=dsl.Dataset).output)

    run = play_small(kfp, beside)
    assert run.states == {"find": "Succeeded", "importer": "Error", "read": "Omitted", "root": "Failed"}
    assert "parent DAG does not have input parameter" in run.errors[0]
    assert play_small(kfp, below).has_succeeded
    assert play_small(kfp, below, said="").states == {
        "find": "Succeeded",
        "condition-1": "Skipped",
        "root": "Succeeded",
    }


@pytest.mark.parametrize(("said", "branch"), [("one", "write"), ("other", "write-2")])
def test_kfp_passes_on_what_the_branch_made_that_was_taken(kfp, said, branch):
    @dsl.pipeline(name="either")
    def either():
        found = find().output
        with dsl.If(found == "one"):
            one = write()
        with dsl.Else():
            other = write()
        read(examples=dsl.OneOf(one.outputs["out"], other.outputs["out"]))

    run = play_small(kfp, either, said)
    assert run.has_succeeded and run.absent == []
    assert run.inputs["read"].artifacts["examples"][0].split("/")[-3] == branch

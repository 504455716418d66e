"""A compiled pipeline is checked: what a run asks of the cluster, what in it would fail, and what looks wrong."""

import json

import pytest
from kfp import dsl, kubernetes
from kfp_server import Server, served
from places import ROOT
from toy_pipeline import GIVEN, ROOT_OF_TOYS, TAINT, bounded, on_gpus, posgap, small, step, toy

from posgap import __version__
from posgap.foundation.errors import PosgapError
from posgap.pipelines import checks
from posgap.pipelines.checks import Check, complaints, form_complaints, image_warnings, importer_complaints, table
from posgap.pipelines.compilation import compiled_text, load, parse
from posgap.pipelines.resources import max_accelerators
from posgap.pipelines.smoke import PARAMETERS
from posgap.pipelines.steps import Group, tree
from posgap.verbs import pipeline_compile

OURS = f"ghcr.io/posgap/posgap-cpu:{__version__}"


# The toy's form has lists and dictionaries, which no form of posgap's own asks for.
JSON_FIELDS = "form: pool, shards, tolerations: must be JSON, because plain text could be read as YAML"


def checked(toy_file, **arguments) -> dict:
    check = Check(load(toy_file), arguments)
    assert check.warnings[0] == JSON_FIELDS
    return check.result


def test_every_step_s_requests_are_listed_in_an_order_they_can_run_in(toy_file):
    steps = checked(toy_file)["steps"]
    names = [step["step"] for step in steps]
    assert sorted(names) == ["explain", "generate", "prepare", "report", "search", "sweep", "train R1"]
    assert names.index("prepare") < names.index("train R1") < names.index("explain") < names.index("report")
    train = steps[names.index("train R1")]
    assert train == {
        "step": "train R1",
        "image": OURS,
        "pool": {"pool": "gpu-train"},
        "affinity": False,
        "tolerations": [TAINT],
        "cpu": "4",
        "memory": "32Gi",
        "accelerators": 2,
        "accelerator": "nvidia.com/gpu",
        "volumes": ["/models=models", "/dev/shm=Memory 8Gi"],
        "needs": {"secrets": ["s3-credentials"], "config maps": ["mlflow"], "claims": ["models"]},
        "retries": 2,
        "cached": True,
    }
    assert not steps[names.index("generate")]["cached"] and steps[names.index("report")]["accelerators"] == 0


def test_arguments_are_followed_to_where_they_are_used(toy_file):
    result = checked(toy_file, pool={"node": "h100"}, secret="mine", tolerations=[])
    train = next(step for step in result["steps"] if step["step"] == "train R1")
    assert train["pool"] == {"node": "h100"} and train["needs"]["secrets"] == ["mine"]
    taints = [warning for warning in result["warnings"] if "tolerates no taint" in warning]
    assert len(taints) == 5


def test_totals_say_what_must_be_there_and_who_wants_it(toy_file):
    totals = checked(toy_file)["totals"]
    assert totals["secrets"] == {"s3-credentials": ["train R1"]} and totals["claims"] == {"models": ["train R1"]}
    assert set(totals["pools"]) == {"any", "pool=gpu-train"} and set(totals["images"]) == {OURS}
    assert totals["tolerations"].keys() == {"nvidia.com/gpu:NoSchedule"}
    assert totals["pipeline root"] == {ROOT_OF_TOYS: ["all"]}
    # Either generate (4) or explain (1), after train (2); beside search (1) and two of the loop (2).
    assert list(totals["accelerators at once"]) == ["7"]


@pytest.mark.parametrize(("shards", "most"), [([1], "6"), ([], "5"), ([1, 2, 3, 4, 5, 6], "7")])
def test_a_loop_takes_as_many_copies_as_it_has_items_up_to_its_limit(toy_file, shards, most):
    totals = checked(toy_file, shards=shards)["totals"]
    assert list(totals["accelerators at once"]) == [most]


def test_the_table_has_a_row_a_step_and_ends_with_the_warnings(toy_file):
    check = Check(load(toy_file), {})
    rows = {line.split("  ")[0]: line.split() for line in table(check).splitlines()}
    assert f"\n\nwarning: {JSON_FIELDS}\n" in table(check) and table(check).endswith(check.warnings[-1])
    assert rows["step"] == ["step", "image", "pool", "cpu", "memory", "accelerators", "retries", "cache"]
    image = f"posgap-cpu:{__version__}"
    assert rows["train R1"] == ["train", "R1", image, "pool=gpu-train", "4", "32Gi", "2", "nvidia.com/gpu", "2", "yes"]
    assert rows["prepare"] == ["prepare", image, "any", "2", "4Gi", "-", "0", "yes"]
    assert rows["accelerators at once"][3] == "7"


def warnings_of(task_of) -> list[str]:
    @dsl.pipeline(name="one")
    def one():
        task_of()

    (only,) = tree(parse(compiled_text(one), "one"), {}).steps()
    return complaints(only)


def bare(image: str = OURS) -> dsl.PipelineTask:
    return step("bare", image)(n=1)


def untolerated() -> None:
    task = small(bare()).set_accelerator_type("nvidia.com/gpu").set_accelerator_limit(1)
    kubernetes.add_node_selector(task, "pool", "gpu")


def unselected() -> None:
    task = small(bare()).set_accelerator_type("nvidia.com/gpu").set_accelerator_limit(1)
    kubernetes.add_toleration(task, key="nvidia.com/gpu", operator="Exists", effect="NoSchedule")


def by_affinity() -> None:
    task = small(bare()).set_accelerator_type("nvidia.com/gpu").set_accelerator_limit(1)
    kubernetes.add_toleration(task, key="nvidia.com/gpu", operator="Exists", effect="NoSchedule")
    kubernetes.add_node_affinity(task, match_expressions=[{"key": "pool", "operator": "In", "values": ["gpu"]}])


def shared_by(gpus: int, cpu: str, memory: str) -> None:
    task = bounded(bare()).set_cpu_request(cpu).set_memory_request(memory)
    task.set_accelerator_type("nvidia.com/gpu").set_accelerator_limit(gpus)
    kubernetes.add_toleration(task, key="nvidia.com/gpu", operator="Exists", effect="NoSchedule")
    kubernetes.add_node_selector(task, "pool", "gpu")


def with_secrets(*names: str) -> None:
    task = small(bare())
    for name in names:
        kubernetes.use_secret_as_env(task, name, {"password": "MLFLOW_TRACKING_PASSWORD"})


@pytest.mark.parametrize(
    ("task_of", "warnings"),
    [
        (lambda: small(bare()), []),
        (by_affinity, []),
        (lambda: shared_by(8, "16", "128Gi"), []),
        (
            lambda: shared_by(8, "8", "64Gi"),
            [
                "requests 8 CPUs for 8 accelerators, fewer than 2 for each",
                "requests 64Gi of memory for 8 accelerators, less than 16Gi for each",
            ],
        ),
        (untolerated, ["requests an accelerator, but tolerates no taint: nodes with accelerators usually have one"]),
        (unselected, ["requests an accelerator, but selects no nodes"]),
        (lambda: bounded(bare()), ["requests no cpu and no memory"]),
        (lambda: bounded(bare()).set_cpu_request("1"), ["requests no memory"]),
        (lambda: bounded(bare()).set_cpu_limit("1").set_memory_limit("1Gi"), []),  # a limit alone is the request too
        (
            lambda: bare().set_cpu_limit("1").set_memory_limit("1Gi"),
            [
                "has no time limit: if it hangs, it holds its nodes for ever",
                "may run as root, which a namespace with restricted pods refuses",
            ],
        ),
        (
            lambda: with_secrets("posgap-mlflow", "posgap-mlflow-promote"),
            [
                "takes MLFLOW_TRACKING_PASSWORD from the secrets posgap-mlflow and posgap-mlflow-promote; "
                "Kubernetes uses the last"
            ],
        ),
        (lambda: with_secrets("posgap-mlflow-promote"), []),
        (lambda: small(bare("python")), ["image python is not pinned to a version"]),
        (lambda: small(bare("reg:5000/x/python")), ["image reg:5000/x/python is not pinned to a version"]),
        (lambda: small(bare("python:latest")), ["image python:latest is not pinned to a version"]),
        (lambda: small(bare("python:3.11")), []),
        (lambda: small(bare("python@sha256:0123")), []),
        (
            lambda: small(bare("r/posgap-cpu:0.0.1")),
            [f"image r/posgap-cpu:0.0.1 does not belong to this version, {__version__}"],
        ),
    ],
)
def test_what_looks_wrong_is_warned_of(task_of, warnings):
    assert warnings_of(task_of) == warnings


def test_a_form_that_is_hard_to_fill_in_is_warned_of():
    given, wanted = {"description": "d", "defaultValue": 1}, {"description": "d"}
    twelve = {f"option_{number:02}": given for number in range(11)} | {"data": wanted}
    assert form_complaints(twelve) == []
    assert form_complaints({"data": wanted, "epochs": given, "model": wanted, "seed": {"defaultValue": 1}}) == [
        "model: without a default, but not among the first in the alphabet's order",
        "seed: not described",
    ]
    kinds = {"name": "STRING", "options": "STRUCT", "places": "LIST", "ready": "BOOLEAN"}
    assert form_complaints({name: given | {"parameterType": kind} for name, kind in kinds.items()}) == [
        "options, places: must be JSON, because plain text could be read as YAML"
    ]
    assert form_complaints(twelve | {"more": given}) == [
        "13 fields, which are more than 12: one of YAML could take the rest"
    ]


def test_a_parameter_that_kfp_does_not_pass_into_a_group_is_found():
    # KFP compiles this, and the step cannot start: the group around it does not get `gpus`.
    @dsl.pipeline(name="lost")
    def lost(gpus: str = "2", n: int = 1):
        """Trains.

        Args:
            gpus: How many.
            n: Anything.
        """
        with dsl.If(n > 0):
            on_gpus(step("train")(n=n), 1, {"pool": "x"}, [TAINT]).set_accelerator_limit(gpus)

    with pytest.raises(PosgapError, match="lost: train: .* gpus, "):
        Check(parse(compiled_text(lost), "lost"), {})


@dsl.component(base_image=OURS, install_kfp_package=False)
def find() -> str:
    return "s3://lab/data"


@dsl.component(base_image=OURS, install_kfp_package=False)
def read(examples: dsl.Input[dsl.Dataset]):
    pass


def test_an_importer_whose_artifact_or_address_kfp_would_not_find_is_found():
    @dsl.pipeline(name="imported")
    def imported():
        found = find()
        read(examples=dsl.importer(artifact_uri=found.output, artifact_class=dsl.Dataset).output)
        with dsl.If(found.output != ""):
            inner = dsl.importer(artifact_uri=found.output, artifact_class=dsl.Dataset)
            read(examples=inner.set_display_name("data").output)

    with pytest.raises(PosgapError, match="^pipeline imported: importer: .* find, .*; importer-2: .* 'data', "):
        Check(parse(compiled_text(imported), "imported"), {})


@pytest.mark.parametrize(("name", "importers"), [("mitigation", 3), ("watch", 1)])
def test_each_importer_is_found_by_its_key_and_has_its_address_from_its_group(name, importers):
    # KFP's own driver and importer end every run otherwise.
    compiled = load(ROOT / "pipelines" / f"{name}.yaml")
    labels = {label for label, executor in compiled.executors.items() if "importer" in executor}
    components = {n for n, each in compiled.spec["components"].items() if each.get("executorLabel") in labels}
    tasks = []
    for dag in compiled.dags():
        tasks += [(key, task) for key, task in dag["tasks"].items() if task["componentRef"]["name"] in components]
    assert len(tasks) == importers
    for key, task in tasks:
        assert task["taskInfo"]["name"] == key
        assert task["inputs"]["parameters"]["uri"].keys() == {"componentInputParameter"}
    assert importer_complaints(compiled) == []


def test_the_most_at_once_is_over_all_orders_and_open_where_only_the_run_will_know():
    steps = {step.name: step for step in tree(parse(compiled_text(toy), "toy"), {}).steps()}
    train, sweep = steps["train R1"], steps["sweep"]  # of 2 and 1
    chain = Group({"a": train, "b": sweep, "c": train}, {"a": [], "b": ["a"], "c": ["b"]})
    assert max_accelerators(chain) == (2, True)
    through = Group({"a": train, "c": train}, {"a": [], "importer": ["a"], "c": ["importer"]})
    assert max_accelerators(through) == (2, True)
    beside = Group({"a": train, "b": sweep, "c": train}, {"a": [], "b": ["a"], "c": []})
    assert max_accelerators(beside) == (4, True)
    assert max_accelerators(Group({"loop": Group({"a": train}, {"a": []}, times=None)}, {"loop": []})) == (2, False)


def test_images_that_no_release_has_are_named(monkeypatch):
    ours = ["ghcr.io/posgap/posgap-cpu:1.0.dev3", "registry.example/posgap-cpu:1.0.dev3", "python:3.11"]
    monkeypatch.setattr(checks, "__version__", "1.0.dev3")
    (warning,) = image_warnings(ours)
    assert warning.startswith("no release has ghcr.io/posgap/posgap-cpu:1.0.dev3: build and push them (`make images`)")
    monkeypatch.setattr(checks, "__version__", "1.0")
    assert image_warnings(["ghcr.io/posgap/posgap-cpu:1.0"]) == []


def test_whoever_compiles_to_a_file_or_submits_is_told(capsys, tmp_path, monkeypatch, toy_file):
    monkeypatch.setattr(pipeline_compile, "pipeline", lambda name: toy)
    code, out, _ = posgap(capsys, "compile", "--out", tmp_path / "toy.yaml", "--json")
    assert code == 0 and json.loads(out)["warnings"][0] == JSON_FIELDS
    code, out, err = posgap(capsys, "compile")
    assert code == 0 and JSON_FIELDS in err and JSON_FIELDS not in out
    with served(Server()) as server:
        code, out, err = posgap(capsys, "submit", "--host", server.url, "--file", toy_file, *GIVEN)
    assert code == 0 and JSON_FIELDS in err and len(server.runs) == 1


@pytest.mark.parametrize("name", ["mitigation", "watch"])
def test_there_is_nothing_to_warn_of_in_posgap_s_own(name):
    check = Check(load(ROOT / "pipelines" / f"{name}.yaml"), {})
    assert check.warnings == image_warnings({step.image for step in check.steps})


@pytest.mark.full
def test_the_mitigation_pipeline_is_read_whole():
    compiled = load(None)
    steps = {step.step for step in Check(compiled, PARAMETERS).steps}
    importers = {name for name, executor in compiled.executors.items() if "importer" in executor}
    tasks = [task for dag in compiled.dags() for task in dag["tasks"].values()]
    labels = {name: component.get("executorLabel") for name, component in compiled.spec["components"].items()}
    run = {t["taskInfo"]["name"] for t in tasks if labels[t["componentRef"]["name"]] not in {None, *importers}}
    assert steps == run and len(steps) > 5

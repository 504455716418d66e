"""The pipeline's form is checked, and what a run needs, before anything is spent on it."""

import shutil
from pathlib import Path
from textwrap import indent

import boto3
import pytest
from examples import qa_example
from transformers import GPT2Config, GPT2LMHeadModel

from posgap.cli.main import main
from posgap.data.reading import write_examples
from posgap.demo import tiny_model
from posgap.foundation.errors import PosgapError, Rejection
from posgap.foundation.fields import settings_text
from posgap.foundation.files import read_json
from posgap.foundation.locations import split_uri
from posgap.gating.demands import Guard, Policy
from posgap.kubeflow import prerequisites
from posgap.kubeflow.form import as_config, candidates, complaints, recipe, remedies, settings, shards
from posgap.kubeflow.training_pool import VARIABLE, amount, requests, require_room
from posgap.models.loading import load_tokenizer, save_model
from posgap.options.cluster import ClusterConfig, PoolConfig
from posgap.options.preflight import PreflightConfig
from posgap.storage.inputs import read_manifest
from posgap.tasks.examples import Document, Example
from posgap.tasks.registry import TASKS
from posgap.tracking import registry
from posgap.verbs.preflight import PREFLIGHT_FILE, preflight


def read_plan(folder):
    return read_json(Path(folder) / PREFLIGHT_FILE)


def refused(form, **more) -> str:
    with pytest.raises(Rejection) as rejected:
        preflight(form.model_copy(update=more))
    return str(rejected.value)


def test_a_form_that_is_right_becomes_what_each_stage_is_given(form):
    values = {"methods": "r1+lpes", "shards": 4, "max_gap": 12.0}
    values["settings"] = "shards: 2\nseed: 3\napproval: true\ndtype: float32\nepochs: 1\nlimit: 9\nsweep: {limit: 5}\n"
    plan = read_plan(preflight(form.model_copy(update=values)))
    assert plan["approval"] and plan["version"]["note"] == "taken whether it is new or not"
    assert [plan["version"][name] for name in ("uri", "eval_uri")] == [form.data_train, form.data_eval]
    said = {"shards": 2, "seed": 3, "approval": True, "dtype": "float32", "epochs": 1, "limit": 9, "sweep.limit": 5}
    assert plan["given"] == said
    assert (
        plan["trained"] == ["r1"]
        and plan["mitigated"]
        and not plan["layered"]
        and plan["parts"] == ["1/2", "2/2"]
        and not plan["wrong"]
    )
    prompts = {"task": "kv", "n_docs": 4, "seed": 3}
    assert plan["settings"] == {
        "validate": {"task": "kv", "n_docs": 4, "limit": 9},
        "sweep": prompts | {"backend": "transformers", "dtype": "float32", "limit": 5, "guards": "{longer: {}}"},
        "teacher": prompts | {"backend": "transformers", "dtype": "float32", "limit": 9},
        "distill": {"task": "kv", "seed": 3, "limit": 9, "dtype": "float32", "epochs": 1},
        "train_job": {
            "gpus_per_node": "1",
            "distill": {"task": "kv", "seed": 3, "limit": 9, "dtype": "float32", "epochs": 1},
        },
        "mitigate": prompts | {"dtype": "float32", "limit": 9, "methods": ["lpes"]},
        "gate": {"max_gap": 12.0, "candidates": 2, "guards": "{longer: {}}"},
    }
    assert as_config("sweep", plan["settings"]["sweep"]).limit == 5


def test_what_the_policy_of_the_name_forbids_is_refused_before_the_training(form):
    """Seen on a cluster: the gate refused it, once the model was trained."""
    registry.set_policy(form.registered_name, Policy(min_mean=3).model_dump_json())
    assert "`min_mean` 0.0" in refused(form, settings="{min_mean: 0}")
    for allowed in ("{}", "{min_mean: 3}"):
        assert not read_plan(preflight(form.model_copy(update={"settings": allowed})))["wrong"]


def test_the_policy_of_the_name_decides_what_its_guards_are(form):
    policy = Policy(guards={"longer": {"n_docs": 9, "tolerance": 5}})
    registry.set_policy(form.registered_name, policy.model_dump_json())
    plan = read_plan(preflight(form.model_copy(update={"guards": "{longer: {tolerance: 90}, wide: {n_docs: 6}}"})))
    asked = as_config("sweep", plan["settings"]["sweep"]).guards
    assert asked == {"longer": policy.guards["longer"], "wide": Guard(n_docs=6)}
    assert "guards" not in plan["settings"]["gate"]
    assert "longer.tolerance: " in refused(form, guards="{longer: {tolerance: -1}}", registered_name="other")


@pytest.mark.parametrize("task", TASKS.names())
def test_the_form_takes_every_task(form, task, tmp_path):
    documents = [Document(title=f"t{i}", text=f"x{i}") for i in range(12)]
    n_gold = TASKS[task].n_gold
    question = "q"
    if task == "kv":  # whose question is the key of a record
        documents[0] = Document(title=question, text="x0")
    example = Example(
        id="e", question=question, answers=["x0"], gold=documents[:n_gold], distractors=documents[n_gold:]
    )
    for name in ("train", "eval"):
        write_examples(tmp_path / f"{name}.jsonl", [example])
    methods = "sft" if TASKS[task].slot_names else "r1" if n_gold == 1 else "r2"
    more = {"max_new_tokens": 8} | ({} if n_gold == 1 else {"advantageous": "+".join(map(str, range(1, n_gold + 1)))})
    values = {"task": task, "n_docs": 12, "methods": methods, "settings": settings_text(more)}
    plan = read_plan(preflight(form.model_copy(update=values)))
    assert not plan["wrong"] and plan["settings"]["sweep"]["task"] == task


OWN = """name: own
template: "Find it.\\n\\n{documents}\\n\\nWhere is {question}?\\nAnswer:"
metric: em
"""


def test_the_form_takes_a_task_of_ones_own_by_its_file_and_in_its_settings(form, tmp_path):
    """Each stage is given what the file says, since no step of a cluster has the file."""
    (tmp_path / "own.yaml").write_text(OWN)
    write_examples(tmp_path / "train.jsonl", [qa_example(i) for i in range(3)])
    write_examples(tmp_path / "eval.jsonl", [qa_example(i) for i in range(3, 6)])
    by_file = {**form.model_dump(), "task": str(tmp_path / "own.yaml")}
    plans = [read_plan(preflight(PreflightConfig(**by_file)))]
    plans.append(read_plan(preflight(form.model_copy(update={"settings": f"task:\n{indent(OWN, '  ')}"}))))
    assert plans[0]["recipe"] == plans[1]["recipe"] and not plans[0]["wrong"]
    for stage in ("validate", "sweep", "teacher", "distill", "mitigate"):
        assert TASKS[plans[1]["settings"][stage]["task"]].name == "own"
    wrong = form.model_copy(update={"settings": "task: {name: own, colour: red}"})
    assert next(complaints(wrong)).startswith("settings: task: the task: a task has no field `colour`; it may have")


def test_all_that_is_wrong_is_said_at_once(form, tmp_path):
    complaint = refused(
        form,
        task="kw",
        methods="r1+r3",
        inference_backend="tgi",
        max_gap=101.0,
        shards=9,
        data_eval=str(tmp_path / "none.jsonl"),
        gpus_train="many",
        settings="epocs: 2\ngate.seed: 1\nlearning_rate: -1e-5\nbase_model: m\nsweep.model: m\nonly_new: perhaps",
    )
    assert complaint.startswith(
        "12 things to correct before the run can start: (1) methods: unknown method 'r3': choose from "
    )
    for fault in (
        "settings: epocs: no stage has such a parameter; did you mean epochs?",
        "settings: gate.seed: is set by the form or the pipeline, and cannot be set here",
        f"task: unknown task 'kw': choose {TASKS.names_as_text()}, got 'kw'",
        "inference_backend: unknown backend 'tgi': choose auto, transformers or vllm, got 'tgi'",
        "max_gap: Input should be less than or equal to 100, got 101.0",
        "settings: learning_rate: Input should be greater than or equal to 0, got -1e-05",
        "settings: base_model: is a field of the form; fill it in there",
        "settings: sweep.model: is set by the form or the pipeline, and cannot be set here",
        "settings: only_new: Input should be a valid boolean, unable to interpret input, got 'perhaps'",
        "gpus_train: String should match pattern",
        f"{tmp_path}/none.jsonl: no data version",
    ):
        assert fault in complaint
    assert "\n" not in complaint
    assert len(read_plan(tmp_path / "out.rejected")["wrong"]) == 12 and not (tmp_path / "out").exists()


def test_the_verb_ends_with_code_2_and_one_line(form, tmp_path, capsys):
    options = ["--data-train", form.data_train, "--data-eval", form.data_train, "--base-model", form.base_model]
    options += ["--n-docs", "4"]
    with pytest.raises(SystemExit) as stopped:
        main(["preflight", *options, "--settings", '{"k": 0.5}', "--out", str(tmp_path / "out")])
    assert stopped.value.code == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("posgap: error: 2 things to correct before the run can start: (1) settings: k: ")
    assert line.endswith(f"(2) {form.data_train}: is also data_train; evaluate on other examples")


def test_what_was_found_before_is_not_taken_for_now(form, tmp_path):
    preflight(form)
    (tmp_path / "eval.jsonl").unlink()
    assert f"{tmp_path}/eval.jsonl: no data version" in refused(form)


def test_scaling_wants_rotary_positions_and_examples_of_the_task(form, tmp_path):
    complaint = refused(form, methods="lpes", task="multihop-cot")
    assert complaint.startswith("1 thing") and "example kv-0: 1 gold documents for 2 position(s)" in complaint
    tokenizer = load_tokenizer(form.base_model)
    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=len(tokenizer)))
    save_model(model, tokenizer, tmp_path / "gpt2")
    for methods, wants in (("lpes", True), ("r1 then lpes+ntk", True), ("r1", False)):
        complaint = refused(form, methods=methods, base_model=str(tmp_path / "gpt2"), shards=99)
        assert (f"method lpes: {tmp_path / 'gpt2'}: no rotary position embedding to scale" in complaint) == wants


def test_a_mitigation_on_top_of_what_is_trained_has_settings_of_its_own(form):
    values = {
        "methods": "r1+lpes  then yarn+linear",
        "settings": settings_text({"budget": "10m", "on_top.budget": "5m"}),
    }
    plan = read_plan(preflight(form.model_copy(update=values)))
    assert plan["trained"] == ["r1"] and plan["mitigated"] and plan["layered"]
    assert plan["settings"]["gate"]["candidates"] == 3  # one more on top of what r1 trains
    base, on_top = plan["settings"]["mitigate"], plan["settings"]["on_top"]
    assert base["methods"] == ["lpes"]
    assert on_top == base | {"methods": ["yarn", "linear"], "budget": "5m"} and base["budget"] == "10m"
    recipes = {
        recipe(form.model_copy(update={"methods": methods})) for methods in ("r1", "r1 then lpes", "r1 then yarn")
    }
    assert len(recipes) == 3


def test_mitigations_are_those_that_the_backend_serves():
    assert remedies("r1+yarn+lpes", "vllm") == ["yarn", "lpes"]
    assert remedies("mitigate", "vllm") == ["linear", "ntk", "yarn", "lpes"]  # what vLLM and its plugin load
    assert {"ms-poe", *remedies("mitigate", "vllm")} == set(remedies("mitigate", "transformers"))
    assert "permutation" not in remedies("mitigate", "transformers")  # no model folder carries it
    with pytest.raises(ValueError, match="methods: vllm .* ms-poe; .* linear, ntk, yarn, lpes"):
        remedies("r1+ms-poe", "vllm")
    with pytest.raises(ValueError, match="methods: mitigate .* yarn"):
        candidates("mitigate+yarn")
    with pytest.raises(ValueError, match="methods: vllm .* ms-poe; .* linear, ntk, yarn, lpes"):
        remedies("r1 then ms-poe", "vllm", on_top=True)
    assert remedies("r1+lpes then mitigate", "vllm", on_top=True) == remedies("mitigate", "vllm")


@pytest.mark.parametrize(
    ("methods", "shards", "advice"),
    [
        ("r1", 40, "give at most 33 shards, or fewer methods"),
        ("r1+sft+seqkd then mitigate", 5, "give at most 4 shards, or fewer methods"),
        ("r1+sft+seqkd+r2 then mitigate", 4, "give at most 2 shards, or fewer methods"),
    ],
)
def test_a_run_is_bounded_by_what_argo_keeps_of_it(form, methods, shards, advice):
    complaint = refused(form, methods=methods, n_docs=40, shards=shards)
    assert f"methods, shards: {methods} in {shards} parts is more than the 1 MiB" in complaint and advice in complaint


def test_methods_that_fit_in_no_number_of_parts_are_too_many(form, monkeypatch):
    monkeypatch.setattr(prerequisites, "_MAX_WORKFLOW", 500_000)
    assert "that Argo keeps of a run; give fewer methods" in refused(form, methods="r1+sft+seqkd", shards=2)


def test_shards_are_at_most_as_many_as_placements(form):
    assert "shards: must be from 1 to 4, the number of placements; got 5" in refused(form, shards=5)
    assert "shards: must be from 1 to 2" in refused(form, shards=3, settings=settings_text({"sweep.positions": "1,4"}))


def test_prompts_that_are_too_long_or_have_too_few_documents_are_refused(form):
    assert "tokens and 600 new ones exceed the model's context of" in refused(
        form, settings=settings_text({"max_new_tokens": 600})
    )
    assert "documents" in refused(form, n_docs=500)
    assert "position 9: must lie in 1..4" in refused(form, settings=settings_text({"advantageous": "9"}))


def test_a_model_without_weights_or_with_another_s_tokenizer_is_refused(form, model_folder, tmp_path):
    shutil.copytree(model_folder, tmp_path / "empty", ignore=shutil.ignore_patterns("*.safetensors"))
    assert "no weights in safetensors" in refused(form, base_model=str(tmp_path / "empty"))
    tokenizer = tiny_model.tokenizer()
    tokenizer.add_tokens([f"more-{i}" for i in range(60)])
    save_model(tiny_model.untrained(0), tokenizer, tmp_path / "other")
    assert "its tokenizer has the id 100" in refused(form, base_model=str(tmp_path / "other"))


def test_the_registry_must_answer(form, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    assert "server http://127.0.0.1:9 cannot be reached" in refused(form)
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert "MLFLOW_TRACKING_URI is not set in this pod" in refused(form)


def test_a_server_that_does_not_answer_is_worth_another_try(form, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    for methods, may_pass in (("r1", True), ("r9", False)):
        with pytest.raises(Rejection) as rejected:
            preflight(form.model_copy(update={"methods": methods}))
        assert rejected.value.may_pass == may_pass


def test_data_and_model_in_s3_are_looked_at_without_the_weights(form, bucket, model_folder, tmp_path, s3_calls):
    name, _ = split_uri(bucket)
    client = boto3.client("s3")
    for file in model_folder.iterdir():
        client.upload_file(str(file), name, f"model/{file.name}")
    for day in ("2026-11-13", "2026-11-20"):
        client.upload_file(form.data_train, name, f"data/train-{day}.jsonl")
    s3_calls.clear()
    there = {"data_train": f"{bucket}/data/train-", "base_model": f"{bucket}/model/"}
    results = read_plan(preflight(form.model_copy(update=there)))["found"]
    assert results["training examples"] == f"{bucket}/data/train-2026-11-20.jsonl"
    assert results["model"].startswith("llama, 2 layers")
    assert not [key for key in s3_calls.keys("GetObject") if key.endswith((".safetensors", ".jsonl"))]
    assert f"{bucket}/nothing" in refused(form, data_eval=f"{bucket}/nothing")


def test_methods_and_parts():
    assert (
        candidates(" r1 + lpes+yarn") == ["r1", "mitigate"] == candidates("r1+mitigate")
        and shards(1) == [""]
        and shards(3) == ["1/3", "2/3", "3/3"]
    )
    for methods in ("", "r1+", "r1+r1", "lpes;r1"):
        with pytest.raises(ValueError, match="^methods: "):
            candidates(methods)


@pytest.mark.parametrize(
    "methods, complaint",
    [
        ("lpes then yarn", "methods: 'lpes' trains nothing; before then name a method of training, like r1 then lpes"),
        ("mitigate then yarn", "methods: 'mitigate' trains nothing; before then name a method of training"),
        ("r1 then sft", "methods: sft trains; after then name mitigations, or mitigate"),
        ("r1 then lpes then yarn", "has `then` twice; write it once"),
        ("r1 then lpes+lpes", "methods: 'lpes+lpes' names a method twice"),
        ("r1 then mitigate+yarn", "methods: mitigate already tries yarn; name only one"),
        ("r1 then", "methods: unknown method 'r1 then': choose from"),
        ("r1 then yran", "methods: unknown method 'yran': choose from"),
        ("r1 then ms-poe", "methods: vllm does not serve ms-poe"),
    ],
)
def test_what_then_cannot_join_is_one_line(form, methods, complaint):
    complaints_on_it = [
        each
        for each in complaints(form.model_copy(update={"methods": methods, "inference_backend": "vllm"}))
        if each.startswith("methods: ")
    ]
    assert len(complaints_on_it) == 1 and complaint in complaints_on_it[0]


def test_a_trainjob_wants_a_place_in_s3(form):
    job = form.model_copy(
        update={"trainer": True, "gpus_train": "8", "settings": settings_text({"nodes": 2, "work": "/tmp/work"})}
    )
    assert list(complaints(form.model_copy(update={"settings": settings_text({"work": "/tmp/work"})}))) == []
    assert [complaint.partition(", got")[0] for complaint in complaints(job)] == [
        "settings: work: must be in S3, like s3://bucket/work: the machines of the job share no disk"
    ]
    right = job.model_copy(update={"settings": settings_text({"nodes": 2, "work": "s3://lab/work"})})
    config = as_config("train_job", settings(right)["train_job"])
    assert not list(complaints(right)) and (config.nodes, config.gpus_per_node) == (2, 8)


def test_nothing_but_its_own_parameters_reaches_a_stage(form):
    assert settings(form)["gate"].keys() == {"max_gap", "candidates", "guards"}
    assert list(complaints(form.model_copy(update={"settings": settings_text({"gate.task": "qa"})}))) == [
        "settings: gate.task: is set by the form or the pipeline, and cannot be set here"
    ]


def test_r1_is_refused_where_answers_are_letters(form):
    complaint = next(complaints(form.model_copy(update={"task": "judge", "methods": "sft+r1"})))
    assert complaint.startswith("method: r1 ") and "judge" in complaint


def test_a_refusal_is_in_mlflow_for_the_report(form, tmp_path):
    import mlflow

    refused(form, task="kw")
    (run,) = mlflow.search_runs(search_all_experiments=True, output_format="list")
    assert run.info.status == "FAILED" and "unknown task 'kw'" in run.data.tags["posgap.error"]
    assert read_manifest(tmp_path / "out") == {}


def pooled(monkeypatch, **changes) -> None:
    """The training pool is known, as in a pipeline's step."""
    pool = ClusterConfig().train.model_copy(update=changes)
    monkeypatch.setenv(VARIABLE, pool.model_dump_json(exclude_defaults=True))


def test_training_asks_for_cpus_and_memory_by_its_gpus(form, monkeypatch):
    assert (requests(form), settings(form)["train_job"]["gpus_per_node"]) == ({"cpu": "", "memory": ""}, "1")
    pooled(monkeypatch)
    plan = read_plan(preflight(form.model_copy(update={"gpus_train": "8"})))
    assert (plan["train_cpu"], plan["train_memory"]) == ("64", "512Gi")
    assert plan["found"]["training"] == "0.0 GB of memory for each GPU, 0.0 GB of disk"
    job = settings(form.model_copy(update={"gpus_train": "8"}))["train_job"]
    assert (job["gpus_per_node"], job["cpus_per_node"], job["memory_per_node"]) == ("8", 64, "512Gi")
    as_config("train_job", job | {"work": "s3://lab/work"})


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"memory": "1k"}, "training takes 0 GB for each GPU, and its step has 1k; give `train` more `memory`"),
        ({"scratch": "1k"}, "training takes 0 GB of disk, and its step has 1k; give `train` more `scratch`"),
    ],
)
def test_a_model_that_the_training_pool_has_no_room_for_is_refused(form, monkeypatch, changes, complaint):
    pooled(monkeypatch, **changes)
    assert complaint in refused(form)
    assert "training" not in read_plan(preflight(form.model_copy(update={"methods": "lpes"})))["found"]


def test_training_needs_room_for_every_process_and_two_checkpoints():
    pool, eight = ClusterConfig().train, 8_030_000_000
    assert require_room("m", eight, 20_000_000, pool) == "32.1 GB of memory for each GPU, 32.6 GB of disk"
    with pytest.raises(PosgapError, match="^m: .* 225 GB .* 200Gi"):
        require_room("m", eight, eight, pool)
    with pytest.raises(PosgapError, match="^m: .* 282 GB .* 64Gi"):
        require_room("m", 70_600_000_000, 0, pool)


@pytest.mark.parametrize(
    ("quantity", "number"), [("8", 8), ("500m", 0.5), ("64Gi", 64 * 2**30), ("3k", 3000), ("2Ti", 2**41)]
)
def test_quantities_are_those_of_kubernetes(quantity, number):
    assert amount(quantity) == number
    doubled = PoolConfig(nodes={}, cpu=quantity, memory=quantity).times(2)
    assert amount(doubled.cpu) == amount(doubled.memory) == 2 * number

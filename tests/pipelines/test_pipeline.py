"""The mitigation pipeline on KFP's local runner: which steps of each branch run, and that it always reports."""

import json
import logging
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import pytest
import torch
from examples import kv_example
from mlflow import MlflowClient

from posgap.data.reading import write_examples
from posgap.demo import tiny_model
from posgap.foundation.errors import PosgapError
from posgap.foundation.files import digest_path, read_json
from posgap.gating.verdict import read_verdict
from posgap.measurement.evidence import Evidence
from posgap.measurement.sweeps import read_sweep
from posgap.mitigations.search.report import read_mitigate
from posgap.models import CONFIG_KEY
from posgap.models.closing import read_config
from posgap.models.loading import save_model
from posgap.pipelines.local import run_locally
from posgap.pipelines.mitigation import mitigation
from posgap.tracking.candidates import best_candidate

pytestmark = pytest.mark.full
PARAMETERS = {
    "methods": "r1+lpes then linear",
    "task": "kv",
    "n_docs": 4,
    "inference_backend": "transformers",
    "shards": 2,
    "max_gap": 100.0,
    "registered_name": "tiny",
    "settings": {
        **{"max_new_tokens": 1, "advantageous": "1", "keep_incorrect": True},
        **{"k": 1, "epochs": 1, "batch_size": 16, "learning_rate": 1e-4},
        **{"mean_tolerance": 100, "advantageous_tolerance": 100, "min_mean": 0, "least_examples": 1},
        **{"max_unclean": 100},  # an untrained model writes up to the limit
        "max_unanswered": 100,  # some of its tokens are no text
    },
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs the pipeline on a model that answers by chance; steps that ran before come from the cache."""
    work = tmp_path_factory.mktemp("pipeline")
    model = tiny_model.untrained(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4)  # else it gives one answer wherever the document stands
    save_model(model, tiny_model.tokenizer(), work / "model")
    write_examples(work / "train.jsonl", [kv_example(i, 6) for i in range(24)])
    write_examples(work / "eval.jsonl", [kv_example(100 + i, 7) for i in range(24)])
    places = {f"data_{name}": str(work / f"{name}.jsonl") for name in ("train", "eval")}
    places["base_model"] = str(work / "model")
    store = f"sqlite:///{work}/mlflow.db"
    count = 0

    def run(settings=None, **more):
        nonlocal count
        count += 1
        chosen = PARAMETERS["settings"] | (settings or {})
        values = PARAMETERS | places | more | {"settings": chosen}
        root, log = work / f"run-{count}", work / f"{count}.log"
        error = ""
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("MLFLOW_TRACKING_URI", store)
            before = (print, logging.root.handlers[:])
            try:
                run_locally(mitigation, values, root=root, cache=work / "cache", log=log)
            except PosgapError as failed:
                error = str(failed)
            assert before == (print, logging.root.handlers), "KFP's print and log handlers must not outlive the run"
        (folder,) = root.iterdir()
        return SimpleNamespace(
            folder=folder,
            steps={str(path.parent.relative_to(folder)) for path in folder.rglob("executor_output.json")},
            report=read_json(folder / "report" / "out" / "report.json"),
            log=log.read_text(),
            error=error,
        )

    return SimpleNamespace(run=run, client=MlflowClient(store), first=run())


DISTILLED, PART = "for-loop-7-iteration-0", "iteration"


def test_every_branch_runs_with_its_sweep_in_parts(runs):
    base = {"preflight", "validate", "validate-2", "merge", "champion", "report"}
    base |= {f"for-loop-3-{PART}-{i}/sweep" for i in (0, 1)}
    distilled = {"teacher", "distill", "merge-3", "gate-2", "promote-2"}
    distilled |= {f"for-loop-8-{PART}-{i}/sweep-3" for i in (0, 1)}
    mitigated = {"mitigate", "apply", "merge-2", "gate", "promote"}
    mitigated |= {f"for-loop-5-{PART}-{i}/sweep-2" for i in (0, 1)}
    distilled |= {"mitigate-2", "apply-2", "merge-4", "gate-3", "promote-3"}  # on top of what was trained
    distilled |= {f"for-loop-11-{PART}-{i}/sweep-4" for i in (0, 1)}
    expected = base | {f"{DISTILLED}/{step}" for step in distilled} | mitigated
    assert runs.first.error == "" and runs.first.steps == expected
    parts = [read_sweep(runs.first.folder / f"for-loop-3-{PART}-{i}/sweep/out").positions for i in (0, 1)]
    assert parts == [[1, 2], [3, 4]] and read_sweep(runs.first.folder / "merge/out").positions == [1, 2, 3, 4]


def test_what_the_run_page_shows(runs):
    def shown(step):
        written = json.loads((runs.first.folder / step / "executor_output.json").read_text())["artifacts"]
        return {name: outputs["artifacts"][0] for name, outputs in written.items()}

    curve = shown(f"{DISTILLED}/merge-3")
    figures = curve["metrics"]["metadata"]
    outcomes = {"unanswered", "unanswered_worst", "cut", "echo", "unclean_worst"}
    assert figures.keys() == {"mean", "gap", "gap_ci95_low", "gap_ci95_high", "worst", "flatness_p"} | outcomes
    assert (runs.first.folder / DISTILLED / "merge-3/curve").read_text().startswith("<!doctype html>")
    assert curve["out"]["metadata"]["label"] == "r1"
    model = shown(f"{DISTILLED}/distill")["out"]["metadata"]
    assert (model["method"], model["framework"], model["stage"]) == ("r1", "transformers", "distill")
    applied = runs.first.folder / "apply/out"
    assert shown("apply")["out"]["metadata"]["method"] == "mitigate"
    assert read_json(applied / "mitigation.json")["name"] == "lpes"
    config = read_config(applied)  # where all factors are alike, transformers' own linear scaling
    assert CONFIG_KEY in config or config["rope_parameters"]["rope_type"] == "linear"
    assert "What to change" in (runs.first.folder / "mitigate/page").read_text()
    assert (runs.first.folder / "gate/rules").read_text().startswith("# Admitted\n")
    assert shown("gate")["metrics"]["metadata"]["passed"] == 1
    assert (runs.first.folder / DISTILLED / "gate-2/page").stat().st_size > 1000
    assert "- **model**: llama, 2 layers" in (runs.first.folder / "preflight/checks").read_text()
    assert (runs.first.folder / "report/summary").read_text().startswith("# The run succeeded\n")


def test_a_mitigation_on_top_is_searched_and_put_in_force_in_the_trained_model(runs):
    trained, layered = (runs.first.folder / DISTILLED / step / "out" for step in ("distill", "apply-2"))
    found = read_mitigate(runs.first.folder / DISTILLED / "mitigate-2/out")
    assert found.model_digest == read_json(layered / "mitigation.json")["model_digest"] == digest_path(trained)
    assert [each.name for each in found.found] == ["linear"]
    weights = [(folder / "model.safetensors").read_bytes() for folder in (trained, layered)]
    assert weights[0] == weights[1] and read_json(layered / "config.json") != read_json(trained / "config.json")
    promoted = read_json(runs.first.folder / DISTILLED / "promote-3/out/promotion.json")
    assert runs.client.get_model_version("tiny", promoted["version"]).tags["method"] == "r1 then mitigate"


def test_the_better_candidate_is_the_champion_and_the_report_says_so(runs):
    report = runs.first.report
    sweeps = {"r1": f"{DISTILLED}/merge-3/out", "mitigate": "merge-2/out"}
    sweeps["r1 then mitigate"] = f"{DISTILLED}/merge-4/out"
    assert report["status"] == "succeeded"
    assert {c["label"]: c["gate"] for c in report["candidates"]} == dict.fromkeys(sweeps, "admitted")
    candidates = {method: Evidence(runs.first.folder / place) for method, place in sweeps.items()}
    assert report["champion"]["method"] == best_candidate(candidates) and report["champion"]["of_this_run"]


def test_with_nothing_new_it_ends_before_anything_is_spent(runs):
    run = runs.run(only_new=True)
    assert run.error == "" and run.steps == {"preflight", "report"}
    assert run.report["status"] == "succeeded" and run.report["skipped"].startswith("skipped: tiny version ")


def test_a_refusing_gate_stops_promotion_and_not_the_report(runs):
    before = runs.client.get_model_version_by_alias("tiny", "champion").version
    run = runs.run(max_gap=0.0)
    # The champion is new, too, and its sweep is at hand.
    gates = f"{DISTILLED}/gate-2", "gate", f"{DISTILLED}/gate-3"
    assert run.steps == {"preflight", "champion", "report", *gates}
    assert "using the sweep with which the champion was promoted" in run.log
    verdicts = [read_verdict(run.folder / step / "out") for step in gates]
    assert not any(verdict.passed for verdict in verdicts)
    assert all(verdict.evidence["champion"].files for verdict in verdicts)
    assert run.error == "" and run.report["status"] == "succeeded"
    assert [c["gate"] for c in run.report["candidates"]] == ["not enough evidence"] * 3
    assert not run.report["champion"]["of_this_run"]
    assert runs.client.get_model_version_by_alias("tiny", "champion").version == before


def test_a_failing_step_ends_its_branch_and_the_webhook_is_told(runs, monkeypatch):
    posted = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self):
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Hook)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("POSGAP_WEBHOOK_URL", f"http://127.0.0.1:{server.server_port}/hook")
    run = runs.run({"keep_incorrect": False})
    server.shutdown()
    server.server_close()
    why, end = "no response at position 1 of 4 is correct", "; there is nothing to distil"
    assert why in run.error and f"{end} (the whole log is in " in run.error
    # The other branch goes on, from the cache.
    always = {"preflight", "champion", "report"}  # with another recipe it is looked for anew
    assert run.steps == always | {"gate", "promote"}
    (failed,) = run.report["failed"]
    assert failed["step"] == "teacher" and why in failed["error"] and failed["error"].endswith(end)
    assert posted == [run.report]


def test_a_form_with_mistakes_ends_at_the_start_with_one_line(runs):
    run = runs.run(methods="r1+r9", task="kw")
    assert run.steps == {"report"}
    reason = run.error.partition(" (the whole log")[0]
    assert reason.startswith(
        "2 things to correct before the run can start: (1) methods: unknown method 'r9': choose from "
    )
    assert "(2) task: unknown task 'kw': choose kv, qa," in reason
    assert run.report["status"] == "failed" and run.report["failed"] == [{"step": "preflight", "error": reason}]

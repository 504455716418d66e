"""`posgap check`: a sweep, a verdict without a base, and what CI shows of it."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from endpoint import RECORD, Endpoint, retrieve, served
from places import ROOT
from refusals import refuses
from written_sweeps import write_sweep

from posgap.cli.main import main
from posgap.data.made import made_examples
from posgap.foundation.errors import Malformed, PosgapError
from posgap.foundation.files import read_json
from posgap.foundation.printing import printable
from posgap.gating.decision_page import decision_page
from posgap.gating.demands import Policy
from posgap.gating.replay import replay_verdict
from posgap.gating.rules import CHECK_RULES, GATE_RULES
from posgap.gating.verdict import Verdict, judge
from posgap.measurement.sweeps import Sweep, read_sweep
from posgap.measurement.text_curve import text_curve
from posgap.tasks.registry import TASKS
from posgap.verbs.check import terminal_text

HOSTILE = 'm"]]></testsuite>\x1b[2J\x08<script>|`` x ```\n# Admitted\n@everyone'


@pytest.fixture(autouse=True)
def outside_of_ci(monkeypatch):
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("POSGAP_RETRIES", "0")


def check(endpoint, out, *options) -> int:
    words = ["check", "--base-url", endpoint.url, "--model", "served", "--out", str(out)]
    words += ["--n-docs", "5", "--n-examples", "100", *map(str, options)]
    with pytest.raises(SystemExit) as stopped:
        main(words)
    return stopped.value.code


def only_at_the_ends(prompt: str) -> str:
    """Answers like a model that does not read the middle."""
    records, _, question = prompt.rpartition("Key:")
    keys = [key for key, _ in RECORD.findall(records)]
    at = keys.index(re.search(r'"([\w-]+)"', question)[1])
    return retrieve(prompt) if at in (0, len(keys) - 1) else "-"


def checked(tmp_path, probability, **options) -> tuple[Verdict, Sweep]:
    folder = write_sweep(tmp_path / f"sweep-{len(list(tmp_path.iterdir()))}", probability)
    return judge(folder, None, None, Policy(**options)), read_sweep(folder)


@pytest.mark.full
def test_a_flat_endpoint_is_admitted_and_one_that_skips_the_middle_refused(tmp_path, capsys):
    with served(Endpoint()) as endpoint:
        assert check(endpoint, tmp_path / "flat") == 0
        shown = capsys.readouterr().out
    assert "5 " + "█" * 40 + " 100.0" in shown and shown.splitlines()[-2] == "admitted: served"
    with served(Endpoint(only_at_the_ends)) as endpoint:
        assert check(endpoint, tmp_path / "biased") == 3
    shown = capsys.readouterr()
    assert shown.err.splitlines()[-1].startswith("posgap: the gate refused served: gap 100.0 (")
    verdict = read_json(tmp_path / "biased" / "check.json")
    assert verdict["outcome"] == "refused" and list(verdict["evidence"]) == ["candidate"]
    assert [rule["name"] for rule in verdict["rules"]] == ["gap", "useful", "answered", "clean"]
    assert read_sweep(tmp_path / "biased" / "sweep").accuracy == [100, 0, 0, 0, 100]
    with refuses(PosgapError, tmp_path / "biased" / "sweep", at="biased"):
        read_sweep(tmp_path / "biased")


def test_few_examples_are_no_evidence(tmp_path, capsys):
    with served(Endpoint()) as endpoint:
        assert check(endpoint, tmp_path / "out", "--limit", 1) == 7
    assert capsys.readouterr().err.strip().endswith("1 example, and the gate asks for 100; sweep at least 100 examples")
    assert "served was not admitted" in (tmp_path / "out" / "check.html").read_text()


def test_a_policy_file_decides_alone(tmp_path, capsys):
    (policy := tmp_path / "policy.yaml").write_text("max_gap: 5\nleast_examples: 3\n")
    with served(Endpoint()) as endpoint:
        assert check(endpoint, tmp_path / "out", "--limit", 3, "--policy", policy) == 7
        assert "threshold 5 (wants " in capsys.readouterr().err.splitlines()[-1]
        asked = len(endpoint.bodies)
        assert check(endpoint, tmp_path / "out", "--limit", 3, "--policy", policy, "--max-gap", 60) == 2
        assert len(endpoint.bodies) == asked and not (tmp_path / "out" / "check.json").exists()


def test_a_verdict_of_a_check_is_no_verdict_of_a_gate(tmp_path):
    """Or it could be promoted, though nothing says what the model lost."""
    with served(Endpoint()) as endpoint:
        check(endpoint, tmp_path / "out")
    (tmp_path / "gate").mkdir()
    (tmp_path / "gate" / "gate.json").write_bytes((tmp_path / "out" / "check.json").read_bytes())
    (tmp_path / "out" / "sweep").rename(tmp_path / "gate" / "candidate")
    with refuses(Malformed, "base", at="gate/gate.json"):
        replay_verdict(tmp_path / "gate")


@pytest.mark.parametrize(
    ("ci", "options", "asked_again"),
    [("", [], False), ("true", [], True), ("false", [], False), ("", ["--force"], True)],
)
def test_in_ci_an_endpoint_is_asked_again(tmp_path, monkeypatch, ci, options, asked_again):
    monkeypatch.setenv("CI", ci)
    with served(Endpoint()) as endpoint:
        first = check(endpoint, tmp_path / "out", "--limit", 2)
        asked = len(endpoint.bodies)
        assert (check(endpoint, tmp_path / "out", "--limit", 2, *options), asked) == (first, 10)
        assert len(endpoint.bodies) == asked * (2 if asked_again else 1)


@pytest.mark.full
def test_an_endpoint_that_dies_leaves_no_old_verdict(tmp_path, monkeypatch, capsys):
    with served(Endpoint()) as endpoint:
        assert check(endpoint, tmp_path / "out") == 0
    endpoint.seen.clear()
    endpoint.misbehave = lambda prompt, times: (503, {}, "dead") if len(endpoint.seen) > 250 else None
    monkeypatch.setenv("CI", "true")
    with served(endpoint):
        assert check(endpoint, tmp_path / "out") == 2
        shown = capsys.readouterr().err
        # A prompt that fails while others are still answered is tried once more.
        assert re.search(r"gave up after [12] tries: 503", shown)
        assert not (tmp_path / "out" / "check.json").exists()
        assert "a check starts again; without both it resumes" in shown.splitlines()[-1]
        endpoint.misbehave, asked = (lambda prompt, times: None), len(endpoint.bodies)
        monkeypatch.setenv("CI", "")
        assert check(endpoint, tmp_path / "out") == 2, "what was swept at another address is not replaced"
        shutil.rmtree(tmp_path / "out" / "sweep")
        assert check(endpoint, tmp_path / "out") == 0
        assert len(endpoint.bodies) - asked < 500


def test_a_refusal_needs_no_more_however_little_was_swept(tmp_path):
    verdict, sweep = checked(tmp_path, [1, 0.5, 0.2, 0.5, 1], least_examples=500)
    assert verdict.outcome == "refused"
    for told in (terminal_text("m", verdict, sweep), decision_page(verdict, {"candidate": sweep})):
        assert "The refusal needs no more examples, but an admission would: 200 examples, and the gate" in told
        assert "too little to judge by" not in told


def test_a_hostile_name_stays_a_name(tmp_path):
    told = terminal_text(HOSTILE, *checked(tmp_path, [0.995] * 5))
    assert told.splitlines()[-1] == f"admitted: {printable(HOSTILE)}"
    assert told.replace("\n", "").isprintable()


@pytest.mark.full
@pytest.mark.parametrize("positions", ["1", "2,3"])
def test_a_check_of_few_positions_shows_nothing(tmp_path, positions):
    with served(Endpoint()) as endpoint:
        (policy := tmp_path / "policy.yaml").write_text("min_worst: 1\n")
        options = ["--positions", positions, "--limit", 3, "--policy", policy]
        assert check(endpoint, tmp_path / "out", *options) == 7
    swept = "1 placement" if positions == "1" else "2 placements"
    gaps = read_json(tmp_path / "out" / "check.json")["evidence_gaps"]
    assert f"{swept}, and the gate asks for 5" in gaps


def test_a_curve_as_text_names_best_and_worst_and_stays_short(tmp_path):
    folder = write_sweep(tmp_path / "sweep", [1.0, 0.6, 0.3, 0.6, 0.9])
    lines = text_curve(sweep := read_sweep(folder)).splitlines()
    assert len(lines) == 5 and lines[0].endswith("best") and lines[2].endswith("worst")
    filled = [line.count("█") for line in lines]
    assert filled == [int(40 * accuracy / 100) for accuracy in sweep.accuracy]
    many = {"n_docs": 1000, "placements": [[i + 1] for i in range(1000)], "accuracy": [50.0] * 1000}
    long = sweep.model_copy(update={**many, "ci95": [(40.0, 60.0)] * 1000})
    long = long.model_copy(update={"worst": sweep.worst.model_copy(update={"placement": [778]})})
    shown = text_curve(long).splitlines()
    assert len(shown) <= 63 and any(line.strip().startswith("778 ") and "worst" in line for line in shown)
    assert shown[-1] == f"and {1000 - len(shown) + 1} placements between these"


def test_a_check_applies_all_rules_that_look_at_the_model_alone(tmp_path):
    assert {rule.name for rule in GATE_RULES} - {rule.name for rule in CHECK_RULES} == {"mean", "advantageous"}
    verdict, _ = checked(tmp_path, [1, 0.9, 0.9, 0.9, 1], min_worst=99)
    assert {rule.name: rule.outcome for rule in verdict.rules} == {
        "gap": "unsure", "useful": "pass", "worst": "fail", "answered": "pass", "clean": "pass"
    }  # fmt: skip


@pytest.mark.parametrize("task", TASKS.names())
def test_examples_are_made_for_every_task(task):
    first, again = (list(made_examples(TASKS[task], 4, 6, seed=3)) for _ in range(2))
    assert first == again and len({example.id for example in first}) == 4
    assert all(len(e.gold) == TASKS[task].n_gold and len(e.gold) + len(e.distractors) == 6 for e in first)


def test_examples_that_cannot_be_made_are_asked_for():
    with refuses(PosgapError, "multihop-cot", "`n_docs`", "3 to 24", "40"):
        made_examples(TASKS["multihop-cot"], 4, 40, seed=0)


WORKFLOW = ROOT / "infra" / "ci" / "github-workflow.yml"


def test_the_docs_lead_to_the_workflow_which_puts_nothing_foreign_into_a_script():
    assert f"](../{WORKFLOW.relative_to(ROOT)})" in (ROOT / "docs" / "gate.md").read_text()
    workflow = yaml.safe_load(WORKFLOW.read_text())
    (job,) = workflow["jobs"].values()
    # What others can set, as a pull request's title, would be run as part of a script; as a variable it is not.
    assert all("${{" not in step.get("run", "") for step in job["steps"])
    assert workflow["permissions"] == {"contents": "read"} and job["timeout-minutes"]


@pytest.mark.full
@pytest.mark.parametrize(("answer", "code"), [(retrieve, 0), (only_at_the_ends, 3)])
def test_the_workflow_s_check_runs_as_it_stands(tmp_path, answer, code):
    (job,) = yaml.safe_load(WORKFLOW.read_text())["jobs"].values()
    (step,) = [step for step in job["steps"] if step.get("name") == "Check the position gap"]
    own = {"CI": "true", "MODEL": "served", "OPENAI_API_KEY": "k"}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    script = step["run"].replace("--n-examples 300", "--n-examples 100")  # enough for this, in a third of the time
    assert script != step["run"]
    with served(Endpoint(answer)) as endpoint:
        done = subprocess.run(
            ["bash", "-e", "-c", script],
            env=os.environ | own | {"ENDPOINT": endpoint.url, "PATH": path},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=200,
        )
    assert done.returncode == code, done.stderr
    assert endpoint.headers[0]["Authorization"] == "Bearer k"
    assert (tmp_path / "run" / "check" / "check.html").is_file()


@pytest.mark.full  # asks a server a thousand prompts
def test_a_check_goes_on_until_it_is_decided(tmp_path):
    """What an earlier look was answered is not asked again."""
    policy = tmp_path / "policy.yaml"
    policy.write_text("max_gap: 2.5\nmost_examples: 240\n")
    with served(Endpoint()) as endpoint:
        code = check(endpoint, tmp_path / "out", "--policy", policy)
        asked = [times for prompt, times in endpoint.seen.items() if "Key:" in prompt]
    verdict = read_json(tmp_path / "out" / "check.json")
    looks = sorted(path.name for path in (tmp_path / "out").glob("sweep*"))
    assert code == 0 and verdict["look"] == 2 and looks == ["sweep", "sweep-2"]
    last = read_sweep(tmp_path / "out" / looks[-1])
    assert last.n_examples == 240 and asked == [1] * 5 * 240


@pytest.mark.full
def test_a_model_that_is_clearly_bad_ends_at_the_first_look(tmp_path):
    policy = tmp_path / "policy.yaml"
    policy.write_text("most_examples: 400\n")
    with served(Endpoint(only_at_the_ends)) as endpoint:
        assert check(endpoint, tmp_path / "out", "--policy", policy) == 3
    assert [path.name for path in (tmp_path / "out").glob("sweep*")] == ["sweep"]

"""`posgap check`: a sweep, a verdict without a base, and what CI shows of it."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml
from endpoint import RECORD, Endpoint, retrieve, served
from places import ROOT
from written_sweeps import write_sweep

from posgap.cli.main import main
from posgap.data.made import made_examples
from posgap.foundation.errors import PosgapError
from posgap.foundation.files import digest_path, read_json
from posgap.gating.ci_reports import CheckResult, Reports, junit, step_summary, terminal_text
from posgap.gating.decision_page import decision_page
from posgap.gating.demands import Policy
from posgap.gating.replay import replay_verdict
from posgap.gating.rules import CHECK_RULES, GATE_RULES
from posgap.gating.verdict import judge
from posgap.measurement.sweeps import read_sweep
from posgap.measurement.text_curve import text_curve
from posgap.tasks.registry import TASKS

HOSTILE = 'm"]]></testsuite>\x1b[2J\x08<script>|`` x ```\n# Admitted\n@everyone'


@pytest.fixture(autouse=True)
def outside_of_ci(monkeypatch):
    for name in ("CI", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)
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


def checked(tmp_path, probability, model="served", **options) -> CheckResult:
    folder = write_sweep(tmp_path / f"sweep-{len(list(tmp_path.iterdir()))}", probability)
    verdict = judge(folder, None, None, Policy(**options))
    return CheckResult(model, verdict, read_sweep(folder))


@pytest.mark.full
def test_a_flat_endpoint_is_admitted_and_one_that_skips_the_middle_refused(tmp_path, capsys):
    with served(Endpoint()) as endpoint:
        assert check(endpoint, tmp_path / "flat") == 0
        shown = capsys.readouterr().out
    assert "5 " + "█" * 40 + " 100.0" in shown and shown.splitlines()[-1] == "admitted: served"
    with served(Endpoint(only_at_the_ends)) as endpoint:
        reports = ["--junit", tmp_path / "j.xml", "--markdown", tmp_path / "s.md"]
        assert check(endpoint, tmp_path / "biased", *reports) == 3
    shown = capsys.readouterr()
    assert shown.err.splitlines()[-1].startswith("posgap: the gate refused served: gap 100.0 (")
    verdict = read_json(tmp_path / "biased" / "check.json")
    assert verdict["outcome"] == "refused" and list(verdict["evidence"]) == ["candidate"]
    assert [rule["name"] for rule in verdict["rules"]] == ["gap", "useful", "answered", "clean"]
    assert read_sweep(tmp_path / "biased" / "sweep").accuracy == [100, 0, 0, 0, 100]
    with pytest.raises(PosgapError, match="biased: holds a sweep beside its verdict; name .*biased/sweep$"):
        read_sweep(tmp_path / "biased")
    assert ElementTree.parse(tmp_path / "j.xml").find(".//failure") is not None
    assert "# Refused: `served`" in (tmp_path / "s.md").read_text()


@pytest.mark.full
def test_a_judge_is_checked_as_it_grades(tmp_path, capsys):
    """The endpoint answers in other words than its examples have, which the judge alone knows to be right."""

    def answered(text: str) -> str:
        if text == "Hello":  # whether the judge is there
            return text
        if "<response-" not in text:
            return " ".join(retrieve(text))
        shown = dict(re.findall(r"<(\w+)-\w{12}>\n(.*?)\n</", text, re.DOTALL))
        references = shown["references"].removeprefix("- ").split("\n- ")
        return "CORRECT" if shown["response"].replace(" ", "") in references else "INCORRECT"

    with served(Endpoint(answered)) as endpoint:
        drawn = ["--n-docs", "2", "--n-examples", "100"]
        assert check(endpoint, tmp_path / "exact", *drawn) == 3
        judged = [*drawn, "--judge", "j", "--judge-url", endpoint.url]
        assert check(endpoint, tmp_path / "out", *judged) == 0
        asked = len(endpoint.bodies)
        assert check(endpoint, tmp_path / "out", *judged) == 0 and len(endpoint.bodies) - asked <= 1
        assert check(endpoint, tmp_path / "none", "--judge-url", endpoint.url) == 2
    assert "`judge_url`: give the name of the judge there too, as `judge`" in capsys.readouterr().err
    assert read_sweep(tmp_path / "out" / "sweep").mean == 0 < read_sweep(tmp_path / "out" / "graded").mean == 100
    assert read_json(tmp_path / "out" / "check.json")["evidence"]["candidate"]["files"]["sweep.json"] == digest_path(
        tmp_path / "out" / "graded" / "sweep.json"
    )


@pytest.mark.parametrize(
    ("judge", "complaint"),
    [
        (["--judge", "./no-judge"], "judge: ./no-judge: "),
        (["--judge", "j", "--judge-url", "http://127.0.0.1:9/v1"], "nothing listens there (connection refused)"),
    ],
)
def test_a_judge_that_is_not_there_is_told_before_the_sweep(tmp_path, capsys, judge, complaint):
    with served(Endpoint()) as endpoint:
        assert check(endpoint, tmp_path / "out", *judge) == 2
        assert endpoint.bodies == [] and not (tmp_path / "out" / "sweep").exists()
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("posgap: error: judge: ") and complaint in line


def test_few_examples_are_no_evidence(tmp_path, capsys):
    with served(Endpoint()) as endpoint:
        assert check(endpoint, tmp_path / "out", "--limit", 1) == 7
    assert (
        capsys.readouterr().err.strip().endswith("1 examples, and the gate asks for 100; sweep at least 100 examples")
    )
    assert "served was not admitted" in (tmp_path / "out" / "check.html").read_text()


def test_a_policy_file_decides_alone(tmp_path, capsys):
    (policy := tmp_path / "policy.yaml").write_text("max_gap: 5\nleast_examples: 3\n")
    with served(Endpoint()) as endpoint:
        assert check(endpoint, tmp_path / "out", "--limit", 3, "--policy", policy) == 7
        assert "threshold 5; sweep at least" in capsys.readouterr().err.splitlines()[-1]
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
    with pytest.raises(PosgapError, match="names no sweep of candidate or base"):
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
def test_an_endpoint_that_dies_leaves_a_report_of_it_and_no_old_verdict(tmp_path, monkeypatch, capsys):
    reports = ["--junit", tmp_path / "j.xml", "--markdown", tmp_path / "s.md"]
    with served(Endpoint()) as endpoint:
        assert check(endpoint, tmp_path / "out", *reports) == 0
    endpoint.seen.clear()
    endpoint.misbehave = lambda prompt, times: (503, {}, "dead") if len(endpoint.seen) > 250 else None
    monkeypatch.setenv("CI", "true")
    with served(endpoint):
        assert check(endpoint, tmp_path / "out", *reports) == 2
        error = ElementTree.parse(tmp_path / "j.xml").find(".//error")
        # A prompt that fails while others are still answered is tried once more.
        assert re.search(r"gave up after [12] tries: 503", error.get("message"))
        assert (tmp_path / "s.md").read_text().startswith("<!-- posgap check -->\n# No verdict on `served`\n")
        assert not (tmp_path / "out" / "check.json").exists()
        assert "a check asks everything again; without both it goes on" in capsys.readouterr().err.splitlines()[-1]
        endpoint.misbehave, asked = (lambda prompt, times: None), len(endpoint.bodies)
        monkeypatch.setenv("CI", "")
        assert check(endpoint, tmp_path / "out") == 2, "what was swept at another address is not replaced"
        shutil.rmtree(tmp_path / "out" / "sweep")
        assert check(endpoint, tmp_path / "out") == 0
        assert len(endpoint.bodies) - asked < 500


def test_junit_has_what_its_readers_look_for(tmp_path):
    """https://github.com/testmoapp/junitxml: the elements, and the attributes that are not optional there."""
    cases = {
        "pass": checked(tmp_path, [0.995] * 5),
        "failure": checked(tmp_path, [1, 0.5, 0.2, 0.5, 1], model=HOSTILE),
        "error": checked(tmp_path, [0.93, 0.9, 0.9, 0.9, 0.93]),
    }
    for kind, of in cases.items():
        suites = ElementTree.fromstring(junit(of).encode())
        (suite,) = suites
        assert (suites.tag, suite.tag, {case.tag for case in suite}) == ("testsuites", "testsuite", {"testcase"})
        for counted in (suites, suite):
            assert counted.get("name") and int(counted.get("tests")) == len(suite) == 1 + len(of.verdict.rules)
            for name in ("failure", "error"):
                assert int(counted.get(f"{name}s")) == len(suites.findall(f".//{name}"))
        assert all(case.get("classname") and case.get("name") for case in suite)
        results = {case.get("name").partition(":")[0]: case[0] for case in suite}
        assert results["gap"].tag == ("system-out" if kind == "pass" else kind)
        assert kind == "pass" or results["gap"].get("message") == results["gap"].text
    assert re.search(r"; a flat model passes this rule in 80 % with \d+ examples$", results["gap"].text)


def test_what_lacks_is_an_error_in_junit_too(tmp_path):
    of = checked(tmp_path, [0.995] * 5, least_examples=500)
    (error,) = ElementTree.fromstring(junit(of).encode()).findall(".//error")
    assert error.text == "There is too little to judge by: 200 examples, and the gate asks for 500"
    assert of.verdict.outcome == "not enough evidence"


def test_a_refusal_is_a_failure_alone_however_little_was_swept(tmp_path):
    of = checked(tmp_path, [1, 0.5, 0.2, 0.5, 1], least_examples=500)
    suites = ElementTree.fromstring(junit(of).encode())
    assert of.verdict.outcome == "refused" and not suites.findall(".//error") and len(suites.findall(".//failure")) == 1
    for told in (terminal_text(of), junit(of), decision_page(of.verdict, {"candidate": of.sweep})):
        assert "A refusal needs no more, though an admission would: 200 examples, and the gate" in told
        assert "too little to judge by" not in told


def test_a_hostile_name_stays_a_name(tmp_path):
    of = checked(tmp_path, [0.995] * 5, model=HOSTILE)
    (suite,) = ElementTree.fromstring(junit(of).encode())
    assert suite.get("name") == HOSTILE.replace("\x1b", "\ufffd").replace("\x08", "\ufffd")
    lines = step_summary(of).splitlines()
    assert lines[1].startswith("# Admitted: ```` m") and lines[1].endswith(" @everyone ````")
    assert [line for line in lines if line.startswith("#")] == [lines[1]]
    assert terminal_text(of).splitlines()[-1].startswith('admitted: m"]]></testsuite>\ufffd[2J\ufffd<script>')
    assert "\x1b" not in terminal_text(of)


def test_a_secret_in_a_complaint_is_not_shown():
    of = CheckResult("m", complaint="http://me:hunter22@host/v1: gave up")
    assert all("hunter22" not in report(of) for report in (junit, step_summary))


def test_a_step_summary_is_added_to_and_other_files_are_not_touched(tmp_path, monkeypatch):
    summary, readme = tmp_path / "summary", tmp_path / "README.md"
    summary.write_text("from another step\n")
    readme.write_text("mine\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    for _ in range(2):
        Reports({"markdown": summary}, tmp_path / "out").write(CheckResult("m", complaint="no"))
    assert summary.read_text() == "from another step\n" + 2 * step_summary(CheckResult("m", complaint="no"))
    with pytest.raises(PosgapError, match=r"--markdown: .*README.md: is there, and no report of `posgap check`"):
        Reports({"markdown": readme}, tmp_path / "out")
    with pytest.raises(PosgapError, match="name one file"):
        Reports({"junit": tmp_path / "a", "markdown": tmp_path / "x" / ".." / "a"}, tmp_path / "out")
    assert readme.read_text() == "mine\n"


@pytest.mark.parametrize(
    ("place", "complaint"),
    [
        ("out", "is, or lies in, the output folder"),
        ("out/sweep/junit.xml", "is, or lies in, the output folder"),
        ("folder", "is there, and no report"),
        ("file/junit.xml", "file: File exists"),
        ("s3://bucket/junit.xml", "must be on this machine"),
    ],
)
def test_a_report_that_cannot_be_written_is_said_before_anything_is_asked(
    tmp_path, monkeypatch, capsys, place, complaint
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    with served(Endpoint()) as endpoint:
        assert check(endpoint, "out", "--junit", place) == 2
        assert complaint in capsys.readouterr().err.splitlines()[-1] and not endpoint.bodies
    assert not (tmp_path / "out").exists()


@pytest.mark.full
@pytest.mark.parametrize("positions", ["1", "2,3"])
def test_a_check_of_few_positions_shows_nothing(tmp_path, positions):
    with served(Endpoint()) as endpoint:
        (policy := tmp_path / "policy.yaml").write_text("max_region_gap: 5\nmin_worst: 1\n")
        options = ["--positions", positions, "--limit", 3, "--policy", policy]
        assert check(endpoint, tmp_path / "out", *options) == 7
    assert any("placements" in words for words in read_json(tmp_path / "out" / "check.json")["evidence_gaps"])


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
    of = checked(tmp_path, [1, 0.9, 0.9, 0.9, 1], min_worst=99, max_region_gap=1)
    assert {rule.name: rule.outcome for rule in of.verdict.rules} == {
        "gap": "unsure", "useful": "pass", "worst": "fail", "regions": "fail", "answered": "pass", "clean": "pass"
    }  # fmt: skip


@pytest.mark.parametrize("task", TASKS.names())
def test_examples_are_made_for_every_task(task):
    first, again = (list(made_examples(TASKS[task], 4, 6, seed=3)) for _ in range(2))
    assert first == again and len({example.id for example in first}) == 4
    assert all(len(e.gold) == TASKS[task].n_gold and len(e.gold) + len(e.distractors) == 6 for e in first)


def test_examples_that_cannot_be_made_are_asked_for():
    with pytest.raises(PosgapError, match="task multihop-cot: `n_docs` of two-hop must lie in 3 to 24, got 40"):
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
    own = {"CI": "true", "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"), "MODEL": "served", "OPENAI_API_KEY": "k"}
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
    assert "# Admitted: `served`" in (tmp_path / "summary").read_text() or code
    assert {file.name for file in (tmp_path / "run").iterdir()} >= {"check", "junit.xml"}

"""The GitHub workflows: valid, pinned, with no more rights than they need, and calling what there is."""

import re
import subprocess
import sys

import yaml
from conftest import ROOT

from posgap.preflight.config import ClusterConfig

FILES = {file.name: file for file in (ROOT / ".github" / "workflows").iterdir()}
WORKFLOWS = {name: yaml.safe_load(file.read_text()) for name, file in FILES.items()}
CI, INFRA = WORKFLOWS["ci.yml"], WORKFLOWS["infra.yml"]
JOBS = {name: job for workflow in WORKFLOWS.values() for name, job in workflow["jobs"].items()}
STEPS = [step for job in JOBS.values() for step in job["steps"]]


def test_they_are_valid_by_github_s_schema(tmp_path):
    def valid(*files):
        command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", *files]
        return subprocess.run(command, capture_output=True, text=True).returncode == 0

    assert valid(*FILES.values())
    (tmp_path / "broken.yml").write_text(FILES["ci.yml"].read_text().replace("runs-on:", "run-on:"))
    assert not valid(tmp_path / "broken.yml")


def test_actions_are_pinned_by_commit_with_their_version_beside():
    uses = [line for file in FILES.values() for line in re.findall(r"uses: (.*)", file.read_text())]
    assert uses and all(re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+(\.\d+)*", each) for each in uses)


def test_only_the_images_job_may_write_and_no_checkout_keeps_its_token():
    assert all(workflow["permissions"] == {"contents": "read"} for workflow in WORKFLOWS.values())
    writing = {name: job["permissions"] for name, job in JOBS.items() if "permissions" in job}
    assert writing == {
        "images": {"contents": "read", "packages": "write", "id-token": "write", "attestations": "write"}
    }
    checkouts = [step for step in STEPS if step.get("uses", "").startswith("actions/checkout")]
    assert len(checkouts) == len(JOBS)
    assert all(step["with"] == {"persist-credentials": False} for step in checkouts)
    # What comes from outside reaches a shell as a variable, never as text of its command.
    assert not [step for step in STEPS if "${{" in step.get("run", "")]


def test_images_wait_for_everything_else_and_are_built_on_tags():
    images = CI["jobs"]["images"]
    assert images["if"] == "github.ref_type == 'tag'"
    assert set(images["needs"]) == CI["jobs"].keys() - {"images"}
    assert images["strategy"]["matrix"]["image"] == ["cpu", "gpu-train", "gpu-serve"]


def test_every_job_has_a_time_limit_and_calls_targets_that_the_makefile_has():
    assert all(job["timeout-minutes"] <= 350 for job in JOBS.values())
    text = (ROOT / "Makefile").read_text().replace("$(VENV)", ".venv")
    targets = {each for line in re.findall(r"^([\w./ -]+):", text, re.MULTILINE) for each in line.split()}
    calls = [
        line
        for step in STEPS
        for line in re.findall(r"^(?:sudo env .*)?\bmake (.*)", step.get("run", ""), re.MULTILINE)
    ]
    made = {word for line in calls for word in line.split() if "=" not in word}
    assert {"types", "test", "test-all", "smoke", "pipeline", "mlproject", "mutants", "community", "containers"} <= made
    assert {"oldest", "newest", "images", "images-check", "images-scan"} <= made <= targets


def test_images_are_built_and_scanned_on_every_change_of_what_they_are_made_of():
    for event in ("push", "pull_request"):
        assert {"infra/**", "constraints.txt", "pyproject.toml"} <= set(INFRA[True][event]["paths"])
    assert "if" not in INFRA["jobs"]["image"] and {"schedule", "workflow_dispatch"} <= INFRA[True].keys()


def test_the_steps_on_a_cluster_are_those_that_the_script_has_and_its_settings_are_read():
    script = ROOT / "infra" / "ci" / "kind.sh"
    steps = [step["run"].split()[-1] for step in INFRA["jobs"]["kind"]["steps"] if "kind.sh" in step.get("run", "")]
    verbs = re.search(r"^    (.*)\) \"\$1\" ;;", script.read_text(), re.MULTILINE)[1].split(" | ")
    assert steps == [verb for verb in verbs if verb != "remove"]
    assert all(re.search(rf"^{verb}\(\) {{", script.read_text(), re.MULTILINE) for verb in verbs)
    assert subprocess.run(["bash", "-n", script]).returncode == 0
    cluster = ClusterConfig(**yaml.safe_load((ROOT / "infra" / "ci" / "cluster.yaml").read_text()))
    labels = [node["labels"] for node in yaml.safe_load((ROOT / "infra" / "ci" / "kind.yaml").read_text())["nodes"][1:]]
    # A node for every pool, by the labels that steps ask for where nobody says otherwise.
    assert labels == [getattr(cluster, pool).nodes for pool in ("cpu", "train", "inference")]
    assert labels == [getattr(ClusterConfig(), pool).nodes for pool in ("cpu", "train", "inference")]


def test_what_takes_long_runs_on_a_schedule_and_not_for_every_push():
    for name in ("mutants.yml", "nightly.yml"):
        # YAML reads the key `on` as a truth value.
        assert WORKFLOWS[name][True].keys() == {"schedule", "workflow_dispatch"}
        assert not WORKFLOWS[name]["jobs"].keys() & CI["jobs"].keys()

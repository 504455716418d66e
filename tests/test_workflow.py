"""The GitHub workflows: valid, pinned, with no more rights than they need, and calling what there is."""

import re
import subprocess
import sys

import pytest
import yaml
from conftest import ROOT

FILES = {file.name: file for file in (ROOT / ".github" / "workflows").iterdir()}
CI, MUTANTS = (yaml.safe_load(FILES[name].read_text()) for name in ("ci.yml", "mutants.yml"))
JOBS = {name: job for workflow in (CI, MUTANTS) for name, job in workflow["jobs"].items()}
STEPS = [step for job in JOBS.values() for step in job["steps"]]


@pytest.mark.parametrize("name", FILES)
def test_it_is_valid_by_github_s_schema(name, tmp_path):
    def valid(file):
        command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", file]
        return subprocess.run(command, capture_output=True, text=True).returncode == 0

    assert valid(FILES[name])
    (tmp_path / "broken.yml").write_text(FILES[name].read_text().replace("runs-on:", "run-on:"))
    assert not valid(tmp_path / "broken.yml")


def test_actions_are_pinned_by_commit_with_their_version_beside():
    uses = [line for file in FILES.values() for line in re.findall(r"uses: (.*)", file.read_text())]
    assert uses and all(re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+(\.\d+)*", each) for each in uses)


def test_only_the_images_job_may_write_and_no_checkout_keeps_its_token():
    assert CI["permissions"] == MUTANTS["permissions"] == {"contents": "read"}
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
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    made = [word for step in STEPS if step.get("run", "").startswith("make ") for word in step["run"].split()[1:]]
    assert {"types", "test", "smoke", "pipeline", "mlproject", "images", "images-check", "mutants"} == set(made)
    assert set(made) <= targets


def test_mutants_run_on_a_schedule_and_not_for_every_push():
    # YAML reads the key `on` as a truth value.
    assert MUTANTS[True].keys() == {"schedule", "workflow_dispatch"}
    assert "mutants" not in CI["jobs"]

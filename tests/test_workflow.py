"""The GitHub workflow: valid, pinned, with no more rights than it needs, and calling what there is."""

import re
import subprocess
import sys

import yaml
from conftest import ROOT

FILE = ROOT / ".github" / "workflows" / "ci.yml"
WORKFLOW = yaml.safe_load(FILE.read_text())
STEPS = [step for job in WORKFLOW["jobs"].values() for step in job["steps"]]


def test_it_is_valid_by_github_s_schema(tmp_path):
    def valid(file):
        command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", file]
        return subprocess.run(command, capture_output=True, text=True).returncode == 0

    assert valid(FILE)
    (tmp_path / "broken.yml").write_text(FILE.read_text().replace("runs-on:", "run-on:"))
    assert not valid(tmp_path / "broken.yml")


def test_actions_are_pinned_by_commit_with_their_version_beside():
    uses = re.findall(r"uses: (.*)", FILE.read_text())
    assert uses and all(re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+(\.\d+)*", each) for each in uses)


def test_only_the_images_job_may_write_and_no_checkout_keeps_its_token():
    assert WORKFLOW["permissions"] == {"contents": "read"}
    writing = {name: job["permissions"] for name, job in WORKFLOW["jobs"].items() if "permissions" in job}
    assert writing == {
        "images": {"contents": "read", "packages": "write", "id-token": "write", "attestations": "write"}
    }
    checkouts = [step for step in STEPS if step.get("uses", "").startswith("actions/checkout")]
    assert len(checkouts) == len(WORKFLOW["jobs"])
    assert all(step["with"] == {"persist-credentials": False} for step in checkouts)
    # What comes from outside reaches a shell as a variable, never as text of its command.
    assert not [step for step in STEPS if "${{" in step.get("run", "")]


def test_images_wait_for_everything_else_and_are_built_on_tags():
    images = WORKFLOW["jobs"]["images"]
    assert images["if"] == "github.ref_type == 'tag'"
    assert set(images["needs"]) == WORKFLOW["jobs"].keys() - {"images"}
    assert images["strategy"]["matrix"]["image"] == ["cpu", "gpu-train", "gpu-serve"]


def test_every_job_has_a_time_limit_and_calls_targets_that_the_makefile_has():
    assert all(job["timeout-minutes"] <= 350 for job in WORKFLOW["jobs"].values())
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    made = [word for step in STEPS if step.get("run", "").startswith("make ") for word in step["run"].split()[1:]]
    assert {"types", "test", "smoke", "pipeline", "mlproject", "images", "images-check"} == set(made)
    assert set(made) <= targets

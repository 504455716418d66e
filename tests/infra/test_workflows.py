"""The workflows of GitHub: what can be said of them without running them there."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from places import ROOT

from posgap.options.cluster import ClusterConfig

FOLDER = ROOT / ".github" / "workflows"
TEXTS = {file.name: file.read_text() for file in sorted(FOLDER.glob("*.yml"))}
WORKFLOWS = {name: yaml.safe_load(text) for name, text in TEXTS.items()}
RELEASE = WORKFLOWS["release.yml"]["jobs"]
CI, INFRA = WORKFLOWS["ci.yml"], WORKFLOWS["infra.yml"]
MAKEFILE = "".join(file.read_text() for file in [ROOT / "Makefile", *ROOT.glob("make/*.mk")])
ON = True  # what YAML makes of the key `on`


def steps(job: dict) -> list[dict]:
    return job.get("steps", [])


def test_they_are_of_the_form_that_github_reads():
    check = [Path(sys.executable).with_name("check-jsonschema"), "--builtin-schema"]
    for schema, files in (
        ("github-workflows", FOLDER.glob("*.yml")),
        ("dependabot", [FOLDER.parent / "dependabot.yml"]),
    ):
        done = subprocess.run([*check, f"vendor.{schema}", *files], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", TEXTS)
def test_every_action_is_pinned_by_commit_with_its_version_behind_it(name):
    for use in re.findall(r"uses: (.*)", TEXTS[name]):
        assert use == "./.github/workflows/ci.yml" or re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d[\d.]*", use), use
    pins = {tuple(use.split("@")) for text in TEXTS.values() for use in re.findall(r"uses: ([^.]\S+)", text)}
    assert len(pins) == len({action for action, _ in pins}), "one action in two versions"


@pytest.mark.parametrize("name", WORKFLOWS)
def test_what_it_runs_is_there(name):
    for job in WORKFLOWS[name]["jobs"].values():
        for script in (step.get("run", "") for step in steps(job)):
            for words in re.findall(r"\bmake ([^\n&|;]*)", script):
                for target in (word for word in words.split() if "=" not in word):
                    pattern = target.replace(".venv", "$(VENV)")
                    assert re.search(rf"^(?:[\w-]+ )*{re.escape(pattern)}(?: [\w-]+)*:", MAKEFILE, re.MULTILINE), target
            for file in re.findall(r"\binfra/\S+\.sh", script):
                assert (ROOT / file).is_file()


def test_whatever_takes_long_is_run_by_some_workflow():
    made = {
        word for text in TEXTS.values() for line in re.findall(r"\bmake ([^\n&|;]*)", text) for word in line.split()
    }
    wanted = {"types", "test", "test-full", "test-all", "smoke", "pipeline", "mlproject", "mutants", "containers"}
    assert wanted <= made
    assert {"oldest", "newest", "images-check", "images-scan"} <= made


def test_no_checkout_keeps_its_token_and_nothing_from_outside_is_text_of_a_command():
    jobs = [job for workflow in WORKFLOWS.values() for job in workflow["jobs"].values()]
    every = [step for job in jobs for step in steps(job)]
    checkouts = [step for step in every if step.get("uses", "").startswith("actions/checkout")]
    assert checkouts and all(step["with"]["persist-credentials"] is False for step in checkouts)
    assert not [step for step in every if "${{" in step.get("run", "")]
    assert all(job["timeout-minutes"] <= 350 for job in jobs if "steps" in job)


def test_a_release_begins_with_a_tag_alone_and_has_few_rights():
    assert WORKFLOWS["release.yml"][ON] == {"push": {"tags": ["v*"]}}
    rights = {name: job["permissions"] for name, job in RELEASE.items() if "permissions" in job}
    publishing = {"packages": "write", "id-token": "write"}
    assert rights == {
        "pypi": {"id-token": "write"},
        "images": {"contents": "read", "attestations": "write"} | publishing,
        "images-signed": publishing,
        "pages": {"pages": "write", "id-token": "write"},
    }
    for name, workflow in WORKFLOWS.items():
        assert workflow["permissions"] == {"contents": "read"}, name
        used = set(re.findall(r"secrets\.(\w+)", TEXTS[name]))
        assert used == ({"GITHUB_TOKEN"} if name == "release.yml" else set())
    # What a pull request leaves in a cache is no part of a release.
    assert "cache:" not in TEXTS["release.yml"] + TEXTS["ci.yml"] + TEXTS["infra.yml"]


def test_a_release_is_tested_on_every_python_and_published_last():
    def before(name: str) -> set[str]:
        needed = RELEASE[name].get("needs", [])
        needed = [needed] if isinstance(needed, str) else needed
        return {*needed, *(each for job in needed for each in before(job))}

    assert before("pypi") == {"version", "tests", "package", "images", "images-signed"}
    assert before("pages") >= before("pypi")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pythons = WORKFLOWS["ci.yml"]["jobs"]["tests"]["strategy"]["matrix"]["python"]
    assert pythons == ["3.11", "3.12", "3.13"] and pythons[0] == project["requires-python"].removeprefix(">=")
    declared = [name.rpartition(" ")[2] for name in project["classifiers"] if ":: 3." in name]
    assert declared == pythons


def test_all_images_are_built_and_signed_for_the_architectures_that_they_have():
    images = re.search(r"^IMAGES \?= (.*)$", MAKEFILE, re.MULTILINE)[1].split()
    built = {(each["image"], each["architecture"]) for each in RELEASE["images"]["strategy"]["matrix"]["include"]}
    signed = {
        (each["image"], architecture)
        for each in RELEASE["images-signed"]["strategy"]["matrix"]["include"]
        for architecture in each["architectures"].split()
    }
    assert built == signed and {image for image, _ in built} == set(images)
    assert {image for image, architecture in built if architecture == "arm64"} == {"cpu", "mlflow"}


def test_the_cluster_is_tried_on_every_tag():
    assert WORKFLOWS["infra.yml"][ON]["push"]["tags"] == ["v*"]
    assert "github.ref_type == 'tag'" in WORKFLOWS["infra.yml"]["jobs"]["kind"]["if"]


def test_no_file_names_an_address_of_the_repository_but_the_setting():
    repository = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["posgap"]["repository"]
    for name in ("SECURITY.md", "CITATION.cff", "infra/images/Dockerfile", "README.md"):
        named = set(re.findall(r"https://github\.com/posgap\S*", (ROOT / name).read_text()))
        assert all(repository and address.startswith(repository) for address in named), name


def test_images_are_built_and_scanned_on_every_change_of_what_they_are_made_of():
    for event in ("push", "pull_request"):
        assert {"infra/**", "constraints.txt", "pyproject.toml"} <= set(INFRA[ON][event]["paths"])
    assert "if" not in INFRA["jobs"]["image"] and {"schedule", "workflow_dispatch"} <= INFRA[ON].keys()


def test_the_workflow_runs_the_cluster_script_s_steps_and_settings():
    script = ROOT / "infra" / "ci" / "kind.sh"
    run = [step["run"].split()[-1] for step in INFRA["jobs"]["kind"]["steps"] if "kind.sh" in step.get("run", "")]
    text = script.read_text()
    verbs = re.search(r"kind\.sh (\S+)$", text, re.MULTILINE)[1].split("|")
    assert run == [verb for verb in verbs if verb != "remove"]
    python = re.search(r"^    (.*)\) python tests/helpers/kubeflow_steps\.py", text, re.MULTILINE)[1].split(" | ")
    assert all(f'"{step}"' in (ROOT / "tests" / "helpers" / "kubeflow_steps.py").read_text() for step in python)
    assert all(re.search(rf"^{verb}\(\) {{", text, re.MULTILINE) for verb in verbs if verb not in python)
    assert subprocess.run(["bash", "-n", script]).returncode == 0
    cluster = ClusterConfig(**yaml.safe_load((ROOT / "infra" / "ci" / "cluster.yaml").read_text()))
    labels = [node["labels"] for node in yaml.safe_load((ROOT / "infra" / "ci" / "kind.yaml").read_text())["nodes"][1:]]
    for pool in ("cpu", "small", "promote"):  # a node of four cores must hold each
        assert float(getattr(cluster, pool).cpu.removesuffix("m")) <= 500 and getattr(cluster, pool).nodes == labels[0]
    # A node for every pool, by the labels that steps ask for where nobody says otherwise.
    assert labels == [getattr(cluster, pool).nodes for pool in ("cpu", "train", "inference")]
    assert labels == [getattr(ClusterConfig(), pool).nodes for pool in ("cpu", "train", "inference")]


def test_what_takes_long_runs_on_a_schedule_and_not_for_every_push():
    for name in ("mutants.yml", "nightly.yml"):
        assert WORKFLOWS[name][ON].keys() == {"schedule", "workflow_dispatch"}
        assert not WORKFLOWS[name]["jobs"].keys() & CI["jobs"].keys()

"""infra/images: what can be said of the images without building them. tests/infra/test_containers.py builds one."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from configparser import ConfigParser
from pathlib import Path

import pytest
import yaml
from container_images import pip_flags
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from places import ROOT

from posgap.components.making import CPU, image

IMAGES = ROOT / "infra" / "images"
TEXT = (IMAGES / "Dockerfile").read_text()
TARGETS = ("cpu", "mlflow", "gpu-train", "gpu-serve")


def stages() -> dict[str, tuple[str, list[str]]]:
    """Of each stage its base and its instructions, continued lines joined."""
    found: dict[str, tuple[str, list[str]]] = {}
    lines = [line for line in re.sub(r"\\\n\s*", "", TEXT).splitlines() if line and not line.startswith("#")]
    for line in lines:
        if start := re.match(r"FROM (\S+) AS (\S+)", line):
            instructions = found.setdefault(start[2], (start[1], []))[1]
        elif found:
            instructions.append(line)
    return found


def inherited(name: str) -> list[str]:
    """The instructions of a stage after those of the stages it is built on."""
    base, instructions = stages()[name]
    return (inherited(base) if base in stages() else []) + instructions


def test_hadolint_finds_nothing():
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run(
        [hadolint, "--config", IMAGES / ".hadolint.yaml", IMAGES / "Dockerfile"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_every_base_is_pinned_by_tag_and_digest():
    given = dict(re.findall(r"^ARG (\w+)=(\S+)$", TEXT.split("FROM", 1)[0], re.MULTILINE))
    for base, _ in stages().values():
        if base not in stages():
            name = re.fullmatch(r"\$\{(\w+)\}", base)[1]
            assert re.fullmatch(r"docker\.io/\S+:[\w.-]+@sha256:[0-9a-f]{64}", given[name]), base


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_is_labelled_and_runs_as_nobody_s_root(target):
    instructions = inherited(target)
    assert [i for i in instructions if i.startswith("USER")][-1] == instructions[-1] == "USER 10001:10001"
    labels = " ".join(i for i in instructions if i.startswith("LABEL"))
    for label in ("title", "description", "version", "revision", "source", "licenses"):
        assert f"org.opencontainers.image.{label}=" in labels
    assert f'title="posgap-{target}"' in labels
    # KFP's DockerRunner gives a step's command as arguments, which an entry point would take for its own.
    assert 'CMD ["posgap", "--help"]' in instructions and not [i for i in instructions if i.startswith("ENTRYPOINT")]


def test_nothing_is_downloaded_but_packages_and_no_secret_is_kept():
    everything = [i for _, instructions in stages().values() for i in instructions]
    assert not [i for i in everything if i.startswith("ADD") or re.search(r"\b(curl|wget|git clone)\b", i)]
    assert not re.search(r"(?i)^(ARG|ENV)\b.*(password|token|secret|_key)", TEXT, re.MULTILINE)
    # Whatever installs may be told of a package index, by a file that no layer keeps; nothing is in a final stage.
    for name, (_, instructions) in stages().items():
        installs = [i for i in instructions if re.search(r"\bpip (install|wheel|download)", i)]
        assert all(i.startswith("RUN --mount=type=secret,id=pip,target=/etc/pip.conf") for i in installs)
        assert not (installs and name in TARGETS)


def test_what_is_installed_has_a_known_hash():
    for name, (_, instructions) in stages().items():
        for install in (each for i in instructions for each in re.findall(r"\bpip (?:install|wheel) [^&]*", i)):
            ours = "/wheels/" in install or install.endswith("/wheels .")  # what a stage before has built
            assert ours or ("--require-hashes" in install and "--requirement" in install), (name, install)
    script = (IMAGES / "install.sh").read_text()
    assert all("--dry-run" in each or "--require-hashes" in each for each in re.findall(r"pip install .*", script))


def test_the_lists_name_the_versions_that_are_tested():
    ours = dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    serve, torch = (
        dict(re.findall(r"^([\w.-]+)==(\S+)", (IMAGES / name).read_text(), re.MULTILINE))
        for name in ("gpu-serve.txt", "torch-cpu.txt")
    )
    assert serve["vllm"] == "0.32.0" and serve["mlflow-skinny"] == ours["mlflow"]
    assert {name: serve[name] for name in ("torch", "kfp", "boto3")} == {
        name: ours[name] for name in ("torch", "kfp", "boto3")
    }
    assert torch == {"torch": f"{ours['torch']}+cpu"}
    for name in ("gpu-serve.txt", "torch-cpu.txt", "flash-attn.txt", "cyclonedx.txt"):
        text = (IMAGES / name).read_text()
        assert len(re.findall(r"^\S+==", text, re.MULTILINE)) == len(
            re.findall(r"^\S+==\S+ \\\n    --hash=sha256:[0-9a-f]{64}", text, re.MULTILINE)
        )


def test_the_image_that_serves_is_one_environment_of_posgap_with_vllm():
    listed = dict(re.findall(r"^([\w.-]+)==(\S+)", (IMAGES / "gpu-serve.txt").read_text(), re.MULTILINE))
    command = [sys.executable, IMAGES / "requirements.py", "all", "vllm"]
    wanted = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")[:-1]
    assert len(wanted) > 30
    for requirement in map(Requirement, wanted):
        assert listed[canonicalize_name(requirement.name)] in requirement.specifier, requirement


def test_what_pip_chose_is_installed_by_the_hashes_of_the_lists(tmp_path):
    """A package of hashes.txt, one of CUDA's, and none: another version than the lists have, or no such package."""
    (tmp_path / "lists").mkdir()
    for file in IMAGES.glob("*.txt"):
        shutil.copy(file, tmp_path / "lists")

    def locked(**chosen):
        install = [{"metadata": {"name": name, "version": version}} for name, version in chosen.items()]
        (tmp_path / "report.json").write_text(json.dumps({"install": install}))
        command = [sys.executable, IMAGES / "requirements.py", "--locked", tmp_path / "report.json"]
        return subprocess.run(command, cwd=tmp_path / "lists", capture_output=True, text=True)

    versions = dict(re.findall(r"^([\w.-]+)==(\S+)", (IMAGES / "hashes.txt").read_text(), re.MULTILINE))
    nvidia = dict(re.findall(r"^(nvidia-[\w.-]+)==(\S+)", (IMAGES / "gpu-serve.txt").read_text(), re.MULTILINE))
    done = locked(**{"Typing_Extensions": versions["typing-extensions"], "nvidia-nvtx": nvidia["nvidia-nvtx"]})
    entry = r"{}==\S+( \\\n    --hash=sha256:[0-9a-f]{{64}})+\n"
    both = entry.format("typing-extensions") + entry.format("nvidia-nvtx")
    assert done.returncode == 0 and re.fullmatch(both, done.stdout)
    done = locked(numpy=versions["numpy"], pandas="0.0.1", nobody="1")
    assert done.returncode == 1 and "no sha256s of pandas 0.0.1, nobody 1 in" in done.stderr and not done.stdout


def test_only_gpu_images_hold_a_compiler():
    def compilers(target):
        return [i for i in inherited(target) if re.search(r" (g\+\+|gcc|build-essential) ", i)]

    assert not compilers("cpu") + compilers("mlflow") and compilers("gpu-train") and compilers("gpu-serve")


def test_the_context_holds_what_is_built_and_nothing_else():
    lines = (ROOT / ".dockerignore").read_text().split()
    assert lines[0] == "*"
    allowed = {line.removeprefix("!") for line in lines if line.startswith("!")}
    assert all((ROOT / each).exists() for each in allowed)
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    copied = [each for name in setuptools["data-files"].values() for each in name]
    for path in ["setup.py", *setuptools["package-dir"].values(), *copied]:
        assert any(path == each or path.startswith(f"{each}/") for each in allowed), path


def test_the_dependencies_of_extras_are_all_there():
    command = [sys.executable, IMAGES / "requirements.py", "test"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    names = {Requirement(line).name for line in done.stdout.splitlines()}
    assert {"torch", "kfp", "pytest", "deepspeed", "kubeflow"} <= names and "posgap" not in names
    left_out = "huggingface_hub,bm25s,kubeflow"  # of the image of MLflow's server
    assert f"requirements.py --without {left_out} mlflow s3 cluster" in TEXT
    command = [sys.executable, IMAGES / "requirements.py", "--without", left_out, "mlflow", "s3", "cluster"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert not {Requirement(line).name for line in done.stdout.splitlines()} & {*left_out.split(","), "torch", "kfp"}
    assert "mlflow[auth]" in done.stdout and "psycopg[binary]" in done.stdout


@pytest.mark.full
def test_what_the_server_of_mlflow_needs_of_posgap_needs_no_torch():
    """Migration, access and backup, in a Python where what its image lacks cannot be imported."""
    folder = ROOT / "infra/kubernetes/base/namespaced"
    programs = [folder / name for name in ("mlflow/migration.py", "mlflow/access.py", "backup/backup.py")]
    script = (
        "import runpy, sys\n"
        "for name in ('torch', 'accelerate', 'transformers', 'bm25s', 'kubeflow', 'kfp'): sys.modules[name] = None\n"
        f"for file in {[str(each) for each in programs]}: runpy.run_path(file)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_pipeline_and_the_cluster_take_the_images_that_are_built():
    repository, tag = image(CPU).rsplit(":", 1)
    registry = repository.removesuffix("/posgap-cpu")
    assert f"REGISTRY=${{REGISTRY:-{registry}}}" in (IMAGES / "images.sh").read_text()
    wanted = yaml.safe_load((ROOT / "infra" / "kubernetes" / "images" / "kustomization.yaml").read_text())["images"]
    wanted = [each for each in wanted if each["name"].startswith("posgap-")]
    ours = {each["name"]: f"{each['newName']}:{each['newTag']}" for each in wanted}
    assert ours == {name: f"{registry}/{name}:{tag}" for name in ours}
    assert {name.removeprefix("posgap-") for name in ours} <= set(TARGETS)


def test_the_script_takes_the_engine_that_works_and_says_what_is_wrong(tmp_path):
    """Engines are stood in for by scripts: what is looked at is which one is called, and how."""
    shutil.copytree(IMAGES, tmp_path / "infra" / "images")
    (tmp_path / "src" / "posgap").mkdir(parents=True)
    (tmp_path / "src" / "posgap" / "__init__.py").write_text('__version__ = "1.2.3"\n')
    (tmp_path / "pyproject.toml").write_text('[tool.posgap]\nrepository = "https://here.example/we"\n')
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "docker").write_text("#!/bin/sh\nexit 1\n")  # installed, and no daemon
    (tools / "podman").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\necho sbom\n')
    for tool in tools.iterdir():
        tool.chmod(0o755)

    def images(*words, **environment):
        path = {"PATH": f"{tools}:/usr/bin:/bin", **environment}
        script = tmp_path / "infra" / "images" / "images.sh"
        return subprocess.run([script, *words], env=path, capture_output=True, text=True)

    done = images("build", "cpu", REGISTRY="here/we", BUILD_FLAGS="--no-cache --pull")
    assert done.returncode == 0, done.stderr
    build = next(call for call in (tmp_path / "calls").read_text().splitlines() if call.startswith("build"))
    assert "--target cpu --tag here/we/posgap-cpu:1.2.3 --build-arg VERSION=1.2.3" in build
    assert "--build-arg SOURCE=https://here.example/we " in build and build.endswith("--no-cache --pull .")
    assert (tmp_path / "build" / "images" / "cpu.cdx.json").read_text() == "sbom\n"
    for words, environment, said in (
        (["build", "tpu"], {}, "tpu: no such image; cpu, mlflow, gpu-train or gpu-serve"),
        (["built"], {}, "say build, check or scan"),
        (["build"], {"ENGINE": "docker"}, "docker: not installed, or its daemon is not running"),
    ):
        done = images(*words, **environment)
        assert done.returncode == 2 and said in done.stderr and done.stderr.count("\n") == 1


def test_a_build_is_given_the_files_that_pip_s_settings_name(tmp_path, monkeypatch):
    constraint, wheels, handed = tmp_path / "constraint.txt", tmp_path / "wheels", tmp_path / "handed"
    constraint.touch(), wheels.mkdir(), handed.mkdir()
    (tmp_path / "pip.conf").write_text(
        f"[global]\ntimeout = 7\ncert = {constraint}\nextra-index-url = file://{wheels}/simple\n  https://a.example/simple\n"
        f"[install]\nconstraint = {constraint}\n"
    )
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    monkeypatch.setenv("PIP_TIMEOUT", "9")
    secret, *mounts = pip_flags(handed)
    settings = ConfigParser()
    settings.read(handed / "pip.conf")
    assert secret == f"--secret=id=pip,src={handed}/pip.conf"
    assert settings["install"]["constraint"] == str(constraint)
    assert settings["global"]["timeout"] == "9" and "cert" not in settings["global"]
    assert settings["global"]["extra-index-url"] == f"file://{wheels}/simple https://a.example/simple"
    mounted = {mount.removeprefix("--volume=").partition(":")[0] for mount in mounts}
    assert {str(constraint), str(wheels)} <= mounted
    # Packages write into the folder of certificates as they are installed.
    assert "/etc/ssl/certs" not in mounted and all(mount.endswith(":ro") for mount in mounts)

